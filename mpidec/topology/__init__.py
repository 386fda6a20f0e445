"""Graphs and mixing matrices, frozen; schedules of them for time-varying networks.

Every function of `CATALOGUE` makes a `Topology` or a `Schedule` from the number of agents n; `from_weights`,
`from_networkx` and `cycle` make them from what the user has.  The weights of the edges are described in
`mpidec.topology.weights`.

A further graph: its rule goes into `rules` and its function into `static` (a circulant's into `circulant`, a random
graph's into `random_graphs`).  A further schedule: a module like `one_peer`, which lists the phases.  Imported here, it
is in the catalogue.
"""
from collections.abc import Callable
from inspect import isfunction, signature

from .ceca import CecaRound as CecaRound
from .ceca import ceca as ceca
from .circulant import complete as complete
from .circulant import exponential as exponential
from .circulant import ring as ring
from .circulant import symmetric_exponential as symmetric_exponential
from .explicit import from_networkx as from_networkx
from .explicit import from_weights as from_weights
from .one_peer import one_peer_exponential as one_peer_exponential
from .random_graphs import erdos_renyi as erdos_renyi
from .random_graphs import geometric as geometric
from .random_graphs import small_world as small_world
from .schedule import Periodic as Periodic
from .schedule import Schedule as Schedule
from .schedule import cycle as cycle
from .static import binary_tree as binary_tree
from .static import chain as chain
from .static import grid as grid
from .static import hypercube as hypercube
from .static import star as star
from .static import torus as torus
from .topology import Topology as Topology

# What can be made from a number of agents: all functions above whose first parameter is n.
CATALOGUE: dict[str, Callable[..., Topology | Schedule]] = {
    name: make for name, make in sorted(globals().items())
    if isfunction(make) and next(iter(signature(make).parameters)) == "n"
}
