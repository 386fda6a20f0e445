"""A codec of the rows of several runs at once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from ....exceptions import RunsError
from .base import Agents, Codec, decode, encode


@dataclass(frozen=True)
class CodecOfRuns(Codec):
    """The codec of rows that have those of several runs one after the other: each run is encoded
    by itself, with the seed of the codec plus its number.

    Parameters
    ----------
    codec : Codec
        Of the rows of one run.
    runs : int

    Raises
    ------
    RunsError
        If the codec draws random numbers, but not from a parameter `seed`.

    Examples
    --------
    >>> from mpidec.comm.mixing.codecs import TopK
    >>> both = CodecOfRuns(TopK(k=1), 2)
    >>> rows = both.encode(np.array([[3.0, 1.0, 2.0, 8.0]]), 0, [0])
    >>> both.decode(rows, 4, float, 0, [0])
    array([[3., 0., 0., 8.]])
    """

    codec: Codec
    runs: int

    def __post_init__(self) -> None:
        codec = self.codec
        seeded = {field.name for field in fields(codec)} >= {"seed"}  # type: ignore[arg-type]
        if codec.draws and not seeded:
            raise RunsError(
                f"runs is {self.runs}, but {codec!r} draws without a parameter seed, by which runs "
                "would differ: expected runs=1"
            )
        object.__setattr__(self, "unbiased", codec.unbiased)
        object.__setattr__(self, "lossy", codec.lossy)
        object.__setattr__(self, "feedback", codec.feedback)

    @property
    def draws(self) -> bool:
        return self.codec.draws

    @cached_property
    def _each(self) -> list[Codec]:
        codec = self.codec
        if not codec.draws:
            return [codec] * self.runs
        return [replace(codec, seed=codec.seed + run) for run in range(self.runs)]  # type: ignore

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        return self.runs * self.codec.nbytes(d // self.runs, dtype)

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        parts = np.split(X, self.runs, axis=1)
        made = [
            encode(codec, np.ascontiguousarray(part), step, agents)
            for codec, part in zip(self._each, parts)
        ]
        return np.hstack(made)

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        parts = np.split(rows, self.runs, axis=1)
        made = [
            decode(codec, np.ascontiguousarray(part), d // self.runs, dtype, step, agents)
            for codec, part in zip(self._each, parts)
        ]
        return np.hstack(made)

    def delta(self, d: int) -> float:
        return self.codec.delta(d // self.runs)
