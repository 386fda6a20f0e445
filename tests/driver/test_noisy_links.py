"""Solvers that integrate the noise of their links are warned of, once, and no others."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

import mpidec
from mpidec import solvers, topology
from mpidec.driver.noisy_links import warning
from mpidec.testing.case import alone, costs, problem

pytestmark = pytest.mark.serial


def told(solver, graph, mixing):
    with alone(graph.n) as net:
        return warning(solver, mixing(net.mixer(graph)))


def test_a_run_warns_once_and_only_of_those_that_integrate():
    f = costs(6)
    for solver, times in ((solvers.ExactDiffusion(), 1), (solvers.Diffusion(0.1), 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mpidec.solve(
                problem(f), solver, "ring", steps=20, mixing=lambda W: W.noisy(1e-3).repeat(2)
            )
        lines = [str(each.message) for each in caught if "noise of its links" in str(each.message)]
        assert len(lines) == times, lines
        assert all("channel noise of 0.001" in line and "Diffusion" in line for line in lines)


@dataclasses.dataclass(frozen=True)
class Slower(solvers.GradientTracking):
    """Smaller and smaller gradients: a step that is not linear."""

    def ask(self, F, s):
        G = F.grad(s.X)
        return G / (1 + np.abs(G)) ** 2 + 1e3 * np.abs(s.X - s.X.mean(axis=0)) ** 1.5


@pytest.mark.parametrize(
    ("solver", "mixing", "expected"),
    [
        (solvers.Consensus(), lambda W: W.noisy(0.1), "from the average"),
        (solvers.EXTRA(), lambda W: W.noisy(0.1).lossy(0.1), "from the minimizer"),
        (solvers.EXTRA(), lambda W: W.noisy(0.0), ""),
        (solvers.EXTRA(), lambda W: W.lossy(0.1), ""),
        (solvers.EXTRA(), lambda W: W.noisy(0.1).robust("clip", tau=1.0), ""),
        (solvers.WangElia(), lambda W: W.noisy(0.1), ""),
        (solvers.AdaptiveGradientTracking(), lambda W: W.noisy(0.1), ""),
        (Slower(), lambda W: W.noisy(0.1), ""),
    ],
)
def test_what_is_known_is_said(solver, mixing, expected):
    line = told(solver, topology.ring(5), mixing)
    assert expected in line
    assert bool(line) == bool(expected)


def test_a_solver_that_refuses_a_chain_is_tried_on_its_own_graph():
    assert not told(solvers.DSGDCECA(), topology.ceca(6), lambda W: W.noisy(0.1))
    graph = topology.from_weights([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])

    @dataclasses.dataclass(frozen=True)
    class Directed(solvers.PushDIGing):
        def check(self, topology):
            super().check(topology)
            if not topology.directed:
                raise ValueError("a directed graph")

    assert "Directed integrates" in told(Directed(), graph, lambda W: W.noisy(0.1))
