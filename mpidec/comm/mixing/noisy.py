"""Mixers with noise on what arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ... import _validation as check
from ..._random import CHANNELS, Streams
from .disturbed import Disturbed
from .edgewise import MAX_CALLS, EdgewisePhase
from .exchange import mapped
from .operator import Operator, StepOperator
from .packing import Empty


class NoisyPhase(EdgewisePhase):
    """The operator of one step of a `Noisy` mixer, on one graph.

    Parameters
    ----------
    phase, k, at, empty, agents, stripe, calls
        See `EdgewisePhase`.
    sigma : float
    seed : int
    stripes : int
        Number of graphs that a row is divided among.
    """

    def __init__(
        self,
        phase: StepOperator,
        k: int,
        at: Callable[[int], StepOperator],
        empty: Empty,
        agents: range,
        stripe: int,
        calls: Iterator[int],
        sigma: float,
        seed: int,
        stripes: int,
    ):
        super().__init__(phase, k, at, empty, agents, stripe, calls)
        self._noise = sigma, seed, stripes

    def _like(self, phase: StepOperator, at: Callable[[int], StepOperator]) -> StepOperator:
        return NoisyPhase(
            phase, self._k, at, self._empty, self._agents, self._stripe, self._calls, *self._noise
        )

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge; see `Phase.exchange`."""
        call = next(self._calls)
        if call >= MAX_CALLS:
            raise RuntimeError(
                f"more than {MAX_CALLS} calls in one step of a noisy mixer: use the operator of each step, W.at(k)"
            )
        return mapped(self._phase.exchange(M), lambda rows: self._with_noise(rows, call))

    def _with_noise(self, rows: np.ndarray, call: int) -> np.ndarray:
        sigma, seed, stripes = self._noise
        streams = Streams(seed, CHANNELS)
        noisy: np.ndarray = rows.copy()
        step = (self._k * MAX_CALLS + call) * stripes + self._stripe
        ends = np.searchsorted(self._into.receivers, [*self._agents, self._agents.stop])
        for agent, lo, hi in zip(self._agents, ends, ends[1:]):
            draws = streams.at(agent, step).standard_normal(rows[lo:hi].shape)
            noisy[lo:hi] += (sigma * draws).astype(rows.dtype)
        return noisy


class Noisy(Disturbed):
    r"""A mixer with noise on what arrives; made by `Mixer.noisy`.

    .. math:: Y_i = w_{ii} X_i + \sum_{j \ne i} w_{ij} (X_j + \sigma \xi_{ij})

    with independent standard normal :math:`\xi_{ij}` for each step, each call within it, each edge and each entry.

    Parameters
    ----------
    W : Operator
        A mixer, compressed (without error feedback) or not.
    sigma, seed
        See `Mixer.noisy`.

    Notes
    -----
    Sent per call: as without noise.  The average of all agents is preserved in the mean only.
    """

    def __init__(self, W: Operator[StepOperator], sigma: float, seed: int = 0):
        super().__init__(W)
        self.sigma, self.seed = check.number(sigma, "noisy: sigma", least=0), seed
        Streams(seed, CHANNELS)  # refuses a wrong seed

    @property
    def call(self) -> str:
        """The call that makes it of the mixer below."""
        return f"noisy({self.sigma}, seed={self.seed})"

    def over(self, W: Operator[StepOperator]) -> Noisy:
        return Noisy(W, self.sigma, self.seed)

    def own_disturbance(self) -> str:
        """The noise."""
        return f"channel noise of {self.sigma:.3g} is added to each row" if self.sigma else ""

    def _part(self, phase: StepOperator, k: int, stripe: int, calls: Iterator[int]) -> StepOperator:
        return NoisyPhase(
            phase,
            k,
            self.at,
            self.empty,
            self.agents,
            stripe,
            calls,
            self.sigma,
            self.seed,
            self._stripes,
        )
