"""The sentences that the package can say, and those that no test makes it say.

    coverage run -m pytest --cover && coverage combine && python tests/helpers/sentences.py .coverage

compares what ran with never_said.txt, which may only shrink: a sentence that no test produces and that is not in the file is an
error; those of the file that are produced, or gone, are named, to be removed.  With --write the file is made anew.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "never_said.txt"
WORDS = 4
"""A text of fewer words is a name or a label."""


def text_of(node: ast.AST) -> str:
    """A text as a template: what is filled in is `{}`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return ""


def sentences(tree: ast.AST) -> Iterator[tuple[str, range]]:
    """Each text of several words outside docstrings and annotations, and its lines."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        template = " ".join(text_of(node).split())
        if len(template.split()) >= WORDS:
            yield template, range(node.lineno, node.end_lineno + 1)
        elif not isinstance(node, ast.JoinedStr):
            yield from sentences(node)


def inside_functions(tree: ast.Module) -> Iterator[tuple[str, range]]:
    """Those that are said when something runs, not when the module is imported."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            body = node.body if isinstance(node.body, list) else [node.body]
            for statement in body:
                yield from sentences(ast.Module([statement], []))


def never_said(executed: dict[str, set[int]]) -> list[str]:
    """`path: template` of what no executed line produced."""
    missing = set()
    for path in sorted((ROOT / "mpidec").rglob("*.py")):
        lines = executed.get(str(path), set())
        said, unsaid = set(), set()
        for template, span in inside_functions(ast.parse(path.read_text(encoding="utf-8"))):
            (said if lines.intersection(span) else unsaid).add(template)
        name = path.relative_to(ROOT).as_posix()
        missing |= {f"{name}: {template}" for template in unsaid - said}
    return sorted(missing)


def main(data: str, *words: str) -> int:
    from coverage import CoverageData

    measured = CoverageData(data)
    measured.read()
    now = never_said({file: set(measured.lines(file) or ()) for file in measured.measured_files()})
    if "--write" in words:
        TABLE.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
        return 0
    before = TABLE.read_text(encoding="utf-8").splitlines()
    new = sorted({*now} - {*before})
    for line in new:
        print(f"no test produces it, write one: {line}")
    for line in sorted({*before} - {*now}):
        print(f"a test produces it, or it is gone: remove it from {TABLE.name}: {line}")
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
