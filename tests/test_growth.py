"""What a rank receives grows at most as the logarithm of the number of ranks, with the same agents on each."""

import json
from math import ceil, log2
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "received.py"
PARTS = ("Network()", "solve", "sum", "close")
NOISE = 1.02  # random numbers have 1 to 9 bytes in a pickle


@pytest.mark.parametrize("few, many", [(4, 7), pytest.param(8, 32, marks=pytest.mark.slow)])
def test_messages_and_bytes_grow_as_the_logarithm(mpirun, few, many, tmp_path):
    given = [PROGRAM, f"{few},{many}", tmp_path / "run.h5"]
    lines = mpirun(many, given, check=True).stdout.splitlines()
    here, there = map(json.loads, lines[-2:])
    depth = ceil(log2(many)) / ceil(log2(few))
    for part in PARTS:
        for which in (0, 1):
            most = NOISE * here[part][which] * depth
            assert there[part][which] <= most, (part, which, here, there)
