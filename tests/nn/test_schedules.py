"""Learning rates: the schedules of papers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


from mpidec.nn import schedules  # noqa: E402

pytestmark = pytest.mark.serial


def test_schedule_of_relaysgd():
    epochs = [0.0, 0.5, 4.5, 5.0, 149.5, 150.0, 179.5, 180.0, 199.5]
    assert [schedules.relaysgd(e) for e in epochs] == pytest.approx(
        [0, 0.1, 0.9, 1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    assert schedules.relaysgd(0.0, warmup=0, milestones=()) == 1


def test_schedule_of_goyal():
    """Factors of A2CiD2's code for n workers, batches of 128 and 390 batches an epoch, from the number of a worker's own steps."""

    def factor(n, step, epochs, milestones, total):
        per_epoch = total // epochs
        return schedules.goyal(step * n / per_epoch, total / per_epoch, 128 * n / 256, milestones)

    cifar10, imagenet = (300, (0.5, 0.75)), (90, (0.3, 0.6, 0.8))
    found = [
        factor(4, 73, *cifar10, 117000),
        factor(4, 292, *cifar10, 117000),
        factor(4, 29200, *cifar10, 117000),
        factor(16, 18, *cifar10, 116992),
        factor(16, 7308, *cifar10, 116992),
        factor(64, 4, *imagenet, 35072),
        factor(64, 552, *imagenet, 35072),
    ]
    assert found == pytest.approx(
        [1.14974359, 1.59897436, 0.02, 2.03650386, 0.08, 5.08020566, 0.032], rel=1e-8
    )
