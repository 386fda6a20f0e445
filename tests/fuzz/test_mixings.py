"""Random programs of mixings against dense products and one-process networks: all ranks draw the same ones from one seed.

A program that fails names itself: MPIDEC_FUZZ_SEED=123 runs program 123 alone.
"""

from __future__ import annotations

import functools
import time
from collections import Counter

import numpy as np
import pytest
from helpers import draws
from helpers.draws import pick
from mpi4py import MPI

import mpidec

pytestmark = [pytest.mark.wide, pytest.mark.library]

CALLS = 10  # calls that a program makes: each is a case


class Program:
    """Calls of the mixers of one random network.

    `rng` draws the same on all ranks, `own` what each rank does in its own way: when it waits for what, and how long it sleeps.
    """

    def __init__(self, seed, comm, note):
        self.rng, self.own = np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
        self.seed, self.comm, self.note, self.calls = seed, comm, note, 0
        self.flying, self.kept, self.k, self.alien = [], [], {}, Counter()

    def run(self, monkeypatch):
        rng, size = self.rng, self.comm.size
        per = pick(rng, [0, 0, 0, 1, 2, 3])
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(per))
        n = pick(
            rng,
            [
                1,
                2,
                3,
                max(size - 1, 1),
                size,
                size + 1,
                2 * size,
                int(rng.integers(1, 20)),
                int(rng.integers(4, 40)),
            ],
        )
        transport = pick(rng, ["auto", "auto", "shared", "neighbor", "p2p"])
        self.what = f"MPIDEC_FUZZ_SEED={self.seed} ranks={size} n={n} transport={transport} MPIDEC_RANKS_PER_NODE={per}"
        self.note(self.what)
        with (
            mpidec.Network(n, self.comm, transport=transport) as self.net,
            mpidec.Network(n, MPI.COMM_SELF) as self.alone,
        ):
            graphs = [draws.graph(rng, n) for _ in range(rng.integers(1, 4))]
            self.mixers = [(self.net.mixer(graph), self.alone.mixer(graph)) for graph in graphs]
            calls = [
                self.mix,
                self.mix,
                self.mix,
                self.start,
                self.start,
                self.many,
                self.edges,
                self.fetch,
                self.means,
                self.wait,
            ]
            for self.calls in range(1, CALLS + 1):
                pick(rng, calls)()
                if rng.random() < 0.1 and self.own.random() < 0.5:
                    time.sleep(1e-3)
            while self.flying:
                self.wait()
            for line, Y, copy in self.kept:
                self.check(Y.tobytes() == copy, f"{line}: the result has changed since")
            rounds = [(W.rounds, W_alone.rounds + self.alien[W]) for W, W_alone in self.mixers]
            self.check(all(one == other for one, other in rounds), f"rounds {rounds}")
            self.kept.clear()
        return self.calls

    def check(self, holds, what):
        assert holds, f"{self.what}: call {self.calls}: {what}"

    def operator(self):
        """A mixer or the operator of one step, the same of the one-process network, its matrix, and its name."""
        rng, t = self.rng, int(self.rng.integers(len(self.mixers)))
        W, W_alone = self.mixers[t]
        if rng.integers(2):
            k = int(rng.integers(6)) if rng.random() < 0.9 else int(rng.integers(200))
            return W.at(k), W_alone.at(k), W.topology.at(k).W, f"{W.topology.name} at({k})"
        k = self.k[t] = self.k.get(t, -1) + 1
        return W, W_alone, W.topology.at(k).W, f"{W.topology.name} step {k}"

    def rows(self, dtype=None):
        """The rows of all agents, those of this rank in some layout, and how to describe them."""
        rng, net = self.rng, self.net
        dtype = np.dtype(pick(rng, draws.DTYPES) if dtype is None else dtype)
        shape, layout = (
            draws.shape(rng, dtype, net.m if self.net.n % net.size == 0 else 2),
            pick(rng, draws.LAYOUTS),
        )
        X = draws.rows(rng, net.n, shape, dtype)
        x = X[net.lo : net.hi]
        if rng.random() < 0.05:
            return X, x.astype(dtype.newbyteorder()), f"rows {shape} {dtype.str} swapped"
        return X, draws.laid_out(layout, x, net), f"rows {shape} {dtype.str} {layout}"

    def out(self, x):
        kind = pick(self.rng, ["none", "none", "stack", "plain"])
        if kind == "none" or not x.dtype.isnative:
            return None
        return (
            self.net.empty(x.shape[1:], x.dtype) if kind == "stack" else np.empty(x.shape, x.dtype)
        )

    def compare(self, Y, Y_alone, matrix, X, line, out=None, x=None, before=b""):
        """The dense product within rounding, and the bits of the one-process network."""
        lo, hi = self.net.lo, self.net.hi
        self.check(
            isinstance(Y, np.ndarray) and Y.shape == (hi - lo, *X.shape[1:]) and Y.dtype == X.dtype,
            f"{line}: result {np.shape(Y)} {getattr(Y, 'dtype', type(Y))}",
        )
        self.check(out is None or Y is out, f"{line}: the result is not out")
        self.check(x is None or x.tobytes() == before, f"{line}: the input has changed")
        flat = X.reshape(len(X), -1) if X.size else np.zeros((len(X), 0))
        dense = (matrix @ flat.astype(np.result_type(X.dtype, np.float64)))[lo:hi].reshape(Y.shape)
        degree = int(np.diff(matrix.indptr).max())
        limit = draws.tolerance(X.dtype, degree, X) * max(1.0, float(abs(matrix).max()))
        off = float(np.abs(Y - dense).max(initial=0))
        self.check(off <= limit, f"{line}: off by {off:.3g}, expected <= {limit:.3g}")
        self.check(
            Y.tobytes() == Y_alone[lo:hi].tobytes(), f"{line}: other bits than in one process"
        )
        if self.rng.random() < 0.3:
            self.kept.append((line, Y, Y.tobytes()))

    def mix(self):
        W, W_alone, matrix, name = self.operator()
        X, x, line = self.rows()
        out, before, line = self.out(x), x.tobytes(), f"W(X) over {name}, {line}"
        self.note(f"{self.what}: {line}")
        Y = W(x, out=out)
        self.compare(Y, W_alone(X), matrix, X, line, out, x, before)
        if x.flags.writeable:
            x[...] = np.nan  # nobody reads it any more
        if self.rng.random() < 0.3:  # what comes out may go in again
            W, W_alone = (mixer.at(0) for mixer in self.mixers[0])
            whole = self.whole(Y, X)
            self.compare(
                W(Y),
                W_alone(whole),
                W.topology.W,
                whole,
                f"{line}, and its result over {W.topology.name} again",
            )

    def whole(self, Y, X):
        """The rows of all agents, from those of this rank, by MPI alone."""
        parts = self.comm.allgather(Y.tobytes())
        return np.frombuffer(b"".join(parts), Y.dtype).reshape(X.shape)

    def start(self):
        W, W_alone, matrix, name = self.operator()
        X, x, line = self.rows()
        out, line = self.out(x), f"W.start(X) over {name}, {line}"
        self.note(f"{self.what}: {line}")
        pending = W.start(x, out)
        self.flying.append(
            (
                pending,
                functools.partial(
                    self.compare,
                    Y_alone=W_alone(X),
                    matrix=matrix,
                    X=X,
                    line=line,
                    out=out,
                    x=x,
                    before=x.tobytes(),
                ),
            )
        )

    def wait(self):
        """Complete some of what is under way, in an order of this rank's own."""
        some = [
            self.flying.pop(int(self.rng.integers(len(self.flying))))
            for _ in range(self.rng.integers(len(self.flying) + 1))
        ]
        for t in self.own.permutation(len(some)):
            pending, compare = some[t]
            if self.own.integers(2):
                pending.test()
            self.note(f"{self.what}: wait for {compare.keywords['line']}")
            some[t] = (pending.wait(), compare)
            self.check(
                pending.wait() is some[t][0], "wait returns something else when called again"
            )
        for Y, compare in some:
            compare(Y)

    def many(self):
        W, W_alone, matrix, name = self.operator()
        dtypes = [pick(self.rng, draws.DTYPES)] * 3 if self.rng.integers(2) else [None] * 3
        several = [self.rows(dtype) for dtype in dtypes[: self.rng.integers(0, 4)]]
        line = f"W([...]) over {name}, {[line for _, _, line in several]}"
        self.note(f"{self.what}: {line}")
        Ys, Ys_alone = W([x for _, x, _ in several]), W_alone([X for X, _, _ in several])
        for Y, Y_alone, (X, _, _) in zip(Ys, Ys_alone, several):
            self.compare(Y, Y_alone, matrix, X, line)
        self.check(len(Ys) == len(several), f"{line}: {len(Ys)} results")

    def edges(self):
        rng, n, lo, hi = self.rng, self.net.n, self.net.lo, self.net.hi
        W, _ = pick(rng, self.mixers)
        k, shape, dtype = (
            int(rng.integers(6)),
            pick(rng, draws.SHAPES),
            pick(rng, [*draws.DTYPES, np.int32, np.uint8]),
        )
        there = W.topology.at(k).W.toarray() != 0
        np.fill_diagonal(there, False)
        out, into = (
            np.argwhere(there.T),
            np.argwhere(there),
        )  # (sender, receiver), (receiver, sender), sorted
        table = draws.rows(rng, n * n, shape, np.float64).astype(dtype).reshape(n, n, *shape)
        line = f"exchange over {W.topology.name} at({k}), rows {shape} {np.dtype(dtype).str}"
        self.note(f"{self.what}: {line}")
        mine = out[(out[:, 0] >= lo) & (out[:, 0] < hi)]
        arrive = into[(into[:, 0] >= lo) & (into[:, 0] < hi)]
        got = W.at(k).exchange(table[mine[:, 0], mine[:, 1]])
        self.check(got.tobytes() == table[arrive[:, 1], arrive[:, 0]].tobytes(), line)
        X = rng.integers(-9, 9, (n, *shape)).astype(dtype)
        total = W.at(k).sum_edges(W.at(k).exchange(W.at(k).to_edges(X[lo:hi])))
        expected = np.tensordot(there.astype(dtype), X, 1)[lo:hi].astype(dtype)
        self.check(np.array_equal(total, expected), f"{line}, spread and collect")
        self.alien[W] += 2

    def fetch(self):
        rng, net = self.rng, self.net
        W, _ = pick(rng, self.mixers)
        k, shape, dtype = (
            int(rng.integers(6)),
            pick(rng, draws.SHAPES),
            pick(rng, [np.uint8, np.float16, np.int64, np.float32]),
        )
        X = rng.integers(0, 200, (net.n, *shape)).astype(dtype)
        line = f"fetch over {W.topology.name} at({k}), rows {shape} {np.dtype(dtype).str}"
        self.note(f"{self.what}: {line}")
        phase = W.at(k)
        got = phase.fetch(X[net.lo : net.hi]).wait()
        self.check(got.dtype == dtype and np.array_equal(got, X[phase.halo]), line)
        self.alien[W] += 1

    def means(self):
        X, x, line = self.rows(pick(self.rng, draws.DTYPES))
        x = x if x.dtype.isnative else x.astype(X.dtype)
        self.note(f"{self.what}: mean and gather of {line}")
        self.check(
            self.net.mean(x).tobytes() == self.alone.mean(X).tobytes(),
            f"mean of {line}: other bits than in one process",
        )
        whole = self.net.gather(x)
        self.check(
            whole is None if self.net.rank else whole.tobytes() == X.tobytes(), f"gather of {line}"
        )
        self.check(self.net.scatter(whole).tobytes() == x.tobytes(), f"scatter of {line}")


def test_some_programs(fuzz):
    fuzz(Program, 0, 6)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", range(8))
def test_many_programs(fuzz, chunk):
    fuzz(Program, 1000 * (chunk + 1), 30)
