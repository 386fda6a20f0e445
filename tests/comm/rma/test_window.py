"""One-sided windows: random programs against a model of all ranks, conservation at the ranks' own pace, refusals."""

import contextlib
import pickle
import signal
import threading
import time

import numpy as np
import pytest
from helpers.windows import OVER_ALL, TRANSPORTS
from mpi4py import MPI

import mpidec
from mpidec import topology as T

pytestmark = pytest.mark.library

GRAPHS = {
    "ring": T.ring,
    "exponential": T.exponential,
    "star": T.star,
    "directed": lambda n: T.from_weights(0.5 * np.eye(n) + 0.5 * np.roll(np.eye(n), 1, axis=0)),
}


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


@pytest.mark.parametrize("dtype", [float, np.float16, complex])
def test_the_value_of_a_closed_window_lies_outside_the_memory_of_the_window(net, dtype):
    """That goes to later windows, or back to MPI."""
    with net.window([np.full(3, 2, dtype), np.full((2, 2), 3, dtype)], T.ring(net.n)) as win:
        before = win.value
    for old, value, number in zip(before, win.value, (2, 3)):
        assert np.all(value == number) and not np.shares_memory(old, value)


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


def test_ranks_that_differ(net):
    with pytest.raises(ValueError, match="no topology"):
        net.window(np.ones(3))
    with pytest.raises(ValueError, match="expected a static topology"):
        net.window(np.ones(3), T.ring(net.n + 1))
    if net.size > 1:
        with pytest.raises(
            ValueError, match=r"\(2,\) float64, zero=True, transport=.*every rank must make"
        ):
            net.window(np.ones(3 if net.rank else 2), T.ring(net.n))


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
