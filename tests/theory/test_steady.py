"""Theory against closed forms, Lyapunov equations written by hand, and solvers that diverge."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from scipy.linalg import block_diag, solve_discrete_lyapunov

import mpidec
from mpidec import problems, solvers, theory, topology
from mpidec.theory import noise as noises
from mpidec.theory.noise import Noise

pytestmark = pytest.mark.serial
RNG = np.random.default_rng(0)


def quadratics(H, c):
    """Costs 1/2 x^* H_i x - Re c_i^* x."""
    n, d = c.shape

    def value(X):
        HX = np.einsum("nij,nj->ni", H, X)
        return (X.conj() * (HX / 2 - c)).sum(axis=1).real

    x_star = np.linalg.solve(H.sum(axis=0), c.sum(axis=0))
    grad = lambda X: np.einsum("nij,nj->ni", H, X) - c
    return problems.Custom(value, grad, m=n, d=d, x_star=x_star)


def curvatures(n, d, seed=0):
    A = np.random.default_rng(seed).standard_normal((n, 2 * d, d))
    return A.transpose(0, 2, 1) @ A / (2 * d) + 0.3 * np.eye(d)


def lyapunov(B, E, S):
    """The diagonal of the solution of V = B V B^T + E S E^T."""
    return np.diag(solve_discrete_lyapunov(B, E @ S @ E.T)).real


def test_diffusion_on_equal_agents_has_its_closed_form():
    n, h, mu, sigma = 9, 1.4, 0.1, 0.7
    graph = topology.ring(n)
    s = theory.steady_state(
        quadratics(np.full((n, 1, 1), h), np.ones((n, 1))),
        solvers.Diffusion(mu),
        graph,
        noise=sigma,
    )
    lam = np.linalg.eigvalsh(graph.at(0).W.toarray())
    closed = (mu * sigma) ** 2 / n * (lam**2 / (1 - (lam * (1 - mu * h)) ** 2)).sum()
    np.testing.assert_allclose(s.msd, closed, rtol=1e-8)
    assert s.bias.max() < 1e-20
    assert s.msd_db == pytest.approx(10 * math.log10(closed))


@pytest.mark.filterwarnings("ignore:.*weighted sum")
@pytest.mark.parametrize("rule", [None, topology.hastings, topology.relative_variance])
@pytest.mark.parametrize("order", ["atc", "cta", "awc"])
def test_the_orders_of_diffusion_solve_their_lyapunov_equations(order, rule):
    n, d, mu = 6, 3, 0.15
    weights = "metropolis" if rule is None else rule(RNG.uniform(0.5, 4, n))
    H, c, graph = curvatures(n, d), RNG.standard_normal((n, d)), topology.star(n, weights=weights)
    root = RNG.standard_normal((n, d, d))
    sigma = root @ root.transpose(0, 2, 1)
    A, R = np.kron(graph.at(0).W.toarray(), np.eye(d)), block_diag(*H)
    eye = np.eye(n * d)
    B, E = {
        "atc": (A @ (eye - mu * R), mu * A),
        "cta": ((eye - mu * R) @ A, mu * eye),
        "awc": (A - mu * R, mu * eye),
    }[order]
    P = quadratics(H, c)
    s = theory.steady_state(P, solvers.DGD(mu, order=order), graph, noise=sigma)
    np.testing.assert_allclose(
        s.noise, lyapunov(B, E, block_diag(*sigma)).reshape(n, d).sum(axis=1), rtol=1e-7
    )
    rest = np.linalg.solve(eye - B, E @ c.ravel()).reshape(n, d)
    np.testing.assert_allclose(s.bias, ((rest - P.x_star) ** 2).sum(axis=1), rtol=1e-7)
    np.testing.assert_array_equal(s.msd, s.bias + s.noise)
    assert theory.rate(P, solvers.DGD(mu, order=order), graph) == pytest.approx(
        max(abs(np.linalg.eigvals(B)))
    )


def test_a_minimizer_that_walks_is_followed():
    n, d, mu = 5, 2, 0.2
    H, graph = curvatures(n, d), topology.star(n)
    P, q = quadratics(H, np.zeros((n, d))), np.array([[0.5, 0.2], [0.2, 0.3]])
    s = theory.steady_state(P, solvers.Diffusion(mu), graph, noise=0.6, walk=q)
    A, eye = np.kron(graph.at(0).W.toarray(), np.eye(d)), np.eye(n * d)
    B, E = A @ (eye - mu * block_diag(*H)), np.hstack([mu * A, np.tile(np.eye(d), (n, 1))])
    V = lyapunov(B, E, block_diag(0.36 * eye, q)).reshape(n, d).sum(axis=1)
    np.testing.assert_allclose(s.msd, V, rtol=1e-6)
    fast = theory.steady_state(P, solvers.EXTRA(mu), topology.ring(n), walk=0.1).msd
    slow = theory.steady_state(P, solvers.EXTRA(mu), topology.ring(n), walk=0.01).msd
    np.testing.assert_allclose(fast, 100 * slow, rtol=1e-6)


def test_schedules_are_taken_phase_by_phase():
    n, mu = 8, 0.2
    graph, h = topology.one_peer_exponential(n), np.linspace(0.5, 2, n)
    noise = np.linspace(1, 2, n)
    s = theory.steady_state(
        quadratics(h[:, None, None], np.zeros((n, 1))), solvers.Diffusion(mu), graph, noise=noise
    )
    V, means = np.zeros((n, n)), []
    for k in range(300):
        A = graph.at(k).W.toarray()
        B = A @ np.diag(1 - mu * h)
        V = B @ V @ B.T + mu**2 * A @ np.diag(noise**2) @ A.T
        means.append(np.diag(V))
    np.testing.assert_allclose(s.msd, np.mean(means[-3:], axis=0), rtol=1e-7)


def test_a_schedule_that_never_repeats_is_an_average_over_its_steps():
    n, mu, S = 6, 0.2, 3000
    graph, h = topology.random_matchings(topology.ring(n), seed=3), np.linspace(0.5, 2, n)
    P, solver = quadratics(h[:, None, None], np.ones((n, 1))), solvers.ExactDiffusion(mu)
    s = theory.steady_state(P, solver, graph, noise=1.0)
    rng, found = np.random.default_rng(0), np.zeros(n)
    with mpidec.Network(n, comm=mpidec.comm.runtime.mpi.MPI.COMM_SELF) as net:
        W = net.mixer(graph)
        state = solver.init(np.zeros((n, S)), W.at(0))
        for k in range(400):
            G = h[:, None] * state.X - 1 + rng.standard_normal((n, S))
            state = solver.step(state, G, W.at(k))
            found += ((state.X - P.x_star) ** 2).mean(axis=1) * (k >= 200) / 200
    assert abs(10 * np.log10(found / s.msd)).max() < 0.3


def test_complex_curvatures_are_hermitian_and_noise_is_circular():
    n, d, mu = 5, 2, 0.1
    A = RNG.standard_normal((n, 4, d)) + 1j * RNG.standard_normal((n, 4, d))
    H = A.conj().transpose(0, 2, 1) @ A / 4
    c = RNG.standard_normal((n, d)) + 1j * RNG.standard_normal((n, d))
    graph = topology.ring(n)
    model = theory.Quadratic(np.zeros(d), H, c - c.mean(axis=0))
    assert len(model.parts()) == 1
    W = np.kron(graph.at(0).W.toarray(), np.eye(d))
    B = W @ (np.eye(n * d) - mu * block_diag(*H))
    s = theory.steady_state(model, solvers.Diffusion(mu), graph, noise=np.full(n, 0.5))
    V = np.zeros((n * d, n * d), complex)
    for _ in range(2000):
        V = B @ V @ B.conj().T + mu**2 * 0.25 * W @ W.T
    np.testing.assert_allclose(s.noise, np.diag(V).real.reshape(n, d).sum(axis=1), rtol=1e-7)


def test_coordinates_with_common_eigenvectors_are_taken_apart():
    n, d = 5, 4
    Q, _ = np.linalg.qr(RNG.standard_normal((d, d)))
    H = np.einsum("ij,nj,kj->nik", Q, RNG.uniform(0.5, 2, (n, d)), Q)
    P, graph, solver = (
        quadratics(H, RNG.standard_normal((n, d))),
        topology.ring(n),
        solvers.EXTRA(0.1),
    )
    sigma = np.einsum("nij,nkj->nik", *2 * [RNG.standard_normal((n, d, d))])
    apart = theory.Quadratic.of(P)
    assert len(apart.parts()) == d
    whole = theory.Quadratic.of(P)
    object.__setattr__(whole, "parts", lambda: [(np.eye(d), whole)])
    a, b = (theory.steady_state(model, solver, graph, noise=sigma) for model in (apart, whole))
    np.testing.assert_allclose(a.msd, b.msd, rtol=1e-6)


@pytest.mark.parametrize("n", [4, 7])
def test_the_largest_step_of_consensus_is_that_of_its_smallest_eigenvalue(n):
    graph, h = topology.ring(n), 2.0
    P = quadratics(np.full((n, 1, 1), h), np.ones((n, 1)))
    smallest = np.linalg.eigvalsh(graph.at(0).W.toarray()).min()
    found = theory.largest_step(P, solvers.DGD(0.1, order="awc"), graph)
    assert found == pytest.approx((0, (1 + smallest) / h), rel=2e-4)
    limits = theory.largest_step(P, solvers.Diffusion(0.1), graph)
    assert limits == pytest.approx((0, 2 / h), rel=2e-4)


def test_costs_without_curvature_have_no_stable_step():
    flat = theory.Quadratic(np.zeros(1), np.zeros((4, 1, 1)), np.zeros((4, 1)))
    assert theory.largest_step(flat, solvers.Diffusion(0.1), topology.ring(4)) == (0, 0)


def test_where_a_solver_diverges_all_is_infinite(monkeypatch):
    monkeypatch.setattr(noises, "TOGETHER", 4000)
    P = quadratics(np.full((4, 1, 1), 1.0), np.ones((4, 1)))
    s = theory.steady_state(P, solvers.Diffusion(2.1), topology.ring(4), noise=1.0)
    assert np.isinf(s.msd).all()
    assert theory.rate(P, solvers.Diffusion(2.1), topology.ring(4)) == pytest.approx(1.1)

    def draw(rng, agent, k):  # where the mean square diverges, the mean does not
        u = 1.2 * rng.standard_normal(4)
        return u, u.sum()

    stream = problems.Stream(draw, 4, 4, x_star=np.ones(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s = theory.steady_state(stream, solvers.DGD(1.2, order="atc"), topology.ring(4))
    assert np.isinf(s.msd).all()


def test_costs_that_are_not_quadratic_are_linearized_at_the_minimizer():
    c = np.array([[-2.0], [0.5], [1.0], [3.0]])
    problem = problems.Custom(
        lambda X: np.log(np.cosh(X - c)).sum(axis=1), lambda X: np.tanh(X - c), m=4, d=1
    )
    graph, solver = topology.ring(4), solvers.GradientTracking(0.3)
    r = theory.rate(problem, solver, graph)
    run = mpidec.solve(problem, solver, graph, steps=400, every=5)
    x_star = theory.Quadratic.of(problem).x_star
    assert abs(np.tanh(x_star - c).sum()) < 1e-9
    assert abs(run.x - x_star).max() < 1e-9
    norms, k = run.metrics["gradient_norm"], run.metrics["step"]
    late = (norms < 1e-3) & (norms > 1e-11)
    assert np.polyfit(k[late], np.log(norms[late]), 1)[0] == pytest.approx(math.log(r), rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((solvers.EXTRA(), topology.ring(4)), "mpidec.tune"),
        ((solvers.RunningSumTracking(0.1), topology.ring(4)), "asynchronous"),
        ((solvers.AdaptiveGradientTracking(0.1), topology.ring(4)), "adapts its steps"),
        ((solvers.EXTRA(0.1), topology.ring(5)), "4 agents"),
        ((solvers.DGD(0.1), topology.ring(4), np.ones(3)), r"noise has the shape \(3,\)"),
    ],
)
def test_what_it_does_not_hold_for_is_refused(arguments, words):
    P = quadratics(np.full((4, 1, 1), 1.0), np.ones((4, 1)))
    solver, graph, *noise = arguments
    with pytest.raises(ValueError, match=words):
        theory.steady_state(P, solver, graph, noise=noise[0] if noise else 1.0)


class Clipped(solvers.Diffusion):
    def ask(self, F, s):
        return F.grad(s.X).clip(-1, 1)


def test_steps_that_are_not_linear_are_refused():
    P = quadratics(np.full((4, 1, 1), 1.0), np.ones((4, 1)))
    with pytest.raises(ValueError, match="a step of Clipped is not linear"):
        theory.rate(P, Clipped(0.1), topology.ring(4))


def test_a_term_is_refused():
    P = problems.LeastSquares(np.ones((4, 1, 1)), np.ones((4, 1)), term=problems.l1(0.1))
    with pytest.raises(ValueError, match="has the term"):
        theory.rate(P, solvers.NIDS(0.1), topology.ring(4))


def test_noise_of_a_batch_grows_with_the_distance_from_the_minimizer():
    n, mu = 4, 0.5
    rng = np.random.default_rng(3)
    A = rng.standard_normal((n, 12, 2))
    y = A @ [1.0, -1.0] + rng.standard_normal((n, 12))
    P = problems.LeastSquares(A, y, weight=1 / 12)
    P = problems.LeastSquares(A, y, weight=1 / 12, x_star=P.solution())
    batch, graph, solver = problems.MiniBatch(P, 2), topology.ring(n), solvers.Diffusion(mu)
    expected = theory.steady_state(batch, solver, graph).msd.mean()
    v = theory.Noise.of(batch, theory.Quadratic.of(P)).sigma
    constant = theory.steady_state(P, solver, graph, noise=v).msd.mean()
    run = mpidec.solve(batch, solver, graph, steps=5000, every=5, seed=1)
    found = (run.metrics["error_rms"][40:] ** 2).mean() * (P.x_star**2).sum()
    assert abs(10 * np.log10(found / expected)) < 0.3
    assert abs(10 * np.log10(found / constant)) > 0.5  # as it would be without


@pytest.mark.parametrize("order", ["atc", "cta", "awc"])
def test_diffusion_of_complex_streams_rests_where_theory_says(order):
    """LMS with samples u and noise of another power at each agent, orders of diffusion and consensus."""
    n, d, mu, S = 6, 2, 0.04, 400
    rng, graph = np.random.default_rng(3), topology.ring(n)
    power, sigma = rng.uniform(0.5, 1.5, n), rng.uniform(0.1, 0.3, n)
    R = np.array([[1, 0.4j], [-0.4j, 1]]) * power[:, None, None]  # E u^* u of rows u
    root = np.linalg.cholesky(R)
    x_star = np.array([1 + 1j, -2j])
    grad = lambda X: np.einsum("nij,nj->ni", R, X - x_star)
    value = lambda X: ((X - x_star).conj() * grad(X)).sum(axis=1).real / 2
    P = problems.Custom(value, grad, m=n, d=d, x_star=x_star)
    solver = solvers.DGD(mu, order="awc") if order == "awc" else solvers.Diffusion(mu, order=order)
    s = theory.steady_state(P, solver, graph, noise=sigma[:, None, None] ** 2 * R)
    view = theory.steady_state(
        problems.RealView(P),
        solver,
        graph,
        noise=np.einsum("n,nijkl->nikjl", sigma**2 / 2, _blocks(R)).reshape(n, 2 * d, 2 * d),
    )
    np.testing.assert_allclose(s.msd, view.msd, rtol=1e-6)
    draw = lambda *shape: rng.standard_normal((*shape, 2)) @ [1, 1j] / np.sqrt(2)
    found = np.zeros(n)
    with mpidec.Network(n, comm=mpidec.comm.runtime.mpi.MPI.COMM_SELF) as net:
        W = net.mixer(graph)
        state = solver.init(np.tile(x_star, (n, S)), W.at(0))
        for k in range(500):
            E = solver.point(state).reshape(n, S, d) - x_star
            v = sigma[:, None, None] * np.einsum("nij,nsj->nsi", root, draw(n, S, d))
            G = np.einsum("nij,nsj->nsi", R, E) + v
            state = solver.step(state, G.reshape(n, S * d), W.at(k))
            E = state.X.reshape(n, S, d) - x_star
            found += (abs(E) ** 2).sum(axis=2).mean(axis=1) * (k >= 200) / 300
    assert abs(10 * np.log10(found.mean() / s.msd.mean())) < 0.1


def _blocks(R):
    """Each complex number a + i b as [[a, -b], [b, a]], (n, d, d, 2, 2)."""
    return np.moveaxis(np.array([[R.real, -R.imag], [R.imag, R.real]]), (0, 1), (-2, -1))


def test_gradients_that_depend_on_the_conjugate_are_refused():
    grad = lambda X: X + X.conj() / 2
    P = problems.Custom(lambda X: abs(X[:, 0]) ** 2, grad, 3, 1, x_star=[0j])
    with pytest.raises(ValueError, match=r"on its conjugate, .*RealView"):
        theory.rate(P, solvers.Diffusion(0.1), topology.ring(3))


def test_noise_of_samples_goes_with_the_bias_of_agents_that_differ():
    """Agents with other minimizers: the noise at rest is correlated with the curvature of a sample."""
    n, d, mu = 5, 2, 0.15
    rng = np.random.default_rng(3)
    own = rng.standard_normal((n, d))

    def draw(rng, agent, k):
        u = rng.standard_normal(d)
        return u, u @ own[agent] + 0.2 * rng.standard_normal()

    w = own.mean(axis=0)
    stream = problems.Stream(draw, n, d, x_star=w)
    solver, graph = solvers.DGD(mu, order="awc"), topology.ring(n)
    expected = theory.steady_state(stream, solver, graph).msd.mean()
    run = mpidec.solve(stream, solver, graph, steps=3000, every=1)
    found = (run.metrics["error_rms"][200:] ** 2).mean() * (w @ w)
    assert abs(10 * np.log10(found / expected)) < 0.4


def test_steps_that_change_with_their_number_are_refused():
    class Slowing(solvers.Diffusion):
        class State(NamedTuple):
            X: np.ndarray
            k: int

        def init(self, X, W=None):
            return self.State(X, 0)

        def point(self, s):
            return s.X

        def step(self, s, G, W):
            return self.State(W(s.X - self.step_size / (1 + s.k) * G), s.k + 1)

    P = quadratics(np.full((4, 1, 1), 1.0), np.ones((4, 1)))
    with pytest.raises(ValueError, match="the steps of Slowing change with their number"):
        theory.rate(P, Slowing(0.1), topology.ring(4))


@pytest.mark.parametrize("mu", [1e-4, 1e-7])
@pytest.mark.parametrize(
    "kind", [solvers.Diffusion, solvers.EXTRA, solvers.GradientTracking, solvers.ExactDiffusion]
)
def test_small_steps_lose_no_digits(kind, mu):
    """The mean of n agents is one agent with the mean curvature, to first order in the step size."""
    n, rng = 6, np.random.default_rng(5)
    h, c, graph = rng.uniform(0.5, 2, n), rng.standard_normal(n), topology.ring(n)
    P, solver, single = quadratics(h[:, None, None], c[:, None]), kind(mu), mu * h.mean()
    s = theory.steady_state(P, solver, graph, noise=0.7)
    np.testing.assert_allclose(s.noise, 0.49 * mu / (2 * n * h.mean()), rtol=100 * mu + 1e-5)
    assert (1 - theory.rate(P, solver, graph)) / single == pytest.approx(1, rel=2 * mu + 5e-3)
    if kind is solvers.Diffusion:
        W = graph.W.toarray()
        X = np.linalg.solve(np.eye(n) - W @ np.diag(1 - mu * h), mu * W @ c)
        np.testing.assert_allclose(s.bias, (X - P.x_star) ** 2, rtol=1e-2)
    else:
        assert s.bias.max() < 1e-15


def test_the_rate_of_averaging_is_that_of_the_disagreement():
    graph = topology.star(7, weights="uniform")
    modes = np.sort(abs(np.linalg.eigvals(graph.W.toarray())))
    P = quadratics(np.ones((7, 1, 1)), np.ones((7, 1)))
    assert theory.rate(P, solvers.Consensus(), graph) == pytest.approx(modes[-2])
    with pytest.raises(ValueError, match=r"Consensus minimizes nothing, .* or a rate"):
        theory.steady_state(P, solvers.Consensus(), graph)


def test_a_graph_for_other_agents_is_refused():
    model = theory.Quadratic(np.zeros(1), np.ones((4, 1, 1)), np.zeros((4, 1)))
    with pytest.raises(ValueError, match=r"theory: Quadratic has 4 agents, .*ring has 5 agents"):
        theory.rate(model, solvers.Diffusion(0.1), topology.ring(5))


def test_few_agents_draw_more():
    costs = (quadratics(np.ones((n, 1, 1)), np.ones((n, 1))) for n in (4, 40))
    made = [problems.Noisy(P, 0.1) for P in costs]
    for oracle, draws in zip(made, (5000, 1000)):
        graph = topology.ring(oracle.problem.m)
        found = theory.steady_state(oracle, solvers.Diffusion(0.1), graph)
        known = theory.steady_state(oracle.problem, solvers.Diffusion(0.1), graph, noise=0.1)
        assert (found.draws, known.draws) == (draws, 0)
        assert found.msd.mean() == pytest.approx(known.msd.mean(), rel=0.05)


def test_noise_at_a_point_is_the_covariance_of_its_draws():
    """Complex, and in the coordinates of a basis, too."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal((*shape, 2)) @ [1, 1j]
    S, n, d, q = 40, 3, 3, 2
    change, rest, e = draw(S, n, d, d), draw(S, n, d), draw(n, q)
    Q = np.linalg.qr(draw(d, q))[0]
    noise = Noise(np.einsum("sni,snj->nij", rest, rest.conj()) / S, change, rest, S)
    u = rest + np.einsum("snij,nj->sni", change, e @ Q.T)
    want = np.einsum("sni,snj->nij", u, u.conj()) / S
    found = noise.at(e @ Q.T, np.zeros((n, d, d)))
    np.testing.assert_allclose(found, block_diag(*want), atol=1e-12)
    found = noise.within(Q).at(e, np.zeros((n, q, q)))
    np.testing.assert_allclose(found, block_diag(*(Q.conj().T @ want @ Q)), atol=1e-12)
