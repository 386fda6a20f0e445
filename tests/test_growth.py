"""What a rank receives grows at most as the logarithm of the number of ranks, with the same agents on each."""

import json
from math import log2
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "received.py"
# Of the messages of a solve, those of `net.sum` still come from every rank.
BOUNDED = [("Network()", 0), ("Network()", 1), ("solve", 1), ("close", 0), ("close", 1)]
NOISE = 1.02  # random numbers have 1 to 9 bytes in a pickle, and a rank that waits long asks others


@pytest.mark.parametrize("few, many", [(4, 8), pytest.param(8, 32, marks=pytest.mark.slow)])
def test_messages_and_bytes_grow_as_the_logarithm(mpirun, few, many):
    here, there = (
        json.loads(mpirun(size, [PROGRAM], check=True).stdout.splitlines()[-1])
        for size in (few, many)
    )
    for part, which in BOUNDED:
        most = NOISE * here[part][which] * log2(many) / log2(few)
        assert there[part][which] <= most, (part, which, here, there)
