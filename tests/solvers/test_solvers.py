"""Solvers: against the papers' formulas, the centralized solution, and themselves on other numbers of ranks."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.solvers import digraph, label

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.comm.kernels.descent import descend
from mpidec.solvers import base

D = 4


def least_squares(n, seed=0, p=6):
    """Agents that disagree: A (n, p, D), b (n, p) and the solution of their average."""
    rng = np.random.default_rng([seed, n])
    A, b = rng.standard_normal((n, p, D)) / np.sqrt(p), rng.standard_normal((n, p))
    x = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return A, b, x


def run(net, data, solver, topology, steps, x0=None, **options):
    A, b, _ = data
    problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
    return mpidec.solve(
        problem, solver, topology, steps=steps, x0=x0, net=net, every=10**9, **options
    )


def dense(solver, topology, grad, X, steps):
    """The papers' recursions, written with dense matrices and all history."""
    n, a = len(X), solver.step_size
    eye = np.eye(n)
    Xs, Gs = [X], [grad(X)]
    Y, U, w, late = Gs[0], X, np.ones((n, 1)), (0.0, 0.0)
    for k in range(steps):
        X, G, W, before = (
            Xs[-1],
            Gs[-1],
            topology.at(k).W.toarray(),
            topology.at(max(k - 1, 0)).W.toarray(),
        )
        match solver:
            case S.DGD(order="atc"):
                new = W @ (X - a * G)
            case S.DGD(order="cta"):
                new = W @ X - a * grad(W @ X)
            case S.DGD(order="awc"):
                new = W @ X - a * G
            case S.EXTRA():  # (2.13)
                new = (
                    W @ X - a * G
                    if k == 0
                    else (eye + W) @ X - (eye + W) / 2 @ Xs[-2] - a * (G - Gs[-2])
                )
            case S.ExactDiffusion() | S.D2():
                M = W if isinstance(solver, S.D2) else (eye + W) / 2
                new = M @ (X - a * G) if k == 0 else M @ (2 * X - Xs[-2] - a * (G - Gs[-2]))
            case S.GradientTracking():
                if k:
                    change = G - Gs[-2]
                    Y = W @ (Y + change) if solver.variant == "atc" else before @ Y + change
                new = W @ X - a * Y if solver.variant == "diging" else W @ (X - a * Y)
            case S.PushSum():
                U, w = W @ (U - a * G), W @ w
                new = U / w
            case S.OSGP():  # what was sent in the step before arrives now
                V, D = U - a * G, np.diag(np.diag(W))
                U, w, late = D @ V + late[0], D @ w + late[1], ((W - D) @ V, (W - D) @ w)
                new = U / w
            case S.PushPull():
                R, C = topology.at(k).R.W.toarray(), topology.at(max(k - 1, 0)).C.W.toarray()
                Y = C @ Y + G - Gs[-2] if k else Y
                new = R @ X - a * Y if solver.variant == "ab" else R @ (X - a * Y)
            case S.FROST():
                H = [
                    g / (n * np.linalg.matrix_power(W, j).diagonal()[:, None])
                    for j, g in zip((k - 1, k), Gs[-2:])
                    if j >= 0
                ]
                Y = W @ Y + H[-1] - H[-2] if k else G / n
                new = W @ (X - a * Y) if solver.variant == "atc" else W @ X - a * Y
            case S.PushDIGing():
                Y = before @ Y + G - Gs[-2] if k else Y
                U, w = W @ (U - a * Y), W @ w
                new = U / w
        Xs.append(new)
        Gs.append(grad(new))
    return Xs[-1]


def dense_relay(solver, topology, grad, X, steps):
    """RelaySGD, edge by edge."""
    n, first = len(X), X
    N = [topology.in_neighbors(i) for i in range(n)]
    M = {(i, j): (0 * X[i], 0) for i in range(n) for j in N[i]}
    for _ in range(steps):
        V = -solver.step_size * grad(X) + X * (solver.relay == "model")
        M = {
            (i, j): (
                V[i] + sum(M[h, i][0] for h in N[i] if h != j),
                1 + sum(M[h, i][1] for h in N[i] if h != j),
            )
            for i, j in M
        }
        S_ = np.array([V[i] + sum(M[j, i][0] for j in N[i]) for i in range(n)])
        c = np.array([[1 + sum(M[j, i][1] for j in N[i])] for i in range(n)])
        R = {"initial": first, "current": X, "own": V, "count": S_ / c}[solver.missing]
        X = X + S_ / n if solver.relay == "gradient" else (S_ + (n - c) * R) / n
    return X


def dense_ceca(solver, topology, grad, X, steps):
    """Algorithm 1 of DSGD-CECA with two ports, from the digits of n - 1."""
    n, Y = len(X), X
    digits = [int(digit) for digit in f"{n - 1:b}"]
    for k in range(steps):
        r = k % len(digits)
        delta, n_r = digits[r], (n - 1) >> (len(digits) - r)  # n_r: the digits before
        G = grad(X if delta else Y)
        X, Y = X - solver.step_size * G, Y - solver.step_size * G
        X_s, Y_s = np.roll(X, n_r + delta, axis=0), np.roll(Y, n_r + delta, axis=0)
        if delta:
            X, Y = (X + X_s) / 2, ((n_r + 1) * X_s + n_r * Y) / (2 * n_r + 1)
        else:
            X, Y = ((n_r + 1) * X + n_r * Y_s) / (2 * n_r + 1), (Y + Y_s) / 2
    return X


def dense_adaptive(solver, topology, grad, X, steps):
    """The method of Chen and Wang, agent by agent."""
    n, W, eta = len(X), topology.W.toarray(), [np.full(len(X), solver.step_size)]
    Y = grad(X)
    for k in range(steps):
        new = W @ (X - eta[-1][:, None] * Y)
        Z = W @ (Y + grad(new) - grad(X))
        if k == 0:
            eta.append(eta[0])
        else:
            limit = np.linalg.norm(new - X, axis=1) / np.linalg.norm(Z - Y, axis=1) / 2
            grown = [np.sqrt(1 + eta[-1][i] / eta[-2][i]) * eta[-1][i] for i in range(n)]
            eta.append(np.minimum(grown, limit))
        X, Y = new, Z
    return X


def ring_and_star(n):
    return T.cycle([T.ring(n), T.star(n)])


def push_and_ring(n):
    return T.cycle([T.star(n, weights="push"), T.ring(n)])


def rows(n):
    return digraph(n).R


def stars(n):
    return T.cycle([T.star(n, weights="push-pull"), T.ring(n), digraph(n)])


PAPERS = [
    (dense, solver, graph)
    for graph in (T.grid, ring_and_star)
    for solver in (
        S.DGD(0.1, order="atc"),
        S.DGD(0.1, order="cta"),
        S.DGD(0.1, order="awc"),
        S.GradientTracking(0.1),
        S.GradientTracking(0.1, variant="semi-atc"),
        S.GradientTracking(0.1, variant="diging"),
    )
]
PAPERS += [(dense, solver, T.grid) for solver in (S.EXTRA(0.1), S.ExactDiffusion(0.1), S.D2(0.1))]
PAPERS += [
    (dense, solver, push_and_ring) for solver in (S.PushSum(0.1), S.OSGP(0.1), S.PushDIGing(0.1))
]
PAPERS += [
    (dense, S.PushPull(0.1, variant), graph)
    for variant in ("atc", "ab")
    for graph in (T.grid, ring_and_star, digraph, stars)
]
PAPERS += [
    (dense, S.FROST(0.1, variant), graph)
    for variant in ("atc", "frost")
    for graph in (T.grid, rows)
]
PAPERS += [
    (dense_relay, S.RelaySGD(0.1, missing=missing), T.binary_tree)
    for missing in ("initial", "current", "count", "own")
]
PAPERS += [
    (dense_relay, S.RelaySGD(0.1, relay="gradient"), T.chain),
    (dense_ceca, S.DSGDCECA(0.1), T.ceca),
]


PAPERS += [(dense_adaptive, S.AdaptiveGradientTracking(size), T.grid) for size in (1e-3, 1.0)]


@pytest.mark.parametrize("formula, solver, graph", PAPERS, ids=label)
def test_the_papers_recursions(formula, solver, graph):
    n = 6
    data, topology = least_squares(n), graph(n)
    A, b, _ = data
    x0 = np.random.default_rng(3).standard_normal((n, D))
    grad = lambda X: np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - b)
    with mpidec.Network(n) as net:
        X = run(net, data, solver, topology, 25, x0).X
        np.testing.assert_allclose(
            X, formula(solver, topology, grad, x0, 25)[net.lo : net.hi], rtol=1e-12, atol=1e-12
        )


def steps_of(solver, W, X, C, B, steps=12):
    """The states of some steps on the quadratics with the gradients C (X - B): the same bits for every kind of array."""
    s = solver.init(X, W.at(0))
    states, functions = (
        [s],
        SimpleNamespace(
            grad=lambda X: C * (X - B),
            prox=lambda V, t: V,
            argmin=lambda V, t, start: (V + t * C * B) / (1 + t * C),
        ),
    )
    for k in range(steps):
        s = solver.step(s, solver.ask(functions, s), W.at(k))
        states.append(s)
    return states


def quadratics(net, dtype, d=3):
    rng = np.random.default_rng(net.n)
    data = (
        rng.standard_normal((net.n, d)),
        rng.uniform(0.5, 2, (net.n, 1)),
        rng.standard_normal((net.n, d)),
    )
    return [array[net.lo : net.hi].astype(dtype) for array in data]


def test_zeros_are_made_by_the_module_of_the_array():
    class Cupy:
        """An array whose module is not NumPy's."""

        def __array_function__(self, function, types, arguments, options):
            return function.__name__, arguments[0] is self, options

    assert base.zeros(Cupy(), 3, 1) == ("zeros_like", True, {"shape": (3, 1)})
    zeros = base.zeros(np.ones((0, 4), np.float32), 3, 1)
    assert zeros.dtype == np.float32
    assert zeros.tolist() == [[0.0]] * 3


@pytest.mark.parametrize(
    "columns", [1, 7, 200]
)  # 200: in one pass where there is a compiled kernel
def test_descend_has_the_bits_of_the_formula(columns):
    rng = np.random.default_rng(0)
    shape = (50, columns)
    X, G = (rng.standard_normal(shape) * 10.0 ** rng.integers(-12, 12, shape) for _ in range(2))
    X[:3], G[:3] = np.array([[0.0], [-0.0], [1e-320]]), np.array([[0.0], [-0.0], [-1e-320]])
    for a in (0.1, 0, 3e-300):
        assert descend(X, a, G).tobytes() == (X - a * G).tobytes()
        assert descend(X[:, ::-1], a, G).tobytes() == (X[:, ::-1] - a * G).tobytes()
        assert (
            descend(X.astype("f"), a, G.astype("f")).tobytes()
            == (X.astype("f") - a * G.astype("f")).tobytes()
        )


def test_rows_may_change_unless_a_solver_says_otherwise():
    assert S.Solver.keeps_rows is False


def test_osgp_keeps_its_mass_and_finds_the_average(comm):
    """On directed graphs that vary, with rows of random weights: what is on its way counts."""
    n, X = 9, np.random.default_rng(1).standard_normal((9, 3))
    with mpidec.Network(n) as net:
        W, solver = net.mixer(push_and_ring(n)), S.OSGP(0.0)
        s = solver.init(X[net.lo : net.hi])
        for k in range(1500):
            s = solver.step(s, 0.0, W.at(k))
            if k % 100 == 99:
                assert abs(net.sum(s.w + s.z)[0] - n) <= 1e-14 * n
                assert np.abs(net.sum(s.U + s.Z) - X.sum(axis=0)).max() <= 1e-13
        np.testing.assert_allclose(s.X, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-12)


@pytest.mark.parametrize("ports", [1, 2])
def test_ceca_averages_exactly_for_every_n(ports, comm):
    every = range(2, 65, ports % 2 + 1)
    for n in every if comm.size == 1 else [n for n in (2, 3, 6, 7, 16, 34) if n in every]:
        X = np.random.default_rng(n).standard_normal((n, 2))
        with mpidec.Network(n) as net:
            W, solver = net.mixer(T.ceca(n, ports=ports)), S.DSGDCECA(0.0)
            s = solver.init(X[net.lo : net.hi])
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
            s = solver.init(x[0][net.lo : net.hi])._replace(Y=y[0][net.lo : net.hi])
            for k in range(len(x) - 1):
                s = solver.step(s, 0.0, W.at(k))
                np.testing.assert_allclose(s.X, x[k + 1][net.lo : net.hi], atol=1e-12)
                np.testing.assert_allclose(s.Y, y[k + 1][net.lo : net.hi], atol=1e-12)


@pytest.mark.parametrize("relay", ["model", "gradient"])
def test_relay_sends_one_message_a_step(relay):
    with mpidec.Network(6) as net:
        W = net.mixer(T.chain(6))
        steps_of(S.RelaySGD(0.1, relay=relay), W, *quadratics(net, np.float32))
        assert W.rounds == 12
        assert (
            net.comm.allreduce(W.bytes) == 12 * 10 * (3 + 1) * 4
        )  # steps, edges, numbers in a row, bytes


def test_relay_counts_add_up_to_n_on_every_edge():
    n = 9
    with mpidec.Network(n) as net:
        W, solver = net.mixer(T.binary_tree(n)), S.RelaySGD(0.0)
        s = solver.init(np.zeros((net.m, 1)), W.at(0))
        for k in range(n):
            s = solver.step(s, np.zeros((net.m, 1)), W.at(k))
        counts = s.M[:, -1:]
        back = W.at(0).exchange(counts)  # an edge has the same place among in-edges and out-edges
        np.testing.assert_array_equal(counts + back, np.full_like(back, n))


@pytest.mark.parametrize(
    "solver, topology, words",
    [
        (
            S.ExactDiffusion(0.1),
            T.star(4, weights="uniform"),
            "ExactDiffusion needs a doubly stochastic W.*row stochastic.*metropolis",
        ),
        (
            S.GradientTracking(0.1),
            T.star(4, weights="push"),
            "needs a doubly stochastic W.*column stochastic",
        ),
        (
            S.PushSum(0.1),
            T.star(4, weights="uniform"),
            "needs a doubly or column stochastic W.*push",
        ),
        (S.Consensus(), T.star(4, weights="push"), "needs a doubly or row stochastic W.*uniform"),
        (S.RelaySGD(0.1), T.ring(4), "needs a tree.*chain"),
        (S.RelaySGD(0.1), T.one_peer_exponential(4), "needs a tree.*chain"),
        (S.DSGDCECA(0.1), T.exponential(4), "topology.ceca"),
    ],
    ids=lambda case: label(case) if not isinstance(case, str) else "",
)
def test_a_solver_refuses_a_topology_that_it_cannot_work_with(solver, topology, words):
    with mpidec.Network(4) as net, pytest.raises(ValueError, match=words):
        run(net, least_squares(4), solver, topology, 3)


def test_a_spectral_condition_is_a_warning_on_rank_0():
    words = "D2 is unstable on the hypercube topology.*-0.5.*ExactDiffusion"
    with (
        mpidec.Network(8) as net,
        pytest.warns(RuntimeWarning, match=words) if net.rank == 0 else nullcontext(),
    ):
        run(net, least_squares(8), S.D2(0.1), T.hypercube(8), 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "solver, topology, words",
    [
        (
            S.EXTRA(),
            T.exponential,
            "EXTRA is unstable on the exponential topology.*undirected graph, such as topology.symmetric",
        ),
        (
            S.ExactDiffusion(),
            T.exponential,
            "ExactDiffusion is unstable on the exponential topology.*undirected graph",
        ),
        (S.D2(), T.hypercube, "D2 is unstable on the hypercube topology.*use ExactDiffusion"),
    ],
    ids=["EXTRA", "ExactDiffusion", "D2"],
)
def test_auto_refuses_a_graph_on_which_no_step_size_converges(solver, topology, words):
    with mpidec.Network(16) as net:
        problem = mpidec.problems.load_problem("synthetic_least_squares", net=net, p=2, d=9)
        with pytest.raises(ValueError, match=f'step_size="auto": no step size converges: {words}'):
            mpidec.solve(problem, solver, topology(16), steps=100, net=net)


@pytest.mark.serial
def test_an_agent_that_does_not_move_keeps_its_adaptive_step_size():
    """The others take the smaller of two limits, or the one that is known, of their own last steps."""
    solver, rng = S.AdaptiveGradientTracking(0.1), np.random.default_rng(0)
    s, curvature = solver.init(rng.standard_normal((4, 3))), np.array([0.0, 0.1, 4.0, 1.0])[:, None]

    def alone(X):
        return X

    X, etas, ratios = [s.X], [np.full(4, 0.1)], [np.ones(4)]
    for k in range(6):
        G = curvature * X[-1] + 1.0 * (curvature > 0)  # agent 0 stays where it is
        s = solver.step(s, G, alone)
        if k > 1:
            moved, turned = (
                np.linalg.norm(A, axis=1) for A in (X[-1] - X[-2], curvature * (X[-1] - X[-2]))
            )
            largest = np.sqrt(1 + ratios[-1]) * etas[-1]
            limit = moved / np.where(turned > 0, 2 * turned, 1)
            etas += [np.where(turned > 0, np.minimum(largest, limit), etas[-1])]
            ratios += [etas[-1] / etas[-2]]
        np.testing.assert_allclose(s.eta[:, 0], etas[-1], rtol=1e-12)
        X += [s.X]
    assert s.eta[0] == 0.1 and (s.eta[1:] != 0.1).all()


def test_adaptive_step_sizes_warn_of_eigenvalues_that_turn():
    ring = lambda n, g: T.from_weights((1 - g) * np.eye(n) + g * np.roll(np.eye(n), 1, axis=0))
    adaptive = S.AdaptiveGradientTracking()
    for graph in (ring(5, 0.2), ring(8, 0.5), ring(3, 0.8)):  # diverges on these
        with pytest.warns(RuntimeWarning, match="made for undirected graphs, and diverges"):
            adaptive.check(graph)
    for graph in (ring(3, 0.5), T.exponential(16), T.exponential(100), T.ring(7)):
        assert adaptive.unstable(graph) == ""


@pytest.mark.serial
def test_the_remedies_of_unstable_graphs_are_stable():
    extra = S.EXTRA(0.1)
    assert extra.unstable(T.exponential(16)) and not extra.unstable(T.symmetric_exponential(16))
    assert "lazy" not in extra.unstable(T.exponential(16)) and not S.EXTRA().unstable(T.ring(16))


@pytest.mark.parametrize("step_size", [-1, np.nan, np.inf, "fast", True, None])
@pytest.mark.parametrize(
    "solver", [S.DGD, S.EXTRA, S.GradientTracking, S.PushSum, S.RelaySGD, S.DSGDCECA]
)
def test_a_wrong_step_size(solver, step_size):
    with pytest.raises(
        ValueError, match=f"{solver.__name__}: step_size is .*expected a finite number"
    ):
        solver(step_size=step_size)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: S.DGD(0.1, order="act"), "order is 'act', expected one of awc, atc, cta"),
        (lambda: S.Diffusion(0.1, order="awc"), "expected one of atc, cta"),
        (lambda: S.GradientTracking(0.1, variant="x"), "expected one of atc, semi-atc, diging"),
        (lambda: S.RelaySGD(0.1, relay="x"), "expected one of model, gradient"),
        (lambda: S.RelaySGD(0.1, missing="x"), "expected one of initial, current, count, own"),
    ],
)
def test_a_wrong_word(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_catalogue_is_what_is_exported():
    exported = {
        value
        for value in vars(S).values()
        if isinstance(value, type) and issubclass(value, S.Solver)
    } - {S.Solver, S.FunctionSolver, S.Momentum, S.Adam}  # the last two are made of another solver
    assert set(S.CATALOGUE.values()) == exported


def test_weights_that_may_vanish_are_refused():
    signed = T.from_weights([[1.4, -0.3, 0.2], [-0.2, 0.9, 0.3], [-0.2, 0.4, 0.5]], signed=True)
    best = T.star(
        16, weights="best_constant"
    )  # negative, and doubly stochastic: all weights stay 1
    for solver in (S.PushSum(), S.PushDIGing(), S.OSGP()):
        solver.check(best)
        with pytest.raises(ValueError, match="without negative entries unless"):
            solver.check(signed)
    S.GradientTracking().check(best)


NEED_W = ("dgd", "admm", "dlm", "atg", "frost", "relaysgd")


@pytest.mark.parametrize("name", S.CATALOGUE)
def test_init_works_without_w_or_says_that_it_needs_it(name):
    solver = S.CATALOGUE[name](**{"order": "cta"} if name == "dgd" else {})
    line = rf"{type(solver).__name__} .*: init\(X, W\) needs W, the operator of step 0"
    with pytest.raises(ValueError, match=line) if name in NEED_W else nullcontext():
        solver.init(np.ones((3, 2)))
