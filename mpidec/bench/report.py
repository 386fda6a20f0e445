"""What `mpidec.bench` has measured: as a table, as JSON, as a picture.  No MPI."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cli.tables import grouped

LOCAL, ALLREDUCE, HAND = "local limit", "MPI_Allreduce", "by hand"
NO_COMMUNICATION, DDP = "no communication", "DistributedDataParallel"
SCHEMA = "mpidec.bench/2"
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


class Ratio(NamedTuple):
    """A ratio: its heading in the table, what it is, and its label in the picture."""

    heading: str
    meaning: str
    label: str


class Group(NamedTuple):
    """A group of rows: its title, and the ratios that its table shows; the first is drawn."""

    title: str
    ratios: tuple[str, ...]


RATIOS = {
    "times_local_limit": Ratio(
        "/local", "time over that of the local limit (smaller is better)", "time / local limit"
    ),
    "times_hand": Ratio(
        "/hand",
        "time over that of the fastest version by hand (smaller is better)",
        "time / by hand",
    ),
    "faster_than_allreduce": Ratio(
        "Allr/",
        "time of the version with MPI_Allreduce over this time (larger is better)",
        "MPI_Allreduce / time",
    ),
    "times_alone": Ratio(
        "/alone",
        "time over that without communication (smaller is better)",
        "time / no communication",
    ),
    "faster_than_ddp": Ratio(
        "DDP/",
        "time of DistributedDataParallel over this time (larger is better)",
        "DistributedDataParallel / time",
    ),
    "extra_memory": Ratio(
        "extra",
        "memory beyond parameters, gradients and optimizer state, in units of the parameters",
        "extra memory / parameters",
    ),
}
GROUPS = {
    "mixing": Group(
        "mixing: W(X) by each transport", ("times_local_limit", "faster_than_allreduce")
    ),
    "nodes": Group(
        "nodes: W(X) with messages, against MPI calls by hand and the package's own weighted sum",
        ("times_hand", "faster_than_allreduce"),
    ),
    "steps": Group(
        "steps: one solver.step, against the same equations by hand in NumPy with persistent requests",
        ("times_hand", "faster_than_allreduce"),
    ),
    "local": Group(
        "local: neighbor_allreduce, with the weights of the topology or with weights in each call",
        ("faster_than_allreduce",),
    ),
    "windows": Group(
        "windows: transfers with all neighbours, and mutexes, against MPI's own on memory of Win.Allocate",
        ("times_hand",),
    ),
    "train": Group(
        "train: steps of a PyTorch model, against no communication and DistributedDataParallel",
        ("times_alone", "faster_than_ddp", "extra_memory"),
    ),
}


class Timing(NamedTuple):
    """Times of one contender for rows of one size on one graph: microseconds per call, one number per block.

    Ratios are taken between contenders of one task; `role` is LOCAL, ALLREDUCE, HAND, NO_COMMUNICATION or DDP for those that others
    are compared with; `extra` is the memory that a contender needs for communication, in units of the row.
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


def ratios(group: str, timings: Iterable[Timing]) -> list[dict[str, Any]]:
    """Every timing with its ratios within its cell."""
    timings = list(timings)

    def against(each: Timing, role: str) -> float | None:
        medians = [
            other.median
            for other in timings
            if (other.graph, other.bytes, other.task, other.role)
            == (each.graph, each.bytes, each.task, role)
        ]
        return each.median / min(medians) if medians else None

    rows = []
    for each in timings:
        collective, parallel = against(each, ALLREDUCE), against(each, DDP)
        rows.append(
            {
                "group": group,
                "graph": each.graph,
                "bytes": each.bytes,
                "contender": each.contender,
                "median_us": each.median,
                "times_local_limit": against(each, LOCAL),
                "times_hand": against(each, HAND),
                "faster_than_allreduce": collective and 1 / collective,
                "times_alone": against(each, NO_COMMUNICATION),
                "faster_than_ddp": parallel and 1 / parallel,
                "extra_memory": each.extra,
                "blocks_us": each.blocks,
                "repeats": each.repeats,
            }
        )
    return rows


def legend(group: str) -> str:
    """What the columns of a group's table are, a line each."""
    shown = [RATIOS[name] for name in GROUPS[group].ratios]
    return "\n".join(
        [
            f"  {'us':<6} microseconds of one call",
            *(f"  {ratio.heading:<6} {ratio.meaning}" for ratio in shown),
        ]
    )


def table(rows: Sequence[Mapping[str, Any]], group: str, graph: str) -> str:
    """The rows of one group and graph, sizes side by side, some at a time."""
    mine = [row for row in rows if (row["group"], row["graph"]) == (group, graph)]
    sizes = list(dict.fromkeys(row["bytes"] for row in mine))
    names = list(dict.fromkeys(row["contender"] for row in mine))
    cells = {(row["contender"], row["bytes"]): row for row in mine}
    columns = {"us": "median_us"} | {RATIOS[name].heading: name for name in GROUPS[group].ratios}
    parts = []
    for start in range(0, len(sizes), _COLUMNS):
        shown = {
            size_name(size): [
                [*columns],
                *(
                    [_short(cells.get((name, size), {}).get(key)) for key in columns.values()]
                    for name in names
                ),
            ]
            for size in sizes[start : start + _COLUMNS]
        }
        parts.append("\n".join(grouped([graph, "", *names], shown)))
    return "\n\n".join(parts)


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
    path: str | os.PathLike[str], machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Draw time against size, and a ratio, side by side: a line of panels for each group and graph."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from .._style import SCREEN

    graphs = {
        group: list(dict.fromkeys(row["graph"] for row in rows if row["group"] == group))
        for group in GROUPS
    }
    graphs = {group: names for group, names in graphs.items() if names}
    heights = [2.3 * len(names) + 0.5 for names in graphs.values()]
    with rc_context(SCREEN):
        figure = Figure(figsize=(9.6, sum(heights) + 0.3), layout="constrained")
        parts = figure.subfigures(len(graphs), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, (group, names) in zip(parts, graphs.items()):
            _draw(part, group, names, [row for row in rows if row["group"] == group])
        figure.suptitle(
            f"{machine['ranks']} ranks on {machine['cores']} cores, {machine['cpu']}, {machine['mpi'].split(',')[0]}",
            fontsize=8,
            color="0.4",
        )
        figure.savefig(path, dpi=160)


def _draw(part: Any, group: str, graphs: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the panels of one group."""
    from matplotlib.ticker import LogLocator, NullLocator

    from .._style import COLOURS

    ratio = GROUPS[group].ratios[0]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    families = list(dict.fromkeys(name.partition(", ")[0] for name in names if name != LOCAL))
    panels = part.subplots(len(graphs), 2, squeeze=False, sharex=True, sharey="col")
    for line, graph in zip(panels, graphs):
        for name in names:
            mine = sorted(
                (row for row in rows if row["graph"] == graph and row["contender"] == name),
                key=lambda row: row["bytes"],
            )
            family, _, how = name.partition(", ")
            place = -1 if name == LOCAL else families.index(family)
            style = {
                "color": "black" if name == LOCAL else COLOURS[place % (len(COLOURS) - 1)],
                "label": name,
                "linestyle": _DASHES.get(how, "-"),
                "marker": "" if name == LOCAL else "osD^vXP*"[place % 8],
            }
            for panel, key in zip(line, ("median_us", ratio)):
                points = [(row["bytes"], row[key]) for row in mine if row[key] is not None]
                if points or panel is line[0]:
                    panel.plot(*np.array(points).reshape(-1, 2).T, **style)
        line[0].set_title(graph, fontsize=9)
        line[1].set_title(RATIOS[ratio].label, fontsize=9)
        line[0].set_ylabel("time  [µs]")
        for panel in line:
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            low, high = panel.get_ylim()
            panel.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter("{x:g}")
    sizes = sorted({row["bytes"] for row in rows})
    some = sizes[:: max(1, len(sizes) // 5)]
    panels[-1, 0].set_xticks(some, [size_name(size) for size in some])
    for panel in panels[-1]:
        panel.set_xlabel("row")
    part.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside right center",
        fontsize=7,
        title=group,
        title_fontsize=8,
    )
