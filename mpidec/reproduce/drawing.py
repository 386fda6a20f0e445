"""Curves on one pair of axes, in the colours of the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .._style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vXP"


def curves(
    axes: Axes,
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
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
    if "y" in log:
        axes.set_yscale("log")
    axes.legend()
