"""Flags of the command line that set the keys of an experiment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from . import settings as config
from .settings import Setting

FLAGS = {
    "problem": ("problem.name", "P", "loss: logistic (default), least_squares, ..."),
    "data": (
        "problem.data",
        "D",
        "name of a data set, or a file: .npz with A (N, d) and y or b (N,), .csv, LIBSVM",
    ),
    "solver": (
        "solver.name",
        "S",
        "method: gradient_tracking (default), exact_diffusion, dgd, ...",
    ),
    "topology": (
        "topology.name",
        "T",
        "graph: exponential (default if the solver supports it), ring, ...",
    ),
    "agents": (
        "run.agents",
        "N",
        f"number of agents (default: one per rank, or {config.AGENTS_ALONE} in a single process)",
    ),
    "steps": (
        "run.steps",
        "K",
        f"number of steps (default: until error <= {config.STOP_ERROR:g}, at most {config.STEPS})",
    ),
    "step-size": (
        "solver.step_size",
        "A",
        "number, auto (default: the run finds it), safe (a bound), or a schedule: inverse(0.1)",
    ),
    "seed": ("run.seed", "S", "seed of all random numbers (default: 0)"),
    "every": ("run.every", "E", "steps between two records (default: 10)"),
    "out": (
        "run.out",
        "FILE",
        "output file (default: run.h5, or run-2.h5, run-3.h5, ... if it exists)",
    ),
    "stop-error": ("run.stop_error", "TOL", "stop when error <= TOL; 'none' takes all steps"),
    "delay": (
        "run.delay",
        "T",
        "asynchronous: each message is held back for T seconds, or LOW,HIGH: uniform in between",
    ),
    "drop": ("run.drop", "P", "asynchronous: each message is lost with the probability P"),
    "straggler": (
        "run.straggler",
        "AGENT:T",
        "asynchronous: the agent sleeps for T seconds at each of its steps; 0:0.5,3:0.1, or "
        "the flag repeated",
    ),
}


def add_flags(
    parse: argparse.ArgumentParser, help: Mapping[str, str] | None = None, but: Sequence[str] = ()
) -> None:
    """Add the flags of an experiment to a parser, `but` for some, with `help` of its own for others."""
    for flag, (_, metavar, text) in FLAGS.items():
        if flag not in but:
            parse.add_argument(
                f"--{flag}",
                metavar=metavar,
                help=(help or {}).get(flag, text),
                action="append" if flag == "straggler" else "store",
            )
    parse.add_argument(
        "--simulate",
        action="store_true",
        default=None,
        help="asynchronous: simulate the run on a queue of events, in one process, reproducibly; T is then in units "
        "of the time of one gradient, and a straggler takes 1 + T units for a step",
    )
    parse.add_argument(
        "--set",
        metavar="table.key=value",
        action="append",
        default=[],
        help="set any key of an experiment file",
    )


def settings_of(args: argparse.Namespace) -> list[Setting]:
    """Return the settings that the flags and --set give."""
    found = []
    for flag, (key, _, _) in FLAGS.items():
        value = getattr(args, flag.replace("-", "_"), None)
        if value is not None and not (flag == "out" and "vary" in args):
            found.append(
                Setting(key, ",".join(value) if isinstance(value, list) else value, f"--{flag}")
            )
    if args.simulate:
        found.append(Setting("run.simulate", True, "--simulate", text=False))
    return [*found, *map(config.parse_set, args.set)]
