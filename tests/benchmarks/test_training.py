"""python -m benchmarks --rows train: what the contenders make of the first step.  Speeds are not tested."""

from __future__ import annotations

import pytest
from helpers import launch
from helpers.benchmark import measured

pytestmark = pytest.mark.launch
BROKEN_TRAINING = """
import sys
from benchmarks.__main__ import COMMAND
from mpidec import optim
right = optim.Decentralized.step

def step(self, closure=None):
    right(self)
    if self.averager.algorithm.name == "awc" and self.averager.net.rank == 1:
        self.param_groups[0]["params"][0].data[0, 0] += 1e-2

optim.Decentralized.step = step
sys.exit(COMMAND.main(["--rows=train", "--sizes=64", "--seconds=0.1"]))
"""


@pytest.mark.slow
def test_training_is_measured_against_no_communication_and_ddp(mpirun, tmp_path):
    pytest.importorskip("torch")
    _, cells, printed = measured(
        mpirun, tmp_path, 2, "--rows=train", f"--plot={tmp_path}/x.png", module="benchmarks"
    )
    parallel, own = (
        "DistributedDataParallel, gloo",
        {f"Decentralized, {name}" for name in ("atc", "awc", "allreduce")},
    )
    for rows in cells.values():
        assert rows.keys() >= {"no communication", parallel, *own}
        for name, row in rows.items():
            assert row["times_alone"] == pytest.approx(
                row["median_us"] / rows["no communication"]["median_us"]
            )
            assert row["faster_than_ddp"] == pytest.approx(
                rows[parallel]["median_us"] / row["median_us"]
            )
            assert (row["extra_memory"] is not None) == name.startswith("Decentralized")
    assert "/alone" in printed and "/hand" not in printed


@pytest.mark.slow
def test_a_wrong_training_step_is_caught_before_it_is_timed(mpirun):
    pytest.importorskip("torch")
    done = mpirun(2, ["-c", BROKEN_TRAINING], timeout=240, cwd=launch.ROOT)
    assert done.returncode != 0
    assert (
        done.stderr.count(
            "Decentralized, awc, one_peer_exponential, 64 B: the first update differs"
        )
        == 1
    )
