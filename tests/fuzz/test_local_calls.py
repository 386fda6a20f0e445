"""Random programs of local-view calls, mixings between them, against dense products: see test_mixings.py."""

from __future__ import annotations

import time

import numpy as np
import pytest
from helpers import draws
from helpers.draws import pick

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.wide, pytest.mark.library]

CALLS = 20  # calls that a program makes: each is a case


class Local:
    """Calls of one random network with one agent on each rank, some of them under way for a while.

    A call is its name, its arguments on this rank, and what is expected: a function of the result that says whether it is right.
    """

    def __init__(self, seed, comm, note):
        self.rng, self.own = (
            np.random.default_rng([7, seed]),
            np.random.default_rng([7, seed, comm.rank]),
        )
        self.seed, self.comm, self.note, self.calls = seed, comm, note, 0
        self.n, self.i, self.flying, self.step, self.machine_step = comm.size, comm.rank, [], 0, 0

    def run(self, monkeypatch):
        rng = self.rng
        self.per = pick(rng, [1, 2, 3])
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(self.per))
        transport = pick(rng, ["auto", "neighbor", "p2p"])
        self.what = f"MPIDEC_FUZZ_SEED={self.seed} ranks={self.n} transport={transport} MPIDEC_RANKS_PER_NODE={self.per}"
        self.note(self.what)
        with mpidec.Network(comm=self.comm, transport=transport) as self.net:
            self.net.check = bool(rng.integers(4))
            self.count = -(-self.n // self.per)
            self.topology, self.machines = draws.graph(rng, self.n), draws.graph(rng, self.count)
            self.net.set_topology(self.topology)
            self.net.set_machine_topology(self.machines)
            self.W, self.mixings = self.net.mixer(self.topology), 0
            for self.calls in range(1, CALLS + 1):
                self.call()
                if rng.random() < 0.1 and self.own.random() < 0.5:
                    time.sleep(1e-3)
                if rng.random() < 0.2 or len(self.flying) > 30:
                    self.complete(rng.random())
            self.complete(1)

    def check(self, holds, what):
        assert holds, f"{self.what}: call {self.calls}: {what}"

    def call(self):
        """Make a random call, or begin it."""
        kind = pick(
            self.rng,
            [
                self.static,
                self.static_part,
                self.dynamic,
                self.dynamic,
                self.push,
                self.gather,
                self.exchange,
                self.gossip,
                self.hierarchical,
                self.allreduce,
                self.broadcast,
                self.barrier,
                self.mix,
            ],
        )
        made, wait = kind(), self.rng.integers(2)
        if made is None:  # this rank has no part in it
            return
        name, args, right = made
        line = f"{name}{args}"[:300]
        self.note(f"{self.what}: {line}")
        inputs = [(x, x.tobytes()) for x in args if isinstance(x, np.ndarray)]
        if wait:
            self.verify(line, right, getattr(self.net, name)(*args), inputs)
        else:
            self.flying.append(
                (self.calls, line, right, getattr(self.net, f"start_{name}")(*args), inputs)
            )

    def complete(self, share):
        """Complete some of what is under way, in an order of this rank's own."""
        now = self.rng.random(CALLS + 1) < share  # not all ranks are in every call
        chosen = [one for one in self.flying if now[one[0]]]
        self.flying = [one for one in self.flying if not now[one[0]]]
        for t in self.own.permutation(len(chosen)):
            _, line, right, pending, inputs = chosen[t]
            self.note(f"{self.what}: wait for {line}")
            if self.own.integers(2):
                pending.test()
            y = pending.wait()
            self.check(
                pending.wait() is y, f"{line}: wait returns something else when called again"
            )
            self.verify(line, right, y, inputs)

    def verify(self, line, right, y, inputs):
        self.check(
            all(x.tobytes() == before for x, before in inputs), f"{line}: the input has changed"
        )
        said = right(y)
        self.check(not said, f"{line}: {said}")

    # What is called, and what is right

    def arrays(self, ints=False):
        """The arrays of all ranks, and this rank's in some layout."""
        rng = self.rng
        dtype = np.dtype(
            pick(rng, [*draws.DTYPES, np.int32, np.int64, np.uint8][: 9 if ints else 6])
        )
        shape = (5000,) if rng.random() < 0.1 else pick(rng, draws.SHAPES)
        X = (
            draws.rows(rng, self.n, shape, dtype)
            if dtype.kind in "fc"
            else rng.integers(0, 9, (self.n, *shape)).astype(dtype)
        )
        return X, draws.laid_out(pick(rng, draws.LAYOUTS), X[self.i : self.i + 1], self.net)[0][...]

    def product(self, W, X):
        """Whether a result is this rank's row of `W X`."""
        W = W.toarray() if hasattr(W, "toarray") else W
        wide = X.astype(np.result_type(X.dtype, np.float64))
        expected = np.tensordot(W, wide, 1)[self.i]
        limit = draws.tolerance(X.dtype, self.n, X) * max(1.0, float(np.abs(W).max()))

        def right(y):
            off = (
                float(np.abs(np.asarray(y) - expected).max(initial=0))
                if np.shape(y) == expected.shape
                else np.inf
            )
            return (
                ""
                if off <= limit and y.dtype == X.dtype
                else f"{np.shape(y)} {y.dtype}, off by {off:.3g}, at most {limit:.3g}"
            )

        return right

    def random_graph(self, n):
        """Own, senders' and receivers' weights on any directed graph."""
        rng = self.rng
        there = (rng.random((n, n)) < pick(rng, [0, 0.2, 0.5, 1])) & ~np.eye(n, dtype=bool)
        return (
            rng.standard_normal(n),
            there,
            rng.standard_normal((n, n)),
            rng.standard_normal((n, n)),
        )

    def lists(self, there, src, dst, i):
        into, out = np.flatnonzero(there[i]).tolist(), np.flatnonzero(there[:, i]).tolist()
        return {j: src[i, j] for j in into}, {j: dst[i, j] for j in out}

    def take(self):
        self.step += 1
        return self.topology.at(self.step - 1).W.toarray()

    def static(self):
        X, x = self.arrays()
        return "neighbor_allreduce", (x,), self.product(self.take(), X)

    def static_part(self):
        X, x = self.arrays()
        own, there, src, _ = self.random_graph(self.n)
        there &= self.take() != 0
        return (
            "neighbor_allreduce",
            (x, own[self.i], self.lists(there, src, src, self.i)[0]),
            self.product(np.diag(own) + there * src, X),
        )

    def dynamic(self):
        X, x = self.arrays()
        own, there, src, dst = self.random_graph(self.n)
        return (
            "neighbor_allreduce",
            (x, own[self.i], *self.lists(there, src, dst, self.i)),
            self.product(np.diag(own) + there * src * dst.T, X),
        )

    def push(self):
        X, x = self.arrays()
        own, there, src, dst = self.random_graph(self.n)
        return (
            "neighbor_allreduce",
            (x, own[self.i], None, self.lists(there, src, dst, self.i)[1]),
            self.product(np.diag(own) + there * dst.T, X),
        )

    def gather(self):
        rng, n, i = self.rng, self.n, self.i
        heights, width = rng.integers(0, 4, n), int(pick(rng, [0, 1, 3, 2000]))
        dtype = pick(rng, [np.float32, np.int16, bool, complex])
        parts = [rng.integers(0, 2, (h, width)).astype(dtype) for h in heights]
        kind = pick(rng, ["static", "dynamic", "push"])
        there = self.take() != 0 if kind == "static" else self.random_graph(n)[1]
        np.fill_diagonal(there, False)
        sources, dests = np.flatnonzero(there[i]).tolist(), np.flatnonzero(there[:, i]).tolist()
        if kind == "dynamic":
            sources = self.own.permutation(sources).tolist()
        expected = np.concatenate([parts[i][:0], *(parts[int(j)] for j in sources)])
        args = {"static": (), "dynamic": ([int(j) for j in sources], dests), "push": (None, dests)}[
            kind
        ]
        return "neighbor_allgather", (parts[i], *args), self.same(expected)

    def same(self, expected):
        return lambda y: (
            ""
            if y.dtype == expected.dtype and np.array_equal(y, expected)
            else f"{y}, expected {expected}"[:300]
        )

    def exchange(self):
        rng, n, i = self.rng, self.n, self.i
        shapes = [pick(rng, [*draws.SHAPES, (3000,)]) for _ in range(n)]
        dtypes = [pick(rng, [*draws.DTYPES, np.int64]) for _ in range(n)]
        value = rng.integers(0, 99, (n, n))
        there = self.random_graph(n)[1]
        symmetric = bool(rng.integers(2))
        there = there | there.T if symmetric else there
        messages = {
            j: np.full(shapes[i], value[i, j]).astype(dtypes[i])
            for j in np.flatnonzero(there[:, i]).tolist()
        }
        sources = np.flatnonzero(there[i]).tolist()
        expected = {j: np.full(shapes[j], value[j, i]).astype(dtypes[j]) for j in sources}

        def right(got):
            if list(got) != sources:
                return f"messages of {list(got)}, expected of {sources}"
            return " ".join(filter(None, (self.same(expected[j])(got[j]) for j in sources)))

        return "exchange", (messages, *(() if symmetric else (sources,))), right

    def gossip(self):
        X, x = self.arrays()
        order = self.rng.permutation(self.n)
        own, pair = self.rng.standard_normal((2, self.n))
        partner = np.arange(self.n)
        for a, b in zip(order[::2], order[1::2]):
            partner[a], partner[b] = b, a
        peer = int(partner[self.i])
        if peer == self.i:
            return None
        W = np.diag(own) + pair[:, None] * np.eye(self.n)[partner]
        return "pair_gossip", (x, peer, own[self.i], pair[self.i]), self.product(W, X)

    def hierarchical(self):
        X, x = self.arrays()
        n, count, mine = self.n, self.count, self.i // self.per
        member = np.arange(n)[:, None] // self.per == np.arange(count)
        own, there, src, dst = self.random_graph(count)
        kind = pick(self.rng, ["static", "dynamic", "push"])
        sources, dests = self.lists(there, src, dst, mine)
        if kind == "static":
            self.machine_step += 1
            M, args = self.machines.at(self.machine_step - 1).W.toarray(), ()
        elif kind == "dynamic":
            M, args = np.diag(own) + there * src * dst.T, (own[mine], sources, dests)
        else:
            M, args = np.diag(own) + there * dst.T, (own[mine], None, dests)
        return (
            "hierarchical_neighbor_allreduce",
            (x, *args),
            self.product(member @ M @ (member / member.sum(axis=0)).T, X),
        )

    def allreduce(self):
        average = bool(self.rng.integers(2))
        X, x = self.arrays(ints=not average)
        return (
            "allreduce",
            (x, average),
            self.product(np.full((self.n, self.n), 1 / self.n if average else 1), X)
            if X.dtype.kind in "fc"
            else self.same(X.sum(axis=0, dtype=X.dtype)),
        )

    def broadcast(self):
        X, x = self.arrays(ints=True)
        root = int(self.rng.integers(self.n))
        return "broadcast", (x, root), self.same(X[root])

    def barrier(self):
        return "barrier", (), lambda y: "" if y is None else f"{y}"

    def mix(self):
        """A mixing, and a sum over all agents, between the calls."""
        X = draws.rows(self.rng, self.n, (6,), float)
        x = X[self.i : self.i + 1]
        self.note(f"{self.what}: W(X)")
        self.mixings += 1
        right = self.product(self.topology.at(self.mixings - 1).W, X)
        self.flying.append((self.calls, "W(X)", right, Row(self.W.start(x)), []))
        np.testing.assert_allclose(self.net.mean(x), X.mean(axis=0), atol=1e-13, err_msg=self.what)


class Row:
    """A mixing under way whose result is a row."""

    def __init__(self, pending):
        self.pending, self.row = pending, None

    def test(self):
        return self.pending.test()

    def wait(self):
        self.row = self.pending.wait()[0] if self.row is None else self.row
        return self.row


def test_programs_are_drawn_alike(comm):
    draw = np.random.default_rng(3)
    assert len(set(comm.allgather(draws.graph(draw, 6).fingerprint()))) == 1 and T.CATALOGUE


def test_some_programs(fuzz):
    fuzz(Local, 0, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", range(4))
def test_many_programs(fuzz, chunk):
    fuzz(Local, 1000 * (chunk + 1), 30)
