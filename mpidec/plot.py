"""Plots of runs: objective, consensus and error against steps, bytes and seconds.

    python -m mpidec.plot run.h5 [more.h5 ...] -o figure.png [--x steps bytes seconds]
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .record import Run, read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["main", "plot"]

X = {"steps": ("step", "steps"), "bytes": ("bytes", "data sent"), "seconds": ("time", "seconds")}
Y = {
    "objective": r"objective  $f(\bar{x})$",
    "consensus": r"consensus  $\mathrm{rms}_i\,\Vert x_i - \bar{x}\Vert$",
    "error": r"error  $\Vert\bar{x} - x^{\ast}\Vert\,/\,\Vert x^{\ast}\Vert$",
    "gradient_norm": r"gradient  $\Vert\nabla f(\bar{x})\Vert$",
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito: safe for colour blindness
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "legend.frameon": False,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
}
MOST_POINTS = 4000  # per line; more are not visible
MARKED_POINTS = 15  # lines with fewer points have markers


def plot(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    x: Sequence[str] = ("steps", "bytes", "seconds"),
    labels: Sequence[str] | None = None,
) -> Figure:
    """Plot runs in one figure, with a panel per quantity and x axis.

    Parameters
    ----------
    paths : one or several run files, finished or not
    x : x axes: ``"steps"``, ``"bytes"`` (sent by all agents), ``"seconds"``
    labels : names of the runs; by default solver, topology and number of agents, or the name of the file

    Returns
    -------
    matplotlib.figure.Figure
        A figure without a window: ``figure.savefig("run.png")`` writes it, and a notebook displays it.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or not a run file, or an axis is unknown.

    Notes
    -----
    The third quantity is the error, or the gradient norm if the error of some run was not recorded.

    Examples
    --------
    >>> import os, tempfile, mpidec.record as record
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> names = ["time", "bytes", "objective", "consensus", "gradient_norm"]
    >>> with record.RunFile(path, n=4, row_shape=(2,), metrics=names, meta={}, trajectory=False) as file:
    ...     for k in range(9):
    ...         file.append(k, dict.fromkeys(names, 2.0**-k))
    >>> len(plot(path, x=["steps"]).axes)
    3
    """
    from matplotlib import rc_context

    columns = [x] if isinstance(x, str) else list(x)
    for name in columns:
        if name not in X:
            raise ValueError(f"x axis {name!r} is unknown, expected one of {', '.join(X)}")
    runs = [read(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    names = _labels(runs) if labels is None else list(labels)
    if not runs or not columns or len(names) != len(runs):
        raise ValueError(f"{len(runs)} runs, {len(columns)} axes, {len(names)} labels: expected at least one run, at least one "
                         "axis, and one label per run")
    rows = ["objective", "consensus", "error" if all("error" in run.metrics for run in runs) else "gradient_norm"]

    with rc_context(STYLE):
        flat = len(columns) == 1  # the quantities are then side by side
        height, width = (1, len(rows)) if flat else (len(rows), len(columns))
        figure = _figure(figsize=(3.1 * width + 0.4, 2.2 * height + 0.4 + 0.2 * len(runs)), layout="constrained")
        panels = figure.subplots(height, width, squeeze=False, sharex="col", sharey="none" if flat else "row")
        grid = panels.T if flat else panels
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                for number, run in enumerate(runs):
                    _draw(grid[i, j], run, X[column][0], row, number)
                if flat or i == len(rows) - 1:
                    _label_x(grid[i, j], column)
            grid[i, 0].set_ylabel(Y[row])
            _scale(grid[i], [run.metrics[row] for run in runs])
        figure.legend(grid[0, 0].lines, names, loc="outside upper center", ncols=max(width - 1, 1))
        figure.align_ylabels()
    return figure


def _figure(**options: Any) -> Figure:
    """Return a figure that a notebook displays without set-up."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Shown(**options)


def _draw(panel: Any, run: Run, x: str, y: str, number: int) -> None:
    values = run.metrics[y]
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).astype(int))
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
    marker = "o" if len(values) < MARKED_POINTS else ""
    panel.plot(run.metrics[x][chosen], values[chosen], color=colour, linestyle=dash, marker=marker)


def _scale(panels: Any, columns: Sequence[np.ndarray]) -> None:
    """Make a row of panels logarithmic if its values are positive and span more than two decades."""
    values = np.concatenate(columns)
    values = values[np.isfinite(values) & (values != 0)]
    if values.size and values.min() > 0 and values.max() > 100 * values.min():
        for panel in panels:
            panel.set_yscale("log", nonpositive="mask")
            panel.minorticks_off()


def _label_x(panel: Any, column: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panel.set_xlabel(X[column][1])
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=column == "steps"))
    if column == "bytes":
        panel.xaxis.set_major_formatter(EngFormatter("B"))


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return labels made of solver, topology and agents, and of file names if these are ambiguous."""
    names = [_describe(run) for run in runs]
    stems = [Path(run.path).stem for run in runs]
    files = stems if len(set(stems)) == len(stems) else [run.path for run in runs]
    several = Counter(names)
    full = [f"{name} ({file})" if name and several[name] > 1 else name or file for name, file in zip(names, files)]
    return [name + _ending(run) for name, run in zip(full, runs)]


def _describe(run: Run) -> str:
    try:
        settings = tomllib.loads(run.config)
        parts = [settings["solver"]["name"], settings["topology"]["name"], f"{run.attributes['agents']} agents"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        return ""
    return ", ".join(str(part).replace("_", " ") for part in parts)


def _ending(run: Run) -> str:
    steps = f"{run.steps} steps"
    return {"running": f", unfinished after {steps}", "diverged": f", diverged after {steps}"}.get(run.outcome, "")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mpidec.plot: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m mpidec.plot``; return its exit status."""
    parser = _Parser(prog="python -m mpidec.plot", description="Plot objective, consensus and error of runs.")
    parser.add_argument("runs", nargs="+", metavar="run.h5", help="run files, finished or not")
    parser.add_argument("-o", "--out", metavar="FIGURE", help="output file, .png, .pdf, .svg, ... (default: FIRST_RUN.png)")
    parser.add_argument("--x", nargs="+", choices=list(X), default=list(X), help="x axes (default: all three)")
    options = parser.parse_args(arguments)
    out = options.out or str(Path(options.runs[0]).with_suffix(".png"))
    try:
        from matplotlib.backend_bases import FigureCanvasBase

        suffixes = sorted(FigureCanvasBase.get_supported_filetypes())
        if Path(out).suffix.lower()[1:] not in suffixes:
            raise ValueError(f"-o {out}: expected a name that ends in one of .{', .'.join(suffixes)}")
        plot(options.runs, options.x).savefig(out, dpi=200)
    except ImportError as error:
        parser.error(f"{error}: pip install 'mpidec[plot]'")
    except (OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
