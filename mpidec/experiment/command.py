"""Run an experiment: ``mpirun -n 16 python -m mpidec.run``."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .. import registry as catalogue
from .._version import __version__
from ..cli import progress as report
from ..cli import startup as _startup
from ..comm.mixing.network import Network
from ..comm.runtime.interrupts import interrupt, interrupts
from ..comm.runtime.launch import abort_when_uncaught, check_launcher, end_job, warn_if_not_compiled
from ..comm.runtime.mpi import MPI
from ..diagnostics import host as _machine
from ..driver.asynchronous import AsyncResult
from ..driver.asynchronous.result import SIMULATED, cannot_resume
from ..driver.solve import Result
from ..driver.tune import tune
from ..plugins import is_plugin, short
from ..record import read as read_run
from . import build as assemble
from . import settings as config
from .build import InputError, on_root
from .settings import ConfigError, Experiment, Setting

STATUS = {"completed": 0, "stopped": 0, "diverged": 3, "missed": 4, "interrupted": 130}
OPEN_FILES = (errno.EMFILE, errno.ENFILE)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, *OPEN_FILES)
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
EPILOG = """\
examples:
  python -m mpidec.run                                    the default experiment: 16 agents in one process
  mpirun -n 16 python -m mpidec.run                       the same, one agent per rank
  mpirun -n 4 python -m mpidec.run --agents 64 --topology ring --steps 2000
  mpirun -n 8 python -m mpidec.run --problem least_squares --data mine.csv --solver extra --topology grid
  python -m mpidec.run experiment.toml --step-size 0.1 --set problem.l2=0.05 --set topology.weights=uniform
  mpirun -n 4 python -m mpidec.run --solver a2cid2 --topology ring --steps 200 --straggler 0:0.05
  mpirun -n 16 python -m mpidec.run --resume run.h5       continue from the last checkpoint, on any number of ranks

tables of an experiment file (flags override the file, and --set overrides flags):
  [problem]   name, data, label (column of a file: name or number), partition = "iid" | "sorted" | "dirichlet" (alpha) | "blocks",
              standardize (columns to mean 0 and variance 1: set it if they differ much in size), intercept,
              scale = "sum" | "mean" (of the losses; the mean is over all samples), batch_size, noise; delta, ...
              l2, l1 (of each agent: with sums, n agents together have n times as much, so the solution depends on n),
              l2_total, l1_total (of all agents together: 1 / C of scikit-learn, the same solution for any number of agents),
              lower, upper (bounds of the unknowns), simplex (their sum)
  [solver]    name; step_size = 0.1 | "auto" | "safe" | "inverse(0.1)" and other schedules of the step k: constant, inverse (1/k),
              inverse_sqrt, step(0.1, ratio=0.5, every=1000), cosine(auto, steps=2000), warm_up(auto, 100, then=cosine), ...
  [topology]  name; weights, ...
  [mixing]    codec; fraction, ...; feedback, gamma; accelerate = 3, method = "chebyshev" | "fastmix"
  [run]       agents, steps, seed, every, out, stop_error, trajectory, checkpoint (seconds between checkpoints),
              progress = "auto" | "bar" | "lines" | "none"; of asynchronous solvers delay = 0.1 | [0.0, 0.1], drop, simulate = true,
              straggler = "0:0.5,3:0.1" (agent 0 sleeps for half a second at each step, agent 3 for a tenth)

asynchronous solvers (async_push_sum, pairwise_gossip, a2cid2, running_sum_tracking): agents take steps at times of their own, on
the ranks in wall time, until they have taken --steps steps in the mean; the records are written at the end, and --stop-error is
judged there.  With --simulate they run on a queue of events in one process, and stop at the first record with error <= TOL.

Solvers, topologies, problems, data sets and codecs of your own: --solver FILE.py:NAME or MODULE:NAME, or an entry point of an
installed package. A relative file is looked up in the folder of the experiment file, then in the working folder.
The attribute "config" of every run.h5 contains the complete experiment in this form.

exit status: 0 completed, or stopped by --stop-error; 1 error in the program or on the disk; 2 error in the input;
3 diverged; 4 all steps taken, but the target (--stop-error) missed; 130 interrupted (the file is complete up to that step, and
--resume continues the run).  Ctrl-C, SIGTERM and SIGUSR1 (which batch systems send before the time limit) interrupt a run."""


class Parser(argparse.ArgumentParser):
    """Argument parser that raises an exception instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def known(self, argv: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments; an unknown one is an error that suggests a flag."""
        args, extra = self.parse_known_args(list(argv))
        if extra:
            known = [option for action in self._actions for option in action.option_strings]
            flag = extra[0].partition("=")[0]
            raise ConfigError(
                config.unknown("flag", flag, known, "command line")
                if flag.startswith("-")
                else f"unexpected argument {flag!r}: expected one experiment file and flags"
            )
        return args


class Command(NamedTuple):
    """Parsed command line: an experiment to run or to resume, or a text to print."""

    experiment: Experiment | None = None
    resume: str | None = None
    quiet: bool = False
    text: str = ""
    tune: bool = False
    picture: str | None = None


def parser(program: str = "mpidec.run") -> Parser:
    """The parser of the command line."""
    result = Parser(
        prog=f"python -m {program}",
        allow_abbrev=False,
        add_help=False,
        epilog=EPILOG,
        description="Run a decentralized optimization experiment and write it to an HDF5 file.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("experiment", nargs="?", metavar="EXPERIMENT.toml", help="experiment file")
    add_flags(result)
    result.add_argument(
        "--resume",
        metavar="run.h5",
        help="continue the run in this file; --steps may raise the number of steps",
    )
    result.add_argument("--force", action="store_true", help="replace the output file if it exists")
    result.add_argument(
        "--tune",
        action="store_true",
        help="print the step sizes that auto compares, and its choice; do not run",
    )
    result.add_argument(
        "-o", metavar="tune.png", dest="picture", help="with --tune: draw them, too"
    )
    result.add_argument(
        "--quiet",
        action="store_true",
        help="print warnings and errors only, no progress and no summary",
    )
    result.add_argument(
        "--list",
        action="store_true",
        help="list all problems, data sets, solvers, topologies and codecs, and installed plug-ins",
    )
    result.add_argument(
        "--version", action="store_true", help="print the versions of mpidec and MPI"
    )
    result.add_argument("-h", "--help", action="store_true", help="print this help")
    return result


def add_flags(
    parse: Parser, help: Mapping[str, str] | None = None, but: Sequence[str] = ()
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
    """The settings that the flags and --set give."""
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


def command_of(argv: Sequence[str], ranks: int, program: str = "mpidec.run") -> Command:
    """The command that `argv` describes, for a job of `ranks` ranks.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    parse = parser(program)
    args = parse.known(argv)
    if args.help:
        return Command(text=parse.format_help().rstrip())
    if args.version:
        return Command(
            text=f"mpidec {__version__}, {MPI.Get_library_version().splitlines()[0].strip(chr(0) + ' ')}"
        )
    if args.list:
        return Command(text=catalogue.listing())
    flags = settings_of(args)
    if args.tune:
        _check_search(args, flags)
    if args.resume is not None:
        if args.experiment:
            raise ConfigError(
                f"--resume continues the experiment in {args.resume}: omit {args.experiment}"
            )
        if args.force:
            raise ConfigError(
                f"--force replaces {args.resume}, --resume continues it: omit one of them"
            )
        return Command(resumed(args.resume, flags), args.resume, args.quiet)
    if args.picture is not None and not args.tune:
        raise ConfigError("-o is the picture of --tune; the output file of a run is --out")
    file = config.read_toml(args.experiment) if args.experiment else []
    experiment = config.load([*file, *flags], ranks)
    if args.tune and assemble.is_asynchronous(experiment):
        raise ConfigError(
            f"--tune searches with common steps, which {short(experiment.solver.name)} does not take: omit it; its "
            "step size auto is a bound, and --step-size takes other ones"
        )
    if experiment.run.simulate and ranks > 1:
        raise ConfigError(
            f"--simulate takes place in one process, this job has {ranks}: start it without mpirun"
        )
    if not (args.force or args.tune):
        out = free_name(experiment.run.out, given=any(flag.key == "run.out" for flag in flags))
        experiment = replace(experiment, run=replace(experiment.run, out=out))
    return Command(experiment, quiet=args.quiet, tune=args.tune, picture=args.picture)


def _check_search(args: argparse.Namespace, flags: Sequence[Setting]) -> None:
    """Refuse what a search for a step size does not use, and a picture that cannot be written, before the search."""
    if args.resume is not None:
        raise ConfigError(
            f"--tune finds a step size, --resume continues the run in {args.resume} with its own: omit one of them"
        )
    for flag in flags:
        if flag.key == "run.out":
            raise ConfigError(
                f"{flag.origin} {flag.value}: a search writes no run; the file of its picture is -o"
            )
        if flag.key == config.STEP_SIZE.key and not config.is_auto(str(flag.value)):
            raise ConfigError(
                f"{flag.origin} {flag.value}: a search finds the step size: omit it, or give a schedule that starts "
                "at auto, such as inverse(auto)"
            )
    if args.picture is not None:
        try:
            from ..plot.command import check_name

            check_name(args.picture)
        except ImportError as error:
            raise ConfigError(f"-o {args.picture}: {error}: pip install 'mpidec[plot]'") from None


def free_name(out: str, given: bool) -> str:
    """The name of the output file: an existing one is refused if it was `given` on the command line, else a number is added."""
    if not os.path.isfile(out):
        return out
    if given:
        raise ConfigError(
            f"--out {out} exists: choose another name, replace it with --force, or continue its run with "
            f"--resume {shlex.quote(out)}"
        )
    stem, suffix = os.path.splitext(out)
    stem, number = re.sub(r"-\d+$", "", stem), 2
    while os.path.isfile(f"{stem}-{number}{suffix}"):
        number += 1
    return f"{stem}-{number}{suffix}"


def resumed(path: str, flags: Sequence[Setting]) -> Experiment:
    """The experiment in the file of a run, with the changes given by flags."""
    free = {
        "run.steps": "--steps",
        "run.stop_error": "--stop-error",
        "run.progress": "run.progress",
    }
    for flag in flags:
        if flag.key not in free:
            raise ConfigError(
                f"{flag.origin}: a resumed run keeps its experiment, and only {', '.join(free.values())} "
                "can be changed"
            )
    run = read_run(path)
    if run.config.startswith(("# from mpidec.solve", "# from mpidec.simulate")):
        raise ConfigError(
            f"{path} was written by a Python program: continue it there, with "
            f"mpidec.solve(..., record=mpidec.Record({path!r}, resume=True))"
        )
    settings = config.read_toml(path, text=run.config)
    announce(path, settings)
    experiment = config.load([*settings, *flags])
    obstacle = (
        SIMULATED
        if experiment.run.simulate
        else cannot_resume(catalogue.solvers()[experiment.solver.name])
    )
    if obstacle:
        raise ConfigError(f"{path}: {obstacle}")
    if run.steps >= experiment.run.steps:
        raise ConfigError(f"{path} has already taken {run.steps} steps: request more with --steps")
    return replace(experiment, run=replace(experiment.run, out=path))


def announce(path: str, settings: Sequence[Setting], program: str = "mpidec.run") -> None:
    """Print which code the file of a run names, before that code is loaded: the file may come from somebody else."""
    names = {
        setting.key: str(config.ENTRIES[setting.key].convert(setting))
        for setting in settings
        if setting.key in config.ENTRIES and config.ENTRIES[setting.key].locate
    }
    code = [
        f"{name} ({key})"
        for key, name in names.items()
        if is_plugin(name) and (os.path.isfile(name.rpartition(":")[0]) or ".py:" not in name)
    ]
    if code:
        print(
            f"{program}: {path} names code that is run now: {', '.join(code)}",
            file=sys.stderr,
            flush=True,
        )


def main(
    argv: Sequence[str] | None = None,
    comm: MPI.Intracomm | None = None,
    program: str = "mpidec.run",
) -> int:
    """Run the command line `argv` on all ranks of `comm`, and return the exit status; messages begin with `program`.

    Raises
    ------
    Exception
        An error of the program; errors of its input are printed and returned as an exit status.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    argv = sys.argv[1:] if argv is None else argv
    _startup.loaded()
    try:
        check_launcher(comm)
    except RuntimeError as error:
        return report_error(comm, str(error), 2, program)
    try:
        with deferred_interrupts(comm), signals_interrupt():
            return obey(argv, comm, program)
    except InputError as error:
        return report_error(comm, str(error), error.status, program)
    except (OSError, ImportError) as error:
        if getattr(error, "errno", None) not in OPEN_FILES and os.strerror(errno.EMFILE) not in str(
            error
        ):
            raise
        print(
            f"{program}: error: {' '.join(str(error).split())}: raise the limit of open files (ulimit -n 1024)",
            file=sys.stderr,
            flush=True,
        )
        if comm.size > 1:
            end_job(comm, 1)
        return 1
    except KeyboardInterrupt:
        if comm.size > 1:
            comm.Abort(130)
        print(f"{program}: interrupted", file=sys.stderr, flush=True)
        return 130


def obey(argv: Sequence[str], comm: MPI.Intracomm, program: str = "mpidec.run") -> int:
    """Do what the command line says on all ranks of `comm`, and return the exit status."""
    if comm.size > 1:
        abort_when_uncaught()
    command = on_root(comm, command_of, argv, comm.size, program)
    if command.experiment is None:
        if comm.rank == 0:
            print(command.text, flush=True)
        return 0
    with warnings_from_rank_0(comm.rank, program):
        warn_if_not_compiled(not _machine.uncompiled())
        if command.tune:
            return tuned(command.experiment, command.picture, comm)
        return run(command.experiment, command.resume, command.quiet, comm)


def run(experiment: Experiment, resume: str | None, quiet: bool, comm: MPI.Intracomm) -> int:
    """Run an experiment on all ranks of `comm`, and return the exit status."""
    wanted = experiment.run
    with Network(wanted.agents, comm) as net:
        made = assemble.build(experiment, net)
        shown = report.progress("none" if quiet or comm.rank else wanted.progress)
        try:
            result = made.solve(net, wanted.out, resume is not None, shown, made.config)
        except OSError as error:  # error of the file, raised on all ranks
            message, full = error.strerror or str(error), error.errno in FULL
            again = (
                full
                and os.path.isfile(wanted.out)
                and not (wanted.simulate or cannot_resume(made.solver))
            )
            more = f"; then continue with {_again(wanted.out, comm.size)}" if again else ""
            raise InputError(message + more, 1 if full else 2) from error
        finally:
            shown.close()
        made = made.with_step_size(result.step_size)
        if comm.rank == 0:
            told = ending(made, result, comm.size)
            if told:
                print(f"mpidec.run: {told}", file=sys.stderr, flush=True)
            if not quiet:
                print(summary(made, result, comm.size), flush=True)
    return STATUS[str(result.outcome)]


def ending(made: assemble.Assembly, result: Result | AsyncResult, ranks: int) -> str:
    """What the user must know about a run that did not end well, in one line; else an empty string."""
    if result.outcome == "diverged":
        step = result.step_size
        remedy = (
            f"use a step size smaller than {step:.3g}"
            if isinstance(step, (int, float))
            else "use smaller step sizes"
        )
        if made.solver.unstable(made.topology):
            remedy = f"the likely cause is the graph, on which {type(made.solver).__name__} is unstable (see the warning above)"
        return f"diverged at step {result.steps}: {result.reason}: {remedy}"
    if result.outcome == "interrupted" and (obstacle := getattr(result, "obstacle", "")):
        return f"interrupted after step {result.steps}: {made.experiment.run.out} is complete up to it; {obstacle}"
    if result.outcome == "interrupted":
        return f"interrupted after step {result.steps}: continue with {_again(made.experiment.run.out, ranks)}"
    return result.reason


def _again(out: str, ranks: int) -> str:
    """The command that continues a run."""
    return f"{f'mpirun -n {ranks} ' if ranks > 1 else ''}python -m mpidec.run --resume {shlex.quote(out)}"


def tuned(experiment: Experiment, picture: str | None, comm: MPI.Intracomm) -> int:
    """Print the step sizes that "auto" compares for an experiment, and draw them; return the exit status."""
    wanted = experiment.run
    with Network(wanted.agents, comm) as net:
        made = assemble.build(experiment, net)
        tol = {} if wanted.stop_error is None else {"tol": wanted.stop_error}
        choice = assemble.agreed(
            net,
            lambda: tune(
                made.oracle,
                made.solver,
                made.topology,
                steps=wanted.steps,
                x0=made.x0,
                net=net,
                seed=wanted.seed,
                mixing=made.mixing,
                **tol,
            ),
        )

        def show() -> None:
            print(choice, flush=True)
            if picture is not None:
                choice.plot().savefig(picture, dpi=200)
                print(picture, flush=True)

        on_root(comm, show)
    return 0


def summary(made: assemble.Assembly, result: Result | AsyncResult, ranks: int) -> str:
    """The table printed at the end of a run."""
    problem, wanted, n = made.experiment.problem, made.experiment.run, made.topology.n
    metrics = {name: values[-1] for name, values in result.metrics.items() if len(values)}
    steps, times = result.metrics["step"], result.metrics["time"]
    outcome = str(result.outcome)
    if outcome == "stopped":
        outcome += f" at step {result.steps}: error <= {wanted.stop_error:g}"
    elif outcome == "diverged":
        outcome += f" at step {result.steps}"
    elif outcome == "missed":
        outcome += f": error > {wanted.stop_error:g} after {result.steps} steps"
    gap = made.spectral_gap()
    rows = {
        "problem": f"{short(problem.name)}{report.options(_penalties(problem))}",
        "data": f"{short(problem.data)}, {made.samples} samples x {made.d} unknowns, "
        f"{f'label {made.label}, ' if made.label else ''}partition {problem.partition}"
        if problem.data
        else f"none, {made.d} unknowns",
        **(
            {"classes": ", ".join(f"{word} = {number}" for number, word in _classes(made))}
            if made.classes
            else {}
        ),
        "agents": f"{n}, simulated"
        if wanted.simulate
        else f"{n} on {ranks} rank{'s' * (ranks > 1)}",
        "topology": f"{short(made.experiment.topology.name)}{report.options(made.experiment.topology.options)}"
        + (f", spectral gap {gap:.4g}" if gap is not None else ""),
        **_mixing(made.experiment.mixing),
        "solver": f"{short(made.experiment.solver.name)}{report.options(made.experiment.solver.options)}",
        **(
            {"step size": result.choice.line()}
            if isinstance(result, Result) and result.choice is not None
            else {}
        ),
        **(_hindrances(wanted) if made.asynchronous else {}),
        "steps": f"{result.steps} of {wanted.steps}",
        **(_own_paces(result) if isinstance(result, AsyncResult) else {}),
        "outcome": outcome,
    }
    rows |= {
        name: f"{metrics[name]:.6g}" for name in (*report.COLUMNS, "error_max") if name in metrics
    }
    rows |= {
        "time": f"{times[-1]:.4g} units, simulated"
        if wanted.simulate
        else f"{times[-1]:.3g} s, {(steps[-1] - steps[0]) / max(times[-1] - times[0], 1e-9):.4g} steps/s",
        "sent": f"{report.quantity(metrics['bytes'] / n, 'B')} per agent",
        "file": wanted.out,
    }
    if made.note:
        rows["note"] = made.note
    return report.table({name.replace("_", " "): value for name, value in rows.items()})


def _hindrances(wanted: config.Run) -> dict[str, str]:
    """What delays, loses and stops messages and agents."""
    unit = "units" if wanted.simulate else "s"
    delay = wanted.delay if isinstance(wanted.delay, tuple) else (wanted.delay,)
    return {
        **(
            {"delay": " to ".join(f"{value:g}" for value in dict.fromkeys(delay)) + f" {unit}"}
            if any(delay)
            else {}
        ),
        **({"drop": f"{wanted.drop:.4g}"} if wanted.drop else {}),
        **(
            {
                "stragglers": ", ".join(
                    f"agent {agent} {seconds:g} {unit} a step"
                    for agent, seconds in wanted.pauses().items()
                )
            }
            if wanted.straggler
            else {}
        ),
    }


def _own_paces(result: AsyncResult) -> dict[str, str]:
    """What the agents, the edges and the ranks of an asynchronous run have done."""
    counts, ages, idle = result.counts, result.staleness, result.idle
    messages = int(result.metrics["messages"][-1])
    rows = {
        "per agent": f"{counts.min()} (agent {counts.argmin()}) to {counts.max()} (agent {counts.argmax()}) steps"
        if counts.min() < counts.max()
        else f"{counts.max()} steps",
        "messages": f"{messages} ({messages / max(counts.sum(), 1):.3g} per step)",
    }
    if result.averagings:
        rows["averagings"] = (
            f"{2 * sum(result.averagings.values()) / max(counts.sum(), 1):.4g} per gradient"
        )
    if ages.sum():
        found = np.flatnonzero(ages)
        mean = f"{(ages * np.arange(len(ages))).sum() / ages.sum():.3g}"
        rows["staleness"] = (
            f"messages {mean} units old when read in the mean, {found[-1]} at most"
            if idle is None
            else f"{mean} messages found per reading in the mean, {found[-1]} at most"
        )
    if idle is not None and len(idle) > 1:
        rows["idle"] = (
            f"{100 * idle.max():.3g} % of the time at most (rank {idle.argmax()}), {100 * idle.min():.3g} % at least"
        )
    elif idle is not None:
        rows["idle"] = f"{100 * idle[0]:.3g} % of the time"
    return rows


def _classes(made: assemble.Assembly) -> list[tuple[int, str]]:
    """The numbers that stand for the names of the classes."""
    return [
        (
            2 * c - 1
            if len(made.classes) == 2 and made.experiment.problem.name == "logistic"
            else c,
            word,
        )
        for c, word in enumerate(made.classes)
    ]


def _penalties(problem: config.Problem) -> dict[str, Any]:
    """The options of a problem, and the settings of its scale and penalties that are not the defaults."""
    names = ("scale", "intercept", "l2_total", "l1", "l1_total", "lower", "upper", "simplex")
    return dict(problem.options) | {
        name: value for name in names if (value := getattr(problem, name)) is not None
    }


def _mixing(wanted: config.Mixing) -> dict[str, str]:
    parts = [f"{short(wanted.codec)}{report.options(wanted.options)}"] if wanted.codec else []
    parts += (
        [f"{wanted.accelerate} times, {wanted.method or 'chebyshev'}"] if wanted.accelerate else []
    )
    return {"mixing": ", ".join(parts)} if parts else {}


def report_error(comm: Any, message: str, status: int, program: str = "mpidec.run") -> int:
    """Print an error message on rank 0, before any rank exits, and return the exit status."""
    if comm.rank == 0:
        print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    comm.Barrier()
    return status


@contextmanager
def warnings_from_rank_0(rank: int, program: str = "mpidec.run") -> Iterator[None]:
    """Context in which each warning is printed once, on one line, by rank 0 only."""
    shown = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            print(f"{program}: warning: {message}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        if rank:
            warnings.simplefilter("ignore")
        elif not sys.warnoptions:
            warnings.simplefilter("default")
        warnings.showwarning = show
        yield


@contextmanager
def deferred_interrupts(comm: MPI.Intracomm) -> Iterator[None]:
    """Context in which Ctrl-C waits for the first step if there are several ranks: before it, they cannot end together."""
    if comm.size == 1:
        yield
        return
    with interrupts():
        yield


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Context that treats SIGTERM and SIGUSR1 (sent by batch systems) like Ctrl-C: the file is complete and can be resumed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
