"""Problems with a common constraint: the dual's gradients, and the primal optimum by a solver of its own."""

import numpy as np
import pytest
from scipy.optimize import minimize

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N, PRIMAL, Q = 6, 3, 2


def data():
    rng = np.random.default_rng(4)
    h, c = rng.uniform(1, 4, (N, PRIMAL)), rng.standard_normal((N, PRIMAL))
    return h, c, rng.standard_normal((N, Q, PRIMAL)), rng.standard_normal((N, Q)) - 0.5


def coupled(agents, **options):
    h, c, A, b = (array[agents[0] : agents[-1] + 1] for array in data())
    return P.ConstraintCoupled(
        lambda C: np.clip(c - C / h, -1, 1),
        lambda X: (h * (X - c) ** 2 / 2).sum(axis=1),
        A,
        b,
        strong_convexity=h.min(axis=1),
        **options,
    )


def optimum(inequality):
    """The primal optimum of all agents together, by scipy's SLSQP."""
    h, c, A, b = data()
    wide, right = np.hstack(list(A)), b.sum(axis=0)
    constraint = {
        "type": "ineq" if inequality else "eq",
        "fun": lambda x: right - wide @ x,
        "jac": lambda x: -wide,
    }
    h, c = h.ravel(), c.ravel()
    found = minimize(
        lambda x: (h * (x - c) ** 2).sum() / 2,
        np.clip(c, -1, 1),
        jac=lambda x: h * (x - c),
        bounds=[(-1, 1)] * h.size,
        constraints=[constraint],
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert found.success or found.status == 8, found.message  # 8: at rounding
    return found.x.reshape(N, PRIMAL)


@pytest.mark.parametrize(
    "inequality, solver", [(False, S.EXTRA()), (False, S.GradientTracking()), (True, S.NIDS())]
)
def test_agents_share_a_resource(inequality, solver):
    with mpidec.Network(N) as net:
        problem = coupled(net.agents, inequality=inequality)
        result = mpidec.solve(problem, solver, T.ring(N), steps=1500, net=net, every=1500)
        x = optimum(inequality)
        assert (abs(x) > 1 - 1e-6).any()
        np.testing.assert_allclose(problem.primal(result.X), x[net.lo : net.hi], atol=2e-6)
        _, _, A, b = data()
        used = (A @ x[:, :, None]).sum(axis=0)[:, 0] - b.sum(axis=0)
        if inequality:  # one constraint holds with a price, the other one without
            np.testing.assert_allclose(result.x * used, 0, atol=1e-5)
            assert (result.x >= 0).all()


@pytest.mark.serial
def test_gradients_are_those_of_the_dual():
    problem, X = coupled(range(N)), np.random.default_rng(1).standard_normal((N, Q))
    G, t = problem.grad(X), 1e-6
    for j in range(Q):
        E = np.zeros((N, Q))
        E[:, j] = t
        slopes = (problem.value(X + E) - problem.value(X - E)) / (2 * t)
        np.testing.assert_allclose(slopes, G[:, j], atol=1e-7)
    assert (
        np.linalg.norm(problem.grad(X) - problem.grad(-X), axis=1)
        <= problem.smoothness * np.linalg.norm(2 * X, axis=1)
    ).all()


@pytest.mark.serial
def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"b has shape \(2, 3\), expected \(2, 1\)"):
        P.ConstraintCoupled(lambda C: C, lambda X: X, np.ones((2, 1, 4)), np.ones((2, 3)))
    problem = P.ConstraintCoupled(lambda C: C[:1], lambda X: X, np.ones((2, 1, 4)), np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"argmin\(C\) returned .* \(1, 4\), expected .* \(2, 4\)"):
        problem.grad(np.zeros((2, 1)))
