"""States of the ranks of a training in several files beside its run file, each of a node, whose
ranks one of them collects.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from ..comm.mixing import Network
from ..comm.runtime import ranks_of_node
from ..record.internals import AtomicFile, open_checked, stored
from .states import Arrays

# Array of the checkpoint: the number of this set of files, and for each rank the first rank of its
# node.
SHARDS = "shards"


class Shards:
    """Files ``<path>.<set>.rank<first rank of a node>``, complete before the run file names their
    set in its checkpoint; those of other sets are removed after that.  Collective.

    Parameters
    ----------
    net : Network
    path : str
        Of the run file.
    """

    def __init__(self, net: Network, path: str):
        self._net, self._path = net, os.path.realpath(path)
        local = ranks_of_node(net.comm, net.context.ranks_per_node)
        self._several = local.size < net.size
        local.Free()

    def gather(self, step: int, mine: Arrays) -> dict[str, np.ndarray]:
        """Return what the run file stores of the states of all ranks, on rank 0: these on one
        node, else the names of their files, which are written now.  Collective.

        Raises
        ------
        OSError, ValueError
            On every rank, if a file cannot be written.
        """
        net = self._net
        if not self._several:
            return _merged(net.comm.gather(dict(mine)))
        local = ranks_of_node(net.comm, net.context.ranks_per_node)
        first, on_node = local.bcast(net.rank), local.gather(dict(mine))
        local.Free()
        number = net.collectives.broadcast(secrets.randbits(32), 0, "the checkpoint")
        error: Exception | None = None
        try:
            if on_node is not None:
                self._write(self._name(number, first), step, _merged(on_node))
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
        with open_checked(self._name(number, first)) as file:
            return {name: stored(array)[()] for name, array in file.items() if name.startswith(own)}

    def tidy(self, checkpoint: Mapping[str, np.ndarray]) -> None:
        """Remove the files of all sets but that of the checkpoint which the run file has now; on
        rank 0.
        """
        kept = f"{int(checkpoint[SHARDS][0]):08x}" if SHARDS in checkpoint else ""
        folder, name = os.path.split(self._path)
        pattern = re.compile(rf"\.?{re.escape(name)}\.([0-9a-f]{{8}})\.rank\d+(\.lock)?")
        for other in os.listdir(folder):
            found = pattern.fullmatch(other)
            if found and found[1] != kept:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, other))

    def _name(self, number: int, first: int) -> str:
        return f"{self._path}.{number:08x}.rank{first}"

    @staticmethod
    def _write(name: str, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        part = AtomicFile(name)
        try:
            with part.update(sync=True) as file:
                file.attrs["step"] = step
                for key, array in arrays.items():
                    file[key] = array
        finally:
            part.close()


def _merged(parts: list[Arrays] | None) -> dict[str, np.ndarray]:
    return {name: array for part in parts or [] for name, array in part.items()}
