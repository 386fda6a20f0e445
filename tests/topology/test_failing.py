"""Graphs whose links fail and whose agents sleep."""

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import solvers as S, topology as T

N = 7
rng = np.random.default_rng(5)
B = np.triu(rng.random((N, N)), 1) / N
SYMMETRIC = T.from_weights(np.eye(N) - np.diag((B + B.T).sum(axis=1)) + B + B.T)
R = rng.random((N, N)) * (rng.random((N, N)) < 0.7) + np.eye(N)
ROW = T.from_weights(R / R.sum(axis=1, keepdims=True))
COLUMN = T.from_weights(R / R.sum(axis=0))
GRAPHS = [SYMMETRIC, ROW, COLUMN, T.exponential(N), T.one_peer_exponential(8), T.erdos_renyi(N)]
GRAPHS += [T.star(N, weights=weights) for weights in ("uniform", "push")]  # undirected ones


def down(make, W, p, seed, k, n):
    """Which links (receiver, sender) are down: in an own loop, from the same numbers."""
    from mpidec._random import uniform

    def u(i, j):
        return float(uniform(seed, k, np.array([i]), np.array([j]))[0])

    F = np.zeros((n, n), bool)
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            if make is T.sleeping_agents:
                F[i, j] = min(u(i, i), u(j, j)) < p
            else:
                F[i, j] = u(*(sorted((i, j)) if np.allclose(W, W.T) else (i, j))) < p
    return F


@pytest.mark.serial
@pytest.mark.parametrize(
    "make, graph",
    [(make, graph) for make in (T.failing_links, T.sleeping_agents) for graph in GRAPHS],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_lost_weights_go_to_the_diagonal(make, graph):
    n, schedule, lost = graph.n, make(graph, 0.4, seed=3), 0
    kind = "doubly" if graph.kind == "doubly" and graph.at(0).symmetric else graph.kind
    assert schedule.kind == ("column" if kind == "doubly" and not graph.at(0).symmetric else kind)
    for k in range(6):
        W = graph.at(k).W.toarray()
        F = down(make, W, 0.4, 3, k, n)
        want = np.where(F, 0, W)
        axis = 0 if schedule.kind == "column" else 1
        want[np.arange(n), np.arange(n)] += np.where(F, W, 0).sum(axis=axis)
        made = schedule.at(k)
        np.testing.assert_allclose(made.W.toarray(), want, atol=1e-15)
        np.testing.assert_allclose(made.columns(0, n).toarray().T, want, atol=1e-15)
        for sums in [axis] if schedule.kind != "doubly" else [0, 1]:
            np.testing.assert_allclose(want.sum(axis=sums), 1, atol=1e-14)
        parts = [made.rows(lo, hi).toarray() for lo, hi in ((0, 2), (2, 5), (5, n))]
        assert np.array_equal(np.vstack(parts), made.W.toarray())
        assert made.directed == (not np.array_equal(want != 0, want.T != 0))
        assert made.source.arcs == np.count_nonzero(want - np.diag(np.diag(want)))
        lost += np.count_nonzero(F & (W != 0))
    assert lost and schedule != make(graph, 0.4, seed=4) and schedule == make(graph, 0.4, seed=3)


@pytest.mark.serial
def test_the_share_of_links_that_fail():
    def share(schedule):
        return np.mean([schedule.at(k).source.arcs for k in range(300)]) / (30 * 29)

    assert abs(share(T.failing_links(T.complete(30), 0.3)) - 0.7) < 0.01
    assert abs(share(T.sleeping_agents(T.complete(30), 0.3)) - 0.49) < 0.03
    both = T.sleeping_agents(T.failing_links(T.complete(30), 0.3), 0.3, seed=1)
    assert abs(share(both) - 0.7 * 0.49) < 0.03 and both.kind == "doubly"


@pytest.mark.parametrize("make", [T.failing_links, T.sleeping_agents])
@pytest.mark.parametrize(
    "solver, graph", [(S.GradientTracking(0.05), SYMMETRIC), (S.PushDIGing(0.03), COLUMN)], ids=repr
)
def test_exact_methods_stay_exact_with_the_same_bits_on_any_number_of_ranks(make, solver, graph):
    data = np.random.default_rng(1)
    A, b = data.standard_normal((N, 5, 3)), data.standard_normal((N, 5))
    x = np.linalg.lstsq(A.reshape(-1, 3), b.ravel(), rcond=None)[0]
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        several = net.size > 1
        runs = [
            mpidec.solve(
                mpidec.problems.LeastSquares(A[each.lo : each.hi], b[each.lo : each.hi]),
                solver,
                make(graph, 0.2, seed=2),
                steps=100 if several else 1500,
                every=1500,
                net=each,
            )
            for each in ((net, alone) if several else (net,))
        ]
        ours, one = runs[0], runs[-1]
        np.testing.assert_array_equal(ours.x, one.x)
        np.testing.assert_array_equal(ours.X, one.X[net.lo : net.hi])
    if not several:
        np.testing.assert_allclose(one.x, x, atol=1e-9)


@pytest.mark.serial
@pytest.mark.parametrize("make", [T.failing_links, T.sleeping_agents])
def test_both_matrices_of_a_pair_lose_the_same_links(make):
    pair, n = T.push_pull(ROW, COLUMN), N
    schedule = make(pair, 0.4, seed=3)
    rows, columns = make(ROW, 0.4, seed=3), make(COLUMN, 0.4, seed=3)
    assert schedule.kind == "pair"
    for k in range(4):
        np.testing.assert_array_equal(schedule.at(k).R.W.toarray(), rows.at(k).W.toarray())
        np.testing.assert_array_equal(schedule.at(k).C.W.toarray(), columns.at(k).W.toarray())
    c = np.arange(2.0 * n).reshape(n, 2)
    problem = mpidec.problems.LeastSquares(np.tile(np.eye(2), (n, 1, 1)), c)
    result = mpidec.solve(problem, S.PushPull(0.05), schedule, steps=600)
    np.testing.assert_allclose(result.X, np.tile(c.mean(axis=0), (n, 1)), atol=1e-9)


@pytest.mark.serial
def test_failures_of_failures_are_others():
    p, graph = 0.3, T.complete(40)
    for make, share in ((T.failing_links, 0.49), (T.sleeping_agents, 0.49**2)):
        twice = make(make(graph, p), p)
        left = np.mean([twice.at(k).source.arcs for k in range(20)]) / graph.source.arcs
        assert abs(left - share) < 0.05, (make, left)


@pytest.mark.serial
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: T.failing_links("ring"), TypeError, "expected a topology or a schedule"),
        (lambda: T.failing_links(T.ring(5), 1.0), ValueError, "failing_links: p"),
        (lambda: T.sleeping_agents(T.ring(5), 0.1, -1), ValueError, "sleeping_agents: seed"),
        (lambda: T.sleeping_agents(T.double_binary_trees(5)), ValueError, "several graphs at once"),
        (
            lambda: mpidec.solve(
                mpidec.problems.LeastSquares(np.ones((5, 1, 1)), np.ones((5, 1))),
                S.RelaySGD(0.1),
                T.failing_links(T.chain(5)),
                steps=1,
            ),
            ValueError,
            "tree",
        ),
    ],
)
def test_wrong_use_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
