"""Counter-based random numbers: the same on every rank, in whatever order they are drawn."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The first purposes keep these numbers, so that runs of earlier versions have the same bits; any
# other name has a number by itself, so that a new purpose is named where it is used alone.
_NUMBERS = {
    "": 0,
    "samples": 1,
    "noise": 2,
    "rounding": 3,
    "coordinates": 4,
    "epochs": 5,
    "augmentation": 6,
    "snapshots": 7,
    "losses": 8,
    "channels": 9,
    "stream": 10,
    "held out": 11,
}


def number_of(purpose: str) -> int:
    """Return the number of a purpose, in 0, ..., 2**64 - 1: the streams of one seed for two
    purposes never overlap.

    Examples
    --------
    >>> number_of("losses"), number_of("a new fault") > 2**63
    (8, True)
    """
    found = _NUMBERS.get(purpose)
    if found is not None:
        return found
    digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") | 1 << 63  # beyond the numbers of the table


class Streams:
    """Random numbers that belong to (seed, agent, step, purpose).

    Agent i at step k draws from Philox with the key (seed, i) and the counter (0, k, purpose, 0):
    2**64 blocks each, so that steps never overlap (with k in the lowest word, step k + 1 would
    repeat step k from its second block on).

    Parameters
    ----------
    seed : int
        In 0, ..., 2**64 - 1.
    purpose : str
        What the numbers are for, in a word or two that no other use has.

    Raises
    ------
    ValueError
        If the seed is not such a number.

    Examples
    --------
    >>> streams = Streams(seed=7, purpose="noise")
    >>> float(streams.at(agent=3, step=0).random()) == float(streams.at(agent=3, step=0).random())
    True
    """

    def __init__(self, seed: int, purpose: str) -> None:
        if not hasattr(seed, "__index__"):
            raise TypeError(f"seed = {seed!r}, expected an integer in 0 .. 2**64 - 1")
        if not 0 <= operator.index(seed) < 2**64:
            raise ValueError(f"seed = {seed}, expected an integer in 0 .. 2**64 - 1")
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        self._state: Any = self._philox.state
        self._state["state"]["counter"][:] = 0, 0, number_of(purpose), 0
        self._state["state"]["key"][0] = seed

    @classmethod
    def of_run(cls, seed: int, run: int, purpose: str) -> Streams:
        """Return the random numbers of a problem for one purpose, from its own seed and that of the
        run.
        """
        both = np.random.SeedSequence([seed, run])
        return cls(int(both.generate_state(1, np.uint64)[0]), purpose)

    def at(self, agent: int, step: int) -> np.random.Generator:
        """Return the generator of an agent at a step; valid until the next call."""
        words = self._state["state"]
        words["key"][1], words["counter"][1] = agent, step
        # 1 microsecond; a new Philox costs 10.
        self._philox.state = self._state
        return self._generator

    def normals(
        self,
        agents: Iterable[int],
        ends: Iterable[tuple[int, int]],
        step: int,
        shape: tuple[int, ...],
    ) -> NDArray[np.float64]:
        """Standard normal numbers of some agents at a step: of each agent, the rows from one of
        its `ends` to the other.
        """
        words, made = self._state["state"], np.empty(shape)
        words["counter"][1] = step
        for agent, (lo, hi) in zip(agents, ends):
            words["key"][1] = agent
            self._philox.state = self._state
            self._generator.standard_normal(out=made[lo:hi])
        return made


def uniform(
    seed: int, k: int, i: NDArray[Any], j: NDArray[Any], purpose: str = ""
) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each pair (i, j) at step k, for a purpose, by a hash, so that
    any rank computes any of them.

    Examples
    --------
    >>> x = uniform(1, 2, np.arange(100_000), np.arange(100_000))
    >>> round(float(x.mean()), 2), round(float(x.var() * 12), 2), round(float(np.corrcoef(x[1:], x[:-1])[0, 1]), 2)
    (0.5, 1.0, 0.0)
    """
    with np.errstate(over="ignore"):
        word = _mixed(np.array([seed % 2**64], np.uint64))
        if purpose:
            word = _mixed(word ^ np.uint64(number_of(purpose)))
        word = _mixed(word ^ np.uint64(k))
        word = _mixed(word ^ np.asarray(i).astype(np.uint64))
        word = _mixed(word ^ np.asarray(j).astype(np.uint64))
    made: NDArray[np.float64] = (word >> np.uint64(11)) * 2.0**-53
    return made


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of splitmix64."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = word ^ (word >> np.uint64(31))
    return mixed
