"""Data sets whose rows lie in several files, shards: virtual data sets of HDF5, which every program
reads as one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from .checked import open_checked

if TYPE_CHECKING:
    import h5py

# Largest ratio of uncompressed to compressed bytes: deflate reaches 1032, and there are headers.  A
# file that claims more would exhaust the memory.
EXPANSION = 1100
SET = "[0-9a-f]{8}"  # the number of a set of shards
NAME = "name"  # attribute of a shard: the name that it was written under
# The name of a shard: that of the run file, its set, and the first rank of its node.
SHARD = re.compile(rf".+\.{SET}\.rank\d+", re.DOTALL)
# The data sets that may be virtual.
VIRTUAL = re.compile(r"result/x|trajectory/x|checkpoint/[^/]+")
Selection = Union[slice, int, Sequence[int], "NDArray[Any]", tuple[()]]


@dataclass(frozen=True)
class Box:
    """A box of a data set: from `start` on, of this `shape`; its entries are those from `source`
    on of the data set `name`, of shape `whole`, in `file`.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    name: str
    source: tuple[int, ...]
    whole: tuple[int, ...]

    def within(self, rows: int) -> Box | None:
        """Return the part of it in the first `rows` along the first axis; None if there is none."""
        left = min(rows - self.start[0], self.shape[0])
        return replace(self, shape=(left, *self.shape[1:])) if left > 0 else None

    def beyond(self, row: int) -> Box | None:
        """Return the part of it from `row` on along the first axis; None if there is none."""
        skipped = max(row - self.start[0], 0)
        left = self.shape[0] - skipped
        start, source = ((at[0] + skipped, *at[1:]) for at in (self.start, self.source))
        shape = (left, *self.shape[1:])
        return replace(self, start=start, source=source, shape=shape) if left > 0 else None

    def joined(self, other: Box) -> Box | None:
        """Return both as one, if the other one follows along the first axis."""
        length = self.shape[0]
        ends = [(at[0] + length, *at[1:]) for at in (self.start, self.source)]
        follows = (
            (self.file, self.name) == (other.file, other.name)
            and [other.start, other.source] == ends
            and self.shape[1:] == other.shape[1:]
        )
        shape = (length + other.shape[0], *self.shape[1:])
        return replace(self, shape=shape, whole=other.whole) if follows else None


@dataclass(frozen=True)
class Sharded:
    """What a virtual data set consists of; indexed like an array along its first axis.

    Parameters
    ----------
    path : name of the run file, beside which the shards are
    shape, dtype : of the data set
    blocks : boxes that cover it, each in one shard
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: tuple[Box, ...] = ()

    @classmethod
    def of(cls, dataset: h5py.Dataset, path: str) -> Sharded:
        """Return the description of a data set in the run file `path`.

        Raises
        ------
        ValueError
            If it is not made of boxes of shards beside the run file.
        """
        blocks = []
        for source in dataset.virtual_sources():
            (start, end), (low, high) = (
                space.get_select_bounds() for space in (source.vspace, source.src_space)
            )
            shape = tuple(b - a + 1 for a, b in zip(start, end))
            box = source.vspace.get_select_npoints() == math.prod(shape)
            if not box or shape != tuple(b - a + 1 for a, b in zip(low, high)):
                raise ValueError(f"{dataset.name} is not made of boxes of other data sets")
            file, name = (name.replace("%%", "%") for name in (source.file_name, source.dset_name))
            whole = source.src_space.shape
            blocks.append(Box(tuple(start), shape, file, name, tuple(low), tuple(whole)))
        return cls(path, dataset.shape, dataset.dtype, tuple(blocks))

    @property
    def nbytes(self) -> int:
        """Size of all entries."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def files(self) -> set[str]:
        """The names of the shards."""
        return {block.file for block in self.blocks}

    def create(self, group: h5py.Group, name: str) -> h5py.Dataset:
        """Create the data set; entries of no block, and those of a shard that is missing, are NaN
        where there is one.
        """
        import h5py

        layout = h5py.VirtualLayout(self.shape, self.dtype)
        for block in self.blocks:
            names = [name.replace("%", "%%") for name in (block.file, block.name)]  # for HDF5
            source = h5py.VirtualSource(*names, block.whole, self.dtype)
            layout[_box(block.start, block.shape)] = source[_box(block.source, block.shape)]
        fill = self.dtype.type(np.nan) if self.dtype.kind in "fc" else None
        return group.create_virtual_dataset(name, layout, fillvalue=fill)

    def first(self, rows: int) -> Sharded:
        """Return the first `rows` of it."""
        kept = tuple(part for block in self.blocks if (part := block.within(rows)))
        return replace(self, shape=(rows, *self.shape[1:]), blocks=kept)

    def followed_by(self, other: Sharded) -> Sharded:
        """Return this data set with the rows of another one behind its own."""
        blocks = list(self.blocks)
        last = {block.file: i for i, block in enumerate(blocks)}
        for block in other.blocks:
            block = replace(block, start=(self.shape[0] + block.start[0], *block.start[1:]))
            i = last.get(block.file)
            if i is not None and (joined := blocks[i].joined(block)):
                blocks[i] = joined
            else:
                blocks.append(block)
        return replace(self, shape=(len(self) + len(other), *self.shape[1:]), blocks=tuple(blocks))

    def spread(self, places: Sequence[int], rows: int) -> Sharded:
        """Return a data set of so many rows, of which row `places[i]` is row i of this one, and the
        others are unknown.
        """
        at = np.asarray(places)
        ends = np.flatnonzero(np.diff(at) != 1) + 1
        blocks = []
        for low, high in zip([0, *ends], [*ends, len(at)]):
            for block in self.blocks:
                first = max(low, block.start[0])
                if (part := block.within(high)) and (part := part.beyond(first)):
                    blocks.append(replace(part, start=(int(at[first]), *part.start[1:])))
        return replace(self, shape=(rows, *self.shape[1:]), blocks=tuple(blocks))

    def as_record(self, number: int) -> Sharded:
        """Return it as one record, which is record `number` and the last one in the shards."""
        blocks = [
            Box(
                (0, *block.start),
                (1, *block.shape),
                block.file,
                block.name,
                (number, *block.source),
                (number + 1, *block.whole),
            )
            for block in self.blocks
        ]
        return replace(self, shape=(1, *self.shape), blocks=tuple(blocks))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, selection: Selection) -> NDArray[Any]:
        """Read the selected entries along the first axis.

        Raises
        ------
        IndexError, TypeError
            If there is no such selection.
        ValueError
            If a shard is missing, damaged, or has other rows; the message begins with the name of
            the run file.
        """
        self._check_complete()
        chosen = np.arange(self.shape[0])[
            slice(None) if isinstance(selection, tuple) else selection
        ]
        found = self._found(np.atleast_1d(chosen), self.files)
        return found if chosen.ndim else found[0]

    def there(self) -> tuple[NDArray[Any], list[str]]:
        """Return all entries, NaN for those in files that are missing, and the names of these."""
        self._check_complete()
        folder = os.path.dirname(os.path.realpath(self.path))
        missing = [
            file for file in sorted(self.files) if not os.path.exists(os.path.join(folder, file))
        ]
        if self.dtype.kind not in "fc":
            missing = []
        return self._found(np.arange(len(self)), self.files.difference(missing)), missing

    def _found(self, index: NDArray[np.int64], files: Set[str]) -> NDArray[Any]:
        """Return the entries `index` along the first axis, as far as they are in `files`."""
        found = np.zeros((len(index), *self.shape[1:]), self.dtype)
        if self.dtype.kind in "fc":
            found.fill(np.nan)  # rows of workers that have died
        for file in sorted(files):
            try:
                self._read(file, index, found)
            except (OSError, ValueError, KeyError) as error:
                raise ValueError(
                    f"{self.path}: some of its rows are in {file}, which cannot be read ({error}): "
                    f"keep {', '.join(sorted(self.files)[:3])}{', ...' * (len(self.files) > 3)} "
                    "beside it, under the names that they were written with"
                ) from error
        return found

    def _read(self, file: str, index: NDArray[np.int64], found: NDArray[Any]) -> None:
        """Read what one shard has of the entries `index` along the first axis."""
        folder = os.path.dirname(os.path.realpath(self.path))
        with open_shard(os.path.join(folder, file)) as shard:
            for block in self.blocks:
                first, count = block.start[0], block.shape[0]
                inside = np.flatnonzero((first <= index) & (index < first + count))
                if block.file != file or not len(inside):
                    continue
                rows = stored(shard[block.name])
                ends = [a + b for a, b in zip(block.source, block.shape)]
                if rows.ndim != len(ends) or any(a > b for a, b in zip(ends, rows.shape)):
                    raise ValueError(f"/{block.name} has the shape {rows.shape}")
                others = _box(block.start, block.shape)[1:]
                theirs = _box(block.source, block.shape)[1:]
                for places in np.split(inside, np.flatnonzero(np.diff(index[inside]) != 1) + 1):
                    at = int(index[places[0]]) - first + block.source[0]
                    here: tuple[Any, ...] = (places, *others)
                    there = (slice(at, at + len(places)), *theirs)
                    found[here] = rows[there]

    def _check_complete(self) -> None:
        """Refuse a claim of many more entries than the blocks have."""
        for block in self.blocks:
            ends = [a + b for a, b in zip(block.start, block.shape)]
            if len(ends) != len(self.shape) or any(a > b for a, b in zip(ends, self.shape)):
                raise ValueError(f"{self.path}: damaged: a block of its rows is outside of them")
        there = sum(math.prod(block.shape) for block in self.blocks)
        unknown = math.prod(self.shape) - there
        if unknown and (self.dtype.kind not in "fc" or not 0 < unknown <= EXPANSION * there):
            raise ValueError(
                f"{self.path}: damaged: rows of the shape {self.shape} lie in other files, which "
                f"have {there:,} numbers of them"
            )


@contextmanager
def open_shard(path: str) -> Iterator[h5py.File]:
    """Open a shard for reading, as `open_checked`.

    Raises
    ------
    OSError, ValueError
        Also if it was written under another name: its rows are those of other agents or another
        step.
    """
    with open_checked(path) as file:
        name = os.path.basename(path)
        refuse_references(file, name)
        if (written := file.attrs.get(NAME)) != name:
            raise ValueError(f"it was written as {written}")
        yield file


def spread(rows: NDArray[Any], places: Sequence[int], n: int) -> NDArray[Any]:
    """Return n rows, of which row `places[i]` is row i of these, and the others are NaN: those of
    agents that have died.

    Examples
    --------
    >>> spread(np.ones(2), [0, 2], 3)
    array([ 1., nan,  1.])
    """
    whole = np.full((n, *rows.shape[1:]), np.nan, rows.dtype)
    whole[[*places]] = rows
    return whole


def stored(dataset: h5py.Dataset) -> h5py.Dataset:
    """Return a data set of numbers; one without (all of) its values is refused before memory is
    taken for it.
    """
    kind = getattr(dataset, "dtype", None)
    if kind is None or kind.kind not in "biufc":
        raise ValueError(
            f"{dataset.name} is "
            f"{'a group' if kind is None else f'of type {kind}'}, "
            "expected numbers"
        )
    size = dataset.id.get_storage_size()
    compressed = dataset.id.get_create_plist().get_nfilters() > 0
    if dataset.nbytes > size * (EXPANSION if compressed else 1):
        raise ValueError(
            f"{dataset.name} has the shape {dataset.shape} of "
            f"{dataset.nbytes:,} "
            f"bytes, of which {size:,} are stored"
        )
    return dataset


def readable(dataset: h5py.Dataset, path: str) -> h5py.Dataset | Sharded:
    """Return a data set of numbers of the run file `path`, to be indexed along its first axis,
    wherever its rows are; refused as by `stored`.
    """
    if getattr(dataset, "is_virtual", False):
        return Sharded.of(dataset, path)
    return stored(dataset)


def refuse_references(file: h5py.File, path: str, shards: bool = False) -> None:
    """Refuse a file that refers to other files: the program would read them, and a resumed run
    would write to them.

    Parameters
    ----------
    file : HDF5 file
    path : its name
    shards : whether rows may be in shards beside it

    Raises
    ------
    ValueError
    """
    from h5py import h5d, h5l, h5o

    seen: set[int] = set()

    def reference(name: bytes, info: h5l.LinkInfo) -> str | None:
        where = name.decode(errors="replace")
        if info.type != h5l.TYPE_HARD:
            return f"/{where} is a symbolic or external link"
        if info.u in seen:
            return None
        seen.add(info.u)
        thing = h5o.open(file.id, name)
        if not isinstance(thing, h5d.DatasetID):
            return None
        layout = thing.get_create_plist()
        if layout.get_external_count():
            return f"/{where} has external storage"
        if layout.get_layout() != h5d.VIRTUAL:
            return None
        others = {layout.get_virtual_filename(i) for i in range(layout.get_virtual_count())}
        beside = shards and VIRTUAL.fullmatch(where) and all(map(_is_shard, others))
        return None if beside else f"/{where} has virtual storage"

    found = file.id.links.visit(reference, info=True)
    if found is not None:
        raise ValueError(
            f"{path}: {found}, which can lead to other files: no run file of mpidec has that, and "
            "it is not opened"
        )


def _is_shard(name: str) -> bool:
    """Whether a name is that of a shard, in the folder of the run file."""
    return os.path.basename(name) == name and SHARD.fullmatch(name) is not None


def _box(start: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a, a + count) for a, count in zip(start, shape))
