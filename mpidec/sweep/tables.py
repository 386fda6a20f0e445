"""Table of a sweep: steps, bytes and seconds to a target, with mean and standard deviation over
seeds.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..cli.tables import aligned, csv_text, latex
from ..plot.labels import flat
from ..plugins import is_plugin, short
from ..record import Run, read
from .cases import Case, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSTS = {"steps": "step", "bytes": "bytes", "seconds": "time"}
PREFIXES = ("", "k", "M", "G", "T", "P")


class Spread(NamedTuple):
    """Mean and sample standard deviation; the latter is NaN for a single value."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Row:
    """Row of a table: one combination of the varied settings, over all its seeds.

    Attributes
    ----------
    varied : mapping
        The varied settings, ``{"solver.name": "extra", ...}``.
    runs, reached : int
        Number of runs, and how many of them reached the target.
    steps, bytes, seconds : Spread or None
        Cost of those that did, at the first record that meets the target; None if none did.
    last : float
        Largest final value of the target's metric (NaN if some run has none).
    outcomes : mapping
        Number of runs by outcome; "failed" for those that ended in an error, and "missing" for
        those that were not run.
    files : sequence of str
        Files of the runs that have one.

    Examples
    --------
    >>> Row({"solver.name": "extra"}, 1, 1, Spread(370, math.nan), None, None, 1e-9, {"stopped": 1}, ()).steps.mean
    370
    """

    varied: Mapping[str, Any]
    runs: int
    reached: int
    steps: Spread | None
    bytes: Spread | None
    seconds: Spread | None
    last: float
    outcomes: Mapping[str, int]
    files: Sequence[str]

    @property
    def costs(self) -> dict[str, Spread | None]:
        """The costs to the target, by name."""
        return {"steps": self.steps, "bytes": self.bytes, "seconds": self.seconds}


@dataclass(frozen=True)
class Table:
    """Result of a sweep; `str` of it is the table that the command prints.

    Attributes
    ----------
    rows : sequence of Row
    metric, limit : str, float
        The target: metric <= limit.
    notes : sequence of str
        What a reader of the table must know: errors of runs that failed, seeds without effect.
    clock : str
        What the column of the time is called: "seconds", or "simulated time" if all runs are
        simulated.
    every : sequence of int
        The steps between two records, of all runs.

    Examples
    --------
    >>> row = Row({"solver.name": "extra"}, 2, 2, Spread(370, 14.1), Spread(1.2e6, 0), Spread(0.1, 0.01), 9e-9, {"stopped": 2}, ())
    >>> print(Table([row], "error", 1e-8))
    steps, data sent (by all agents) and seconds until error <= 1e-08: mean ± standard deviation
    solver  reached     steps  data sent        seconds  largest final error  outcome
    extra       2/2  370 ± 14     1.2 MB  0.100 ± 0.010                9e-09  2 stopped
    """

    rows: Sequence[Row]
    metric: str
    limit: float
    notes: Sequence[str] = ()
    clock: str = "seconds"
    every: Sequence[int] = ()

    @property
    def _until(self) -> str:
        """The target, and at which steps it is looked for."""
        often = " or ".join(map(str, self.every))
        records = "" if self.every in ((), (1,)) else f" at a record (every {often} steps)"
        return f"until {self.metric} <= {self.limit:g}{records}"

    def __str__(self) -> str:
        what = f"steps, data sent (by all agents) and {self.clock} {self._until}"
        lines = aligned(self._cells(plain), self._sides())
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([f"{what}: mean ± standard deviation", *lines, *notes])

    def csv(self) -> str:
        """Return the table as CSV, with plain numbers in steps, bytes and seconds (or units of
        simulated time).
        """
        numbers = [
            f"{cost}_{part}"
            for cost in ("steps", "bytes", self.clock.replace(" ", "_"))
            for part in ("mean", "std")
        ]
        head = [
            *self._keys(),
            "runs",
            "reached",
            *numbers,
            f"largest_final_{self.metric}",
            "outcome",
        ]
        lines: list[Sequence[object]] = [head]
        for row in self.rows:
            spreads = [number for spread in row.costs.values() for number in spread or ("", "")]
            values = [
                ("" if isinstance(v, float) and math.isnan(v) else v) for v in [*spreads, row.last]
            ]
            settings = map(_bare, row.varied.values())
            lines.append([*settings, row.runs, row.reached, *values, outcome(row)])
        return csv_text(lines)

    def latex(self) -> str:
        r"""Return the table as a LaTeX tabular; it needs ``\usepackage{booktabs}``."""
        what = f"steps, data sent and {self.clock} {self._until}"
        comment = f"{what}: mean and standard deviation over the seeds"
        return latex(self._cells(mathematical), self._sides(), comment)

    def figure(
        self,
        x: str | Sequence[str] | None = None,
        y: str | Sequence[str] | None = None,
        style: str = "screen",
    ) -> Figure:
        """Return the figure: a line per value of the first varied setting, a panel per combination
        of the others.

        Lines are medians over the seeds, with bands from the smallest to the largest value; see
        `mpidec.plot.figure`.
        """
        from ..plot import figure

        panels: dict[str, dict[str, Sequence[str]]] = {}
        for row in self.rows:
            first, *others = [shown(key, value) for key, value in row.varied.items()] or [
                f"{row.runs} seeds"
            ]
            if row.files:
                panels.setdefault(", ".join(others), {})[first] = row.files
        if not panels:
            raise ValueError("no run of the sweep has recorded anything: nothing to plot")
        return figure(panels, x, y or self.metric, style=style)

    def _keys(self) -> list[str]:
        return list(self.rows[0].varied) if self.rows else []

    def _sides(self) -> str:
        """Return the alignment of the columns: text to the left, numbers to the right."""
        return "<" * len(self._keys()) + ">" * 5 + "<"

    def _cells(self, spread: Callable[[Spread | None, str], str]) -> list[list[str]]:
        """Return the head and the rows of the table as text."""
        titles = [_title(key, self._keys()) for key in self._keys()]
        rows = [
            [
                *titles,
                "reached",
                "steps",
                "data sent",
                self.clock,
                f"largest final {self.metric.replace('_', ' ')}",
                "outcome",
            ]
        ]
        for row in self.rows:
            rows.append(
                [
                    *(_cell(key, value) for key, value in row.varied.items()),
                    f"{row.reached}/{row.runs}",
                    *(spread(cost, "B" * (name == "bytes")) for name, cost in row.costs.items()),
                    spread(None if math.isnan(row.last) else Spread(row.last, math.nan), "last"),
                    outcome(row),
                ]
            )
        return rows


def table(
    cases: Sequence[Case], target: tuple[str, float | None], failures: Mapping[str, str]
) -> Table:
    """Return the table of the cases according to their files; `failures` are the messages of
    runs that failed, by file.
    """
    runs = {case.file: read(case.file) if os.path.exists(case.file) else None for case in cases}
    recorded = [run for run in runs.values() if run is not None]
    metric, limit = _target(target, cases, recorded)
    clocks = {run.attributes.get("clock") == "simulated" for run in recorded}
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(tuple(map(str, case.varied.values())), []).append(case)
    found = [(group, [runs[case.file] for case in group]) for group in groups.values()]
    notes = [f"{message} ({case})" for case in cases if (message := failures.get(case.file))]
    notes += [*_unrecorded(metric, recorded), *_of_clocks(clocks), *_differing(cases)]
    if recorded and all(_alike(group) for _, group in found):
        notes.append(
            "the seeds make no difference: nothing in these experiments is random "
            "(problem.partition=iid, problem.batch_size, a random graph or random data would be)"
        )
    return Table(
        [_row(group, of_group, metric, limit, failures) for group, of_group in found],
        metric,
        limit,
        tuple(dict.fromkeys(notes)),
        clock="simulated time" if clocks == {True} else "seconds",
        every=tuple(sorted({case.experiment.run.every for case in cases})),
    )


def _target(
    target: tuple[str, float | None], cases: Sequence[Case], recorded: Sequence[Run]
) -> tuple[str, float]:
    """Return metric and limit; without a limit, those that the runs suggest."""
    metric, limit = target
    if limit is not None:
        return metric, limit
    if recorded and not any(metric in run.metrics for run in recorded):
        metric = "gradient_norm"
    given = [case.experiment.run.stop_error for case in cases]
    return metric, max((error for error in given if error is not None), default=1e-6)


def _unrecorded(metric: str, recorded: Sequence[Run]) -> list[str]:
    """Return a note if no run has recorded the metric."""
    if not recorded or any(metric in run.metrics for run in recorded):
        return []
    known = ", ".join(sorted(name for name in recorded[0].metrics if name not in COSTS.values()))
    return [f"no run has recorded the metric {metric!r}: choose another --target, one of {known}"]


def _of_clocks(clocks: set[bool]) -> list[str]:
    """Return a note on the time of simulated runs, if there are some."""
    what = "simulated time is in" if clocks == {True} else "the seconds of simulated runs are"
    note = f"{what} units of their own time, in which an agent computes one gradient"
    return [note] if True in clocks else []


def runs_csv(cases: Sequence[Case], failures: Mapping[str, str]) -> str:
    """Return one line of CSV per run: settings, seed, outcome, and all metrics of its last
    record.
    """
    runs = [read(case.file) if os.path.exists(case.file) else None for case in cases]
    names = list(dict.fromkeys(name for run in runs if run for name in run.metrics))
    lines: list[Sequence[object]] = [
        ["file", *(cases[0].varied if cases else ()), "seed", "outcome", *names]
    ]
    for case, run in zip(cases, runs):
        last = [
            run.metrics[name][-1] if run and len(run.metrics.get(name, ())) else ""
            for name in names
        ]
        settings = map(_bare, case.varied.values())
        file = os.path.basename(case.file)
        lines.append([file, *settings, case.seed, _outcome(case, run, failures), *last])
    return csv_text(lines)


def _outcome(case: Case, run: Run | None, failures: Mapping[str, str]) -> str:
    return "failed" if case.file in failures else run.outcome if run else "missing"


def plain(spread: Spread | None, unit: str) -> str:
    """Return mean and standard deviation as text, the latter with two significant digits; unit
    "last" is that of final values.

    Examples
    --------
    >>> plain(Spread(370, 14.14), ""), plain(Spread(1.2e6, math.nan), "B"), plain(None, "")
    ('370 ± 14', '1.2 MB', '-')
    """
    if spread is None:
        return "-"
    mean, deviation = spread
    if unit == "last":
        return f"{mean:.2g}"
    power = (
        min(int(math.log10(abs(mean)) // 3), len(PREFIXES) - 1) if unit and abs(mean) >= 1 else 0
    )
    mean, deviation = mean / 1000**power, deviation / 1000**power
    ending = f" {PREFIXES[power]}{unit}" if unit else ""
    if not deviation > 0:
        return f"{mean:.4g}{ending}"
    digits = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}{ending}"


def mathematical(spread: Spread | None, unit: str) -> str:
    r"""Return mean and standard deviation for LaTeX: ``$370 \pm 14$``."""
    if spread is None:
        return "--"
    number, _, ending = (
        plain(spread, unit).rpartition(" ") if unit == "B" else (plain(spread, unit), "", "")
    )
    number = re.sub(
        r"e([+-])0*(\d+)",
        lambda power: rf" \cdot 10^{{{power[1].strip('+')}{power[2]}}}",
        number.replace("±", r"\pm"),
    )
    return f"${number}$" + (rf"\,{ending}" if ending else "")


def outcome(row: Row) -> str:
    """Return the number of runs by outcome as text: ``2 stopped, 1 diverged``."""
    return ", ".join(f"{count} {name}" for name, count in row.outcomes.items())


def _row(
    group: Sequence[Case],
    runs: Sequence[Run | None],
    metric: str,
    limit: float,
    failures: Mapping[str, str],
) -> Row:
    costs = []
    for run in runs:
        if run is not None and metric in run.metrics and run.outcome != "diverged":
            met = np.flatnonzero(run.metrics[metric] <= limit)
            if met.size:
                costs.append([float(run.metrics[name][met[0]]) for name in COSTS.values()])
    steps, sent, seconds = map(_spread, zip(*costs)) if costs else (None, None, None)
    last = [
        run.metrics[metric][-1]
        if run is not None and len(run.metrics.get(metric, ()))
        else math.nan
        for run in runs
    ]
    outcomes = Counter(_outcome(case, run, failures) for case, run in zip(group, runs))
    return Row(
        group[0].varied,
        len(group),
        len(costs),
        steps=steps,
        bytes=sent,
        seconds=seconds,
        last=float(np.max(last)),
        outcomes=dict(outcomes),
        files=[
            case.file
            for case, run in zip(group, runs)
            if run is not None and len(run.metrics["step"])
        ],
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(
        float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    )


def _differing(cases: Sequence[Case]) -> list[str]:
    """Return a note for each setting that differs although it is not varied, because its default
    follows from a varied one.
    """
    given = [flat(case.experiment.to_toml()) for case in cases]
    notes = []
    for key in dict.fromkeys(key for one in given for key in one):
        if key in cases[0].varied or key.startswith(("run.", "solver.")) or key.endswith(".seed"):
            continue
        found: dict[str, str] = {}
        for case, one in zip(cases, given):
            found.setdefault(
                short(str(one.get(key, "default"))),
                ", ".join(shown(*setting) for setting in case.varied.items()),
            )
        if len(found) > 1:
            notes.append(
                f"{key} is not varied, but differs: "
                f"{', '.join(f'{value} ({first})' for value, first in found.items())}"
            )
    return notes


def _alike(runs: Sequence[Run | None]) -> bool:
    """Whether there are several runs, and they are bit-identical except for their time."""
    first = runs[0]
    return (
        len(runs) > 1
        and first is not None
        and all(
            run is not None
            and all(
                name == "time"
                or np.array_equal(values, run.metrics.get(name, np.zeros(0)), equal_nan=True)
                for name, values in first.metrics.items()
            )
            for run in runs[1:]
        )
    )


def _title(key: str, keys: Sequence[str]) -> str:
    table, _, name = key.partition(".")
    if name == "name":
        return table
    return (key if [other.partition(".")[2] for other in keys].count(name) > 1 else name).replace(
        "_", " "
    )


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "default"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if is_plugin(text):
        return short(text)
    return (
        text.replace("_", " ")
        if key.partition(".")[2] in ("name", "data", "codec", "partition")
        else text
    )


def _bare(value: Any) -> Any:
    """Return a value without the folder of a plug-in's file."""
    return short(value) if isinstance(value, str) else value
