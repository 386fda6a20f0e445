"""Command ``python -m mpidec.theory``."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

import numpy as np

from .._process import detach
from .._style import COLOURS, SCREEN, figure
from ..cli import Command, Flag, aligned
from ..driver.internals import as_solver, as_topology
from ..exceptions import ConfigError, InputError
from ..solvers import Solver
from ..solvers.internals import with_step_size
from ..topology import Schedule, Topology
from .quadratic import Quadratic
from .stability import largest_step
from .steady import against_step, rate, steady_state

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """\
examples:
  python -m mpidec.theory ring                                          rates, limits and steady states of some solvers on a ring
  python -m mpidec.theory ring exponential one_peer_exponential --n 32 -o theory.png
  python -m mpidec.theory ring --solver dgd extra my.py:MySolver --noise 0.1 --step 0.05

The agents' costs are h_i (x - c_i)^2 / 2 with curvatures h_i between 1/2 and 2 and minimizers c_i
of variance 1; their gradients have noise.  All follows from the linear map that a step of the
solver is: nothing is simulated. For your own problem: mpidec.theory.steady_state(problem, solver,
topology).
"""
USUAL = ["dgd", "diffusion", "exact_diffusion", "extra", "gradient_tracking"]
FLAGS = [
    Flag("topology", nargs="+", metavar="TOPOLOGY", help="names of graphs, or FILE.py:NAME"),
    Flag("--n", type=int, default=16, help="agents (default: 16)"),
    Flag(
        "--solver",
        nargs="+",
        default=USUAL,
        metavar="SOLVER",
        help=f"names, or FILE.py:NAME (default: {' '.join(USUAL)})",
    ),
    Flag("--noise", type=float, default=0.1, help="its standard deviation (default: 0.1)"),
    Flag(
        "--link-noise",
        type=float,
        default=0.0,
        metavar="SIGMA",
        help="standard deviation of what the links add, as W.noisy does (default: 0)",
    ),
    Flag("--step", type=float, default=0.1, help="step size of the table (default: 0.1)"),
    Flag("--seed", type=int, default=0, help="of the agents' costs (default: 0)"),
    Flag("-o", "--out", metavar="FIGURE", help="also draw all against the step size"),
]
SIZES = np.geomspace(1e-3, 2, 34)  # step sizes of the figure


def prepare(args: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Return the arguments, checked."""
    for name, least in (("n", 2), ("noise", 0.0), ("link_noise", 0.0), ("seed", 0)):
        if not vars(args)[name] >= least:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} {vars(args)[name]}: expected at least {least:g}")
    if not args.step > 0 or not math.isfinite(args.step):
        raise ConfigError(f"--step {args.step:g}: expected a positive number")
    return args


def example(n: int, seed: int = 0) -> Quadratic:
    """Costs of n agents that differ in curvature and minimizer."""
    rng = np.random.default_rng(seed)
    h, c = np.exp(rng.uniform(-math.log(2), math.log(2), n)), rng.standard_normal(n)
    x_star = (h @ c) / h.sum()
    return Quadratic(np.array([x_star]), h[:, None, None], (h * (x_star - c))[:, None])


def execute(args: argparse.Namespace) -> None:
    """Print the table, and draw the figure."""
    detach()
    model = example(args.n, args.seed)
    try:
        graphs = [as_topology(name, args.n) for name in args.topology]
        solvers = [_solver(name, args.step) for name in args.solver]
        lines = [["topology", "solver", "stable steps", "rate", "msd", "bias"]]
        for graph in graphs:
            for solver in solvers:
                lines.append(
                    [graph.name, *_line(model, solver, graph, args.noise, args.link_noise)]
                )
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    links = f", link noise {args.link_noise:g}" if args.link_noise else ""
    print(
        f"{args.n} agents, noise {args.noise:g}{links}; rate, msd and bias at the step size {args.step:g}"
    )
    print("\n".join(aligned(lines, "<<>>>>")), flush=True)
    if args.out is not None:
        stepping = [solver for solver in solvers if solver.needs.problem]
        if not stepping:
            raise InputError(
                f"-o {args.out}: no solver has a step size, against which all is drawn"
            )
        draw(model, stepping, graphs, args.noise, args.link_noise).savefig(args.out, dpi=200)
        print(args.out, flush=True)


def _solver(name: str, step: float) -> Solver:
    solver = as_solver(name)
    return with_step_size(solver, step) if solver.needs.problem else solver


def _line(
    model: Quadratic, solver: Solver, graph: Topology | Schedule, noise: float, link_noise: float
) -> list[str]:
    name = type(solver).__name__
    if not solver.needs.problem:  # it averages
        known = f"{rate(model, solver, graph):.5f}" if graph.period else "-"
        return [name, "-", known, "-", "-"]
    s = steady_state(model, solver, graph, noise=noise, link_noise=link_noise)
    if not graph.period:
        return [name, "-", "-", _db(s.msd.mean()), _db(s.bias.mean())]
    stable, factor = largest_step(model, solver, graph), rate(model, solver, graph)
    return [name, str(stable), f"{factor:.5f}", _db(s.msd.mean()), _db(s.bias.mean())]


def _db(square: float) -> str:
    if not math.isfinite(square):
        return "diverges"
    return f"{10 * math.log10(square):.1f} dB" if square > 1e-14 else "0"


def draw(
    model: Quadratic,
    solvers: list[Solver],
    graphs: list[Topology | Schedule],
    noise: float,
    link_noise: float = 0.0,
) -> Figure:
    """Return the steady states and rates of solvers against the step size, a column per graph."""
    from matplotlib import rc_context

    with rc_context(SCREEN):
        made = figure(figsize=(1 + 3.2 * len(graphs), 5.2), layout="constrained")
        axes = made.subplots(2, len(graphs), squeeze=False, sharex=True, sharey="row")
        for (upper, lower), graph in zip(axes.T, graphs):
            for colour, solver in zip(COLOURS * len(solvers), solvers):
                label = type(solver).__name__
                found = against_step(model, solver, graph, SIZES, noise, link_noise)
                msd, bias, rates = np.where(np.isfinite(found), found, math.nan).T
                upper.loglog(SIZES, msd, color=colour, label=label)
                upper.loglog(SIZES, np.where(bias > 1e-14, bias, math.nan), "--", color=colour)
                lower.semilogx(
                    SIZES, np.where(rates < 1, rates, math.nan), color=colour, label=label
                )
            upper.set_title(f"{graph.name}, n = {graph.n}")
            lower.set_xlabel("step size")
        axes[0, 0].set_ylabel("mean-square deviation (dashed: bias)")
        axes[1, 0].set_ylabel("factor of the error per step")
        axes[1, 0].legend()
    return made


THEORY = Command(
    name="theory",
    description="Show what solvers do on graphs, from the linear map that a step is.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    alone=execute,
)
main = THEORY.main
