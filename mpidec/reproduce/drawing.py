"""Curves on one pair of axes, in the colours of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .._style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vXP"
Curves = Mapping[str, tuple[ArrayLike, ArrayLike]]


def curves(
    axes: Axes,
    lines: Curves,
    x: str,
    y: str,
    *,
    log: str = "y",
    title: str = "",
    marked: bool = False,
) -> None:
    """Draw labelled lines; `log` names the logarithmic axes, and `marked` shows the points."""
    for place, (label, (xs, ys)) in enumerate(lines.items()):
        axes.plot(
            np.asarray(xs),
            np.asarray(ys),
            label=label,
            color=COLOURS[place % len(COLOURS)],
            linestyle=DASHES[place // len(COLOURS) % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)] if marked else None,
        )
    axes.set(xlabel=x, ylabel=y, title=title)
    if "x" in log:
        axes.set_xscale("log")
        # Ticks at the points: decades alone are too few, and minor ones too many.
        if marked:
            ticks = np.unique(np.concatenate([np.asarray(xs) for xs, _ in lines.values()]))
            axes.set_xticks(ticks[:: len(ticks) // 8 + 1])
            axes.xaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
    if "y" in log:
        axes.set_yscale("log")
    axes.legend()


def heat(axes: Axes, values: ArrayLike, x: str, y: str, *, title: str = "") -> None:
    """Draw a matrix as a heat map."""
    image = axes.imshow(np.asarray(values))
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, shrink=0.6)


def circle(axes: Axes, weights: ArrayLike, title: str) -> None:
    """Draw a graph with its agents on a circle; darker edges have larger weights."""
    matrix = np.asarray(weights)
    n = len(matrix)
    at = 2 * np.pi * np.arange(n) / n
    x, y = np.sin(at), np.cos(at)
    for i, j in zip(*np.nonzero(np.triu(matrix))):
        share = float(matrix[i, j] / matrix.max())
        axes.plot(x[[i, j]], y[[i, j]], color=COLOURS[0], alpha=share, linewidth=1)
    axes.plot(x, y, "o", color=COLOURS[1])
    axes.set(title=title, aspect="equal")
    axes.axis("off")


def panels(
    figure: FigureBase,
    lines: Mapping[str, Curves],
    x: str,
    y: str,
    *,
    log: str = "y",
    marked: bool = False,
) -> Sequence[Axes]:
    """Draw labelled lines side by side, a panel for each title, with one legend below."""
    row: Sequence[Axes] = figure.subplots(1, len(lines), sharey=True, squeeze=False)[0]
    for axes, (title, some) in zip(row, lines.items()):
        curves(axes, some, x, y if axes is row[0] else "", log=log, title=title, marked=marked)
        axes.legend().remove()
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return row
