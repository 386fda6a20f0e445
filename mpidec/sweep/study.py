"""A sweep: the runs are shared out over the ranks, finished ones are kept, and unfinished ones
resumed.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from ..cli import WHOLE, ArrayPart, let_warnings_pass
from ..comm.mixing import Network
from ..comm.runtime import MPI, abort_when_uncaught, on_root
from ..driver.internals import Outcome, Result
from ..exceptions import ConfigError, InputError
from ..experiment import Experiment, Setting, abbreviate, build, expected, settings as config, state
from ..plot.internals import flat
from ..record import read
from ..solvers.internals import step_size_of
from .cases import (
    RANDOM,
    Case,
    CaseStatus,
    Variation,
    cases,
    check_table,
    common_graph,
    config_text,
    status,
)
from .parts import elsewhere, failed, note
from .sharing import WorkQueue
from .tables import Table, table

# Errors whose messages say enough without their type.
INPUT = (
    InputError,
    ValueError,
    TypeError,
    OSError,
)


@dataclass(frozen=True)
class Study:
    """What a sweep has to do: all cases, and for each whether it is new, unfinished or finished."""

    cases: Sequence[Case]
    states: Sequence[CaseStatus]
    target: tuple[str, float | None]
    ranks_per_run: int
    notes: tuple[str, ...] = ()
    theory: bool = False
    # Why a file cannot be read, by file.
    spoilt: Mapping[str, str] = field(default_factory=dict)
    part: ArrayPart = WHOLE

    def open(self) -> list[int]:
        """Return the indices of the cases of the part that have to run."""
        done = (CaseStatus.FINISHED, CaseStatus.SPOILT)
        return [
            number
            for number, state in enumerate(self.states)
            if state not in done and self.part.takes(number)
        ]


class Swept(NamedTuple):
    """What a sweep gives: the table, the messages of failed runs by file, and the files of runs
    that other processes have to end.
    """

    table: Table
    failures: dict[str, str]
    elsewhere: Sequence[str]


class SweepReport(NamedTuple):
    """What a group of ranks reports of a run."""

    number: int
    outcome: str
    steps: int
    seconds: float
    value: float
    notes: tuple[str, ...] = ()


def sweep(
    experiment: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    vary: Mapping[str, Sequence[Any]],
    seeds: int | None = None,
    out: str = "sweep",
    target: tuple[str, float | None] = ("error", None),
    ranks_per_run: int = 1,
    comm: MPI.Intracomm | None = None,
    on_line: Callable[[str], None] | None = None,
    theory: bool = False,
) -> Table:
    """Run an experiment with every combination of varied settings and seeds, and return the table
    of results.

    Parameters
    ----------
    experiment : path or mapping, optional
        An experiment file, or settings such as ``{"problem.data": "wine", "run.steps": 500}``; by
        default the default experiment.
    vary : mapping
        The values of each varied setting: ``{"solver.name": ["extra", "dgd"], "topology.name":
        ["ring", "grid"]}``.  Settings of one value alone are in braces after it:
        ``"lead{mixing.codec=top_k}"``.
    seeds : int, optional
        Number of seeds for each combination, counted from the seed of the experiment.
    out : str
        Folder of the run files.  Finished runs in it are kept, and unfinished ones resumed.
    target : (str, float or None)
        Metric and limit of the table.  Without a limit it is the `stop_error` of the runs, or 1e-6.
    ranks_per_run : int
        Ranks that share one run; 1 by default, so that as many runs as ranks take place at once.
    comm : communicator, optional
        By default `MPI.COMM_WORLD`.
    on_line : callable, optional
        Called on rank 0 with a line for each run that ends.
    theory : bool
        Write into the files of the runs made what theory expects of them, for the figure; it can
        take longer than a run.

    Returns
    -------
    Table

    Raises
    ------
    InputError
        On every rank: a setting is unknown, or a file in the folder holds another experiment.
    KeyboardInterrupt
        On every rank: the sweep was interrupted; a second call continues it.

    Notes
    -----
    Collective.  A run that diverges or fails, or whose file is damaged, does not end the sweep: the
    table shows it.

    Examples
    --------
    >>> import tempfile, mpidec
    >>> small = {
    ...     "problem.name": "least_squares",
    ...     "problem.data": "synthetic_least_squares",
    ...     "run.agents": 4,
    ...     "run.steps": 20,
    ... }
    >>> table = sweep(small, vary={"solver.name": ["extra", "dgd"]}, seeds=2, out=tempfile.mkdtemp())
    >>> [(row.varied["solver.name"], row.runs, dict(row.outcomes)) for row in table.rows]
    [('extra', 2, {'completed': 2}), ('dgd', 2, {'completed': 2})]
    """

    comm = MPI.COMM_WORLD if comm is None else comm

    def planned() -> Study:
        if isinstance(experiment, Mapping):
            settings = [
                Setting(key, value, key, text=False, level=0) for key, value in experiment.items()
            ]
            for key in (*experiment, *vary):
                check_table(key, key)
        else:
            settings = config.read_toml(os.fspath(experiment)) if experiment is not None else []
        variations = [_variation(key, chosen) for key, chosen in vary.items()]
        return plan(
            settings,
            variations,
            seeds,
            folder=out,
            target=target,
            ranks_per_run=ranks_per_run,
            ranks=comm.size,
        )

    return run_plan(replace(on_root(comm, planned), theory=theory), comm, on_line).table


def _variation(key: str, chosen: object) -> Variation:
    if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Iterable):
        raise ConfigError(f"vary[{key!r}] is {abbreviate(chosen)}, expected a list of values")
    plain = tuple(value.item() if isinstance(value, np.generic) else value for value in chosen)
    return Variation(key, plain, f"vary[{key!r}]", text=False)


def plan(
    settings: Sequence[Setting],
    variations: Sequence[Variation],
    seeds: int | None,
    folder: str,
    target: tuple[str, float | None] = ("error", None),
    ranks_per_run: int = 1,
    ranks: int = 1,
) -> Study:
    """Return the plan of a sweep into `folder`, which is created; called on rank 0.

    Raises
    ------
    ConfigError, OSError
        A setting is invalid, a file in the folder holds another experiment, or the folder cannot be
        written.
    """
    if not variations and seeds is None:
        raise ConfigError("nothing is varied: add --vary table.key=value,value or --seeds N")
    common = common_graph(settings, variations)
    every = cases([*common, *settings], variations, seeds, folder)
    _check_ranks(every, ranks_per_run, ranks)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"--out {folder}: is a file, expected a folder for the files of the runs")
    os.makedirs(folder, exist_ok=True)
    notes = tuple(
        f"all solvers run on the {graph.value} graph, which all of them accept (--topology takes "
        "another one)"
        for graph in common
    )
    notes += tuple(
        dict.fromkeys(filter(None, (build.idle_codec(case.experiment) for case in every)))
    )
    counts = Counter(tuple(map(str, case.varied.values())) for case in every)
    if seeds is not None and 1 in counts.values() and seeds > 1:
        what = "these experiments" if set(counts.values()) == {1} else "some of these experiments"
        notes += (
            f"the seeds make no difference where nothing is random, as in {what}, which are run "
            f"once (a random {RANDOM} would be)",
        )
    spoilt: dict[str, str] = {}
    states = [_status(case, spoilt) for case in every]
    return Study(every, states, target, ranks_per_run, notes, spoilt=spoilt)


def _status(case: Case, spoilt: dict[str, str]) -> CaseStatus:
    """Return the status of a case; that of a file that cannot be read is told of in `spoilt`."""
    try:
        return status(case)
    except ConfigError:
        raise
    except ValueError as error:
        spoilt[case.file] = f"{error}: remove it, and the same command repeats this run"
        return CaseStatus.SPOILT


def _check_ranks(every: Sequence[Case], ranks_per_run: int, ranks: int) -> None:
    agents = min(case.experiment.run.agents for case in every)
    if not 1 <= ranks_per_run <= ranks:
        raise ConfigError(
            f"--ranks-per-run {ranks_per_run}: expected a number from 1 to {ranks}, the ranks of "
            "the job"
        )
    if agents < ranks_per_run:
        raise ConfigError(
            f"--ranks-per-run {ranks_per_run}: a run with {agents} agents has no work for more "
            f"than {agents} ranks"
        )
    if ranks_per_run > 1 and any(case.experiment.run.simulate for case in every):
        raise ConfigError(
            f"--ranks-per-run {ranks_per_run}: a simulated run takes place in one process: omit it"
        )


def run_plan(
    wanted: Study, comm: MPI.Intracomm, on_line: Callable[[str], None] | None = None
) -> Swept:
    """Run what is open in a plan; collective.

    Raises
    ------
    KeyboardInterrupt
        The sweep was interrupted; what has been done is in the files.
    """
    if comm.size > 1:
        abort_when_uncaught()
    todo = wanted.open()
    own = sum(map(wanted.part.takes, range(len(wanted.cases))))
    done = own - len(todo)
    failures = dict(wanted.spoilt)
    notes: dict[str, None] = {}

    def on_report(report: SweepReport) -> None:
        nonlocal done
        case = wanted.cases[report.number]
        if report.outcome == "failed":
            failures[case.file] = report.notes[0]
        else:
            notes.update(dict.fromkeys(report.notes))
        done += report.outcome != "interrupted"
        if on_line is not None:
            on_line(f"[{done:{len(str(own))}}/{own}] {case}: {_ended(report, wanted.target[0])}")

    with WorkQueue(comm, wanted.ranks_per_run, on_report) as queue:
        queue.map(
            todo,
            lambda number: run_case(number, wanted, queue.own, queue.poll),
            lambda report: report.outcome == "interrupted",
        )
    # Runs that were interrupted are not counted as done: then there is no table.
    made: Swept | None = None
    if comm.rank == 0 and done == own:
        if wanted.part.parts > 1:
            note(wanted.part, wanted.cases, failures)
            failures |= failed(wanted.part, wanted.cases)
        found = table(wanted.cases, wanted.target, failures)
        found = replace(found, notes=(*found.notes, *wanted.notes, *notes))
        made = Swept(found, failures, elsewhere(wanted.cases, failures))
    made = comm.bcast(made)
    if made is None:
        raise KeyboardInterrupt
    return made


def run_case(
    number: int, wanted: Study, comm: MPI.Intracomm, poll: Callable[[], object]
) -> SweepReport:
    """Make one run on the ranks of `comm`; errors of the run are reported, and `poll` is called
    at its records.
    """
    case, began = wanted.cases[number], time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(1, user_api="blas"):
            let_warnings_pass()
            state = on_root(comm, status, case)  # another process may have ended it since
            if state is CaseStatus.FINISHED:
                return SweepReport(number, "elsewhere", 0, 0.0, float("nan"))
            result = _solved(case, state, comm, poll, wanted.theory)
    except BlockingIOError:  # another process is writing it
        return SweepReport(number, "elsewhere", 0, 0.0, float("nan"))
    except Exception as error:  # on all ranks of the run
        message = " ".join(
            f"{'' if isinstance(error, INPUT) else type(error).__name__ + ': '}{error}".split()
        )
        return SweepReport(
            number, "failed", 0, time.perf_counter() - began, float("nan"), (message,)
        )
    except KeyboardInterrupt:
        if comm.size > 1:
            raise
        return SweepReport(number, "interrupted", 0, time.perf_counter() - began, float("nan"))
    last = result.metrics.get(wanted.target[0], np.zeros(0))
    return SweepReport(
        number,
        str(result.outcome),
        result.steps,
        time.perf_counter() - began,
        float(last[-1]) if len(last) else float("nan"),
        tuple(dict.fromkeys(str(warning.message) for warning in caught)),
    )


def _solved(
    case: Case,
    status: CaseStatus,
    comm: MPI.Intracomm,
    poll: Callable[[], object],
    theory: bool,
) -> Result:
    experiment, resume = case.experiment, status is CaseStatus.UNFINISHED
    if resume:  # with the settings that the run has chosen
        experiment = on_root(comm, _resumed, case)

    def at_record(step: int, steps: int, metrics: Mapping[str, float]) -> None:
        poll()

    with Network(experiment.run.agents, comm) as net, net.raising_together():
        job = build.build(experiment, net)
        result = job.solve(
            net,
            case.file,
            resume,
            at_record,
            lambda solver: config_text(
                case.experiment, job.with_step_size(step_size_of(solver)).experiment
            ),
        )
        if theory and comm.size == 1:
            state(case.file, expected(job, result, net))
    return replace(result, outcome=Outcome(str(result.outcome)))


def _resumed(case: Case) -> Experiment:
    """Return the experiment in the file of an unfinished case."""
    given = flat(read(case.file).config)
    settings = [
        Setting(key, value, f"{case.file}:{key}", text=False, level=0)
        for key, value in given.items()
    ]
    experiment = config.load(settings)
    return replace(experiment, run=case.experiment.run)


def _ended(report: SweepReport, metric: str) -> str:
    if report.outcome == "failed":
        return f"failed: {report.notes[0]}"
    if report.outcome == "elsewhere":
        return "elsewhere: another process has taken it"
    value = f", {metric} {report.value:.2e}" if report.value == report.value else ""
    return f"{report.outcome} after {report.steps} steps{value}, {report.seconds:.1f} s"
