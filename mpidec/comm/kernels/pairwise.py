"""Sums along a binary tree of the numbers of agents, whose bits do not depend on who holds which.

A node of level l is a block of :math:`2^l` agents from a multiple of :math:`2^l` on, cut off at n: its
sum is that of its two halves.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from .weighted import _kernel

Node = tuple[int, int]
"""First agent, and level."""


@lru_cache(4096)
def nodes(lo: int, hi: int, n: int) -> tuple[Node, ...]:
    """Return the largest nodes of the tree of n agents within the agents lo:hi, in their order.

    Examples
    --------
    >>> nodes(0, 3, 6), nodes(3, 6, 6), nodes(0, 6, 6)
    (((0, 1), (2, 0)), ((3, 0), (4, 2)), ((0, 3),))
    """
    found = []
    while lo < hi:
        level = (lo & -lo).bit_length() - 1 if lo else (n - 1).bit_length()
        while min(lo + (1 << level), n) > hi:
            level -= 1
        found.append((lo, level))
        lo += 1 << level
    return tuple(found)


def begun(lo: int, hi: int, n: int) -> tuple[Node, ...]:
    """Return the largest nodes whose first agents are among lo:hi, in their order: the root, or
    right halves of nodes that begin before lo.

    Examples
    --------
    >>> begun(0, 3, 6), begun(3, 5, 6)
    (((0, 3),), ((3, 0), (4, 2)))
    """
    found = []
    while lo < hi:
        level = ((lo & -lo) or 1 << (n - 1).bit_length()).bit_length() - 1
        found.append((lo, level))
        lo += 1 << level
    return tuple(found)


def beyond(lo: int, hi: int, n: int) -> tuple[Node, ...]:
    """Return the nodes from hi on that complete the last one of `begun`, in their order: right
    halves of nodes that begin among lo:hi.

    Examples
    --------
    >>> beyond(0, 3, 6), beyond(3, 5, 6)
    (((3, 0), (4, 2)), ((5, 0),))
    """
    found: list[Node] = []
    start, level = begun(lo, hi, n)[-1] if lo < hi else (lo, 0)
    while min(start + (1 << level), n) > hi:
        level -= 1
        middle = start + (1 << level)
        if middle >= hi:
            found.append((middle, level))
        else:
            start = middle
    return tuple(node for node in reversed(found) if node[0] < n)


def pairwise_sum(Z: np.ndarray) -> np.ndarray:
    """Sum of the rows of a node, or of the root.

    Examples
    --------
    >>> pairwise_sum(np.array([[1.], [1e16], [-1e16]])).tolist()  # (1 + 1e16) - 1e16
    [0.0]
    """
    if len(Z) and Z.dtype.kind == "c":
        return pairwise_sum(np.ascontiguousarray(Z).view(Z.real.dtype)).view(Z.dtype)
    if _kernel is not None and len(Z) and Z.dtype.char in "df":
        total = np.empty(Z.shape[1], Z.dtype)
        _kernel.tree_sum(np.ascontiguousarray(Z), total)
        return total
    return _pairwise_sum(Z)


def _pairwise_sum(Z: np.ndarray) -> np.ndarray:
    """NumPy version of `pairwise_sum`: one level of all nodes at a time."""
    while len(Z) > 1:
        pairs = Z[:-1:2] + Z[1::2]
        Z = np.concatenate([pairs, Z[-1:]]) if len(Z) % 2 else pairs
    total: np.ndarray = Z[0].copy() if len(Z) else Z.sum(axis=0)
    return total


def node_sums(Z: np.ndarray, lo: int, n: int) -> np.ndarray:
    """Sums of the largest nodes within the agents from lo on, whose rows are Z."""
    places = nodes(lo, lo + len(Z), n)
    sums = np.empty((len(places), Z.shape[1]), Z.dtype)
    for total, (start, level) in zip(sums, places):
        total[:] = pairwise_sum(Z[start - lo : start - lo + (1 << level)])
    return sums


def joined(places: Iterable[Node], sums: Iterable[np.ndarray], n: int) -> np.ndarray:
    """Sums of the largest nodes within consecutive agents, from those of smaller nodes in their
    order.
    """
    stack: list[tuple[int, int, np.ndarray]] = []
    for (start, level), row in zip(places, sums):
        while True:
            # An only child is its parent.
            while start and start + (1 << level) >= n and not start >> level & 1:
                level += 1
            if not (stack and stack[-1][1] == level and start >> level & 1):
                break
            start, level, left = stack.pop()
            level, row = level + 1, left + row
        stack.append((start, level, row))
    return np.array([row for _, _, row in stack])
