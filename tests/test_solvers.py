"""Solvers: against the papers' formulas, the centralized solution, and themselves on other numbers of ranks."""



from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import solvers as S
from mpidec import topology as T

D = 4


def least_squares(n, seed=0, p=6):
    """Agents that disagree: A (n, p, D), b (n, p) and the solution of their average."""
    rng = np.random.default_rng([seed, n])
    A, b = rng.standard_normal((n, p, D)) / np.sqrt(p), rng.standard_normal((n, p))
    x = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return A, b, x


def run(net, data, solver, topology, steps, x0=None, **options):
    A, b, _ = data
    problem = mpidec.problems.LeastSquares(A[net.lo:net.hi], b[net.lo:net.hi])
    return mpidec.solve(problem, solver, topology, steps=steps, x0=x0, net=net, every=10**9, **options)


EXACT = [
    (S.EXTRA(0.2), T.ring), (S.EXTRA(0.2), T.erdos_renyi),
    (S.ExactDiffusion(0.3), T.ring), (S.ExactDiffusion(0.3), T.grid), (S.ExactDiffusion(0.2), T.exponential),
    (S.D2(0.3), T.star),
    (S.GradientTracking(0.1), T.ring), (S.GradientTracking(0.1), T.one_peer_exponential),
    (S.GradientTracking(0.1, variant="semi-atc"), T.exponential), (S.GradientTracking(0.1, variant="diging"), T.ring),
    (S.PushDIGing(0.05), T.exponential), (S.PushDIGing(0.05), lambda n: T.star(n, weights="push")),
    (S.RelaySGD(0.2), T.chain), (S.RelaySGD(0.2, missing="count"), T.binary_tree), (S.RelaySGD(0.2, missing="own"), T.star),
    (S.RelaySGD(0.2, missing="current"), T.chain),
]
BIASED = [
    (S.DGD(0.1), T.ring), (S.DGD(0.1, order="cta"), T.ring), (S.DGD(0.1, order="awc"), T.ring), (S.Diffusion(0.1), T.exponential),
    (S.PushSum(0.05), T.exponential), (S.DSGDCECA(0.05), T.ceca), (S.RelaySGD(0.05, relay="gradient"), T.chain),
]
VARYING = [
    (S.Consensus(), T.one_peer_exponential), (S.DGD(0.1), T.one_peer_exponential),
    (S.DGD(0.1, order="cta"), T.one_peer_exponential), (S.DGD(0.1, order="awc"), T.one_peer_exponential),
    (S.Diffusion(0.1), lambda n: T.cycle([T.ring(n), T.star(n)])), (S.EXTRA(0.01), T.one_peer_exponential),
    (S.ExactDiffusion(0.01), T.one_peer_exponential), (S.D2(0.01), T.one_peer_exponential),
    (S.GradientTracking(0.1, variant="semi-atc"), T.one_peer_exponential),
    (S.GradientTracking(0.1, variant="diging"), T.one_peer_exponential),
    (S.PushSum(0.05), T.one_peer_exponential), (S.PushDIGing(0.05), T.one_peer_exponential),
]


def label(case):
    return repr(case) if isinstance(case, S.Solver) else getattr(case, "__name__", "graph").strip("<>")


@pytest.mark.serial                                 # the bits of the next test carry it over to more ranks
@pytest.mark.parametrize("solver, graph", EXACT, ids=label)
@pytest.mark.filterwarnings("ignore:.*unstable")
def test_exact_solvers_reach_the_centralized_solution(solver, graph):
    n = 8
    data = least_squares(n)
    with mpidec.Network(n) as net:
        result = run(net, data, solver, graph(n), 3000)
        assert result.outcome == "completed"
        np.testing.assert_allclose(result.X, np.tile(data[2], (net.m, 1)), atol=1e-9)


@pytest.mark.serial
@pytest.mark.parametrize("solver, graph", BIASED, ids=label)
def test_the_others_come_close_and_closer_with_a_smaller_step(solver, graph):
    n = 8
    data = least_squares(n)
    with mpidec.Network(n) as net:
        far, near = (np.linalg.norm(run(net, data, replace(solver, step_size=a), graph(n), 4000).x - data[2])
                     for a in (solver.step_size, solver.step_size / 4))
    assert far < 0.1
    assert near < far / 2 or near < 1e-9


@pytest.mark.parametrize("n", [5, 16])
@pytest.mark.parametrize("solver, graph", [(S.Consensus(), T.exponential), *EXACT, *BIASED, *VARYING], ids=label)
@pytest.mark.filterwarnings("ignore:.*unstable")
def test_the_same_bits_on_any_number_of_ranks(solver, graph, n):
    data, x0 = least_squares(n), np.random.default_rng(7).standard_normal((n, D))
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        one = run(alone, data, solver, graph(n), 30, x0)
        all_ = run(net, data, solver, graph(n), 30, x0)
        np.testing.assert_array_equal(all_.X, one.X[net.lo:net.hi])
        np.testing.assert_array_equal(all_.x, one.x)
        for name in set(one.metrics) - {"time"}:
            np.testing.assert_array_equal(all_.metrics[name], one.metrics[name])


def dense(solver, W, grad, X, steps):
    """The papers' recursions, written with dense matrices and all history."""
    n, a = len(X), solver.step_size
    eye = np.eye(n)
    Xs, Gs = [X], [grad(X)]
    Y = Gs[0]
    for k in range(steps):
        X, G = Xs[-1], Gs[-1]
        match solver:
            case S.DGD(order="atc"):
                new = W @ (X - a * G)
            case S.DGD(order="cta"):
                new = W @ X - a * grad(W @ X)
            case S.DGD(order="awc"):
                new = W @ X - a * G
            case S.EXTRA():                         # (2.13)
                new = W @ X - a * G if k == 0 else (eye + W) @ X - (eye + W) / 2 @ Xs[-2] - a * (G - Gs[-2])
            case S.ExactDiffusion() | S.D2():
                M = W if isinstance(solver, S.D2) else (eye + W) / 2
                new = M @ (X - a * G) if k == 0 else M @ (2 * X - Xs[-2] - a * (G - Gs[-2]))
            case S.GradientTracking():
                if k:
                    change = G - Gs[-2]
                    Y = W @ (Y + change) if solver.variant == "atc" else W @ Y + change
                new = W @ X - a * Y if solver.variant == "diging" else W @ (X - a * Y)
        Xs.append(new)
        Gs.append(grad(new))
    return Xs[-1]


@pytest.mark.parametrize("solver", [S.DGD(0.1), S.DGD(0.1, order="cta"), S.DGD(0.1, order="awc"), S.EXTRA(0.1),
                                    S.ExactDiffusion(0.1), S.D2(0.1), S.GradientTracking(0.1),
                                    S.GradientTracking(0.1, variant="semi-atc"),
                                    S.GradientTracking(0.1, variant="diging")], ids=label)
def test_the_papers_recursions(solver):
    n = 6
    data, topology = least_squares(n), T.grid(6)
    A, b, _ = data
    x0 = np.random.default_rng(3).standard_normal((n, D))
    grad = lambda X: np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - b)      # noqa: E731
    with mpidec.Network(n) as net:
        X = run(net, data, solver, topology, 25, x0).X
        np.testing.assert_allclose(X, dense(solver, topology.W.toarray(), grad, x0, 25)[net.lo:net.hi], atol=1e-12)


@pytest.mark.parametrize("weights", ["push", "metropolis"])
@pytest.mark.serial
def test_push_sum_keeps_its_mass_and_finds_the_average(weights):
    n, X = 9, np.random.default_rng(1).standard_normal((9, 3))
    with mpidec.Network(n) as net:
        W, solver = net.mixer(T.star(n, weights=weights)), S.PushSum()
        s = solver.init(X[net.lo:net.hi])
        for k in range(1000):
            s = solver.step(s, 0.0, W.at(k))
            if k % 100 == 99:
                assert abs(net.sum(s.w)[0] - n) <= 1e-15 * n
        np.testing.assert_allclose(s.X, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-13)


@pytest.mark.parametrize("ports", [1, 2])
def test_ceca_averages_exactly_for_every_n(ports, comm):
    every = range(2, 65, ports % 2 + 1)
    for n in every if comm.size in (1, 3) else [n for n in (2, 3, 6, 7, 16, 34) if n in every]:
        X = np.random.default_rng(n).standard_normal((n, 2))
        with mpidec.Network(n) as net:
            W, solver = net.mixer(T.ceca(n, ports=ports)), S.DSGDCECA(0.0)
            s = solver.init(X[net.lo:net.hi])
            for k in range((n - 1).bit_length()):
                s = solver.step(s, 0.0, W.at(k))
            np.testing.assert_allclose(s.X, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-13)


@pytest.mark.parametrize("parity", ["paper", "repository"])
def test_one_port_ceca_follows_the_reference(reference, parity):
    key = "1Ppaper" if parity == "paper" else "1P"
    z = reference("ceca_consensus")
    for n in (n for n in range(2, 40, 2) if f"n{n}__{key}__x__yzero" in z):
        x, y = z[f"n{n}__{key}__x__yzero"], z[f"n{n}__{key}__y__yzero"]
        with mpidec.Network(n) as net:
            W, solver = net.mixer(T.ceca(n, ports=1, parity=parity)), S.DSGDCECA(0.0)
            s = solver.init(x[0][net.lo:net.hi])._replace(Y=y[0][net.lo:net.hi])
            for k in range(len(x) - 1):
                s = solver.step(s, 0.0, W.at(k))
                np.testing.assert_allclose(s.X, x[k + 1][net.lo:net.hi], atol=1e-12)
                np.testing.assert_allclose(s.Y, y[k + 1][net.lo:net.hi], atol=1e-12)


def test_relay_counts_add_up_to_n_on_every_edge():
    n = 9
    with mpidec.Network(n) as net:
        W, solver = net.mixer(T.binary_tree(n)), S.RelaySGD(0.0)
        s = solver.init(np.zeros((net.m, 1)), W.at(0))
        for k in range(n):
            s = solver.step(s, np.zeros((net.m, 1)), W.at(k))
        back = W.at(0).exchange(s.C)                # an undirected edge has the same place among in-edges and out-edges
        np.testing.assert_array_equal(s.C + back, np.full_like(back, n))


@pytest.mark.parametrize("solver, topology, words", [
    (S.ExactDiffusion(0.1), T.star(4, weights="uniform"), "ExactDiffusion needs a doubly stochastic W.*row stochastic.*metropolis"),
    (S.GradientTracking(0.1), T.star(4, weights="push"), "needs a doubly stochastic W.*column stochastic"),
    (S.PushSum(0.1), T.star(4, weights="uniform"), "needs a doubly or column stochastic W.*push"),
    (S.Consensus(), T.star(4, weights="push"), "needs a doubly or row stochastic W.*uniform"),
    (S.RelaySGD(0.1), T.ring(4), "needs a tree.*chain"),
    (S.RelaySGD(0.1), T.one_peer_exponential(4), "needs a tree.*chain"),
    (S.DSGDCECA(0.1), T.exponential(4), "topology.ceca"),
], ids=lambda case: label(case) if not isinstance(case, str) else "")
def test_a_solver_refuses_a_topology_that_it_cannot_work_with(solver, topology, words):
    with mpidec.Network(4) as net, pytest.raises(ValueError, match=words):
        run(net, least_squares(4), solver, topology, 3)


def test_a_spectral_condition_is_a_warning_on_rank_0():
    words = "D2 is unstable on the hypercube topology.*-0.5.*ExactDiffusion"
    with mpidec.Network(8) as net, pytest.warns(RuntimeWarning, match=words) if net.rank == 0 else nullcontext():
        run(net, least_squares(8), S.D2(0.1), T.hypercube(8), 1)


@pytest.mark.parametrize("step_size", [-1, np.nan, np.inf, "fast", True, None])
@pytest.mark.parametrize("solver", [S.DGD, S.EXTRA, S.GradientTracking, S.PushSum, S.RelaySGD, S.DSGDCECA])
def test_a_wrong_step_size(solver, step_size):
    with pytest.raises(ValueError, match=f"{solver.__name__}: step_size is .*expected a finite number"):
        solver(step_size=step_size)


@pytest.mark.parametrize("make, words", [
    (lambda: S.DGD(0.1, order="act"), "order is 'act', expected one of atc, cta, awc"),
    (lambda: S.Diffusion(0.1, order="awc"), "expected one of atc, cta"),
    (lambda: S.GradientTracking(0.1, variant="x"), "expected one of atc, semi-atc, diging"),
    (lambda: S.RelaySGD(0.1, relay="x"), "expected one of model, gradient"),
    (lambda: S.RelaySGD(0.1, missing="x"), "expected one of initial, current, count, own"),
])
def test_a_wrong_word(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_catalogue_is_what_is_exported():
    exported = {value for value in vars(S).values() if isinstance(value, type) and issubclass(value, S.Solver)} - {S.Solver}
    assert set(S.CATALOGUE.values()) == exported
