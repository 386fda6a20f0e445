"""Command ``python -m mpidec.predict``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isinf

import numpy as np

from .. import topology
from .._validation import number
from ..cli import EXPERIMENT, Command, Flag, Status, aligned, plural, quantity
from ..comm.runtime import MPI, on_root
from ..exceptions import ConfigError, InputError, Unstable
from ..experiment import Experiment, Setting, accepted, schema, settings as config
from ..plugins import short
from ..topology import Schedule, Topology
from .checking import compared, gradient_seconds, nodes_of_job
from .cluster import TYPICAL, Cluster, cluster
from .counting import PLACEMENTS, nodes_of
from .model import Cost, mean_cost
from .simulation import AGENTS, UNKNOWNS, Course, Demand, Simulator
from .training import TABLES, demand as of_training, trains

EPILOG = """\
examples:
  python -m mpidec.predict --dimension 8192                       rows of 64 KB on Ethernet
  python -m mpidec.predict experiment.toml --ranks 16,256 --ranks-per-node 64 --network infiniband
  python -m mpidec.predict experiment.toml --ranks 16 --accuracy 1e-6     with the time to an error
  python -m mpidec.predict train.toml --ranks 16,256              a training, against all-reduce
  mpirun -n 8 -ppn 2 python -m mpidec.predict --check --network network.json   (Open MPI: --map-by ppr:2:node)

For each number of ranks, the time of a step with the graph of the experiment and with others, in
the mean: the mixings by part (latency, the bytes of a rank, what the other ranks of its node send
over the same link, the weighted sum), and gradients and updates, as this machine computes them
("compute"; scaled by the gradient of a calibration).  One agent per rank, unless the experiment has
run.agents.  Mixings a step, bytes of a row (codecs) and gradients a step are counted in a run of a
few steps.  The rows over the busiest link are counted from the graph and the placement.

With --accuracy, steps until the relative error of the agents' average (--stop-error of a run) are
simulated in this process, with the data of the experiment if there are some for all agents, or else
with random least squares of 10 unknowns.  A number with "~" is continued by the rate of theory for
the graph's 1 - rho, a bound: that of the slowest mode; "-" is not known, as of schedules whose
periods have more than 10^8 edges.  "auto" is searched for with at most 16 agents; others take the
safe step size.

The networks are typical figures (latency, link of a node): infiniband 2 us, 100 Gbit/s; ethernet
25 us, 25 Gbit/s; wan 20 ms, 1 Gbit/s; all-reduce by halving and doubling between nodes.  A file is
written by python -m mpidec.bench --calibrate; it has at least the seconds of exchanges in both
directions with k neighbours at once, one rank a node:
  {"bytes": [8, 65536, 1048576], "exchange_seconds": {"1": [...], "2": [...], "4": [...]}}

With --check, on the ranks of mpirun: measured and predicted times of a mixing and of all-reduce."""
# Numbers in a row: those of some agents are in memory, in the run in which rows are counted.
MOST = 10_000_000
OTHERS = ("ring", "torus", "one_peer_exponential", "exponential", "inner_outer")
FLAGS = [
    EXPERIMENT,
    *schema.flags(()),
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
        help="numbers of 8 bytes in a row (default: those of the experiment, or 1000)",
    ),
    Flag(
        "--accuracy",
        metavar="TOL",
        type=float,
        help="also the time until the relative error is TOL",
    ),
    Flag(
        "--seconds",
        type=float,
        default=20,
        help="of simulation in all, for --accuracy (default: %(default)s)",
    ),
    Flag(
        "--check",
        action="store_true",
        help="measure on the ranks of this job what is predicted for them",
    ),
]


@dataclass(frozen=True)
class Forecast:
    """What is asked for; `file` are the settings of an experiment or of a training."""

    file: list[Setting]
    dimension: int | None
    ranks: list[int]
    per_node: int
    placement: str
    net: Cluster
    accuracy: float | None
    seconds: float
    check: bool


@dataclass(frozen=True)
class Workload:
    """What is predicted.

    Attributes
    ----------
    name : str
        Of the graph; "" for all-reduce.
    graph : callable
        The graph of a number of agents.
    demand : Demand
    reduced : float
        Bytes of an all-reduce that takes the place of the mixings.
    agents : int or None
        None: one per rank.
    simulator : Simulator or None
        None: a training.
    """

    name: str
    graph: Callable[[int], Topology | Schedule]
    demand: Demand
    reduced: float
    agents: int | None = None
    simulator: Simulator | None = None

    @property
    def experiment(self) -> Experiment | None:
        """That of the simulator."""
        return None if self.simulator is None else self.simulator.experiment


def prepare(args: argparse.Namespace, ranks: int) -> Forecast:
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
    if min(numbers) < 2 or max(numbers) > MOST:
        raise ConfigError(
            f"--ranks {args.ranks}: expected numbers from 2 to {MOST:,}, such as 16,256"
        )
    for name, given in (
        ("--ranks-per-node", args.ranks_per_node),
        ("--dimension", args.dimension),
    ):
        if given is not None and not 1 <= given <= MOST:
            raise ConfigError(f"{name} {given}: expected 1 to {MOST:,}")
    tables = {*config.TABLES, *TABLES}
    file = [
        *(schema.read_toml(args.experiment, tables, config.ENTRIES) if args.experiment else []),
        *(schema.parse_set(each, tables, "run.agents=32") for each in args.set),
    ]
    asked = Forecast(
        file,
        args.dimension if file or args.dimension else 1000,
        numbers,
        args.ranks_per_node,
        args.placement,
        cluster(args.network),
        _accuracy(args.accuracy),
        number(args.seconds, "--seconds", least=0),
        args.check,
    )
    if trains(asked.file) and (args.dimension or args.accuracy):
        raise ConfigError(
            f"{args.experiment} is a training: omit --dimension and --accuracy, its rows are those "
            "of the model, and the steps that it needs are not predicted"
        )
    return asked


def _accuracy(given: float | None) -> float | None:
    if given is None or 1e-15 <= given < 1:
        return given
    raise ConfigError(
        f"--accuracy {given:g}: expected a relative error from 1e-15 to below 1, which it is at the "
        "start, such as 1e-6"
    )


def workload(asked: Forecast) -> Workload:
    """Count what a step needs."""
    if trains(asked.file):
        demand, reduced, name, graph = of_training(asked.file)
        return Workload(short(name), graph, demand, reduced)
    experiment = config.load(asked.file)
    given = any(each.key == "run.agents" for each in asked.file)
    agents = experiment.run.agents if given else None
    simulator = Simulator(experiment, asked.dimension, agents)
    hint = "" if given else f" (a step is counted with {AGENTS} agents, or with run.agents)"
    demand = simulator.demand(_made(simulator.graph, agents or AGENTS, hint))
    name, reduced = short(experiment.topology.name), 8.0 * simulator.d
    return Workload(name, simulator.graph, demand, reduced, agents, simulator)


def _made(
    graph: Callable[[int], Topology | Schedule], n: int, hint: str = ""
) -> Topology | Schedule:
    try:
        return graph(n)
    except ValueError as error:
        raise InputError(f"{n} agents: {error}{hint}") from error


def graphs(about: Workload, n: int, block: int) -> dict[str, Topology | Schedule]:
    """Return the graph of the experiment, and others that n agents can have, `block` of them on a
    node.
    """
    if not about.name:
        return {}
    found = {about.name: _made(about.graph, n)}
    for name in OTHERS:
        if name in found or not _accepts(about.experiment, name):
            continue
        if name != "inner_outer":
            found[name] = topology.CATALOGUE[name](n)
        elif block > 2 and n % block == 0 and n > block:
            found[name] = topology.inner_outer(n, block)
    return found


def _accepts(experiment: Experiment | None, name: str) -> bool:
    """Return whether the solver of an experiment can use a graph."""
    if experiment is None:
        return True
    options, run = {}, experiment.run
    if name == "inner_outer":  # run.agents may have no such divisor
        options, run = {"machine_size": 4}, replace(run, agents=AGENTS)
    wanted = replace(experiment.topology, name=name, options=options)
    return accepted(replace(experiment, topology=wanted, run=run))


@dataclass(frozen=True)
class Line:
    """Seconds of a step by part, and its steps."""

    mixing: Cost
    compute: float
    course: Course

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.mixing.seconds + self.compute

    @property
    def seconds(self) -> float:
        """Seconds of all steps; infinite where they are not known."""
        return inf if self.course.steps is None else self.step * self.course.steps


def _count(number: float, noun: str) -> str:
    return plural(float(f"{number:.3g}"), noun)


def predict(asked: Forecast) -> None:
    """Print a table for each number of ranks, the cheapest step and the shortest run."""
    about, net = workload(asked), asked.net
    demand = about.demand
    if about.agents and about.agents < max(asked.ranks):
        raise InputError(
            f"--ranks {max(asked.ranks)}: run.agents is {about.agents}, expected at most "
            f"{about.agents} ranks (--set run.agents=N for others)"
        )
    print(
        f"a step: {_count(demand.mixings, 'mixing')} of rows of {quantity(demand.size, 'B')}, "
        f"{_count(demand.gradients, 'gradient')} of an agent; {plural(asked.per_node, 'rank')} a node, "
        f"placed by {asked.placement}, network {net.name}"
    )
    simulator = about.simulator if asked.accuracy else None
    share = asked.seconds / (len(asked.ranks) * (len(OTHERS) + 1))
    pace = net.gradient / gradient_seconds() if net.gradient else 1.0
    for ranks in asked.ranks:
        n = about.agents or ranks
        node = nodes_of(ranks, asked.per_node, asked.placement)
        compute = (demand.overhead + demand.compute * -(-n // ranks)) * pace
        lines, left_out = {}, {}
        for name, graph in graphs(about, n, asked.per_node * n // ranks).items():
            mixing = mean_cost(graph, node, demand.size, net).times(demand.mixings)
            course = Course(None)
            if simulator and asked.accuracy:
                try:
                    course = simulator.course(graph, asked.accuracy, share)
                except (InputError, Unstable) as error:  # such as codecs on graphs that change
                    if name == about.name:
                        raise InputError(f"{name}: {error}") from error
                    left_out[name] = str(error)
                    continue
            lines[name] = Line(mixing, compute, course)
        nodes = int(node.max()) + 1
        print(f"\n{plural(n, 'agent')}, {ranks} ranks on {plural(nodes, 'node')}")
        if lines:
            _table(lines, asked.accuracy)
        reduced = net.allreduce(nodes, -(-ranks // nodes), about.reduced)
        print(
            f"all-reduce of {quantity(about.reduced, 'B')}: {_time(reduced)}, "
            f"a step {_time(reduced + compute)}"
        )
        if lines:
            _best(lines, asked.accuracy)
        for name, why in left_out.items():
            print(f"left out: {name}: {why}")
        if simulator:
            _how(lines, simulator, n)


def _how(lines: Mapping[str, Line], simulator: Simulator, n: int) -> None:
    """Print where the numbers of steps come from."""
    data = "the data of the experiment"
    if simulator.synthetic(n):
        data = f"random least squares of {plural(n, 'agent')}, {UNKNOWNS} unknowns"
    bounded = [each.course.simulated for each in lines.values() if each.course.how]
    text = f"steps: simulated with {data}"
    if bounded:
        text += (
            f"; those with ~ after {min(bounded)} steps or more by the rate of theory, that of the "
            "slowest mode: a bound, runs may take fewer (more --seconds simulate more)"
        )
    print(text, flush=True)


def _table(lines: Mapping[str, Line], accuracy: float | None) -> None:
    timed = ["steps", f"to {accuracy:g}"] if accuracy else []
    head = ["graph", "latency", "bytes", "link", "kernel", "compute", "step", *timed]
    rows = []
    for name, each in lines.items():
        cost, steps = each.mixing, each.course.steps
        parts = (cost.latency, cost.bytes, cost.link, cost.kernel, each.compute, each.step)
        row = [name, *map(_time, parts)]
        if accuracy:
            known = "-" if steps is None else f"{each.course.how}{steps:.4g}"
            row += [known.replace("~inf", "inf").replace("inf", "never"), _time(each.seconds)]
        rows.append([*row, f"{cost.rows:.4g}"])
    print("\n".join(aligned([[*head, "rows over a link"], *rows], "<" + ">" * (len(head)))))


def _best(lines: Mapping[str, Line], accuracy: float | None) -> None:
    """Print the cheapest step, and the shortest run."""
    cheapest = min(lines, key=lambda name: lines[name].step)
    text = f"cheapest step: {cheapest}"
    soonest = min(lines, key=lambda name: lines[name].seconds)
    if isinf(lines[soonest].seconds):
        text += "; it may need more steps than others"
    else:
        text += f"; soonest at an error of {accuracy:g}: {soonest}"
    print(text, flush=True)


def _time(seconds: float) -> str:
    if isinf(seconds):
        return "-"
    if seconds < 1e-3:
        return quantity(1e6 * seconds, "us")
    return f"{1e3 * seconds:.4g} ms" if seconds < 10 else f"{seconds:.4g} s"


def execute(asked: Forecast, comm: MPI.Intracomm) -> int:
    """Predict in one process, or measure on all."""
    if not asked.check:
        on_root(comm, predict, asked)
        return Status.OK
    if comm.size < 2:
        raise InputError("--check measures on several ranks: mpirun -n 4 mpidec predict --check")
    about = on_root(comm, workload, asked)
    n, node = about.agents or comm.size, nodes_of_job(comm)
    block = int(np.bincount(node).max()) * n // comm.size
    made = graphs(about, n, block)
    lines = [["graph", "measured", "predicted", "ratio"]]
    sizes = about.demand.size, about.reduced
    for name, measured, predicted in compared(made, *sizes, node, asked.net, comm):
        lines.append([name, _time(measured), _time(predicted), f"{predicted / measured:.2f}"])
    if comm.rank == 0:
        print(f"W(X) with rows of {quantity(about.demand.size, 'B')}, network {asked.net.name}")
        print("\n".join(aligned(lines, "<>>>")), flush=True)
    return Status.OK


PREDICT = Command(
    name="predict",
    description="Predict the time of a step on a cluster, by part and graph.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    execute=execute,
    needs_mpi=False,
)
main = PREDICT.main
