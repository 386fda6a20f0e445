"""Figure of run files: which lines, which panels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .._style import STYLES
from ..record import Run, read
from .drawing import WRAP, Curve, Panel, Sheet
from .labels import common, labels, of_seeds
from .quantities import X, axes_by_default, drawn_by_default, x_values, y_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str]
Parts = Mapping[str, Mapping[str, Sequence[Run]]]  # the runs of each line of each panel
UNITS = {"bytes": "B"}
WHOLE = ("steps", "rounds", "gradients")


def figure(
    paths: Path | Sequence[Path] | Mapping[str, Mapping[str, Sequence[Path]]],
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] | None = None,
    label: Sequence[str] | None = None,
    style: str = "screen",
) -> Figure:
    """Plot runs in one figure, with a panel per quantity and x axis.

    Parameters
    ----------
    paths : path, sequence of paths, or mapping
        Run files, finished or not.  A mapping ``{panel: {label: paths}}`` has a panel per entry,
        and one line per label: the median of its runs, with a band from their smallest to their
        largest value, until the first of them ends; thin lines continue the others.  In a sequence,
        runs that differ in the seed alone make such a line, too.
    x : str or sequence of str
        "steps", "bytes" (sent by all agents), "seconds", "rounds", "gradients" (of an agent; where
        recorded), "time" (of simulated runs).  Default: steps, bytes and seconds; seconds if a run
        is asynchronous, time if all are simulated; of a mapping, steps.
    y : str or sequence of str
        "objective" (drawn as f - f*), "error", "consensus", "gradient_norm" or any other metric of
        the files.  Default: objective, consensus and error, of trainings accuracies, consensus and
        loss; of a mapping, the last of these.
    label : sequence of str
        Names of the runs, each of which then has a line of its own, or of the lines.  Default: the
        settings in which they differ.
    style : str
        "screen", or "paper": widths of a column (one panel) or a page, serif letters, no title.

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
    >>> with record.RunFile(path, n=4, row_shape=(2,), metrics=names, meta={}, trajectory=False) as file:
    ...     for k in range(9):
    ...         file.append(k, dict.fromkeys(names, 2.0**-k))
    >>> len(figure(path, x="steps").axes)
    3
    """
    check_style(style)
    banded = isinstance(paths, Mapping)
    parts = _of_mapping(paths, label) if isinstance(paths, Mapping) else _of_files(paths, label)
    every = [run for lines in parts.values() for runs in lines.values() for run in runs]
    if not every:
        raise ValueError("0 runs: expected at least one")
    columns = _list(x) or (["steps"] if banded else axes_by_default(every))
    rows = _list(y) or (drawn_by_default(every)[-1:] if banded else drawn_by_default(every))
    panels = _panels(parts, every, columns, rows)
    across = len(parts) if len(parts) > 1 else len(columns)
    # many of one kind, or rows of one panel each: as many rows as needed
    if across > WRAP or across == 1:
        across = min(len(panels), WRAP if len(panels) > 6 or len(panels) == WRAP else 3)
    several = banded or sum(map(len, parts.values())) > 1
    return Sheet(panels, across, style, common(every) if several else "").draw()


def _of_mapping(
    paths: Mapping[str, Mapping[str, Sequence[Path]]], label: Sequence[str] | None
) -> Parts:
    """Return the runs of a mapping ``{panel: {label: paths}}``."""
    if label is not None:
        raise ValueError("label has no effect with a mapping, whose keys are the labels: omit it")
    return {
        title: {name: read_runs(files) for name, files in lines.items()}
        for title, lines in paths.items()
    }


def _of_files(paths: Path | Sequence[Path], label: Sequence[str] | None) -> Parts:
    """Return the runs in files, those that differ in the seed alone in one line, by their
    labels.
    """
    runs = read_runs(paths)
    groups = of_seeds(runs)
    if label is not None and len(label) == len(runs):
        groups = [[run] for run in runs]
    names = labels(groups) if label is None else list(label)
    if len(names) != len(groups):
        lines, per = f", {len(groups)} lines", "run or per line"
        if len(groups) == len(runs):
            lines, per = "", "run"
        raise ValueError(
            f"{len(runs)} runs{lines}, {len(names)} labels: expected one label per {per}"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"labels {', '.join(names)}: expected different ones")
    return {"": dict(zip(names, groups))}


def _panels(
    parts: Parts, every: Sequence[Run], columns: Sequence[str], rows: Sequence[str]
) -> list[Panel]:
    """Return a panel for each quantity, x axis and part."""
    values = {row: y_values(every, row) for row in rows}
    number = {id(run): place for place, run in enumerate(every)}

    def curve(run: Run, row: str, column: str) -> Curve:
        y = values[row][0][number[id(run)]]
        return Curve(x_values(run, column), y, run.outcome == "diverged")

    return [
        Panel(
            lines={name: [curve(run, row, column) for run in runs] for name, runs in lines.items()},
            x=X[column][1],
            y=values[row][1],
            title=title,
            unit=UNITS.get(column, ""),
            whole=column in WHOLE,
            share=row.startswith("accuracy"),
        )
        for row in rows
        for column in columns
        for title, lines in parts.items()
    ]


def check_style(style: str) -> None:
    """Raise ValueError for an unknown style."""
    if style not in STYLES:
        raise ValueError(f"style {style!r} is unknown, expected one of {', '.join(STYLES)}")


def read_runs(paths: Path | Sequence[Path]) -> list[Run]:
    """Return the runs in one file or several."""
    files = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not files:
        raise ValueError("0 runs: expected at least one")
    return [read(path) for path in files]


def _list(names: str | Sequence[str] | None) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)
