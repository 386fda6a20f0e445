"""Matplotlib figures without pyplot: nothing opens a window, and a notebook displays them
without set-up.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito: safe for colour blindness.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
SCREEN: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
}
PAPER: dict[str, Any] = {
    **SCREEN,
    "font.family": "serif",
    "font.size": 8,
    "font.serif": ["STIXGeneral", "Times New Roman", "Times", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}
STYLES: dict[str, dict[str, Any]] = {"screen": SCREEN, "paper": PAPER}


def figure(**options: Any) -> Figure:
    """Return an empty figure that a notebook displays; `options` as for
    `matplotlib.figure.Figure`.
    """
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Shown(**options)
