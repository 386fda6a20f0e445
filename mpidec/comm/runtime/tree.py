"""The binomial tree of all ranks."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(4096)
def tree(rank: int, size: int, root: int = 0) -> tuple[int | None, list[int]]:
    """Return the parent and the children of a rank in the binomial tree, whose subtrees hold
    consecutive ranks (from the root on).

    Examples
    --------
    >>> [tree(rank, 4) for rank in range(4)]
    [(None, [1, 2]), (0, []), (0, [3]), (2, [])]
    """
    place = (rank - root) % size
    low = place & -place or size
    children = []
    step = 1
    while step < low and place + step < size:
        children.append((place + step + root) % size)
        step *= 2
    return (None if place == 0 else ((place & (place - 1)) + root) % size), children
