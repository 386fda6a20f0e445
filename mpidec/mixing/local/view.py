r"""The network seen from one agent per rank: the calls of a program that is written for one agent and run by all.

.. math:: x_i^+ = s_i x_i + \sum_j r_{ij} t_{ji} x_j

where the receiver i chooses `self_weight` :math:`s_i` and `src_weights` :math:`r_{ij}`, and the sender j chooses
`dst_weights` :math:`t_{ji}`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from mpi4py import MPI as MPI

from ...checks.header import ACROSS, BACK, IN, Script
from ...checks.operation import Call
from ..pending import Pending
from . import operations as scripts
from .edges import Edges, index, number, valid_nodes
from .flat import Wire
from .graph import Graph, LocalBase

NUMBERS = "biufc"


class LocalView(LocalBase):
    """The calls of `Network` for programs with one agent per rank, on arrays of any shape.

    Every rank makes the same calls in the same order, but for `pair_gossip`, which two ranks make.  The inputs are never
    modified, the results are new arrays, and sums are taken in ascending order of the ranks.  `start_...` begins a call
    and returns at once; `wait()` on what comes back returns the result.

    Attributes
    ----------
    check : bool
        Whether lists of senders and receivers are compared when they are used for the first time (by one confirmation
        per message); True by default.

    Notes
    -----
    Wrong use raises a ValueError that names both sides, on all ranks concerned.  A wait that lasts longer than
    `MPIDEC_TIMEOUT` seconds (60 by default; `inf`: for ever) prints who waits for whom, and aborts the job.
    """

    # Calls along the edges

    def neighbor_allreduce(self, x: Any, self_weight: Any = None, src_weights: Any = None, dst_weights: Any = None) -> Any:
        r"""A weighted sum of this rank's array and its neighbours': :math:`s_i x_i + \sum_j r_{ij} t_{ji} x_j`.

        Parameters
        ----------
        x : array of any shape
            The same shape and dtype on the ranks that meet: float16 to complex128, NumPy or PyTorch (also bfloat16).
        self_weight : float, optional
        src_weights : dict {rank: weight} or list of ranks (weights 1), optional
            What the arrays of these ranks are multiplied by on arrival.
        dst_weights : dict or list, optional
            The ranks to send to, and what the array is multiplied by on the way.

        Returns
        -------
        array like x
            Without weights: the row of `W x` of the topology that was set.  With `self_weight` and `src_weights`: pulled
            along its edges; neighbours that are not named weigh 0.  With `self_weight` and `dst_weights`: pushed; what
            arrives is found out.  With all three: from exactly these to exactly those ranks, which may be none.

        Raises
        ------
        ValueError, TypeError

        Notes
        -----
        One message per edge, and two small ones per rank and level of a tree when pushing.  16-bit floats are summed in
        float32.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     x = np.array([1., 2.])
        ...     net.set_topology(mpidec.topology.ring(1))
        ...     net.neighbor_allreduce(x), net.neighbor_allreduce(x, self_weight=0.5, src_weights={}, dst_weights={})
        (array([1., 2.]), array([0.5, 1. ]))
        """
        graph = self._graph
        if graph is not None and self_weight is None and src_weights is None and dst_weights is None and type(x) is np.ndarray:
            phase = cast(Any, graph.mixer).at(graph.step)
            y = phase.mix(x.reshape(1, -1), None)      # None, and nothing has happened, if the array is not of the common kind
            if y is not None:
                graph.step += 1
                return y.reshape(x.shape)
        return self.start_neighbor_allreduce(x, self_weight, src_weights, dst_weights).wait()

    def start_neighbor_allreduce(self, x: Any, self_weight: Any = None, src_weights: Any = None, dst_weights: Any = None
                                ) -> Call | Pending:
        """Begin `neighbor_allreduce`."""
        if self_weight is None and src_weights is None and dst_weights is None and self._graph is not None:
            return self._start_mixing(x, self._graph)

        def prepare(call: Call) -> Script:
            plan = self._step(dst_weights)
            wire = Wire.of(x)
            edges = Edges.of(plan, self.rank, self.size, self_weight, src_weights, dst_weights, ("src_weights", "dst_weights"))
            call.signature = wire.dtype, wire.shape
            return scripts.allreduce_along(call, wire, edges, self.rank, self._link(call, edges))
        return self._begin("neighbor_allreduce", prepare, src_weights, dst_weights)

    def _start_mixing(self, x: Any, graph: Graph) -> Call | Pending:
        """Along the topology that was set, with its weights: a mixing of one row."""
        self._one_agent_each()
        shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
        phase = cast(Any, graph.mixer).at(graph.step)
        graph.step += 1
        pending = phase.start((x if hasattr(x, "reshape") else np.asarray(x)).reshape((1, math.prod(shape))))
        return Pending(pending, lambda: pending.wait().reshape(shape))

    def neighbor_allgather(self, x: Any, src_ranks: Any = None, dst_ranks: Any = None) -> Any:
        """The neighbours' arrays, one after the other along the first axis; this rank's own is not among them.

        Parameters
        ----------
        x : array (k, ...)
            Of any dtype; k may differ between ranks, the other dimensions may not.
        src_ranks, dst_ranks : list of int, optional
            As the lists of weights in `neighbor_allreduce`.

        Returns
        -------
        array (sum of k, ...)
            In the order of `src_ranks`; ascending where they are not given.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.neighbor_allgather(np.ones((2, 3)), src_ranks=[], dst_ranks=[]).shape
        (0, 3)
        """
        return self.start_neighbor_allgather(x, src_ranks, dst_ranks).wait()

    def start_neighbor_allgather(self, x: Any, src_ranks: Any = None, dst_ranks: Any = None) -> Call:
        """Begin `neighbor_allgather`."""
        def prepare(call: Call) -> Script:
            plan = self._step(dst_ranks)
            wire = Wire.of(x, NUMBERS)
            if not wire.shape:
                raise ValueError("the array has no dimension, expected at least one, along which arrays are joined: x.reshape(1)")
            edges = Edges.lists(plan, self.rank, self.size, src_ranks, dst_ranks, ("src_ranks", "dst_ranks"))
            call.signature, call.same = (wire.dtype, wire.shape), _but_first
            order = None if src_ranks is None else [int(rank) for rank in src_ranks]
            return scripts.gather_along(call, wire, edges, order, self._link(call, edges))
        return self._begin("neighbor_allgather", prepare, src_ranks, dst_ranks)

    def exchange(self, messages: Mapping[int, Any], src_ranks: Any = None) -> dict[int, Any]:
        """Send a different array to each of some ranks.

        Parameters
        ----------
        messages : dict {rank: array}
            Of any shape and dtype, which may differ between the messages.
        src_ranks : list of int, optional
            The ranks that send to this one; by default those that it sends to.

        Returns
        -------
        dict {rank: array}
            What those ranks sent, in ascending order of the ranks.

        Examples
        --------
        >>> import mpidec
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.exchange({})
        {}
        """
        return self.start_exchange(messages, src_ranks).wait()

    def start_exchange(self, messages: Mapping[int, Any], src_ranks: Any = None) -> Call:
        """Begin `exchange`."""
        def prepare(call: Call) -> Script:
            if not isinstance(messages, Mapping):
                raise TypeError(f"messages are {type(messages).__name__}, expected a dict {{rank: array}}")
            edges = Edges.lists(None, self.rank, self.size, list(messages) if src_ranks is None else src_ranks, list(messages),
                                ("src_ranks", "messages"))
            wires = {int(rank): Wire.of(array, NUMBERS) for rank, array in messages.items()}
            call.signature = None
            return scripts.exchange(call, wires, edges, self._link(call, edges))
        return self._begin("exchange", prepare, src_ranks, messages)

    def pair_gossip(self, x: Any, peer: int, self_weight: float = 0.5, pair_weight: float = 0.5) -> Any:
        """`self_weight * x + pair_weight * (the peer's x)`; only the two ranks call, each naming the other.

        Examples
        --------
        >>> import mpidec
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.pair_gossip(1., 0)
        Traceback (most recent call last):
        ...
        ValueError: peer names rank 0 itself: gossip takes two
        """
        return self.start_pair_gossip(x, peer, self_weight, pair_weight).wait()

    def start_pair_gossip(self, x: Any, peer: int, self_weight: float = 0.5, pair_weight: float = 0.5) -> Call:
        """Begin `pair_gossip`."""
        self._one_agent_each()
        other = index(peer, "peer", self.size)
        if other == self.rank:
            raise ValueError(f"peer names rank {other} itself: gossip takes two")

        def prepare(call: Call) -> Script:
            own, pair, wire = number(self_weight, "self_weight"), number(pair_weight, "pair_weight"), Wire.of(x)
            call.signature = wire.dtype, wire.shape
            edges = Edges("", (other,), {other: 1.0}, own, {other: pair})
            return scripts.allreduce_along(call, wire, edges, self.rank, self._link(call, edges, False))
        return self._begin("pair_gossip", prepare, peer=other)

    def hierarchical_neighbor_allreduce(self, x: Any, self_weight: Any = None, src_machine_weights: Any = None,
                                        dst_machine_weights: Any = None) -> Any:
        r"""The machines' averages, mixed between machines: every rank of machine m gets :math:`\sum_{m'} W_{mm'} \bar x_{m'}`.

        Parameters
        ----------
        x : array of any shape
        self_weight, src_machine_weights, dst_machine_weights : optional
            As in `neighbor_allreduce`, for machines; the same on all ranks of a machine.

        Notes
        -----
        With L ranks on each machine this is :math:`W \otimes \mathbf{1}\mathbf{1}^T / L`.  Machines of different sizes
        count alike: it is their averages that are mixed.  Each machine's lowest rank speaks for it.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.set_machine_topology(mpidec.topology.ring(1))
        ...     net.hierarchical_neighbor_allreduce(np.array([3.]))
        array([3.])
        """
        return self.start_hierarchical_neighbor_allreduce(x, self_weight, src_machine_weights, dst_machine_weights).wait()

    def start_hierarchical_neighbor_allreduce(self, x: Any, self_weight: Any = None, src_machine_weights: Any = None,
                                              dst_machine_weights: Any = None) -> Call:
        """Begin `hierarchical_neighbor_allreduce`."""
        self._one_agent_each()
        if self._machine_list is None:
            self._agree_on("machines")
        machines, mine = self.machines(), self._machine

        def prepare(call: Call) -> Script:
            static = dst_machine_weights is None and self._machine_graph is not None
            plan = self._machine_graph.take() if static and self._machine_graph is not None else None
            wire = Wire.of(x)
            edges = Edges.of(plan, mine, len(machines), self_weight, src_machine_weights, dst_machine_weights,
                             ("src_machine_weights", "dst_machine_weights"), "machine")
            call.mode, call.signature = edges.mode, (wire.dtype, wire.shape)
            opinion = zlib.crc32(repr((edges.own, edges.weights, edges.dests)).encode())
            ranks = machines[mine]
            if edges.mode == "push":
                call.join_tree()
            if self.rank != ranks[0]:
                call.out |= {ranks[0]}
                call.sources.add((ranks[0], BACK))
                return scripts.member(call, wire, ranks[0], edges.mode == "push", opinion)
            leaders = [those[0] for those in machines]
            call.out |= {leaders[machine] for machine in edges.dests} | set(ranks[1:])
            call.sources |= {(leaders[machine], ACROSS) for machine in edges.sources} | {(rank, IN) for rank in ranks[1:]}
            call.open = edges.mode == "push"
            return scripts.leader(call, wire, edges, mine, ranks, leaders, opinion)
        near = valid_nodes(src_machine_weights, len(machines)) | valid_nodes(dst_machine_weights, len(machines))
        return self._begin("hierarchical_neighbor_allreduce", prepare, members=[*machines[mine], *(machines[m][0] for m in near)])

    # Calls of all ranks

    def allreduce(self, x: Any, average: bool = True) -> Any:
        """The average (or sum) of the arrays of all ranks; whole numbers can be summed.

        Notes
        -----
        Up and down a binomial tree: neighbouring ranks, then neighbouring pairs, and so on; the same bits on all ranks.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.allreduce(np.array([1, 2]), average=False)
        array([1, 2])
        """
        return self.start_allreduce(x, average).wait()

    def start_allreduce(self, x: Any, average: bool = True) -> Call:
        """Begin `allreduce`."""
        def prepare(call: Call) -> Script:
            wire = Wire.of(x, "fc" if average else "iufc")
            call.signature, call.mode = (wire.dtype, wire.shape), "average" if average else "sum"
            return scripts.allreduce(call, wire, self.size if average else 1, *call.join_tree())
        return self._begin("allreduce", prepare)

    def broadcast(self, x: Any, root: int) -> Any:
        """The array of rank `root`, on all ranks; shape and dtype are the same everywhere.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     net.broadcast(np.array([1, 2]), root=0)
        array([1, 2])
        """
        return self.start_broadcast(x, root).wait()

    def start_broadcast(self, x: Any, root: int) -> Call:
        """Begin `broadcast`."""
        def prepare(call: Call) -> Script:
            wire, origin = Wire.of(x, NUMBERS), index(root, "root", self.size)
            call.mark = f"root {origin}"
            call.signature = wire.dtype, wire.shape
            parent, children = call.join_tree(origin)
            call.out = frozenset(children)
            return scripts.broadcast(call, wire, parent, children)
        return self._begin("broadcast", prepare)

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self.start_barrier().wait()

    def start_barrier(self) -> Call:
        """Begin `barrier`."""
        return self._begin("barrier", lambda call: call.consensus(*call.join_tree()))


def _but_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[1:]
