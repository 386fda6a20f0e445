"""The constants of the search stand once, each with its reason, and nothing else has them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from mpidec.driver.stepsize import TUNING, tuning

pytestmark = pytest.mark.serial
FILE = Path(tuning.__file__)
DRIVER = FILE.parents[1]


def test_each_constant_has_a_reason_and_is_used():
    sources = "".join(path.read_text() for path in DRIVER.rglob("*.py"))
    text = FILE.read_text()
    for each in dataclasses.fields(TUNING):
        group = re.search(rf"(    #[^\n]*\n(?:    \w+: [^\n]*\n)*)    {each.name}: ", text)
        assert group and " -- " not in group[1], f"{each.name} has no reason"
        assert f"TUNING.{each.name}" in sources, f"{each.name} is not used"


def test_other_modules_of_the_search_have_no_constants_of_their_own():
    own = [
        f"{path.name}: {name}"
        for path in FILE.parent.glob("*.py")
        for name in re.findall(r"^([A-Z][A-Z_, ]*) = [\d.(]", path.read_text(), re.MULTILINE)
    ]
    assert own == []
