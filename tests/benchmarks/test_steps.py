"""python -m benchmarks --rows steps: both do the same.  Speeds are not tested."""

from __future__ import annotations

import pytest
from helpers import launch
from helpers.benchmark import measured

pytestmark = pytest.mark.launch
SOLVERS = ["DGD", "ExactDiffusion", "EXTRA", "GradientTracking"]
BROKEN_STEP = """
import sys
from benchmarks import steps
from benchmarks.__main__ import COMMAND
right = steps.extra

def extra(bind, X, G, a):
    for k, X in enumerate(right(bind, X, G, a)):
        X[0, 0] += 1e-9 * (k == 2)
        yield X

steps.extra = extra
sys.exit(COMMAND.main(["--rows=steps", "--sizes=64", "--seconds=0.1"]))
"""


@pytest.mark.slow
def test_solver_steps_are_measured_against_the_same_by_hand(mpirun, tmp_path):
    _, cells, printed = measured(
        mpirun,
        tmp_path,
        2,
        "--rows=steps",
        "--graphs=exponential,one_peer_exponential",
        module="benchmarks",
    )
    assert len(cells) == 4 and "/hand" in printed and "/local" not in printed
    for rows in cells.values():
        both = {f"{name}, {how}" for name in SOLVERS for how in ("solver.step", "by hand")}
        assert set(rows) == both | {"DGD, Allreduce by hand"}
        for name, row in rows.items():
            solver = name.partition(", ")[0]
            assert row["group"] == "steps" and row["times_local_limit"] is None
            assert row["times_hand"] == pytest.approx(
                row["median_us"] / rows[f"{solver}, by hand"]["median_us"]
            )
            assert row["faster_than_allreduce"] == (
                None
                if solver != "DGD"
                else pytest.approx(rows["DGD, Allreduce by hand"]["median_us"] / row["median_us"])
            )


@pytest.mark.slow
def test_a_wrong_step_by_hand_is_caught_before_it_is_timed(mpirun):
    done = mpirun(2, ["-c", BROKEN_STEP], cwd=launch.ROOT)
    assert done.returncode != 0 and "solver.step  " not in done.stdout
    assert (
        "EXTRA, by hand, exponential, 64 B, phase 0: the result on rank" in done.stderr
        and "by 1e-09" in done.stderr
    )
