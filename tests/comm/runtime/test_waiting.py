"""Correct programs end: whatever a rank waits for, all that it has started goes on, in every transport.

All ranks start the same mixings in the same order; between a start and its wait each does what it likes.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from helpers import launch
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.runtime import arena as memory, waiting as progress

pytestmark = [
    pytest.mark.most(1),
    pytest.mark.library,
    pytest.mark.mpi(min_size=2),
    pytest.mark.timeout(100),
]
SMALL, LARGE = 3, 20_000  # columns of rows that are copied, and that are read in place
WAYS = [("auto", 0), ("shared", 2), ("neighbor", 0), ("p2p", 0)]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def way(request, monkeypatch):
    """The transport, and how many ranks a node is pretended to have."""
    monkeypatch.setenv("MPIDEC_TRANSPORT", request.param[0])
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(request.param[1]))
    monkeypatch.setenv(
        "MPIDEC_TIMEOUT", "600"
    )  # the test's own limit is shorter, and shows where the ranks are
    return request.param


@pytest.fixture
def net(way):
    with mpidec.Network() as net:
        yield net


def rows(net, d=SMALL, value=0.0):
    """Rows that hold the number of this rank, in memory where they are read in place if they are large."""
    X = net.empty(d)
    X[...] = value + net.rank
    return X


def mean(net, value=0.0):
    return value + (net.n - 1) / 2


def equal(Y, value):
    np.testing.assert_allclose(Y, np.full_like(Y, value), rtol=1e-13)


def test_only_the_thread_that_uses_a_network_polls_it_while_it_lives():
    engine, threads = progress.ProgressEngine(), []
    engine.add(lambda: threads.append(threading.get_ident()))
    used, end = threading.Event(), threading.Event()

    def use():
        progress.progress()  # it belongs to the main thread
        with engine:  # and from now on to this one
            progress.progress()
        used.set()
        end.wait()

    worker = threading.Thread(target=use)
    worker.start()
    used.wait()
    progress.progress()
    assert threads == [worker.ident]
    end.set()
    worker.join()
    progress.progress()  # nobody else would
    engine.close()
    assert threads == [worker.ident, threading.get_ident()]


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_SERIALIZED, reason="MPI without threads")
@pytest.mark.parametrize("call", ["mixing", "allreduce"])
def test_what_a_thread_has_started_goes_on_after_its_end(way, call):
    """The main thread waits on another network, and the others for what the thread has started."""
    with mpidec.Network() as one, mpidec.Network() as other:
        W, got = other.mixer(T.complete(other.n)), []

        def start():
            X = rows(other)
            got.append(W.start(X) if call == "mixing" else other.start_allreduce(X))

        if one.rank == 0:
            worker = threading.Thread(target=start)
            worker.start()
            worker.join()
            one.barrier()
            equal(got[0].wait(), mean(other))
        else:
            start()
            equal(got[0].wait(), mean(other))
            one.barrier()


def test_what_an_interrupted_wait_reads_into_is_kept(monkeypatch):
    monkeypatch.setattr(progress, "_ABANDONED", [])

    def interrupted():
        target = np.empty(3)

        def test():
            raise KeyboardInterrupt(target.shape)

        try:
            progress.wait_until(test, "nothing")
        except KeyboardInterrupt:
            return weakref.ref(target)

    target = interrupted()
    gc.collect()
    assert target() is not None


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("call", ["mean", "agree"])
def test_a_network_closes_on_all_ranks_although_one_has_skipped_a_call(comm, call, known):
    """MPI's collectives do not match any more on its communicator; nothing waits for the time-out."""
    for _ in range(2):
        began = time.monotonic()
        with mpidec.Network() as net:
            for _ in range(2 * known):
                CALLS[call](net)
            if net.rank != net.size - 1:
                with pytest.raises(ValueError, match=f"rank {net.size - 1} closes the network"):
                    CALLS[call](net)
        assert time.monotonic() - began < launch.patient(10)
    comm.Barrier()


def test_a_network_closes_although_a_rank_was_interrupted_in_a_sum(comm):
    """The others, which came to the same call later, are told that it has left."""
    net, handler = mpidec.Network(), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        net.sum(rows(net))
        if net.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                net.sum(rows(net))
        else:
            time.sleep(0.3 * (net.rank == 1))
            with pytest.raises(ValueError, match="rank 0 closes the network"):
                net.sum(rows(net))
        net.close()
    finally:
        signal.signal(signal.SIGALRM, handler)
    comm.Barrier()


@pytest.mark.parametrize("ending", ["exception", "dropped"])
@pytest.mark.parametrize("call", ["mixing", "mean", "barrier"])
def test_ranks_are_told_that_one_has_left_the_network(way, call, ending):
    """An exception on one rank leaves `with Network()`, and it makes another network: the others wait for it in the first."""

    def work(net):
        W = net.mixer(T.complete(net.n))
        calls = {**CALLS, "mixing": lambda net: W(np.ones((net.m, 5)))}
        calls[call](net)
        if net.rank == 0:
            raise KeyError("closes the network")
        calls[call](net)

    net = mpidec.Network()
    kind = KeyError if net.rank == 0 else ValueError
    with (
        pytest.raises(kind, match="closes the network"),
        net if ending == "exception" else contextlib.nullcontext(),
    ):
        work(net)
    del net
    gc.collect()
    with mpidec.Network() as net:
        equal(net.mean(np.ones((net.m, 2))), 1)


@pytest.mark.mpi(min_size=3)
def test_a_mixing_that_has_failed_fails_in_every_wait(net):
    """In a ring of one direction rank 1 refuses a mixing; the others find out one after the other, and none waits in vain."""
    ring = (np.eye(net.n) + np.roll(np.eye(net.n), 1, 0)) / 2
    W = net.mixer(T.from_weights(ring)).compress("float16", feedback=True)
    W(rows(net)), W(rows(net))
    raised = 0
    for k in range(net.n + 1):
        pending = None
        try:
            pending = W.start(np.array([["text"]]) if net.rank == 1 and k == 0 else rows(net))
            pending.wait()
        except (ValueError, TypeError, RuntimeError) as error:
            raised += 1
            if pending is not None:
                with pytest.raises(type(error)):
                    pending.wait()
    assert raised


@pytest.mark.parametrize("d", [SMALL, LARGE])
@pytest.mark.parametrize("first", [0, 1])
def test_waits_in_any_order(net, d, first):
    W = net.mixer(T.complete(net.n))
    pending = W.start(rows(net, d))
    if net.rank == first:
        equal(pending.wait(), mean(net))
        net.barrier()
    else:
        net.barrier()
        equal(pending.wait(), mean(net))


@pytest.mark.parametrize("d", [SMALL, LARGE])
def test_two_networks(way, d):
    with mpidec.Network() as one, mpidec.Network() as other:
        W, V = one.mixer(T.complete(one.n)), other.mixer(T.complete(other.n))
        if one.rank == 0:  # this rank overlaps the two, the others do not
            pending = W.start(rows(one, d))
            equal(V(rows(other, SMALL, 5)), mean(other, 5))
            equal(pending.wait(), mean(one))
        else:
            equal(W(rows(one, d)), mean(one))
            equal(V(rows(other, SMALL, 5)), mean(other, 5))


def test_two_networks_whose_waits_cross(way):
    with mpidec.Network() as one, mpidec.Network() as other:
        W, V = one.mixer(T.ring(one.n)), other.mixer(T.ring(one.n))
        for k in range(20):
            X, Z = rows(one, LARGE, k), rows(other, LARGE, 2 * k)
            p, q = W.start(X), V.start(Z)
            first, second = (p, q) if (one.rank + k) % 2 else (q, p)
            first.wait(), second.wait()
            X[...] = Z[...] = np.nan
            dense = T.ring(one.n).W.toarray()[one.rank]
            equal(p.wait(), dense @ (k + np.arange(one.n)))
            equal(q.wait(), dense @ (2 * k + np.arange(one.n)))


CALLS = {
    "mean": lambda net: net.mean(np.ones((net.m, 2))),
    "barrier": lambda net: net.barrier(),
    "MPI barrier": lambda net: net.comm.Barrier(),
    "gather": lambda net: net.gather(np.ones((net.m, 2))),
    "scatter": lambda net: net.scatter(np.ones((net.n, 2)) if net.rank == 0 else None),
    "agree": lambda net: net.agree(),
    "allreduce": lambda net: net.allreduce(1.0),
    "broadcast": lambda net: net.broadcast(np.ones(3), 1),
    "mixer": lambda net: net.mixer(T.ring(net.n)),
    "network": lambda net: mpidec.Network().close(),
    "another": lambda net: net.mixer(T.complete(net.n))(np.ones((net.m, 5))),
    "neighbor_allreduce": lambda net: net.neighbor_allreduce(
        np.ones(2),
        1,
        {net.rank ^ 1: 1.0} if net.rank < 2 else {},
        [net.rank ^ 1] if net.rank < 2 else [],
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_other_calls_between_start_and_wait(net, call):
    """Rank 0 lags behind, so that the others have published all they can when they come to the call."""
    W = net.mixer(T.complete(net.n))
    first = W.start(rows(net))
    for d in (600, 1200, 1800):
        time.sleep(0.05 * (net.rank == 0))
        equal(W(rows(net, d)), mean(net))
    second = W.start(rows(net, LARGE))
    CALLS[call](net)
    equal(second.wait(), mean(net))
    equal(first.wait(), mean(net))


@pytest.mark.parametrize("call", ["MPI barrier", "mean"])
@pytest.mark.parametrize("d", [SMALL, LARGE])
def test_some_ranks_call_before_they_wait_and_others_after(net, call, d):
    W = net.mixer(T.complete(net.n))
    for k in range(4):
        X = rows(net, d, k)
        pending = W.start(X)
        if (net.rank + k) % 2:
            CALLS[call](net)
            Y = pending.wait()
        else:
            Y = pending.wait()
            X[...] = np.nan
            CALLS[call](net)
        equal(Y, mean(net, k))


def test_messages_of_the_users_own_between_start_and_wait(net, comm):
    W = net.mixer(T.complete(net.n))
    pending = W.start(rows(net, LARGE))
    right, left = (net.rank + 1) % net.n, (net.rank - 1) % net.n
    if net.rank % 2:  # a chain of blocking messages, one rank after the other
        equal(pending.wait(), mean(net))
    if net.rank:
        assert comm.recv(source=left) == left
    if right:
        comm.send(net.rank, right)
    equal(pending.wait(), mean(net))


@pytest.mark.parametrize("count", [63, 64, 65, 200])
def test_a_slot_that_comes_again(net, count):
    W = net.mixer(T.complete(net.n))
    first = W.start(rows(net))
    for k in range(count):
        time.sleep(0.02 * (net.rank == 0 and k < 5))
        equal(W(rows(net, SMALL, k)), mean(net, k))
    second = W.start(rows(net, SMALL, 7))
    net.barrier()
    equal(first.wait(), mean(net))
    equal(second.wait(), mean(net, 7))


@pytest.mark.parametrize("count", [62, 63, 64, 127])
def test_an_old_wait_does_not_wait_for_the_new_user_of_its_slot(net, comm, count):
    """The rows of both lie in place; rank 0 waits for the old one before, all others after a barrier of the user's own."""
    W = net.mixer(T.complete(net.n))
    first = W.start(rows(net, LARGE))
    for k in range(count):
        W(rows(net, SMALL, k))
    second = W.start(rows(net, LARGE, 7))
    if net.rank == 0:
        equal(first.wait(), mean(net))
        comm.Barrier()
    else:
        comm.Barrier()
        equal(first.wait(), mean(net))
    equal(second.wait(), mean(net, 7))


def test_hundreds_under_way(net):
    """More than there are slots: the old ones are completed when theirs comes again, whatever is waited for first."""
    W, V = net.mixer(T.complete(net.n)), net.mixer(T.ring(net.n))
    dense = T.ring(net.n).W.toarray()[net.rank]
    pending = [
        (V if k % 3 else W).start(rows(net, LARGE if k % 16 == 0 else SMALL, k)) for k in range(200)
    ]
    for k in np.random.default_rng(net.rank).permutation(200):
        equal(pending[k].wait(), dense @ (k + np.arange(net.n)) if k % 3 else mean(net, k))


def pairs(n, *couples):
    W = np.eye(n)
    for i, j in couples:
        W[i, i] = W[j, j] = W[i, j] = W[j, i] = 0.5
    return T.from_weights(W, connected=False)


@pytest.mark.parametrize("d", [SMALL, LARGE])
@pytest.mark.parametrize("late", [False, True])
def test_a_mixing_that_is_64_steps_old_has_not_been_read(way, comm, d, late):
    """Agents 1 and 2, on two ranks, meet once; 64 mixings in which the ranks are alone follow, and the slot comes again.

    Rank 0 may change its rows as soon as its wait returns, and rank 1 has not read them then.
    """
    half = comm.Split(comm.rank // 2, comm.rank)
    if half.size == 2:
        with mpidec.Network(4, half) as net:
            across, inside = net.mixer(pairs(4, (1, 2))), net.mixer(pairs(4, (0, 1), (2, 3)))
            X, Z = net.empty(d), np.ones((net.m, 3))
            X[...] = 1.0 + net.rank
            p = across.start(X)
            if net.rank == 0:
                equal(p.wait()[1], 1.5)
                X[...] = -999.0
                if late:
                    for _ in range(64):
                        inside(Z)
                half.send(0, 1)
                if not late:
                    half.recv(source=1)
                    for _ in range(64):
                        inside(Z)
            else:
                time.sleep(0.1)
                for _ in range(64):
                    inside(Z)
                half.recv(source=0)
                equal(p.wait()[0], 1.5)
                if not late:
                    half.send(0, 0)
    half.Free()


def test_a_rank_is_no_64_mixings_ahead_of_one_that_reads_from_it(net):
    """Ranks 0 and 1 meet in one of 64 steps; in the others rank 0 is alone, and could be long past it."""
    n, period = net.n, 64
    others = pairs(n, (1, 2)) if n > 2 else pairs(n)
    W = net.mixer(T.cycle([pairs(n, (0, 1)), *[others] * (period - 1)]))
    for k in range(4 * period):
        if net.rank == 1 and k % period == 0:
            time.sleep(0.003)
        Y = W.at(k)(np.full((1, 3), 100.0 * k + net.rank))
        if k % period == 0 and net.rank < 2:
            equal(Y, 100.0 * k + 0.5)


@pytest.mark.parametrize("d", [SMALL, LARGE])
def test_a_pending_that_is_dropped(net, d):
    """Nobody waits for it, its rows are gone, and their memory is used again: the neighbours read what was handed in."""
    W = net.mixer(T.complete(net.n))
    for k in range(5):
        X = rows(net, d, k)
        pending = W.start(X)
        if (net.rank + k) % net.n == 0:
            del X, pending
            gc.collect()
            for _ in range(6):
                Z = net.empty(d)
                Z[...] = 99
            del Z
            time.sleep(0.02)
        else:
            time.sleep(0.01)
            equal(pending.wait(), mean(net, k))


def test_a_network_is_closed_with_mixings_under_way(way):
    for d in (SMALL, LARGE):
        with mpidec.Network() as net:
            W = net.mixer(T.complete(net.n))
            dropped = [W.start(rows(net, d, k)) for k in range(3)]
            equal(W(rows(net)), mean(net))
        del dropped


def test_start_returns_though_nobody_comes(net, comm):
    """Rows of two kinds in turn, which the ranks have agreed on once (collectives, which have no tags: of one kind)."""
    W = net.mixer(T.complete(net.n))
    kinds = (SMALL, SMALL) if net.transport == "neighbor" else (SMALL, LARGE)
    for d in kinds:
        W(rows(net, d))
    if net.rank == 0:
        pending = [W.start(rows(net, d, k)) for k in range(10) for d in kinds]
        comm.Barrier()
    else:
        comm.Barrier()  # rank 0 has started all of its own by now
        pending = [W.start(rows(net, d, k)) for k in range(10) for d in kinds]
    for k, one in enumerate(pending):
        equal(one.wait(), mean(net, k // 2))


@pytest.mark.skipif(memory.shared is None, reason="the kernel is not compiled")
def test_wait_returns_though_the_readers_have_not_come(comm):
    """Rows in place are copied for a rank that is elsewhere, so that nobody waits for it."""
    with mpidec.Network(transport="shared") as net:
        out = np.eye(net.n)
        out[1:, 0] = 0.5
        out[range(1, net.n), range(1, net.n)] = 0.5
        W = net.mixer(T.from_weights(out, connected=False))  # rank 0 sends, and receives nothing
        X = rows(net, LARGE, 3)
        if net.rank == 0:
            for k in range(5):
                X[...] = 3 + k
                W(X)  # the readers come when this rank is through
            X[...] = np.nan
            comm.Barrier()
        else:
            comm.Barrier()
            for k in range(5):
                equal(W(X), (3 + k + 3 + net.rank) / 2)


def test_test_makes_progress(net):
    W = net.mixer(T.complete(net.n))
    pending = W.start(rows(net, LARGE))
    assert launch.until(pending.test, 20)
    equal(pending.wait(), mean(net))
    assert pending.test() and pending.wait() is pending.wait()


@pytest.mark.parametrize("codec", [None, "blockwise8"])
def test_several_arrays_are_under_way_until_all_ranks_have_come(net, comm, codec):
    W, X = net.mixer(T.complete(net.n)), rows(net, 3)
    W = W if codec is None else W.compress(codec)
    for many in ([X, X], {"a": X, "b": X}, [X, X.astype(np.float32)]):
        W.start(many).wait()
        if net.rank:
            comm.Barrier()
        pending = W.start(many)
        if not net.rank:
            assert not pending.test()
            comm.Barrier()
        pending.wait()


def test_local_view_calls_under_way(net):
    """Calls of both kinds are started in one order, and waited for in another one on each rank."""
    net.set_topology(T.complete(net.n))
    W = net.mixer(T.complete(net.n))
    own, others = (
        np.random.default_rng(net.rank),
        [rank for rank in range(net.n) if rank != net.rank],
    )
    for k in range(5):
        started = [
            W.start(rows(net, LARGE, k)),
            net.start_neighbor_allreduce(np.full(4, float(net.rank))),
            net.start_allreduce(np.full(3, float(k + net.rank))),
            W.start(rows(net, SMALL, k)),
            net.start_neighbor_allreduce(
                np.full(2, float(net.rank)), 1 / net.n, dict.fromkeys(others, 1 / net.n), others
            ),
        ]
        expected = [mean(net, k), mean(net), mean(net, k), mean(net, k), mean(net)]
        for place in own.permutation(len(started)):
            equal(started[place].wait(), expected[place])


def test_status_queries_do_no_harm(net):
    """Rank 1 waits so long that it asks rank 0, time and again, which is elsewhere and answers later."""
    W = net.mixer(T.complete(net.n))
    for k in range(2):
        time.sleep(0.3 * (net.rank == 0))
        equal(W(rows(net, SMALL, k)), mean(net, k))
        pending = W.start(rows(net, LARGE, k))
        time.sleep(0.15 * (net.rank == 0))
        net.mean(np.ones((net.m, 2)))
        equal(pending.wait(), mean(net, k))


def test_started_rows_may_change_after_wait(net):
    W, own = net.mixer(T.complete(net.n)), np.random.default_rng(net.rank)
    for k in range(60):
        X = rows(net, LARGE if k % 2 else SMALL, k)
        pending = W.start(X)
        if own.random() < 0.2:
            time.sleep(0.002)
        Y = pending.wait()
        X[...] = np.nan
        equal(Y, mean(net, k))


def test_a_barrier_of_mpi_after_every_start(net):
    """A rank in MPI's own barrier makes no progress, and none is needed."""
    W = net.mixer(T.complete(net.n))
    for k in range(20):
        pending = W.start(rows(net, LARGE if k % 2 else SMALL, k))
        MPI.COMM_WORLD.Barrier()
        equal(pending.wait(), mean(net, k))


@pytest.mark.parametrize("kept", [1, 8])
def test_rows_that_are_kept_and_rows_under_way(net, comm, kept):
    """At the end of `solve` nobody waits until rows of a started mixing have been read: the others may be in MPI's barrier."""
    W = net.mixer(T.complete(net.n))
    W(rows(net))
    comm.Barrier()
    pending = [W.start(rows(net, LARGE, k)) for k in range(kept)]
    comm.Barrier()
    if net.rank == 1:
        while not all(one.test() for one in pending):
            pass
    with net.memory(), net.keeping_rows():
        for k in range(3):
            equal(W(rows(net, LARGE, k)), mean(net, k))
    comm.Barrier()
    for k, one in enumerate(pending):
        equal(one.wait(), mean(net, k))


def others(net, weight):
    return {rank: weight for rank in range(net.n) if rank != net.rank}


LOCAL = {
    "allreduce": lambda net, x: net.start_allreduce(x),
    "broadcast": lambda net, x: net.start_broadcast(0 * x + mean(net), 0),
    "static": lambda net, x: net.start_neighbor_allreduce(x),
    "weights": lambda net, x: net.start_neighbor_allreduce(
        x, 1 / net.n, others(net, 1 / net.n), others(net, 1.0)
    ),
    "push": lambda net, x: net.start_neighbor_allreduce(
        x, 1 / net.n, dst_weights=others(net, 1 / net.n)
    ),
}


@pytest.mark.parametrize("first", ["root", "others"])
@pytest.mark.parametrize("call", ["mixing", "mean", "agree", "gather", "mixer", "allreduce"])
def test_local_view_calls_go_on_while_a_rank_waits_for_something_else(net, call, first):
    """Some ranks complete the local-view call before the other call, the others after it: they pass on its messages within it."""
    net.set_topology(T.complete(net.n))
    W = net.mixer(T.complete(net.n))
    W(np.ones((net.m, 5)))
    calls = {**CALLS, "mixing": lambda net: W(np.ones((net.m, 5)))}
    for start in LOCAL.values():
        for _ in range(2):  # a list of neighbours is confirmed when it is first used
            pending = start(net, np.full(3, float(net.rank)))
            if (net.rank == 0) == (first == "root"):
                equal(pending.wait(), mean(net))
                calls[call](net)
            else:
                calls[call](net)
                equal(pending.wait(), mean(net))
