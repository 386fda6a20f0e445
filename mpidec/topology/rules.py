"""Undirected graphs given by a rule: the neighbours of any agent in O(degree), nothing stored."""
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .source import index_type

Indices = NDArray[Any]


class Rule(ABC):
    """A simple undirected graph on the agents 0, ..., n - 1 without self-loops.

    A graph is one class with its `candidates`; a further one goes here, and a function that makes a topology of it
    into `static`.
    """

    n: int
    connected: bool = True
    group: tuple[int, ...] | None = None        # see `source.Source`; only for a graph that every shift maps to itself

    @property
    @abstractmethod
    def degrees(self) -> tuple[int, int]:
        """The smallest and the largest degree."""

    @property
    @abstractmethod
    def arcs(self) -> int:
        """Twice the number of edges."""

    @abstractmethod
    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """Return for each agent a row of possible neighbours, and which of them are; those ascend in each row."""

    def neighbors(self, lo: int, hi: int) -> tuple[Indices, Indices]:
        """Return (indptr, indices): the sorted neighbours of the agents lo, ..., hi - 1."""
        found, valid = self.candidates(np.arange(lo, hi, dtype=index_type(self.n, 4 * self.n)))
        return np.r_[0, np.cumsum(valid.sum(axis=1))], found[valid]

    def degree(self, agents: Indices) -> Indices:
        """Return the number of neighbours of each of these agents."""
        if agents.size > self.n:
            return self.degree(np.arange(self.n))[agents]
        return self.candidates(agents)[1].sum(axis=1)


@dataclass(frozen=True)
class Lattice(Rule):
    """Agents in a row-major array of the given shape, joined along every axis; `wrap` closes each axis to a ring."""

    shape: tuple[int, ...]
    wrap: bool = False

    @property
    def n(self) -> int:  # type: ignore[override]
        return math.prod(self.shape)

    @property
    def group(self) -> tuple[int, ...] | None:  # type: ignore[override]
        return self.shape if self.wrap or max(self.shape) <= 2 else None

    @property
    def degrees(self) -> tuple[int, int]:
        most = sum(min(size - 1, 2) for size in self.shape)
        return (most if self.group else sum(size > 1 for size in self.shape)), most

    @property
    def arcs(self) -> int:
        return sum(2 * (self.n if self.wrap and size > 2 else self.n // size * (size - 1)) for size in self.shape)

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        axes = [(size, math.prod(self.shape[k + 1:])) for k, size in enumerate(self.shape) if size > 1]
        below, above = [], []
        for size, stride in axes:                       # strides fall: the lower neighbours come out ascending
            place = agents // stride % size
            ring = self.wrap and size > 2
            down, up = agents - stride, agents + stride
            if ring:
                down, up = np.where(place > 0, down, down + size * stride), np.where(place < size - 1, up,
                                                                                    up - size * stride)
            below.append((down, ring | (place > 0)))
            above.append((up, ring | (place < size - 1)))
        columns = below + above[::-1]
        if not columns:
            return np.empty((len(agents), 0), agents.dtype), np.empty((len(agents), 0), bool)
        found, valid = (np.stack(part, axis=1) for part in zip(*columns))
        if self.wrap:
            found[~valid] = self.n                      # last in the order, and away
            found = np.sort(found, axis=1)
            valid = found < self.n
        return found, valid


@dataclass(frozen=True)
class BinaryTree(Rule):
    """Agent 0 hangs on agent 1, the root of a heap: w has the parent w // 2 and the children 2 w and 2 w + 1."""

    n: int

    @property
    def degrees(self) -> tuple[int, int]:
        return min(1, self.n - 1), min(3, self.n - 1)

    @property
    def arcs(self) -> int:
        return 2 * (self.n - 1)

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        found = np.stack([agents // 2, 2 * agents, 2 * agents + 1], axis=1)
        valid = found < self.n
        valid[:, :2] &= (agents > 0)[:, None]
        return found, valid


@dataclass(frozen=True)
class Star(Rule):
    """One agent in the centre, joined to all others."""

    n: int
    center: int

    @property
    def degrees(self) -> tuple[int, int]:
        return min(1, self.n - 1), self.n - 1

    @property
    def arcs(self) -> int:
        return 2 * (self.n - 1)

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        raise NotImplementedError("a star's centre has too many neighbours for a table of candidates")

    def neighbors(self, lo: int, hi: int) -> tuple[Indices, Indices]:
        c = self.center
        indptr = np.r_[0, np.cumsum(self.degree(np.arange(lo, hi)))]
        indices = np.full(int(indptr[-1]), c, index_type(self.n, self.n))
        if lo <= c < hi:
            indices[indptr[c - lo]:indptr[c - lo + 1]] = np.delete(np.arange(self.n), c)
        return indptr, indices

    def degree(self, agents: Indices) -> Indices:
        return np.where(agents == self.center, self.n - 1, min(1, self.n - 1))


@dataclass(frozen=True)
class Pairs(Rule):
    """A perfect matching of an even number of agents: those of one parity pair with the agent an odd `hop` further."""

    n: int
    hop: int
    parity: int

    degrees = (1, 1)

    @property
    def arcs(self) -> int:
        return self.n

    @property
    def connected(self) -> bool:  # type: ignore[override]
        return self.n == 2

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        partner = np.where(agents % 2 == self.parity, agents + self.hop, agents - self.hop) % self.n
        return partner[:, None], np.ones((len(agents), 1), bool)
