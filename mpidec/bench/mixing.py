"""The groups mixing, nodes and local: W(X) and neighbor_allreduce, against the same by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..comm.kernels import weighted_sum
from ..comm.runtime import MPI
from ..topology import Topology
from .cells import Cell, Contender, aligned
from .report import (
    HAND,
    LOCAL,
    Group,
)

# Pretended where all ranks are on one host.
RANKS_PER_NODE = 2
NEIGHBORHOOD, BY_HAND = "Neighbor_allgather + NumPy", "Isend/Irecv + NumPy"


class MixingCell(Cell):
    """W(X) by each transport, the same by hand, an Allreduce, and the local limit."""

    group = Group("mixing: W(X) by each transport", ("times_local_limit", "faster_than_allreduce"))
    sizes = "8,64K,1M,16M"
    graphs = "ring,exponential,one_peer_exponential"
    fewest_ranks = 1

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 12 + 4 * transports + ranks

    def _contenders(self) -> Iterator[Contender]:
        comm, x, y = self.comm, self.x, self.y
        yield Contender(
            LOCAL, [self._local(phase) for phase in self.phases], self.mixed, y, role=LOCAL
        )
        for name in self.transports if comm.size > 1 else ["auto"]:
            net = self._network(name)
            label = f"W(X) {name}" if comm.size > 1 else "W(X)"
            yield from self._mixings(label, net)
            yield Contender(
                f"{label}, any array",
                [partial(net.mixer(self.topology), x, y)] * self.period,
                self.mixed,
                y,
            )
        if comm.size == 1:
            return
        yield self._allreduce()
        term = aligned((self.d,))
        weigh = [self._by_numpy(phase, term) for phase in self.phases]
        if self._all_receive():
            yield Contender(
                NEIGHBORHOOD,
                [self._neighborhood(*both) for both in zip(self.phases, weigh)],
                self.mixed,
                y,
                role=HAND,
            )
        yield Contender(
            BY_HAND,
            [self._isend_irecv(*both) for both in zip(self.phases, weigh)],
            self.mixed,
            y,
            role=HAND,
        )

    def _local(self, phase: Topology) -> Callable[[], None]:
        """One private copy and one fused weighted sum, of rows that are here already."""
        weights, others = self._weights(phase)
        halo, copy, x, y = aligned((len(others), self.d)), aligned(self.x.shape), self.x, self.y
        halo[:] = self.rows(self.rows.start, others)

        def call() -> None:
            np.copyto(copy, x)
            weighted_sum(weights, copy, halo, y)

        return call

    def _by_numpy(self, phase: Topology, term: np.ndarray) -> Callable[[], None]:
        """Return the weighted sum as one writes it in NumPy, without allocating anything."""
        dense = phase.rows(self.rows.lo, self.rows.hi).toarray()[0]
        own, weights = dense[self.rows.lo], dense[phase.in_neighbors(self.rows.lo)].tolist()
        x, y, halo = self.x[0], self.y[0], self.halo

        def call() -> None:
            np.multiply(x, own, out=y)
            for weight, row in zip(weights, halo):
                np.multiply(row, weight, out=term)
                np.add(y, term, out=y)

        return call

    def _neighborhood(self, phase: Topology, weigh: Callable[[], Any]) -> Callable[[], None]:
        graph, receives, _ = self._graph(phase)
        x, arriving = [self.x, MPI.DOUBLE], [self.halo[:receives], MPI.DOUBLE]

        def call() -> None:
            graph.Neighbor_allgather(x, arriving)
            weigh()

        return call


class NodesCell(Cell):
    """W(X) with messages between nodes, against the same by hand with the package's own weighted
    sum.
    """

    group = Group(
        "nodes: W(X) with messages, against MPI calls by hand and the package's own weighted sum",
        ("times_hand", "faster_than_allreduce"),
    )
    sizes = "8,64K,1M"

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 20 + ranks

    def _contenders(self) -> Iterator[Contender]:
        ranks_per_node = self._ranks_per_node()
        if 1 < ranks_per_node < self.comm.size:
            yield from self._mixings(f"W(X) {ranks_per_node} ranks a node", self._network("auto"))
        yield from self._mixings("W(X) p2p", self._network("p2p"))
        yield self._allreduce()
        weigh = [self._by_kernel(phase) for phase in self.phases]
        ways = {
            "Isend/Irecv + kernel": self._isend_irecv,
            "persistent requests + kernel": self._persistent,
        }
        if self._all_receive():
            ways["Neighbor_alltoallv + kernel"] = self._alltoallv
        for name, way in ways.items():
            yield Contender(
                name,
                [way(*both) for both in zip(self.phases, weigh)],
                self.mixed,
                self.y,
                role=HAND,
            )

    def _ranks_per_node(self) -> int:
        """Return the ranks of a node; pretended if all ranks are on one host."""
        variable = "MPIDEC_RANKS_PER_NODE"
        given = os.environ.get(variable)
        if given:
            return int(given) if given.isdigit() else 0  # Network refuses it with a message
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        most: int = self.comm.allreduce(node.size, MPI.MAX)
        node.Free()
        if most < self.comm.size:
            return most
        os.environ[variable] = str(RANKS_PER_NODE)
        self._stack.callback(os.environ.pop, variable, None)
        return RANKS_PER_NODE

    def _by_kernel(self, phase: Topology) -> Callable[[], Any]:
        weights, others = self._weights(phase)
        return partial(weighted_sum, weights, self.x, self.halo[: len(others)], self.y)

    def _persistent(self, phase: Topology, weigh: Callable[[], Any]) -> Callable[[], None]:
        requests = self._requests(phase, self.x)

        def call() -> None:
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            weigh()

        return call

    def _alltoallv(self, phase: Topology, weigh: Callable[[], Any]) -> Callable[[], None]:
        graph, receives, sends = self._graph(phase)
        d = self.d
        sent = [self.x, ([d] * sends, [0] * sends), MPI.DOUBLE]
        arriving = [
            self.halo[:receives],
            ([d] * receives, [d * j for j in range(receives)]),
            MPI.DOUBLE,
        ]

        def call() -> None:
            graph.Neighbor_alltoallv(sent, arriving)
            weigh()

        return call


class LocalCell(Cell):
    """`neighbor_allreduce`, with the weights of the topology and with weights in each call."""

    group = Group(
        "local: neighbor_allreduce, with the weights of the topology or with weights in each call",
        ("faster_than_allreduce",),
    )
    sizes = "8,64K,1M"

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 20 + 2 * ranks

    def _contenders(self) -> Iterator[Contender]:
        ways = {
            "topology": self._nothing,
            "pull": self._pull,
            "push": self._push,
            "push-pull": self._push_pull,
        }
        for name, arguments in ways.items():
            # One each: a schedule moves on by one at each call.
            net = self._network()
            net.set_topology(self.topology)
            calls = [
                partial(net.neighbor_allreduce, self.x[0], **arguments(phase))
                for phase in self.phases
            ]
            yield Contender(f"neighbor_allreduce, {name}", calls, self.mixed)
        yield self._allreduce()

    def _nothing(self, phase: Topology) -> dict[str, Any]:
        return {}

    def _pull(self, phase: Topology) -> dict[str, Any]:
        W, i = phase.W.toarray(), self.rows.lo
        return {
            "self_weight": W[i, i],
            "src_weights": {j: W[i, j] for j in phase.in_neighbors(i).tolist()},
        }

    def _push(self, phase: Topology) -> dict[str, Any]:
        W, i = phase.W.toarray(), self.rows.lo
        return {
            "self_weight": W[i, i],
            "dst_weights": {j: W[j, i] for j in phase.out_neighbors(i).tolist()},
        }

    def _push_pull(self, phase: Topology) -> dict[str, Any]:
        return {**self._pull(phase), "dst_weights": phase.out_neighbors(self.rows.lo).tolist()}
