"""One-sided windows: random programs against a model of all ranks, conservation at the ranks' own pace, mutexes, refusals."""

import contextlib
import gc
import os
import pickle
import resource
import signal
import time

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.rma import records

TRANSPORTS = ["auto", "p2p"]
GRAPHS = {"ring": T.ring, "exponential": T.exponential, "star": T.star, "directed": lambda n: T.from_weights(
    0.5 * np.eye(n) + 0.5 * np.roll(np.eye(n), 1, axis=0))}


@pytest.fixture(params=TRANSPORTS)
def net(request):
    with mpidec.Network(transport=request.param) as net:
        yield net


class Model:
    """The windows of all ranks as dense arrays: X[i], p[i], slots S[i, j] of receiver i and sender j, with their p and versions."""

    def __init__(self, X, graph, zero):
        n = len(X)
        self.X, self.p = X.astype(float), np.ones(n)
        self.S, self.P, self.V = np.zeros((n, n, *X.shape[1:])), np.zeros((n, n)), np.zeros((n, n), int)
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
        self.X[i] = own * self.X[i] + sum((w * self.S[i, j] for j, w in weights.items()), np.zeros_like(self.X[i]))
        self.p[i] = own * self.p[i] + sum(w * self.P[i, j] for j, w in weights.items())
        self.V[i] = 0
        for j in weights if reset else ():
            self.S[i, j], self.P[i, j] = 0, 0


def some(rng, ranks):
    """Weights of some of the ranks."""
    return {j: float(rng.normal()) for j in ranks if rng.random() < 0.7}


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
            for i in range(n):                      # every rank draws what all ranks do
                weights = some(rng, model.into[i] if kind in ("get", "update") else model.out[i])
                own, reset, whole = float(rng.normal()), bool(rng.random() < 0.5), rng.random() < 0.5
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
    with mpidec.Network(comm=comm) as net, net.window(np.full(3, float(net.rank)), mpidec.topology.ring(net.n)) as win:
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
        assert win.update().tolist() == pytest.approx([share * (me + sum(10 * j for j in near))]) and win.p == pytest.approx(1)
        net.barrier()
        win.value = [5.0 + me]
        net.barrier()
        win.get()
        assert win.versions == dict.fromkeys(near, 1)
        net.barrier()
        assert win.collect().tolist() == pytest.approx([5 + me + sum(5 + j for j in near)])
        assert win.versions == dict.fromkeys(near, 0)


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
        assert abs(weight - n) <= 1e-12 * n and np.abs(total - n * (np.arange(40) + (n - 1) / 2)).max() <= scale * 50 * n
        net.barrier()
        for _ in range(40):
            win.accumulate(win.value, share, dict.fromkeys(out, share))
            net.barrier()
            win.collect()
            net.barrier()
        assert np.abs(win.value / win.p - np.arange(40) - (n - 1) / 2).max() <= (1e-10 if dtype is np.float64 else 1e-3)


def test_the_value_becomes_the_rest():
    """1/3 three times is less than 1, and what is sent and kept sums to the value nevertheless."""
    with mpidec.Network(2, comm=MPI.COMM_SELF) as net, pytest.raises(ValueError, match="expected one on each"):
        net.window(np.ones(1))
    for make in {records.Port, records._Port}:
        blocks = [aligned(128 if k != 1 else 64) for k in range(4)]
        port = make(0, 8, False, 1.0, blocks[0], blocks[1], [], blocks[2:], [])
        x = np.random.default_rng(1).random(8)
        port.set(x)
        port.p = 1.0
        for _ in range(1000):
            port.send(None, [1 / 3, 1 / 3], 1 / 3, True)
            row = np.zeros(8)
            for k in range(2):                      # back to the value
                part = np.zeros(8)
                p, _, _ = port.leave(k, part)
                row += part
                port.p += p
            now = np.zeros(8)
            port.read(-1, now)
            port.set(now + row)
        port.read(-1, now)
        assert abs(port.p - 1) < 2e-14 and np.abs(now - x).max() < 2e-14


def aligned(size):
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start:start + size]


@pytest.mark.skipif(not records.COMPILED, reason="compares the compiled extension with NumPy")
@pytest.mark.parametrize("single", [False, True])
def test_records_without_a_compiler(single):
    rng, dtype = np.random.default_rng(0), np.float32 if single else np.float64
    blocks = [[aligned(64 + 64 if k != 1 else 64) for k in range(6)] for _ in range(2)]
    ports = [make(0, 8, single, 1.0, b[0], b[1], b[2:4], b[4:6], [b[4], None])
             for make, b in zip((records.Port, records._Port), blocks)]
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
                port.arrive(1, x, 0.5, 0.25, 3, add)
            elif kind == "leave":
                port.leave(1, np.zeros(8, dtype))
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
            win.value[:] = 7                        # the array itself
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
        assert a.tolist() == [[1.0 + len(near)] * 2] * 2 and b.tolist() == [2.0 * (1 + len(near))] * 3
        net.barrier()                               # all have collected
        win.put([np.zeros((2, 2)), np.zeros(3)])
        net.barrier()


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
    one.close()
    assert one.value[0] == me + sum(near) and one.p == 1 + len(near) and "closed" in repr(one)
    with pytest.raises(RuntimeError, match="window is closed"):
        one.put(one.value)
    left = net.window(np.ones(3))                   # freed with the network
    net.close()
    assert left.closed


WRONG = {
    "out-neighbours": lambda win: win.put(win.value, dst_weights={99: 1.0}),
    "in-neighbours": lambda win: win.get([99]),
    "nan": lambda win: win.accumulate(win.value, self_weight=float("nan")),
    "as in the window": lambda win: win.put(np.ones(5)),
    "together": lambda win: win.update(self_weight=0.5),
    "expected ranks": lambda win: win.mutex([99]),
    "weight is '0.5', expected a number": lambda win: win.put(win.value, self_weight="0.5"),
    "rank '0', expected some of the out-neighbours": lambda win: win.put(win.value, dst_weights={"0": 0.5}),
    "rank True, expected some of the in-neighbours": lambda win: win.get({True: 0.5}),
    "'01', expected a dict": lambda win: win.put(win.value, dst_weights="01"),
    "reset is 'no', expected True or False": lambda win: win.update(reset="no"),
    "timeout is 'x'": lambda win: win.mutex([0], timeout="x"),
    r"\(3,\) <f8 as in": lambda win: win.put(np.ones(3) * 1j),
}


@pytest.mark.parametrize("words", WRONG)
def test_refusals(net, words):
    with net.window(np.ones(3), T.ring(net.n)) as win:
        with pytest.raises((ValueError, TypeError), match=words):
            WRONG[words](win)
        if win.in_neighbors:
            with pytest.raises(ValueError, match="twice"):
                win.get([win.in_neighbors[0]] * 2)
        win.put(win.value)                          # and everything goes on
        net.barrier()
        assert win.collect()[0] == 1 + len(win.in_neighbors)
        net.barrier()


@pytest.mark.parametrize("x, words", [
    (np.ones(3, int), "expected float16"), (np.ones(3, np.longdouble), "expected float16"), ([], "no arrays"),
    ([np.ones(2), np.ones(2, np.float32)], "expected one"), (np.ma.ones(3), "masked|expected float16")])
def test_arrays_that_no_window_takes(net, x, words):
    with pytest.raises((TypeError, ValueError), match=words):
        net.window(x, T.ring(net.n))


def test_ranks_that_differ(net):
    with pytest.raises(ValueError, match="no topology"):
        net.window(np.ones(3))
    with pytest.raises(ValueError, match="expected a static topology"):
        net.window(np.ones(3), T.ring(net.n + 1))
    if net.size > 1:
        with pytest.raises(ValueError, match=r"has \(3,\) <f8, zero=True in net.window"):
            net.window(np.ones(3 if net.rank else 2), T.ring(net.n))


def test_mutex(net):
    with net.window(np.zeros(1), T.complete(net.n)) as win:
        with win.mutex([net.rank]), pytest.raises(RuntimeError, match="not re-entrant"), win.mutex([net.rank]):
            pass
        class Broken(Exception):
            pass
        with pytest.raises(Broken), win.mutex():
            raise Broken
        net.barrier()
        with win.mutex([net.rank], timeout=0):
            pass                                    # released where the body raised
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
                    with pytest.raises(TimeoutError, match=r"mutex of rank 0, (held by rank 0 for|which this rank shares no)"), \
                            win.mutex([0], timeout=0.05):
                        pass
                net.barrier()
        with win.mutex([0]):
            pass
        net.barrier()


def test_a_claim_is_one_rank_s_until_its_owner_lets_go(net, comm):
    with net.window(np.zeros(2), T.complete(net.size)) as win:
        assert win.claimant is None
        net.barrier()
        if net.size == 1:
            assert win.claim(0) and not win.claim(0) and win.claimant == 0
            win.unclaim()
            assert win.claim(0)
            return
        claimed = win.claim(0)
        net.barrier()
        owners = comm.allgather(claimed)
        assert sum(owners) == 1
        if net.rank == 0:
            assert win.claimant == owners.index(True) and not win.claim(0)
            win.unclaim(hand_over=True)
            assert win.claimant == 0
        net.barrier()
        assert not win.claim(0)
        net.barrier()
        if net.rank == 0:
            win.unclaim()
            assert win.claimant is None and win.claim(0)
        with pytest.raises(ValueError, match=r"claim of rank 99, expected this rank or one of its neighbours"):
            win.claim(99)


def test_a_contended_mutex_is_fair(net):
    """Counted in the mutex itself: at no time are two ranks inside."""
    inside = net.window(np.zeros(net.n), T.complete(net.n))
    with inside as win:
        waits, until = [], time.monotonic() + 0.4
        net.barrier()
        while time.monotonic() < until:
            start = time.monotonic()
            with win.mutex([0]):
                waits.append(time.monotonic() - start)
                win.get()                           # nobody else has marked its value
                assert not any(win.update(0.0, [j])[j] for j in win.in_neighbors)
                mark = np.zeros(net.n)
                mark[net.rank] = 1
                win.value = mark
                time.sleep(0.0002)
                win.value = np.zeros(net.n)
        net.barrier()
        turns = net.comm.allgather(len(waits))
        assert min(turns) * 20 >= max(turns), turns
        net.barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_straggler_delays_nobody(transport):
    def steps(slow):
        with mpidec.Network(transport=transport) as net, net.window(np.ones(1000), T.ring(net.n)) as win:
            net.barrier()
            start = time.perf_counter()
            for _ in range(10):
                if slow and net.rank == 0:
                    time.sleep(0.1)
                time.sleep(0.002)
                win.put(win.value)
                win.update()
            took = time.perf_counter() - start
            net.barrier()
            return net.comm.allreduce(took, op=MPI.MIN)
    if MPI.COMM_WORLD.size > 1:
        assert steps(True) < 0.5, "one second that rank 0 sleeps"


KILLED = """
import os, signal, sys, time
import numpy as np, mpidec
net = mpidec.Network()
win = net.window(np.ones(100_000), mpidec.topology.ring(net.n))
net.barrier()
print("ready", flush=True)
for k in range(10**9):
    if net.rank == 1 and k == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    win.accumulate(win.value, 0.5, {j: 0.25 for j in win.out_neighbors})
    win.collect()
"""


@pytest.mark.serial
@pytest.mark.launch
def test_one_rank_killed_ends_the_job(mpirun):
    start = time.monotonic()
    done = mpirun(3, ["-c", KILLED], timeout=60)
    assert done.returncode != 0 and "ready" in done.stdout and time.monotonic() - start < 30


ODD = {"no entries": np.empty((3, 0)), "no axes": np.array(2.0), "a scalar": np.float64(2.0),
       "columns": np.arange(12.0).reshape(3, 4).T, "backwards": np.arange(6.0)[::-1],
       "every other": np.arange(10.0)[::2], "byte order": np.arange(4, dtype=">f8"),
       "read only": np.broadcast_to(1.0, (3, 2)), "a list of both": [np.empty(0), np.array(1.0)]}


@pytest.mark.parametrize("kind", ODD)
def test_odd_arrays(net, kind):
    x = ODD[kind]
    several = isinstance(x, list)
    with net.window(x, T.ring(net.n)) as win:
        win.accumulate([2 * one for one in x] if several else 2 * x)        # of another layout, perhaps
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
    assert left.closed == (net.n == 1)              # the others might be elsewhere
    if net.n == 1:
        return
    with mpidec.Network(transport="p2p") as other, other.window(np.ones(4), T.ring(net.n)) as far, \
            net.window(np.ones(4), T.ring(net.n)) as near:
        for win in (left, far, near):
            win.accumulate(win.value)
        other.barrier()
        net.barrier()
        degree = len(near.in_neighbors)
        assert [win.collect()[0] for win in (left, far, near)] == [1 + 2 * degree, 1 + degree, 1 + degree]
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


def test_a_closed_window_keeps_neither_memory_nor_files(net):
    def maps():
        return len(os.listdir("/proc/self/fd")), sum("mpidec-window" in line for line in open("/proc/self/maps"))
    gc.collect()
    before = maps()
    with net.window(np.ones(10_000), T.complete(net.n)) as one, net.window(np.ones(3), T.complete(net.n)) as two:
        one.put(one.value)
        two.put(two.value)
        shared = net.transport == "auto" and records.COMPILED and net.n > 1
        assert maps() == (before[0], before[1] + 2 * net.n * shared)
    assert maps() == before and one.value[-1] == 1  # at once, without the garbage collector


def test_a_value_that_is_not_waited_for(net):
    with net.window(np.ones(4), T.ring(net.n)) as win:
        under_way = win.start_get()
        net.barrier()
    with contextlib.suppress(RuntimeError):         # it has arrived, or never will
        under_way.wait()


def test_values_that_nobody_waits_for_do_not_come_to_the_next_network():
    rng = np.random.default_rng([1, MPI.COMM_WORLD.rank])
    for _ in range(60):                             # the communicators may have the same number within MPI
        with mpidec.Network(transport="p2p") as net:
            win = net.window(np.ones(3), T.complete(net.n))
            for _ in range(3):
                win.start_get(some(rng, win.in_neighbors))


def test_a_rank_without_files_for_memory(net):
    """It cannot open the memory of others, which can open its own: they write to it, and it sends messages."""
    with spare_files(1 if net.rank % 2 else 3):
        win = net.window(np.full(50, 1.0 + net.rank), T.complete(net.n))
    with win:
        win.put(win.value, dst_weights=dict.fromkeys(win.out_neighbors, 0.0))
        limit = time.monotonic() + 20
        while any(count != 1 for count in win.versions.values()):           # seen without any wait
            assert time.monotonic() < limit, win.versions
        net.barrier()
        for _ in range(50):
            win.accumulate(win.value, 1 / net.n, dict.fromkeys(win.out_neighbors, 1 / net.n))
            with win.mutex([0]):
                win.collect()
        net.barrier()
        win.collect()
        assert net.allreduce(win.value, average=False) == pytest.approx([net.n * (net.n + 1) / 2] * 50)
        win.get()
        net.barrier()


@contextlib.contextmanager
def spare_files(count):
    """At most so many files more than are open now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(name) for name in os.listdir("/proc/self/fd"))
    plugs = [os.open(os.devnull, os.O_RDONLY) for _ in range(top - len(os.listdir("/proc/self/fd")) + 3)]
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


def test_a_forked_child_is_refused(net):
    with net.window(np.ones(2), T.ring(net.n)) as win:
        child = os.fork()
        if not child:
            try:
                win.put(win.value)
            except RuntimeError as error:
                os._exit(7 if "forked child" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        win.put(win.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_interrupted_flush(transport):
    """Ctrl-C on one rank, of which the others know nothing: all leave the network, and windows of the next one work."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for k in range(2):
            with contextlib.suppress(KeyboardInterrupt, KeyError), mpidec.Network(transport=transport) as net:
                win = net.window(np.ones(10_000), T.complete(net.n))
                if net.rank == k % net.size:
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                    while True:
                        win.accumulate(win.value)
                        win.flush()
                raise KeyError
            assert win.value.tolist() == [1.0] * 10_000
            with mpidec.Network(transport=transport) as net, net.window(np.ones(3), T.complete(net.n)) as other:
                other.put(other.value)
                net.barrier()
                assert other.collect()[0] == net.n
                net.barrier()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_helper_answers_while_its_rank_computes(transport):
    with mpidec.Network(transport=transport) as net, net.window(np.ones(1000), T.complete(net.n), progress=True) as win:
        net.barrier()
        start = time.monotonic()
        if net.rank == 0:
            time.sleep(0.5)
        else:
            win.get([0])
            with win.mutex([0]):
                win.update(0.0, [0])
        took = time.monotonic() - start
        net.barrier()
        assert net.n == 1 or net.comm.allreduce(took, op=MPI.MIN) < 0.4
        assert net.rank == 0 or win.value[0] == 1
        helper = win._helper
    assert (helper is None) == win._quiet and (helper is None or not helper._thread.is_alive())
