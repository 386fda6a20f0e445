"""The group windows: transfers are right before they are timed."""

from __future__ import annotations

import pytest
from helpers.benchmark import measured

pytestmark = pytest.mark.launch
BROKEN_TRANSFER = """
import sys
from mpidec.bench import command as bench, windows
right = windows.Window.accumulate
windows.Window.accumulate = lambda self, x, *others: right(self, x + 1e-9, *others)
sys.exit(bench.main(["--rows=windows", "--sizes=64", "--seconds=0.1"]))
"""


@pytest.mark.slow
def test_windows_are_measured_against_allocated_ones(mpirun, tmp_path):
    _, cells, printed = measured(mpirun, tmp_path, 3, "--rows=windows", "--graphs=star")
    for rows in cells.values():
        for task, by_hand in (
            *((name, "Win.Allocate") for name in ("put", "accumulate", "get")),
            *((name, "Win.Lock") for name in ("mutex", "mutex, contended")),
        ):
            own, raw = (rows[f"{task}, {name}"] for name in ("Window", by_hand))
            assert own["times_hand"] == pytest.approx(own["median_us"] / raw["median_us"])
        assert rows["push-sum, Window"]["times_hand"] is None and "/hand" in printed


@pytest.mark.slow
def test_a_wrong_transfer_is_caught_before_it_is_timed(mpirun, tmp_path):
    done = mpirun(2, ["-c", BROKEN_TRANSFER], cwd=tmp_path)
    assert (
        done.returncode != 0
        and done.stderr.count("accumulate, Window, exponential, 64 B, phase 0: the result on rank")
        == 1
    )
