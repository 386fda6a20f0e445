"""Wrong arguments, on all ranks or on one: every rank that would wait gets an error, before anything is sent."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import launch
from helpers.refusals import works
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.runtime import waiting as progress

pytestmark = [pytest.mark.most(1), pytest.mark.timeout(200)]


several = pytest.mark.mpi(min_size=2)


@pytest.fixture
def net(transport):
    with mpidec.Network(2 * MPI.COMM_WORLD.size, transport=transport) as net:
        yield net


# ---------------------------------------------------------------------------------------------------------------------
# Calls of all ranks


@pytest.mark.parametrize("odd", [-1, 1])
@pytest.mark.parametrize("ranks", ["last", "all"])
def test_gather_with_a_wrong_number_of_rows(net, ranks, odd):
    wrong = odd if ranks == "all" or net.rank == net.size - 1 else 0
    with pytest.raises(
        ValueError, match=rf"rank \d+: rows have shape \({2 + odd}, 3\), expected \(2, \.\.\.\)"
    ):
        net.gather(np.ones((net.m + wrong, 3)))
    whole = net.gather(np.full((net.m, 3), float(net.rank)))
    if net.rank == 0:
        np.testing.assert_array_equal(
            whole, np.repeat(np.arange(float(net.size)), 2)[:, None] * np.ones(3)
        )
    works(net)


def test_a_stack_of_a_wrong_length_is_not_scattered(net):
    with pytest.raises(ValueError, match="the stack has shape"):
        net.scatter(np.ones((net.n + 1, 2)) if net.rank == 0 else None)
    np.testing.assert_array_equal(
        net.scatter(np.ones((net.n, 2)) if net.rank == 0 else None), np.ones((net.m, 2))
    )


OBJECTS = np.array([["x" * 50, 1.5]] * 2, dtype=object)


@pytest.mark.parametrize(
    "call",
    [
        lambda net: net.gather(OBJECTS),
        lambda net: net.sum(OBJECTS),
        lambda net: net.mean(OBJECTS),
        lambda net: net.scatter(np.repeat(OBJECTS, net.size, 0) if net.rank == 0 else None),
        lambda net: net.mixer(T.ring(net.n))(OBJECTS),
        lambda net: net.mixer(T.ring(net.n)).start([OBJECTS, OBJECTS]),
    ],
    ids=["gather", "sum", "mean", "scatter", "W", "start"],
)
def test_objects_are_refused(transport, call):
    """They are pointers of one process, and nothing to another one."""
    net = mpidec.Network(2 * MPI.COMM_WORLD.size, transport=transport)
    with pytest.raises(TypeError):
        call(net)
    with contextlib.suppress(
        RuntimeError, ValueError
    ):  # a network that was told of an error may be out of step
        net.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda net: net.allreduce(OBJECTS),
        lambda net: net.broadcast(OBJECTS, 0),
        lambda net: net.neighbor_allreduce(OBJECTS),
        lambda net: net.neighbor_allgather(OBJECTS),
    ],
    ids=["allreduce", "broadcast", "neighbor_allreduce", "neighbor_allgather"],
)
def test_objects_are_refused_by_local_view_calls(transport, call):
    net = mpidec.Network(transport=transport)
    net.set_topology(T.ring(net.n))
    with pytest.raises(TypeError):
        call(net)
    with contextlib.suppress(RuntimeError, ValueError):
        net.close()


def test_objects_are_not_sent_over_edges(transport):
    net = mpidec.Network(2 * MPI.COMM_WORLD.size, transport=transport)
    phase = net.mixer(T.ring(net.n)).at(0)
    with pytest.raises(TypeError):
        phase.exchange(np.full((len(phase.plan.senders), 1), "x" * 50, dtype=object))
    with contextlib.suppress(RuntimeError, ValueError):
        net.close()


@several
@pytest.mark.parametrize("call", ["gather", "scatter"])
def test_objects_on_one_rank(net, call):
    calls = {
        "gather": lambda: net.gather(OBJECTS if net.rank == 1 else np.ones((net.m, 2))),
        "scatter": lambda: net.scatter(np.repeat(OBJECTS, net.size, 0) if net.rank == 0 else None),
    }
    with pytest.raises(TypeError, match="object"):
        calls[call]()
    works(net)


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">c16", ">i8"])
def test_sums_of_the_other_byte_order(net, dtype):
    X = np.arange(3.0 * net.n).reshape(net.n, 3)
    x = X[net.lo : net.hi].astype(dtype)
    np.testing.assert_array_equal(net.sum(x), X.sum(axis=0))
    np.testing.assert_array_equal(net.mean(x), X.mean(axis=0))
    whole = net.gather(x)
    if net.rank == 0:
        np.testing.assert_array_equal(whole, X)
    np.testing.assert_array_equal(
        net.scatter(X.astype(dtype) if net.rank == 0 else None), X[net.lo : net.hi]
    )
    if "i" not in dtype:
        np.testing.assert_allclose(
            net.mixer(T.complete(net.n))(x), np.tile(X.mean(axis=0), (net.m, 1)), rtol=1e-6
        )


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", ">i4", "i8", "u1", "u2", "u4", "u8"])
def test_sums_of_whole_numbers(net, dtype):
    X = np.arange(5 * net.n).reshape(net.n, 5) % 7
    x = X[net.lo : net.hi].astype(dtype)
    np.testing.assert_array_equal(net.sum(x), X.sum(axis=0))
    np.testing.assert_array_equal(net.mean(x), X.mean(axis=0))
    with mpidec.Network(net.n, MPI.COMM_SELF) as alone:
        assert net.sum(x).dtype == alone.sum(X.astype(dtype)).dtype


def masked(net):
    return np.ma.masked_array(np.ones((net.m, 3)), np.eye(net.m, 3, dtype=bool))


MASKED = {
    "W": lambda net, X: net.mixer(T.ring(net.n))(X),
    "start": lambda net, X: net.mixer(T.ring(net.n)).start(X),
    "list": lambda net, X: net.mixer(T.ring(net.n))([np.ones((net.m, 2)), X]),
    "dict": lambda net, X: net.mixer(T.ring(net.n))({"a": X}),
    "gather": lambda net, X: net.gather(X),
    "mean": lambda net, X: net.mean(X),
    "sum": lambda net, X: net.sum(X),
    "scatter": lambda net, X: net.scatter(X[[0] * net.n] if net.rank == 0 else None),
    "compressed": lambda net, X: net.mixer(T.ring(net.n)).compress("bfloat16")(X),
    "accelerated": lambda net, X: net.mixer(T.ring(net.n)).accelerate(2)(X),
}


@pytest.mark.parametrize("call", MASKED)
def test_masked_arrays_are_refused(transport, call):
    """A mask would be lost, silently."""
    net = mpidec.Network(2 * MPI.COMM_WORLD.size, transport=transport)
    with pytest.raises(TypeError, match="masked"):
        MASKED[call](net, masked(net))
    with contextlib.suppress(RuntimeError, ValueError):
        net.close()


# ---------------------------------------------------------------------------------------------------------------------
# Mixings


def test_arrays_of_a_dict_are_matched_by_name(net):
    W, a, b = net.mixer(T.complete(net.n)), np.full((net.m, 2), 1.0), np.full((net.m, 2), 100.0)
    for _ in range(3):
        Y = W({"a": a, "b": b} if net.rank == 0 else {"b": b, "a": a})
        assert list(Y) == (["a", "b"] if net.rank == 0 else ["b", "a"])
        np.testing.assert_allclose(Y["a"], a)
        np.testing.assert_allclose(Y["b"], b)


@several
@pytest.mark.parametrize("names", [("a", "c"), ("b", "a"), ("a",), ("b", 1)])
def test_arrays_of_other_names_are_not_mixed(transport, names):
    net = mpidec.Network(transport=transport)
    W, X = net.mixer(T.complete(net.n)), np.ones((net.m, 2))
    W({"a": X, "b": X})
    with contextlib.nullcontext() if names == ("b", "a") else pytest.raises(ValueError):
        Y = W(dict.fromkeys(("a", "b") if net.rank == 0 else names, X))
        assert len(Y) == 2
    with contextlib.suppress(RuntimeError, ValueError):
        net.close()


@pytest.mark.parametrize("ranks", ["one", "all"])
def test_an_output_that_cannot_be_written_to(transport, ranks):
    """The mixing takes place, then the call raises on this rank alone: the other ranks get what they need, and all stay in step."""
    with mpidec.Network(transport=transport) as net:
        W, out, odd = (
            net.mixer(T.complete(net.n)),
            np.empty((net.m, 2)),
            ranks == "all" or net.rank == 0,
        )
        x, mean = np.full((net.m, 2), float(net.rank)), (net.n - 1) / 2
        for k in range(3):
            out.flags.writeable = not odd
            if odd:
                with pytest.raises(ValueError, match="written to"):
                    W(x, out=out)
                with pytest.raises(ValueError, match="written to"):
                    W.start(x, out)
            else:
                np.testing.assert_allclose(W(x, out=out), mean)
                np.testing.assert_allclose(W.start(x, out).wait(), mean)
            np.testing.assert_allclose(W(x + k), mean + k)


WRONG = {
    "integers": lambda net: np.ones((net.m, 2), int),
    "rows": lambda net: np.ones((net.m + 1, 2)),
    "scalar": lambda net: 3.0,
    "objects": lambda net: np.ones((net.m, 2), object),
}


@several
@pytest.mark.parametrize("call", ["dict", "sum"])
def test_what_is_refused_on_one_rank_is_refused_by_all_from_then_on(transport, comm, call):
    """Also where the others have not sent anything yet, since the rows are of a new kind."""
    net = mpidec.Network(transport=transport)
    W, X, wrong = net.mixer(T.complete(net.n)), np.ones((net.m, 2)), net.rank == 0
    W(X)
    integers, rows = X.astype(int), np.ones((3, 2))
    calls = {
        "dict": lambda: W({"a": X, "b": integers if wrong else X}),
        "sum": lambda: net.sum(rows if wrong else X),
    }
    again = {"dict": lambda: W(X), "sum": lambda: (net.sum(X), net.sum(X))}[
        call
    ]  # the first one may still be agreed upon
    with pytest.raises((TypeError, ValueError), match="expected" if wrong else "rank 0 gave up"):
        calls[call]()
    if transport == "shared" and call == "dict":
        again()
    else:
        with pytest.raises(RuntimeError, match="out of step"):
            again()
    comm.Barrier()


HUGE = np.broadcast_to(np.float32(1), (1, 1 << 45))  # there is no memory for it
REFUSED = {
    "exchange": lambda W, C, F, A, X, wrong: W.at(0).exchange(
        X[[0] * 99] if wrong else X[[0] * (W.n - 1)]
    ),
    "exchange a list": lambda W, C, F, A, X, wrong: W.at(0).exchange(
        [1] if wrong else X[[0] * (W.n - 1)]
    ),
    "exchange compressed": lambda W, C, F, A, X, wrong: C.at(0).exchange(
        X.astype(np.longdouble) if wrong else X[[0] * (W.n - 1)]
    ),
    "compressed integers": lambda W, C, F, A, X, wrong: C(X.astype(int) if wrong else X),
    "compressed long": lambda W, C, F, A, X, wrong: C(X.astype(np.longdouble) if wrong else X),
    "compressed list": lambda W, C, F, A, X, wrong: C([X, 3.0 if wrong else X]),
    "feedback": lambda W, C, F, A, X, wrong: F(X.astype(np.longdouble) if wrong else X),
    "accelerated": lambda W, C, F, A, X, wrong: A(X[[0, 0]] if wrong else X),
    "accelerated compressed": lambda W, C, F, A, X, wrong: C.accelerate(2)(
        X[[0, 0]] if wrong else X
    ),
    "no memory": lambda W, C, F, A, X, wrong: W(HUGE if wrong else X),
    "no memory for the result": lambda W, C, F, A, X, wrong: W(X),
    "no memory for a started one": lambda W, C, F, A, X, wrong: W.start(X).wait(),
}


@several
@pytest.mark.parametrize("call", REFUSED)
def test_neighbours_are_told_of_what_is_refused_on_one_rank(transport, comm, monkeypatch, call):
    """Rank 0 is wrong, or has no memory; in the memory of a node the network goes on."""
    net = mpidec.Network(transport=transport)
    W, X, wrong = net.mixer(T.complete(net.n)), np.ones((1, 3)), net.rank == 0
    C, F, A = W.compress("bfloat16"), W.compress("top_k", k=1), W.accelerate(2)
    if call == "no memory for the result" and transport == "shared":
        return  # it is made in compiled code
    W(X), C(X), F(X), A(X)
    before = F.memory()
    with monkeypatch.context() as patch:
        if wrong and call.startswith("no memory for"):
            patch.setattr("mpidec.comm.transport.sums.empty", no_memory)
            patch.setattr("mpidec.comm.mixing.phases.phase.empty", no_memory)
        with pytest.raises((TypeError, ValueError, MemoryError)) as caught:
            REFUSED[call](W, C, F, A, X, wrong)
    assert wrong or "rank 0 gave up" in str(caught.value)
    if wrong:
        assert all(np.array_equal(before[name], now) for name, now in F.memory().items())
    comm.Barrier()
    if transport == "shared":
        works(net)
    elif call == "feedback":
        with pytest.raises(RuntimeError, match="out of step"):
            W(X)


def no_memory(*_):
    raise MemoryError


@several
def test_error_feedback_after_a_refusal(comm):
    """Neighbours may have other rows by then: nobody goes on with those, and nobody waits."""
    with mpidec.Network(transport="shared") as net:
        W, X = net.mixer(T.complete(net.n)), np.arange(3.0) + np.full((1, 3), net.rank)
        F = W.compress("top_k", k=1)
        F(X)
        with pytest.raises(
            (TypeError, ValueError), match="codecs know" if net.rank == 0 else "gave up"
        ):
            F(X.astype(np.longdouble) if net.rank == 0 else X)
        for _ in range(3):
            with pytest.raises((RuntimeError, ValueError), match="error feedback is out of step"):
                F(X)
        works(net)


@several
def test_after_a_mismatch_that_all_ranks_find_the_network_works(net):
    W = net.mixer(T.complete(net.n))
    W(np.ones((net.m, 2)))
    with pytest.raises(ValueError, match="rank"):
        W(np.ones((net.m, 5 + net.rank)))
    works(net)


@several
@pytest.mark.parametrize("before", [0, 1, 63, 64])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rows_on_one_rank_while_others_are_under_way(wrong, before):
    """The other ranks are told, and what is under way ends; also where the slot of the first one comes again."""
    with mpidec.Network(transport="shared") as net:
        W = net.mixer(T.complete(net.n))
        pending = W.start(np.full((1, 2), float(net.rank)))
        for k in range(before):
            W(np.full((1, 2), float(k)))
        with pytest.raises(
            (TypeError, ValueError), match="expected" if net.rank == 0 else "gave up"
        ):
            W(WRONG[wrong](net) if net.rank == 0 else np.ones((1, 2)))
        np.testing.assert_allclose(pending.wait(), np.full((1, 2), (net.n - 1) / 2))
        works(net)


def test_an_overdue_mixing_is_completed_also_before_wrong_rows():
    with mpidec.Network(transport="shared") as net:
        W = net.mixer(T.complete(net.n))
        pending = W.start(np.full((1, 2), float(net.rank)))
        for _ in range(63):
            W(np.ones((1, 2)))
        with pytest.raises(TypeError, match="int64"):
            W(np.ones((1, 2), int))
        np.testing.assert_allclose(pending.wait(), np.full((1, 2), (net.n - 1) / 2))
        works(net)


# ---------------------------------------------------------------------------------------------------------------------
# Interruptions and threads


@several
@pytest.mark.parametrize("d", [3, 20_000])
def test_an_interrupted_mixing_leaves_the_network_out_of_step(comm, monkeypatch, d):
    """Ctrl-C in W(X), caught by the user: calls after it do not pair off with other calls of the neighbours, which are told."""
    monkeypatch.setenv("MPIDEC_TIMEOUT", "20")
    net = mpidec.Network(transport="shared")
    W = net.mixer(T.complete(net.n))
    W(np.zeros((1, d)))
    comm.Barrier()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        if net.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.4)
            with pytest.raises(KeyboardInterrupt):
                W(np.zeros((1, d)))
            for k in (1, 2):
                with pytest.raises(RuntimeError, match="out of step"):
                    W(np.full((1, d), 10.0 * k))
            comm.Barrier()
        else:
            comm.Barrier()  # rank 0 is through by now: only the mixing that it began can be had
            np.testing.assert_allclose(
                W(np.full((1, d), float(net.rank))), np.full((1, d), (net.n - 1) / 2)
            )
            for text in (
                r"rank 0 is out of step \(KeyboardInterrupt in mixing 2\)",
                r"network is out of step \(rank 0: Keyboard",
            ):
                with pytest.raises(RuntimeError, match=text):
                    W(np.zeros((1, d)))
    finally:
        signal.signal(signal.SIGALRM, before)
    comm.Barrier()


@several
@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI without threads")
@pytest.mark.parametrize(
    "call", ["W", "W.at", "start", "mean", "gather", "mixer", "barrier", "neighbor_allreduce"]
)
def test_two_threads_in_one_network(transport, comm, call):
    """The second one is told, and the call of the first one is not disturbed."""
    with mpidec.Network(transport=transport) as net:
        net.set_topology(T.complete(net.n))
        W, x, got = net.mixer(T.complete(net.n)), np.full((1, 3), float(net.rank)), []
        W(x)
        calls = {
            "W": lambda: W(x),
            "W.at": lambda: W.at(0)(x),
            "start": lambda: W.start(x),
            "mean": lambda: net.mean(x),
            "gather": lambda: net.gather(x),
            "mixer": lambda: net.mixer(T.ring(net.n)),
            "barrier": net.barrier,
            "neighbor_allreduce": lambda: net.neighbor_allreduce(x),
        }
        if net.rank == 0:
            thread = threading.Thread(target=lambda: got.append(W(x)))
            thread.start()
            time.sleep(0.2)  # the thread is in the call, and waits for the others
            with pytest.raises(RuntimeError, match="another thread is in a call of this network"):
                calls[call]()
            comm.Barrier()
            thread.join(launch.patient(30))
        else:
            comm.Barrier()
            got.append(W(x))
        np.testing.assert_allclose(got[0], np.full((1, 3), (net.n - 1) / 2))


@several
@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI without threads")
def test_two_threads_with_a_network_each(transport, comm):
    """One thread at a time may use a network, and each may have its own."""
    one, other = (mpidec.Network(transport=transport) for _ in range(2))
    failed = []

    def work(net, value):
        try:
            W = mixers[net]
            for k in range(50):
                Y = W(np.full((1, 3 if k % 4 else 20_000), value + k + net.rank))
                np.testing.assert_allclose(Y, np.full_like(Y, value + k + (net.n - 1) / 2))
        except BaseException as error:
            failed.append(error)

    mixers = {net: net.mixer(T.complete(net.n)) for net in (one, other)}
    threads = [
        threading.Thread(target=work, args=(net, value))
        for net, value in ((one, 0.0), (other, 1000.0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    one.close(), other.close()


def test_a_call_waits_for_a_poll_of_another_thread():
    """The thread of the last call polls while it waits for something else; the network goes over to another thread meanwhile."""
    with mpidec.Network(transport="shared") as net:
        W, polling, got = net.mixer(T.complete(net.n)), threading.Event(), []
        W(np.ones((1, 3)))

        def slow():
            polling.set()
            time.sleep(0.3)

        def call():
            polling.wait()
            with net.engine:
                got.append(W(np.ones((1, 3))))

        for use in (call, lambda: (polling.wait(), got.append(W(np.ones((1, 3)))))):
            polling.clear()
            with net.engine:  # this thread's again
                net.engine._polls.append(slow)
            thread = threading.Thread(target=use)
            thread.start()
            net.engine.poll()
            net.engine._polls.remove(slow)
            thread.join(launch.patient(30))
        assert len(got) == 2


def interrupted(*_):
    raise KeyboardInterrupt


@several
@pytest.mark.parametrize("where", ["posting", "starting"])
def test_rows_of_messages_that_a_signal_has_cut_short_are_kept(comm, monkeypatch, where):
    """MPI may write to them, and nothing else refers to them."""
    net = mpidec.Network(transport="p2p")
    W, X = net.mixer(T.complete(net.n)), np.ones((1, 3))
    W(X), W(X)
    comm.Barrier()
    if net.rank == 0:
        kept = len(progress._ABANDONED)
        with monkeypatch.context() as patch:
            patch.setattr("mpidec.comm.transport.halo.MessageRequest", interrupted)
            patch.setattr(
                "mpidec.comm.transport.persistent.MPI.Prequest",
                SimpleNamespace(Startall=interrupted),
            )
            with pytest.raises(KeyboardInterrupt):
                W.start(X) if where == "posting" else W(X)
        assert len(progress._ABANDONED) > kept
        with pytest.raises(RuntimeError, match="out of step"):
            W(X)
    comm.Barrier()


def test_what_a_wait_tests_is_kept_from_the_first_turn_on():
    with pytest.raises(KeyboardInterrupt):
        progress.wait_until(interrupted, "nothing")
    assert progress._ABANDONED.pop() is interrupted
