"""Properties of theory for all linear solvers: units, the order of the agents and the coordinates
change nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpidec import solvers, theory, topology
from mpidec.solvers.asynchronous import Asynchronous
from mpidec.solvers.base import with_step_size
from mpidec.testing.case import graph_of, made
from mpidec.theory.modes import radius

pytestmark = [pytest.mark.serial, pytest.mark.filterwarnings("ignore")]
STEP, D = 0.05, 2


def is_linear(kind):
    """Whether a step is linear, and repeats."""
    nonlinear = solvers.ZeroAttractingDiffusion  # signs of the iterates
    if issubclass(kind, Asynchronous | nonlinear) or not kind.needs.problem:
        return False
    solver = made(kind)
    return not solver.adaptive and getattr(solver, "probability", 1) == 1


LINEAR = [name for name, kind in solvers.CATALOGUE.items() if is_linear(kind)]


def model(n, condition=1e3, unit=1.0, size=1.0, turned=None):
    """Costs of n agents that do not commute, with the largest curvature `unit`."""
    rng = np.random.default_rng(n)
    scale = np.geomspace(1, condition**-0.5, D)
    A, Q = rng.standard_normal((n, 5, D)) * scale, np.eye(D) if turned is None else turned
    H = A.transpose(0, 2, 1) @ A
    H *= unit / np.linalg.eigvalsh(H).max()
    g = rng.standard_normal((n, D)) * scale * unit * size
    return theory.Quadratic(size * Q.T @ np.ones(D), Q.T @ H @ Q, (g - g.mean(axis=0)) @ Q)


def method(name, unit=1.0):
    solver = with_step_size(made(solvers.CATALOGUE[name]), STEP / unit)
    in_units_of_costs = {
        name: getattr(solver, name) * unit for name in ("proximal", "eta") if hasattr(solver, name)
    }
    return dataclasses.replace(solver, **in_units_of_costs)


def found(model, solver, graph, unit=1.0, size=1.0):
    """What theory says, without units."""
    s = theory.steady_state(model, solver, graph, noise=0.3 * unit * size)
    return np.array([1 - theory.rate(model, solver, graph), *s.msd / size**2])


@pytest.mark.parametrize("name", LINEAR)
def test_units_change_nothing(name):
    graph = graph_of(method(name))
    plain = found(model(graph.n), method(name), graph)
    for unit, size in ((1e-12, 1e12), (1e12, 1e-12)):
        scaled = found(model(graph.n, 1e3, unit, size), method(name, unit), graph, unit, size)
        np.testing.assert_allclose(scaled, plain, rtol=1e-7)


@pytest.mark.parametrize("name", LINEAR)
def test_the_order_of_agents_and_turned_coordinates_change_nothing(name):
    graph, rng = graph_of(method(name)), np.random.default_rng(2)
    Q = np.linalg.qr(rng.standard_normal((D, D)))[0]
    plain = found(model(graph.n), method(name), graph)
    turned = found(model(graph.n, turned=Q), method(name), graph)
    np.testing.assert_allclose(turned, plain, rtol=1e-7)
    if graph.period == 1:
        order, costs = rng.permutation(graph.n), model(graph.n)
        W = graph.at(0).W.toarray()[np.ix_(order, order)]
        costs = theory.Quadratic(costs.x_star, costs.H[order], costs.g[order])
        other = found(costs, method(name), topology.from_weights(W))
        np.testing.assert_allclose(other, plain[[0, *order + 1]], rtol=1e-7)


@pytest.mark.parametrize("condition", [1e4, 1e6])
@pytest.mark.parametrize("name", ["gradient_tracking", "push_pull", "extra", "kgt", "dgd"])
def test_slow_modes_are_those_of_gradient_descent(name, condition):
    graph = topology.ring(6)
    costs = model(6, condition)
    slow = STEP * np.linalg.eigvalsh(costs.H.mean(axis=0))[0]
    assert 1 - theory.rate(costs, method(name), graph) == pytest.approx(slow, rel=0.02)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("name", ["gradient_tracking", "diffusion", "exact_diffusion"])
def test_largest_steps_have_the_unit_of_steps(name, unit):
    W = topology.ring(5)
    h = unit * np.ones((5, 1, 1))
    steps = unit * theory.largest_step(
        theory.Quadratic(np.zeros(1), h, np.zeros((5, 1))), method(name, unit), W
    )
    assert steps.low == 0
    lam = np.linalg.eigvalsh(W.W.toarray())
    if name == "gradient_tracking":  # (z - lam)^2 + a h lam^2 (z - 1) = 0

        def worst(a):
            return max(
                abs(np.roots([1, a * m**2 - 2 * m, m**2 - a * m**2])).max() for m in lam[:-1]
            )

        assert (
            worst(0.999 * steps.high) < 1 < max(worst(1.001 * steps.high), 1.001 * steps.high / 2)
        )
    else:
        assert steps.high == pytest.approx(2, rel=2e-4)


def test_a_change_of_basis_of_the_state_changes_nothing():
    rng = np.random.default_rng(3)
    # conserved in a Jordan block, slow, fast, and growing: not reached, and not seen
    J = np.diag([1.0, 1.0, 1 - 1e-9, 0.5, 2.0, 3.0])
    J[0, 1] = 1.0
    V, C = np.eye(6)[:, [2, 3, 5]], np.eye(6)[2:5] + np.eye(6)[[0, 3, 3]]
    for _ in range(3):
        Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
        slow = radius(Q.T @ J @ Q, C @ Q, Q.T @ V, C[:0] @ Q)
        assert 1 - slow == pytest.approx(1e-9, rel=1e-5)
