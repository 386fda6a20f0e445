"""Run an experiment: ``mpirun -n 16 python -m mpidec.run``."""
from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from mpi4py import MPI

from . import _machine, assemble, catalogue, config, report
from ._version import __version__
from .assemble import InputError, on_root
from .config import ConfigError, Experiment, Setting
from .mixing.network import Network
from .plugins import short
from .record import Record
from .record import read as read_run
from .runtime.launch import abort_when_uncaught, check_launcher, warn_if_not_compiled
from .solve import Result, solve

STATUS = {"completed": 0, "stopped": 0, "diverged": 3, "interrupted": 130}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
FLAGS = {
    "problem": ("problem.name", "P", "loss: logistic (default), least_squares, ..."),
    "data": ("problem.data", "D", "name of a data set, or a file: .npz with A (N, d) and y or b (N,), .csv, LIBSVM"),
    "solver": ("solver.name", "S", "method: gradient_tracking (default), exact_diffusion, dgd, ..."),
    "topology": ("topology.name", "T", "graph: exponential (default if the solver supports it), ring, ..."),
    "agents": ("run.agents", "N", f"number of agents (default: one per rank, or {config.AGENTS_ALONE} in a single process)"),
    "steps": ("run.steps", "K", f"number of steps (default: until error <= {config.STOP_ERROR:g}, at most {config.STEPS})"),
    "step-size": ("solver.step_size", "A", "step size (default: a safe value computed from the problem's smoothness constant)"),
    "seed": ("run.seed", "S", "seed of all random numbers (default: 0)"),
    "every": ("run.every", "E", "steps between two records (default: 10)"),
    "out": ("run.out", "FILE", "output file (default: run.h5)"),
    "stop-error": ("run.stop_error", "TOL", "stop when error <= TOL; 'none' takes all steps"),
}
EPILOG = """\
examples:
  python -m mpidec.run                                    the default experiment: 16 agents in one process
  mpirun -n 16 python -m mpidec.run                       the same, one agent per rank
  mpirun -n 4 python -m mpidec.run --agents 64 --topology ring --steps 2000
  mpirun -n 8 python -m mpidec.run --problem least_squares --data mine.csv --solver extra --topology grid
  python -m mpidec.run experiment.toml --step-size 0.1 --set problem.l2=0.05 --set topology.weights=uniform
  mpirun -n 16 python -m mpidec.run --resume run.h5       continue from the last checkpoint, on any number of ranks

tables of an experiment file (flags override the file, and --set overrides flags):
  [problem]   name, data, label (column of a file: name or number), partition = "iid" | "sorted" | "dirichlet" (alpha) | "blocks",
              standardize (columns to mean 0 and variance 1: set it if they differ much in size), intercept,
              scale = "sum" | "mean" (of the losses; the mean is over all samples), batch_size, noise; delta, ...
              l2, l1 (of each agent: with sums, n agents together have n times as much, so the solution depends on n),
              l2_total, l1_total (of all agents together: 1 / C of scikit-learn, the same solution for any number of agents),
              lower, upper (bounds of the unknowns), simplex (their sum)
  [solver]    name; step_size, ...
  [topology]  name; weights, ...
  [mixing]    codec; fraction, ...; feedback, gamma; accelerate = 3, method = "chebyshev" | "fastmix"
  [run]       agents, steps, seed, every, out, stop_error, trajectory, checkpoint (seconds between checkpoints),
              progress = "auto" | "bar" | "lines" | "none"
Solvers, topologies, problems, data sets and codecs of your own: --solver FILE.py:NAME or MODULE:NAME, or an entry point of an
installed package. A relative file is looked up in the folder of the experiment file, then in the working folder.
The attribute "config" of every run.h5 contains the complete experiment in this form.

exit status: 0 completed, or stopped by --stop-error; 1 error in the program or on the disk; 2 error in the input;
3 the iterates diverged; 130 interrupted (the file is complete up to that step, and --resume continues the run)."""


class Parser(argparse.ArgumentParser):
    """Argument parser that raises an exception instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


class Command(NamedTuple):
    """Parsed command line: an experiment to run or to resume, or a text to print."""

    experiment: Experiment | None = None
    resume: str | None = None
    quiet: bool = False
    text: str = ""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    result = Parser(prog="python -m mpidec.run", allow_abbrev=False, add_help=False, epilog=EPILOG,
                    description="Run a decentralized optimization experiment and write it to an HDF5 file.",
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("experiment", nargs="?", metavar="EXPERIMENT.toml", help="experiment file")
    for flag, (_, metavar, text) in FLAGS.items():
        result.add_argument(f"--{flag}", metavar=metavar, help=text)
    result.add_argument("--set", metavar="table.key=value", action="append", default=[],
                        help="set any key of an experiment file")
    result.add_argument("--resume", metavar="run.h5", help="continue the run in this file; --steps may raise the number of steps")
    result.add_argument("--quiet", action="store_true", help="print warnings and errors only, no progress and no summary")
    result.add_argument("--list", action="store_true",
                        help="list all problems, data sets, solvers, topologies and codecs, and installed plug-ins")
    result.add_argument("--version", action="store_true", help="print the versions of mpidec and MPI")
    result.add_argument("-h", "--help", action="store_true", help="print this help")
    return result


def command_of(argv: Sequence[str], ranks: int) -> Command:
    """The command that `argv` describes, for a job of `ranks` ranks.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    parse = parser()
    args, extra = parse.parse_known_args(list(argv))
    if extra:
        known = [option for action in parse._actions for option in action.option_strings]
        flag = extra[0].partition("=")[0]
        raise ConfigError(config.unknown("flag", flag, known, "command line") if flag.startswith("-")
                          else f"unexpected argument {flag!r}: expected one experiment file and flags")
    if args.help:
        return Command(text=parse.format_help().rstrip())
    if args.version:
        return Command(text=f"mpidec {__version__}, {MPI.Get_library_version().splitlines()[0].strip(chr(0) + ' ')}")
    if args.list:
        return Command(text=catalogue.listing())
    flags = [Setting(key, value, f"--{flag}") for flag, (key, _, _) in FLAGS.items()
             if (value := getattr(args, flag.replace("-", "_"))) is not None]
    flags += map(config.parse_set, args.set)
    if args.resume is not None:
        if args.experiment:
            raise ConfigError(f"--resume continues the experiment in {args.resume}: omit {args.experiment}")
        return Command(resumed(args.resume, flags), args.resume, args.quiet)
    file = config.read_toml(args.experiment) if args.experiment else []
    return Command(config.load([*file, *flags], ranks), quiet=args.quiet)


def resumed(path: str, flags: Sequence[Setting]) -> Experiment:
    """The experiment in the file of a run, with the changes given by flags."""
    free = {"run.steps": "--steps", "run.stop_error": "--stop-error", "run.progress": "run.progress"}
    for flag in flags:
        if flag.key not in free:
            raise ConfigError(f"{flag.origin}: a resumed run keeps its experiment, and only {', '.join(free.values())} "
                              "can be changed")
    run = read_run(path)
    experiment = config.load([*config.read_toml(path, text=run.config), *flags])
    if run.steps >= experiment.run.steps:
        raise ConfigError(f"{path} has already taken {run.steps} steps: request more with --steps")
    return replace(experiment, run=replace(experiment.run, out=path))


def main(argv: Sequence[str] | None = None, comm: MPI.Intracomm | None = None) -> int:
    """Run the command line `argv` on all ranks of `comm`, and return the exit status.

    Raises
    ------
    Exception
        An error of the program; errors of its input are printed and returned as an exit status.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    argv = sys.argv[1:] if argv is None else argv
    try:
        check_launcher(comm)
        if comm.size > 1:
            abort_when_uncaught()
        command = on_root(comm, command_of, argv, comm.size)
        if command.experiment is None:
            if comm.rank == 0:
                print(command.text, flush=True)
            return 0
        with warnings_from_rank_0(comm.rank), sigterm_interrupts():
            warn_if_not_compiled(not _machine.uncompiled())
            return run(command.experiment, command.resume, command.quiet, comm)
    except InputError as error:
        return report_error(comm, str(error), error.status)
    except RuntimeError as error:
        if comm.size > 1:
            raise
        return report_error(comm, str(error), 2)
    except KeyboardInterrupt:
        if comm.size > 1:
            comm.Abort(130)
        return report_error(comm, "interrupted", 130)


def run(experiment: Experiment, resume: str | None, quiet: bool, comm: MPI.Intracomm) -> int:
    """Run an experiment on all ranks of `comm`, and return the exit status."""
    wanted = experiment.run
    with Network(wanted.agents, comm) as net:
        made = assemble.build(experiment, net)
        experiment = made.experiment
        shown = report.progress("none" if quiet or comm.rank else wanted.progress)
        stop = None if wanted.stop_error is None or made.x_star is None else {"error": wanted.stop_error}
        record = Record(wanted.out, trajectory=wanted.trajectory, checkpoint_seconds=wanted.checkpoint,
                        resume=resume is not None, config=experiment.to_toml())
        try:
            result = solve(made.oracle, made.solver, made.topology, steps=wanted.steps, x0=made.x0, net=net,
                           seed=wanted.seed, record=record, every=wanted.every, stop=stop, progress=shown,
                           mixing=made.mixing)
        except OSError as error:                              # error of the file, raised on all ranks
            raise InputError(str(error), 1 if error.errno in FULL else 2) from error
        finally:
            shown.close()
        if comm.rank == 0:
            if result.outcome == "diverged":
                print(f"mpidec.run: diverged at step {result.steps}: use a step size smaller than "
                      f"{getattr(made.solver, 'step_size', 0):.3g}", file=sys.stderr, flush=True)
            if not quiet:
                print(summary(made, result, comm.size), flush=True)
    return STATUS[str(result.outcome)]


def summary(made: assemble.Assembly, result: Result, ranks: int) -> str:
    """The table printed at the end of a run."""
    problem, wanted, n = made.experiment.problem, made.experiment.run, made.topology.n
    metrics = {name: values[-1] for name, values in result.metrics.items() if len(values)}
    steps, seconds = result.metrics["step"], float(metrics["time"])
    outcome = str(result.outcome)
    if outcome == "stopped":
        outcome += f" at step {result.steps}: error <= {wanted.stop_error:g}"
    elif outcome == "diverged":
        outcome += f" at step {result.steps}"
    gap = made.spectral_gap()
    rows = {
        "problem": f"{short(problem.name)}{report.options(_penalties(problem))}",
        "data": f"{short(problem.data)}, {made.samples} samples x {made.d} unknowns, partition {problem.partition}"
                if problem.data else f"none, {made.d} unknowns",
        **({"classes": ", ".join(f"{word} = {number}" for number, word in _classes(made))} if made.classes else {}),
        "agents": f"{n} on {ranks} rank{'s' * (ranks > 1)}",
        "topology": f"{short(made.experiment.topology.name)}{report.options(made.experiment.topology.options)}"
                    + (f", spectral gap {gap:.4g}" if gap is not None else ""),
        **_mixing(made.experiment.mixing),
        "solver": f"{short(made.experiment.solver.name)}{report.options(made.experiment.solver.options)}",
        "steps": f"{result.steps} of {wanted.steps}",
        "outcome": outcome,
    }
    rows |= {name: f"{metrics[name]:.6g}" for name in report.COLUMNS if name in metrics}
    rows |= {
        "time": f"{seconds:.3g} s, {(steps[-1] - steps[0]) / max(seconds, 1e-9):.4g} steps/s",
        "sent": f"{report.quantity(metrics['bytes'] / n, 'B')} per agent",
        "file": wanted.out,
    }
    if made.note:
        rows["note"] = made.note
    return report.table({name.replace("_", " "): value for name, value in rows.items()})


def _classes(made: assemble.Assembly) -> list[tuple[int, str]]:
    """The numbers that stand for the names of the classes."""
    return [(2 * c - 1 if len(made.classes) == 2 and made.experiment.problem.name == "logistic" else c, word)
            for c, word in enumerate(made.classes)]


def _penalties(problem: config.Problem) -> dict[str, Any]:
    """The options of a problem, and the settings of its scale and penalties that are not the defaults."""
    names = ("scale", "intercept", "l2_total", "l1", "l1_total", "lower", "upper", "simplex")
    return dict(problem.options) | {name: value for name in names if (value := getattr(problem, name)) is not None}


def _mixing(wanted: config.Mixing) -> dict[str, str]:
    parts = [f"{short(wanted.codec)}{report.options(wanted.options)}"] if wanted.codec else []
    parts += [f"{wanted.accelerate} times, {wanted.method or 'chebyshev'}"] if wanted.accelerate else []
    return {"mixing": ", ".join(parts)} if parts else {}


def report_error(comm: Any, message: str, status: int) -> int:
    """Print an error message on rank 0, before any rank exits, and return the exit status."""
    if comm.rank == 0:
        print(f"mpidec.run: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    comm.Barrier()
    return status


@contextmanager
def warnings_from_rank_0(rank: int) -> Iterator[None]:
    """Context in which each warning is printed once, on one line, by rank 0 only."""
    shown = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            print(f"mpidec.run: warning: {message}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        if rank:
            warnings.simplefilter("ignore")
        elif not sys.warnoptions:
            warnings.simplefilter("default")
        warnings.showwarning = show
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Context that treats SIGTERM (sent by batch systems) like Ctrl-C: the run ends with a complete file that can be resumed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


if __name__ == "__main__":
    sys.exit(main())
