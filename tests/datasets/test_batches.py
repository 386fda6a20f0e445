"""Batches: every sample once an epoch, by seed and worker."""

from __future__ import annotations

import numpy as np
import pytest

from mpidec.problems import Batches

pytestmark = pytest.mark.serial


def test_batches_take_every_sample_once_an_epoch():
    parts = [np.arange(7), np.arange(10, 16), np.arange(20, 28)]
    batches = Batches(parts, 3, seed=5)
    assert batches.per_epoch == 2 and batches.epoch == 0
    epochs = [np.concatenate([batches.draw() for _ in range(2)], axis=1) for _ in range(3)]
    for rows in epochs:
        for part, row in zip(parts, rows):
            assert len(set(row)) == 6 and set(row) <= set(part)
    assert (
        sorted(epochs[0][1]) == list(range(10, 16))
        and not np.array_equal(epochs[0], epochs[1])
        and batches.epoch == 3
    )


def test_an_epoch_of_all_workers_is_that_of_their_mean_number_of_samples():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes, batch = rng.integers(5, 60, 4), int(rng.integers(1, 6))
        batches = Batches([np.arange(size) for size in sizes], batch)
        assert batches.per_epoch == int(sizes.mean()) // batch
        for _ in range(batches.per_epoch):
            batches.draw()
        assert batches.epoch == 1


def test_batches_belong_to_seed_and_worker():
    """Whichever workers are local, in whatever order they draw, before and after a restart."""
    parts = [np.arange(7), np.arange(10, 16), np.arange(20, 28)]
    every, some, other = (
        Batches(parts, 3, seed=5),
        Batches(parts, 3, seed=5, agents=[1, 2]),
        Batches(parts, 3, seed=6),
    )
    drawn = [every.draw() for _ in range(7)]
    assert not np.array_equal(drawn[0], other.draw())
    assert [some.of(1).tolist() for _ in range(7)] == [rows[2].tolist() for rows in drawn]
    assert [some.of(0).tolist() for _ in range(7)] == [rows[1].tolist() for rows in drawn]
    resumed = Batches(parts, 3, seed=5)
    resumed.load([3, 3, 3])
    assert np.array_equal([resumed.draw() for _ in range(4)], drawn[3:])
    assert resumed.state().tolist() == [7, 7, 7]
    for step in np.random.default_rng(0).integers(7, size=20):  # forwards, and back
        resumed.load([step] * 3)
        assert np.array_equal(resumed.draw(), drawn[step])
    assert every.random(1).random() == some.random(0).random() != every.random(2).random()


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: Batches([np.arange(4), np.arange(2)], 3),
            "batch = 3, but worker 1 has 2 samples, expected at most 2",
        ),
        (
            lambda: Batches([np.arange(4)], 3, agents=[1]),
            r"agents = \[1\], expected numbers 0 \.\. 0",
        ),
        (lambda: Batches([np.arange(4)], 3).load([1, 2]), "expected 1 numbers of batches"),
    ],
)
def test_wrong_batches(call, said):
    with pytest.raises(ValueError, match=said):
        call()
