"""One-sided windows: random programs against a model of all ranks, conservation at the ranks' own pace, mutexes, refusals."""

import contextlib
import gc
import mmap
import os
import pickle
import re
import resource
import signal
import threading
import time

import numpy as np
import pytest
from helpers import launch
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.rma import memory, offload, one_sided, records, records_in_python
from mpidec.comm.rma.messenger import _HEADER, Kind, Message, WindowMessenger
from mpidec.comm.rma.mutex import Mutex
from mpidec.comm.runtime.progress import ProgressEngine, wait_until

pytestmark = pytest.mark.library

TRANSPORTS = {"auto": {}, "p2p": {"transport": "p2p"}, "rma": {"windows": "rma"}}
GRAPHS = {
    "ring": T.ring,
    "exponential": T.exponential,
    "star": T.star,
    "directed": lambda n: T.from_weights(0.5 * np.eye(n) + 0.5 * np.roll(np.eye(n), 1, axis=0)),
}


OVER_ALL = pytest.mark.parametrize("net", TRANSPORTS, indirect=True)  # the others: "rma" by --slow


@pytest.fixture(params=["auto", "p2p", pytest.param("rma", marks=pytest.mark.slow)])
def net(request):
    with mpidec.Network(**TRANSPORTS[request.param]) as net:
        yield net


class Model:
    """The windows of all ranks as dense arrays: X[i], p[i], slots S[i, j] of receiver i and sender j, with their p and versions."""

    def __init__(self, X, graph, zero):
        n = len(X)
        self.X, self.p = X.astype(float), np.ones(n)
        self.S, self.P, self.V = (
            np.zeros((n, n, *X.shape[1:])),
            np.zeros((n, n)),
            np.zeros((n, n), int),
        )
        self.into = [graph.in_neighbors(i).tolist() for i in range(n)]
        self.out = [graph.out_neighbors(i).tolist() for i in range(n)]
        for i in range(n if not zero else 0):
            self.S[i, self.into[i]] = X[i]

    def send(self, i, x, own, weights, add):
        for j, w in weights.items():
            self.S[j, i] = w * x + (self.S[j, i] if add else 0)
            self.P[j, i] = w * self.p[i] + (self.P[j, i] if add else 0)
            self.V[j, i] += 1
        if own is not None:
            self.X[i], self.p[i] = own * self.X[i], own * self.p[i]

    def get(self, i, weights, X, p):
        for j, w in weights.items():
            self.S[i, j], self.P[i, j] = w * X[j], w * p[j]
            self.V[i, j] += 1

    def update(self, i, own, weights, reset):
        self.X[i] = own * self.X[i] + sum(
            (w * self.S[i, j] for j, w in weights.items()), np.zeros_like(self.X[i])
        )
        self.p[i] = own * self.p[i] + sum(w * self.P[i, j] for j, w in weights.items())
        self.V[i] = 0
        for j in weights if reset else ():
            self.S[i, j], self.P[i, j] = 0, 0


def some(rng, ranks):
    """Weights of some of the ranks."""
    return {j: float(rng.normal()) for j in ranks if rng.random() < 0.7}


@OVER_ALL
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("zero", [True, False])
def test_a_random_program(net, graph, zero):
    rng, n, me = np.random.default_rng([len(graph), net.n, zero]), net.n, net.rank
    topology = GRAPHS[graph](n)
    X = rng.normal(size=(n, 3, 2))
    model = Model(X, topology, zero)
    with net.window(X[me], topology, zero=zero) as win:
        for _ in range(25):
            kind = rng.choice(["put", "accumulate", "get", "update", "collect"])
            old_X, old_p = model.X.copy(), model.p.copy()
            for i in range(n):  # every rank draws what all ranks do
                weights = some(rng, model.into[i] if kind in ("get", "update") else model.out[i])
                own, reset, whole = (
                    float(rng.normal()),
                    bool(rng.random() < 0.5),
                    rng.random() < 0.5,
                )
                x = model.X[i].copy() if whole else rng.normal(size=(3, 2))
                if kind in ("put", "accumulate"):
                    if i == me:
                        getattr(win, kind)(win.value if whole else x, own, weights)
                    model.send(i, x, own, weights, kind == "accumulate")
                elif kind == "get":
                    if i == me:
                        win.get(weights)
                    model.get(i, weights, old_X, old_p)
                elif kind == "update":
                    if i == me:
                        win.update(own, weights, reset)
                    model.update(i, own, weights, reset)
                else:
                    if i == me:
                        win.collect()
                    model.update(i, 1.0, dict.fromkeys(model.into[i], 1.0), True)
            net.barrier()
            np.testing.assert_allclose(win.value, model.X[me], rtol=1e-12, atol=1e-12)
            assert win.p == pytest.approx(model.p[me], rel=1e-12, abs=1e-12)
            assert win.versions == {j: model.V[me, j] for j in model.into[me]}
            net.barrier()


def test_a_slot_shows_what_has_come_and_changes_nothing(comm):
    with (
        mpidec.Network(comm=comm) as net,
        net.window(np.full(3, float(net.rank)), mpidec.topology.ring(net.n)) as win,
    ):
        win.put(win.value)
        net.barrier()
        for rank in win.in_neighbors:
            assert win.slot(rank).tolist() == [rank] * 3 and win.versions[rank] == 1
        assert win.value.tolist() == [net.rank] * 3
        with pytest.raises(ValueError, match="expected one of the in-neighbours"):
            win.slot(net.rank)
        net.barrier()


def test_the_defaults(net):
    n, me = net.n, net.rank
    ring = T.ring(n)
    near = ring.in_neighbors(me).tolist()
    with net.window([float(me)], ring) as win:
        win.put(np.array([10.0 * me]))
        net.barrier()
        share = 1 / (len(near) + 1)
        assert win.update().tolist() == pytest.approx(
            [share * (me + sum(10 * j for j in near))]
        ) and win.p == pytest.approx(1)
        net.barrier()
        win.value = [5.0 + me]
        net.barrier()
        win.get()
        assert win.versions == dict.fromkeys(near, 1)
        net.barrier()
        assert win.collect().tolist() == pytest.approx([5 + me + sum(5 + j for j in near)])
        assert win.versions == dict.fromkeys(near, 0)


@OVER_ALL
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mass_is_kept_at_the_ranks_own_pace(net, dtype):
    rng, n = np.random.default_rng(net.rank), net.n
    graph = T.exponential(n)
    out = graph.out_neighbors(net.rank).tolist()
    share = 1 / (len(out) + 1)
    x0 = np.arange(40, dtype=dtype) + net.rank
    with net.window(x0, graph) as win:
        for k in range(600):
            if rng.random() < 0.01:
                time.sleep(0.002 * rng.random() * (1 + 4 * (net.rank == 0)))
            win.accumulate(win.value, self_weight=share, dst_weights=dict.fromkeys(out, share))
            if k % 3 == 0:
                win.collect()
        net.barrier()
        win.collect()
        total, weight = net.comm.allreduce(win.value.astype(float)), net.comm.allreduce(win.p)
        scale = 1e-12 if dtype is np.float64 else 1e-5
        assert (
            abs(weight - n) <= 1e-12 * n
            and np.abs(total - n * (np.arange(40) + (n - 1) / 2)).max() <= scale * 50 * n
        )
        net.barrier()
        for _ in range(40):
            win.accumulate(win.value, share, dict.fromkeys(out, share))
            net.barrier()
            win.collect()
            net.barrier()
        assert np.abs(win.value / win.p - np.arange(40) - (n - 1) / 2).max() <= (
            1e-10 if dtype is np.float64 else 1e-3
        )


def made(make, nin, nout, me=0, count=8):
    """A port of so many slots, and its records: the value, the slots, the outboxes."""
    value, scratch, *rest = (aligned(64 + 8 * count) for _ in range(2 + nin + nout))
    ins, outs = rest[:nin], rest[nin:]
    return make(me, count, False, 0.05, value, scratch, ins, outs, [None] * nin), value, ins, outs


def row(record):
    return record[64:].view(float)


def field(record, k):
    """lock, transfers, p, replaced, filled"""
    return record[:64].view(float if k == 2 else np.uint64)[k]


def test_the_value_becomes_the_rest():
    """48 shares of 1/49, rounded, and what is kept: value - sum of what was sent, to the last bit."""
    with (
        mpidec.Network(2, comm=MPI.COMM_SELF) as net,
        pytest.raises(ValueError, match="expected one on each"),
    ):
        net.window(np.ones(1))
    for make in {records.native.AgentRecords, records_in_python.AgentRecords}:
        port, value, _, outs = made(make, 0, 48)
        x = np.random.default_rng(1).random(8)
        port.set(x)
        port.p = p = 0.3
        port.send(None, [1 / 49] * 48, 1 / 49, True)
        sent, gone = np.zeros(8), 0.0
        for out in outs:
            sent += row(out)
            gone += field(out, 2)
        assert np.array_equal(row(value), x - sent) and port.p == p - gone
        assert not np.array_equal(row(value), x / 49)


@pytest.mark.skipif(
    not records.COMPILED, reason="without the compiled extension no other process locks records"
)
@pytest.mark.parametrize("own", [0.5, 0.25])
def test_a_transfer_that_fails_at_a_lock_keeps_the_mass(own):
    for whole in (True, False):
        port, value, _, outs = made(records.native.AgentRecords, 0, 3)
        x = np.random.default_rng(2).random(8)
        port.set(x)
        port.p = 1.0
        outs[1][:8].view(np.uint64)[0] = 8  # rank 7 has stopped there
        with pytest.raises(RuntimeError, match="locked by rank 7"):
            port.send(None if whole else x.copy(), [0.25, 0.125, 0.125], own, True)
        assert np.array_equal(row(outs[0]), 0.25 * x) and field(outs[0], 2) == 0.25
        if own == 0.5:  # shares that sum to one: the value has lost what was sent
            assert (
                np.array_equal(row(value) + row(outs[0]), x)
                and port.p == 0.75
                and not row(outs[2]).any()
            )
        else:
            assert np.array_equal(row(value), x) and port.p == 1
        assert field(value, 0) == field(outs[0], 0) == 0
        value[:8].view(np.uint64)[0] = 8  # the value is locked first: nothing leaves
        with pytest.raises(RuntimeError, match="locked by rank 7"):
            port.send(None, [None, None, 0.5], 0.5, True)
        assert field(outs[2], 1) == 0


@pytest.mark.skipif(
    not records.COMPILED, reason="without the compiled extension no other process locks records"
)
def test_an_update_takes_all_slots_or_none():
    port, value, ins, _ = made(records.native.AgentRecords, 3, 0)
    port.set(np.ones(8))
    port.p = 1.0
    for k in range(3):
        port.deliver(k, np.full(8, 2.0), 1.0, 0.5, 3, False)
    before = [one.copy() for one in (value, *ins)]
    ins[1][:8].view(np.uint64)[0] = 8
    for reset in (False, True):
        with pytest.raises(RuntimeError, match="locked by rank 7"):
            port.update(0.25, [0.25] * 3, reset)
        ins[1][:8] = 0
        for now, then in zip((value, *ins), before):
            assert np.array_equal(now, then)  # locks, too
        ins[1][:8].view(np.uint64)[0] = 8
    ins[1][:8] = 0
    port.update(0.25, [0.25] * 3, True)
    assert row(value).tolist() == [1.75] * 8 and port.p == 0.625 and port.versions() == [0, 0, 0]


@pytest.mark.skipif(
    not records.COMPILED, reason="without the compiled extension one process uses a record"
)
def test_a_lock_has_one_holder():
    """Two processes add to one slot until they have often done so at the same time, or half a second is over: nothing is lost."""
    memory = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
    slot, ready, over, sent = memory[:128], memory[1024:1026], memory[2048:2049], memory[3072:3088]
    child = os.fork()
    me, x, together, until = int(child == 0), np.ones(8), 0, time.monotonic() + 0.5
    port = records.native.AgentRecords(
        me, 8, False, 10.0, aligned(128), aligned(64), [], [slot], []
    )
    ready[me], sent = 1, sent.view(np.int64)
    while not ready.all():
        os.sched_yield()
    while not over[0]:
        others = sent[1 - me]
        for _ in range(100):
            port.send(x, [1.0], None, True)
        sent[me] += 100
        together += int(sent[1 - me] > others)
        over[0] |= together == 400 or time.monotonic() > until
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert row(slot).tolist() == [sent.sum()] * 8 and field(slot, 1) == sent.sum()


def aligned(size):
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


@pytest.mark.skipif(not records.COMPILED, reason="compares the compiled extension with NumPy")
@pytest.mark.parametrize("single", [False, True])
def test_records_without_a_compiler(single):
    rng, dtype = np.random.default_rng(0), np.float32 if single else np.float64
    blocks = [[aligned(64 + 64 if k != 1 else 64) for k in range(6)] for _ in range(2)]
    ports = [
        make(0, 8, single, 1.0, b[0], b[1], b[2:4], b[4:6], [b[4], None])
        for make, b in zip((records.native.AgentRecords, records_in_python.AgentRecords), blocks)
    ]
    for _ in range(300):
        kind = rng.choice(["send", "update", "get", "arrive", "leave", "set"])
        x = rng.normal(size=8).astype(dtype)
        weights = [float(w) if rng.random() < 0.8 else None for w in rng.normal(size=2)]
        own, add = [None, 0.0, 1.0, 0.3][rng.integers(4)], bool(rng.random() < 0.5)
        for port in ports:
            if kind == "send":
                port.send(x if add else None, weights, own, add)
            elif kind == "update":
                port.update(own or 0.5, weights, add)
            elif kind == "get":
                port.get(0, 0.7)
            elif kind == "arrive":
                port.deliver(1, x, 0.5, 0.25, 3, add)
            elif kind == "leave":
                port.pop_outbox(1, np.zeros(8, dtype))
            else:
                port.set(x)
        for ours, theirs in zip(*blocks):
            if ours is not blocks[0][1]:
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64, np.complex128])
def test_dtypes(net, dtype):
    n, me = net.n, net.rank
    unit = np.ones((), dtype) * (1j if np.dtype(dtype).kind == "c" else 1)
    x = ((np.arange(6).reshape(2, 3) + me) * unit).astype(dtype)
    with net.window(x, T.ring(n)) as win:
        win.accumulate(win.value, dst_weights={int(j): 0.5 for j in T.ring(n).out_neighbors(me)})
        net.barrier()
        y = win.collect()
        near = T.ring(n).in_neighbors(me)
        assert y.dtype == dtype and y.shape == x.shape
        np.testing.assert_allclose(y, x + sum(0.5 * (x + (j - me) * unit) for j in near), rtol=1e-3)
        net.barrier()
        if dtype != np.float16:
            win.value[:] = 7  # the array itself
        win.value = 7 * np.ones_like(x)
        net.barrier()
        win.get([int(j) for j in near[:1]])
        assert all(np.all(win.update(0.0, [int(j)]) == 7) for j in near[:1])
        net.barrier()


def test_torch_and_lists(net):
    torch = pytest.importorskip("torch")
    n, me = net.n, net.rank
    near = T.ring(n).in_neighbors(me).tolist()
    for dtype in (torch.float32, torch.bfloat16):
        with net.window(torch.full((3,), float(me), dtype=dtype), T.ring(n)) as win:
            win.put(win.value)
            net.barrier()
            assert win.value.dtype == dtype
            assert win.collect().tolist() == [float(me + sum(near))] * 3
            net.barrier()
    with net.window([torch.ones(2, 2), torch.full((3,), 2.0)], T.ring(n)) as win:
        win.put(win.value)
        net.barrier()
        a, b = win.collect()
        assert (
            a.tolist() == [[1.0 + len(near)] * 2] * 2 and b.tolist() == [2.0 * (1 + len(near))] * 3
        )
        net.barrier()  # all have collected
        win.put([np.zeros((2, 2)), np.zeros(3)])
        net.barrier()


@OVER_ALL
def test_started_transfers_and_several_windows(net):
    n, me = net.n, net.rank
    net.set_topology(T.ring(n))
    near = T.ring(n).in_neighbors(me).tolist()
    with net.window(np.full(5000, float(me))) as one, net.window(np.full(7, 2.0 * me)) as two:
        pending = [win.start_put(win.value) for win in (one, two)]
        for each in pending:
            each.wait()
        net.barrier()
        getting = two.start_get()
        getting.wait()
        assert getting.test()
        net.barrier()
        assert one.collect()[0] == me + sum(near) and two.collect()[0] == 2 * (me + sum(near))
        net.barrier()
        mutex = one.mutex([me])
    one.close()
    assert one.value[0] == me + sum(near) and one.p == 1 + len(near) and "closed" in repr(one)
    for call in (lambda: one.put(one.value), mutex.__enter__):
        with pytest.raises(RuntimeError, match="window is closed"):
            call()
    left = net.window(np.ones(3))  # freed with the network
    net.close()
    assert left.closed


WRONG = {
    "out-neighbours": lambda win: win.put(win.value, dst_weights={99: 1.0}),
    "in-neighbours": lambda win: win.get([99]),
    "nan": lambda win: win.accumulate(win.value, self_weight=float("nan")),
    "as in the window": lambda win: win.put(np.ones(5)),
    "together": lambda win: win.update(self_weight=0.5),
    "expected ranks": lambda win: win.mutex([99]),
    "mutex of rank 0.5, expected ranks": lambda win: win.mutex(0.5),
    "lock of rank 0.5, expected this rank": lambda win: win.locks.try_lock(
        win._context.rank + 0.5 - win._context.rank
    ),
    "lock of rank '0', expected this rank": lambda win: win.locks.try_lock("0"),
    "weight is '0.5', expected a number": lambda win: win.put(win.value, self_weight="0.5"),
    "rank '0', expected some of the out-neighbours": lambda win: win.put(
        win.value, dst_weights={"0": 0.5}
    ),
    "rank True, expected some of the in-neighbours": lambda win: win.get({True: 0.5}),
    "'01', expected a dict": lambda win: win.put(win.value, dst_weights="01"),
    "reset is 'no', expected True or False": lambda win: win.update(reset="no"),
    "timeout is 'x'": lambda win: win.mutex([0], timeout="x"),
    r"\(3,\) float64 as in": lambda win: win.put(np.ones(3) * 1j),
}


@pytest.mark.parametrize("words", WRONG)
def test_refusals(net, words):
    with net.window(np.ones(3), T.ring(net.n)) as win:
        with pytest.raises((ValueError, TypeError), match=words):
            WRONG[words](win)
        if win.in_neighbors:
            with pytest.raises(ValueError, match="twice"):
                win.get([win.in_neighbors[0]] * 2)
        win.put(win.value)  # and everything goes on
        net.barrier()
        assert win.collect()[0] == 1 + len(win.in_neighbors)
        net.barrier()


@pytest.mark.parametrize(
    "x, words",
    [
        (np.ones(3, int), "expected float16"),
        (np.ones(3, np.longdouble), "expected float16"),
        ([], "no arrays"),
        ([np.ones(2), np.ones(2, np.float32)], "expected one"),
        (np.ma.ones(3), "masked|expected float16"),
    ],
)
def test_arrays_that_no_window_takes(net, x, words):
    with pytest.raises((TypeError, ValueError), match=words):
        net.window(x, T.ring(net.n))


def test_ranks_that_differ(net):
    with pytest.raises(ValueError, match="no topology"):
        net.window(np.ones(3))
    with pytest.raises(ValueError, match="expected a static topology"):
        net.window(np.ones(3), T.ring(net.n + 1))
    if net.size > 1:
        with pytest.raises(ValueError, match=r"has \(3,\) float64, zero=True, transport="):
            net.window(np.ones(3 if net.rank else 2), T.ring(net.n))


@OVER_ALL
def test_mutex(net):
    with net.window(np.zeros(1), T.complete(net.n)) as win:
        with (
            win.mutex([net.rank]),
            pytest.raises(RuntimeError, match="not re-entrant"),
            win.mutex([net.rank]),
        ):
            pass

        class Broken(Exception):
            pass

        with pytest.raises(Broken), win.mutex():
            raise Broken
        net.barrier()
        with win.mutex(np.int64(net.rank), timeout=0):
            pass  # released where the body raised
        with net.window(np.zeros(1), T.complete(net.n)) as other, other.mutex([net.rank]):
            other.close()
        net.barrier()
        if net.n > 1:
            if net.rank == 0:
                with win.mutex([0]):
                    net.barrier()
                    net.barrier()
            else:
                net.barrier()
                if net.rank == 1:
                    with (
                        pytest.raises(
                            TimeoutError,
                            match=r"mutex of rank 0, (held by rank 0|which this rank shares no)",
                        ),
                        win.mutex([0], timeout=0.05),
                    ):
                        pass
                net.barrier()
        with win.mutex([0]):
            pass
        net.barrier()


@OVER_ALL
def test_a_lock_is_one_rank_s_until_its_owner_lets_go(net, comm):
    with net.window(np.zeros(2), T.complete(net.size)) as win:
        assert win.locks.owner is None
        net.barrier()
        if net.size == 1:
            assert win.locks.try_lock(0) and not win.locks.try_lock(0) and win.locks.owner == 0
            win.locks.unlock()
            assert win.locks.try_lock(0)
            return
        claimed = win.locks.try_lock(0)
        net.barrier()
        owners = comm.allgather(claimed)
        assert sum(owners) == 1
        if net.rank == 0:
            assert win.locks.owner == owners.index(True) and not win.locks.try_lock(0)
            win.locks.unlock(hand_over=True)
            assert win.locks.owner == 0
        net.barrier()
        assert not win.locks.try_lock(0)
        net.barrier()
        if net.rank == 0:
            win.locks.unlock()
            assert win.locks.owner is None and win.locks.try_lock(0) and not win.locks.try_lock(0)
        with pytest.raises(
            ValueError, match=r"lock of rank 99, expected this rank or one of its neighbours"
        ):
            win.locks.try_lock(99)


@OVER_ALL
def test_a_contended_mutex_has_one_holder(net):
    """Counted in the mutex itself: at no time are two ranks inside."""
    inside = net.window(np.zeros(net.n), T.complete(net.n))
    with inside as win:
        for _ in range(10):
            with win.mutex([0]):
                win.get()  # nobody else has marked its value
                assert not any(win.update(0.0, [j])[j] for j in win.in_neighbors)
                mark = np.zeros(net.n)
                mark[net.rank] = 1
                win.value = mark
                time.sleep(0.0002)
                win.value = np.zeros(net.n)
        net.barrier()


@pytest.mark.parametrize("native", [records_in_python, records.native])
def test_a_mutex_is_handed_on_in_the_order_of_the_ranks(native):
    try_, await_ = native.try_mutex, native.await_mutex
    leave, release, memory = native.leave_mutex, native.release_mutex, aligned(64 + 64)
    assert try_(memory, 2) == -1 and try_(memory, 1) == 2
    for rank in (0, 1, 4, 5):
        await_(memory, rank)
    assert leave(memory, 5) and not leave(memory, 5) and not release(memory, 1)
    holders = [2]
    while holders[-1] >= 0:
        assert release(memory, holders[-1])
        holders.append(int(memory.view(np.uint64)[0]) - 1)
        if len(holders) == 3:
            await_(memory, 2)
    assert holders == [2, 4, 0, 1, 2, -1]


def queue(memory, asked):
    """The mutex of rank 0, whose own memory it is; what it asks or answers goes to `asked`."""
    return Mutex(
        {0: memory},
        0,
        lambda rank, kind, number: asked.append((rank, kind, number)),
        contextlib.nullcontext(),
    )


@pytest.mark.parametrize("again", [False, True])
def test_a_request_that_is_withdrawn_while_the_mutex_is_handed_over(again):
    """Rank 1 of this node hands it to rank 2 of another one, which withdraws between the two steps of that, and may ask anew."""
    memory, asked = aligned(64 + 64), []
    mutex = queue(memory, asked)
    assert records.native.try_mutex(memory, 1) == -1
    mutex.receive(2, Message(1, Kind.LOCK, 2, 0, number=1))
    assert records.native.leave_mutex(memory, 2)  # the first step: rank 2 waits no longer
    mutex.receive(2, Message(1, Kind.CANCEL, 2, 0, number=1))
    if again:
        mutex.receive(2, Message(1, Kind.LOCK, 2, 0, number=2))
    memory.view(np.uint64)[0] = 2 + 1  # the second one: it has it
    mutex.serve()
    assert asked == [(2, Kind.GRANTED, 2)] * again
    if again:
        assert records.native.try_mutex(memory, 1) == 2
        mutex.receive(2, Message(1, Kind.CANCEL, 2, 0, number=2))  # which crosses the answer
    assert records.native.try_mutex(memory, 1) == -1


def test_a_rank_that_stops_while_it_hands_a_mutex_over(monkeypatch):
    monkeypatch.setenv("MPIDEC_TIMEOUT", "0.05")
    memory = aligned(64 + 64)
    records.native.try_mutex(memory, 1)
    with (
        pytest.raises(TimeoutError, match="held by rank 1"),
        queue(memory, []).held(
            [0], 0.0, lambda: records.native.leave_mutex(memory, 0), lambda: None
        ),
    ):  # the first step, never the second
        pass


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_straggler_delays_nobody(transport, comm):
    """Rank 0 makes no call of the window, nor has it a helper, until all others have made theirs."""
    with (
        mpidec.Network(**TRANSPORTS[transport]) as net,
        net.window(np.ones(1000), T.ring(net.n), progress=False) as win,
    ):
        net.barrier()
        for _ in range(10 if net.rank else 0):
            win.put(win.value)
            win.update()
        comm.Barrier()


KILLED = """
import os, signal, sys, time
import numpy as np, mpidec
transport, where, kind = sys.argv[1:]
net = mpidec.Network(windows=transport)
win = net.window(np.ones(100_000), mpidec.topology.ring(net.n))
net.barrier()
print("ready", flush=True)
for k in range(10**9):
    if net.rank == 1 and k == 20:
        if where == "mutex":  # which others wait for
            win.mutex([0]).__enter__()
            time.sleep(0.1)
        os.kill(os.getpid(), signal.Signals[kind])
    win.accumulate(win.value, 0.5, {j: 0.25 for j in win.out_neighbors})
    if where == "mutex":
        with win.mutex([0]):
            win.collect()
    else:
        win.flush()
        win.collect()
"""


@pytest.mark.serial
@pytest.mark.launch
@pytest.mark.parametrize(
    "transport, where, kind",
    [
        ("auto", "flush", "SIGKILL"),
        pytest.param("rma", "flush", "SIGKILL", marks=pytest.mark.slow),
        pytest.param("rma", "mutex", "SIGKILL", marks=pytest.mark.slow),
        pytest.param("rma", "mutex", "SIGINT", marks=pytest.mark.slow),
        pytest.param("rma", "flush", "SIGINT", marks=pytest.mark.slow),
    ],
)
def test_one_rank_killed_ends_the_job(mpirun, transport, where, kind):
    done = mpirun(3, ["-c", KILLED, transport, where, kind], timeout=60)
    assert done.returncode != 0 and "ready" in done.stdout


KEPT = """
import numpy as np, mpidec
with mpidec.Network(windows="rma") as net:
    for rows in 10, 10_000:
        with net.window(np.ones(rows), mpidec.topology.ring(net.n)) as win:
            row = win.update()
            net.barrier()
    left = net.window(np.ones(10), mpidec.topology.ring(net.n))  # never closed
    left.put(left.value)
print("sum", row.sum() + left.value.sum(), flush=True)
"""


@pytest.mark.serial
@pytest.mark.launch
def test_libraries_find_nothing_left_at_the_end(mpirun):
    done = mpirun(2, ["-c", KEPT], timeout=60)
    assert done.returncode == 0 and done.stdout.count("sum") == 2
    assert not re.search("WARN|ERROR|leak", done.stdout + done.stderr)


ODD = {
    "no entries": np.empty((3, 0)),
    "no axes": np.array(2.0),
    "a scalar": np.float64(2.0),
    "columns": np.arange(12.0).reshape(3, 4).T,
    "backwards": np.arange(6.0)[::-1],
    "every other": np.arange(10.0)[::2],
    "byte order": np.arange(4, dtype=">f8"),
    "read only": np.broadcast_to(1.0, (3, 2)),
    "a list of both": [np.empty(0), np.array(1.0)],
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_arrays(net, kind):
    x = ODD[kind]
    several = isinstance(x, list)
    with net.window(x, T.ring(net.n)) as win:
        win.accumulate([2 * one for one in x] if several else 2 * x)  # of another layout, perhaps
        win.accumulate(win.value)
        net.barrier()
        y = win.collect()
        for one, before in zip(y if several else [y], x if several else [x]):
            assert one.shape == np.shape(before)
            np.testing.assert_array_equal(one, (1 + 3 * len(win.in_neighbors)) * before)
        net.barrier()
        win.get()
        assert win.p == 1 + 2 * len(win.in_neighbors)
        net.barrier()


def test_an_exception_within_and_two_networks(net):
    class Broken(Exception):
        pass

    with contextlib.suppress(Broken), net.window(np.ones(4), T.ring(net.n)) as left:
        left.put(left.value)
        raise Broken
    assert left.closed == (net.n == 1)  # the others might be elsewhere
    if net.n == 1:
        return
    with (
        mpidec.Network(transport="p2p") as other,
        other.window(np.ones(4), T.ring(net.n)) as far,
        net.window(np.ones(4), T.ring(net.n)) as near,
    ):
        for win in (left, far, near):
            win.accumulate(win.value)
        other.barrier()
        net.barrier()
        degree = len(near.in_neighbors)
        assert [win.collect()[0] for win in (left, far, near)] == [
            1 + 2 * degree,
            1 + degree,
            1 + degree,
        ]
        net.barrier()
    left.close()
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(left)


def test_ends_in_different_orders(net):
    if net.n > 1:
        one, two = (net.window(np.ones(4), T.ring(net.n)) for _ in range(2))
        first = one if net.rank else two
        with pytest.raises(RuntimeError, match="expected the same order on all ranks"):
            first.close()
        one.close()
        two.close()


@OVER_ALL
def test_a_closed_window_keeps_neither_memory_nor_files(net):
    def maps():
        return len(os.listdir("/proc/self/fd")), sum(
            "mpidec-window" in line for line in open("/proc/self/maps")
        )

    gc.collect()
    before = maps()
    with (
        net.window(np.ones(10_000), T.complete(net.n)) as one,
        net.window(np.ones(3), T.complete(net.n)) as two,
    ):
        one.put(one.value)
        two.put(two.value)
        shared = net.transport == net.windows == "auto" and records.COMPILED and net.n > 1
        assert maps() == (before[0], before[1] + 2 * net.n * shared)
    assert maps() == before and one.value[-1] == 1  # at once, without the garbage collector
    assert not net.ended._blocks  # MPI's, too


def test_a_value_that_is_not_waited_for(net):
    with net.window(np.ones(4), T.ring(net.n)) as win:
        lost = win.transport == "messages"
        if lost:  # it never arrives
            hand = win._messenger._receivers[win._slots.number]
            win._messenger._receivers[win._slots.number] = lambda rank, message: (
                message.kind == Kind.VALUE or hand(rank, message)
            )
        net.barrier()
        under_way = win.start_get()
        net.barrier()
    if not lost:
        under_way.wait()
    else:
        with pytest.raises(
            RuntimeError, match="the window is closed, and the values that were asked for before"
        ):
            under_way.wait()


class Synchronous:
    """A communicator that notes which messages return when they are received."""

    def __init__(self, comm):
        self._comm, self.dests = comm, []

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Issend(self, data, rank):
        self.dests.append(rank)
        return self._comm.Issend(data, rank)


def test_messages_that_nobody_waits_for_do_not_come_to_the_next_network(comm):
    """The next communicator may have the same number within MPI: each receiver has taken the last message before the end."""
    watched, others, left = (
        Synchronous(comm.Dup()),
        [rank for rank in range(comm.size) if rank != comm.rank],
        [],
    )
    post = WindowMessenger(watched, ProgressEngine())
    for rank in others:
        post.send(rank, Message(0, Kind.OTHER, 0, 0))

    def meet():
        left.append((list(watched.dests), len(post._sending)))
        wait_until(comm.Ibarrier().Test, "all ranks")
        left.append(watched.Iprobe())

    post.close(meet)
    assert left[2:] == [(others, 0), False]


def test_a_messenger_that_is_closed_is_not_polled_while_another_one_goes_on(comm):
    """A network has one for windows and one for asynchronous methods, and closes one after the other."""
    engine = ProgressEngine()
    first, second = (WindowMessenger(comm.Dup(), engine) for _ in range(2))
    engine.poll()
    for post in (first, second):
        post.close(comm.Barrier)
        engine.poll()


class Sent:
    """A message that is complete after some tests."""

    def __init__(self, tests):
        self._tests = tests

    def Test(self):
        self._tests -= 1
        return self._tests < 0


def test_messages_are_handed_out_in_order_also_before_their_window_is_made():
    post, got = WindowMessenger(MPI.COMM_SELF.Dup(), ProgressEngine()), []
    for tests, number in ((1, 1), (0, 2), (0, 3)):
        data = np.frombuffer(_HEADER.pack(1, Kind.OTHER, 0, 0, 0, 0, number, 0.0), np.uint8)
        post._receiving.append(
            (Sent(tests), number // 3, data)
        )  # two of rank 0, the first one large, and one of rank 1
    post.poll()
    assert post.register(lambda rank, message: got.append((rank, message.number))) == 1
    post.poll()
    assert sorted(got[:2]) == [(0, 1), (1, 3)] and got[2:] == [(0, 2)] and not post._early
    post.close(lambda: None)


def test_a_rank_without_files_for_memory(net):
    """It cannot open the memory of others, which can open its own: they write to it, and it sends messages."""
    with spare_files(1 if net.rank % 2 else 3):
        win = net.window(np.full(50, 1.0 + net.rank), T.complete(net.n))
    with win:
        win.put(win.value, dst_weights=dict.fromkeys(win.out_neighbors, 0.0))
        all_came = lambda: all(count == 1 for count in win.versions.values())
        assert launch.until(all_came, 20), win.versions  # seen without any wait
        net.barrier()
        for _ in range(50):
            win.accumulate(win.value, 1 / net.n, dict.fromkeys(win.out_neighbors, 1 / net.n))
            with win.mutex([0]):
                win.collect()
        net.barrier()
        win.collect()
        assert net.allreduce(win.value, average=False) == pytest.approx(
            [net.n * (net.n + 1) / 2] * 50
        )
        win.get()
        net.barrier()


@contextlib.contextmanager
def spare_files(count):
    """At most so many files more than are open now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(name) for name in os.listdir("/proc/self/fd"))
    plugs = [
        os.open(os.devnull, os.O_RDONLY) for _ in range(top - len(os.listdir("/proc/self/fd")) + 3)
    ]
    top = max(int(name) for name in os.listdir("/proc/self/fd")[:-1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(top + 1 + count, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for plug in plugs:
            os.close(plug)


def test_no_memory_on_one_rank(net):
    if net.n > 1:
        before = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        x = np.broadcast_to(0.0, 40_000_000)
        if net.rank == 1:
            resource.setrlimit(resource.RLIMIT_AS, (used + 600 * 2**20, before[1]))
        try:
            with pytest.raises(MemoryError, match="rank 1"):
                net.window(x, T.ring(net.n))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    with net.window(np.ones(2), T.ring(net.n)) as win:
        win.put(win.value)


@OVER_ALL
def test_a_forked_child_has_a_copy_and_is_refused(net):
    with net.window(np.ones(2), T.complete(net.n)) as win:
        net.barrier()
        child = os.fork()
        if not child:
            try:
                win.value[:] += 6
                win._slots.values[:] *= 2
                for block in win._slots._blocks.values():
                    block[-64:] = 255  # of other ranks, too
                win.put(win.value)
            except RuntimeError as error:
                os._exit(
                    7 if "forked child" in str(error) and win.value.tolist() == [14, 14] else 1
                )
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        net.barrier()
        win.get()
        assert win.value.tolist() == [1, 1] and all(
            win.slot(j).tolist() == [1, 1] for j in win.in_neighbors
        )
        assert not any(np.any(block[-64:] == 255) for block in win._slots._blocks.values())
        net.barrier()
        win.put(win.value)


class Watched:
    """A port, which another thread looks at before and after each call."""

    def __init__(self, port, look):
        self._port, self._look = port, look

    def __getattr__(self, name):
        def call(*args):
            self._look(name, False)
            done = getattr(self._port, name)(*args)
            self._look(name, True)
            return done

        return call


def test_a_row_is_waiting_or_under_way_at_every_moment(comm):
    """A helper ships rows at any moment of the main thread, which looks at any moment of the helper."""
    with (
        mpidec.Network(transport="p2p", windows="messages") as net,
        net.window(np.ones(4), T.ring(net.n), progress=False) as win,
    ):
        slots, seen = win._slots, []
        (port,) = slots.agents
        if net.n > 1:
            k = dict.fromkeys(win.out_neighbors, 1.0)
            slots.agents[0] = Watched(
                port,
                lambda name, done: (
                    name == "pop_outbox"
                    and seen.append(
                        (slots.empty, [slots.unread(0, k) for k in range(len(slots.receivers[0]))])
                    )
                ),
            )
            win.accumulate(win.value, dst_weights=k)
            assert seen and not any(empty or 0 in waiting for empty, waiting in seen)
            win.flush()
            assert not any(way.under_way for way in slots._edges.values())  # they have arrived
            slots.agents[0] = port
            port.send(None, [1.0, *[None] * (len(k) - 1)], None, True)
            slots.agents[0] = Watched(
                port, lambda name, done: name == "unread" and not done and shipped(slots, port)
            )
            assert not slots.empty
            slots.agents[0] = port
        net.barrier()


def shipped(slots, port):
    now, slots.agents[0] = slots.agents[0], port
    slots.send_outboxes()
    slots.agents[0] = now


def test_rows_that_wait_for_one_under_way_are_joined(comm):
    with (
        mpidec.Network(transport="p2p") as net,
        net.window(np.ones(2), T.ring(net.n), progress=False) as win,
    ):
        weights, send = [1.0] * len(win.out_neighbors), win._records.send
        win.accumulate(np.full(2, 100.0))  # leaves at once
        send(
            np.full(2, 10.0), weights, None, False
        )  # the outbox: a put and three more, before anybody looks
        for _ in range(3):
            send(np.ones(2), weights, None, True)
        net.barrier()
        assert win.versions == dict.fromkeys(win.in_neighbors, 5)
        assert all(win.slot(j).tolist() == [13, 13] for j in win.in_neighbors)
        net.barrier()


def test_after_an_interrupt_calls_are_refused():
    with mpidec.Network(comm=MPI.COMM_SELF) as net:
        win = net.window(np.ones(2), T.ring(1))
        mutex = win.mutex([0])
        with pytest.raises(KeyboardInterrupt), net.engine:
            raise KeyboardInterrupt
        for call in (
            lambda: win.put(win.value),
            win.update,
            win.flush,
            lambda: win.unread,
            lambda: mutex.__enter__(),
        ):
            with pytest.raises(
                RuntimeError,
                match=r"out of step \(KeyboardInterrupt\): close it and make a new one",
            ):
                call()


@pytest.mark.parametrize("kind", ["f2", "bfloat16", "list"])
def test_the_value_is_one_array_also_where_it_lies_beside_the_window(net, kind):
    if kind == "bfloat16":
        torch = pytest.importorskip("torch")
    x = np.ones(2, "f2") if kind != "bfloat16" else torch.ones(2, dtype=torch.bfloat16)
    with net.window([x, x] if kind == "list" else x, T.ring(net.n)) as win:
        (value,) = {
            id(one): one for one in (win.value[1] if kind == "list" else win.value,)
        }.values()
        win.put(win.value, self_weight=0.5)
        win.collect()
        value[:] = 9
        win.put(
            [x, x] if kind == "list" else x, self_weight=2.0
        )  # another array: the value is taken over nevertheless
        win.value = win.value
        assert (win.value[1] if kind == "list" else win.value) is value and value.tolist() == [
            18,
            18,
        ]
        net.barrier()
        value[:] = 5
        net.barrier()
        if net.rank == 0:  # its neighbours make no call: it reads their arrays
            win.get()
            slots = [win.slot(j) for j in win.in_neighbors]
            assert all((x[1] if kind == "list" else x).tolist() == [5, 5] for x in slots)
        net.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_interrupted_flush(transport):
    """Ctrl-C on one rank, of which the others know nothing: all leave the network, and windows of the next one work."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for k in range(2):
            with (
                contextlib.suppress(KeyboardInterrupt, KeyError),
                mpidec.Network(**TRANSPORTS[transport]) as net,
            ):
                win = net.window(np.ones(10_000), T.complete(net.n))
                if net.rank == k % net.size:
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                    while True:
                        win.accumulate(win.value)
                        win.flush()
                raise KeyError
            assert win.value.tolist() == [1.0] * 10_000
            with (
                mpidec.Network(**TRANSPORTS[transport]) as net,
                net.window(np.ones(3), T.complete(net.n)) as other,
            ):
                other.put(other.value)
                net.barrier()
                assert other.collect()[0] == net.n
                net.barrier()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_helper_answers_while_its_rank_is_in_a_call_of_mpi(transport, comm):
    """By default; the others complete all calls that need an answer, while rank 0 stands in the program's own barrier."""
    with mpidec.Network(**TRANSPORTS[transport]) as net:
        with (
            net.window(np.ones(1000), T.complete(net.n)) as win,
            net.window(np.ones(1), T.complete(net.n)) as other,
        ):
            net.barrier()
            if net.rank:
                win.get([0])
                with win.mutex([0]), other.mutex([0]):
                    win.update(0.0, [0])
                other.locks.try_lock(0)
                win.put(win.value)
                win.flush()
            comm.Barrier()
            assert win.value[0] == 1
            helper = None if win._messenger is None else win._messenger.helper
            threads = [thread.name for thread in threading.enumerate()].count("mpidec-window")
            assert threads == (not win._slots.unaided and MPI.Query_thread() == MPI.THREAD_MULTIPLE)
            net.barrier()
            other.close()
            assert helper is None or (helper._thread is not None) == threads
        assert helper is None or helper._thread is None
        with net.window(np.ones(1), T.ring(net.n), progress=False):
            assert helper is None or helper._thread is None


def test_an_error_in_the_helper_is_told():
    """Its thread ends, and the next call of a window says so, instead of waiting for it."""
    post = WindowMessenger(MPI.COMM_SELF.Dup(), ProgressEngine())
    reports, before = [], threading.excepthook
    threading.excepthook = reports.append

    def poll():
        post.handling.begin()
        post.taking.begin()
        raise RuntimeError("a slot is locked")

    try:
        post.helper.add(poll)
        post.helper._thread.join()
    finally:
        threading.excepthook = before
    assert post.broken and len(reports) == 1
    assert not post.handling.begin() and not post.taking.begin(wait=True)
    post.helper.remove(poll)
    post.comm.Free()


@OVER_ALL
def test_started_calls_that_are_waited_for_in_any_order(net):
    """Several are under way on each edge, and take effect in the order in which they were begun."""
    rng, own = np.random.default_rng(net.n), np.random.default_rng(net.rank)
    n, me, graph = net.n, net.rank, T.exponential(net.n)
    X = rng.normal(size=(n, 2000))
    model = Model(X, graph, zero=True)
    with net.window(X[me], graph) as win:
        for kind in ["put", "accumulate", "get"] * 2:
            pending = []
            for i in range(n):
                for _ in range(4):
                    weights = some(rng, model.into[i] if kind == "get" else model.out[i])
                    x = rng.normal(size=2000)
                    if kind == "get":
                        model.get(i, weights, model.X, model.p)
                    else:
                        model.send(i, x, None, weights, kind == "accumulate")
                    if i == me:
                        call = getattr(win, f"start_{kind}")
                        pending.append(call(weights) if kind == "get" else call(x, None, weights))
                        x[:] = np.nan  # at once
            own.shuffle(pending)
            for each in pending:
                each.test()
            for each in pending:
                each.wait()
            net.barrier()
            for j in model.into[me]:
                np.testing.assert_allclose(win.slot(j), model.S[me, j], rtol=1e-12, atol=1e-12)
            assert win.versions == {j: model.V[me, j] for j in model.into[me]}
            net.barrier()


class Held:
    """The lock of a section that another thread has whenever this one tries to take it, and that it lets go, possibly because of
    an exception, when this one waits."""

    def __init__(self, section, fails=False):
        self._section, self._lock, self._fails = section, section.lock, fails
        self.release = self._lock.release

    def acquire(self, blocking=True):
        self._section._begun |= blocking and self._fails
        return (blocking or self._section._begun) and self._lock.acquire()


@contextlib.contextmanager
def held_by_a_thread(lock):
    """As the helper's, while a rank that has to help it does not answer."""
    begun, end = threading.Event(), threading.Event()

    def hold():
        with lock:
            begun.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


READS = {
    "collect": lambda win: win.collect() - 2.0 * len(win.in_neighbors),
    "update": lambda win: (
        win.update(1.0, dict.fromkeys(win.in_neighbors, 0.5)) - len(win.in_neighbors)
    ),
    "slot": lambda win: sum(win.slot(rank) - 2 for rank in win.in_neighbors),
    "versions": lambda win: [count - 1 for count in win.versions.values()],
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("sent", ["barrier", "flush"])
def test_all_that_was_sent_is_read_while_a_helper_is_at_work(comm, sent, read, monkeypatch):
    with (
        mpidec.Network(comm=comm, windows="rma") as net,
        net.window(np.zeros(3), T.exponential(net.n), progress=False) as win,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(win._slots.carrier, "take", lambda: None)  # rows stay in the mailboxes
            win.accumulate(np.full(3, 2.0))
            net.barrier() if sent == "barrier" else (win.flush(), comm.Barrier())
        post = win._messenger
        with held_by_a_thread(post.handling.lock), monkeypatch.context() as patch:
            patch.setattr(post.taking, "lock", Held(post.taking))
            assert not np.any(READS[read](win))
            patch.setattr(post.taking, "lock", Held(post.taking, fails=True))
            with pytest.raises(RuntimeError, match="rows may be lost"):
                READS[read](win)
        post.taking._begun = False
        comm.Barrier()


def test_one_flush_for_all_neighbours(comm, monkeypatch):
    """On a node; MPICH gives the core to another process in each."""
    flushed = []
    with mpidec.Network(windows="rma") as net, net.window(np.ones(3), T.complete(net.n)) as win:
        if net.n > 1:
            memory = win._slots.carrier.memory
            flush_all = memory.flush_all
            monkeypatch.setattr(memory, "flush_all", lambda: flushed.append(flush_all()))
            win.put(win.value)
            assert len(flushed) == 1 and win._slots.empty
            del memory, flush_all
            monkeypatch.undo()
        net.barrier()
        assert win.collect()[0] == (net.n if net.n > 1 else 1)
        net.barrier()


@pytest.mark.mpi(min_size=2)
def test_a_row_is_published_after_a_flush_also_when_one_flush_has_failed(comm, monkeypatch):
    calls = []
    with mpidec.Network(windows="rma") as net, net.window(np.ones(3), T.complete(net.n)) as win:
        memory = win._slots.carrier.memory
        flush, swap = memory.flush_all, memory.swap

        def failing():
            calls.append("flush")
            if len(calls) == 1:
                raise MemoryError
            flush()

        def publish(new, old, rank, at):
            calls.extend(["publish"] * (rank != net.rank))  # else it takes what has come
            return swap(new, old, rank, at)

        with monkeypatch.context() as patch:
            patch.setattr(memory, "flush_all", failing)
            patch.setattr(memory, "swap", publish)
            with pytest.raises(MemoryError):
                win.put(np.full(3, 2.0))
            win._messenger.handling.end()
            win.flush()
        assert calls == ["flush", "flush", *["publish"] * (net.n - 1)]
        net.barrier()
        assert [win.slot(rank).tolist() for rank in win.in_neighbors] == [[2.0] * 3] * (net.n - 1)
        net.barrier()


def test_readings_of_one_value_stay_in_their_order(comm, monkeypatch):
    """The first one takes the most tries."""
    order, begun = [], []

    def read(self, source, deliver):
        number = len(begun)
        begun.append(source)
        yield from [one_sided.Turn.NEXT] * (0 if number else 9)
        order.append(number)
        deliver(np.full(1, float(number)), 1.0)

    monkeypatch.setattr(one_sided.OneSided, "_read", read)
    with mpidec.Network(windows="rma") as net, net.window(np.zeros(1), T.ring(net.n)) as win:
        for each in [win.start_get(win.in_neighbors[:1]) for _ in range(4)]:
            each.wait()
        assert order == list(range(4 if net.n > 1 else 0))
        assert not order or win.slot(win.in_neighbors[0]).tolist() == [3.0]


def test_arrays_outlive_the_memory_of_one_sided_calls(comm):
    """Rank 0 keeps an array that lies in it: it stays until that one is gone, on all ranks."""
    with mpidec.Network(windows="rma") as net:
        with net.window(np.full(3000, 1.0 + net.rank), T.ring(net.n)) as win:
            kept = win.value if net.rank == 0 else None
        assert len(net.ended._blocks) == (net.n > 1)
        assert kept is None or kept.tolist() == [1.0] * 3000
        del kept
        with net.window(np.ones(3), T.ring(net.n)) as win:
            pass
        assert not net.ended._blocks
        with net.window(np.full(3, 1.0 + net.rank), T.ring(net.n)) as win:
            kept = win.value
    assert kept.tolist() == [1.0 + net.rank] * 3  # of a network that is closed


def test_transports_that_are_not_possible(comm):
    with pytest.raises(ValueError, match="windows is 'tcp', expected one of auto, shared"):
        mpidec.Network(windows="tcp")
    with mpidec.Network(transport="p2p", windows="shared") as net:
        with pytest.raises(ValueError, match="transport is 'rdma', expected one of auto, shared"):
            net.window(np.ones(2), T.ring(net.n), transport="rdma")
        if net.n > 1:
            with pytest.raises(ValueError, match="not all ranks map the memory of each other"):
                net.window(np.ones(2), T.ring(net.n))
        for transport in ("messages", "rma"):
            with net.window(np.ones(2), T.ring(net.n), transport=transport) as win:
                assert win.transport == (transport if net.n > 1 else "shared")
                win.put(win.value)
                net.barrier()
                assert win.collect()[0] == 1 + len(win.in_neighbors)


@pytest.mark.serial
@pytest.mark.parametrize(
    "library, why", [("Open MPI v4.1.4", "crashes in MPI_Compare_and_swap"), ("Open MPI v5.0", "")]
)
def test_libraries_whose_one_sided_calls_are_refused(monkeypatch, library, why):
    monkeypatch.setattr(memory.MPI, "Get_library_version", lambda: library)
    assert why in memory.refusal() and bool(memory.refusal()) == bool(why)


@pytest.mark.serial
@pytest.mark.parametrize(
    "devices, told, found",
    [
        ({}, {}, False),
        ({"infiniband/mlx5_0": "mlx5_core"}, {}, True),
        ({"infiniband/mlx5_0": "mlx5_core"}, {"FI_PROVIDER": "tcp"}, False),
        ({"infiniband/mlx5_0": "mlx5_core"}, {"UCX_TLS": "rc,sm,self"}, True),
        ({"infiniband/mlx5_0": "mlx5_core"}, {"OMPI_MCA_osc": "^ucx"}, True),
        ({"infiniband/rdmap0": "efa"}, {}, False),
        ({"infiniband/rxe0": ""}, {}, False),
        ({"cxi/cxi0": ""}, {}, True),
    ],
)
def test_adapters_that_perform_one_sided_calls(tmp_path, monkeypatch, devices, told, found):
    for name, driver in devices.items():
        port = tmp_path / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        if driver:
            (tmp_path / "drivers" / driver).mkdir(parents=True)
            (tmp_path / name / "device").mkdir()
            (tmp_path / name / "device/driver").symlink_to(tmp_path / "drivers" / driver)
    monkeypatch.setattr(offload, "SYSTEM", tmp_path)
    for name in ("FI_PROVIDER", "UCX_TLS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert offload.network.__wrapped__().offloaded == found
    assert MPI.Query_thread() == offload.MPI.Query_thread()


@pytest.mark.parametrize("per_node", ["1", "2", "99"])
@pytest.mark.parametrize("lacking", [None, 0])
@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_what_auto_takes(comm, monkeypatch, per_node, lacking, transport):
    """One-sided calls, if there are several nodes and the adapters of all of them perform such calls; sums hold."""
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", per_node)
    found = offload.Network(comm.rank != lacking, "pretended")
    monkeypatch.setattr(offload, "network", lambda: found)
    with (
        mpidec.Network(transport=transport) as net,
        net.window(np.full(3, float(net.rank)), T.exponential(net.n)) as win,
    ):
        nodes = -(-net.n // int(per_node))
        if net.n > 1 and nodes > 1 and lacking is None:
            assert win.transport == "rma" and not win.node_neighbors
        elif net.n == 1 or (transport == "auto" and nodes == 1):
            assert win.transport == "shared"
        else:
            assert win.transport == "messages"
        share = 1 / (len(win.out_neighbors) + 1)
        for _ in range(20):
            win.accumulate(win.value, share, dict.fromkeys(win.out_neighbors, share))
            win.collect()
        net.barrier()
        win.collect()
        both = net.comm.allreduce(np.append(win.value, win.p))
        np.testing.assert_allclose(both, [net.n * (net.n - 1) / 2] * 3 + [net.n], rtol=1e-13)


@pytest.mark.parametrize("withdraws", [False, True])
def test_a_queue_of_ranks_for_a_mutex(comm, shared_tmp, withdraws):
    """A rank that has given up is passed over, or waits at its old place again; nobody is forgotten, and no two are inside."""
    if comm.rank == 0:
        np.zeros(1, np.int64).tofile(shared_tmp / "count")
    comm.Barrier()
    count, entered = np.memmap(shared_tmp / "count", np.int64, "r+"), 0
    with mpidec.Network(windows="rma") as net, net.window(np.zeros(1), T.complete(net.n)) as win:
        rng = np.random.default_rng(net.rank)
        for _ in range(40):
            limit = float(rng.choice([0.0, 0.0005])) if withdraws and rng.random() < 0.5 else None
            with contextlib.suppress(TimeoutError), win.mutex([0], timeout=limit):
                before = int(count[0])
                time.sleep(1e-4 * rng.random())
                count[0] = before + 1
                entered += 1
        net.barrier()
        assert net.comm.allreduce(entered) == count[0]
        assert withdraws or entered == 40


@pytest.mark.serial
def test_a_value_that_others_read_changes_under_its_guard_only():
    """A reader repeats where the counter is odd or has changed: each change begins and ends with one."""
    words, seen = np.zeros(8, np.int64), {}

    class Noted:
        """Records of which each call says whether the counter was odd."""

        def __getattr__(self, name):
            return lambda *_: seen.update({name: bool(words[one_sided.COUNTER] % 2)})

        def __setattr__(self, name, value):
            seen[name] = bool(words[one_sided.COUNTER] % 2)

    guarded = one_sided.GuardedRecords(Noted(), words, lambda: None)
    x, none = np.ones(3), {}
    changes = {
        "send": lambda: guarded.send(x, none, 0.5, False),
        "update": lambda: guarded.update(0.5, none, False),
        "set": lambda: guarded.set(x),
        "shown": lambda: guarded.shown(),
        "p": lambda: setattr(guarded, "p", 2.0),
    }
    for k, change in enumerate(changes.values()):
        change()
        assert words[one_sided.COUNTER] == 2 * (k + 1)
    assert seen == dict.fromkeys(changes, True)
    guarded.send(x, none, None, False)  # to others only
    assert not seen["send"]


@pytest.mark.mpi(min_size=2)
def test_the_next_network_frees_the_memory_of_values_that_outlived_theirs():
    if memory.refusal():
        pytest.skip(memory.refusal())
    with mpidec.Network() as net:
        window = net.window(np.ones(3), T.ring(net.n), transport="rma")
        value = window.value
    kept = len(memory._KEPT)
    with mpidec.Network():
        assert len(memory._KEPT) == kept > 0 and value.tolist() == [1.0, 1.0, 1.0]
    del window, value
    gc.collect()
    with mpidec.Network():
        assert len(memory._KEPT) < kept
