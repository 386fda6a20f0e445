"""Epochs and steps of a training, and what is summed between two evaluations."""

from __future__ import annotations

import math

import torch


class EpochSchedule:
    """The steps of the epochs, which get another length when workers die.

    Parameters
    ----------
    epochs : int
        Of the training.
    length : int
        Steps of an epoch.

    Attributes
    ----------
    since : (int, float)
        The step from which on epochs have their length, and the epochs until then.
    steps : int
        All of the training.

    Examples
    --------
    >>> epochs = EpochSchedule(3, 10)
    >>> epochs.change(15, 20)
    >>> epochs.at(15), epochs.steps, epochs.at(epochs.steps)
    (1.5, 45, 3.0)
    """

    def __init__(self, epochs: int, length: int):
        self._epochs = epochs
        self.begin((0, 0.0), length)

    def begin(self, since: tuple[int, float], length: int) -> None:
        """Let epochs have this length from the step of `since` on."""
        self.since, self.length = since, length
        left = (self._epochs - since[1]) * length
        self.steps = since[0] + math.ceil(left - 1e-9)

    def change(self, step: int, length: int) -> None:
        """Let epochs have another length after a step."""
        self.begin((step, self.at(step)), length)

    def at(self, step: float) -> float:
        """Return how many have passed at a step."""
        since, before = self.since
        return before + (step - since) / self.length


class Tally:
    """What has been summed since the last evaluation.

    Attributes
    ----------
    losses : torch.Tensor
        Of each worker of this rank.
    steps : int
    seconds : float
    """

    def __init__(self, losses: torch.Tensor, steps: int = 0, seconds: float = 0.0):
        self.losses, self.steps, self.seconds = losses, steps, seconds

    @classmethod
    def empty(cls, workers: int, device: str) -> Tally:
        """Return that of no steps."""
        return cls(torch.zeros(workers, dtype=torch.float64, device=device))

    def add(self, losses: torch.Tensor) -> None:
        """Count a step, with the losses of the workers."""
        self.losses += losses
        self.steps += 1
