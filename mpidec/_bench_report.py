"""What `mpidec.bench` has measured: as a table, as JSON, as a picture.  No MPI."""
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

LOCAL, ALLREDUCE = "local limit", "MPI_Allreduce"
SCHEMA = "mpidec.bench/1"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_COLUMNS = 4


class Timing(NamedTuple):
    """Times of one contender for rows of one size on one graph: microseconds per mixing, one number per block."""

    graph: str
    bytes: int
    contender: str
    repeats: int
    blocks: list[float]

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
    unit = text[len(digits):]
    if not digits.isdigit() or unit not in _UNITS or not int(digits) or int(digits) * _UNITS[unit] % 8:
        raise ValueError(f"size is {text!r}, expected bytes in multiples of 8 (a float64), as 8, 64K or 16M")
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


def ratios(timings: Iterable[Timing]) -> list[dict[str, Any]]:
    """Every timing with its ratios within its cell: times the local limit, and how often it fits into an Allreduce."""
    timings = list(timings)
    median = {(each.graph, each.bytes, each.contender): each.median for each in timings}

    def against(each: Timing, other: str) -> float | None:
        theirs = median.get((each.graph, each.bytes, other))
        return None if theirs is None else each.median / theirs

    rows = []
    for each in timings:
        collective = against(each, ALLREDUCE)
        rows.append({"graph": each.graph, "bytes": each.bytes, "contender": each.contender, "median_us": each.median,
                     "times_local_limit": against(each, LOCAL), "faster_than_allreduce": collective and 1 / collective,
                     "blocks_us": each.blocks, "repeats": each.repeats})
    return rows


def table(rows: Sequence[Mapping[str, Any]], graph: str) -> str:
    """The rows of one graph, sizes side by side, some at a time."""
    mine = [row for row in rows if row["graph"] == graph]
    sizes = list(dict.fromkeys(row["bytes"] for row in mine))
    names = list(dict.fromkeys(row["contender"] for row in mine))
    cell = {(row["contender"], row["bytes"]): row for row in mine}
    width = max(map(len, names), default=0)
    parts = []
    for start in range(0, len(sizes), _COLUMNS):
        some = sizes[start:start + _COLUMNS]
        lines = [f"{graph:<{width}}" + "".join(f"{size_name(size):>23}" for size in some),
                 " " * width + f"{'us':>10}{'/local':>7}{'Allr/':>6}" * len(some)]
        lines += [f"{name:<{width}}" + "".join(_cell(cell.get((name, size))) for size in some) for name in names]
        parts.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(parts)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return " " * 23
    local, collective = row["times_local_limit"], row["faster_than_allreduce"]
    return f"{_short(row['median_us']):>10}{_short(local):>7}{_short(collective):>6}"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def write_json(path: str | os.PathLike[str], machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write machine and rows; `schema` says what they are."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": SCHEMA, "unit": "microseconds per mixing, slowest rank, median over blocks",
                   "machine": machine, "results": rows}, file, indent=1)
        file.write("\n")


def picture(path: str | os.PathLike[str], machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw time against size, and times the local limit, one column of panels per graph."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from .plot import COLOURS, STYLE
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    names = [name for name in dict.fromkeys(row["contender"] for row in rows) if name != LOCAL]
    families = list(dict.fromkeys(name.partition(", ")[0] for name in names))
    with rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(graphs) + 2.6, 5.2), layout="constrained")
        panels = figure.subplots(2, len(graphs), squeeze=False, sharex=True, sharey="row")
        for column, graph in zip(panels.T, graphs):
            for name in [*names, LOCAL]:
                mine = sorted((row for row in rows if row["graph"] == graph and row["contender"] == name),
                              key=lambda row: row["bytes"])
                who, _, how = name.partition(", ")
                style = {"color": "black" if name == LOCAL else COLOURS[families.index(who) % (len(COLOURS) - 1)], "label": name,
                         "linestyle": {"Y = W(X)": "--", "any array": ":"}.get(how, "-"),
                         "marker": "" if name == LOCAL else "osD^vXP*"[families.index(who) % 8]}
                for panel, key in zip(column, ("median_us", "times_local_limit")):
                    points = [(row["bytes"], row[key]) for row in mine if row[key] is not None]
                    panel.plot(*np.array(points).reshape(-1, 2).T, **style)
            column[0].set_title(graph, fontsize=9)
            column[1].set_xlabel("row")
            for panel in column:
                panel.set_xscale("log", base=2)
                panel.set_yscale("log")
        sizes = sorted({row["bytes"] for row in rows})
        panels[0, 0].set_xticks(sizes[::max(1, len(sizes) // 5)], [size_name(size) for size in sizes[::max(1, len(sizes) // 5)]])
        panels[0, 0].set_ylabel("time of a mixing  [µs]")
        panels[1, 0].set_ylabel("time / local limit")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
        figure.suptitle(f"{machine['ranks']} ranks on {machine['cores']} cores, {machine['cpu']}, {machine['mpi'].split(',')[0]}",
                        fontsize=8, color="0.4")
        figure.savefig(path, dpi=160)
