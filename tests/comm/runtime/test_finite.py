"""Sums that are not finite are seen, whichever of the neighbours makes them so, and however many there are."""

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.runtime import finite

pytestmark = pytest.mark.skipif(not finite.COMPILED, reason="found by compiled kernels")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "n", [3, 64, 65, 66, 130, 200]
)  # sums are taken over 64 neighbours at a time
def test_sums_over_any_number_of_neighbours(n, dtype):
    with mpidec.Network(n) as net:
        W = net.mixer(T.complete(n))
        finite.watch(1)
        try:
            for d in (1, 600):  # and over 512 columns
                X = np.ones((n, d), dtype)
                W(X[net.lo : net.hi])
                assert not finite.watch()
                for bad, agent in zip(
                    (np.nan, np.inf, -np.inf, np.nan), (0, n // 2, n - 1, min(63, n - 1))
                ):
                    X = np.ones((n, d), dtype)
                    X[agent, -1] = bad
                    Y = W(X[net.lo : net.hi])
                    assert finite.watch() == (not np.isfinite(Y).all()) == bool(net.m), (
                        d,
                        bad,
                        agent,
                    )
        finally:
            finite.watch(-1)
