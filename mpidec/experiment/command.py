"""Commands ``python -m mpidec.run`` and ``python -m mpidec.tune``: an experiment, and its step
size alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from .. import registry as catalogue
from .._words import command_of_extras
from ..cli import (
    EXPERIMENT,
    Command,
    Flag,
    Interrupts,
    Status,
    announce_code,
    file_error,
    file_flags,
    free_name,
    progress,
    refuse_survival,
    resume_command,
    say,
    set_eviction,
    survival_flags,
    version,
)
from ..comm.mixing import Network
from ..comm.runtime import MPI, agreed, on_root, warn_if_not_compiled
from ..diagnostics import host
from ..driver.internals import Beginning, cannot_resume, surviving, tune
from ..exceptions import ConfigError
from ..record import read as read_run
from ..record.internals import check_format
from . import build, settings as config
from .account import account, state as account_state, worded as account_worded
from .expected import expected, state, worded
from .pace import pace
from .schema import flag_settings, flags
from .settings import Experiment, Setting
from .summary import ending, summary
from .timeline import stragglers, timeline_of, traced

EPILOG = """\
examples:
  python -m mpidec.run                                    the default experiment: 16 agents in one
                                                          process
  mpirun -n 16 python -m mpidec.run                       the same, one agent per rank
  mpirun -n 4 python -m mpidec.run --agents 64 --topology ring --steps 2000
  mpirun -n 8 python -m mpidec.run --problem least_squares --data mine.csv --solver extra --topology grid
  python -m mpidec.run experiment.toml --step-size 0.1 --set problem.l2=0.05 --set topology.weights=uniform
  mpirun -n 4 python -m mpidec.run --solver a2cid2 --topology ring --steps 200 --straggler 0:0.05
  mpirun -n 16 python -m mpidec.run --resume run.h5       continue from the last checkpoint, on any
                                                          number of ranks

tables of an experiment file (flags override the file, and --set overrides flags):
  [problem]   name, data, label (column of a file: name or number), test = 0.2 | "test.csv" (held
              out: test_loss, accuracy), partition = "iid" | "stratified" | "sorted" | "blocks" |
              "shards" | "labels" (per_agent) | "dirichlet" | "sizes" (alpha),
              standardize (columns to mean 0 and variance 1: set it if they differ much in size;
              "scale": only to largest modulus 1, as sparse samples need it),
              intercept, scale = "sum" | "mean" (of the losses; the mean is over all samples),
              batch_size, noise, variance_reduction = "svrg" | "lsvrg" | "sarah" | "saga" (of
              batches; snapshot_period); delta, ...
              l2, l1 (of each agent: with sums, n agents together have n times as much, so the
              solution depends on n), l2_total, l1_total (of all agents together: 1 / C of
              scikit-learn, the same solution for any number of agents), lower, upper (bounds of
              the unknowns), simplex (their sum)
  [solver]    name; step_size = 0.1 | "auto" | "safe" | "inverse(0.1)" and other schedules of the
              step k: constant, inverse (1/k), inverse_sqrt, step(0.1, ratio=0.5, every=1000),
              cosine(auto, steps=2000), warm_up(auto, 100, then=cosine), ...
  [topology]  name; weights, ...
  [mixing]    triggered = 0.01, decay, conserving; codec; fraction, ...; feedback, gamma;
              accelerate = 3, method = "chebyshev" | "fastmix"; lose = 0.1, fill = "renormalize" |
              "own" | "zero"; repeat = 2; noise = 0.1
              (clip = 1: rows are shortened to this norm, and the summary states the privacy),
              attack = "2:sign_flip,5:100", robust = "clip" | "trimmed_mean" (tau or delta; trim)
  [run]       agents, steps, seed, runs, every, out, stop_error, stop = "accuracy=0.95,..."
              (limits of metrics), trajectory, checkpoint (seconds between checkpoints),
              metrics = "msd=own.py:msd,..." (user-defined: f(X, agents, k) returns one number per
              local agent), progress = "auto" | "bar" | "lines" | "none"; of asynchronous solvers
              delay = 0.1 | [0.0, 0.1], drop, simulate = true, straggler = "0:0.5,3:0.1" (agent 0
              sleeps for half a second at each step, agent 3 for a tenth)

asynchronous solvers (async_push_sum, pairwise_gossip, a2cid2, running_sum_tracking): agents take
steps asynchronously, on the ranks in wall time, until they have taken --steps steps on average, or
a record has reached --stop-error. With --simulate they run on a queue of events in one process.

Solvers, topologies, problems, data sets and codecs of your own: --solver FILE.py:NAME or
MODULE:NAME, or an entry point of an installed package. A relative file is looked up in the folder
of the experiment file, then in the working folder. The attribute "config" of every run.h5 contains
the complete experiment in this form.

exit status: 0 completed, or stopped by --stop-error or --stop; 1 error in the program or on the
disk; 2 error in the input; 3 diverged; 4 all steps taken, but the target (--stop-error, --stop)
missed; 130 interrupted (the file is complete up to that step, and --resume continues the run).
Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 (which batch systems send before the time limit)
interrupt a run."""


TUNE_EPILOG = """\
examples:
  python -m mpidec.tune                                     the step size of the default experiment
  python -m mpidec.tune --solver extra --topology ring --steps 500
  mpirun -n 4 python -m mpidec.tune experiment.toml -o tune.png
  python -m mpidec.tune --step-size "inverse(auto)"         where a schedule starts

Experiment files and --set: see mpidec run --help.  The choice is the step size that needs the
fewest steps to --stop-error TOL, or has the smallest error after --steps K.

exit status: 0 found; 1 error in the program; 2 error in the input; 130 interrupted."""


# The experiment, and how the command treats it.
Request = tuple[Experiment, argparse.Namespace]

FLAGS = [
    EXPERIMENT,
    *flags(config.FLAGS),
    *file_flags(
        "run",
        "run.h5",
        "steps",
        "problems, data sets, solvers, topologies and codecs, and installed plug-ins",
    ),
    Flag(
        "--tune",
        action="store_true",
        help="print the step sizes that auto compares, and its choice, which --out FIGURE draws; "
        "do not run",
    ),
    *survival_flags("on those that are left, with the same results"),
    Flag(
        "--trace",
        metavar="FILE",
        help="timeline of all ranks, for Perfetto: run.json; the summary tells who waited for whom",
    ),
    Flag("--version", action="store_true", help="print the versions of mpidec and MPI"),
]


def prepare(args: argparse.Namespace, ranks: int) -> Request | str:
    """Return the experiment in a job of `ranks` ranks and the arguments, or a text to print.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    if args.version:
        return version()
    if args.list:
        return catalogue.listing()
    args.picture, args.out = (args.out, None) if args.tune else (None, args.out)
    given = [*flag_settings(args, config.FLAGS), *map(config.parse_set, args.set)]
    timeline_of(args.trace)
    refuse_survival(args, ranks)
    if args.tune:
        _check_search(args, given)
    if args.resume is not None:
        return _resumed(args, given), args
    file = config.read_toml(args.experiment) if args.experiment else []
    experiment = config.load([*file, *given], ranks)
    if experiment.run.simulate and ranks > 1:
        raise ConfigError(
            f"--simulate takes place in one process, this job has {ranks}: start it without mpirun"
        )
    check_format(experiment.run.out)
    if not (args.force or args.tune):
        chosen = any(each.key == "run.out" for each in given)
        out = free_name("run", experiment.run.out, chosen, args.quiet)
        experiment = replace(experiment, run=replace(experiment.run, out=out))
    return experiment, args


def _prepare_search(args: argparse.Namespace, ranks: int) -> Request | str:
    """Return what the arguments of `mpidec.tune` ask for: a search without a run."""
    args.tune = True
    return prepare(args, ranks)


def _check_search(args: argparse.Namespace, flags: Sequence[Setting]) -> None:
    """Refuse what a search for a step size does not use, and a picture that cannot be written,
    before the search.
    """
    if args.trace is not None:
        raise ConfigError("--tune takes no run, --trace shows one: omit one of them")
    if args.resume is not None:
        raise ConfigError(
            f"--tune finds a step size, --resume continues the run in {args.resume} with its own: "
            "omit one of them"
        )
    for flag in flags:
        if flag.key == "run.out":
            raise ConfigError(
                f"{flag.origin} {flag.value}: a search writes no run; the file of its picture is --out"
            )
        if flag.key == config.STEP_SIZE.key and not config.is_auto(str(flag.value)):
            raise ConfigError(
                f"{flag.origin} {flag.value}: a search finds the step size: omit it, or give a "
                "schedule that starts "
                "at auto, such as inverse(auto)"
            )
    if args.picture is not None:
        try:
            from ..plot.internals import check_name

            check_name(args.picture)
        except ImportError as error:
            raise ConfigError(f"-o {args.picture}: {error}: {command_of_extras('plot')}") from None


def _resumed(args: argparse.Namespace, flags: Sequence[Setting]) -> Experiment:
    """Return the experiment in the file of a run, with the changes given by flags."""
    path: str = args.resume
    if args.experiment:
        raise ConfigError(f"--resume continues the experiment in {path}: omit {args.experiment}")
    if args.force:
        raise ConfigError(f"--force replaces {path}, --resume continues it: omit one of them")
    free = {
        "run.steps": "--steps",
        "run.stop_error": "--stop-error",
        "run.stop": "--stop",
        "run.progress": "run.progress",
    }
    run = read_run(path)
    if run.config.startswith(("# from mpidec.solve", "# from mpidec.simulate")):
        raise ConfigError(
            f"{path} was written by a Python program: continue it there, with "
            f"mpidec.solve(..., record=mpidec.Record({path!r}, resume=True))"
        )
    settings = config.read_toml(path, text=run.config)
    known = {setting.key: setting.value for setting in settings}
    for flag in flags:
        if flag.key not in free and flag.value != known.get(flag.key):
            raise ConfigError(
                f"{flag.origin}: {flag.key} is {known.get(flag.key, 'not set')} in {path}, not "
                f"{flag.value}: a resumed run "
                f"keeps its experiment, and only {', '.join(free.values())} can be changed"
            )
    announce_code(
        "run",
        path,
        {
            setting.key: str(config.ENTRIES[setting.key].convert(setting))
            for setting in settings
            if setting.key in config.ENTRIES and config.ENTRIES[setting.key].locate
        },
    )
    experiment = config.load([*settings, *flags])
    obstacle = cannot_resume(catalogue.SOLVERS[experiment.solver.name])
    if obstacle and not experiment.run.simulate:
        raise ConfigError(f"{path}: {obstacle}")
    if run.steps >= experiment.run.steps:
        raise ConfigError(f"{path} has already taken {run.steps} steps: request more with --steps")
    return replace(experiment, run=replace(experiment.run, out=path))


def execute(request: Request, comm: MPI.Intracomm) -> int:
    """Run the experiment, or find its step size, on all ranks of `comm`; return the exit status."""
    warn_if_not_compiled(not host.uncompiled())
    experiment, args = request

    def attempt(now: Beginning) -> int:
        resumed, timeline = args.resume is not None, timeline_of(args.trace)
        with now.network(experiment.run.agents, timeline) as net:
            job = build.build(experiment, net)
            if args.tune:
                return _search(job, args.picture, net)
            return _run(job, args, net, now.resume or resumed, now.lost)

    if not args.survive:
        return attempt(Beginning(comm))
    return surviving(attempt, comm, experiment.run.out, partial(say, "run"))


def _run(
    job: build.Job, args: argparse.Namespace, net: Network, resume: bool, lost: Callable[[], str]
) -> int:
    wanted, ranks = job.experiment.run, net.size
    shown = progress.progress("none" if args.quiet or net.rank else wanted.progress)
    try:
        result = job.solve(net, wanted.out, resume, shown, job.config, lost)
    except OSError as error:  # of the file, on all ranks
        can_resume = os.path.isfile(wanted.out) and (
            wanted.simulate or not cannot_resume(job.solver)
        )
        remedy = f"; then continue with {resume_command('run', wanted.out, ranks)}"
        raise file_error(error, remedy * can_resume) from error
    finally:
        shown.close()
    waited = traced(net, args.trace)
    slow = pace(job, result, net)
    told = expected(job, result, net)
    private = account(job, result) if net.rank == 0 else ""
    if net.rank == 0:
        state(wanted.out, told)
        account_state(wanted.out, private)
    job = job.with_step_size(result.step_size)
    if net.rank == 0:
        if line := ending(job, result, ranks):
            say("run", line)
        if not args.quiet:
            more = worded(told), account_worded(private)
            print(
                f"{summary(job, result, ranks, slow, *more, lost())}\n",
                end="",
                flush=True,
            )
            if waited:
                print(f"{stragglers(waited, args.trace)}\n", end="", flush=True)
    return Status.of(result.outcome)


def _search(job: build.Job, picture: str | None, net: Network) -> int:
    """Print the step sizes that "auto" compares for an experiment, and draw them."""
    wanted = job.experiment.run
    options = job.conditions(net)
    if "error" in (limits := wanted.limits()):
        options["tol"] = limits["error"]
    with agreed(net):
        choice = tune(
            job.oracle,
            job.solver,
            job.topology,
            steps=wanted.steps,
            x0=job.x0,
            net=net,
            seed=wanted.seed,
            **options,
        )

    def show() -> None:
        print(choice, flush=True)
        if picture is not None:
            choice.plot().savefig(picture, dpi=200)
            print(picture, flush=True)

    on_root(net.comm, show)
    return Status.OK


RUN = Command(
    name="run",
    description="Run a decentralized optimization experiment and write it to an HDF5 file.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    execute=execute,
    interrupts=Interrupts.DEFERRED,
    before_mpi=set_eviction,
    survives=lambda args: bool(args.survive),
)
TUNE = replace(
    RUN,
    name="tune",
    description="Print the step sizes that auto compares for an experiment, and its choice; "
    "nothing is run or written.",
    epilog=TUNE_EPILOG,
    prepare=_prepare_search,
)
main = RUN.main
