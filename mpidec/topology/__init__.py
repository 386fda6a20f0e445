"""Topologies: immutable graphs with mixing matrices, and schedules of them for time-varying
networks.

Each function in `CATALOGUE` builds a `Topology` or a `Schedule` from the number of agents n;
`from_weights`, `from_networkx` and `cycle` build one from a matrix, a networkx graph and a list of
topologies.  Edge weights are described in `mpidec.topology.base.weights`.

To add a graph, put its rule into `rules` and its function into `graphs.lattices` (a circulant graph into
`circulant`, a random graph into `random_graphs`).  To add a schedule, write a module like
`one_peer` that lists the phases.  A function that is imported here, takes n as its first parameter
and returns a `Topology` or a `Schedule` is in the catalogue.
"""

from collections.abc import Callable
from inspect import isfunction, signature
from typing import NoReturn

from ..plugins import no_attribute, public_names
from .base.optimized import fastest_mixing as fastest_mixing, sinkhorn as sinkhorn
from .base.schedule import Periodic as Periodic, Schedule as Schedule, cycle as cycle
from .base.topology import Topology as Topology
from .base.weights import hastings as hastings, relative_variance as relative_variance
from .derived.pair import push_pull as push_pull
from .derived.striped import Striped as Striped, striped as striped
from .graphs.circulant import (
    complete as complete,
    exponential as exponential,
    ring as ring,
    symmetric_exponential as symmetric_exponential,
)
from .graphs.explicit import from_networkx as from_networkx, from_weights as from_weights
from .graphs.lattices import (
    binary_tree as binary_tree,
    chain as chain,
    double_binary_trees as double_binary_trees,
    grid as grid,
    hypercube as hypercube,
    regular_tree as regular_tree,
    star as star,
    torus as torus,
)
from .graphs.random_graphs import (
    erdos_renyi as erdos_renyi,
    geometric as geometric,
    small_world as small_world,
)
from .graphs.spanning import spanning_tree as spanning_tree
from .named_graph import of_named_graph as _of_named_graph
from .pairwise import edge_rates as edge_rates, mixing_constants as mixing_constants
from .schedules.ceca import CecaRound as CecaRound, ceca as ceca
from .schedules.changing import Changing as Changing, from_function as from_function
from .schedules.equitopo import equitopo as equitopo
from .schedules.failing import failing_links as failing_links, sleeping_agents as sleeping_agents
from .schedules.finite_time import (
    base_k as base_k,
    hypercuboid as hypercuboid,
    one_peer_hypercube as one_peer_hypercube,
)
from .schedules.inner_outer import inner_outer as inner_outer
from .schedules.matchings import (
    Matcha as Matcha,
    matcha as matcha,
    random_matchings as random_matchings,
)
from .schedules.one_peer import one_peer_exponential as one_peer_exponential
from .schedules.periodic_average import periodic_average as periodic_average
from .schedules.sampled import sampled_average as sampled_average

RETURNED = ("Topology", "Schedule", "Periodic", "Striped", "Topology | Schedule")

# Catalogue: every function imported above whose first parameter is n, and which returns one
# topology or schedule; and functions
# of a topology, which the catalogue takes by its name, `graph`.
CATALOGUE: dict[str, Callable[..., Topology | Schedule]] = {
    name: make
    for name, make in sorted(globals().items())
    if isfunction(make)
    and next(iter(signature(make).parameters)) == "n"
    and signature(make).return_annotation in RETURNED
}
for _make in (
    failing_links,
    sleeping_agents,
    matcha,
    periodic_average,
    random_matchings,
    spanning_tree,
):
    CATALOGUE[_make.__name__] = _of_named_graph(_make, CATALOGUE)
CATALOGUE = dict(sorted(CATALOGUE.items()))

# Names in figures and printed tables, where they are not those of the catalogue with a capital.
TITLES: dict[str, str] = {name: name.replace("_", " ").capitalize() for name in CATALOGUE} | {
    "base_k": "Base-$(k+1)$",
    "ceca": "CECA",
    "equitopo": "EquiTopo",
    "erdos_renyi": "Erdős–Rényi",
    "inner_outer": "Inner-outer",
    "matcha": "MATCHA",
    "one_peer_exponential": "One-peer exponential",
    "one_peer_hypercube": "One-peer hypercube",
    "periodic_average": "Gossip-PGA",
}


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name, __dir__())


def __dir__() -> list[str]:
    return public_names(__name__, globals())
