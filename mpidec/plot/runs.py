"""Figure of run files: arrangement of runs in lines and panels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._style import STYLES
from ..record import Run, read
from ..record.internals import rises, table
from .drawing import WRAP, Curve, Panel, Range, Sheet, View
from .labels import (
    MISSING,
    check_names,
    chosen,
    common,
    displayed,
    distinguishing,
    given_of,
    label as label_of,
    labels,
    of_seeds,
    settings,
)
from .quantities import X, axes_by_default, band_of, drawn_by_default, x_values, y_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str]
# The runs of each line of each panel.
Parts = Mapping[str, Mapping[str, Sequence[Run]]]
Names = str | Sequence[str]
UNITS = {"bytes": "B"}
WHOLE = ("steps", "rounds", "gradients")
# The metrics of stop errors, and of what theory expects.
AIM, EXPECTED = "error", "error_rms"


@dataclass(frozen=True)
class RunLine:
    """Runs that make one line, their settings, and the names of those that tell it from others."""

    runs: Sequence[Run]
    settings: Mapping[str, Any]
    keys: Sequence[str]


@dataclass(frozen=True)
class Arranged:
    """The lines of each panel, and the colour and dashes of each line: see `Sheet`."""

    parts: Parts
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    key: tuple[Sequence[str], Sequence[str]] = ((), ())


def figure(
    paths: Path | Sequence[Path] | Mapping[str, Mapping[str, Sequence[Path]]],
    x: Names | None = None,
    y: Names | None = None,
    label: Sequence[str] | Mapping[str, str] | None = None,
    style: str = "screen",
    *,
    panels: Names | None = None,
    colour: str | None = None,
    dash: str | None = None,
    log_x: bool = False,
    xlim: Range | None = None,
    ylim: Range | None = None,
    theory: bool = False,
) -> Figure:
    """Plot runs in one figure, with a panel per quantity and x axis.

    Parameters
    ----------
    paths : path, sequence of paths, or mapping
        Run files, finished or not.  A mapping ``{panel: {label: paths}}`` has a panel per entry,
        and one line per label: the median of its runs, with a band from their smallest to their
        largest value, until the first of them ends; thin lines continue the others.  In a sequence,
        runs that differ in the seed alone make such a line, too.  A file of many runs
        (``solve(..., runs=100)``) has one: their mean, with a band from the 10 % to the 90 %
        quantile.
    x : str or sequence of str
        "steps", "bytes" (sent by all agents), "seconds", "rounds", "gradients" (of an agent; where
        recorded), "time" (of simulated runs).  Default: steps, bytes and seconds; seconds if a run
        is asynchronous, time if all are simulated; of a mapping, steps.
    y : str or sequence of str
        "objective" (drawn as f - f*), "error", "consensus", "gradient_norm" or any other metric of
        the files.  Default: objective, consensus and error, of trainings accuracies, consensus and
        loss; of a mapping, the last of these.
    label : sequence of str, or mapping
        Names of the runs, each of which then has a line of its own, or of the lines.  A mapping
        such as ``{"dgd": "DSGD", "ring": "cycle"}`` names values of settings, or labels.  Default:
        the settings in which they differ, solvers and graphs as in papers.
    style : str
        "screen", or "paper": widths of a column (one panel) or a page, serif letters, no title.
    panels : str or sequence of str
        Settings with a panel for each value: "topology", "solver", "problem.l2" (also "l2"), ...
    colour, dash : str
        Settings with a colour, or with dashes, for each value.  Default: solver and topology, if
        these two distinguish the lines.  Where that has fewer entries, the legend explains colours
        and dashes, not lines.
    log_x : bool
        A logarithmic x axis, without step 0.
    xlim, ylim : (float, float)
        Limits of the axes.
    theory : bool
        Draw, dashed, the `error_rms` that theory expects of the runs that `mpidec run` has written:
        the learning curve, or where that would take long, or costs are not quadratic, the first
        value times the rate to the power of the steps, down to the steady state.  By default
        against steps.

    Returns
    -------
    matplotlib.figure.Figure
        A figure without a window: ``figure.savefig("run.pdf")`` writes it, and a notebook displays
        it.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or not a run file, or a quantity is unknown.

    Notes
    -----
    f* is the attribute ``f_star`` of the files.  Without it, the smallest objective that one of the
    runs of the same problem has recorded takes its place, and the label of the axis says so: the
    end of the best run is then not meaningful.

    Infinite and NaN values are omitted.  A curve of a diverged run is cut where it is 1000 times
    larger than the others.

    Examples
    --------
    >>> import os, tempfile, mpidec.record as record
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> names = ["time", "bytes", "objective", "consensus", "gradient_norm"]
    >>> with record.RunFile(
    ...     path, n=4, row_shape=(2,), metrics=names, meta={}, trajectory=False
    ... ) as file:
    ...     for k in range(9):
    ...         file.append(k, dict.fromkeys(names, 2.0**-k))
    >>> len(figure(path, x="steps").axes)
    3
    """
    check_style(style)
    view = View(log_x, xlim, ylim)
    names = dict(label) if isinstance(label, Mapping) else {}
    if isinstance(paths, Mapping):
        for option, given in (("panels", panels), ("colour", colour), ("dash", dash)):
            if given is not None:
                raise ValueError(f"{option} has no effect with a mapping of panels: omit it")
        arranged = Arranged(_of_mapping(paths, label))
    else:
        arranged = _of_files(read_runs(paths), label, _list(panels), colour, dash)
    banded = isinstance(paths, Mapping)
    return drawn(arranged, x, y, style, view, theory, names=names, banded=banded)


def drawn(
    arranged: Arranged,
    x: Names | None,
    y: Names | None,
    style: str,
    view: View,
    theory: bool,
    target: tuple[str, float] | None = None,
    names: Mapping[str, str] | None = None,
    banded: bool = True,
) -> Figure:
    """Return the figure of lines in panels; see `figure`.

    `banded`: by default one quantity is drawn, against steps.  `target`: metric and limit, in place
    of the stop errors of the runs.
    """
    parts = arranged.parts
    every = [run for lines in parts.values() for runs in lines.values() for run in runs]
    if not every:
        raise ValueError("0 runs: expected at least one")
    columns, rows = _quantities(every, _list(x), _list(y), banded, theory)
    for name, limits, shown in (("xlim", view.xlim, columns), ("ylim", view.ylim, rows)):
        if limits is not None and len(shown) > 1:
            raise ValueError(
                f"{name} is one range for {' and '.join(shown)}: choose one with {name[0]}"
            )
    panels = _panels(parts, every, columns, rows, _aim(every, target), theory)
    across = len(parts) if len(parts) > 1 else len(columns)
    # many of one kind, or rows of one panel each: as many rows as needed
    if across > WRAP or across == 1:
        across = min(len(panels), WRAP if len(panels) > 6 or len(panels) == WRAP else 3)
    several = banded or sum(map(len, parts.values())) > 1
    title = common(every, names) if several else ""
    return Sheet(
        panels, across, style, title, view, places=arranged.places, key=arranged.key
    ).draw()


def _quantities(
    every: Sequence[Run], x: Sequence[str], y: Sequence[str], banded: bool, theory: bool
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the quantities of the x and the y axes, those by default where none are given."""
    if theory:
        x, y = x or ["steps"], y or [EXPECTED]
        if EXPECTED not in y:
            raise ValueError(f"theory tells {EXPECTED}, not {', '.join(y)}: add --y {EXPECTED}")
        if not any("expected" in run.attributes for run in every):
            for run in every:
                if why := run.attributes.get("no_theory"):
                    raise ValueError(f"theory: {run.path} states none: {why}")
            raise ValueError(
                "theory: no file states what theory expects: mpidec run and mpidec sweep do, for "
                "linear solvers on small smooth problems with a known, constant minimizer, "
                "in one process per run"
            )
    if banded:
        return x or ["steps"], y or drawn_by_default(every)[-1:]
    return x or axes_by_default(every), y or drawn_by_default(every)


def _aim(every: Sequence[Run], target: tuple[str, float] | None) -> tuple[str, float]:
    """Return metric and limit of the dotted line; 0 if there is none."""
    aims = {float(settings(run).get("run.stop_error", 0)) for run in every}
    return target or (AIM, aims.pop() if len(aims) == 1 else 0.0)


def _of_mapping(paths: Mapping[str, Mapping[str, Sequence[Path]]], label: object) -> Parts:
    """Return the runs of a mapping ``{panel: {label: paths}}``."""
    if label is not None:
        raise ValueError("label has no effect with a mapping, whose keys are the labels: omit it")
    return {
        title: {name: read_runs(files) for name, files in lines.items()}
        for title, lines in paths.items()
    }


def _of_files(
    runs: Sequence[Run],
    label: Sequence[str] | Mapping[str, str] | None,
    panels: Sequence[str],
    colour: str | None,
    dash: str | None,
) -> Arranged:
    """Return the runs in files, those that differ in the seed alone in one line."""
    names = dict(label) if isinstance(label, Mapping) else {}
    if label is not None and not names:
        return _listed(runs, list(label), bool(panels or colour or dash))
    groups = of_seeds(runs)
    given = given_of([group[0] for group in groups])
    last = set().union(*map(chosen, runs))
    if names:
        check_names(names, given, labels(groups))
    if panels or colour or dash:
        panel_keys = [find(name, given, "panels") for name in panels]
        lines = map(RunLine, groups, given, _telling(given, panel_keys, last))
        return arrange([*lines], panel_keys, colour, dash, names)
    own, keys = labels(groups, names), distinguishing(given, last)
    parts = {"": _by_label(own, groups)}
    if set().union(*keys) != set(LOOKS):
        return Arranged(parts)
    arranged = arrange([*map(RunLine, groups, given, keys)], [], None, None, names)
    if any(arranged.key):
        return arranged
    return Arranged(parts, dict(zip(own, arranged.places.values())))


def _listed(runs: Sequence[Run], own: Sequence[str], by_setting: bool) -> Arranged:
    """Return runs with a list of labels: one for each of them, or for those of each line."""
    if by_setting:
        raise ValueError(
            "a list of labels has no effect with panels, colour and dash: name values, such as "
            "dgd=DSGD"
        )
    groups = of_seeds(runs)
    lines, per = f", {len(groups)} lines", "run or per line"
    if len(groups) == len(runs):
        lines, per = "", "run"
    if len(own) == len(runs):
        groups = [[run] for run in runs]
    if len(own) != len(groups):
        raise ValueError(
            f"{len(runs)} runs{lines}, {len(own)} labels: expected one label per {per}"
        )
    return Arranged({"": _by_label(own, groups)})


def _by_label(own: Sequence[str], groups: Sequence[Sequence[Run]]) -> dict[str, Sequence[Run]]:
    """Return the runs of each line by its label."""
    if len(set(own)) < len(own):
        raise ValueError(f"labels {', '.join(own)}: expected different ones")
    return dict(zip(own, groups))


def _telling(
    given: Sequence[Mapping[str, Any]], panel_keys: Sequence[str], last: set[str]
) -> list[list[str]]:
    """Return the settings that tell lines from others of the same panel, by line; the panels differ
    in the settings `panel_keys`.
    """
    within: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in given:
        place = tuple(str(one.get(key, MISSING)) for key in panel_keys)
        rest = {key: value for key, value in one.items() if key not in panel_keys}
        within.setdefault(place, []).append(rest)
    told = {key for part in within.values() for some in distinguishing(part, last) for key in some}
    keys = distinguishing(given, last)
    return [[key for key in dict.fromkeys([*one, *told]) if key in told] for one in keys]


def find(name: str, given: Sequence[Mapping[str, Any]], what: str) -> str:
    """Return the setting ``table.key`` that a name such as "topology", "l2" or "problem.l2"
    stands for.

    Examples
    --------
    >>> find("solver", [{"solver.name": "dgd", "problem.l2": 0.1}], "colour")
    'solver.name'
    """
    known = list(dict.fromkeys(key for one in given for key in one))
    found = [key for key in known if key == name] or [
        key for key in known if key == f"{name}.name" or key.partition(".")[2] == name
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{what} {name}: it may be {' or '.join(found)}")
    differ = [
        key for key in known if len({str(one.get(key, MISSING)) for one in given}) > 1
    ] or known
    raise ValueError(
        f"{what} {name}: no such setting of these runs, expected one of {', '.join(differ)}"
    )


# Colour and dash, if these distinguish the lines.
LOOKS = ("solver.name", "topology.name")


def arrange(
    lines: Sequence[RunLine],
    panels: Sequence[str],
    colour: str | None,
    dash: str | None,
    names: Mapping[str, str],
) -> Arranged:
    """Return lines in a panel for each value of the settings `panels`, with a colour and dashes for
    each value of two others.
    """
    given = [line.settings for line in lines]
    looks = [_look(colour, "colour", given, panels), _look(dash, "dash", given, panels)]

    def value(line: RunLine, key: str) -> str:
        return displayed(key, line.settings.get(key, MISSING), names)

    inside = _inside(lines, panels, filter(None, looks), value)
    if not any(looks) and set().union(*inside) == set(LOOKS):
        looks = list(LOOKS)
    parts: dict[str, dict[str, list[Run]]] = {}
    values: dict[str, list[str]] = {}
    for line, keys in zip(lines, inside):
        title, text = ", ".join(value(line, key) for key in panels), _text(line, keys, names)
        part = parts.setdefault(title, {})
        if text in part:
            raise ValueError(
                f"two lines are {text}{' on ' * bool(title)}{title}: give them other labels, or "
                "fewer files"
            )
        part[text] = list(line.runs)
        values[text] = [value(line, key) if key else "" for key in looks]
    return Arranged(parts, *_placed(values, looks))


def _inside(
    lines: Sequence[RunLine],
    panels: Sequence[str],
    looks: Iterable[str],
    value: Callable[[RunLine, str], str],
) -> list[list[str]]:
    """Return the settings by which the lines of a panel are told apart, of each line."""
    varied = [key for key in looks if len({value(line, key) for line in lines}) > 1]
    return [
        [key for key in dict.fromkeys([*line.keys, *varied]) if key not in panels] for line in lines
    ]


def _look(
    name: str | None, what: str, given: Sequence[Mapping[str, Any]], panels: Sequence[str]
) -> str | None:
    """Return the setting that has the colours, or the dashes, if there is one."""
    key = name and find(name, given, what)
    if key in panels:
        raise ValueError(f"{what} {key}: it has the panels: choose another one")
    return key


def _text(line: RunLine, keys: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the label of a line: the values of these settings, or else its solver."""
    text = label_of({key: line.settings.get(key, MISSING) for key in keys}, names)
    solver = line.settings.get(LOOKS[0], f"{len(line.runs)} seeds")
    return text or displayed(LOOKS[0], solver, names)


def _placed(
    values: Mapping[str, Sequence[str]], looks: Sequence[str | None]
) -> tuple[dict[str, tuple[int, int]], tuple[Sequence[str], Sequence[str]]]:
    """Return colour and dashes of each line, by the values of two settings, and the names of both
    where these are fewer than the lines.
    """
    if looks == [None, None]:
        return {}, ((), ())
    colours, dashes = (list(dict.fromkeys(pair)) for pair in zip(*values.values()))
    places: dict[str, tuple[int, int]] = {}
    for text, (one, other) in values.items():
        place = [colours.index(one), dashes.index(other)]
        for free, key in enumerate(looks):
            # The lines of one value of the other setting, one after the other.
            if key is None:
                place[free] = sum(used[1 - free] == place[1 - free] for used in places.values())
        places[text] = (place[0], place[1])
    full = None not in looks and len({*places.values()}) == len(places)
    if full and len(colours) + len(dashes) < len(places):
        return places, (colours, dashes)
    return places, ((), ())


def _panels(
    parts: Parts,
    every: Sequence[Run],
    columns: Sequence[str],
    rows: Sequence[str],
    target: tuple[str, float],
    theory: bool,
) -> list[Panel]:
    """Return a panel for each quantity, x axis and part."""
    values = {row: y_values(every, row) for row in rows}
    number = {id(run): place for place, run in enumerate(every)}

    def curve(run: Run, row: str, column: str) -> Curve:
        y = values[row][0][number[id(run)]]
        return Curve(x_values(run, column), y, run.outcome == "diverged", band_of(run, row, y))

    return [
        Panel(
            lines={name: [curve(run, row, column) for run in runs] for name, runs in lines.items()},
            x=X[column][1],
            y=values[row][1],
            title=title,
            unit=UNITS.get(column, ""),
            whole=column in WHOLE,
            share=rises(row),
            target=target[1] if row == target[0] and target[1] > 0 else None,
            theory=_theory(lines, column) if theory and row == EXPECTED else {},
        )
        for row in rows
        for column in columns
        for title, lines in parts.items()
    ]


def _theory(lines: Mapping[str, Sequence[Run]], column: str) -> dict[str, Curve]:
    """Return what theory expects of the first run of each line whose file states it."""
    return {
        name: Curve(x_values(runs[0], column), _expected(runs[0]))
        for name, runs in lines.items()
        if "expected" in runs[0].attributes and EXPECTED in runs[0].metrics
    }


def _expected(run: Run) -> NDArray[np.float64]:
    """Return the `error_rms` that theory expects at the records of a run."""
    try:
        stated = table(run.attributes, "expected")
        rate, rest = float(stated["rate"]), float(stated["error_rms"])
        steps = np.asarray(run.metrics["step"], float)
        if "curve" in stated:
            at, curve = (np.asarray(stated[name], float) for name in ("steps", "curve"))
            return np.asarray(np.interp(steps, at, curve))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{run.path}: damaged: expected: {error}") from error
    start = float(run.metrics[EXPECTED][0])
    fallen = start * rate**steps
    return np.asarray(np.hypot(fallen, rest))


def check_style(style: str) -> None:
    """Raise ValueError for an unknown style."""
    if style not in STYLES:
        raise ValueError(f"style {style!r} is unknown, expected one of {', '.join(STYLES)}")


def read_runs(paths: Path | Sequence[Path]) -> list[Run]:
    """Return the runs in one file or several."""
    files = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not files:
        raise ValueError("0 runs: expected at least one")
    runs = [read(path) for path in files]
    for run in runs:
        if not len(run.metrics["step"]):
            raise ValueError(f"{run.path} has no records: there is nothing to plot")
    return runs


def _list(names: str | Sequence[str] | None) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)
