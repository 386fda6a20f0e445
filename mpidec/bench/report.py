"""What `mpidec.bench` has measured: as a table, as JSON, as a picture.  No MPI."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..cli import aligned, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

LOCAL, ALLREDUCE, HAND = "local limit", "MPI_Allreduce", "by hand"
SCHEMA = "mpidec.bench/3"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_COLUMNS = 4
_DASHES = {
    "Y = W(X)": "--",
    "any array": ":",  # line styles by the second half of a contender's name
    "by hand": "--",
    "Allreduce by hand": ":",
    "pull": "--",
    "push": ":",
    "push-pull": "-.",
}


class Timing(NamedTuple):
    """Times of one contender for rows of one size on one graph: microseconds per call, one number
    per block.

    Ratios are taken between contenders of one task; `role` is LOCAL, ALLREDUCE, HAND or another
    role of `Ratio` for those that others are compared with; `extra` is the memory that a contender
    needs for communication, in units of the row.
    """

    graph: str
    bytes: int
    contender: str
    repeats: int
    blocks: list[float]
    task: str = ""
    role: str = ""
    extra: float | None = None

    @property
    def median(self) -> float:
        return float(np.median(self.blocks))


class Ratio(NamedTuple):
    """A ratio: its heading in the table, what it is, its label in the picture, and the role of
    those whose time is compared.

    `inverse`: their time over this one.  `ranged`: the median over the blocks, with the range.
    Without a role it is the extra memory.
    """

    heading: str
    meaning: str
    label: str
    role: str = ""
    inverse: bool = False
    ranged: bool = False

    def of(self, each: Timing, timings: Sequence[Timing]) -> float | None:
        """Return the ratio for `each`, to the fastest of its task with this role; None if there are
        none.
        """
        if not self.role:
            return each.extra
        fastest = self._fastest(each, timings)
        if fastest is None:
            return None
        if self.ranged:
            return float(np.median(self._blocks(each, fastest)))
        return fastest.median / each.median if self.inverse else each.median / fastest.median

    def range_of(self, each: Timing, timings: Sequence[Timing]) -> list[float] | None:
        """Return the least and the greatest ratio over the blocks, where they are wanted."""
        fastest = self._fastest(each, timings) if self.ranged else None
        if fastest is None:
            return None
        blocks = self._blocks(each, fastest)
        return [float(blocks.min()), float(blocks.max())]

    def _fastest(self, each: Timing, timings: Sequence[Timing]) -> Timing | None:
        same = (each.graph, each.bytes, each.task, self.role)
        found = [one for one in timings if (one.graph, one.bytes, one.task, one.role) == same]
        return min(found, key=lambda one: one.median, default=None)

    def _blocks(self, each: Timing, other: Timing) -> np.ndarray:
        ratio: np.ndarray = np.divide(other.blocks, each.blocks)
        return ratio if self.inverse else 1 / ratio


RATIOS = {
    "times_local_limit": Ratio(
        "/local",
        "time over that of the local limit (smaller is better)",
        "time / local limit",
        LOCAL,
    ),
    "times_hand": Ratio(
        "/hand",
        "time over that of the fastest version by hand (smaller is better)",
        "time / by hand",
        HAND,
    ),
    "faster_than_allreduce": Ratio(
        "Allr/",
        "time of the version with MPI_Allreduce over this time (larger is better)",
        "MPI_Allreduce / time",
        ALLREDUCE,
        inverse=True,
    ),
}


class Group(NamedTuple):
    """A group of rows: its title, the ratios that its table shows (the first is drawn), all
    that are written, and whether each cell is printed when it has been measured.
    """

    title: str
    columns: tuple[str, ...]
    ratios: Mapping[str, Ratio] = RATIOS
    at_once: bool = False

    @property
    def shown(self) -> list[Ratio]:
        return [self.ratios[name] for name in self.columns]


def size_of(text: str) -> int:
    """Bytes from `8`, `64K`, `16M`.

    Raises
    ------
    ValueError
        If it is no such number, or not a multiple of 8: rows are float64.
    """
    text = text.strip().upper().removesuffix("B")
    digits = text.rstrip("KMG")
    unit = text[len(digits) :]
    if (
        not digits.isdigit()
        or unit not in _UNITS
        or not int(digits)
        or int(digits) * _UNITS[unit] % 8
    ):
        raise ValueError(
            f"size is {text!r}, expected bytes in multiples of 8 (a float64), as 8, 64K or 16M"
        )
    return int(digits) * _UNITS[unit]


def size_name(count: int) -> str:
    """`65536 -> 64 KB`: a K is 1024 here.

    Examples
    --------
    >>> size_name(8), size_name(65536), size_name(1 << 24)
    ('8 B', '64 KB', '16 MB')
    """
    unit = next(unit for unit in "GMK " if unit == " " or count % _UNITS[unit] == 0)
    return f"{count // _UNITS[unit.strip()]} {unit.strip()}B"


def ratios(name: str, group: Group, timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Every timing with its ratios within its cell."""
    return [
        {
            "group": name,
            "graph": each.graph,
            "bytes": each.bytes,
            "contender": each.contender,
            "median_us": each.median,
            **{key: ratio.of(each, timings) for key, ratio in group.ratios.items()},
            **{
                f"{key}_range": ratio.range_of(each, timings)
                for key, ratio in group.ratios.items()
                if ratio.ranged
            },
            "blocks_us": each.blocks,
            "repeats": each.repeats,
        }
        for each in timings
    ]


def legend(group: Group) -> str:
    """Return what the columns of a group's table are, a line each."""
    lines = [("us", "microseconds of one call")]
    lines += [(ratio.heading, ratio.meaning) for ratio in group.shown]
    return "\n".join(f"  {line}" for line in aligned(lines, "<<"))


def table(rows: Sequence[Mapping[str, Any]], group: Group, graph: str) -> str:
    """Return the rows of a group on one graph, sizes side by side, some at a time."""
    mine = [row for row in rows if row["graph"] == graph]
    sizes = list(dict.fromkeys(row["bytes"] for row in mine))
    names = list(dict.fromkeys(row["contender"] for row in mine))
    cells = {(row["contender"], row["bytes"]): row for row in mine}
    columns = {"us": "median_us"} | {group.ratios[name].heading: name for name in group.columns}
    parts = []
    for start in range(0, len(sizes), _COLUMNS):
        shown = {
            size_name(size): [
                [*columns],
                *(
                    [_entry(cells.get((name, size), {}), key) for key in columns.values()]
                    for name in names
                ),
            ]
            for size in sizes[start : start + _COLUMNS]
        }
        parts.append("\n".join(grouped([graph, "", *names], shown)))
    return "\n\n".join(parts)


def _entry(row: Mapping[str, Any], key: str) -> str:
    """Return a number of a row, with its range."""
    between = row.get(f"{key}_range")
    text = _short(row.get(key))
    return f"{text} [{_short(between[0])}, {_short(between[1])}]" if between else text


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def write_json(
    path: str | os.PathLike[str], machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write machine and rows; `schema` says what they are."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(
            {
                "schema": SCHEMA,
                "unit": "microseconds per call, slowest rank, median over blocks",
                "machine": machine,
                "results": rows,
            },
            file,
            indent=1,
        )
        file.write("\n")


def picture(
    path: str | os.PathLike[str],
    machine: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    groups: Mapping[str, Group],
) -> None:
    """Draw time against size, and a ratio, side by side: a line of panels for each group and
    graph.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from .._style import SCREEN

    graphs = {
        group: list(dict.fromkeys(row["graph"] for row in rows if row["group"] == group))
        for group in groups
    }
    graphs = {group: names for group, names in graphs.items() if names}
    heights = [2.3 * len(names) + 0.5 for names in graphs.values()]
    with rc_context(SCREEN):
        figure = Figure(figsize=(9.6, sum(heights) + 0.3), layout="constrained")
        parts = figure.subfigures(len(graphs), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, (group, names) in zip(parts, graphs.items()):
            mine = [row for row in rows if row["group"] == group]
            _draw(part, group, groups[group], names, mine)
        figure.suptitle(
            f"{machine['ranks']} ranks on {machine['cores']} cores, {machine['cpu']}, "
            f"{machine['mpi'].split(',')[0]}",
            fontsize=8,
            color="0.4",
        )
        figure.savefig(path, dpi=160)


def _finish(panels: np.ndarray, sizes: Sequence[int]) -> None:
    """Scale the axes, and write the sizes below them."""
    for panel in panels.flat:
        _scale(panel)
    some = sizes[:: max(1, len(sizes) // 5)]
    panels[-1, 0].set_xticks(some, [size_name(size) for size in some])
    for panel in panels[-1]:
        panel.set_xlabel("row")


def _draw(
    part: SubFigure,
    title: str,
    group: Group,
    graphs: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Draw the panels of one group."""
    compared, ratio = group.columns[0], group.shown[0]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    families = list(dict.fromkeys(name.partition(", ")[0] for name in names if name != LOCAL))
    panels = part.subplots(len(graphs), 2, squeeze=False, sharex=True, sharey="col")
    for line, graph in zip(panels, graphs):
        for name in names:
            mine = [row for row in rows if (row["graph"], row["contender"]) == (graph, name)]
            for panel, key in zip(line, ("median_us", compared)):
                points = sorted((row["bytes"], row[key]) for row in mine if row[key] is not None)
                if points or panel is line[0]:
                    panel.plot(*np.array(points).reshape(-1, 2).T, **_look(name, families))
        line[0].set_title(graph, fontsize=9)
        line[1].set_title(ratio.label, fontsize=9)
        line[0].set_ylabel("time  [µs]")
    _finish(panels, sorted({row["bytes"] for row in rows}))
    part.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside right center",
        fontsize=7,
        title=title,
        title_fontsize=8,
    )


def _look(name: str, families: Sequence[str]) -> dict[str, str]:
    """Colour and marker of a contender by its family, dashes by its way."""
    from .._style import COLOURS

    family, _, how = name.partition(", ")
    look = {"label": name, "linestyle": _DASHES.get(how, "-")}
    if name == LOCAL:
        return look | {"color": "black"}
    i = families.index(family)
    return look | {"color": COLOURS[i % (len(COLOURS) - 1)], "marker": "osD^vXP*"[i % 8]}


def _scale(panel: Axes) -> None:
    """Give a panel logarithmic axes with few ticks."""
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter("{x:g}")
