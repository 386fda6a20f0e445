"""Command ``python -m mpidec.predict``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from .. import registry as catalogue, topology
from ..cli import EXPERIMENT, Command, Flag, aligned, plural, quantity
from ..exceptions import ConfigError, InputError
from ..experiment import settings as config
from ..topology import Schedule, Topology
from .counting import PLACEMENTS, nodes_of
from .model import Cost, mean_cost
from .network import TYPICAL, Network, network

EPILOG = """\
examples:
  python -m mpidec.predict --dimension 8192                       rows of 64 KB on Ethernet
  python -m mpidec.predict experiment.toml --ranks 16,256 --ranks-per-node 64 --network infiniband

One agent per rank.  For each number of ranks, the time of one mixing W(X) with the graph of the
experiment and with others: latency, the bytes of a rank, what the other ranks of its node send over
the same link, and the weighted sum.  The rows over the busiest link are counted from the graph and
the placement.  The time of a step is that of its mixings and of its gradient, which is not
predicted; nor are the number of steps, all-reduce, and trainings.

The networks are typical figures (latency, link of a node): infiniband 2 us, 100 Gbit/s; ethernet
25 us, 25 Gbit/s; wan 20 ms, 1 Gbit/s.  A file has times that you have measured between nodes, one
rank a node, for exchanges in both directions with k neighbours at once, in seconds:
  {"bytes": [8, 65536, 1048576], "exchange_seconds": {"1": [...], "2": [...], "4": [...]}}
"""
OTHERS = ("ring", "torus", "one_peer_exponential", "exponential", "inner_outer")
FLAGS = [
    EXPERIMENT,
    Flag("--ranks", default="16,256,4096,65536", help="numbers of ranks (default: %(default)s)"),
    Flag("--ranks-per-node", type=int, default=64, help="(default: %(default)s)"),
    Flag(
        "--network", default="ethernet", help=f"{', '.join(TYPICAL)}, or a file (default: ethernet)"
    ),
    Flag(
        "--placement",
        choices=PLACEMENTS,
        default="slot",
        help="of ranks on nodes: one node after the other (slot), or in turn",
    ),
    Flag(
        "--dimension",
        type=int,
        default=1000,
        help="numbers of 8 bytes in a row (default: %(default)s)",
    ),
]


@dataclass(frozen=True)
class Request:
    """What is predicted."""

    name: str
    options: dict[str, object]
    ranks: list[int]
    per_node: int
    placement: str
    size: int
    network: Network


def prepare(args: argparse.Namespace, ranks: int) -> Request:
    """Return what the arguments ask for.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    try:
        numbers = [int(text) for text in args.ranks.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 2:
        raise ConfigError(f"--ranks {args.ranks}: expected numbers from 2, such as 16,256")
    for flag in ("ranks_per_node", "dimension"):
        if vars(args)[flag] < 1:
            name = flag.replace("_", "-")
            raise ConfigError(f"--{name} {vars(args)[flag]}: expected at least 1")
    file = config.read_toml(args.experiment) if args.experiment else []
    graph = config.load(file).topology
    return Request(
        graph.name,
        dict(graph.options),
        numbers,
        args.ranks_per_node,
        args.placement,
        8 * args.dimension,
        network(args.network),
    )


def graphs(request: Request, ranks: int) -> dict[str, Topology | Schedule]:
    """Return the graph of the experiment, and others that this number of agents can have."""
    try:
        own = catalogue.TOPOLOGIES.find(request.name)(ranks, **request.options)
    except ValueError as error:
        raise InputError(f"{ranks} ranks: {error}") from error
    found = {request.name: own}
    for name in OTHERS:
        per_node = request.per_node
        if name == "inner_outer":
            if per_node > 2 and ranks % per_node == 0 and ranks > per_node:
                found.setdefault(name, topology.inner_outer(ranks, per_node))
        else:
            found.setdefault(name, topology.CATALOGUE[name](ranks))
    return found


def execute(request: Request) -> None:
    """Print a table for each number of ranks, and the cheapest mixing."""
    size, net = request.size, request.network
    print(
        f"W(X) with rows of {quantity(size, 'B')}, {request.per_node} ranks a node, placed by "
        f"{request.placement}, network {net.name}"
    )
    for ranks in request.ranks:
        node = nodes_of(ranks, request.per_node, request.placement)
        made = graphs(request, ranks)
        costs = {name: mean_cost(graph, node, size, net) for name, graph in made.items()}
        best = min(costs, key=lambda name: costs[name].seconds)
        head = ["graph", "latency", "bytes", "link", "kernel", "mixing", "rows over a link"]
        print(f"\n{ranks} ranks on {plural(int(node.max()) + 1, 'node')}")
        lines = [[name, *_cells(each)] for name, each in costs.items()]
        print("\n".join(aligned([head, *lines], "<>>>>>>")))
        print(f"cheapest mixing: {best}; it may need more steps than others", flush=True)


def _cells(each: Cost) -> list[str]:
    times = [each.latency, each.bytes, each.link, each.kernel, each.seconds]
    return [
        *(quantity(1e6 * time, "us") if time < 1e-3 else f"{1e3 * time:.4g} ms" for time in times),
        f"{each.rows:.4g}",
    ]


PREDICT = Command(
    name="predict",
    description="Predict the time of a mixing on a cluster, by part and graph.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    alone=execute,
    needs_mpi=False,
)
main = PREDICT.main
