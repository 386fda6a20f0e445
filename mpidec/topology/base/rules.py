"""Undirected graphs defined by a rule: neighbours are computed on request in O(degree); nothing
is stored.
"""

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
    """Simple undirected graph on the agents 0, ..., n - 1 without self-loops.

    To add a graph, define a subclass here and a function that returns its topology in `graphs.lattices`.
    """

    n: int
    connected: bool = True
    group: tuple[int, ...] | None = (
        None  # see `source.Source`; the graph is then invariant under shifts
    )

    @property
    @abstractmethod
    def degrees(self) -> tuple[int, int]:
        """Smallest and largest degree."""

    @property
    @abstractmethod
    def arcs(self) -> int:
        """Number of arcs, twice the number of edges."""

    @abstractmethod
    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """Return a table of possible neighbours, one row per agent, and the mask of the actual
        ones, ascending in each row.
        """

    def neighbors(self, lo: int, hi: int) -> tuple[Indices, Indices]:
        """Return (indptr, indices): the sorted neighbours of the agents lo, ..., hi - 1, in CSR
        form.
        """
        found, valid = self.candidates(np.arange(lo, hi, dtype=index_type(self.n, 4 * self.n)))
        return np.r_[0, np.cumsum(valid.sum(axis=1))], found[valid]

    def degree(self, agents: Indices) -> Indices:
        """Return the number of neighbours of each given agent."""
        if agents.size > self.n:
            return self.degree(np.arange(self.n))[agents]
        result: np.ndarray = self.candidates(agents)[1].sum(axis=1)
        return result


@dataclass(frozen=True)
class Lattice(Rule):
    """Agents in a row-major array of the given shape, joined along every axis; `wrap` closes
    each axis into a ring.
    """

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
        return sum(
            2 * (self.n if self.wrap and size > 2 else self.n // size * (size - 1))
            for size in self.shape
        )

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        axes = [
            (size, math.prod(self.shape[k + 1 :])) for k, size in enumerate(self.shape) if size > 1
        ]
        below, above = [], []
        # Strides decrease, so lower neighbours ascend.
        for size, stride in axes:
            place = agents // stride % size
            ring = self.wrap and size > 2
            down, up = agents - stride, agents + stride
            if ring:
                down, up = (
                    np.where(place > 0, down, down + size * stride),
                    np.where(place < size - 1, up, up - size * stride),
                )
            below.append((down, ring | (place > 0)))
            above.append((up, ring | (place < size - 1)))
        columns = below + above[::-1]
        if not columns:
            return np.empty((len(agents), 0), agents.dtype), np.empty((len(agents), 0), bool)
        found, valid = (np.stack(part, axis=1) for part in zip(*columns))
        if self.wrap:
            found[~valid] = self.n  # sorted last, then masked out
            found = np.sort(found, axis=1)
            valid = found < self.n
        return found, valid


@dataclass(frozen=True)
class BinaryTree(Rule):
    """Heap with root 1 and agent 0 as the root's parent: w >= 1 has the parent w // 2 and the
    children 2 w and 2 w + 1.
    """

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
class ReversedBinaryTree(BinaryTree):
    """Binary tree in which agent i has the place of agent n - 1 - i."""

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        found, valid = super().candidates(self.n - 1 - agents)
        return self.n - 1 - found[:, ::-1], valid[:, ::-1]


@dataclass(frozen=True)
class Star(Rule):
    """Star: the agent `center` is joined to all others."""

    n: int
    center: int

    @property
    def degrees(self) -> tuple[int, int]:
        return min(1, self.n - 1), self.n - 1

    @property
    def arcs(self) -> int:
        return 2 * (self.n - 1)

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        raise NotImplementedError(
            "Star.candidates: the centre has too many neighbours for a table (use neighbors)"
        )

    def neighbors(self, lo: int, hi: int) -> tuple[Indices, Indices]:
        c = self.center
        indptr = np.r_[0, np.cumsum(self.degree(np.arange(lo, hi)))]
        indices = np.full(int(indptr[-1]), c, index_type(self.n, self.n))
        if lo <= c < hi:
            indices[indptr[c - lo] : indptr[c - lo + 1]] = np.delete(np.arange(self.n), c)
        return indptr, indices

    def degree(self, agents: Indices) -> Indices:
        return np.where(agents == self.center, self.n - 1, min(1, self.n - 1))


@dataclass(frozen=True)
class RegularTree(Rule):
    """Tree filled level by level, in which agent 0 is the root and every inner agent but the
    last has `degree` neighbours.
    """

    n: int
    degree_inside: int

    @property
    def degrees(self) -> tuple[int, int]:
        return min(1, self.n - 1), min(self.degree_inside, self.n - 1)

    @property
    def arcs(self) -> int:
        return 2 * (self.n - 1)

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        children = self.degree_inside - 1
        parent = np.where(agents > 0, np.maximum(agents - 2, 0) // children, 1)  # of 0: agent 1
        first = 2 + children * agents
        found = np.c_[parent, first[:, None] + np.arange(children, dtype=agents.dtype)]
        return found, found < self.n


@dataclass(frozen=True)
class Cliques(Rule):
    """Agents in a row-major array of the given shape; those that differ in the index of one axis
    only are joined.
    """

    shape: tuple[int, ...]
    axis: int

    @property
    def n(self) -> int:  # type: ignore[override]
        return math.prod(self.shape)

    @property
    def group(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.shape

    @property
    def connected(self) -> bool:  # type: ignore[override]
        return self.shape[self.axis] == self.n

    @property
    def degrees(self) -> tuple[int, int]:
        return self.shape[self.axis] - 1, self.shape[self.axis] - 1

    @property
    def arcs(self) -> int:
        return self.n * (self.shape[self.axis] - 1)

    def candidates(self, agents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        found = clique(agents, self.shape[self.axis], math.prod(self.shape[self.axis + 1 :]))
        return found, found != agents[:, None]


def clique(agents: Indices, size: int, stride: int) -> Indices:
    """Return the agents whose numbers differ in one digit: that of weight `stride`, below
    `size`; a row for each given agent.
    """
    first = agents - agents // stride % size * stride
    found: np.ndarray = first[:, None] + np.arange(size, dtype=agents.dtype) * stride
    return found


@dataclass(frozen=True)
class Pairs(Rule):
    """Perfect matching of an even number of agents: agent i of the given parity pairs with i +
    hop (mod n), hop odd.
    """

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
