"""Draw the rooms of the package on floors: `python docs/rooms.py [OUT.svg [PACKAGE]]`.

A room is a folder of the package, a folder of `comm/`, or a module beside them.  Each room stands
above all rooms that it imports, also inside functions and for annotations.  Arrows lead to direct
needs: those that follow from other arrows are left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

Graph = dict[str, set[str]]
HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT, FLOOR, LETTER = 900, 26, 64, 6.6  # of the picture, a box, a floor, a letter
STYLE = """text { font: 11px ui-monospace, monospace; text-anchor: middle; fill: #1c2733 }
rect { stroke: #8a97a6; fill: #f6f8fa } .comm { fill: #dcebfa; stroke: #4a86c5 }
.module { stroke-dasharray: 3 2; fill: #ffffff } .circle { stroke: #c62828; stroke-width: 2 }
path { fill: none; stroke: #7d8a99; stroke-width: 1 }"""


def room(parts: tuple[str, ...], package: Path) -> str:
    """Return the room of a module, given by the parts of its name below the package."""
    if not parts:
        return package.name
    depth = 2 if parts[0] == "comm" and (package / "comm" / "/".join(parts[1:2])).is_dir() else 1
    return "/".join(parts[:depth])


def needs(package: Path) -> Graph:
    """Return the rooms that each room imports."""
    paths = package.rglob("*.py")
    modules = {path.relative_to(package).with_suffix("").parts: path for path in paths}
    names = {parts[:-1] if parts[-1] == "__init__" else parts for parts in modules}
    graph: Graph = {}
    for parts, path in modules.items():
        own = room(parts[:-1] if parts[-1] == "__init__" else parts, package)
        graph.setdefault(own, set()).update(
            room(target, package) for target in imported(path, parts, names, package.name)
        )
    return {name: found - {name} for name, found in graph.items()}


def imported(path: Path, parts: tuple[str, ...], names: set, package: str) -> Iterator[tuple]:
    """Yield the modules of the package that a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (package, *parts[: len(parts) - node.level]) if node.level else ()
            source = (*base, *(node.module or "").split("."))
            source = tuple(part for part in source if part)
            found = [(*source, alias.name) for alias in node.names]
        else:
            continue
        for target in (name[1:] for name in found if name[0] == package):
            yield target if target in names else target[:-1]


def reach(graph: Graph) -> Graph:
    """Return all rooms that each room needs, directly or not."""
    every = {name: set(found) for name, found in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in every[name]:
                every[name] |= every[middle]
    return every


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of rooms that need one another."""
    every = reach(graph)
    groups = {tuple(sorted(b for b in every[a] if a in every[b])) for a in graph}
    return sorted(list(group) for group in groups if group)


def floors(graph: Graph) -> dict[str, int]:
    """Return the floor of each room: above all that it needs, and close to those that need it.

    Rooms in a circle share a floor.
    """
    every, found = reach(graph), {}
    for name in sorted(graph, key=lambda one: len(every[one])):
        alike = {one for one in every[name] if name in every[one]}
        found[name] = max((found.get(one, -1) + 1 for one in every[name] - alike), default=0)
    arrows, in_circle = direct(graph), set().union(*circles(graph))
    for name in sorted(found, key=found.__getitem__, reverse=True):
        above, below = [a for a, b in arrows if b == name], [b for a, b in arrows if a == name]
        if len(above) >= max(len(below), 1) and name not in in_circle:
            found[name] = min(found[one] for one in above) - 1
    return {name: number - min(found.values()) for name, number in found.items()}


def direct(graph: Graph) -> list[tuple[str, str]]:
    """Return the arrows that follow from no others (transitive reduction)."""
    every = reach(graph)
    return [
        (a, b)
        for a in sorted(graph)
        for b in sorted(graph[a])
        if not any(b in every[c] and c not in every[b] and a not in every[c] for c in graph[a])
    ]


def width(name: str) -> float:
    """Return the width of a box; an arrow that passes a floor takes little."""
    return 6 if ">" in name else LETTER * len(name.removeprefix("comm/")) + 14


def pushed(
    row: list[str], wish: dict[str, float], gap: float, way: int, edge: float = -float("inf")
) -> dict[str, float]:
    """Return the wished places of the boxes of a floor, pushed one way so that none overlap."""
    found: dict[str, float] = {}
    for name in row:
        found[name] = way * max(way * wish[name], edge + width(name) / 2)
        edge = way * found[name] + width(name) / 2 + gap
    return found


def placed(rows: list[list[str]], pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Order each floor in place, by the mean of its neighbours; return where the boxes stand."""
    beside: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for a, b in pairs:
        beside[a].append(b)
        beside[b].append(a)
    x = {
        name: WIDTH * (number + 1) / (len(row) + 1)
        for row in rows
        for number, name in enumerate(row)
    }
    for sweep in range(60):
        for row in rows[:: 1 if sweep % 2 else -1]:
            wish = {
                name: sum(x[one] for one in beside[name]) / (len(beside[name]) or 1) or x[name]
                for name in row
            }
            if sweep < 50:
                row.sort(key=wish.__getitem__)
            gap = min(20.0, (WIDTH - 8 - sum(map(width, row))) / len(row))
            right, left = pushed(row, wish, gap, 1), pushed(row[::-1], wish, gap, -1)
            middle = {name: (right[name] + left[name]) / 2 for name in row}
            inside = pushed(row, middle, gap, 1, 4.0)
            x.update(pushed(row[::-1], inside, gap, -1, 4.0 - WIDTH))
    ends = [x[name] + side * width(name) / 2 for row in rows for name in row for side in (-1, 1)]
    return {name: place + (WIDTH - min(ends) - max(ends)) / 2 for name, place in x.items()}


def picture(graph: Graph, modules: set[str]) -> str:
    """Return the picture as SVG; `modules` are the rooms that are no folders."""
    floor, arrows, in_circle = floors(graph), direct(graph), set().union(*circles(graph))
    rows: list[list[str]] = [[] for _ in range(max(floor.values()) + 1)]
    for name in sorted(graph):
        rows[floor[name]].append(name)
    chains = []  # an arrow passes between the boxes of other floors
    for a, b in arrows:
        between = [f"{a}>{b}>{level}" for level in range(floor[a] - 1, floor[b], -1)]
        for name in between:
            rows[int(name.rsplit(">")[-1])].append(name)
        chains.append([a, *between, b])
    x = placed(rows, [pair for chain in chains for pair in pairwise(chain)])
    level = {name: len(rows) - 1 - number for number, row in enumerate(rows) for name in row}
    top = {name: 14 + FLOOR * number for name, number in level.items()}
    drawn = []
    for chain in chains:
        line = f"M{x[chain[0]]:.0f} {top[chain[0]] + HEIGHT}"
        for a, b in pairwise(chain):
            start, end = top[a] + HEIGHT, top[b] - (3 if b == chain[-1] else 0)
            half = (start + end) / 2
            line += f"C{x[a]:.0f} {half:.0f} {x[b]:.0f} {half:.0f} {x[b]:.0f} {end}"
            line += "" if b == chain[-1] else f"v{HEIGHT}"
        drawn.append(f'<path d="{line}" marker-end="url(#tip)"/>')
    for name in graph:
        kind = "comm" if name.startswith("comm/") else "module" if name in modules else ""
        kind += " circle" if name in in_circle else ""
        left, text = x[name] - width(name) / 2, name.removeprefix("comm/")
        drawn.append(
            f'<rect class="{kind}" x="{left:.0f}" y="{top[name]}" rx="4" '
            f'width="{width(name):.0f}" height="{HEIGHT}"/>'
            f'<text x="{x[name]:.0f}" y="{top[name] + 17}">{text}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {FLOOR * len(rows)}">\n'
        f'<style>{STYLE}</style>\n<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" '
        'style="fill:#7d8a99;stroke:none"/></marker></defs>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def draw(out: Path = HERE / "_build" / "rooms.svg", package: Path = HERE.parent / "mpidec") -> None:
    """Write the picture, and print the rooms that import one another: there should be none."""
    graph = needs(package)
    used = set().union(*graph.values())
    graph = {name: found for name, found in graph.items() if found or name in used}
    out.parent.mkdir(parents=True, exist_ok=True)
    modules = {name for name in graph if not (package / name).is_dir()}
    out.write_text(picture(graph, modules), encoding="utf-8")
    for group in circles(graph):
        print(f"{', '.join(group)} import one another", file=sys.stderr)


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:]))
