"""RelaySGD whole, and local momentum and Adam: against recursions written edge by edge, and the optimizers of PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.testing.contract import properties

N, D, STEPS = 6, 5, 20
RNG = np.random.default_rng(4)
A, B = RNG.standard_normal((N, 6, D)) / 2, RNG.standard_normal((N, 6))
X0 = RNG.standard_normal((N, D))
MASKS = RNG.random((15, 2, N, N)) < 0.2
TREES = {"chain": T.chain(N), "trees": T.double_binary_trees(N)}


def gradient(X):
    return np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - B)


def solved(net, solver, topology, mixing=None, steps=STEPS):
    here = slice(net.lo, net.hi)
    problem = mpidec.problems.LeastSquares(A[here], B[here])
    return mpidec.solve(problem, solver, topology, steps=steps, x0=X0, net=net, mixing=mixing).X


def updates(solver):
    """`D = update(G)` of the local optimizer, with all its memory."""
    B = M = V = k = 0

    def momentum(G):
        nonlocal B
        B = solver.momentum * B + (1 - solver.dampening) * G
        return G + solver.momentum * B if solver.nesterov else B

    def adam(G):
        nonlocal M, V, k
        k, M, V = k + 1, 0.9 * M + 0.1 * G, 0.999 * V + 0.001 * G**2
        return M / (1 - 0.9**k) / (np.sqrt(V / (1 - 0.999**k)) + 1e-8)

    return {S.Momentum: momentum, S.Adam: adam}.get(type(solver), lambda G: G)


def dense(solver, topology, masks):
    """RelaySGD edge by edge, each column over its tree; `masks[step, tree, receiver, sender]` are lost."""
    update, relay = updates(solver), getattr(solver, "solver", solver)
    trees, X, a = list(getattr(topology, "phases", [topology])), X0, solver.step_size
    K, share = len(trees), {"model": 1, "gradient": 0, "mix": relay.share}[relay.relay]
    edges = [[(j, i) for i in range(N) for j in tree.in_neighbors(i)] for tree in trees]
    M = [dict.fromkeys(some, (0 * X[0], 0)) for some in edges]
    for k in range(STEPS):
        V, new, before = share * X - a * update(gradient(X)), X.copy(), M
        M = [{} for _ in trees]
        for t in range(K):
            for j, i in edges[t]:
                into = [before[t][h, s] for h, s in edges[t] if s == j and h != i]
                sent = V[j] + sum(m for m, _ in into), 1 + sum(c for _, c in into)
                lost = k < len(masks) and masks[k, t, i, j]
                M[t][j, i] = (0 * V[j], 0) if lost else sent
            for i in range(N):
                used = (before if relay.overlap else M)[t]
                into = [used[h, s] for h, s in edges[t] if s == i]
                s, c = V[i] + sum(m for m, _ in into), 1 + sum(c for _, c in into)
                R = {"initial": share * X0[i], "current": share * X[i], "own": V[i]}
                if relay.relay == "gradient":
                    average = s / N
                elif relay.missing == "count":
                    average = s / c
                else:
                    average = (s + (N - c) * R[relay.missing]) / N
                new[i, t::K] = ((1 - share) * X[i] + average)[t::K]
        X = new
    return X


CASES = [
    (S.RelaySGD(0.1, overlap=True), "chain", False),
    (S.RelaySGD(0.1), "trees", False),
    (S.RelaySGD(0.1, missing="count", overlap=True), "trees", False),
    (S.RelaySGD(0.1, relay="mix", share=0.3), "trees", False),
    (S.RelaySGD(0.1, relay="mix", missing="current", overlap=True), "chain", False),
    *[
        (S.RelaySGD(0.1, missing=missing), "trees", True)
        for missing in ("initial", "current", "count", "own")
    ],
    (S.RelaySGD(0.1), "chain", True),
    (S.RelaySGD(0.1, relay="gradient", overlap=True), "trees", True),
    (S.Momentum(S.RelaySGD(0.02), nesterov=True), "trees", True),
    (S.Momentum(S.RelaySGD(0.02, relay="gradient"), 0.8, dampening=0.8), "chain", False),
    (S.Adam(S.RelaySGD(0.02, missing="count")), "trees", False),
]


@pytest.mark.parametrize("solver, name, lossy", CASES, ids=str)
def test_edge_by_edge(solver, name, lossy):
    masks = MASKS if name == "trees" else MASKS[:, :1]
    mixing = (lambda W: W.lossy(masks)) if lossy else None
    want = dense(solver, TREES[name], masks if lossy else masks[:0])
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        X = solved(net, solver, TREES[name], mixing)
        np.testing.assert_allclose(X, want[net.lo : net.hi], rtol=1e-12, atol=1e-12)
        one = solved(alone, solver, TREES[name], mixing)
        np.testing.assert_array_equal(X, one[net.lo : net.hi])


def test_messages_have_one_order_on_any_number_of_ranks():
    trees = T.double_binary_trees(N)
    receivers = np.sort(np.concatenate([tree.W.tocoo().coords[0] for tree in trees]))
    solver = S.RelaySGD(0.1)
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        states = []
        for each in (net, alone):
            W, G = each.mixer(trees).lossy(0.2, seed=1), gradient(X0)[each.lo : each.hi]
            s = solver.init(X0[each.lo : each.hi], W.at(0))
            for k in range(4):
                s = solver.step(s, G, W.at(k))
            states.append(s.M)
        loops = np.arange(N)  # the diagonals
        of = np.delete(
            receivers, [np.flatnonzero(receivers == i)[r] for i in loops for r in (0, 1)]
        )
        np.testing.assert_array_equal(states[0], states[1][(of >= net.lo) & (of < net.hi)])


@pytest.mark.serial
@pytest.mark.parametrize(
    "solver",
    [S.Momentum(S.DGD(0.05)), S.Momentum(S.DGD(0.05), 0.8, nesterov=True), S.Adam(S.DGD(0.05))],
    ids=str,
)
def test_one_agent_takes_the_steps_of_torch(solver):
    torch = pytest.importorskip("torch")
    x = torch.nn.Parameter(torch.from_numpy(X0[0].copy()))
    made = (
        torch.optim.Adam([x], 0.05)
        if isinstance(solver, S.Adam)
        else torch.optim.SGD([x], 0.05, momentum=solver.momentum, nesterov=solver.nesterov)
    )
    for _ in range(STEPS):
        residual = torch.from_numpy(A[0]) @ x - torch.from_numpy(B[0])
        made.zero_grad()
        (residual @ residual / 2).backward()
        made.step()
    problem = mpidec.problems.LeastSquares(A[:1], B[:1])
    X = mpidec.solve(problem, solver, T.ring(1), steps=STEPS, x0=X0[:1]).X
    np.testing.assert_allclose(X[0], x.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step_size", [0.02, lambda k: 0.1 / (k + 1)], ids=["constant", "varying"])
def test_updates_take_the_place_of_gradients_in_any_solver(step_size):
    W, a = T.ring(N).W.toarray(), step_size if callable(step_size) else lambda k: step_size
    update, X, C = (
        updates(solver := S.Momentum(S.DGD(step_size, order="awc"), nesterov=True)),
        X0,
        0,
    )
    for k in range(STEPS):
        X = W @ X - a(k) * update(gradient(X))
    with mpidec.Network(N) as net:
        here = slice(net.lo, net.hi)
        np.testing.assert_allclose(solved(net, solver, T.ring(N)), X[here], atol=1e-13)
        if not callable(
            step_size
        ):  # the constant one of D2, whose correction remembers the last update
            update, X = updates(solver), X0
            for _ in range(STEPS):
                U = -step_size * update(gradient(X))
                new = W @ (X + U + C)
                X, C = new, new - X - U
            got = solved(net, replace(solver, solver=S.D2(step_size)), T.ring(N))
            np.testing.assert_allclose(got, X[here], atol=1e-12)


@pytest.mark.serial
def test_exact_solvers_stay_exact_with_momentum_and_overlap():
    x = np.linalg.lstsq(A.reshape(-1, D), B.ravel(), rcond=None)[0]
    for solver in (S.Momentum(S.RelaySGD(), 0.5, nesterov=True), S.RelaySGD(overlap=True)):
        assert solver.exact and replace(solver, step_size=0.3).step_size == 0.3
        result = mpidec.solve(
            mpidec.problems.LeastSquares(A, B), solver, TREES["trees"], steps=400, x0=X0
        )
        np.testing.assert_allclose(result.X, np.tile(x, (N, 1)), atol=1e-9)


def test_push_sum_with_half_rounds():
    n, S_ = 8, 3
    schedule = T.one_peer_exponential(n)  # the operators of half-round j of step k: 3 k + j
    for rounds in (1, S_):
        X = np.arange(n * 2.0).reshape(n, 2)
        G, want = 1 - X, X
        for k in range(4):
            want = want - 0.1 * G
            for j in range(rounds):
                want = (want + np.roll(want, 2 ** ((rounds * k + j) % 3), axis=0)) / 2
        with mpidec.Network(n) as net:
            here, W = slice(net.lo, net.hi), net.mixer(schedule).repeat(rounds)
            s = S.PushSum(0.1).init(X[here])
            for k in range(4):
                s = S.PushSum(0.1).step(s, G[here], W.at(k))
            np.testing.assert_allclose(s.X, want[here], rtol=1e-13)
            np.testing.assert_allclose(net.mean(s.U), X.mean(axis=0) - 0.4 * G.mean(axis=0))
            once = S.PushSum(0.0).step(S.PushSum(0.0).init(X[here]), G[here], W.at(0))
            if rounds == 3:  # a whole period: the exact average
                np.testing.assert_allclose(once.X, np.tile(X.mean(axis=0), (n, 1))[here])


@pytest.mark.serial
@pytest.mark.parametrize(
    "solver",
    [
        S.Momentum(S.RelaySGD(), 0.5, nesterov=True),
        S.Momentum(S.GradientTracking(), 0.5, dampening=0.5),
        S.Momentum(S.DGD()),
    ],
    ids=str,
)
def test_momentum_keeps_the_contract(solver):
    mpidec.testing.check_solver(solver)


@pytest.mark.serial
def test_adam_keeps_kinds_and_types_of_arrays():
    checks = properties(S.Adam(S.RelaySGD()))
    for name in (
        "dtype",
        "rows",
        "columns",
        "kinds",
        "few_agents",
    ):  # square roots of torch are others
        checks[name]()


def test_refusals():
    with pytest.raises(TypeError, match=r"expected a solver: Momentum\(solvers.DGD\(0.1\)\)"):
        S.Momentum(0.1)
    with pytest.raises(ValueError, match="Consensus takes no gradients"):
        S.Adam(S.Consensus())
    with pytest.raises(ValueError, match="momentum"):
        S.Momentum(S.DGD(0.1), 1.0)
    with pytest.raises(ValueError, match="needs a tree"):
        solved(mpidec.Network(N), S.Momentum(S.RelaySGD(0.1)), T.ring(N))
    with pytest.raises(ValueError, match="needs a tree"):
        S.RelaySGD(0.1).check(T.striped([T.chain(N), T.ring(N)]))
