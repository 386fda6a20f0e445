"""The network of the process, as BlueFog has it: one, between `init` and `shutdown`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import torch

from ..comm.mixing import Network
from ..comm.rma import Window
from ..comm.runtime import MPI, Collectives, Pending
from ..exceptions import RankMismatchError
from ..topology import Schedule, Topology, from_networkx
from . import variables
from .common.topology_util import ExponentialGraph, GetRecvWeights, matrix

logger = logging.getLogger("bluefog")
OwnWeights: TypeAlias = tuple[float, dict[int, float]] | tuple[None, None]
DIRECT = torch.float32, torch.float64
_KNOWN = 64  # graphs that are remembered


@dataclass
class NamedWindow:
    """A window, and the tensor that it was created for.

    The two are copied to each other in the calls, so that the tensor stays where it is, a view or a
    parameter of a model.  Whole numbers are float64 in the window.
    """

    window: Window
    tensor: torch.Tensor
    _place: tuple[int, tuple[int, ...], tuple[int, ...]] = (-1, (), ())
    _view: np.ndarray = field(default_factory=lambda: np.empty(0))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether this is the tensor of the window."""
        return tensor is self.tensor or (
            tensor.data_ptr() == self.tensor.data_ptr()
            and tensor.shape == self.tensor.shape
            and tensor.stride() == self.tensor.stride()
        )

    def _array(self) -> np.ndarray:
        """Return the memory of the tensor, where the window holds an array; a program may give it
        other memory or strides.
        """
        place = self.tensor.data_ptr(), self.tensor.shape, self.tensor.stride()
        if place != self._place:
            self._place, self._view = place, self.tensor.detach().numpy()
        return self._view

    def load(self) -> None:
        """Copy what the program has written into the tensor to the window."""
        direct = self.tensor.dtype in DIRECT and type(self.window.value) is np.ndarray
        self.window.value = self._array() if direct else in_window(self.tensor)

    def store(self) -> None:
        """Copy the contents of the window to the tensor."""
        value = self.window.value
        if type(value) is np.ndarray:
            self._array()[...] = value
        else:
            with torch.no_grad():
                self.tensor.copy_(value)


def in_window(tensor: torch.Tensor) -> np.ndarray | torch.Tensor:
    """Return a tensor as a window takes it: the memory of one on the host as an array, which is
    quickest.
    """
    own = tensor.detach() if tensor.is_floating_point() else tensor.double()
    return own.numpy() if own.is_cpu and own.dtype in DIRECT else own


@dataclass
class Session:
    """State between `init` and `shutdown`.

    Attributes
    ----------
    net : Network
        With one agent per rank.
    windows : dict
        The windows by their names.
    transfers : dict {handle: Pending}
        Those of windows under way.
    handles : dict {handle: (name, pending, finish)}
        Calls under way; `handle` is the number of the last one.
    graph, machine_graph : networkx.DiGraph or None
        As they were set, `native` and `machine_native` as `mpidec` has them.  `weighted` and
        `machine_weighted` say whether the weights of their edges count; `weights` and
        `machine_weights` are those of this rank and its machine where the native graph has others.
    known : dict {contents of a graph, weighted: (native, weights)}
        Of the graphs that were set.
    """

    net: Network
    windows: dict[str, NamedWindow] = field(default_factory=dict)
    transfers: dict[int, Pending] = field(default_factory=dict)
    handles: dict[int, tuple[str | None, Pending, Callable[[Any], Any]]] = field(
        default_factory=dict
    )
    handle: int = -1
    graph: nx.DiGraph | None = None
    native: Topology | Schedule | None = None
    weighted: bool = False
    weights: OwnWeights = (None, None)
    known: dict[Hashable, tuple[Topology, OwnWeights]] = field(default_factory=dict)
    machine_graph: nx.DiGraph | None = None
    machine_weighted: bool = False
    machine_weights: OwnWeights = (None, None)
    machine_native: Topology | None = None

    @property
    def counts(self) -> bool:
        """Whether the weights of `graph` do: it is weighted, and no native call has set another
        graph since.
        """
        return self.weighted and self.net.topology is self.native


_session: Session | None = None
_ended = False


def current(call: str) -> Session:
    """Return the session, or a ValueError that says which call needs one."""
    if _session is None:
        state = "has been shut down" if _ended else "is not initialised"
        raise ValueError(f"bf.{call}: BlueFog {state}: call bf.init() first")
    return _session


def network() -> Network:
    """Return the `mpidec.Network` under BlueFog's calls, for native ones in the same program."""
    return current("network").net


def init(topology_fn: Callable[[int], nx.DiGraph] | None = None, is_weighted: bool = False) -> None:
    """Begin, with the graph `topology_fn(size)`, or ExponentialGraph; again: set the graph anew.
    Collective.

    If the ranks have come out of step, after an error on some of them, all begin anew with a
    network of their own: each rank that still waits in a call is told in one line, and comes here
    as well.
    """
    global _session
    graph_of = topology_fn or ExponentialGraph
    if _session is not None and _in_step(_session):
        with network().agreeing("bf.init"):
            graph = graph_of(size())
        set_topology(graph, is_weighted)
        return
    variables.translate(os.environ)
    if (level := variables.level(os.environ)) is not None:
        logger.setLevel(level)
    _session = Session(Network())
    if (without := variables.ignored(os.environ)) and rank() == 0:
        logger.warning("bf.init: no effect: %s", ", ".join(without))
    set_topology(graph_of(size()), is_weighted)


def _in_step(session: Session) -> bool:
    """Return whether all ranks have come here after the same calls, with as many windows; if not,
    all leave the network.
    """
    net, error = session.net, RankMismatchError("other ranks have come out of step")
    here = False
    try:
        net.matching.agree("bf.init", f"{len(session.windows)} windows")
        here = True
    except (RankMismatchError, RuntimeError) as found:
        error = RankMismatchError(str(found))
        # Now the waits of others for this rank end.
        net.__exit__(RankMismatchError, error)
    if Collectives(MPI.COMM_WORLD).minimum(np.array([int(here)]), "bf.init")[0]:
        return True
    if here:
        net.__exit__(RankMismatchError, error)
    logger.warning("bf.init: begins anew, after: %s", error)
    return False


def shutdown() -> None:
    """End: close the windows and the network.  Collective.  A later `init` begins anew."""
    global _session, _ended
    if _session is not None:
        session, _session, _ended = _session, None, True
        session.net.close()


# Ranks


def size() -> int:
    """Number of ranks."""
    return current("size").net.size


def rank() -> int:
    """This rank."""
    return current("rank").net.rank


def _machine(call: str) -> tuple[int, list[int]]:
    """Return the number of this rank's machine, and the ranks on it."""
    net = current(call).net
    return next((m, ranks) for m, ranks in enumerate(net.machines()) if net.rank in ranks)


def local_size() -> int:
    """Number of ranks on this machine, or BLUEFOG_NODES_PER_MACHINE."""
    return len(_machine("local_size")[1])


def local_rank() -> int:
    """Place of this rank among those of its machine."""
    return _machine("local_rank")[1].index(rank())


def machine_size() -> int:
    """Number of machines."""
    return len(current("machine_size").net.machines())


def machine_rank() -> int:
    """Number of this rank's machine."""
    return _machine("machine_rank")[0]


def is_homogeneous() -> bool:
    """Return whether all machines have equally many ranks, in blocks."""
    machines = current("is_homogeneous").net.machines()
    return [r for ranks in machines for r in ranks] == list(range(size())) and len(
        {len(ranks) for ranks in machines}
    ) == 1


# Graphs


def _topology(
    call: str, graph: object, count: int, what: str, weighted: bool, node: int
) -> tuple[Topology, OwnWeights]:
    """Return the graph with W[i, j] = A[j, i], or uniform weights, and those of a node where no
    `Topology` has such weights: they do not sum to 1, or are 0 on an edge.
    """
    if not isinstance(graph, nx.DiGraph):
        raise TypeError(
            f"bf.{call}: topology is a {type(graph).__name__}, expected a networkx.DiGraph"
        )
    if set(graph.nodes) != set(range(count)):
        raise TypeError(
            f"bf.{call}: the graph has {graph.number_of_nodes()} nodes, expected the {what} 0, "
            f"..., {count - 1}"
        )
    if weighted:
        _finite(call, graph)
    fits = weighted and _is_stochastic(graph)
    own = GetRecvWeights(graph, node) if weighted and not fits else (None, None)
    return from_networkx(graph, "weight" if fits else "uniform", connected=False), own


def _finite(call: str, graph: nx.DiGraph) -> None:
    """Refuse weights that are not finite numbers."""
    for source, destination, weight in graph.edges(data="weight", default=1.0):
        if not isinstance(weight, Real) or not math.isfinite(weight):
            raise ValueError(
                f"bf.{call}: the weight of the edge from {source} to {destination} is {weight!r}, "
                "expected a finite number"
            )


def _is_stochastic(graph: nx.DiGraph) -> bool:
    """Return whether the weights that each rank gives to what it receives are positive and, with
    its own, sum to 1.
    """
    A, edges = matrix(graph), graph.edges(data="weight", default=1.0)
    positive = A.min() >= 0 and all(weight for i, j, weight in edges if i != j)
    return bool(positive and np.abs(A.sum(0) - 1).max() <= 1e-10)


def set_topology(topology: nx.DiGraph | None = None, is_weighted: bool = False) -> bool:
    """Set the graph of the neighbour calls; False where windows exist.  Collective."""
    session = current("set_topology")
    graph = ExponentialGraph(session.net.size) if topology is None else topology
    made, weights = _native(session, graph, is_weighted)
    if session.windows:
        logger.error("bf.set_topology: windows exist; call bf.win_free() first")
        return False
    session.net.set_topology(made)
    session.native = session.net.topology
    session.graph, session.weighted, session.weights = graph, is_weighted, weights
    return True


def _native(session: Session, graph: nx.DiGraph, weighted: bool) -> tuple[Topology, OwnWeights]:
    """Return the graph as `mpidec` has it, and the weights of this rank where that graph has
    others.
    """
    key: Hashable = None
    if isinstance(graph, nx.DiGraph):
        key = (*graph.nodes,), (*graph.edges(data="weight"),), weighted
    if key not in session.known:
        net = session.net
        made = _topology("set_topology", graph, net.size, "ranks", weighted, net.rank)
        if len(session.known) >= _KNOWN:
            session.known.clear()
        session.known[key] = made
    return session.known[key]


def load_topology() -> nx.DiGraph | None:
    """Return the graph that was set."""
    return current("load_topology").graph


def set_machine_topology(topology: nx.DiGraph | None, is_weighted: bool = False) -> bool:
    """Set the graph between machines.  Collective."""
    session = current("set_machine_topology")
    if topology is None:
        raise ValueError("bf.set_machine_topology: topology is None, expected a networkx.DiGraph")
    count = machine_size()
    made, weights = _topology(
        "set_machine_topology", topology, count, "machines", is_weighted, machine_rank()
    )
    session.net.set_machine_topology(made)
    session.machine_native, session.machine_weights = made, weights
    session.machine_graph, session.machine_weighted = topology, is_weighted
    return True


def load_machine_topology() -> nx.DiGraph | None:
    """Return the graph between machines, or None."""
    return current("load_machine_topology").machine_graph


def is_topo_weighted() -> bool:
    """Return whether the weights of the graph count."""
    return current("is_topo_weighted").weighted


def is_machine_topo_weighted() -> bool:
    """Return whether the weights of the graph between machines count."""
    return current("is_machine_topo_weighted").machine_weighted


def _neighbors(graph: nx.DiGraph | None, node: int, senders: bool) -> list[int]:
    if graph is None:
        return []
    near = graph.predecessors(node) if senders else graph.successors(node)
    return sorted(r for r in near if r != node)


def in_neighbor_ranks() -> list[int]:
    """Return the ranks that send to this one."""
    return _neighbors(current("in_neighbor_ranks").graph, rank(), True)


def out_neighbor_ranks() -> list[int]:
    """Return the ranks to which this one sends."""
    return _neighbors(current("out_neighbor_ranks").graph, rank(), False)


def in_neighbor_machine_ranks() -> list[int]:
    """Return the machines that send to this one."""
    return _neighbors(current("in_neighbor_machine_ranks").machine_graph, machine_rank(), True)


def out_neighbor_machine_ranks() -> list[int]:
    """Return the machines to which this one sends."""
    return _neighbors(current("out_neighbor_machine_ranks").machine_graph, machine_rank(), False)
