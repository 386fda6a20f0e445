"""Who sends to this rank, found out by all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from ..session import current

Inferred = list[int] | tuple[list[int], np.ndarray]


def InferSourceFromDestinationRanks(
    dst_ranks: Sequence[int], construct_adjacency_matrix: bool = False
) -> Inferred:
    """Return the ranks that name this one among their `dst_ranks`.

    Parameters
    ----------
    dst_ranks : list of int
        Other ranks, each once.
    construct_adjacency_matrix : bool
        Whether to return A as well, with A[i, j] > 0 where i sends to j or i = j; each column has
        equal weights that sum to 1.

    Notes
    -----
    Collective: the lists of all ranks are gathered.
    """
    return _inferred(
        "InferSourceFromDestinationRanks", dst_ranks, construct_adjacency_matrix, False
    )


def InferDestinationFromSourceRanks(
    src_ranks: Sequence[int], construct_adjacency_matrix: bool = False
) -> Inferred:
    """Return the ranks that name this one among their `src_ranks`; see
    `InferSourceFromDestinationRanks`.
    """
    return _inferred("InferDestinationFromSourceRanks", src_ranks, construct_adjacency_matrix, True)


def _inferred(call: str, ranks: Sequence[int], matrix: bool, sources: bool) -> Inferred:
    net = current(call).net
    row = np.zeros((1, net.size), np.int8)
    with net.agreeing(f"bf.{call}"):
        for rank in ranks:
            if (
                not isinstance(rank, Integral)
                or not 0 <= rank < net.size
                or rank == net.rank
                or row[0, rank]
            ):
                raise ValueError(
                    f"bf.{call}: the list {list(ranks)} of rank {net.rank}, expected other ranks "
                    f"of 0, ..., {net.size - 1}, "
                    "each once"
                )
            row[0, rank] = 1
    named = net.allgather(row)
    found: list[int] = np.flatnonzero(named[:, net.rank]).tolist()
    if not matrix:
        return found
    A = (named.T if sources else named) + np.eye(net.size)
    return found, A / A.sum(axis=0)
