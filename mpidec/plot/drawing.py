"""Drawing of lines and bands on one grid of panels with one legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._style import COLOURS, STYLES, figure as empty

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1)),
    (0, (5, 1.2, 1.2, 1.2)),
    (0, (8, 2, 2, 2, 2, 2)),
)
MARKERS = "osD^vXP"
MARKED = 8  # markers on a line
MOST_POINTS = 2000  # per line; more are not visible
ABOVE = 1e3  # a diverging curve is cut where it is so many times larger than all others
DECADES = 2  # positive values that span more are on a logarithmic axis
SMALLEST = 1e-300  # lower end of a logarithmic axis
TALL = 2.2  # height of a row of panels, inches
WRAP = 4  # panels side by side


class Curve(NamedTuple):
    """Values of one run against one axis; both without NaN at the start of a run, y with NaN
    where nothing can be drawn.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    diverged: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its lines, labels and title; panels of one `y` have a common scale.

    A line has one curve, or several that make a band (smallest to largest) around their median.
    `share`: the values are in [0, 1].
    """

    lines: Mapping[str, Sequence[Curve]]
    x: str
    y: str
    title: str = ""
    unit: str = ""
    whole: bool = False
    share: bool = False


@dataclass(frozen=True)
class Look:
    """How a line is drawn: its place among the lines, and the size of the figure."""

    number: int
    count: int
    style: str

    @property
    def colour(self) -> str:
        """Colour of the line and its band."""
        return COLOURS[self.number % len(COLOURS)]

    @property
    def base(self) -> float:
        """Width of the last line."""
        return 1.3 if self.style == "screen" else 1.0

    def line(self, **more: Any) -> dict[str, Any]:
        """Arguments of `Axes.plot`; earlier lines show at the sides of later ones."""
        earlier = (self.count - 1 - self.number) / max(self.count - 1, 1)
        look = {
            "color": self.colour,
            "linewidth": self.base * (1 + 0.9 * earlier),
            "linestyle": DASHES[(self.number + self.number // len(COLOURS)) % len(DASHES)],
            "marker": MARKERS[self.number % len(MARKERS)],
            "markersize": 3.6 if self.style == "screen" else 3,
            "markeredgecolor": "white",
            "markeredgewidth": 0.4,
        }
        return look | more


@dataclass(frozen=True)
class Sheet:
    """A figure before it is drawn: panels row by row, `columns` of them side by side, and a common
    legend above them.
    """

    panels: Sequence[Panel]
    columns: int
    style: str
    title: str = ""

    def draw(self) -> Figure:
        """Return the figure."""
        from matplotlib import rc_context

        panels, screen = self.panels, self.style == "screen"
        names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
        looks = {name: Look(i, len(names), self.style) for i, name in enumerate(names)}
        rows = math.ceil(len(panels) / self.columns)
        width = _width(self.columns, self.style)
        across = _across(names, width, self.style)
        title = self.title if screen else ""
        high, tall = (0.2, TALL) if screen else (0.16, 1.8)
        height = tall * rows + high * (math.ceil(len(names) / across) + bool(title)) + 0.3
        with rc_context(STYLES[self.style]):
            figure = empty(figsize=(width, height), layout="constrained")
            grid = figure.subplots(rows, self.columns, squeeze=False)
            handles: dict[str, Any] = {}
            for place, (axes, panel) in enumerate(zip(grid.flat, panels)):
                _draw(axes, panel, looks, handles)
                self._write(axes, place)
            for axes in grid.flat[len(panels) :]:
                axes.set_visible(False)
            for quantity in dict.fromkeys(panel.y for panel in panels):
                group = [
                    (axes, each) for axes, each in zip(grid.flat, panels) if each.y == quantity
                ]
                _scale(group)
                for axes, panel in group:
                    if axes.get_yscale() == "log":
                        _mark_zeros(axes, panel, looks, handles)
            figure.legend(
                handles.values(),
                handles.keys(),
                loc="outside upper center",
                ncols=across,
                title=title or None,
            )
            figure.align_ylabels()
        return figure

    def _write(self, axes: Axes, place: int) -> None:
        """Write the ticks, labels and title of a panel; what its neighbours say is not said
        again.
        """
        from matplotlib.ticker import EngFormatter, MaxNLocator

        panel, columns = self.panels[place], self.columns
        below = self.panels[place + columns : place + columns + 1]
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=panel.whole, steps=[1, 2, 5, 10]))
        if panel.unit:
            axes.xaxis.set_major_formatter(EngFormatter(panel.unit))
        if not below or below[0].x != panel.x:
            axes.set_xlabel(panel.x)
        if place % columns == 0 or panel.y != self.panels[place - 1].y:
            axes.set_ylabel(panel.y)
        if place < columns or self.panels[place - columns].title != panel.title:
            axes.set_title(panel.title)


def _width(columns: int, style: str) -> float:
    if style == "paper":  # one column of a journal, or its whole page
        return 3.4 if columns == 1 else 7.0
    return max(4.2, 3.0 * columns + 0.5)


def _across(names: Sequence[str], width: float, style: str) -> int:
    """Return the largest number of legend entries side by side that fits."""
    letter, space = (
        (0.073, 0.62) if style == "screen" else (0.052, 0.55)
    )  # inches; matplotlib fills column by column
    for across in range(len(names), 1, -1):
        columns = np.array_split([len(name) for name in names], across)
        if sum(letter * column.max() + space for column in columns) <= width:
            return across
    return 1


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, Look], handles: dict[str, Any]) -> None:
    for name, curves in panel.lines.items():
        look = looks[name]
        shown: list[Any] = []
        regular = [curve for curve in curves if not curve.diverged]
        others = list(curves)
        if len(regular) > 1:
            others = [curve for curve in curves if curve.diverged]
            x, low, middle, high = band(regular)
            axes.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0)
            shown += axes.plot(x, middle, **look.line(markevery=_marked(x, look)))
            for curve in regular:  # what longer runs do after the end of the band
                rest = curve.x >= x[-1]
                if rest.sum() > 1:
                    x_rest, y_rest = _thinned(Curve(curve.x[rest], curve.y[rest]))
                    width = 0.5 * look.base
                    axes.plot(x_rest, y_rest, color=look.colour, linewidth=width, alpha=0.7)
        for curve in others:
            x, y = _thinned(curve)
            faint = {"alpha": 0.5, "linewidth": 0.8 * look.base}
            thin = faint if regular and len(curves) > 1 else {}
            shown += axes.plot(x, y, **look.line(**thin, markevery=_marked(x, look)))
        if shown:
            handles.setdefault(name, shown[0])


def band(curves: Sequence[Curve]) -> tuple[NDArray[np.float64], ...]:
    """Return x and the smallest, the median and the largest value of several curves, until the
    first of them ends.

    Values between the points of a curve are interpolated, on the logarithmic scale where they are
    positive.
    """
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.unique(np.concatenate([[first, last], *(curve.x for curve in curves)]))
    x = x[(x >= first) & (x <= last)]
    x = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int))]
    positive = all((curve.y[np.isfinite(curve.y)] > 0).all() for curve in curves)
    table = np.full((len(curves), len(x)), np.nan)
    for row, curve in zip(table, curves):
        finite = np.isfinite(curve.y)
        if finite.any():
            values = np.interp(
                x, curve.x[finite], np.log(curve.y[finite]) if positive else curve.y[finite]
            )
            row[:] = np.exp(values) if positive else values
    table = table[np.isfinite(table).all(axis=1)]
    if not len(table):
        table = np.full((1, len(x)), np.nan)
    return x, table.min(axis=0), np.median(table, axis=0), table.max(axis=0)


def _thinned(curve: Curve) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    chosen = np.unique(np.linspace(0, len(curve.x) - 1, min(len(curve.x), MOST_POINTS)).astype(int))
    return curve.x[chosen], curve.y[chosen]


def _marked(x: NDArray[np.float64], look: Look) -> list[int]:
    """Return the points with a marker, evenly spaced in x and shifted from line to line, so that
    coinciding lines show.
    """
    if len(x) <= MARKED:
        return list(range(len(x)))
    finite = np.nan_to_num(x, posinf=0, neginf=0)
    shift = (look.number + 0.5) / look.count
    places = finite[0] + (np.arange(MARKED) + shift) / MARKED * (finite[-1] - finite[0])
    return sorted({int(np.abs(finite - place).argmin()) for place in places})


def _scale(group: Sequence[tuple[Any, Panel]]) -> None:
    """Give the panels of one quantity a common scale: logarithmic if positive values span more than
    two decades.

    Diverging curves are cut: only the values of the others count for the upper end.
    """
    from matplotlib.ticker import LogLocator

    curves = [curve for _, panel in group for line in panel.lines.values() for curve in line]
    if group[0][1].share:
        low, high = _shares(curves)
        for axes, _ in group:
            axes.set_ylim(low, high)
        return
    regular = [curve for curve in curves if not curve.diverged]
    values = _finite([curve.y for curve in curves])
    tame = _finite([curve.y for curve in regular] or [curve.y[:1] for curve in curves])
    positive = values[values > 0]
    if not positive.size:
        return
    low = positive.min()
    high = (
        min(positive.max(), ABOVE * tame.max()) if tame.size and tame.max() > 0 else positive.max()
    )
    logarithmic = not (values < 0).any() and positive.max() > 10**DECADES * low
    for axes, _ in group:
        if logarithmic:
            axes.set_yscale("log", nonpositive="mask")
            axes.yaxis.set_major_locator(LogLocator(numticks=7))
            axes.minorticks_off()
            axes.set_ylim(max(low / 2, SMALLEST), high * 2)
        elif high < values.max():
            axes.set_ylim(top=high)


def _mark_zeros(
    axes: Axes, panel: Panel, looks: Mapping[str, Look], handles: dict[str, Any]
) -> None:
    """Mark zeros, for which a logarithmic axis has no place, at its lower end, but for first
    records: at step 0 agents agree.
    """
    for name, curves in panel.lines.items():
        places = [curve.x[1:][curve.y[1:] == 0] for curve in curves]
        x = np.unique(np.concatenate(places))
        if not len(x):
            continue
        x = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), MARKED)).astype(int))]
        bottom = axes.get_xaxis_transform()
        look: dict[str, Any] = {"linestyle": "", "marker": "v", "markersize": 4, "clip_on": False}
        axes.plot(x, np.zeros(len(x)), color=looks[name].colour, transform=bottom, zorder=3, **look)
        handles.setdefault("0", axes.plot([], [], color="0.4", **look)[0])


def _shares(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the ends of an axis of accuracies: from 0, or higher up if the second halves of all
    curves are above 0.5.
    """
    late = _finite([curve.y[len(curve.y) // 2 :] for curve in curves])
    values = _finite([curve.y for curve in curves])
    if not values.size:
        return 0.0, 1.0
    low = max(0.5, math.floor(20 * late.min() - 10) / 10) if late.size and late.min() > 0.5 else 0.0
    low = min(low, 0.9)
    return low, min(1.005, values.max() + 0.05 * (values.max() - low) + 0.005)


def _finite(columns: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    values = np.concatenate([np.zeros(0), *columns])
    result: NDArray[np.float64] = values[np.isfinite(values)]
    return result


def check_name(out: str, flag: str = "-o", folder: bool = True) -> None:
    """Raise ValueError if matplotlib cannot write a file of this name, or (if `folder`) its
    folder does not exist.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(out).suffix.lower()[1:] not in suffixes:
        raise ValueError(
            f"{flag} {out}: expected a name that ends in one of .{', .'.join(suffixes)}"
        )
    if folder and not Path(out).parent.is_dir():
        raise ValueError(f"{flag} {out}: the folder {Path(out).parent} does not exist")
