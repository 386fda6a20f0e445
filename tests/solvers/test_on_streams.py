"""Multitask, zero-attracting and proximal diffusion, and clipping, on streams of agents with targets of their own: by
dense matrices, on any ranks, resumed; and the theory of what is linear.
"""

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, theory, topology as T
from mpidec.comm.runtime.mpi import MPI

N, D, MU, STEPS = 7, 3, 0.05, 30
RNG = np.random.default_rng(1)
TARGETS = RNG.standard_normal(D) + 0.2 * RNG.standard_normal((2, N, D))
NOISE = RNG.uniform(0.3, 1.0, N)
CLUSTERS = (0, 0, 1, 1, 1, 0, 2)
GRAPH = T.symmetric_exponential(N)
W = GRAPH.W.toarray()
TERM = P.elastic_net(0.3, 0.1)


def draw(rng, agent, k):
    u = rng.standard_normal(D)
    return u, u @ TARGETS[0, agent] + NOISE[agent] * rng.standard_normal()


def complex_draw(rng, agent, k):
    u = rng.standard_normal((2, D + 1)).T @ [1, 1j] / np.sqrt(2)
    return u[:D], u[:D] @ (TARGETS[0, agent] + 1j * TARGETS[1, agent]) + NOISE[agent] * u[D]


def within(clusters, across=False):
    """The weights within clusters, or across, with the remainder on the diagonal."""
    A = np.where((np.subtract.outer(clusters, clusters) == 0) != across, W, 0)
    return A + np.diag(1 - A.sum(axis=1))


def shrunk(X):
    return X / np.abs(X) * np.maximum(np.abs(X) - 0.3 * MU, 0) / (1 + 0.1 * MU)


def clipped(G, tau, smoothed=False):
    norms = np.linalg.norm(G, axis=1, keepdims=True)
    return G * (tau / np.hypot(tau, norms) if smoothed else np.minimum(1, tau / norms))


def sign(X):
    return np.divide(X, np.abs(X), out=0 * X, where=X != 0)


DENSE = {  # solver: what a step makes of X, with the gradients G(X)
    S.MultitaskDiffusion(MU, 0.7): lambda X, G, k: X - MU * (G(X) + 0.7 * (X - W @ X)),
    S.MultitaskDiffusion(MU, 0.7, CLUSTERS): lambda X, G, k: (
        within(CLUSTERS) @ (X - MU * (G(X) + 0.7 * (X - within(CLUSTERS, True) @ X)))
    ),
    S.MultitaskDiffusion(MU, 0.7, [4] * N): lambda X, G, k: W @ (X - MU * G(X)),
    S.ZeroAttractingDiffusion(MU, rho=0.3): lambda X, G, k: W @ (X - MU * (G(X) + 0.3 * sign(X))),
    S.ZeroAttractingDiffusion(MU, rho=0.3, reweighted=True, epsilon=0.2): lambda X, G, k: (
        W @ (X - MU * (G(X) + 0.3 * sign(X) / (0.2 + np.abs(X))))
    ),
    S.ZeroAttractingDiffusion(MU, "cta", rho=0.3): lambda X, G, k: (
        W @ X - MU * (G(W @ X) + 0.3 * sign(W @ X))
    ),
    S.ProximalDiffusion(MU): lambda X, G, k: shrunk(W @ (X - MU * G(X))),
    S.Clip(S.Diffusion(MU), 0.8): lambda X, G, k: W @ (X - MU * clipped(G(X), 0.8)),
    S.Clip(S.Diffusion(MU), lambda k: 2 / (1 + k), smoothed=True): lambda X, G, k: (
        W @ (X - MU * clipped(G(X), 2 / (1 + k), True))
    ),
}


def stream(net, of=draw, **options):
    x_star = TARGETS[0] if of is draw else TARGETS[0] + 1j * TARGETS[1]
    return P.Stream(of, net.m, D, lo=net.lo, x_star=x_star, held_out=5, **options)


@pytest.mark.parametrize("of", [draw, complex_draw])
@pytest.mark.parametrize("solver", DENSE, ids=lambda solver: str(solver).partition(" at 0x")[0])
def test_steps_are_those_of_dense_matrices_on_any_ranks_and_resumed(solver, of, comm, shared_tmp):
    options = {"term": TERM if isinstance(solver, S.ProximalDiffusion) else None}
    with mpidec.Network(N, MPI.COMM_SELF) as alone:
        gradient = stream(alone, of, **options).start(range(N), 5)
        X = np.zeros((N, D), complex if of is complex_draw else float)
        for k in range(STEPS):
            X = DENSE[solver](X, lambda at, k=k: gradient(at, k), k)
        run = {"steps": STEPS, "seed": 5, "net": alone}
        whole = mpidec.solve(stream(alone, of, **options), solver, GRAPH, **run)
    np.testing.assert_allclose(whole.X, X, rtol=0, atol=1e-12)
    x_star = stream(alone, of).x_star
    deviations = np.linalg.norm(whole.X - x_star, axis=1)
    scale = np.sqrt((abs(x_star) ** 2).sum() / N)
    for name, expected in (
        ("msd", (deviations**2).mean()),
        ("error_rms", np.sqrt((deviations**2).mean()) / scale),
        ("error_max", deviations.max() / scale),
        ("error", np.linalg.norm((whole.X - x_star).mean(axis=0)) / scale),
    ):
        np.testing.assert_allclose(whole.metrics[name][-1], expected, rtol=1e-12)
    path = shared_tmp / "run.h5"
    with mpidec.Network(N, comm) as net:
        for steps in (STEPS // 2, STEPS):
            record = mpidec.Record(path, resume=steps == STEPS)
            run = {"steps": steps, "seed": 5, "net": net, "record": record}
            resumed = mpidec.solve(stream(net, of, **options), solver, GRAPH, **run)
        np.testing.assert_array_equal(resumed.X, whole.X[net.lo : net.hi])
        for name in ("msd", "error_rms", "objective"):
            assert resumed.metrics[name][-1] == whole.metrics[name][-1]


@pytest.mark.serial
def test_zero_attraction_is_the_subgradient_of_an_l1_norm():
    made = P.Stream(draw, N, D, term=P.l1(0.3))
    runs = [
        mpidec.solve(problem, solver, GRAPH, steps=STEPS).X
        for problem, solver in (
            (P.Stream(draw, N, D), S.ZeroAttractingDiffusion(MU, rho=0.3)),
            (P.Subgradient(made), S.Diffusion(MU)),
        )
    ]
    np.testing.assert_allclose(*runs, rtol=0, atol=1e-15)
    X = RNG.standard_normal((N, D))
    np.testing.assert_allclose(
        made.value(X), P.Stream(draw, N, D).value(X) + 0.3 * abs(X).sum(axis=1), rtol=1e-14
    )
    with pytest.raises(ValueError, match=r"term .*l1=0.3.*, which Diffusion would ignore"):
        mpidec.solve(made, S.Diffusion(MU), GRAPH, steps=1)


@pytest.mark.serial
@pytest.mark.parametrize("clusters", [None, CLUSTERS])
def test_multitask_diffusion_rests_where_theory_says(clusters):
    solver = S.MultitaskDiffusion(0.1, 0.5, clusters)
    rng, found, late = np.random.default_rng(3), [], 60
    with mpidec.Network(N, MPI.COMM_SELF) as net:
        at = net.mixer(GRAPH)
        s = solver.init(np.zeros((N, 200, D)), at)  # 200 runs
        for k in range(200):
            U = rng.standard_normal((N, 200, D))
            v = NOISE[:, None] * rng.standard_normal((N, 200))
            error = (U * (s.X - TARGETS[0][:, None])).sum(axis=2) - v
            s = solver.step(s, U * error[:, :, None], at.at(k))
            found.append(((s.X - TARGETS[0][:, None]) ** 2).sum(axis=2).mean())
    made = P.Stream(draw, N, D, x_star=TARGETS[0], seed=1)
    s = theory.steady_state(made, solver, GRAPH)
    assert abs(10 * np.log10(np.mean(found[late:])) - s.msd_db) < 0.2
    # of exact curvatures, the bias in closed form: (H + eta (I - P)) x = H t, within clusters A
    A = np.eye(N) if clusters is None else within(clusters)
    across = W if clusters is None else within(clusters, True)
    M = A @ (np.eye(N) - 0.1 * (np.eye(N) + 0.5 * (np.eye(N) - across)))
    x = np.linalg.solve(np.eye(N) - M, 0.1 * A @ TARGETS[0])
    mean = TARGETS[0].mean(axis=0)
    model = theory.Quadratic(mean, np.tile(np.eye(D), (N, 1, 1)), mean - TARGETS[0])
    s = theory.steady_state(model, solver, GRAPH, target=TARGETS[0], noise=NOISE)
    np.testing.assert_allclose(s.bias, ((x - TARGETS[0]) ** 2).sum(axis=1), rtol=1e-8)
    V = np.linalg.solve(np.eye(N * N) - np.kron(M, M), (0.01 * A @ np.diag(NOISE**2) @ A.T).ravel())
    np.testing.assert_allclose(s.noise, D * np.diag(V.reshape(N, N)), rtol=1e-8)


@pytest.mark.serial
def test_theory_says_what_it_does_not_hold_for():
    made = P.Stream(draw, N, D, x_star=TARGETS[0])
    with pytest.raises(ValueError, match="step of ZeroAttractingDiffusion is not linear in"):
        theory.steady_state(made, S.ZeroAttractingDiffusion(MU), GRAPH)
    with pytest.raises(ValueError, match="Clip adapts its steps to the gradients"):
        theory.rate(made, S.Clip(S.Diffusion(MU)), GRAPH)
    with pytest.raises(ValueError, match=r"has the term .*near a term, steps are not linear"):
        theory.rate(P.Stream(draw, N, D, term=TERM), S.ProximalDiffusion(MU), GRAPH)
    with pytest.raises(ValueError, match=r"target is float64 of shape \(3,\), expected .*\(7, 3\)"):
        theory.steady_state(made, S.Diffusion(MU), GRAPH, target=np.zeros(D))
    with pytest.raises(ValueError, match="targets of their own, and walk moves a common minimizer"):
        theory.steady_state(made, S.Diffusion(MU), GRAPH, walk=0.1)


@pytest.mark.serial
def test_heavy_tails_are_clipped():
    def heavy(rng, agent, k):
        u = rng.standard_normal(D)
        return u, u @ TARGETS[0, 0] + 0.1 * rng.standard_cauchy()

    made = P.Stream(heavy, N, D, x_star=TARGETS[0, 0])
    plain, clip = (
        mpidec.solve(made, solver, GRAPH, steps=600).metrics["msd"][30:].max()
        for solver in (S.Diffusion(MU), S.Clip(S.Diffusion(MU), 0.5))
    )
    assert clip < 0.05 < 1 < plain


@pytest.mark.serial
def test_refusals():
    with pytest.raises(ValueError, match="clusters has 2 numbers, expected 7"):
        S.MultitaskDiffusion(MU, clusters=[0, 1]).check(GRAPH)
    with pytest.raises(ValueError, match="clusters is 'ab', expected an integer of each agent"):
        S.MultitaskDiffusion(MU, clusters="ab")
    with pytest.raises(ValueError, match='step_size is "auto", which takes the agents to a common'):
        S.MultitaskDiffusion("auto")
    with pytest.raises(ValueError, match="step size of DGD is 'auto', expected a number or"):
        S.Clip(S.DGD())
    with pytest.raises(ValueError, match=r"x_star has shape \(4, 3\), expected \(3,\), or a row"):
        P.Stream(draw, N, D, x_star=TARGETS[0, :4])
    with pytest.raises(ValueError, match=r"x_star has shape \(7, 3\), expected \(4, 3\): a row"):
        mpidec.solve(P.Stream(draw, 4, D, x_star=TARGETS[0]), S.DGD(MU), T.ring(4), steps=1)
    with pytest.raises(TypeError, match="term is a float, expected"):
        P.Stream(draw, N, D, term=0.1)
