"""RelaySGD whole, and local momentum and Adam: against recursions written edge by edge, and the optimizers of PyTorch."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.options import crossed
from helpers.updates import RNG, X0, A, B, gradient, solved, updates
from mpi4py import MPI

import mpidec
from mpidec import solvers as S, topology as T

N, D, STEPS = 6, 5, 20
MASKS = RNG.random((15, 2, N, N)) < 0.2
TREES = {"chain": T.chain(N), "trees": T.double_binary_trees(N)}


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
    *[
        (solver, ("chain", "trees")[i % 2], i % 3 > 0)
        for i, solver in enumerate(crossed(S.RelaySGD, 0.1))
    ],
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
def test_exact_solvers_stay_exact_with_momentum_and_overlap():
    x = np.linalg.lstsq(A.reshape(-1, D), B.ravel(), rcond=None)[0]
    for solver in (S.Momentum(S.RelaySGD(), 0.5, nesterov=True), S.RelaySGD(overlap=True)):
        assert solver.exact and replace(solver, step_size=0.3).step_size == 0.3
        result = mpidec.solve(
            mpidec.problems.LeastSquares(A, B), solver, TREES["trees"], steps=400, x0=X0
        )
        np.testing.assert_allclose(result.X, np.tile(x, (N, 1)), atol=1e-9)


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
    "make, words",
    [
        (lambda: S.RelaySGD(0.1, relay="x"), "expected one of model, gradient"),
        (lambda: S.RelaySGD(0.1, missing="x"), "expected one of initial, current, count, own"),
    ],
)
def test_a_wrong_word(make, words):
    with pytest.raises(ValueError, match=words):
        make()
