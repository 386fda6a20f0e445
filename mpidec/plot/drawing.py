"""Drawing of lines and bands on one grid of panels with one legend."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
# A diverging curve is cut where it is so many times larger than all others.
ABOVE = 1e3
# Positive values that span more are on a logarithmic axis.
DECADES = 2
SMALLEST = 1e-300  # lower end of a logarithmic axis
TALL = 2.2  # height of a row of panels, inches
WRAP = 4  # panels side by side
# Panels side by side that have room for few ticks.
NARROW = 4
THEORY = (0, (3, 1.5))
TARGET = (0, (1, 1.5))
Range = tuple[float, float]


class Curve(NamedTuple):
    """Values of one run against one axis; both without NaN at the start of a run, y with NaN
    where nothing can be drawn; of many runs in one file with the ends of their band.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    diverged: bool = False
    band: tuple[NDArray[np.float64], ...] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its lines, labels and title; panels of one `y` have a common scale.

    A line has one curve, or several that make a band (smallest to largest) around their median.
    `share`: the values are in [0, 1].  `target`: the value that runs aim at.  `theory`: curves that
    theory expects, by line.
    """

    lines: Mapping[str, Sequence[Curve]]
    x: str
    y: str
    title: str = ""
    unit: str = ""
    whole: bool = False
    share: bool = False
    target: float | None = None
    theory: Mapping[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """Limits and scale of the axes, the same in all panels."""

    log_x: bool = False
    xlim: Range | None = None
    ylim: Range | None = None

    def __post_init__(self) -> None:
        for name, limits in (("xlim", self.xlim), ("ylim", self.ylim)):
            if limits is not None and not (
                len(limits) == 2 and np.isfinite(limits).all() and limits[0] < limits[1]
            ):
                shown = " ".join(f"{limit:g}" for limit in limits)
                raise ValueError(f"{name} {shown}: expected two numbers, the smaller one first")
        if self.log_x and self.xlim is not None and self.xlim[0] <= 0:
            raise ValueError(f"xlim {self.xlim[0]:g} with log_x: expected a positive number")


@dataclass(frozen=True)
class Look:
    """How a line is drawn: its place among the lines, the size of the figure, and its places among
    the colours and the dashes.
    """

    number: int
    count: int
    style: str
    place: tuple[int, int] | None = None
    view: View = View()

    @property
    def colour(self) -> str:
        """Colour of the line and its band."""
        return COLOURS[(self.place[0] if self.place else self.number) % len(COLOURS)]

    @property
    def dash(self) -> Any:
        """Dashes of the line."""
        dash = self.place[1] if self.place else self.number + self.number // len(COLOURS)
        return DASHES[dash % len(DASHES)]

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
            "linestyle": self.dash,
            "marker": MARKERS[(self.place[0] if self.place else self.number) % len(MARKERS)],
            "markersize": 3.6 if self.style == "screen" else 3,
            "markeredgecolor": "white",
            "markeredgewidth": 0.4,
        }
        return look | more


@dataclass(frozen=True)
class Sheet:
    """A figure before it is drawn: panels row by row, `columns` of them side by side, and a common
    legend above them.

    `places` has the colour and the dashes of each line; with `key`, their names, the legend
    explains these in place of the lines.
    """

    panels: Sequence[Panel]
    columns: int
    style: str
    title: str = ""
    view: View = View()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    key: tuple[Sequence[str], Sequence[str]] = ((), ())

    def draw(self) -> Figure:
        """Return the figure."""
        from matplotlib import rc_context

        panels, screen = self.panels, self.style == "screen"
        names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
        looks = {
            name: Look(i, len(names), self.style, self.places.get(name), self.view)
            for i, name in enumerate(names)
        }
        rows = math.ceil(len(panels) / self.columns)
        width = _width(self.columns, self.style)
        title = self.title if screen else ""
        high, tall = (0.2, TALL) if screen else (0.16, 1.8)
        with rc_context(STYLES[self.style]):
            figure = empty(layout="constrained")
            grid = figure.subplots(rows, self.columns, squeeze=False)
            handles: dict[str, Any] = {}
            for place, (axes, panel) in enumerate(zip(grid.flat, panels)):
                self._share(grid, axes, panel)
                _draw(axes, panel, looks, handles)
                self._write(axes, place)
            for axes in grid.flat[len(panels) :]:
                axes.set_visible(False)
            if any(self.key):
                handles = self._explained(looks)
            quantities: dict[Any, list[tuple[Any, Panel]]] = {}
            for axes, panel in zip(grid.flat, panels):
                quantities.setdefault(panel.y, []).append((axes, panel))
            for group in quantities.values():
                _scale(group)
                self._limit(group)
            for axes, panel in zip(grid.flat, panels):
                if axes.get_yscale() == "log":
                    _mark_zeros(axes, panel, looks, handles)
                _draw_references(axes, panel, looks, handles)
            across = _across(list(handles), width, self.style)
            lines = math.ceil(len(handles) / across) + bool(title)
            figure.set_size_inches(width, tall * rows + high * lines + 0.3)
            figure.legend(
                handles.values(),
                handles.keys(),
                loc="outside upper center",
                ncols=across,
                title=title or None,
            )
            figure.align_ylabels()
        return figure

    def _share(self, grid: NDArray[Any], axes: Axes, panel: Panel) -> None:
        """Give a panel the axes of the first one that shows the same."""
        first = next(other for other, each in zip(grid.flat, self.panels) if each.y == panel.y)
        if first is not axes:
            axes.sharey(first)
        first = next(other for other, each in zip(grid.flat, self.panels) if each.x == panel.x)
        if first is not axes:
            axes.sharex(first)

    def _limit(self, group: Sequence[tuple[Any, Panel]]) -> None:
        """Set the limits that were asked for."""
        for axes, _ in group:
            if self.view.xlim is not None:
                axes.set_xlim(*self.view.xlim)
            if self.view.ylim is not None:
                if axes.get_yscale() == "log" and self.view.ylim[0] <= 0:
                    raise ValueError(
                        f"ylim {self.view.ylim[0]:g}: expected a positive number on a logarithmic "
                        "axis"
                    )
                axes.set_ylim(*self.view.ylim)

    def _explained(self, looks: Mapping[str, Look]) -> dict[str, Any]:
        """Return the entries of the legend that explain colours, and then dashes."""
        from matplotlib.lines import Line2D

        one, handles = next(iter(looks.values())), {}
        for number, name in enumerate(self.key[0]):
            look = replace(one, place=(number, 0)).line(linewidth=one.base)
            handles[name] = Line2D([], [], **look)
        for number, name in enumerate(self.key[1]):
            look = {"color": "0.3", "linestyle": DASHES[number % len(DASHES)]}
            handles[name] = Line2D([], [], **look, linewidth=one.base)
        return handles

    def _write(self, axes: Axes, place: int) -> None:
        """Write the ticks, labels and title of a panel, omitting those that its neighbours show."""
        from matplotlib.ticker import EngFormatter, MaxNLocator

        panel, columns = self.panels[place], self.columns
        below = self.panels[place + columns : place + columns + 1]
        if self.view.log_x:
            axes.set_xscale("log", nonpositive="mask")
        else:
            ticks = 3 if panel.unit and columns >= NARROW else 4
            locator = MaxNLocator(ticks, integer=panel.whole, steps=[1, 2, 5, 10])
            axes.xaxis.set_major_locator(locator)
        if panel.unit:
            axes.xaxis.set_major_formatter(EngFormatter(panel.unit))
        if not below or below[0].x != panel.x:
            axes.set_xlabel(panel.x)
        if place % columns == 0 or panel.y != self.panels[place - 1].y:
            axes.set_ylabel(panel.y)
        else:
            axes.tick_params(labelleft=False)
        if place < columns or self.panels[place - columns].title != panel.title:
            axes.set_title(panel.title)


def _width(columns: int, style: str) -> float:
    # One column of a journal, or its whole page.
    if style == "paper":
        return 3.4 if columns == 1 else 7.0
    return max(4.2, 3.0 * columns + 0.5)


def _across(names: Sequence[str], width: float, style: str) -> int:
    """Return the largest number of legend entries side by side that fits."""
    # Inches; matplotlib fills column by column.
    letter, space = (0.073, 0.62) if style == "screen" else (0.052, 0.55)
    for across in range(len(names), 1, -1):
        columns = np.array_split([_length(name) for name in names], across)
        if sum(letter * column.max() + space for column in columns) <= width:
            return across
    return 1


def _length(text: str) -> float:
    """Return the number of letters of a label; those raised or lowered are small.

    Examples
    --------
    >>> _length("ring"), _length("D$^2$")
    (4.0, 1.7)
    """
    raised = sum(len(part) for part in re.findall(r"[\^_](\w|\{[^}]*\})", text))
    return len(re.sub(r"\\\w+|[\^_](\w|\{[^}]*\})|[${}]", "", text)) + 0.7 * raised


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, Look], handles: dict[str, Any]) -> None:
    for name, curves in panel.lines.items():
        look = looks[name]
        shown: list[Any] = []
        regular = [curve for curve in curves if not curve.diverged]
        others = list(curves)
        if len(regular) > 1:
            others = [curve for curve in curves if curve.diverged]
            x, low, middle, high = band(regular, look.view.log_x)
            axes.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0)
            shown += axes.plot(x, middle, **look.line(markevery=_marked(x, look)))
            # What longer runs do after the end of the band.
            for curve in regular:
                rest = curve.x >= x[-1]
                if rest.sum() > 1:
                    x_rest, y_rest = _thinned(Curve(curve.x[rest], curve.y[rest]), look)
                    width = 0.5 * look.base
                    axes.plot(x_rest, y_rest, color=look.colour, linewidth=width, alpha=0.7)
        for curve in others:
            x, y = _thinned(curve, look)
            faint = {"alpha": 0.5, "linewidth": 0.8 * look.base}
            thin = faint if regular and len(curves) > 1 else {}
            if curve.band is not None:
                low, high = (_thinned(curve._replace(y=end), look)[1] for end in curve.band)
                axes.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0)
            shown += axes.plot(x, y, **look.line(**thin, markevery=_marked(x, look)))
        if shown:
            handles.setdefault(name, shown[0])


def band(curves: Sequence[Curve], log_x: bool = False) -> tuple[NDArray[np.float64], ...]:
    """Return x and the smallest, the median and the largest value of several curves, until the
    first of them ends.

    Values between the points of a curve are interpolated, on the logarithmic scale where they are
    positive.
    """
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.unique(np.concatenate([[first, last], *(curve.x for curve in curves)]))
    x = x[(x >= first) & (x <= last)]
    x = x[_some(len(x), log_x)]
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


def _some(count: int, log_x: bool) -> NDArray[np.int64]:
    """Return the points of a line that are drawn: with `log_x`, the early ones are closer."""
    size = min(count, MOST_POINTS)
    points = np.linspace(0, count - 1, size)
    if log_x:
        points = np.concatenate([np.geomspace(1, count, size) - 1, points])
    return np.unique(points.astype(int))


def _thinned(curve: Curve, look: Look) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    chosen = _some(len(curve.x), look.view.log_x)
    return curve.x[chosen], curve.y[chosen]


def _marked(x: NDArray[np.float64], look: Look) -> list[int]:
    """Return the points with a marker, evenly spaced on the axis and shifted from line to line, so
    that coinciding lines show.
    """
    if len(x) <= MARKED:
        return list(range(len(x)))
    finite = np.nan_to_num(x, posinf=0, neginf=0)
    low, high = finite[0], finite[-1]
    if look.view.xlim is not None:
        low, high = max(low, look.view.xlim[0]), min(high, look.view.xlim[1])
    if look.view.log_x:
        low = max(low, finite[finite > 0].min(initial=math.inf))
        finite = np.log(np.maximum(finite, SMALLEST))
        low, high = np.log(low), np.log(max(high, SMALLEST))
    shift = (look.number + 0.5) / look.count
    places = low + (np.arange(MARKED) + shift) / MARKED * (high - low)
    return sorted({int(np.abs(finite - place).argmin()) for place in places})


def _ceiling(curves: Sequence[Curve]) -> float:
    """The value above which diverging curves are cut, by those of the others."""
    regular = [curve.y for curve in curves if not curve.diverged]
    highest = _finite(regular or [curve.y[:1] for curve in curves]).max(initial=0.0)
    return ABOVE * float(highest) if highest > 0 else math.inf


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
    values = _finite([each for curve in curves for each in (curve.y, *(curve.band or ()))])
    positive = values[values > 0]
    if not positive.size:
        return
    low, high = positive.min(), min(positive.max(), _ceiling(curves))
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
    from matplotlib.lines import Line2D

    for name, curves in panel.lines.items():
        places = [curve.x[1:][curve.y[1:] == 0] for curve in curves]
        x = np.unique(np.concatenate(places))
        if not len(x):
            continue
        x = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), MARKED)).astype(int))]
        bottom = axes.get_xaxis_transform()
        look: dict[str, Any] = {"linestyle": "", "marker": "v", "markersize": 4, "clip_on": False}
        axes.plot(x, np.zeros(len(x)), color=looks[name].colour, transform=bottom, zorder=3, **look)
        handles.setdefault("exactly 0", Line2D([], [], color="0.4", **look))


def _draw_references(
    axes: Axes, panel: Panel, looks: Mapping[str, Look], handles: dict[str, Any]
) -> None:
    """Draw the target, and what theory expects, within the limits of the axes."""
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D

    limits = axes.get_ylim()
    if panel.target is not None and limits[0] <= panel.target <= limits[1]:
        look: dict[str, Any] = {"color": "0.35", "linestyle": TARGET, "linewidth": 1.0}
        handles.setdefault("target", axes.axhline(panel.target, zorder=1.5, **look))
    for name, curve in panel.theory.items():
        look = {"linestyle": THEORY, "linewidth": 0.8 * looks[name].base}
        dark = tuple(0.5 * part for part in to_rgb(looks[name].colour))  # seen on its line
        axes.plot(*_thinned(curve, looks[name]), color=dark, zorder=2.5, **look)
        handles.setdefault("theory", Line2D([], [], color="0.35", **look))
    axes.set_ylim(*limits)


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
