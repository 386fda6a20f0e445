"""What the local-view calls stand on: topologies of ranks and machines, and how a call begins."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ...checks.header import ACROSS, OK, Script
from ...checks.matching import Messenger
from ...checks.operation import Call
from ...runtime.partition import Partition
from ...transport.plan import Plan
from .edges import Edges, valid_nodes

if TYPE_CHECKING:
    from ...topology import Schedule, Topology
    from ..mixer import Mixer


class Graph:
    """A topology of ranks or machines, seen from one of them; a schedule moves on by one at each call."""

    def __init__(self, topology: Topology | Schedule, node: int):
        self.topology, self.node, self.step = topology, node, 0
        self._plans: OrderedDict[int, Plan] = OrderedDict()
        self.mixer: Mixer | None = None

    def take(self) -> Plan:
        """The plan of the current step; the next call gets the next one."""
        self.step += 1
        return self.at(self.step - 1)

    def at(self, step: int) -> Plan:
        """The plan of a step."""
        key = step if self.topology.period is None else step % self.topology.period
        if key not in self._plans:
            if len(self._plans) >= 64 and self.topology.period is None:
                self._plans.popitem(last=False)
            n = self.topology.n
            self._plans[key] = Plan(self.topology.at(key), Partition(n, n), self.node)
        return self._plans[key]


class LocalBase:
    """Topologies, and the beginning of calls."""

    n: int
    rank: int
    size: int
    comm: MPI.Intracomm
    check: Any
    _matching: Messenger
    _graph: Graph | None = None
    _machine_graph: Graph | None = None
    _machine_list: list[list[int]] | None = None
    _known: set[Any] | None = None

    def set_topology(self, topology: Topology | Schedule) -> None:
        """The graph of the calls without lists of their own; a schedule begins at its first step.

        Raises
        ------
        ValueError
            If the topology is not for one agent per rank, or differs between ranks.

        Notes
        -----
        Collective: a message up and down a tree.
        """
        self._agree_on("set_topology", topology, lambda: self.size)
        if self._graph is not None and self._graph.mixer is not None:
            self._graph.mixer.close()
        self._graph = Graph(topology, self.rank)
        self._graph.mixer = self.mixer(topology)

    def set_machine_topology(self, topology: Topology | Schedule) -> None:
        """The graph between machines for `hierarchical_neighbor_allreduce`; machines count from 0 by their lowest ranks.

        A machine is a node with shared memory, or `MPIDEC_RANKS_PER_NODE` ranks if that variable is set.  Collective.

        Raises
        ------
        ValueError
            If the topology is not for the number of machines, or differs between ranks.
        """
        self._agree_on("set_machine_topology", topology, lambda: len(self.machines()))
        self._machine_graph = Graph(topology, self._machine)

    def machines(self) -> list[list[int]]:
        """The ranks of each machine; collective when called for the first time.

        Examples
        --------
        >>> import mpidec
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.machines()
        [[0]]
        """
        if self._machine_list is None:
            per = os.environ.get("MPIDEC_RANKS_PER_NODE")
            if per:
                if not per.isdigit() or int(per) < 1:
                    raise ValueError(f"MPIDEC_RANKS_PER_NODE is {per!r}, expected a whole number >= 1")
                leaders = [rank - rank % int(per) for rank in range(self.size)]
            else:
                node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
                leaders = self.comm.allgather(node.allreduce(self.rank, MPI.MIN))
                node.Free()
            self._machine_list = [[rank for rank, its in enumerate(leaders) if its == leader] for leader in sorted(set(leaders))]
        return self._machine_list

    @property
    def _machine(self) -> int:
        return next(m for m, ranks in enumerate(self.machines()) if self.rank in ranks)

    def _one_agent_each(self) -> Messenger:
        if self.n != self.size:
            raise ValueError(f"the network has {self.n} agents on {self.size} ranks, expected one on each: these calls are for "
                             "Network(); for any number of agents there is net.mixer(topology)")
        return self._matching

    def mixer(self, topology: Topology | Schedule) -> Mixer:
        """The operator `W` of a topology."""
        raise NotImplementedError

    def _begun(self) -> int:
        """Mixings in shared memory that this rank has begun."""
        raise NotImplementedError

    def _begin(self, op: str, prepare: Callable[[Call], Script], *lists: Any, peer: int | None = None,
               members: Iterable[int] = ()) -> Call:
        """A new call; if its arguments are wrong, the ranks that would wait for this one are told."""
        post = self._one_agent_each()
        call = post.call(op, peer)
        try:
            script = prepare(call)
        except Exception as error:
            concerned = set().union(*(valid_nodes(some, self.size) for some in lists), members)
            if self._graph is not None and peer is None:
                route = self._graph.at(max(self._graph.step - 1, 0)).halo_route
                concerned |= set(route.dests.tolist()) | set(route.sources.tolist())
            if peer is None:
                call.join_tree()
            else:
                concerned.add(peer)
            post.give_up(call, error, concerned - {self.rank})
            raise
        return post.begin(call, script)

    def _step(self, dests: Any) -> Plan | None:
        return self._graph.take() if dests is None and self._graph is not None else None

    def _link(self, call: Call, edges: Edges, check: bool = True) -> bool:
        """Tell the call who takes part; whether the receivers are to confirm that they expect its messages."""
        call.mode = edges.mode
        if edges.mode == "static" and self._graph is not None:
            call.mark = f"step {self._graph.step}"
        if edges.mode == "push":
            call.join_tree()
            call.open = True
        call.out |= frozenset(edges.dests)
        call.sources |= {(rank, ACROSS) for rank in edges.sources}
        key = call.op, edges.sources, tuple(edges.dests)
        known = self._known if self._known is not None else set()
        if not (check and self.check and edges.mode == "dynamic") or key in known:
            return False
        if len(known) > 4096:
            known.clear()
        known.add(key)
        call.sources |= {(rank, OK) for rank in edges.dests}
        return True

    def _agree_on(self, op: str, topology: Topology | Schedule | None = None, count: Callable[[], int] | None = None) -> None:
        def prepare(call: Call) -> Script:
            if topology is not None:
                if not hasattr(topology, "fingerprint"):
                    raise TypeError(f"the topology is {type(topology).__name__}, expected one of mpidec.topology "
                                    "(from_networkx makes one of a graph)")
                call.mark = f"topology {topology.name} #{topology.fingerprint() & 0xFFFFFFFF:08x}"
            return call.consensus(*call.join_tree())
        self._begin(op, prepare).wait()
        if topology is not None and count is not None and topology.n != count():
            raise ValueError(f"the {topology.name} topology has {topology.n} agents, expected {count()}")

    def _close_local(self) -> ValueError | None:
        """Let no message outlive the network; what was found out about calls that had ended."""
        if self.size == 1:
            return None
        return self._matching.close()
