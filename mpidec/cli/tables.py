"""Tables of commands as text, CSV and LaTeX, and numbers in them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

_LATEX = str.maketrans({"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "^": r"\^{}"})
Places = Collection[tuple[int, int]]  # (line, column) of cells


def plural(count: float, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> plural(1, "rank"), plural(3, "rank"), plural(1.5, "core")
    ('1 rank', '3 ranks', '1.5 cores')
    """
    return f"{count:g} {noun}{'s' * (count != 1)}"


def options(values: Mapping[str, object]) -> str:
    """Return parameters as text to follow a name: ``, l2 1, step size 0.03``."""
    return "".join(
        f", {name.replace('_', ' ')} {format(value, '.4g') if isinstance(value, float) else value}"
        for name, value in values.items()
    )


def quantity(value: float, unit: str) -> str:
    """Return a quantity with a unit prefix.

    Examples
    --------
    >>> quantity(1010, "B"), quantity(999.96, "B"), quantity(4.5e9, "B")
    ('1.01 kB', '1 kB', '4.5 GB')
    """
    power = 0
    while abs(float(f"{value:.4g}")) >= 1000 and power < 5:
        value, power = value / 1000, power + 1
    return f"{value:.4g} {' kMGTP'[power].strip()}{unit}"


def facts(rows: Mapping[str, str]) -> str:
    """Return names and values as a table between two rules."""
    lines = aligned(list(rows.items()), "<<")
    rule = "-" * (max(map(len, rows)) + 2 + max(map(len, rows.values())))
    return "\n".join([rule, *lines, rule])


def aligned(lines: Sequence[Sequence[str]], sides: str, bold: Places = ()) -> list[str]:
    """Return the lines of a table whose columns are aligned to the left or right (`sides`: "<" or
    ">" each), with some cells in bold letters of a terminal.

    Examples
    --------
    >>> aligned([["a", "10"], ["bcd", "1"]], "<>")
    ['a    10', 'bcd   1']
    """
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        "  ".join(
            f"{cell:{side}{width}}".replace(
                cell, f"\033[1m{cell}\033[0m" if (i, j) in bold else cell
            )
            for j, (cell, side, width) in enumerate(zip(line, sides, widths))
        ).rstrip()
        for i, line in enumerate(lines)
    ]


def grouped(labels: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """Return the lines of a table of numbers, whose columns are in groups with a title each.

    Examples
    --------
    >>> print(*grouped(["", "", "x"], {"small": [["us", "ratio"], ["1", "0.5"]]}), sep="\\n")
           small
       us  ratio
    x   1    0.5
    """
    parts = [[title, *aligned(lines, ">" * len(lines[0]))] for title, lines in groups.items()]
    return aligned(list(zip(labels, *parts)), "<" + ">" * len(parts))


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def latex(
    lines: Sequence[Sequence[str]],
    sides: str,
    comment: str,
    bold: Places = (),
    heads: int = 1,
) -> str:
    r"""Return a table, whose first lines are its heads, as a LaTeX tabular; it needs
    ``\usepackage{booktabs}``.

    Cells that begin with ``$``, and parts in ``$...$``, are formulas; special characters of others
    are escaped.  Some cells are in bold letters.  A title in all heads but the last one spans the
    empty cells after it.
    """
    cells = [
        [
            rf"\textbf{{\boldmath {_escaped(cell)}}}" if (i, j) in bold else _escaped(cell)
            for j, cell in enumerate(line)
        ]
        for i, line in enumerate(lines)
    ]
    above = [text for line in cells[: heads - 1] for text in _spanning(line)]
    head, *body = [" & ".join(line) + r" \\" for line in cells[heads - 1 :]]
    columns = sides.replace("<", "l").replace(">", "r")
    return "\n".join(
        [
            f"% {comment}; needs \\usepackage{{booktabs}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *above,
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _escaped(cell: str) -> str:
    """Return a cell with its special characters escaped, formulas as they are."""
    if cell.startswith("$") or cell == "--":
        return cell
    parts = re.split(r"(\$[^$]+\$)", cell)
    return "".join(part if i % 2 else part.translate(_LATEX) for i, part in enumerate(parts))


def _spanning(line: Sequence[str]) -> list[str]:
    """Return a head whose titles span the empty cells after them, with a rule below each."""
    starts = [j for j, cell in enumerate(line) if cell]
    ends = [*starts[1:], len(line)]
    titles = [
        rf"\multicolumn{{{end - start}}}{{c}}{{{line[start]}}}" for start, end in zip(starts, ends)
    ]
    rules = [rf"\cmidrule(lr){{{start + 1}-{end}}}" for start, end in zip(starts, ends)]
    return [" & ".join([*[""] * starts[0], *titles]) + r" \\", " ".join(rules)]
