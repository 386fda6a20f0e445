"""Figure of asynchronous runs: steps of agents, averagings of edges, idle time of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._style import COLOURS, STYLES, figure as empty
from ..record import Run
from .labels import labels
from .runs import Path, check_style, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Bars with gaps between them; more are one area.
FEW = 40
NAMED = 12  # edges with their agents below
PANELS = {  # colour and labels of the arrays of a run
    "steps": (COLOURS[0], "agent", "steps"),
    "averagings": (COLOURS[2], "edge", "averagings"),
    "staleness": (COLOURS[2], "messages of a sender found at a reading", "readings"),
    "idle": (COLOURS[1], "rank", "idle, % of the time"),
}


def agents(
    paths: Path | Sequence[Path],
    label: Sequence[str] | None = None,
    style: str = "screen",
) -> Figure:
    """Plot the activity of the agents of asynchronous runs, with a row of panels per run.

    Panels: steps of each agent; averagings of each edge (pairwise methods), or the histogram of the
    staleness (push methods); the share of the time in which each rank was idle (runs on ranks).

    Parameters
    ----------
    paths : path or sequence of paths
        Files of asynchronous runs that have ended.
    label : sequence of str
        Names of the runs.  Default: the settings in which they differ.
    style : str
        "screen", or "paper", as for `figure`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing, or is not that of an asynchronous run that has ended.

    Examples
    --------
    >>> import os, tempfile, mpidec, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> result = mpidec.simulate(None, "pairwise_gossip", "ring", steps=20, x0=np.eye(5), record=path)
    >>> len(agents(path).axes)
    2
    """
    check_style(style)
    runs = read_runs(paths)
    for run in runs:
        _check(run)
    names = labels([[run] for run in runs]) if label is None else list(label)
    if len(names) != len(runs):
        raise ValueError(f"{len(runs)} runs, {len(names)} labels: expected one label per run")
    from matplotlib import rc_context

    drawn = [[panel for panel in PANELS if panel in run.asynchronous] for run in runs]
    columns = max(map(len, drawn))
    with rc_context(STYLES[style]):
        size = (
            (2.9 * columns + 0.3, 2.1 * len(runs) + 0.1)
            if style == "screen"
            else (7.0 if columns > 1 else 3.4, 1.7 * len(runs))
        )
        figure = empty(figsize=size, layout="constrained")
        grid = figure.subplots(len(runs), columns, squeeze=False)
        for row, (run, some, name) in enumerate(zip(runs, drawn, names)):
            for column, panel in enumerate(some):
                _bars(grid[row, column], run, panel)
            if len(runs) > 1:
                grid[row, 0].set_title(name, loc="left")
            for axes in grid[row, len(some) :]:
                figure.delaxes(axes)
    return figure


def _check(run: Run) -> None:
    """Refuse a run that is not asynchronous, or has not ended."""
    if not run.asynchronous:
        ended = "has not ended" if "clock" in run.attributes else "is synchronous"
        raise ValueError(
            f"{run.path} {ended}: the figure of agents shows asynchronous runs that have ended"
        )


def _bars(axes: Axes, run: Run, name: str) -> None:
    """Draw one of the arrays of PANELS as bars, or as an area if there are many."""
    from matplotlib.ticker import MaxNLocator

    values = run.asynchronous[name] * (100 if name == "idle" else 1)
    colour, x, y = PANELS[name]
    if name == "staleness" and run.attributes.get("clock") == "simulated":
        x, y = "age of a message when it is read", "messages"
    if len(values) <= FEW:
        axes.bar(np.arange(len(values)), values, color=colour, width=0.8)
    else:
        axes.stairs(values, np.arange(len(values) + 1) - 0.5, fill=True, color=colour)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if name == "averagings" and len(values) <= NAMED:
        edges = [f"{i}–{j}" for i, j in run.asynchronous["edges"].tolist()]
        axes.set_xticks(range(len(edges)), edges, rotation=45 if len(edges) > 6 else 0)
    if name == "staleness" and values.max() > 100:
        axes.set_yscale("log")
    if name == "idle":
        axes.set_ylim(0, max(1.0, *(1.05 * values)))
