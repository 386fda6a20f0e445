"""Steady states of solvers of samples: closed forms, the centralized filter, runs."""

import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

import mpidec
from mpidec import problems as P, solvers as S, theory, topology as T

pytestmark = pytest.mark.serial
N, D = 4, 2
RNG = np.random.default_rng(3)
H = RNG.standard_normal((2, N, 1, D))


def target(kind, n=N):
    F = np.array([[0.9, 0.5], [-0.3, 0.8]]) * (np.exp(0.3j) if kind is complex else 1)
    made = H[0] + 1j * H[1] if kind is complex else H[0]
    return P.StateSpace(F, np.diag([0.3, 0.1]), made[:n], R=np.diag([0.4])), F, made[:n]


@pytest.mark.parametrize("kind", [float, complex])
def test_all_measurements_make_the_centralized_filter(kind):
    """On a complete graph with exchange, and for one agent alone; the Riccati equation of scipy."""
    made, F, C = target(kind)
    C = C.reshape(N, D)
    predicted = solve_discrete_are(F.conj().T, C.conj().T, np.diag([0.3, 0.1]), 0.4 * np.eye(N))
    P_star = np.linalg.inv(np.linalg.inv(predicted) + C.conj().T @ C / 0.4)
    found = theory.steady_state(made, S.DiffusionKalman(), T.complete(N)).msd
    np.testing.assert_allclose(found, np.full(N, np.trace(P_star).real), rtol=1e-9)
    one, *_ = target(kind, 1)
    kalman, information = (
        theory.steady_state(one, solver, T.complete(1)).msd
        for solver in (S.DiffusionKalman(), S.InformationKalman())
    )
    np.testing.assert_allclose(kalman, information, rtol=1e-9)
    assert kalman[0] > found[0]


def test_rls_forgets_as_the_closed_form():
    """On a complete graph, (1 - lambda) / (1 + lambda) tr (sum R_l / sigma_l^2)^-1."""
    noise = np.array([0.1, 0.2, 0.3, 0.4])

    def draw(rng, agent, k):
        return rng.standard_normal(D), 0.0

    made = P.Stream(draw, N, D, noise=noise, held_out=100)
    J = made.information().sum(axis=0)
    found = theory.steady_state(made, S.DiffusionRLS(0.98), T.complete(N)).msd
    np.testing.assert_allclose(found, 0.02 / 1.98 * np.trace(np.linalg.inv(J)), rtol=1e-9)


@pytest.mark.parametrize("solver", [S.DiffusionKalman(exchange=False), S.InformationKalman()])
def test_runs_have_the_deviation_of_the_theory(solver):
    made, *_ = target(complex)
    steps, total = 1200, 0.0
    with mpidec.Network(N) as net:
        states = mpidec.iterate(
            solver, made, net.mixer(T.ring(N)), np.zeros((N, D), complex), steps=steps
        )
        for k, s in enumerate(states, 1):
            total += (abs(s.X - made.x_star(k)) ** 2).sum(axis=1) * (k > 50) / (steps - 50)
    expected = theory.steady_state(made, solver, T.ring(N)).msd
    assert abs(10 * np.log10(total / expected)).max() < 0.6


def test_a_target_that_nobody_follows_and_refusals():
    unseen = P.StateSpace(2 * np.eye(2), np.eye(2), np.tile([[1.0, 0.0]], (3, 1, 1)), R=1.0)
    still = P.StateSpace(np.eye(2), np.zeros((2, 2)), np.eye(2)[None], R=1.0)
    assert theory.steady_state(still, S.DiffusionKalman(), T.complete(1)).msd[0] < 1e-3
    assert np.isinf(theory.steady_state(unseen, S.DiffusionKalman(), T.ring(3)).msd).all()
    squares = P.LeastSquares(np.ones((3, 1, 2)), np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"no steady state of DiffusionRLS on LeastSquares"):
        theory.steady_state(squares, S.DiffusionRLS(), T.ring(3))
    with pytest.raises(
        ValueError, match=r"DiffusionRLS takes samples, .* only theory.steady_state"
    ):
        theory.rate(squares, S.DiffusionRLS(), T.ring(3))
