"""Shards of a run file: each has rows of the agents of one node, written there by its first rank."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

from ..protocols import Reductions
from .atomic import REMEDY, AtomicFile
from .reader import open_run
from .runfile import CHUNK_BYTES, FEWEST_ROWS, referred
from .sharded import NAME, SET, Box, Sharded

T = TypeVar("T")
_SERIES = "trajectory/x"


class NodeCollectives(Reductions, Protocol):
    """A network that collects rows on each node."""

    def node_firsts(self) -> np.ndarray:
        """Return the first rank of the node of each rank, (ranks,); collective."""

    def gather_on_node(
        self, X: np.ndarray, counts: np.ndarray, firsts: np.ndarray
    ) -> np.ndarray | None:
        """Return the rows of the ranks of this node, one rank after the other, on its first rank;
        collective.
        """


class Shards:
    """The shards of a run, files ``<path>.<set>.rank<first rank of a node>``, each complete before
    the run file refers to it: a set for each checkpoint, for the result, and for the records of
    each part of the run.  Collective, but for `close` and `tidy`.

    Parameters
    ----------
    net : NodeCollectives
    path : str or path
        Of the run file.
    """

    def __init__(self, net: NodeCollectives, path: str | os.PathLike[str]):
        self._net, self._path = net, os.path.realpath(path)
        self._firsts = net.node_firsts()
        self._series: AtomicFile | None = None  # of the trajectory, on first ranks
        self._number, self._records = 0, 0
        # Of a run file that was renamed or copied, where there is none of this name; on rank 0.
        alone = net.rank == 0 and not os.path.exists(self._path)
        self._others = frozenset(_shards_of(self._path) if alone else ())

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(np.unique(self._firsts))

    def in_reach(self) -> bool:
        """Return whether all nodes see the folder of the run file; also if rank 0 cannot write
        there, of which the run file tells.
        """
        probe, made = shard(self._path, self._new_number(), 0), False
        with suppress(OSError):
            if self._net.rank == 0:
                os.close(os.open(probe, os.O_CREAT | os.O_EXCL))
                made = True
        made = self._net.collectives.broadcast(made, 0, "the record")
        seen = np.array([int(not made or os.path.exists(probe))])
        everywhere = bool(self._net.collectives.minimum(seen, "the record")[0])
        if self._net.rank == 0:
            with suppress(OSError):
                os.unlink(probe)
        return everywhere

    def write(
        self, rows: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray]
    ) -> dict[str, Sharded]:
        """Write a set of arrays of rows, by the name of their data set, `counts` on each rank;
        return what the run file refers to, on rank 0.

        Raises
        ------
        OSError, ValueError
            On every rank, if a shard cannot be written.
        """
        number = self._new_number()
        gathered = {
            name: self._net.gather_on_node(values, counts[name], self._firsts)
            for name, values in rows.items()
        }

        def make() -> None:
            arrays = {name: values for name, values in gathered.items() if values is not None}
            write_shard(self._own(number), arrays)

        self._on_first(make, number)
        if self._net.rank:
            return {}
        return {
            name: self._described(name, number, values, counts[name])
            for name, values in rows.items()
        }

    def append(self, X: np.ndarray, counts: np.ndarray) -> Sharded | None:
        """Write the rows X of a record, `counts` on each rank; return what the run file refers to,
        a data set with one record, on rank 0.

        Raises
        ------
        OSError, ValueError
            As `write`.
        """
        if not self._records:
            self._number = self._new_number()
        rows = self._net.gather_on_node(X, counts, self._firsts)

        def add() -> None:
            if self._series is None:
                self._series = AtomicFile(self._own(self._number))
            if rows is not None and rows.size:
                with self._series.update() as file:
                    if not self._records:
                        file.attrs[NAME] = os.path.basename(self._own(self._number))
                    _add_record(file, self._records, rows)

        self._on_first(add, self._number)
        self._records += 1
        if self._net.rank:
            return None
        return self._described(_SERIES, self._number, X, counts).as_record(self._records - 1)

    def close(self) -> None:
        """Close the shards of this rank.  May be called again."""
        if self._series is not None:
            self._series.close()
        self._records = 0

    def tidy(self, kept: Collection[str]) -> None:
        """Remove all shards of the run file but those `kept` by name, those that are being written,
        and those that were there before any run file was; on rank 0.
        """
        ours = f"{self._number:08x}" if self._records else None
        kept = {*kept, *self._others}
        remove_shards(self._path, lambda name, number: name in kept or number == ours)

    def _described(self, name: str, number: int, rows: np.ndarray, counts: np.ndarray) -> Sharded:
        """What the run file refers to, of a data set of rows like these; on rank 0."""
        totals = np.bincount(self._firsts, weights=counts).astype(int).tolist()
        row, zero = rows.shape[1:], (0,) * (rows.ndim - 1)
        blocks: list[Box] = []
        low, on_node = 0, [0] * len(totals)
        for first, count in zip(self._firsts.tolist(), counts.tolist()):
            if not count:
                continue
            file = os.path.basename(shard(self._path, number, first))
            source, whole = (on_node[first], *zero), (totals[first], *row)
            block = Box((low, *zero), (count, *row), file, name, source, whole)
            joined = blocks[-1].joined(block) if blocks else None
            blocks[-1:] = [joined] if joined else [*blocks[-1:], block]
            on_node[first] += count
            low += count
        return Sharded(self._path, (low, *row), rows.dtype, tuple(blocks))

    def _new_number(self) -> int:
        return self._net.collectives.broadcast(secrets.randbits(32), 0, "the record")

    def _own(self, number: int) -> str:
        """Return the name of the shard of this rank in a set."""
        return shard(self._path, number, self._net.rank)

    def _on_first(self, act: Callable[[], None], number: int) -> None:
        """`act`, which writes a shard of a set, on the first rank of each node; an error is raised
        on all ranks.
        """
        error: Exception | None = None
        if self._firsts[self._net.rank] == self._net.rank:
            try:
                act()
            except OSError as caught:
                error = caught
                if caught.errno:
                    remedy = REMEDY.get(caught.errno, "check that the disk is writable")
                    text = f"cannot write {self._own(number)}: {caught.strerror}: {remedy}"
                    error = OSError(caught.errno, text)
            except ValueError as caught:
                error = caught
            except ImportError as caught:  # h5py is loaded here
                error = OSError(f"cannot write {self._path}: {caught}: check h5py")
        self._net.agree(error)


def shard(path: str, number: int, first: int) -> str:
    """Return the name of a shard of the run file `path`."""
    return f"{path}.{number:08x}.rank{first}"


def write_shard(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a shard at once, to the disk.

    Raises
    ------
    OSError
    """
    with AtomicFile(name) as made, made.update(sync=True) as file:
        file.attrs[NAME] = os.path.basename(name)
        for key, array in arrays.items():
            file[key] = array


def remove_shards(path: str | os.PathLike[str], kept: Callable[[str, str], bool]) -> None:
    """Remove all shards of the run file `path`, and what was left of them by a kill, but those of
    which `kept(name, number of the set)` is true, and those of its copies in the folder.
    """
    folder, run = os.path.split(os.path.realpath(path))
    shards = _names(run)
    hidden = re.compile(rf"\.{shards.pattern}\.(lock|{SET}\.spare(\.old)?)")
    there = os.listdir(folder) if os.path.isdir(folder) else []
    parts = [name for name in there if (part := hidden.fullmatch(name)) and not kept("", part[1])]
    unused = {
        name for name in there if (whole := shards.fullmatch(name)) and not kept(name, whole[1])
    }
    if unused:
        for name in there:  # runs may have such names, too
            found = None if name == run else _referred(os.path.join(folder, name))
            unused -= set() if found is None else {name, *found}
    for name in [*unused, *parts]:
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))


def _referred(path: str) -> Set[str] | None:
    """Return the shards that a run file refers to; None if it is no run file."""
    try:
        return _referred_then(path, os.stat(path).st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=10_000)
def _referred_then(path: str, _time: int) -> Set[str] | None:
    """`_referred` of a file that was changed at this time."""
    try:
        with open_run(path) as file:
            rows = [file["trajectory/x"], file["result/x"], *file.get("checkpoint", {}).values()]
            return referred(rows)
    except (OSError, ValueError, KeyError):
        return None


def _shards_of(path: str) -> list[str]:
    """Return the names of the shards of the run file `path`."""
    folder, run = os.path.split(path)
    return list(filter(_names(run).fullmatch, os.listdir(folder))) if os.path.isdir(folder) else []


def _names(run: str) -> re.Pattern[str]:
    """Match the names of the shards of a run file; the group is the number of their set."""
    return re.compile(rf"{re.escape(run)}\.({SET})\.rank\d+")


def _add_record(file: Any, number: int, rows: np.ndarray) -> None:
    """Make these rows record `number` of the trajectory."""
    if _SERIES not in file:
        agents = min(max(CHUNK_BYTES // max(rows[:1].nbytes, 1), 1), len(rows))
        records = min(max(CHUNK_BYTES // rows.nbytes, 1), FEWEST_ROWS)
        file.create_dataset(
            _SERIES,
            (0, *rows.shape),
            rows.dtype,
            maxshape=(None, *rows.shape),
            chunks=(records, agents, *rows.shape[1:]),
        )
    series = file[_SERIES]
    series.resize(number + 1, axis=0)
    series[number] = rows
