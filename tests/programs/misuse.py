"""Wrong uses of the package, and a program that commits a list of them in one launch.

    mpirun -n 4 python tests/programs/misuse.py TRANSPORT FIRST CASE...   prints one line of JSON per case: the results on each rank

A case is `where:kind:seed`: the seed draws the odd rank, the call in which it goes wrong, and the rows.  All agents are
neighbours, so that no rank may get a result from a call in which the odd rank does something else.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import mpidec
from mpidec import topology as T

WORLD = MPI.COMM_WORLD
CALLS = 4  # calls of a case; one of them goes wrong on one rank
D = 6


class Wrong(Exception):
    """Error of the case `raise`."""


def fail() -> None:
    raise Wrong("this rank fails")


ENDS: dict[str, Callable[[], Any]] = {
    "sleep": lambda: time.sleep(100),
    "exit": lambda: sys.exit(0),
    "abort": lambda: os._exit(3),
    "raise": fail,
}
EDGES = ("list", "source", "stranger")
ANYTHING = np.array(np.nan)  # any result will do


def complete(n: int, seed: int) -> T.Topology:
    """Complete graph with random weights."""
    W = np.random.default_rng([seed, n]).random((n, n)) + 0.1
    return T.from_weights(W / W.sum(axis=1, keepdims=True))


class Mixing:
    """Case of mixings over complete graphs: the odd rank does something else in one of them."""

    def __init__(self, kind: str, seed: int, transport: str):
        rng = np.random.default_rng([seed, WORLD.size])
        self.kind, self.transport, self.n = kind, transport, WORLD.size
        self.odd, self.when = int(rng.integers(self.n)), int(rng.integers(CALLS))
        self.d = D if rng.integers(3) else 20000  # copied, or read in place
        self.X = rng.standard_normal((CALLS + 2, self.n, self.d))
        self.me = WORLD.rank == self.odd
        if kind == "transport" and self.me:
            self.transport = "p2p" if transport != "p2p" else "neighbor"

    def calls(self) -> Iterator[tuple[Callable[[], Any], np.ndarray | None]]:
        """The calls of this rank, each with the right result; None where no rank may get one."""
        n = self.n + (self.kind == "agents" and self.me)
        self.net = net = mpidec.Network(n, transport=self.transport)
        schedule = T.cycle([complete(n, k) for k in range(3)])
        W, V = net.mixer(schedule), net.mixer(complete(n, 9))
        for k in range(CALLS):
            X = self.X[k]
            x, expected = (
                X[net.lo : net.hi],
                (schedule.at(k).W @ X)[net.lo : net.hi] if n == self.n else None,
            )
            right, otherwise = (lambda k=k, x=x: W.at(k)(x)), self.otherwise(W, V, k, x)
            if k != self.when or self.kind in ("agents", "transport"):
                yield right, expected
            elif (
                self.kind in ("mean", "gather", "mean_dtype", "mean_columns", "gather_dtype")
                and not self.me
            ):
                yield (lambda x=x: self.collective(x)) if "_" in self.kind else right, None
            elif self.kind in ("more", "less", "sleep", "exit", "raise"):
                if not (self.me and self.kind == "less"):
                    yield otherwise if self.me else right, expected if self.kind != "less" else None
                if self.me and self.kind == "more":
                    yield right, None
            elif self.kind == "order":
                yield (otherwise if self.me else lambda k=k, x=x: in_order(W.at(k), V, x)), None
            else:
                yield otherwise if self.me else right, None
        yield net.close, ANYTHING

    def collective(self, x: np.ndarray) -> Any:
        return self.net.gather(x) if self.kind.startswith("gather") else self.net.mean(x)

    def otherwise(self, W: Any, V: Any, k: int, x: np.ndarray) -> Callable[[], Any]:
        """The call of the odd rank in place of `W.at(k)(x)`."""
        net, m = self.net, len(x)
        wide, others = (
            np.concatenate([x, x], axis=1),
            [rank for rank in range(net.size) if rank != net.rank],
        )
        ways: dict[str, Callable[[], Any]] = {
            "columns": lambda: W.at(k)(x[:, :-1].copy()),
            "shape": lambda: W.at(k)(x.reshape(m, 2, -1)),
            "scalars": lambda: W.at(k)(x[:, 0].copy()),
            "none": lambda: W.at(k)(x[:, :0].copy()),
            "dtype": lambda: W.at(k)(x.astype(np.float32)),
            "same_bytes": lambda: W.at(k)(wide.astype(np.float32)),
            "half": lambda: W.at(k)(x.astype(np.float16)),
            "complex": lambda: W.at(k)(x.view(np.complex128)),
            "complex_columns": lambda: W.at(k)(x.astype(np.complex64)),
            "topology": lambda: V(x),
            "step": lambda: W.at(k + 1)(x),
            "list": lambda: W.at(k)([x, x]),
            "exchange": lambda: W.at(k).exchange(W.at(k).to_edges(x)),
            "order": lambda: in_order(V, W.at(k), x),
            "mean": lambda: net.mean(x),
            "gather": lambda: net.gather(x),
            "agree": lambda: net.agree(None),
            "barrier": net.barrier,
            "allreduce": lambda: net.allreduce(x),
            "neighbor_allreduce": lambda: net.neighbor_allreduce(x, 1, others, others),
            "mixer": lambda: net.mixer(complete(self.n, 5)),
            "close": net.close,
            "mean_dtype": lambda: net.mean(wide.astype(np.float32)),
            "mean_columns": lambda: net.mean(x[:, :-1].copy()),
            "gather_dtype": lambda: net.gather(wide.astype(np.float32)),
            **ENDS,
        }
        return ways.get(self.kind, lambda: W.at(k)(x))


def in_order(first: Any, second: Any, x: np.ndarray) -> Any:
    """Start two mixings in this order, and wait for them."""
    pending = [first.start(x), second.start(x)]
    return [one.wait() for one in pending]


class LocalCalls:
    """Case of the local-view calls: random calls, one of which the odd rank makes in another way."""

    def __init__(self, kind: str, seed: int, transport: str):
        rng = np.random.default_rng([seed, WORLD.size])
        self.kind, self.n, self.i = kind, WORLD.size, WORLD.rank
        self.odd, self.when = int(rng.integers(self.n)), int(rng.integers(CALLS))
        self.me, self.rng, self.transport = WORLD.rank == self.odd, rng, transport

    def calls(self) -> Iterator[tuple[Callable[[], Any], np.ndarray | None]]:
        n, i, rng = self.n, self.i, self.rng
        self.net = net = mpidec.Network(transport=self.transport)
        net.set_topology(T.cycle([complete(n, 1), complete(n, 2)]))
        steps, others = itertools.count(), [j for j in range(n) if j != i]
        for k in range(CALLS):
            d, wrong = int(rng.choice([3, 5000])), self.me and k == self.when
            X, A, root = rng.standard_normal((n, d)), rng.random((n, n)), int(rng.integers(n))
            which = str(rng.choice(["both", "push", "static", "allreduce", "broadcast"]))
            which = "broadcast" if self.kind == "root" else "both" if self.kind in EDGES else which
            x, src, dst = X[i], {j: A[i, j] for j in others}, dict.fromkeys(others, 1.0)
            if wrong:
                x = {
                    "rows": x[:-1],
                    "dtype": x.astype(np.float32),
                    "same_bytes": np.append(x, x).astype(np.float32),
                    "complex": x.astype(complex),
                    "integers": x.astype(int),
                }.get(self.kind, x)
                root = (root + (self.kind == "root")) % n
                which = (
                    {"push": "static", "static": "both", "both": "push"}.get(which, "push")
                    if self.kind == "mode"
                    else which
                )
                which = (
                    {"allreduce": "broadcast"}.get(which, "allreduce")
                    if self.kind == "call"
                    else which
                )
                if self.kind in ("list", "source"):
                    (dst if self.kind == "list" else src).popitem()
                if self.kind == "stranger":
                    src[n + 3] = 1.0
            step = next(steps) if which == "static" else 0
            expected = {
                "both": 0.5 * X[i] + (A[i] * (np.arange(n) != i)) @ X,
                "push": X.sum(axis=0) - 0.5 * X[i],
                "static": (complete(n, 1 + step % 2).W @ X)[i],
                "allreduce": X.mean(axis=0),
                "broadcast": X[root],
            }[which]
            call = {
                "both": lambda x=x, src=src, dst=dst: net.neighbor_allreduce(x, 0.5, src, dst),
                "push": lambda x=x, dst=dst: net.neighbor_allreduce(x, 0.5, dst_weights=dst),
                "static": lambda x=x: net.neighbor_allreduce(x),
                "allreduce": lambda x=x: net.allreduce(x),
                "broadcast": lambda x=x, root=root: net.broadcast(x, root),
            }[which]
            if wrong and self.kind in ENDS:
                call = ENDS[self.kind]
            if wrong and self.kind == "more":
                yield call, ANYTHING
            if not (
                wrong and self.kind == "less"
            ):  # one call more or less is found when the network is closed
                yield call, ANYTHING if wrong or self.kind in ("more", "less") else expected
        yield net.close, ANYTHING


def run(case: str, transport: str) -> list[Any]:
    """Make the calls of a case on this rank: the outcome of each, up to the first error."""
    where, kind, seed = case.split(":")
    program = {"mixing": Mixing, "local": LocalCalls}[where](kind, int(seed), transport)
    said: list[Any] = []
    calls = program.calls()
    while True:
        try:
            call, expected = next(calls)  # makes the network and the mixers at first
            got = call()
        except StopIteration:
            break
        except Wrong:
            raise
        except Exception as error:
            said.append([type(error).__name__, str(error)])
            if where == "mixing":
                break
        else:
            right = expected is ANYTHING or (
                expected is not None
                and np.shape(got) == expected.shape
                and np.allclose(got, expected, atol=1e-12)
            )
            said.append("right" if right else "returned" if expected is None else "wrong")
    return [program.odd, program.when, said]


def main() -> None:
    transport, cases = sys.argv[1], sys.argv[2:]
    for case in cases:
        if WORLD.rank == 0:
            print(json.dumps(["begins", case]), flush=True)
        WORLD.Barrier()
        ends = WORLD.gather(run(case, transport))
        if WORLD.rank == 0:
            print(json.dumps(["ends", case, ends]), flush=True)


if __name__ == "__main__":
    main()
