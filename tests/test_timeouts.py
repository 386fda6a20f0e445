"""MPIDEC_TEST_PATIENCE multiplies every time-out of a test: those that `helpers.launch` does not see are in `launch.patient`."""

from __future__ import annotations

import ast
import os
import time

import pytest
from helpers import launch

pytestmark = pytest.mark.serial
CLOCKS = ("time.monotonic", "time.perf_counter", "time.time")
MULTIPLIED = ("mpirun", "launch.mpirun", "launch.finish", "launch.until", "pytest.mark.timeout")


def reads_a_clock(tree: ast.AST) -> bool:
    return any(called(node) in CLOCKS for node in ast.walk(tree) if isinstance(node, ast.Call))


def called(node: ast.Call) -> str:
    """Return the dotted name of what is called; its end, where it is called of a result."""
    names, at = [], node.func
    while isinstance(at, ast.Attribute):
        names.append(at.attr)
        at = at.value
    return ".".join(reversed([*names, at.id if isinstance(at, ast.Name) else ""]))


def limits(node: ast.AST) -> list[ast.expr]:
    """What may end a wait: what is added to a clock or compared with one, and the time-outs of calls."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and reads_a_clock(node):
        return [node.left, node.right]
    if isinstance(node, ast.Compare) and reads_a_clock(node):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and called(node) not in MULTIPLIED:
        waits = called(node).endswith((".join", ".wait"))
        return [
            *node.args * waits,
            *(each.value for each in node.keywords if each.arg == "timeout"),
        ]
    return []


def unmultiplied(source: str) -> list[int]:
    """The lines whose limits are plain numbers, of a second or more: shorter ones are meant to pass."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        for limit in limits(node)
        if isinstance(limit, ast.Constant)
        and isinstance(limit.value, (int, float))
        and limit.value >= 1
    ]


@pytest.mark.parametrize(
    "line, found",
    [
        ("until = time.monotonic() + 20", True),
        ("assert time.time() - began < 10", True),
        ("thread.join(10)", True),
        ("subprocess.run(command, timeout=60.0)", True),
        ("until = time.monotonic() + launch.patient(20)", False),
        ("launch.mpirun(3, program, timeout=60)", False),
        ("with win.mutex([0], timeout=0.05): pass", False),
    ],
)
def test_time_outs_are_found(line, found):
    assert bool(unmultiplied(line)) == found


def test_every_time_out_is_multiplied():
    found = [
        f"{path.relative_to(launch.ROOT)}:{line}"
        for path in sorted((launch.ROOT / "tests").rglob("*.py"))
        for line in unmultiplied(path.read_text(encoding="utf-8"))
    ]
    assert not found, (
        f"take launch.until or launch.patient, which MPIDEC_TEST_PATIENCE multiplies: {found}"
    )


def test_time_outs_grow_with_the_load(monkeypatch):
    """A program that is late because others run is waited for, also if they began after it."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    loads = iter([0.1, 3.0, *[16.0] * 99])
    monkeypatch.setattr(os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    assert launch.patient(2) == 2 * launch.PATIENCE
    assert launch.patient(2) == 3 * launch.PATIENCE
    monkeypatch.setattr(launch, "PATIENCE", 1)
    loads = iter([0.0, *[100.0] * 99])
    began = time.monotonic()
    done = launch.mpirun(0, ["-c", "import time; time.sleep(0.3)"], timeout=0.1, check=True)
    assert done.returncode == 0 and time.monotonic() - began > 0.3
