r"""Local-view calls of a network: for a program that is written for one agent, and run by all.

.. math:: x_i^+ = s_i x_i + \sum_j r_{ij} t_{ji} x_j

where the receiver i chooses `self_weight` :math:`s_i` and `src_weights` :math:`r_{ij}`, and the
sender j chooses `dst_weights` :math:`t_{ji}`.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ....topology import Schedule, Topology
from ....topology.internals import refuse_filter
from ...arrays import Array, Given
from ...checks import (
    CONFIRMATION,
    EDGE,
    FROM_LEADER,
    TO_LEADER,
    Matching,
    Operation,
    Steps,
    lists_disagree,
)
from ...rma import Window
from ...runtime import Checked, Pending, ranks_of_node
from ...transport import NodeCalls, Routes, WeightedSum
from ..base.agreement import Agreement
from ..base.traced import trace
from ..mixers.factory import Mixers
from . import operations
from .edges import Nodes, RankEdges, Weight, index, number, repeatable, valid_nodes
from .flat import FlatArray, combine
from .graph import LocalGraph

if TYPE_CHECKING:
    from ....topology.internals import TopologyLike
    from ..mixers.mixer import Mixer

_NUMBERS = "biufc"  # kinds of dtypes that can be sent
# Lists of neighbours that are remembered.
_KNOWN = 4096
_GRAPHS = 16  # that have been set, and are kept
_DICT = dict, type(None)


class LocalView:
    """The calls of a network for programs with one agent per rank, on arrays of any shape:
    `net.local`.

    Every rank makes the same calls in the same order, except for `pair_gossip`, which two ranks
    make.  The inputs are never modified, the results are new arrays, and sums are taken in
    ascending order of the ranks.  `start_...` begins a call and returns a `Pending` at once; its
    `wait()` returns the result.

    Attributes
    ----------
    check : bool or "all"
        Whether lists of senders and receivers are compared when they are used for the first time
        (by one confirmation per message); True by default.  "all": in each call that has both
        lists, all ranks wait for each other, compare the lists of all, and raise together, so that
        a program can go on.

    Notes
    -----
    Wrong use raises a ValueError that names both sides, on all ranks involved.  A wait that lasts
    longer than `MPIDEC_TIMEOUT` seconds (60 by default; `inf`: no limit) reports which rank waits
    for which, and aborts the job.
    """

    def __init__(
        self, agreement: Agreement, matching: Matching, mixers: Mixers, windows: list[Window]
    ):
        self.context = context = agreement.context
        self._agreement, self._matching = agreement, matching
        self._mixers, self._windows = mixers, windows
        self.rank, self.size, self._engine = context.rank, context.size, context.engine
        near = context.memory is not None and context.memory.single_node
        self._node_calls = NodeCalls(context) if near else None
        self._graph: LocalGraph | None = None
        self._graphs: dict[str | Topology | Schedule, LocalGraph] = {}
        self._machine_graph: LocalGraph | None = None
        self._machine_list: list[list[int]] | None = None
        self._known: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = set()
        self._sums: dict[tuple[object, ...] | None, WeightedSum] = {}
        trace(self, "local", context.timeline)

    @property
    def n(self) -> int:
        """The number of agents."""
        return self.context.partition.n

    @property
    def check(self) -> Checked:
        """Whether lists of senders and receivers are compared; see `Network.check`."""
        return self._matching.check

    # Topologies

    def set_topology(self, topology: TopologyLike) -> None:
        """Set the graph of the calls without lists of their own; a schedule begins at its first
        step.

        Parameters
        ----------
        topology : Topology, Schedule, str, networkx graph, matrix or function
            As `mpidec.solve` takes it: also a name, such as "ring", or a function of n.

        Raises
        ------
        ValueError, TypeError
            If there is no such topology, if it is not for one agent per rank, or if it differs
            between ranks.

        Notes
        -----
        Collective: a few small reductions, and none for one of the last 16 that were set: where
        ranks differ then, the next call says so.
        """
        self.one_agent_each()
        kept = topology if isinstance(topology, (str, Topology, Schedule)) else None
        graph = None if kept is None else self._graphs.get(kept)
        if graph is None:
            made = self._mixers.agreed("net.set_topology", topology, self.n)
            refuse_filter("net.set_topology", made)
            graph = LocalGraph(made, self.rank, self._mixers.make(made, "neighbor_allreduce"))
            if len(self._graphs) >= _GRAPHS:  # in the order in which all ranks have set them
                self._graphs.pop(next(iter(self._graphs))).close()
            self._graphs[kept or made] = graph
            self._sums.clear()
        with self._engine:  # which the network has until it is closed
            self._matching.require_in_step()
            graph.step = 0
            self._graph = graph

    @property
    def topology(self) -> Topology | Schedule | None:
        """What `set_topology` has set last."""
        return None if self._graph is None else self._graph.topology

    @property
    def _near(self) -> list[int]:
        """The ranks that a call over the graph receives from."""
        graph = self._graph
        return [] if graph is None else graph.at(graph.step).halo_route.sources.tolist()

    @property
    def machine_topology(self) -> Topology | Schedule | None:
        """What `set_machine_topology` has set last."""
        return None if self._machine_graph is None else self._machine_graph.topology

    def set_machine_topology(self, topology: TopologyLike) -> None:
        """Set the graph between machines for `hierarchical_neighbor_allreduce`; machines are
        numbered by their lowest ranks.

        A machine is a node with shared memory, or a block of `MPIDEC_RANKS_PER_MACHINE` or
        `MPIDEC_RANKS_PER_NODE` ranks where one of these variables is set.  Collective.

        Raises
        ------
        ValueError
            If the topology is not for the number of machines, or differs between ranks.
        """
        self.one_agent_each()
        count = len(self.machines())
        made = self._mixers.agreed("net.set_machine_topology", topology, count, " machines")
        self._machine_graph = LocalGraph(made, self._machine)

    def machines(self) -> list[list[int]]:
        """Return the ranks of each machine; collective when called for the first time.

        Examples
        --------
        >>> import mpidec
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.machines()
        [[0]]
        """
        if self._machine_list is None:
            names = "MPIDEC_RANKS_PER_MACHINE", "MPIDEC_RANKS_PER_NODE"
            name = next((name for name in names if os.environ.get(name)), names[1])
            per = os.environ.get(name, "").lstrip("0")
            with self._agreement.agreeing("net.machines"):
                if per and not (per.isdigit() and int(per) >= 1):
                    raise ValueError(f"{name} is {per!r}, expected a whole number >= 1")
            self._agreement.reached("net.machines", f"{name}={per}")
            if per:
                leaders = [rank - rank % int(per) for rank in range(self.size)]
            else:  # by now all ranks have come
                with self._engine, self._agreement.collectives:
                    node = ranks_of_node(self.context.comm)
                    leader = node.bcast(self.rank)
                    node.Free()
                    leaders = self._agreement.collectives.gather_all(
                        np.array(leader), "net.machines"
                    ).tolist()
            self._machine_list = [
                [rank for rank, its in enumerate(leaders) if its == leader]
                for leader in sorted(set(leaders))
            ]
        return self._machine_list

    @property
    def _machine(self) -> int:
        return next(m for m, ranks in enumerate(self.machines()) if self.rank in ranks)

    # Calls along the edges

    def neighbor_allreduce(
        self,
        x: Given,
        self_weight: Weight = None,
        src_weights: Nodes = None,
        dst_weights: Nodes = None,
    ) -> Any:
        r"""Return a weighted sum of this rank's array and its neighbours': :math:`s_i x_i + \sum_j
        r_{ij} t_{ji} x_j`.

        Parameters
        ----------
        x : array of any shape
            The same shape and dtype on neighbouring ranks: float16 to complex128, NumPy or PyTorch
            (also bfloat16).
        self_weight : float, optional
        src_weights : dict {rank: weight} or list of ranks (weights 1), optional
            The factors of these ranks' arrays on arrival.
        dst_weights : dict or list, optional
            The ranks to send to, and the factors of this rank's array on the way there.

        Returns
        -------
        array like x
            Without weights: the row of `W x` of the topology that was set.  With `self_weight` and
            `src_weights`: pulled along its edges; neighbours that are not named have weight 0.
            With `self_weight` and `dst_weights`: pushed; each rank gets whatever is sent to it.
            With all three: from exactly these to exactly those ranks, which may be none.

        Raises
        ------
        ValueError, TypeError

        Notes
        -----
        Weights are used as given: `self_weight`, `src_weights` and `dst_weights` may sum to any
        number.  For an average, the factors :math:`s_i + \sum_j r_{ij} t_{ji}` of each receiver
        must sum to 1; to conserve the total over all ranks (push-sum), those of each sender,
        :math:`s_j + \sum_i r_{ij} t_{ji}`.

        One message per edge, and two small ones per rank and level of a tree when pushing.  16-bit
        floats are summed in float32.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     x = np.array([1.0, 2.0])
        ...     net.set_topology(mpidec.topology.ring(1))
        ...     (
        ...         net.neighbor_allreduce(x),
        ...         net.neighbor_allreduce(x, self_weight=0.5, src_weights={}, dst_weights={}),
        ...     )
        (array([1., 2.]), array([0.5, 1. ]))
        """
        graph = self._graph
        if (
            graph is not None
            and graph.mixer is not None
            and self_weight is None
            and src_weights is None
            and dst_weights is None
            and type(x) is np.ndarray
        ):
            phase = graph.mixer.at(graph.step)
            graph.step += 1  # also if the mixing raises
            # None, and nothing has happened, if the array is not of the common kind.
            y = phase.mix(x.reshape(1, -1), None)
            if y is not None:
                return y.reshape(x.shape)
            graph.step -= 1
        return self._neighbor_allreduce(x, self_weight, src_weights, dst_weights)

    def _neighbor_allreduce(
        self, x: Given, self_weight: Weight, src_weights: Nodes, dst_weights: Nodes
    ) -> Any:
        """Perform a `neighbor_allreduce` that cannot be done as one mixing."""
        if self_weight is not None and type(x) is np.ndarray and self._node_calls is not None:
            y = self._sum_as_before(x, self_weight, src_weights, dst_weights)
            if y is not None:
                return y
        return self.start_neighbor_allreduce(x, self_weight, src_weights, dst_weights).wait()

    def start_neighbor_allreduce(
        self,
        x: Given,
        self_weight: Weight = None,
        src_weights: Nodes = None,
        dst_weights: Nodes = None,
        *,
        name: str = "",
    ) -> Pending:
        """Begin `neighbor_allreduce`.

        `name`, here and in the other calls that begin one, stands in messages about it, and must be
        the same on all ranks: it shows when several calls under way were begun in another order
        elsewhere.
        """
        if (
            self_weight is None
            and src_weights is None
            and dst_weights is None
            and self._graph is not None
            and self._graph.mixer is not None
        ):
            return self._start_mixing(x, self._graph, self._graph.mixer, name)
        if self._node_calls is not None:
            return self._start_on_node(
                self._node_calls, x, self_weight, src_weights, dst_weights, name
            )
        self._compare_lists("neighbor_allreduce (dynamic)", src_weights, dst_weights)

        def prepare(operation: Operation) -> Steps:
            plan = self._step(dst_weights)
            array = FlatArray.of(x)
            edges = RankEdges.of(
                plan,
                self.rank,
                self.size,
                self_weight,
                src_weights,
                dst_weights,
                names=("src_weights", "dst_weights"),
            )
            operation.array = array.dtype, array.shape
            return operations.neighbor_allreduce(
                operation, array, edges, self.rank, self._connect(operation, edges)
            )

        return self._begin("neighbor_allreduce", prepare, src_weights, dst_weights, name=name)

    def _start_on_node(
        self,
        calls: NodeCalls,
        x: Given,
        self_weight: Weight,
        src_weights: Nodes,
        dst_weights: Nodes,
        name: str,
    ) -> Pending:
        """With weights of this call, through the memory of the node."""
        self.one_agent_each()
        with self._engine:
            key = None if name else self._sum_key(x, src_weights, dst_weights)
            try:
                plan, array = self._step(dst_weights), FlatArray.of(x)
                edges = RankEdges.of(
                    plan,
                    self.rank,
                    self.size,
                    self_weight,
                    src_weights,
                    dst_weights,
                    names=("src_weights", "dst_weights"),
                )
            except Exception as error:
                calls.give_up("neighbor_allreduce", error)
                raise
            op = f"{named('neighbor_allreduce', name)} ({edges.mode})"
            if edges.mode == "static" and self._graph is not None:
                op += ", " + self._graph.signature
            weights = None if edges.mode == "push" else edges.weights
            sums = calls.among(
                op,
                weights,
                edges.dests,
                f"an array {array.shape} {array.dtype}",
                self.check if edges.mode == "dynamic" else False,
                edges.dests if edges.mode == "static" else None,
            )
            if key is not None:
                if len(self._sums) >= _KNOWN:
                    self._sums.clear()
                self._sums[key] = sums
            call = sums.start(
                array.flat, edges.own, sums.factors(weights), sums.factors(edges.dests)
            )

        def finish() -> Any:
            out, taken = call.result
            if out.dtype == array.flat.dtype:
                return array.restore(out)
            arrived = {
                rank: (factor, array.widen(bits.view(array.flat.dtype)))
                for (rank, factor), bits in zip(taken, out)
            }
            return array.restore(
                combine(edges.terms(self.rank, array.values, arrived), array.values)
            )

        return Pending(call, finish)

    def _sum_as_before(
        self, x: np.ndarray, self_weight: Weight, src_weights: Any, dst_weights: Any
    ) -> np.ndarray | None:
        """Return the sum with weights of this call, if one of such an array over the same ranks has
        been taken before; else None.
        """
        key = self._sum_key(x, src_weights, dst_weights)
        sums = self._sums.get(key)
        if sums is None or not x.flags.carray:
            return None
        with self._engine:
            if dst_weights is not None or self._graph is None:
                return sums(x, self_weight, src_weights, dst_weights)
            self._graph.step += 1  # also if the call raises
            y = sums(x, self_weight, src_weights, None)
            self._graph.step -= y is None
            return y

    def _sum_key(self, x: Given, src_weights: Nodes, dst_weights: Nodes) -> tuple[Any, ...] | None:
        """Return a key for the ranks of a call with weights, and its array; None if its preparation
        cannot be reused.
        """
        if (
            type(x) is not np.ndarray
            or x.dtype.char not in "df"
            or not x.dtype.isnative
            or type(src_weights) not in _DICT
            or type(dst_weights) not in _DICT
        ):
            return None
        graph = self._graph if dst_weights is None else None
        step = None if graph is None else (id(graph), graph.key)
        return (
            x.shape,
            x.dtype.char,
            self.check,
            step,
            None if src_weights is None else tuple(src_weights),
            None if dst_weights is None else tuple(dst_weights),
        )

    def _start_mixing(self, x: Given, graph: LocalGraph, mixer: Mixer, name: str) -> Pending:
        """Along the topology that was set, with its weights: a mixing of one row."""
        self.one_agent_each()
        array: Array = x if hasattr(x, "reshape") else np.asarray(x)  # type: ignore[assignment]
        shape = tuple(array.shape)
        phase = mixer.at(graph.step)
        graph.step += 1
        row = array.reshape((1, math.prod(shape)))
        if name:
            named_row = phase.start({name: row})
            return Pending(named_row, lambda: named_row.wait()[name].reshape(shape))
        mixing = phase.start(row)
        return Pending(mixing, lambda: mixing.wait().reshape(shape))

    def neighbor_allgather(
        self,
        x: Given,
        src_ranks: Iterable[int] | None = None,
        dst_ranks: Iterable[int] | None = None,
    ) -> Any:
        """Return the neighbours' arrays, one after the other along the first axis; this rank's own
        is not among them.

        Parameters
        ----------
        x : array (k, ...)
            Of any dtype of numbers; k may differ between ranks, the other dimensions may not.
        src_ranks, dst_ranks : list of int, optional
            As the lists of weights in `neighbor_allreduce`.

        Returns
        -------
        array (sum of k, ...)
            In the order of `src_ranks`; ascending where they are not given.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.neighbor_allgather(np.ones((2, 3)), src_ranks=[], dst_ranks=[]).shape
        (0, 3)
        """
        return self.start_neighbor_allgather(x, src_ranks, dst_ranks).wait()

    def start_neighbor_allgather(
        self,
        x: Given,
        src_ranks: Iterable[int] | None = None,
        dst_ranks: Iterable[int] | None = None,
        *,
        name: str = "",
    ) -> Pending:
        """Begin `neighbor_allgather`."""
        self._compare_lists("neighbor_allgather (dynamic)", src_ranks, dst_ranks)

        def prepare(operation: Operation) -> Steps:
            plan = self._step(dst_ranks)
            array = _rows_of(x)
            edges = RankEdges.lists(
                plan, self.rank, self.size, src_ranks, dst_ranks, ("src_ranks", "dst_ranks")
            )
            operation.array, operation.comparable = (
                (array.dtype, array.shape),
                itemgetter(slice(1, None)),
            )
            order = None if src_ranks is None else [int(rank) for rank in src_ranks]
            return operations.neighbor_allgather(
                operation, array, edges, order, self._connect(operation, edges)
            )

        return self._begin("neighbor_allgather", prepare, src_ranks, dst_ranks, name=name)

    def exchange(
        self, messages: Mapping[int, Any], src_ranks: Iterable[int] | None = None
    ) -> dict[int, Any]:
        """Send a different array to each of some ranks.

        Parameters
        ----------
        messages : dict {rank: array}
            Of any shape and dtype of numbers, which may differ between the messages.
        src_ranks : list of int, optional
            The ranks that send to this one; by default those that it sends to.

        Returns
        -------
        dict {rank: array}
            The arrays that those ranks sent, in ascending order of the ranks.

        Examples
        --------
        >>> import mpidec
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.exchange({})
        {}
        """
        result: dict[int, Any] = self.start_exchange(messages, src_ranks).wait()
        return result

    def start_exchange(
        self, messages: Mapping[int, Any], src_ranks: Iterable[int] | None = None
    ) -> Pending:
        """Begin `exchange`."""
        self._compare_lists("exchange", messages if src_ranks is None else src_ranks, messages)

        def prepare(operation: Operation) -> Steps:
            if not isinstance(messages, Mapping):
                raise TypeError(
                    f"messages are {type(messages).__name__}, expected a dict {{rank: array}}"
                )
            edges = RankEdges.lists(
                None,
                self.rank,
                self.size,
                list(messages) if src_ranks is None else src_ranks,
                list(messages),
                ("src_ranks", "messages"),
            )
            arrays = {int(rank): FlatArray.of(array, _NUMBERS) for rank, array in messages.items()}
            operation.array = None
            return operations.exchange(operation, arrays, edges, self._connect(operation, edges))

        return self._begin("exchange", prepare, src_ranks, messages)

    def pair_gossip(
        self, x: Given, peer: int, self_weight: float = 0.5, pair_weight: float = 0.5
    ) -> Any:
        """`self_weight * x + pair_weight * (the peer's x)`; only the two ranks call, each naming
        the other.

        Examples
        --------
        >>> import mpidec
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.pair_gossip(1., 0)
        Traceback (most recent call last):
        ...
        ValueError: peer names rank 0 itself: gossip takes two
        """
        return self.start_pair_gossip(x, peer, self_weight, pair_weight).wait()

    def start_pair_gossip(
        self, x: Given, peer: int, self_weight: float = 0.5, pair_weight: float = 0.5
    ) -> Pending:
        """Begin `pair_gossip`."""
        self.one_agent_each()
        other = index(peer, "peer", self.size)
        if other == self.rank:
            raise ValueError(f"peer names rank {other} itself: gossip takes two")

        def prepare(operation: Operation) -> Steps:
            own, pair, array = (
                number(self_weight, "self_weight"),
                number(pair_weight, "pair_weight"),
                FlatArray.of(x),
            )
            operation.array = array.dtype, array.shape
            edges = RankEdges("", (other,), {other: 1.0}, own, {other: pair})
            return operations.neighbor_allreduce(
                operation, array, edges, self.rank, self._connect(operation, edges, False)
            )

        return self._begin("pair_gossip", prepare, peer=other)

    def hierarchical_neighbor_allreduce(
        self,
        x: Given,
        self_weight: Weight = None,
        src_machine_weights: Nodes = None,
        dst_machine_weights: Nodes = None,
    ) -> Any:
        r"""Return the machines' averages, mixed between machines: every rank of machine m gets
        :math:`\sum_{m'} W_{mm'} \bar x_{m'}`.

        Parameters
        ----------
        x : array of any shape
        self_weight, src_machine_weights, dst_machine_weights : optional
            As in `neighbor_allreduce`, for machines; the same on all ranks of a machine.

        Notes
        -----
        With L ranks on each machine this is :math:`W \otimes \mathbf{1}\mathbf{1}^T / L`.  Machines
        of different sizes count equally: their averages are mixed.  Each machine's lowest rank is
        its leader, which exchanges with other leaders.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.set_machine_topology(mpidec.topology.ring(1))
        ...     net.hierarchical_neighbor_allreduce(np.array([3.]))
        array([3.])
        """
        return self.start_hierarchical_neighbor_allreduce(
            x, self_weight, src_machine_weights, dst_machine_weights
        ).wait()

    def start_hierarchical_neighbor_allreduce(
        self,
        x: Given,
        self_weight: Weight = None,
        src_machine_weights: Nodes = None,
        dst_machine_weights: Nodes = None,
        *,
        name: str = "",
    ) -> Pending:
        """Begin `hierarchical_neighbor_allreduce`."""
        self.one_agent_each()
        src_machine_weights = repeatable(src_machine_weights)
        dst_machine_weights = repeatable(dst_machine_weights)
        machines, mine = self.machines(), self._machine

        def prepare(operation: Operation) -> Steps:
            graph = self._machine_graph if dst_machine_weights is None else None
            plan = None if graph is None else graph.take()
            array = FlatArray.of(x)
            edges = RankEdges.of(
                plan,
                mine,
                len(machines),
                self_weight,
                src_machine_weights,
                dst_machine_weights,
                names=("src_machine_weights", "dst_machine_weights"),
                kind="machine",
            )
            operation.mode, operation.array = edges.mode, (array.dtype, array.shape)
            fingerprint = zlib.crc32(repr((edges.own, edges.weights, edges.dests)).encode())
            leader, *members = machines[mine]
            if edges.mode == "push":
                operation.join_tree()
            if self.rank != leader:
                operation.receivers |= {leader}
                operation.senders.add((leader, FROM_LEADER))
                return operations.member(
                    operation, array, leader, edges.mode == "push", fingerprint
                )
            leaders = [ranks[0] for ranks in machines]
            operation.receivers |= {leaders[machine] for machine in edges.dests} | set(members)
            operation.senders |= {(leaders[machine], EDGE) for machine in edges.sources} | {
                (rank, TO_LEADER) for rank in members
            }
            operation.any_sender = edges.mode == "push"
            return operations.leader(
                operation,
                array,
                edges,
                machine=mine,
                members=members,
                leaders=leaders,
                fingerprint=fingerprint,
            )

        near = valid_nodes(src_machine_weights, len(machines)) | valid_nodes(
            dst_machine_weights, len(machines)
        )
        return self._begin(
            "hierarchical_neighbor_allreduce",
            prepare,
            members=[*machines[mine], *(machines[m][0] for m in near)],
            name=name,
        )

    # Calls of all ranks

    def allreduce(self, x: Given, average: bool = True) -> Any:
        """Return the average (or sum) of the arrays of all ranks; whole numbers can be summed.

        Notes
        -----
        Up and down a binomial tree: neighbouring ranks, then neighbouring pairs, and so on; the
        same bits on all ranks.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.allreduce(np.array([1, 2]), average=False)
        array([1, 2])
        """
        return self.start_allreduce(x, average).wait()

    def start_allreduce(self, x: Given, average: bool = True, *, name: str = "") -> Pending:
        """Begin `allreduce`."""

        def prepare(operation: Operation) -> Steps:
            array = FlatArray.of(x, "fc" if average else "iufc")
            operation.array, operation.mode = (
                (array.dtype, array.shape),
                "average" if average else "sum",
            )
            operation.join_tree()
            return operations.allreduce(operation, array, self.size if average else 1)

        return self._begin("allreduce", prepare, name=name)

    def allgather(self, x: Given) -> Any:
        """Return the arrays of all ranks, one after the other along the first axis, in the order of
        the ranks.

        Parameters
        ----------
        x : array (k, ...)
            Of any dtype of numbers; k may differ between ranks, the other dimensions may not.

        Returns
        -------
        array (sum of k, ...)

        Notes
        -----
        Up and down a binomial tree.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.allgather(np.array([1, 2]))
        array([1, 2])
        """
        return self.start_allgather(x).wait()

    def start_allgather(self, x: Given, *, name: str = "") -> Pending:
        """Begin `allgather`."""

        def prepare(operation: Operation) -> Steps:
            array = _rows_of(x)
            operation.array = array.dtype, array.shape
            operation.comparable = itemgetter(slice(1, None))
            operation.join_tree()
            return operations.allgather(operation, array)

        return self._begin("allgather", prepare, name=name)

    def broadcast(self, x: Given, root: int) -> Any:
        """Return the array of rank `root`, on all ranks; shape and dtype are the same everywhere.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.broadcast(np.array([1, 2]), root=0)
        array([1, 2])
        """
        return self.start_broadcast(x, root).wait()

    def start_broadcast(self, x: Given, root: int, *, name: str = "") -> Pending:
        """Begin `broadcast`."""

        def prepare(operation: Operation) -> Steps:
            array, origin = FlatArray.of(x, _NUMBERS), index(root, "root", self.size)
            operation.signature = f"root {origin}"
            operation.array = array.dtype, array.shape
            _, children = operation.join_tree(origin)
            operation.receivers = frozenset(children)
            return operations.broadcast(operation, array)

        return self._begin("broadcast", prepare, name=name)

    def barrier(self) -> None:
        """Wait until all ranks have arrived, and all transfers through windows are in their
        slots.
        """
        for window in self._windows:
            window.flush()
        self.start_barrier().wait()

    def start_barrier(self) -> Pending:
        """Begin to wait for all ranks; unlike `barrier`, not for what they have sent through
        windows: `flush` these before.
        """

        def prepare(operation: Operation) -> Steps:
            operation.join_tree()
            return operation.barrier()

        return self._begin("barrier", prepare)

    # The beginning and the end of calls

    def one_agent_each(self) -> None:
        """Refuse a network with another number of agents than ranks."""
        if self.n != self.size:
            raise ValueError(
                f"the network has {self.n} agents on {self.size} ranks, expected one on each: "
                "these calls are for "
                "Network(); for any number of agents there is net.mixer(topology)"
            )

    def _begin(
        self,
        op: str,
        prepare: Callable[[Operation], Steps],
        *lists: object,
        peer: int | None = None,
        members: Iterable[int] = (),
        name: str = "",
    ) -> Pending:
        """Begin a call; errors in its arguments are reported to the ranks that would wait for
        this one.
        """
        self.one_agent_each()
        operation = self._matching.operation(named(op, name), peer)
        try:
            steps = prepare(operation)
        except BaseException as error:  # Ctrl-C as well: the others count this call
            concerned = set().union(*(valid_nodes(some, self.size) for some in lists), members)
            if self._graph is not None and peer is None:
                route = self._graph.at(max(self._graph.step - 1, 0)).halo_route
                concerned |= set(route.dests.tolist()) | set(route.sources.tolist())
            if peer is None:
                operation.join_tree()
            else:
                concerned.add(peer)
            if not isinstance(error, Exception):
                self._engine.interrupt(f"{type(error).__name__} in {operation}")
            self._matching.reject(operation, error, concerned - {self.rank})
            raise
        try:
            self._matching.start(operation, steps)
        except BaseException as error:
            self._engine.interrupt(f"{type(error).__name__} in {operation}")
            raise
        return Pending(operation, lambda: operation.result)

    def _step(self, dests: object) -> Routes | None:
        return self._graph.take() if dests is None and self._graph is not None else None

    def _compare_lists(self, op: str, sources: object, dests: object) -> None:
        """Let all ranks compare the lists of all, if `check` says so; lists that are wrong
        otherwise the call itself refuses.
        """
        self.one_agent_each()
        if self.check != "all" or sources is None or dests is None or self.size == 1:
            return
        takes, sends = valid_nodes(sources, self.size), valid_nodes(dests, self.size)
        with self._engine:
            if self._node_calls is not None:
                self._node_calls.compare(op, takes, sends)
                return
        mine = np.zeros((1, 2, self.size), bool)
        mine[0, 0, list(sends)] = mine[0, 1, list(takes)] = True
        rows = self.allgather(mine)
        for sender, receiver in np.argwhere(rows[:, 0] != rows[:, 1].T).tolist():
            raise lists_disagree(sender, receiver, bool(rows[sender, 0, receiver]), op)

    def _connect(self, operation: Operation, edges: RankEdges, check: bool = True) -> bool:
        """Tell an operation who takes part; whether the receivers must confirm that they expect
        its messages.
        """
        operation.mode = edges.mode
        if edges.mode == "static" and self._graph is not None:
            operation.signature = self._graph.signature
        if edges.mode == "push":
            operation.join_tree()
            operation.any_sender = True
        operation.receivers |= frozenset(edges.dests)
        operation.senders.update((rank, EDGE) for rank in edges.sources)
        if not (check and self.check is True and edges.mode == "dynamic"):
            return False
        key = operation.op, edges.sources, tuple(edges.dests)
        known = self._known
        if key in known:
            return False
        if len(known) > _KNOWN:
            known.clear()
        known.add(key)
        operation.senders.update((rank, CONFIRMATION) for rank in edges.dests)
        return True


def named(op: str, name: str) -> str:
    """Return the words for a call that has a name."""
    return f"{op} {name!r}" if name else op


def _rows_of(x: Given) -> FlatArray:
    """Return an array that can be joined to others along its first axis."""
    array = FlatArray.of(x, _NUMBERS)
    if not array.shape:
        raise ValueError(
            "the array has no dimension, expected at least one, along which arrays are joined: "
            "x.reshape(1)"
        )
    return array
