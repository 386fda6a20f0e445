"""Warnings of graphs on which the disagreement grows, against the spectral radius of the steps themselves."""

import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.options import crossed

from mpidec import solvers as S, topology as T
from mpidec.testing.case import with_number
from mpidec.testing.contract import variants
from mpidec.theory.linear import LinearSteps

pytestmark = pytest.mark.serial


def disagreeing(lam):
    """Weights with the eigenvalues 1 and lam, and the conjugate of a complex lam."""
    if not lam.imag:
        return np.array([[1 + lam.real, 1 - lam.real], [1 - lam.real, 1 + lam.real]]) / 2
    turn = np.exp(2j * np.pi / 3 * np.arange(3))
    powers = np.array([1, lam, np.conj(lam)]) @ turn[:, None] ** -np.arange(3) / 3
    return np.stack([np.roll(powers.real, k) for k in range(3)])


LAMS = [-0.98, -0.4, -0.3, 0.2, 0.62 + 0.21j, 0.1 + 0.4j]
WARN = [
    made
    for made in S.CATALOGUE.values()
    if made.unstable is not S.Solver.unstable and made is not S.AdaptiveGradientTracking
]
SOLVERS = [
    *(
        replace(
            with_number(solver, 0.01),
            **{"probability": 1.0} if hasattr(solver, "probability") else {},
        )
        for made in WARN
        for solver in variants(made)
    ),
    *(
        solver
        for made in WARN
        if made is not S.SUDA
        for solver in crossed(
            made, 0.01, 3, **{"probability": 1.0} if hasattr(made, "probability") else {}
        )
    ),
    S.SUDA(0.01, (0.1, 0.9), (0.5, -0.5), (0.4, 0.6)),
    S.SlowMo(0.01, 2.5, local_steps=1),
    S.SlowMo(0.01, 2.5, local_steps=2, gossip=True),
    S.DiLoCo(0.01, 1.9, local_steps=2),
    S.NoLoCo(0.01, 0.5, 0.4, 2, 1.6),
    S.LED(0.01, 2, 1.0),
    S.Momentum(S.D2(0.01), 0.5),
]


def operator(graph):
    """W as a dense product."""
    W = graph.W.toarray()

    def mix(X):
        return [W @ x for x in X] if isinstance(X, list) else W @ X

    mix.n, mix.topology, mix.at = graph.n, graph, lambda k: mix
    return mix


def test_the_warning_says_by_how_much_the_disagreement_grows():
    """On both sides of the limit, without gradients to speak of."""
    grew = set()
    for lam in LAMS:
        graph = T.from_weights(disagreeing(complex(lam)))
        W, h = operator(graph), 1e-7 * np.arange(1.0, graph.n + 1)[:, None]
        for solver in SOLVERS:
            growth, said = LinearSteps(solver, W, h[:, :, None]).radius(), solver.unstable(graph)
            assert bool(said) == (growth > 1 + 1e-5), (solver, lam, growth, said)
            if said:
                grew.add(type(solver))
                factor = float(re.search(r"grows by a factor of (\S+) per step", said)[1])
                assert factor == pytest.approx(growth, rel=6e-3), (solver, lam)
    assert {type(solver) for solver in SOLVERS} == grew
