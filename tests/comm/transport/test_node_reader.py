"""Rows that are read where they lie in the memory of the node, and ranks that disagree."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.arena import inside
from helpers.solvers import ALL, label
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.runtime import arena as arena_module
from mpidec.testing.linear import QuadraticCosts

shared = arena_module.shared


pytestmark = [
    pytest.mark.library,
    pytest.mark.skipif(shared is None or arena_module.arena() is None, reason="there is no arena"),
    pytest.mark.timeout(200),
]


several = pytest.mark.mpi(min_size=2)
GRAIN = 1 << 14 if shared is None else shared.GRAIN
SLOTS = 64 if shared is None else shared.SLOTS
SMALL, LARGE, HUGE = (
    5,
    20_007,
    600_001,
)  # columns of rows that are copied, and that are read in place


# ---------------------------------------------------------------------------------------------------------------------
# Rows that are read in place


@several
def test_rows_and_results_lie_in_the_memory_of_the_node(net):
    W, X = net.mixer(T.ring(net.n)), net.empty(LARGE)
    X[...] = net.rank
    copies = net.node.node.copies
    Y = W(X, out=net.empty(LARGE))
    Y = W(X)
    assert inside(X) and inside(Y)
    assert net.node.node.copies - copies <= 2  # where a reader was late: else nothing was copied
    dense = T.ring(net.n).W.toarray() @ np.arange(float(net.n))
    np.testing.assert_allclose(Y, np.full((1, LARGE), dense[net.rank]), rtol=1e-14, atol=1e-14)


@several
@pytest.mark.parametrize("d", [SMALL, LARGE])
@pytest.mark.parametrize("make", [T.exponential, T.complete, lambda n: T.star(n, weights="push")])
def test_rows_may_change_as_soon_as_mixing_returns(net, d, make):
    """Fast ranks overwrite their rows at once, slow ones read late: whoever reads must not see it."""
    W, X = net.mixer(make(net.n)), net.empty(d)
    dense = make(net.n).W.toarray()
    for k in range(60):
        X[...] = 100 * k + net.rank
        if k % net.n == net.rank:
            time.sleep(0.003)
        Y = W(X) if k % 2 else W.start(X).wait()
        X[...] = np.nan
        np.testing.assert_allclose(
            Y, np.full((1, d), dense[net.rank] @ (100.0 * k + np.arange(net.n))), rtol=1e-13
        )


@several
def test_rows_change_while_a_slow_rank_reads(net):
    """The reader has pinned the rows when their owner leaves, and gathers for a while: 5 MB a row."""
    W, X = net.mixer(T.complete(net.n)), net.empty(HUGE)
    for k in range(12):
        X[...] = k + net.rank
        if net.rank == k % net.n:
            time.sleep(0.002 * (k % 3))
        Y = W(X)
        X[...] = np.nan
        assert np.all(Y[0, 0] == Y) and abs(Y[0, 0] - k - (net.n - 1) / 2) < 1e-12


@several
@pytest.mark.parametrize(
    "view",
    [
        lambda X: X[:, 7 : 7 + SMALL],
        lambda X: X[:, : LARGE - 9],
        lambda X: X[::-1],
        lambda X: X[:, ::2],
    ],
)
def test_views_are_mixed(view):
    with mpidec.Network(3 * MPI.COMM_WORLD.size, transport="shared") as net:
        W, X = net.mixer(T.exponential(net.n)), net.empty(LARGE)
        whole = np.random.default_rng(0).standard_normal((net.n, LARGE))
        X[...] = whole[net.lo : net.hi]
        order = np.concatenate(
            [
                np.arange(net.partition.bounds(rank)[0], net.partition.bounds(rank)[1]).reshape(
                    1, -1, 1
                )
                for rank in range(net.size)
            ],
            axis=0,
        )
        parts = np.concatenate([view(whole[places.ravel()]) for places in order])
        np.testing.assert_allclose(
            W(view(X)), (W.topology.W @ parts)[net.lo : net.hi], rtol=1e-12, atol=1e-13
        )


@several
def test_tensors_are_read_in_place(net):
    torch = pytest.importorskip("torch")
    with net.memory():
        X = np.full((1, LARGE), float(net.rank))
    W, tensor = net.mixer(T.complete(net.n)), torch.from_numpy(X)
    for k in range(5):
        Y = W(tensor + 7)
        assert torch.equal(Y, torch.full_like(Y, k + 7 + (net.n - 1) / 2))
        Y = W(tensor)
        tensor += 1
        np.testing.assert_allclose(Y.numpy(), k + (net.n - 1) / 2, rtol=1e-14)


@several
def test_results_that_are_kept_stay_as_they_are(net):
    W = net.mixer(T.ring(net.n))
    for d in (SMALL, LARGE):
        kept = [W(np.full((net.m, d), float(k))) for k in range(100)]
        for k, Y in enumerate(kept):
            np.testing.assert_array_equal(Y, np.full((net.m, d), float(k)))


@several
def test_memory_is_used_again(net):
    W = net.mixer(T.ring(net.n))
    for d in (SMALL, LARGE):
        Y = np.ones((net.m, d))
        for _ in range(20):
            Y = W(Y)
        net.barrier()
        before = shared.arena_stats()[0]
        for _ in range(200):
            Y = W(Y)
        assert shared.arena_stats()[0] - before <= 16 * max(GRAIN, 2 * Y.nbytes)


@several
def test_nothing_is_left_when_networks_are_closed(comm):
    def use():
        gc.collect()
        return (
            len(os.listdir("/proc/self/fd")),
            len(Path("/proc/self/maps").read_text().splitlines()),
            shared.arena_stats()[1],
        )

    figures = []
    for _ in range(8):
        with mpidec.Network() as net:
            W = net.mixer(T.ring(net.n))
            for d in (SMALL, LARGE, 3 * LARGE):
                W(W(np.ones((net.m, d))))
                pending = W.start(net.empty(d) * 0)
                with net.keeping_rows():
                    W(np.ones((net.m, d)))
                pending.wait()
            del W, pending
        comm.Barrier()
        figures.append(use())
    assert (
        figures[-1][0] <= figures[1][0]
        and figures[-1][1] <= figures[1][1] + 4
        and figures[-1][2] <= figures[1][2]
    )


@several
def test_more_neighbours_than_are_read_at_once():
    """Sums of 130 rows with different weights, of which up to 128 lie on other ranks: more than the 64 that one pass adds up."""
    n, A = 130, np.random.default_rng(0).random((130, 130))
    for graph in (
        T.from_weights(A / A.sum(axis=1, keepdims=True)),
        T.from_weights(A / A.sum(axis=0)),
        T.star(n),
    ):
        with (
            mpidec.Network(n, transport="shared") as net,
            mpidec.Network(n, comm=MPI.COMM_SELF) as alone,
        ):
            for d in (3, 700):
                X = np.random.default_rng(d).standard_normal((n, d))
                W = net.mixer(graph)
                Y = W(X[net.lo : net.hi])
                np.testing.assert_array_equal(Y, alone.mixer(graph)(X)[net.lo : net.hi])
                np.testing.assert_allclose(Y, (graph.W @ X)[net.lo : net.hi], atol=1e-13)
                Z = W.start(X[net.lo : net.hi].astype(np.float32)).wait()
                np.testing.assert_allclose(Z, (graph.W @ X)[net.lo : net.hi], atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Ranks that mix different things


@several
@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 3), (3, 2))], ids=["width", "axes"])
def test_rows_of_different_shapes_are_found(net, shapes):
    W = net.mixer(T.complete(net.n))
    words = "(" + "|".join(" x ".join(map(str, shape)) for shape in shapes) + ")"
    with pytest.raises(
        ValueError,
        match=rf"rank \d+ and rank \d+ mix different things in mixing 1: rows of {words} float64 in "
        rf"W\(X\) over complete on rank \d+, rows of {words} float64 on rank \d+;",
    ):
        W(np.zeros((net.m, *shapes[net.rank > 0])))


@several
@pytest.mark.parametrize("kinds", [("3 int32", "3 float32"), ("2 x 3 float64", "6 float64")])
def test_messages_of_different_kinds_are_found(net, kinds):
    """Also where both have as many bytes."""
    W, (shape, dtype) = net.mixer(T.complete(net.n)).at(0), kinds[net.rank > 0].rsplit(" ", 1)
    M = np.zeros((len(W.to_edges(np.empty((net.m, 1)))), *map(int, shape.split(" x "))), dtype)
    words = "(" + "|".join(kinds) + ")"
    with pytest.raises(
        ValueError, match=rf"rows of {words} in W.exchange\(M\) .* rows of {words} on rank"
    ):
        W.exchange(M)


def calls(W, d, count, odd):
    """What came of so many calls, of which this rank makes the first one wrongly if it is the odd one: numbers, or errors."""
    got = []
    for k in range(count):
        try:
            got.append(float(W(np.full((1, d + (odd and k == 0)), float(k)))[0, -1]))
        except (ValueError, RuntimeError) as error:
            text = str(error)
            got.append(
                "told"
                if "mix different things in mixing 4" in text
                else "out of step"
                if "out of step" in text
                else text
            )
    return got


@several
@pytest.mark.parametrize("d", [SMALL, LARGE])
def test_a_disagreement_is_told_once_to_both_sides(net, d):
    W = net.mixer(T.complete(net.n))
    for _ in range(3):
        W(np.zeros((1, d)))
    got = calls(W, d, 6, net.rank == 0)
    assert got in (["told", 1.0, 2.0, 3.0, 4.0, 5.0], ["told"] + 5 * ["out of step"])


@several
def test_the_side_that_only_sends_is_told_too(net):
    """Rank 0 sends to all others and receives nothing: it hears that its rows were refused when it mixes again."""
    n = net.n
    A = np.eye(n)
    A[1:, 0], A[range(1, n), range(1, n)] = 0.5, 0.5
    W = net.mixer(T.from_weights(A, connected=False))
    for _ in range(3):
        W(np.zeros((1, SMALL)))
    if net.rank == 0:
        W(np.zeros((1, SMALL + 1)))
        net.comm.Barrier()
        net.comm.Barrier()
        got = calls(W, SMALL, 1, False)
        assert got[0] in ("told", "out of step")
    else:
        net.comm.Barrier()
        assert calls(W, SMALL, 1, False) == ["told"]
        net.comm.Barrier()


@several
def test_a_rank_that_is_out_of_step_says_why(net):
    W, X = net.mixer(T.complete(net.n)), np.zeros((1, SMALL))
    W(X)
    if net.rank == 1:
        net.node.node.refuse("KeyboardInterrupt in mixing 1")
    with pytest.raises(
        RuntimeError, match=r"out of step \((rank 1: )?KeyboardInterrupt in mixing 1\)"
    ):
        W(X)
    net.comm.Barrier()  # so that rank 1 does not close, and say that, before
    with contextlib.suppress(ValueError):  # others may have asked meanwhile
        net.close()


@several
def test_after_a_refusal_calls_are_not_one_apart(net):
    """The call in which rank 0 hears of it takes part in its mixing all the same, or no call does any more."""
    n = net.n
    A = np.eye(n)
    A[1:, 0], A[range(1, n), range(1, n)] = 0.5, 0.5
    W = net.mixer(T.from_weights(A, connected=False))
    for _ in range(3):
        W(np.zeros((1, SMALL)))
    if net.rank == 0:
        time.sleep(0.05)
        W(np.zeros((1, SMALL + 1)))
        time.sleep(0.1)  # the others have refused it by then
        assert calls(W, SMALL, 4, False) in (
            ["told", 1.0, 2.0, 3.0],
            ["told"] + 3 * ["out of step"],
        )
    else:
        assert calls(W, SMALL, 1, False) == ["told"]
        for k in range(3):
            np.testing.assert_array_equal(
                W(np.full((1, SMALL), float(k))), np.full((1, SMALL), float(k))
            )


@several
def test_a_mixing_64_steps_apart_is_not_taken_for_this_one(net):
    """Rank 0 makes 64 mixings in which it is alone, wrongly, where rank 1 meets it: their numbers differ by the slots."""
    n = net.n
    alone, pair = np.eye(n), np.eye(n)
    pair[:2, :2] = 0.5
    V, W = (net.mixer(T.from_weights(A, connected=False)) for A in (alone, pair))
    x = np.full((1, 3), float(net.rank))
    if net.rank == 0:
        for _ in range(SLOTS):
            V(x)
        pending = W.start(x + 1000)  # its slot is that of mixing 1, and the tag is right
        net.comm.Barrier()
        del pending
    else:
        net.comm.Barrier()
        if net.rank == 1:
            with pytest.raises(ValueError, match="mixing 1"):
                W(x)
    net.comm.Barrier()


# ---------------------------------------------------------------------------------------------------------------------
# Solvers


STEPS = 50


def run(net, solver, graph, d=20_000, steps=STEPS, handle=True):
    """Steps of a solver on rows of 160 KB, as `solve` makes them, with a cheap gradient: the state, the copies and page faults."""
    rng = np.random.default_rng(0)
    W, topology = net.mixer(graph(net.n)), graph(net.n)
    figures, target = [], rng.standard_normal((net.n, d))[net.lo : net.hi].copy()
    costs = QuadraticCosts(np.ones((net.m, 1)), target)
    context = net.memory() if handle else contextlib.nullcontext()
    with context, net.keeping_rows() if handle else contextlib.nullcontext():
        s = solver.init(np.zeros((net.m, d)), W.at(0))
        for k in range(steps):
            node = net.node.node if net.node is not None else None
            figures.append(
                (
                    0 if node is None else node.copies,
                    resource.getrusage(resource.RUSAGE_THREAD).ru_minflt,
                )
            )
            s = solver.step(s, solver.ask(costs, s), W.at(k))
    assert topology.n == net.n
    return s, np.diff(np.array(figures), axis=0)


ONE_ARRAY = (
    "Consensus",
    "DGD",
    "Diffusion",
    "EXTRA",
    "ExactDiffusion",
    "D2",
)  # mixed at a time, by one call


@pytest.mark.parametrize("solver, graph", ALL, ids=label)
@pytest.mark.filterwarnings("ignore")
def test_steps_of_solvers_copy_nothing_and_cost_no_page_faults(solver, graph):
    with mpidec.Network(transport="shared") as net:
        run(net, solver, graph, steps=3)
        s, figures = run(net, solver, graph)
        copies, faults = figures[STEPS // 2 :].sum(axis=0)
        one = type(solver).__name__ in ONE_ARRAY or getattr(solver, "variant", "") == "atc"
        assert copies == 0 or not one, f"{copies} of {STEPS // 2} steps copied rows"
        assert faults <= 400, (
            f"{faults} page faults in {STEPS // 2} steps"
        )  # now and then a block more; without: 4000
        assert np.isfinite(s.X).all()


@pytest.mark.parametrize("solver, graph", ALL, ids=label)
@pytest.mark.filterwarnings("ignore")
def test_the_memory_changes_no_bit(solver, graph):
    with mpidec.Network(transport="shared") as net, mpidec.Network(net.n, MPI.COMM_SELF) as alone:
        inside_, outside = (
            run(net, solver, graph, 2600, 12, handle)[0] for handle in (True, False)
        )
        one = run(alone, solver, graph, 2600, 12)[0]
        for name, X in inside_._asdict().items():
            np.testing.assert_array_equal(X, getattr(outside, name), err_msg=name)
        np.testing.assert_array_equal(inside_.X, one.X[net.lo : net.hi])


@several
def test_rows_that_are_kept_are_not_changed_before_they_are_read(net):
    """Late drain: the owner drops its rows at once and makes new ones, of which none may lie where others still read."""
    W, dense = net.mixer(T.exponential(net.n)), T.exponential(net.n).W.toarray()[net.rank]
    with net.memory(), net.keeping_rows():
        for k in range(80):
            time.sleep(0.002 * (net.rank == k % net.n and k % 7 == 0))
            Y = W(np.full((1, LARGE), 10.0 * k) + net.rank)
            trash = [np.full((1, LARGE), np.nan) for _ in range(3)]
            np.testing.assert_allclose(
                Y, np.full((1, LARGE), dense @ (10.0 * k + np.arange(net.n))), rtol=1e-13
            )
    del trash
    assert net.node.node.release() == 0  # all were read when the context was left


@several
def test_few_rows_are_kept_at_a_time(net):
    W = net.mixer(T.complete(net.n))
    with net.memory(), net.keeping_rows():
        for _ in range(30):
            time.sleep(0.002 * (net.rank == 0))
            W(np.ones((1, LARGE)))
            assert net.node.node.release() <= 5


@several
def test_a_keeping_context_that_an_exception_leaves(net):
    W = net.mixer(T.complete(net.n))
    with contextlib.suppress(KeyError), net.keeping_rows():
        W(np.ones((1, LARGE)))
        raise KeyError
    assert not net.node.node.late
    X = net.empty(LARGE)
    for k in range(20):
        X[...] = k
        time.sleep(0.002 * (net.rank == k % net.n))
        Y = W(X)
        X[...] = np.nan
        np.testing.assert_array_equal(Y, np.full((1, LARGE), float(k)))
