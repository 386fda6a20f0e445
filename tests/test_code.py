"""Hashes of functions: equal for the same source in any process, another for what does something else."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest
from helpers import launch

from mpidec._code import code

pytestmark = pytest.mark.serial
SOURCE = """
import functools
import numpy as np
from dataclasses import dataclass
LEVEL, NAMES, calls, log = 3, {"b", "a", "c"}, 0, []

def helper(x):
    return 2 * x

class Rule:
    share = 0.5
    def __init__(self, tau, data=None):
        self.tau, self._data, self.calls = tau, data, 0
    def __call__(self, row):
        self.calls += 1
        return self.clipped(row)
    def clipped(self, row):
        return np.minimum(row, self.tau)

@dataclass(frozen=True)
class Size:
    start: float
    def __call__(self, k):
        return self.start / (1 + k)

def outer(factor, weights):
    def f(x, power=1, *, shift=0.0):
        "What it does."
        global calls
        calls += 1
        log.append(x)
        if x in {"e", "d", "f"} | NAMES:
            return [y + LEVEL for y in weights]
        return factor * helper(x) ** power + np.sin(shift)
    return f

def loop(k):
    return loop(k - 1) + 1 if k else other(k)

def other(k):
    return loop(k)

THINGS = {
    "closure": outer(2, [1.0, 2.0]), "rule": Rule(1.0), "size": Size(0.1), "loop": loop,
    "partial": functools.partial(helper, 3), "method": Rule(1.0).clipped, "cached": functools.cache(helper),
    "held": {"a": [helper, 1.0]}, "lambda": lambda x: x[::2] if x else (1, -0.0), "class": Rule,
}
"""
CHANGES = [  # (from, to, which things it changes)
    ("LEVEL, NAMES, calls, log = 3", "LEVEL, NAMES, calls, log = 4", {"closure"}),
    ('"b", "a", "c"', '"b", "a", "x"', {"closure"}),
    ("return 2 * x", "return 3 * x", {"closure", "partial", "cached", "held"}),
    ("outer(2, ", "outer(3, ", {"closure"}),
    ("power=1", "power=2", {"closure"}),
    ("shift=0.0", "shift=0.1", {"closure"}),
    ("y + LEVEL", "y - LEVEL", {"closure"}),
    ('"e", "d"', '"e", "q"', {"closure"}),
    ('"rule": Rule(1.0)', '"rule": Rule(2.0)', {"rule"}),
    ('Rule(1.0), "size"', 'Rule(1.0, np.ones(3)), "size"', {"rule"}),
    ("Rule(1.0).clipped", "Rule(1.5).clipped", {"method"}),
    ("np.minimum", "np.maximum", {"rule", "method", "class"}),
    ("share = 0.5", "share = 0.6", {"rule", "method", "class"}),
    ("Size(0.1)", "Size(0.2)", {"size"}),
    ("(1 + k)", "(2 + k)", {"size"}),
    ("return loop(k)", "return loop(k) + 1", {"loop"}),
    ("(helper, 3)", "(helper, 4)", {"partial"}),
    ("[helper, 1.0]", "[helper, 2.0]", {"held"}),
    ("x[::2]", "x[::3]", {"lambda"}),
    ("-0.0)", "0.0)", {"lambda"}),
    ("What it does.", "What it does, in other words.", set()),
    ("\ndef loop", "\n\n\n# further down\ndef loop", set()),
]


def things(source: str = SOURCE, name: str = "own") -> dict[str, object]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(source, module.__dict__)
        return module.THINGS
    finally:
        del sys.modules[name]


def hashes(source: str = SOURCE) -> dict[str, str]:
    return {name: code(thing) for name, thing in things(source).items()}


@pytest.mark.parametrize("old, new, changed", CHANGES)
def test_a_change_changes_the_hash_of_what_it_concerns(old, new, changed):
    assert old in SOURCE
    first, second = hashes(), hashes(SOURCE.replace(old, new))
    assert all(first.values())
    assert {name for name in first if first[name] != second[name]} == changed


def test_it_is_the_same_in_every_process():
    program = "import test_code, json; print(json.dumps(test_code.hashes()))"
    folder = os.path.dirname(__file__)
    path = os.pathsep.join([str(launch.ROOT), folder, os.environ.get("PYTHONPATH", "")])
    for seed in ("77",):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=launch.patient(60),
        )
        assert eval(done.stdout) == hashes()


def test_calls_change_nothing():
    """Neither what a function keeps count in, nor the bytecode that Python adapts to its arguments."""
    made = things()
    before = {name: code(thing) for name, thing in made.items()}
    for k in range(200):
        made["closure"](float(k)), made["rule"](np.ones(2)), made["size"](k), made["lambda"]("")
    assert {name: code(thing) for name, thing in made.items()} == before


@pytest.mark.parametrize(
    "thing",
    [
        None,
        3,
        "text",
        np.sin,
        len,
        np.ones(3),
        [1, {"a": np.linalg.norm}],
        functools.partial(len, 3),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_is_not_of_the_user_has_none(thing):
    assert code(thing) == ""


def test_numbers_in_arrays_may_be_data():
    def holding(values):
        return lambda x: x @ values

    one, other = holding(np.ones(3)), holding(np.zeros(3))
    assert code(one) != code(other) and code(one, arrays=False) == code(other, arrays=False)


def test_fields_of_dataclasses_are_followed():
    @dataclass
    class Held:
        function: object
        number: int = 1

    def first():
        return 1

    def second():
        return 2

    assert len({code(Held(first)), code(Held(second)), code(Held(first, 2))}) == 3
