"""Solvers of samples: against the papers' recursions by hand, on any ranks, resumed, and what they refuse."""

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.comm.runtime.mpi import MPI

N, D, STEPS, SEED = 7, 3, 25, 5
GRAPH = T.geometric(N, seed=3)
NOISE = np.random.default_rng(2).uniform(0.2, 0.9, N)
RNG = np.random.default_rng(4)
W_STAR, F_PART, H_PART, C = (
    RNG.standard_normal((2, *shape)) for shape in ((D,), (D, D), (N, 2, D), (N, 2, 2))
)


def of_kind(parts, kind):
    return parts[0] + 1j * parts[1] if kind is complex else parts[0]


def stream(lo, m, kind):
    def draw(rng, agent, k):
        u = of_kind(rng.standard_normal((2, D)), kind)
        return u, u @ of_kind(W_STAR, kind) + NOISE[agent] * of_kind(rng.standard_normal(2), kind)

    noise = NOISE[lo : lo + m] * (np.sqrt(2) if kind is complex else 1)
    known = {"noise": noise, "x_star": of_kind(W_STAR, kind), "held_out": 40}
    return P.Stream(draw, m, D, lo=lo, **known)


def target(lo, m, kind):
    F, H, L = (of_kind(part, kind) for part in (F_PART, H_PART, C))
    F = 0.98 * np.linalg.qr(F)[0]
    R = L @ L.conj().swapaxes(1, 2) + np.eye(2) / 4
    part = slice(lo, lo + m)
    return P.StateSpace(F, np.diag([0.1, 0.0, 0.2]), H[part], R[part], x0=np.ones(D), lo=lo)


def incremental(x, P, H, y, R, agents):
    """The measurement update of one agent by the samples of some, one after the other."""
    for j in agents:
        G = P @ H[j].conj().T @ np.linalg.inv(R[j] + H[j] @ P @ H[j].conj().T)
        x, P = x + G @ (y[j] - H[j] @ x), P - G @ H[j] @ P
    return x, P


def dense(solver, problem, kind):
    """The papers' recursions, agent by agent."""
    A, draw = GRAPH.W.toarray(), problem.samples(range(N), SEED)
    X, near = np.zeros((N, D), kind), [[i] for i in range(N)]
    if getattr(solver, "exchange", False):
        near = [[i, *(j for j in range(N) if A[i, j] and j != i)] for i in range(N)]
    first = {S.DiffusionRLS: lambda s: 1 / s.regularization}.get(type(solver), lambda s: 1.0)
    cov, newest = [first(solver) * np.eye(D, dtype=kind)] * N, [[] for _ in range(N)]
    for k in range(STEPS):
        H, y, R = draw(k)
        Psi, Omega = X.copy(), np.zeros((N, D, D), kind)
        for i in range(N):
            match solver:
                case S.DiffusionRLS(forgetting=lam):
                    Psi[i], cov[i] = incremental(X[i], cov[i] / lam, H, y, R, near[i])
                case S.AffineProjection(step_size=mu, window=K, regularization=eps):
                    newest[i] = [(H[i, 0], y[i, 0]), *newest[i]][:K]
                    U, d = np.array([u for u, _ in newest[i]]), np.array([v for _, v in newest[i]])
                    inverse = np.linalg.inv(eps * np.eye(len(U)) + U @ U.conj().T)
                    Psi[i] = X[i] + mu * U.conj().T @ inverse @ (d - U @ X[i])
                case S.DiffusionKalman():
                    F, Q = problem.motion
                    x, p = F @ X[i], F @ cov[i] @ F.conj().T + Q
                    Psi[i], cov[i] = incremental(x, p, H, y, R, near[i])
                    if isinstance(solver, S.InformationKalman):
                        Omega[i] = np.linalg.inv(cov[i])
                        Psi[i] = Omega[i] @ Psi[i]
        X = A @ Psi
        if isinstance(solver, S.InformationKalman):
            cov = np.linalg.inv(np.einsum("ij,jkl->ikl", A, Omega))
            X = np.einsum("ikl,il->ik", cov, X)
    return X


SOLVERS = [
    (S.DiffusionRLS(0.97), stream),
    (S.DiffusionRLS(0.97, exchange=False), stream),
    (S.AffineProjection(0.3, window=4), stream),
    (S.DiffusionKalman(), target),
    (S.DiffusionKalman(exchange=False), target),
    (S.InformationKalman(), target),
]


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize(
    ("solver", "problem"), SOLVERS, ids=lambda case: getattr(case, "__name__", repr(case)[:40])
)
def test_steps_are_those_of_the_papers_with_the_same_bits_on_any_ranks(
    solver, problem, kind, comm, shared_tmp
):
    path = shared_tmp / "run.h5"

    def run(net, steps=STEPS, **options):
        made = problem(net.lo, net.m, kind)
        options = {"steps": steps, "seed": SEED, "net": net, "every": 5} | options
        return mpidec.solve(made, solver, GRAPH, **options)

    with mpidec.Network(N, comm) as net, mpidec.Network(N, MPI.COMM_SELF) as alone:
        whole = run(alone)
        np.testing.assert_array_equal(run(net, record=path).X, whole.X[net.lo : net.hi])
        run(net, steps=11, record=mpidec.Record(path, replace=True))
        resumed = run(net, record=mpidec.Record(path, resume=True))
        np.testing.assert_array_equal(resumed.X, whole.X[net.lo : net.hi])
    expected = dense(solver, problem(0, N, kind), kind)
    np.testing.assert_allclose(whole.X, expected, rtol=0, atol=1e-12 * abs(expected).max())
    late = resumed.metrics["error_rms"], whole.metrics["error_rms"][-3:]
    np.testing.assert_array_equal(*late)


@pytest.mark.serial
@pytest.mark.parametrize("kind", [float, complex])
def test_the_state_space_is_that_of_its_matrices(kind):
    made, F, H, L = target(0, N, kind), *(of_kind(part, kind) for part in (F_PART, H_PART, C))
    F, R = 0.98 * np.linalg.qr(F)[0], L @ L.conj().swapaxes(1, 2) + np.eye(2) / 4
    path = np.array([made.x_star(k) for k in range(2001)])
    w, sample = path[1:] - path[:-1] @ F.T, made.samples(range(N), SEED)
    v = np.array([sample(k).y - np.einsum("npd,d->np", H, path[k + 1]) for k in range(2000)])
    np.testing.assert_allclose(w.T @ w.conj() / 2000, np.diag([0.1, 0, 0.2]), atol=0.03)
    np.testing.assert_allclose(np.einsum("knp,knq->npq", v, v.conj()) / 2000, R, atol=0.5)
    if kind is complex:  # circular
        assert abs(np.einsum("knp,knq->npq", v, v) / 2000).max() < 0.5 < abs(R).max()
    X = np.random.default_rng(0).standard_normal((N, D)).astype(made.dtype)
    y = sample(3).y
    by_hand = [h.conj().T @ np.linalg.inv(r) @ (h @ x - z) for h, r, x, z in zip(H, R, X, y)]
    np.testing.assert_allclose(made.start(range(N), SEED)(X, 3), by_hand, rtol=1e-10)
    if kind is float:
        mpidec.testing.check_problem(made)


@pytest.mark.serial
def test_samples_of_least_squares_and_of_its_batches():
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((N, 6, D)), rng.standard_normal((N, 6))
    x = np.linalg.lstsq(A.reshape(-1, D), b.ravel(), rcond=None)[0]
    exact = S.DiffusionRLS(1.0, regularization=1e-9)
    whole = mpidec.solve(P.LeastSquares(A, b), exact, T.complete(N), steps=1)
    np.testing.assert_allclose(whole.X, np.tile(x, (N, 1)), atol=1e-8)
    oracle = P.MiniBatch(P.LeastSquares(A, b, weight=4.0), 2)
    sample, X = oracle.samples(range(N), SEED)(9), np.ones((N, D))
    e = np.einsum("npd,nd->np", sample.H, X) - sample.y
    G = np.einsum("npd,np->nd", sample.H, e) * 6 / 2 / sample.R[0, 0, 0]
    np.testing.assert_allclose(G, oracle.start(range(N), SEED)(X, 9))


@pytest.mark.serial
def test_a_kalman_filter_of_a_target_that_stays_is_least_squares():
    made = stream(0, N, float)
    rls, kalman = (
        mpidec.solve(made, solver, GRAPH, steps=20).X
        for solver in (S.DiffusionRLS(1.0, regularization=0.5), S.DiffusionKalman(variance=2.0))
    )
    np.testing.assert_allclose(kalman, rls, rtol=1e-11)


@pytest.mark.serial
def test_a_lost_sample_tells_nothing():
    """Where all messages are lost, agents learn from their own samples, and add W times zero."""
    made = stream(0, N, float)
    go = {"steps": 9, "seed": SEED, "mixing": lambda W: W.lossy(1 - 1e-12)}
    lost, alone = (
        mpidec.solve(made, S.DiffusionRLS(0.97, exchange=exchange), GRAPH, **go).X
        for exchange in (True, False)
    )
    np.testing.assert_array_equal(lost, alone)


@pytest.mark.serial
def test_refusals():
    A, y = np.ones((N, 2, D)), np.ones((N, 2))

    def draw(rng, agent, k):
        return np.ones(D), 0.0

    moving = P.Stream(draw, N, D, x_star=lambda k: np.ones(D), held_out=1)
    for solver, problem, why in (
        (S.DiffusionRLS(), P.LogisticRegression(A, y), r"needs samples .*Stream.*Diffusion$"),
        (S.DiffusionRLS(), P.LeastSquares(A, y, l2=0.1), r"l2 is 0.1.*regularization"),
        (S.DiffusionKalman(), moving, r"how the target .*StateSpace.*DiffusionRLS"),
        (S.DiffusionRLS(), None, r"needs the samples of a problem, but problem is None"),
        (S.DiffusionRLS(), P.Noisy(P.LeastSquares(A, y), 0.1), r"needs samples"),
    ):
        with pytest.raises(ValueError, match=why):
            mpidec.solve(problem, solver, GRAPH, steps=1, x0=np.zeros((N, D)))
    with pytest.raises(ValueError, match=r"noise is .*expected a number > 0"):
        P.Stream(draw, N, D, noise=0.0)
    with pytest.raises(ValueError, match="R is singular"):
        P.StateSpace(np.eye(D), np.eye(D), A, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"H has shape \(7, 2\), expected"):
        P.StateSpace(np.eye(D), np.eye(D), y, 1.0)
    with pytest.raises(TypeError, match="needs samples, F is"), mpidec.Network(N) as net:
        next(mpidec.iterate(S.DiffusionRLS(), lambda X, k: X, net.mixer(GRAPH), np.zeros((N, D))))
    with pytest.raises(ValueError, match=r"runs is 2, but DiffusionRLS computes with whole rows"):
        mpidec.solve(stream(0, N, float), S.DiffusionRLS(), GRAPH, steps=1, runs=2)
    with pytest.raises(ValueError, match="no step size that a search finds"):
        mpidec.tune(stream(0, N, float), S.AffineProjection(), GRAPH)
    with pytest.raises((TypeError, ValueError), match=r"AffineProjection: step_size.*auto"):
        S.AffineProjection("auto")
