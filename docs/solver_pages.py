"""Write a page for each solver of the catalogue: docs/reference/solvers/, when the site is built.

A page shows the docstring of the class, the rows of docs/guide/choosing.md that are about the solver, and links to the published
experiments, tutorials and pages of the guide that use it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import notebooks

from mpidec._words import summary
from mpidec.reproduce import EXPERIMENTS
from mpidec.reproduce.experiment import Experiment
from mpidec.solvers import CATALOGUE, PAPERS, TITLES, Solver

HERE = Path(__file__).resolve().parent
PAGES = HERE / "reference" / "solvers"
CHOOSING = HERE / "guide" / "choosing.md"
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
PAGE = """# {title}

{what}.

| | |
|---|---|
| in Python | `mpidec.solvers.{kind}` |
| in commands | `--solver {name}`{others} |
| graph by default | `{graph}` |

## Equations and parameters

```{{eval-rst}}
.. currentmodule:: mpidec.solvers
.. autoclass:: {kind}
```

## When to choose it

{choice}

## A run

```console
$ {command}
$ mpidec plot run.h5
```

{uses}
"""
USES = """## Where it is used

{links}
"""
ABOUT = {
    "limit": "with a constant step size",
    "failing links": "error with faults",
    "cost of a step": "as an adaptive filter",
}
LABELS = {
    "bias": "distance from the minimizer",
    "sent": "sent to each neighbour in a step, in rows",
    "kept": "rows of an agent's state",
    "none": "without faults",
    "noise": "channel noise",
}
"""What the tables of the guide say, by a column that tells them apart; and what their headings mean."""
Table = dict[str, dict[str, str]]  # by solver, by column


def title(name: str) -> str:
    """Return the name of a solver in texts, without formulas."""
    return re.sub(
        r"\$\^(\d)\$", lambda found: found[1].translate(SUPERSCRIPTS), TITLES.get(name, name)
    )


def link(name: str, folder: str = "") -> str:
    """Return a link to the page of a solver."""
    return f"[{title(name)}]({folder}{name}.md)"


def lists(text: str, first: str) -> Iterator[list[list[str]]]:
    """Yield the rows, cell by cell, of the tables whose first column has this heading."""
    for found in re.finditer(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        head, _, *rows = found[0].splitlines()
        yield [[cell.strip() for cell in row.strip("|").split("|")] for row in (head, *rows)]


def measured(text: str) -> Iterator[Table]:
    """Yield the tables of solvers of the guide."""
    for (_, *heads), *rows in lists(text, "solver"):
        yield {name.strip("`"): dict(zip(heads, cells)) for name, *cells in rows}


def situations(text: str, name: str) -> Iterator[str]:
    """Yield the situations for which the guide recommends a solver."""
    ((_, *rows),) = lists(text, "your situation")
    whole = ""
    for situation, solvers, graph in rows:
        same = situation.startswith("the same")
        whole = whole if same else situation
        if f"`{name}`" in solvers:
            yield f"* {whole}{situation.removeprefix('the same') if same else ''}; graph: {graph}"


def properties(name: str, table: Table) -> str:
    """Return the row of a table about a solver as a table of two columns, or nothing."""
    row = table.get(name, {})
    about = next((what for column, what in ABOUT.items() if column in row), None)
    if about is None:
        return ""
    filled = {head: cell for head, cell in row.items() if cell not in ("", "–")}
    cells = (f"| {LABELS.get(head, head)} | {cell} |" for head, cell in filled.items())
    return "\n".join([f"| {about} | |", "|---|---|", *cells])


def alike(name: str, table: Table) -> str:
    """Return links to the solvers with the same limit, for the same graphs, or nothing."""
    kind = {one: [row.get(key) for key in ("limit", "`W`", "graph")] for one, row in table.items()}
    same = [one for one in kind if one != name and kind[one] == kind.get(name)]
    if not same or "limit" not in table[name]:
        return ""
    return f"The same limit, for the same graphs: {', '.join(map(link, same))}."


def choice(text: str, name: str) -> str:
    """Return what the guide says of a solver: situations, measured properties, and others like it."""
    parts = ["\n".join(situations(text, name)).replace("](", "](../../guide/")]
    for table in measured(text):
        parts += [properties(name, table), alike(name, table)]
    parts.append(
        "[Which solver, which graph?](../../guide/choosing.md#solvers) compares all of them, and says "
        "how this was measured."
    )
    return "\n\n".join(filter(None, parts))


# ---------------------------------------------------------------------------------------------------------------------
# Who uses a solver


def classes(value: object, seen: set[int]) -> Iterator[type[Solver]]:
    """Yield the solvers in an object of the experiments: classes, instances, tables, and those in code."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, type) and issubclass(value, Solver):
        yield value
    elif isinstance(value, Solver):
        yield type(value)
    elif isinstance(value, Mapping):
        yield from within(value.values(), seen)
    elif isinstance(value, tuple | list):
        yield from within(value, seen)
    elif isinstance(value, partial):
        yield from classes(value.func, seen)
    elif isinstance(value, FunctionType) and value.__module__.startswith("mpidec.reproduce"):
        names = {*named(value.__code__)} & {*value.__globals__}
        yield from within((value.__globals__[name] for name in sorted(names)), seen)
    elif isinstance(value, type) and value.__module__.startswith("mpidec.reproduce"):
        for base in value.__mro__:
            yield from within(vars(base).values() if base is not Experiment else (), seen)


def within(values: Iterable[object], seen: set[int]) -> Iterator[type[Solver]]:
    for value in values:
        yield from classes(value, seen)


def named(code: CodeType) -> Iterator[str]:
    """Yield the names of what a function and those inside of it use of their module."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from named(constant)


def in_notebook(path: Path) -> set[str]:
    """Return the classes of `mpidec.solvers` that a notebook uses."""
    cells = notebooks.content(path)["cells"]
    return in_text("\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code"))


def in_text(text: str) -> set[str]:
    """Return the classes of `mpidec.solvers` that a program imports or names, or a command asks for."""
    imports = re.findall(r"from mpidec\.solvers import (\([^)]*\)|.*)", text)
    found = {name for names in imports for name in re.findall(r"\w+", names)}
    found |= set(re.findall(r"\bsolvers\.([A-Z]\w+)", text))
    asked = re.findall(r"(?:--solver|solver\.name=)\s?([\w,]+)", text)
    kinds = {name: kind.__name__ for name, kind in CATALOGUE.items()}
    return found | {kinds[name] for names in asked for name in names.split(",") if name in kinds}


def users() -> dict[str, dict[str, list[str]]]:
    """Return the links to what uses a solver, by its class, and by what it is."""
    found: dict[str, dict[str, list[str]]] = {kind.__name__: {} for kind in CATALOGUE.values()}

    def add(names: Iterable[str], what: str, line: str) -> None:
        for name in names:
            if name in found:
                found[name].setdefault(what, []).append(line)

    for name, experiment in EXPERIMENTS.items():
        names = {kind.__name__ for kind in classes(experiment, set())}
        add(
            names,
            "Published experiments",
            f"[{name}](../../reproduced/index.md#{name}): {experiment.about.shows}",
        )
    for path in sorted(notebooks.SOURCE.glob("*.ipynb")):
        add(
            in_notebook(path),
            "Tutorials",
            f"[{notebooks.title(path)}](../../tutorials/{path.stem}.md)",
        )
    for path in sorted((HERE / "guide").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path != CHOOSING and text.startswith("# "):
            heading = text.partition("\n")[0].strip("# ")
            add(in_text(text), "Guide", f"[{heading}](../../guide/{path.name})")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Pages


def command(name: str) -> str:
    """Return a command that runs a solver."""
    needs = CATALOGUE[name].needs
    problem = " --problem least_squares --data diabetes" if needs.argmin or needs.data else ""
    return f"mpirun -n 4 mpidec run --solver {name} --topology {needs.graph}{problem} --out run.h5"


def page(name: str, text: str, uses: Mapping[str, list[str]]) -> str:
    """Return the page of a solver."""
    kind = CATALOGUE[name]
    others = [f"`{other}`" for other, (own, _) in PAPERS.items() if own == name]
    links = "\n\n".join(
        f"{what}:\n\n" + "\n".join(f"* {line}" for line in lines) for what, lines in uses.items()
    )
    return PAGE.format(
        title=title(name),
        what=summary(kind),
        kind=kind.__name__,
        name=name,
        others=f"; variants of papers: {', '.join(others)}" if others else "",
        graph=kind.needs.graph,
        choice=choice(text, name),
        command=command(name),
        uses=USES.format(links=links) if links else "",
    )


def write(folder: Path = PAGES) -> None:
    """Write the pages of all solvers into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    text, found = CHOOSING.read_text(encoding="utf-8"), users()
    for name, kind in CATALOGUE.items():
        (folder / f"{name}.md").write_text(page(name, text, found[kind.__name__]), encoding="utf-8")


def listing(names: Iterable[str]) -> str:
    """Return a table of links to the pages of solvers, and what enters them into the navigation."""
    rows = "\n".join(f"| {link(name, 'solvers/')} | {summary(CATALOGUE[name])} |" for name in names)
    entries = "\n".join(f"solvers/{name}" for name in names)
    return f"| solver | |\n|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"
