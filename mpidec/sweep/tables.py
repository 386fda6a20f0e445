"""Table of a sweep: steps, bytes and seconds to a target, with mean and standard deviation over
seeds.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..cli import aligned, csv_text, latex
from ..plot.internals import (
    MISSING,
    RunLine,
    arrange,
    check_names,
    displayed,
    drawn,
    find,
    flat,
    together,
    worded,
)
from ..plugins import is_plugin, short
from ..record import Run, read
from ..record.internals import rises
from .cases import RANDOM, Case, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSTS = {"steps": "step", "bytes": "bytes", "seconds": "time"}
BY_SOLVER = "run.", "solver."  # tables whose defaults follow from the solver
COLUMNS = ("reached", *COSTS, "final", "outcome")
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
        Cost of those that did; None if none did.  The step is the first one at which the metric
        meets the target, between two records on a logarithmic scale (a linear one of a metric that
        `rises`); bytes and seconds are those of that step.
    last : float
        Largest final value of the target's metric, or smallest of one that `rises` (NaN if some run
        has none).
    outcomes : mapping
        Number of runs by outcome; "failed" for those that ended in an error, and "missing" for
        those that were not run.
    files : sequence of str
        Files of the runs that have one.

    Examples
    --------
    >>> one, steps = {"solver.name": "extra"}, Spread(370, math.nan)
    >>> Row(one, 1, 1, steps, None, None, 1e-9, {"stopped": 1}, ()).steps.mean
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
        The target: metric <= limit, or >= of one that `rises`.
    notes : sequence of str
        What a reader of the table must know: errors of runs that failed, seeds without effect.
    clock : str
        What the column of the time is called: "seconds", or "simulated time" if all runs are
        simulated.
    every : sequence of int
        The steps between two records, of all runs.

    Examples
    --------
    >>> row = Row(
    ...     {"solver.name": "extra"},
    ...     2,
    ...     2,
    ...     Spread(370, 14.1),
    ...     Spread(1.2e6, 0),
    ...     Spread(0.1, 0.01),
    ...     9e-9,
    ...     {"stopped": 2},
    ...     (),
    ... )
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
        records = (
            "" if self.every in ((), (1,)) else f" (interpolated: records every {often} steps)"
        )
        sign = ">=" if rises(self.metric) else "<="
        return f"until {self.metric} {sign} {self.limit:g}{records}"

    def _what(self, columns: Sequence[str], sent: str) -> str:
        """Return the costs among the columns, until the target."""
        words = {"steps": "steps", "bytes": sent, "seconds": self.clock}
        *first, last = [words[column] for column in columns if column in words] or ["values"]
        return f"{', '.join(first)}{' and ' * bool(first)}{last} {self._until}"

    def __str__(self) -> str:
        return self.text()

    def text(
        self,
        columns: Sequence[str] | None = None,
        rows: str | None = None,
        across: str | None = None,
        bold: bool = False,
    ) -> str:
        """Return the table as text.

        Parameters
        ----------
        columns : sequence of str
            Some of "reached", "steps", "bytes", "seconds", "final", "outcome".  Default: all;
            with `across`, the steps.
        rows : str
            Varied setting whose values are compared, and which is the first column: "solver".
            Default: the first one.
        across : str
            Varied setting whose values stand side by side: "topology".
        bold : bool
            Print the best values in bold letters of a terminal: of each cost among the rows whose
            runs have all reached the target, and of the final value, where all that meet the target
            are equal; among rows that differ in the setting `rows` alone.

        Raises
        ------
        ValueError
            If a column or a setting is unknown.
        """
        layout = self._layout(columns, rows, across)
        grid = self._grid(layout, plain, _cell)
        lines = aligned(grid.lines, grid.sides, grid.best if bold else ())
        notes = [f"note: {note}" for note in self.notes]
        what = self._what(layout.columns, "data sent (by all agents)")
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
            f"{self._worst}_final_{self.metric}",
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

    def latex(
        self,
        columns: Sequence[str] | None = None,
        rows: str | None = None,
        across: str | None = None,
        label: Mapping[str, str] | None = None,
    ) -> str:
        r"""Return the table as a LaTeX tabular with the best values in bold letters; it needs
        ``\usepackage{booktabs}``.

        Parameters are those of `text`; `label` has own names of values, as in `figure`.
        """
        names = dict(label or {})
        check_names(names, [named(row.varied) for row in self.rows], [])

        def cell(key: str, value: object) -> str:
            return (
                displayed(key, value, names)
                if key.endswith(".name") or names
                else _cell(key, value)
            )

        layout = self._layout(columns, rows, across)
        grid = self._grid(layout, mathematical, cell)
        what = self._what(layout.columns, "data sent")
        comment = f"{what}: mean and standard deviation over the seeds; bold: the best"
        return latex(grid.lines, grid.sides, comment, grid.best, grid.heads)

    def figure(
        self,
        x: str | Sequence[str] | None = None,
        y: str | Sequence[str] | None = None,
        style: str = "screen",
        *,
        label: Mapping[str, str] | None = None,
        panels: str | Sequence[str] | None = None,
        colour: str | None = None,
        dash: str | None = None,
        log_x: bool = False,
        xlim: tuple[float, float] | None = None,
        ylim: tuple[float, float] | None = None,
        theory: bool = False,
    ) -> Figure:
        """Return the figure: a line per value of the first varied setting, a panel per combination
        of the others, and the target as a dotted line.

        Lines are medians over the seeds, with bands from the smallest to the largest value; thin
        lines continue runs after the end of the first of them.  The parameters are those of
        `mpidec.plot.figure`; `panels`, `colour` and `dash` name varied settings.
        """
        from ..plot.internals import View

        lines = [
            RunLine([read(file) for file in row.files], named(row.varied), list(row.varied))
            for row in self.rows
            if row.files
        ]
        if not lines:
            raise ValueError("no run of the sweep has recorded anything: nothing to plot")
        names, given = dict(label or {}), [line.settings for line in lines]
        check_names(names, given, [])
        keys = self._panels(panels, [key for key in (colour, dash) if key], given)
        arranged = arrange(lines, keys, colour, dash, names)
        target = (self.metric, self.limit)
        view = View(log_x, xlim, ylim)
        return drawn(
            arranged,
            x,
            y or (None if theory else self.metric),
            style,
            view,
            theory,
            target=target,
            names=names,
        )

    def _panels(
        self,
        panels: str | Sequence[str] | None,
        looks: Sequence[str],
        given: Sequence[Mapping[str, Any]],
    ) -> list[str]:
        """The settings that have panels: by default all but the first, or those of the `looks`."""
        if panels is None:
            looks = [find(key, given, "colour, dash") for key in looks]
            panels = [key for key in self._keys()[1 - bool(looks) :] if key not in looks]
        names = [panels] if isinstance(panels, str) else panels
        return [find(key, given, "panels") for key in names]

    def _keys(self) -> list[str]:
        return list(self.rows[0].varied) if self.rows else []

    def _layout(
        self, columns: Sequence[str] | None, rows: str | None, across: str | None
    ) -> Layout:
        """Return what is shown where; see `text`."""
        keys, given = self._keys(), [row.varied for row in self.rows]
        first = find(rows, given, "rows") if rows else ""
        side = find(across, given, "across") if across else ""
        first = first or next((key for key in keys if key != side), "")
        if side and first in ("", side):
            raise ValueError(f"across {across}: it has the rows: choose another setting")
        shown = list(columns or (("steps",) if across else COLUMNS))
        if strange := [*{*shown} - {*COLUMNS}]:
            raise ValueError(f"column {strange[0]}: expected some of {', '.join(COLUMNS)}")
        left = [key for key in dict.fromkeys([first, *keys]) if key and key != side]
        return Layout(left, side, shown)

    def _grid(
        self,
        layout: Layout,
        spread: Callable[[Spread | None, str], str],
        cell: Callable[[str, Any], str],
    ) -> Grid:
        """Return the cells of the table, and which of them are the best."""
        left, side, shown = layout
        best = self._best(next(iter(left), ""))
        sides = {str(row.varied.get(side)): row.varied.get(side) for row in self.rows}
        places: dict[tuple[str, ...], dict[str, Row]] = {}
        for row in self.rows:
            at = tuple(str(row.varied[key]) for key in left)
            places.setdefault(at, {})[str(row.varied.get(side))] = row
        heads = self._heads(layout, [cell(side, value) for value in sides.values()])
        lines, marked = list(heads), set()
        for found in places.values():
            one = next(iter(found.values()))
            line = [cell(key, one.varied[key]) for key in left]
            for value, column in itertools.product(sides, shown):
                if (id(found.get(value)), column) in best:
                    marked.add((len(lines), len(line)))
                line.append(_shown(found.get(value), column, spread))
            lines.append(line)
        kinds = "".join("<" if column == "outcome" else ">" for column in shown)
        return Grid(lines, "<" * len(left) + kinds * len(sides), marked, len(heads))

    def _heads(self, layout: Layout, names: Sequence[str]) -> list[list[str]]:
        """Return the lines above the table, one or two; `names` are those of the sides."""
        titles = [_title(key, self._keys()) for key in layout.left]
        columns = [self._heading(column) for column in layout.columns]
        if not layout.side:
            return [[*titles, *columns]]
        if len(columns) == 1:
            return [[*titles, *names]]
        spans = [text for name in names for text in (name, *[""] * (len(columns) - 1))]
        return [[*[""] * len(titles), *spans], [*titles, *columns * len(names)]]

    @property
    def _worst(self) -> str:
        """Which of several final values the table has."""
        return "smallest" if rises(self.metric) else "largest"

    def _heading(self, column: str) -> str:
        final = f"{self._worst} final {self.metric.replace('_', ' ')}"
        other = {"bytes": "data sent", "seconds": self.clock, "final": final}
        return other.get(column, column)

    def _best(self, first: str) -> set[tuple[int, str]]:
        """Return the best rows, and in which column, among those that differ in one setting."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            rest = tuple(str(value) for key, value in row.varied.items() if key != first)
            groups.setdefault(rest, []).append(row)
        found = set()
        for rows, column in itertools.product(groups.values(), (*COSTS, "final")):
            values = [self._rank(row, column) for row in rows]
            least = min(values)
            best = [row for row, value in zip(rows, values) if value <= least < math.inf]
            found |= {(id(row), column) for row in best if len(best) < len(rows)}
        return found

    def _rank(self, row: Row, column: str) -> float:
        """Return the sort key of a column, of which smaller is better; infinite for cells without a
        value.
        """
        if column == "final":
            sign = -1 if rises(self.metric) else 1
            return math.inf if math.isnan(row.last) else max(sign * row.last, sign * self.limit)
        cost = row.costs[column]
        return cost.mean if cost and row.reached == row.runs else math.inf


class Layout(NamedTuple):
    """The settings at the left of a table, the one whose values stand side by side ("" if none),
    and the columns.
    """

    left: Sequence[str]
    side: str
    columns: Sequence[str]


class Grid(NamedTuple):
    """Cells of a table: lines, of which the first are heads, alignment, and places of the best."""

    lines: Sequence[Sequence[str]]
    sides: str
    best: set[tuple[int, int]]
    heads: int


def _shown(row: Row | None, column: str, spread: Callable[[Spread | None, str], str]) -> str:
    """Return a cell of a row, if there is one."""
    if row is None:
        return spread(None, "")
    if column == "reached":
        return f"{row.reached}/{row.runs}"
    if column == "outcome":
        return outcome(row)
    if column == "final":
        return spread(None if math.isnan(row.last) else Spread(row.last, math.nan), "last")
    return spread(row.costs[column], "B" * (column == "bytes"))


def named(varied: Mapping[str, Any]) -> dict[str, Any]:
    """Return varied settings with a word for defaults."""
    return {key: MISSING if value is None else value for key, value in varied.items()}


def table(
    cases: Sequence[Case], target: tuple[str, float | None], failures: Mapping[str, str]
) -> Table:
    """Return the table of the cases according to their files; `failures` are the messages of
    runs that failed, by file.
    """
    runs = {case.file: _stored(case.file) for case in cases}
    recorded = [run for run in runs.values() if run is not None]
    metric, limit = _target(target, cases, recorded)
    clocks = {run.attributes.get("clock") == "simulated" for run in recorded}
    found = [(group, [runs[case.file] for case in group]) for group in _groups(cases)]
    notes = [f"{failures[case.file]} ({case})" for case in cases if failures.get(case.file)]
    notes += [*_unrecorded(metric, recorded), *_of_clocks(clocks), *_differing(cases)]
    if recorded and all(_alike(group) for _, group in found):
        notes.append(
            "the seeds make no difference: nothing in these experiments is random "
            f"(a random {RANDOM} would be)"
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
    runs = [_stored(case.file) for case in cases]
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


def _stored(file: str) -> Run | None:
    """Return the run in a file; None without a file, and for one that cannot be read."""
    try:
        return read(file) if os.path.exists(file) else None
    except ValueError:
        return None


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
            cost = _cost(run, metric, limit)
            costs += [cost] if cost else []
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
        last=float((np.min if rises(metric) else np.max)(last)),
        outcomes=dict(outcomes),
        files=[
            case.file
            for case, run in zip(group, runs)
            if run is not None and len(run.metrics["step"])
        ],
    )


def _cost(run: Run, metric: str, limit: float) -> list[float]:
    """Return the first step at which a run meets a target, and bytes and seconds at that step;
    empty if it does not.
    """
    sign = -1 if rises(metric) else 1
    y, limit = sign * run.metrics[metric], sign * limit
    met = np.flatnonzero(y <= limit)
    if not met.size:
        return []
    at, (step, *others) = int(met[0]), [run.metrics[name] for name in COSTS.values()]
    if at == 0 or not np.isfinite(y[at - 1]):
        return [float(values[at]) for values in (step, *others)]
    before, after = (math.log(v) if y[at] > 0 and limit > 0 else v for v in y[at - 1 : at + 1])
    aim = math.log(limit) if y[at] > 0 and limit > 0 else limit
    part = (before - aim) / (before - after)
    found = math.ceil(round(step[at - 1] + part * (step[at] - step[at - 1]), 6))
    return [float(found), *(float(np.interp(found, step, values)) for values in others)]


def _spread(values: Sequence[float]) -> Spread:
    return Spread(
        float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    )


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases that differ in their seeds alone."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(tuple(map(str, case.varied.values())), []).append(case)
    return list(groups.values())


def _differing(cases: Sequence[Case]) -> list[str]:
    """Return a note for each setting that differs although it is not varied, because its default
    follows from a varied one.
    """
    given = [flat(case.experiment.to_toml()) for case in cases]
    notes = []
    own = {key for case in cases for text in case.varied.values() for key in together(str(text))[1]}
    own |= cases[0].varied.keys()
    keys = dict.fromkeys(key for one in given for key in one if not key.startswith(BY_SOLVER))
    for key in keys:
        if key in own or key.endswith(".seed"):
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
    """Return whether there are several runs, and they are bit-identical except for their time."""
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


def _cell(key: str, value: object) -> str:
    if value is None:
        return "default"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if together(text)[1]:
        return worded(key, text)
    if is_plugin(text):
        return short(text)
    return (
        text.replace("_", " ")
        if key.partition(".")[2] in ("name", "data", "codec", "partition")
        else text
    )


def _bare(value: object) -> object:
    """Return a value without the folder of a plug-in's file."""
    return short(value) if isinstance(value, str) else value
