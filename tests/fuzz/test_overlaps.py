"""Random programs in which everything overlaps: nothing hangs, and every number is that of the dense product.

All ranks draw the same calls, in the same order, from one seed.  What a rank does on its own, it draws for itself: how long it
sleeps, which of its pending mixings it waits for between two calls and in which order, and which of them it drops.

A program that fails names itself: MPIDEC_FUZZ_SEED=123 runs program 123 alone.
"""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from helpers import draws
from helpers.draws import pick

import mpidec
from mpidec import topology as T

pytestmark = pytest.mark.library

CALLS = 50  # calls that a program makes, bursts of many mixings counted as one
COLUMNS = [
    1,
    3,
    3,
    40,
    700,
    2500,
    20_000,
]  # the last two lie in the memory of the node, and are read in place
TRANSPORTS = [
    ("auto", 0),
    ("shared", 0),
    ("auto", 2),
    ("auto", 2),
    ("shared", 3),
    ("p2p", 0),
    ("neighbor", 0),
    ("auto", 1),
]


def matchings(rng, n):
    """A schedule of random matchings: most pairs of agents meet seldom, and some never."""
    phases = []
    for _ in range(rng.integers(2, 6)):
        W, order = np.eye(n), rng.permutation(n)
        for i, j in zip(order[::2], order[1::2]):
            if rng.random() < 0.8:
                W[i, i] = W[j, j] = W[i, j] = W[j, i] = 0.5
        phases.append(T.from_weights(W, connected=False))
    return T.cycle(phases)


def graph(rng, n):
    """A topology or schedule: undirected, directed, one that leaves ranks out, one that changes in every step."""
    kind = int(rng.integers(7))
    if kind == 0:
        return T.complete(n)
    if kind == 1:
        return T.ring(n)
    if kind == 2:
        return T.one_peer_exponential(n)
    if kind == 3:
        return draws.matrix(rng, n, pick(rng, ["row", "column", "signed"]))
    return matchings(rng, n) if kind <= 5 else draws.graph(rng, n)


class Flight:
    """A mixing under way, or done: what it should give, and the rows that must not change before."""

    def __init__(self, line, expected, pending=None, X=None):
        self.line, self.expected, self.pending, self.X = line, expected, pending, X


class Program:
    """Calls of one or two networks, of the user's own MPI, and of nothing at all."""

    def __init__(self, seed, comm, note):
        self.rng, self.own = (
            np.random.default_rng([seed, 7]),
            np.random.default_rng([seed, comm.rank]),
        )
        self.seed, self.comm, self.note = seed, comm, note
        self.flying, self.kept, self.steps, self.calls = [], [], {}, 0

    def run(self, monkeypatch):
        rng, size = self.rng, self.comm.size
        transport, per = pick(rng, TRANSPORTS)
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(per))
        n = pick(rng, [size, size, size, 2 * size, size + 1, max(size - 1, 1)])
        self.what = f"MPIDEC_FUZZ_SEED={self.seed} ranks={size} n={n} transport={transport} MPIDEC_RANKS_PER_NODE={per}"
        self.note(self.what)
        self.nets = [
            mpidec.Network(n, self.comm, transport=transport) for _ in range(rng.integers(1, 3))
        ]
        self.mixers = [
            (net, net.mixer(graph(rng, n))) for net in self.nets for _ in range(rng.integers(1, 4))
        ]
        calls = [
            self.mix,
            self.mix,
            self.start,
            self.start,
            self.start,
            self.burst,
            self.keep,
            self.together,
            self.theirs,
            self.another,
            self.edges,
        ]
        if n == size:  # the local-view calls are for one agent on each rank
            calls.append(self.local)
            for net in self.nets:
                net.set_topology(T.ring(size))
        for self.calls in range(1, CALLS + 1):
            pick(rng, calls)()
            self.on_its_own()
        while self.flying:
            self.finish(self.flying.pop(int(self.own.integers(len(self.flying)))))
        for line, Y, copy in self.kept:
            self.check(Y.tobytes() == copy, f"{line}: the result has changed since")
        self.kept.clear()
        for place in rng.permutation(len(self.nets)):
            self.nets[place].close()

    # What a rank does on its own

    def on_its_own(self):
        """Sleep, wait for some mixings, drop some."""
        own = self.own
        if own.random() < 0.15:
            time.sleep(own.random() * 4e-3)
        if own.random() < 0.5:
            for _ in range(own.integers(0, min(4, len(self.flying)) + 1)):
                self.finish(self.flying.pop(int(own.integers(len(self.flying)))))
        if self.flying and own.random() < 0.1:
            del self.flying[int(own.integers(len(self.flying)))]
            if own.random() < 0.3:
                gc.collect()
        if self.flying and own.random() < 0.3:
            self.flying[int(own.integers(len(self.flying)))].pending.test()
        if own.random() < 0.2:  # memory that has just been given back is used for something else
            Z = self.nets[0].empty(pick(own, COLUMNS))
            Z[...] = np.nan

    def finish(self, flight):
        self.say(f"wait for {flight.line}")
        Y = flight.pending.wait()
        flight.X[...] = np.nan  # it may change from here on
        self.compare(Y, flight)

    # Calls

    def say(self, line):
        self.note(f"{self.what}: call {self.calls}: {line}")

    def check(self, holds, what):
        assert holds, f"call {self.calls}: {what}"

    def compare(self, Y, flight):
        off = float(np.abs(Y - flight.expected()).max(initial=0))
        self.check(off <= 1e-9, f"{flight.line}: off by {off:.3g}")
        if self.own.random() < 0.1:
            self.kept.append((flight.line, Y, Y.tobytes()))

    def operator(self, moves=None):
        """A network, one of its mixers, which moves to its next step, or the operator of a step; its matrix and name."""
        place = int(self.rng.integers(len(self.mixers)))
        net, W = self.mixers[place]
        if not (self.rng.integers(3) if moves is None else moves):
            k = int(self.rng.integers(8))
            return net, W.at(k), W.topology.at(k).W, f"mixer {place} ({W.topology.name}) at({k})"
        k = self.steps[place] = self.steps.get(place, -1) + 1
        return net, W, W.topology.at(k).W, f"mixer {place} ({W.topology.name}) step {k}"

    def rows(self, net, matrix, d=None):
        """Rows `a + c t`, `t` the number of a column; the mixed ones are `W a + W c t`."""
        rng, d = self.rng, pick(self.rng, COLUMNS) if d is None else d
        line, where = (
            rng.integers(-50, 50, (net.n, 2)).astype(float),
            pick(rng, ["empty", "memory", "ordinary", "sum"]),
        )
        t, mixed = np.arange(d) / 64, (matrix @ line)[net.lo : net.hi]
        x = line[net.lo : net.hi]
        if where == "empty":
            X = net.empty(d)
            X[...] = x[:, :1] + x[:, 1:] * t
        elif where == "ordinary":
            X = x[:, :1] + x[:, 1:] * t
        else:
            with net.memory():
                X = x[:, :1] + x[:, 1:] * t
        return X, lambda: mixed[:, :1] + mixed[:, 1:] * t, f"{d} columns, {where}"

    def mix(self):
        net, W, matrix, name = self.operator()
        X, expected, line = self.rows(net, matrix)
        out = np.empty_like(X) if self.rng.random() < 0.3 else None
        line = f"W(X) over {name}, {line}"
        self.say(line)
        Y = W(X, out=out)
        X[...] = np.nan
        self.compare(Y, Flight(line, expected))

    def start(self):
        net, W, matrix, name = self.operator()
        X, expected, line = self.rows(net, matrix)
        line = f"W.start(X) over {name}, {line}"
        self.say(line)
        self.flying.append(Flight(line, expected, W.start(X), X))

    def burst(self):
        """So many mixings that the slots of those under way come again, with neighbours that change."""
        count, some = int(self.rng.integers(20, 75)), self.rng.random() < 0.3
        chosen = [self.operator(moves=False) for _ in range(2)]
        self.say(f"{count} mixings over {[name for *_, name in chosen]} and others")
        for k in range(count):
            net, W, matrix, name = chosen[k % 3] if k % 3 < 2 else self.operator()
            X, expected, line = self.rows(net, matrix, 2500 if k % 16 == 0 else 3)
            if some and k % 4 == 0:
                self.flying.append(
                    Flight(f"start {k} of a burst, {name}, {line}", expected, W.start(X), X)
                )
            else:
                Y = W(X)
                X[...] = np.nan
                self.compare(Y, Flight(f"mixing {k} of a burst, {name}, {line}", expected))

    def keep(self):
        """As `solve` mixes: rows that are never changed again, and dropped at once; nobody waits until they have been read."""
        net, _ = pick(self.rng, self.mixers)
        mine = [place for place, (other, _) in enumerate(self.mixers) if other is net]
        count, inside = int(self.rng.integers(1, 8)), self.rng.random() < 0.3
        self.say(f"{count} mixings of rows that are kept")
        with net.memory(), net.keeping_rows():
            for k in range(count):
                place = pick(self.rng, mine)
                at = int(self.rng.integers(8))
                W = self.mixers[place][1].at(at)
                X, expected, line = self.rows(net, W.topology.W)
                Y = W(X)
                del X
                Z = np.empty((net.m, pick(self.own, COLUMNS)))
                Z[...] = np.nan  # not where the rows lie, as long as somebody reads them
                if self.own.random() < 0.1:
                    time.sleep(1e-3)
                self.compare(Y, Flight(f"kept rows {k}, mixer {place} at({at}), {line}", expected))
                if inside:
                    net.agree()

    def together(self):
        """Calls of all ranks of a network."""
        net, _ = pick(self.rng, self.mixers)
        call = pick(self.rng, ["barrier", "sum", "mean", "gather", "agree", "mixer"])
        X = self.rng.integers(-9, 9, (net.n, pick(self.rng, [1, 5, 3000]))).astype(float)
        call = "agree" if call == "barrier" and net.n != net.size else call
        self.say(f"net.{call}")
        x = X[net.lo : net.hi]
        if call in ("barrier", "agree"):
            getattr(net, call)()
        elif call == "gather":
            whole = net.gather(x)
            self.check(whole is None if net.rank else np.array_equal(whole, X), "gather")
            self.check(np.array_equal(net.scatter(whole), x), "scatter")
        elif call == "mixer":
            W = net.mixer(T.ring(net.n))
            self.check(
                np.allclose(W(x), (T.ring(net.n).W @ X)[net.lo : net.hi]),
                "a mixer that has just been made",
            )
        else:
            expected = X.sum(axis=0) / (net.n if call == "mean" else 1)
            self.check(np.allclose(getattr(net, call)(x), expected), call)

    def local(self):
        """Local-view calls, at once or under way among the mixings."""
        rng, size, me = self.rng, self.comm.size, self.comm.rank
        net, _ = pick(rng, self.mixers)
        call = pick(rng, ["static", "weights", "allreduce", "broadcast", "gossip"])
        X, root = (
            rng.integers(-9, 9, (size, pick(rng, [2, 3000]))).astype(float),
            int(rng.integers(size)),
        )
        x = X[me].copy()
        A = rng.integers(1, 4, (size, size)) * (1 - np.eye(size))
        self.say(f"local-view call: {call}")
        if call == "gossip" and size > 1:
            i, j = sorted(int(one) for one in rng.permutation(size)[:2])
            if me in (i, j):
                self.check(np.allclose(net.pair_gossip(x, i + j - me), (X[i] + X[j]) / 2), call)
            return
        src, dst = (
            {rank: float(A[me, rank]) for rank in range(size) if rank != me},
            [rank for rank in range(size) if rank != me],
        )
        begin, expected = {
            "static": (lambda: net.start_neighbor_allreduce(x), (T.ring(size).W @ X)[me]),
            "weights": (
                lambda: net.start_neighbor_allreduce(x, 2.0, src, dst),
                2 * X[me] + A[me] @ X,
            ),
            "broadcast": (lambda: net.start_broadcast(x, root), X[root]),
        }.get(call, (lambda: net.start_allreduce(x), X.mean(axis=0)))
        pending = begin()
        if rng.random() < 0.5:
            self.on_its_own()
        self.check(np.allclose(pending.wait(), expected), call)

    def theirs(self):
        """The user's own MPI, which makes no progress for anybody."""
        comm, call = (
            self.comm,
            pick(self.rng, ["Barrier", "allreduce", "Ibarrier", "chain", "shift"]),
        )
        self.say(f"comm.{call}")
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        if call == "Barrier":
            comm.Barrier()
        elif call == "allreduce":
            self.check(comm.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2, call)
        elif call == "Ibarrier":
            request = comm.Ibarrier()
            self.on_its_own()
            request.Wait()
        elif call == "chain":
            if comm.rank:
                self.check(comm.recv(source=left, tag=1) == left, call)
            if right:
                comm.send(comm.rank, right, tag=1)
        else:
            request = comm.isend(comm.rank, right, tag=2)
            self.on_its_own()
            self.check(comm.recv(source=left, tag=2) == left, call)
            request.wait()

    def another(self):
        """A network that is made, used and closed while others have mixings under way."""
        if self.rng.random() < 0.4:
            self.say("another network")
            with mpidec.Network(comm=self.comm) as net:
                W, X = net.mixer(T.complete(net.n)), net.empty(2500)
                X[...] = net.rank
                pending = W.start(X)
                if self.own.random() < 0.5:
                    self.check(np.allclose(pending.wait(), (net.n - 1) / 2), "another network")

    def edges(self):
        """Exchanges of a row for each edge, and the rows of the neighbours as they are."""
        place, k = int(self.rng.integers(len(self.mixers))), int(self.rng.integers(8))
        net, W = self.mixers[place]
        phase, X = (
            W.at(k),
            self.rng.integers(-9, 9, (net.n, pick(self.rng, [1, 3, 3000]))).astype(float),
        )
        there = phase.topology.W.toarray() != 0
        np.fill_diagonal(there, False)
        self.say(f"exchange and fetch over mixer {place} at({k})")
        pending = phase.fetch(X[net.lo : net.hi].copy())
        total = phase.sum_edges(phase.exchange(phase.to_edges(X[net.lo : net.hi])))
        self.check(np.array_equal(total, (there @ X)[net.lo : net.hi]), "exchange")
        if self.own.random() < 0.5:
            self.on_its_own()
        self.check(np.array_equal(pending.wait(), X[phase.halo]), "fetch")


@pytest.mark.timeout(200)
def test_some_programs_that_overlap(fuzz):
    fuzz(Program, 0, 6)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("chunk", range(10))
def test_many_programs_that_overlap(fuzz, chunk):
    """50 calls in each of 400 programs, and as many mixings again in bursts."""
    fuzz(Program, 1000 * (chunk + 1), 40)
