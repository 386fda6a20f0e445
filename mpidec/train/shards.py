"""States of the ranks of a training in several files beside its run file, each of a node, whose
ranks one of them collects.
"""

from __future__ import annotations

import os
import secrets

import numpy as np

from ..comm.mixing import Network
from ..comm.runtime import ranks_of_node
from ..record.internals import open_shard, shard, stored, write_shard
from .states import Arrays

# Array of the checkpoint: the number of this set of files, and for each rank the first rank of its
# node.
SHARDS = "shards"


class RankStates:
    """Shards with the states of the ranks of a node, complete before the run file names their set
    in its checkpoint.  Collective.

    Parameters
    ----------
    net : Network
    path : str
        Of the run file.
    """

    def __init__(self, net: Network, path: str):
        self._net, self._path = net, os.path.realpath(path)
        local = ranks_of_node(net.comm, net.context.ranks_per_node)
        # Whether there are several nodes.
        self.several = local.size < net.size
        local.Free()

    def gather(self, mine: Arrays) -> dict[str, np.ndarray]:
        """Return what the run file stores of the states of all ranks, on rank 0: these on one
        node, else the names of their files, which are written now.  Collective.

        Raises
        ------
        OSError, ValueError
            On every rank, if a file cannot be written.
        """
        net = self._net
        if not self.several:
            return _merged(net.comm.gather(dict(mine)))
        local = ranks_of_node(net.comm, net.context.ranks_per_node)
        first, on_node = local.bcast(net.rank), local.gather(dict(mine))
        local.Free()
        number = net.collectives.broadcast(secrets.randbits(32), 0, "the checkpoint")
        error: Exception | None = None
        try:
            if on_node is not None:
                write_shard(shard(self._path, number, first), _merged(on_node))
        except (OSError, ValueError) as caught:
            error = caught
        except ImportError as caught:  # h5py
            error = OSError(f"cannot write {self._path}: {caught}")
        net.agree(error)
        firsts = net.gather_rows(np.array([first]), np.ones(net.size, np.int64))
        return {} if firsts is None else {SHARDS: np.append(number, firsts)}

    def load(self, number: int, first: int) -> dict[str, np.ndarray]:
        """Return the arrays of this rank, in the file of a set that has those of a node."""
        own = f"rank{self._net.rank}."
        with open_shard(shard(self._path, number, first)) as file:
            return {name: stored(array)[()] for name, array in file.items() if name.startswith(own)}


def _merged(parts: list[Arrays] | None) -> dict[str, np.ndarray]:
    return {name: array for part in parts or [] for name, array in part.items()}
