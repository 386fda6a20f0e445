"""python -m mpidec.bench --rows train: what the contenders make of the first step.  Speeds are not tested."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.benchmark import measured

from mpidec.bench import training

pytestmark = pytest.mark.launch
BROKEN_TRAINING = """
import sys
from mpidec.bench import command
from mpidec import optim
right = optim.Decentralized.step

def step(self, closure=None):
    right(self)
    if self.averager.algorithm.name == "awc" and self.averager.net.rank == 1:
        self.param_groups[0]["params"][0].data[0, 0] += 1e-2

optim.Decentralized.step = step
sys.exit(command.main(["--rows=train", "--sizes=64", "--seconds=0.1"]))
"""


@pytest.mark.slow
def test_training_is_measured_against_no_communication_and_ddp(mpirun, tmp_path):
    pytest.importorskip("torch")
    _, cells, printed = measured(
        mpirun, tmp_path, 2, "--rows=train", "--compute=0,3", f"--plot={tmp_path}/x.png"
    )
    for rows in cells.values():
        for suffix in "", ", 3 ms":
            one, other = (rows[f"DDP, {size} MB{suffix}"] for size in (1, 25))
            faster = min(one, other, key=lambda row: row["median_us"])
            alone = rows[f"no communication{suffix}"]
            for name in training.ALGORITHMS:
                row = rows[name + suffix]
                assert row["times_alone"] == pytest.approx(row["median_us"] / alone["median_us"])
                ratios = np.divide(faster["blocks_us"], row["blocks_us"])
                assert row["faster_than_ddp"] == pytest.approx(np.median(ratios))
                assert row["faster_than_ddp_range"] == pytest.approx([min(ratios), max(ratios)])
                assert row["extra_memory"] is not None
        assert rows["no communication, 3 ms"]["median_us"] > 3000
    assert printed.count("1 KB") == 2  # a table for each case


@pytest.mark.slow
def test_a_wrong_training_step_is_caught_before_it_is_timed(mpirun):
    pytest.importorskip("torch")
    done = mpirun(2, ["-c", BROKEN_TRAINING], timeout=240)
    assert done.returncode != 0
    assert done.stderr.count("awc, one_peer_exponential, 64 B: the first update differs") == 1
