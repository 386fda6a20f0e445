"""Runs in two threads of one rank."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N = 4


@pytest.mark.parametrize("given", [True, False], ids=["one network", "all ranks"])
def test_a_second_run_on_the_same_network_is_refused_at_once(given):
    """Its calls would meet those of the first one on other ranks."""
    found = []

    def run(net, call=mpidec.solve, **options):
        n = N if net is not None else net_of_all.n
        rows = slice(net_of_all.lo, net_of_all.hi) if net is None else slice(net.lo, net.hi)
        problem = P.LeastSquares(np.ones((n, 1, 1))[rows], np.arange(n)[rows, None])
        return call(problem, S.EXTRA(0.5), T.complete(n), steps=3, net=net, **options)

    def other(net, call):
        try:
            run(net, call)
        except RuntimeError as error:
            found.append(str(error))

    with mpidec.Network(N) as net, mpidec.Network() as net_of_all:
        used = net if given or net_of_all.size == 1 else None

        def meanwhile(X, agents, k):
            for call in (mpidec.solve, mpidec.tune):
                thread = Thread(target=other, args=(used, call))
                thread.start()
                thread.join()
            return X[:, 0]

        run(used, metrics={"own": meanwhile})
        run(used)  # it is free again
    assert len(found) == 4 and all("another thread of this rank has a run" in f for f in found)
