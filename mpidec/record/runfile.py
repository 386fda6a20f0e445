"""Writer of run files: metrics, trajectory, checkpoints and result, readable at any time."""

from __future__ import annotations

import datetime
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .atomic import REMEDY, AtomicFile
from .reader import FAILED, RUNNING, SCHEMA, columns, find_checkpoint, open_run
from .sharded import Sharded, readable

if TYPE_CHECKING:
    import h5py
    from scipy.sparse import csr_array

# int64; others float64.
COUNTERS = frozenset({"step", "rounds", "messages", "rows", "bytes", "gradients", "prox", "events"})
# Prefix of the names of metrics of which larger values are better.
RISING = "accuracy"
BUFFER_BYTES, BUFFER_ROWS = 16 << 20, 8192
CHUNK_BYTES, CHUNK_ROWS = 256 << 10, 1024
LONGEST_REASON = 2000  # characters
FEWEST_ROWS = 64  # of a chunk of metrics: 512 bytes
AGENTS = "agents/"  # where metrics are that have a number for each agent
NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."


def buffered(nbytes: int) -> int:
    """Return how many records of so many bytes may wait for being written."""
    return min(max(BUFFER_BYTES // max(nbytes, 1), 1), BUFFER_ROWS)


def rises(metric: str) -> bool:
    """Return whether larger values of a metric are better: its name begins with ``accuracy``.

    Examples
    --------
    >>> rises("accuracy_worst"), rises("error")
    (True, False)
    """
    return metric.startswith(RISING)


class _Layout(NamedTuple):
    """What a run file consists of: the arguments of `RunFile`; of an existing one, only its
    records.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: list[str]
    trajectory: bool
    attributes: Mapping[str, str | int] = {}
    topology: tuple[csr_array, ...] = ()
    columns: tuple[csr_array, ...] = ()
    records: int = 0
    groups: Mapping[str, Mapping[str, NDArray[Any]]] = {}
    sharded: bool = False

    @classmethod
    def of(cls, file: h5py.File) -> _Layout:
        """Return that of an existing file."""
        x, result = file["trajectory/x"], file["result/x"]
        if x.shape[1:] != result.shape:
            raise ValueError(
                f"/trajectory/x has rows {x.shape[1:]}, expected those of /result/x, {result.shape}"
            )
        names = [name for name in columns(file, grows=True) if name != "step"]
        names += [f"{AGENTS}{name}" for name in file.get("agents", ())]
        recorded = bool(x.is_virtual or x.chunks)
        return cls(result.shape, x.dtype, names, recorded, sharded=bool(result.is_virtual))

    @property
    def row_bytes(self) -> int:
        """Size of what a record consists of."""
        return (
            self.dtype.itemsize * int(np.prod(self.shape))
            if self.trajectory
            else 8 * len(self.names)
        )

    def create(self, file: h5py.File) -> None:
        """Make all groups and data sets, without records."""
        file.attrs.update(self.attributes)
        rows = self.shape
        for name in ("step", *self.names):
            kind, more = (
                np.int64 if name in COUNTERS else np.float64,
                rows[:1] if name.startswith(AGENTS) else (),
            )
            file.create_dataset(
                _place(name),
                (0, *more),
                kind,
                maxshape=(None, *more),
                chunks=(self._chunk_rows(), *more),
            )
        for name, row, dtype, chunks in (
            ("x", rows, self.dtype, self._chunks()),
            ("step", (), np.int64, (self._chunk_rows(),)),
        ):
            if name == "x" and self.sharded and self.trajectory:
                self.nowhere((0, *row)).create(file.require_group("trajectory"), name)
                continue
            grows = {} if not self.trajectory else {"maxshape": (None, *row), "chunks": chunks}
            file.create_dataset(f"trajectory/{name}", (0, *row), dtype, **grows)
        _add_scales(file)
        if self.sharded:
            self.nowhere(rows).create(file.require_group("result"), "x")
        else:
            file.create_dataset("result/x", rows, self.dtype, fillvalue=self.dtype.type(np.nan))
        _set_result(file, None, RUNNING, 0)
        for phase, W in enumerate(self.topology):
            group = file.require_group(
                "topology" if len(self.topology) == 1 else f"topology/{phase}"
            )
            _add_matrix(group, W)
            if self.columns:
                _add_matrix(group.create_group("C"), self.columns[phase])
        for group, arrays in self.groups.items():
            for name, array in arrays.items():
                file[f"{group}/{name}"] = array

    def nowhere(self, shape: tuple[int, ...]) -> Sharded:
        """Return a data set of which no shard has rows yet."""
        return Sharded("", shape, self.dtype)

    def _chunks(self) -> tuple[int, ...]:
        """Return the shape of chunks of about 256 KB: whole records, or whole rows of one
        record.
        """
        n, *row = self.shape
        size = max(self.dtype.itemsize * int(np.prod(row)), 1)
        agents = min(max(CHUNK_BYTES // size, 1), n)
        return (
            min(max(CHUNK_BYTES // (size * n), 1), self._chunk_rows(), max(self.records, 1)),
            agents,
            *row,
        )

    def _chunk_rows(self) -> int:
        return min(max(self.records // 8, FEWEST_ROWS), CHUNK_ROWS)


class _Trajectory:
    """The iterates of records that wait for being written: their rows, or where in shards these
    are.
    """

    def __init__(self, layout: _Layout, capacity: int):
        self._layout = layout
        self._X = None if layout.sharded else np.empty((capacity, *layout.shape), layout.dtype)
        # Of a trajectory in shards: what the file has, but for records that a resumed run drops.
        self._known = self._waiting = layout.nowhere((0, *layout.shape))
        self._shortened = False

    @property
    def shards(self) -> set[str]:
        """The names of the shards that the file refers to."""
        return self._known.files

    def begin_with(self, known: Sharded) -> None:
        """Go on after these records, in shards, of those that the file has."""
        self._known, self._shortened = known, True

    def add(self, step: int, place: int, X: NDArray[Any] | Sharded | None) -> None:
        """Add those of a record, the `place`-th one that waits."""
        expected = (1,) * self._layout.sharded + self._layout.shape
        if X is None or X.shape != expected:
            got = None if X is None else X.shape
            raise ValueError(
                f"record of step {step}: X has shape {got}, expected {expected}: all agents' rows"
            )
        if isinstance(X, Sharded):
            self._waiting = self._waiting.followed_by(X)
        elif self._X is not None:
            self._X[place] = X

    def write(self, group: h5py.Group, waiting: int) -> None:
        """Write so many records, or refer to them."""
        if self._X is not None:
            _grow(group["x"], self._X[:waiting])
        elif waiting or self._shortened:
            _place_again(group, "x", self._known.followed_by(self._waiting))

    def written(self) -> None:
        """Forget what has waited."""
        self._known = self._known.followed_by(self._waiting)
        self._waiting, self._shortened = self._waiting.first(0), False


class _Waiting:
    """The records that wait for being written."""

    def __init__(self, layout: _Layout):
        self._layout, self._capacity = layout, buffered(layout.row_bytes)
        self.rows: list[tuple[Any, ...]] = []
        self.trajectory = _Trajectory(layout, self._capacity) if layout.trajectory else None

    @property
    def full(self) -> bool:
        """Whether no further record has a place."""
        return len(self.rows) >= self._capacity

    def add(self, step: int, metrics: Mapping[str, Any], X: NDArray[Any] | Sharded | None) -> None:
        """Add a record."""
        try:
            row = [
                np.array(metrics[name]) if name.startswith(AGENTS) else metrics[name]
                for name in self._layout.names
            ]
        except KeyError as error:
            raise ValueError(
                f"record of step {step} lacks the metric {error}: expected {self._layout.names}"
            ) from None
        if self.trajectory is not None:
            self.trajectory.add(step, len(self.rows), X)
        self.rows.append((step, *row))

    def write(self, file: h5py.File) -> None:
        """Write all records to a file."""
        if self.trajectory is not None:
            self.trajectory.write(file["trajectory"], len(self.rows))
        if not self.rows:
            return
        names, columns = ("step", *self._layout.names), zip(*self.rows)
        data: list[tuple[Any, Any]] = [
            (file[_place(name)], column) for name, column in zip(names, columns)
        ]
        steps = data[0][1]
        if self.trajectory is not None:
            data.append((file["trajectory/step"], steps))
        for dataset, rows in data:
            _grow(dataset, rows)
        _set_result(file, None, RUNNING, steps[-1])

    def written(self) -> None:
        """Forget the records, which are in the file."""
        self.rows.clear()
        if self.trajectory is not None:
            self.trajectory.written()


class _Resumed(NamedTuple):
    """What a file had when it was opened to be continued; nothing, if it is new."""

    step: int = -1  # to continue after
    last: int = -1  # the step of the last record that is kept
    ahead: int = -1  # the last step of which it has a record
    shards: Set[str] = frozenset()  # that it refers to
    meta: Mapping[str, str | int] = {}  # root attributes to change

    def shorten(self, file: h5py.File, layout: _Layout, kept: int) -> None:
        """Drop the records after the first ones, and the result."""
        trajectory = file["trajectory"].values() if layout.trajectory else ()
        for dataset in (*file["metrics"].values(), *file.get("agents", {}).values(), *trajectory):
            if dataset.maxshape[:1] == (None,):
                dataset.resize(kept, axis=0)
        x = layout.nowhere(layout.shape) if layout.sharded else np.nan
        _set_result(file, x, RUNNING, self.step)
        file.attrs.update(self.meta)


class RunFile:
    """Run file, written by one process.

    Records are buffered and flushed when ``flush_seconds`` have passed or 16 MB are waiting.  At
    any time after the first flush, the file opens with plain ``h5py.File(path, "r")`` and holds
    every flushed record, whether the writer is alive, finished or killed.

    Parameters
    ----------
    path : name of the file; an existing one is replaced when the first record is flushed
    n : number of agents
    row_shape : shape of one agent's iterate, ``(d,)``
    metrics : names of the metrics of a record; ``step`` is always added in front
    meta : root attributes: ``mpidec`` (version), ``config`` (TOML text), ``seed``, ``ranks``,
        ``mpi``
    topology : mixing matrices (n, n), one per phase
    columns : column-stochastic matrices of pairs, one per phase; they become ``C`` in the group of
        the phase
    trajectory : whether all iterates are recorded; if not, ``/trajectory/x`` and
        ``/trajectory/step`` have no rows
    state : shape and dtype of each array of the checkpoints; a dtype that cannot be stored is
        refused at once
    dtype : dtype of the iterates
    flush_seconds : longest time between flushes, whose records are lost if the process is killed
    records : about how many records are expected, for files of a few of them to be small; more are
        never a problem
    per_agent : names of the metrics that have a number for each agent, arrays (n,); they become
        ``/agents/<name>``
    groups : arrays by group and name, ``/<group>/<name>``: of ``model`` predictions are made, see
        `Run.predict`; ``search`` has what a resumed run needs of the search for its step size
    sharded : whether the rows of agents are in shards (see `Record`): those of `append`,
        `checkpoint` and `finish` are then descriptions, not arrays

    Raises
    ------
    ValueError, TypeError
        If an argument is malformed.
    OSError
        If the file cannot be written; raised later by any method if the disk is full.  The message
        states which records are safe.

    Notes
    -----
    This class does not use MPI: gather on one rank and write there.  An unfinished run has the
    outcome ``"running"``, NaN in ``/result/x``, and the last flushed step in the attribute
    ``steps``.  Metrics and trajectory have HDF5 dimension scales (``step``, ``agent``, ``entry``),
    as netCDF-4 and xarray expect.  ``/checkpoint/<name>`` holds the solver's state at the step in
    the group's attribute ``step``.  While it is being written, the file takes twice its size on
    disk (see `AtomicFile`).

    Examples
    --------
    >>> import os, tempfile, numpy as np, mpidec.record as record
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> with record.RunFile(
    ...     path, n=4, row_shape=(2,), metrics=["consensus"], meta={"mpidec": "0.1"}
    ... ) as file:
    ...     for k in range(3):
    ...         file.append(k, {"consensus": 2.0**-k}, np.zeros((4, 2)))
    ...     file.finish(np.zeros((4, 2)), "completed", steps=2)
    >>> record.read(path).metrics["consensus"]
    array([1.  , 0.5 , 0.25])
    """

    _last: int

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n: int,
        row_shape: Sequence[int],
        metrics: Sequence[str],
        meta: Mapping[str, str | int],
        topology: Sequence[csr_array] | None = None,
        columns: Sequence[csr_array] = (),
        trajectory: bool = True,
        state: Mapping[str, tuple[tuple[int, ...], DTypeLike]] | None = None,
        dtype: DTypeLike = np.float64,
        flush_seconds: float = 2.0,
        records: int | None = None,
        per_agent: Sequence[str] = (),
        groups: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
        sharded: bool = False,
    ) -> None:
        names = [name for name in metrics if name != "step"]
        for given in (names, per_agent):
            if len(set(given)) < len(given) or not all(name and "/" not in name for name in given):
                raise ValueError(
                    f"metrics {given}: expected different names, non-empty and without '/'"
                )
        for name, (_, kind) in (state or {}).items():
            _check_storable(name, np.dtype(kind))
        created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        names += [f"{AGENTS}{name}" for name in per_agent]
        layout = _Layout(
            (n, *row_shape),
            np.dtype(dtype),
            names,
            trajectory,
            attributes={"mpidec": "", "created": created, **meta, "schema": SCHEMA, "agents": n},
            topology=tuple(topology or ()),
            columns=tuple(columns),
            records=records if records is not None else 8 * CHUNK_ROWS,
            groups=groups or {},
            sharded=sharded,
        )
        self._begin(AtomicFile(path), layout, flush_seconds, _Resumed())

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        step: int | None = None,
        *,
        repeated: bool = False,
        meta: Mapping[str, str | int] | None = None,
        flush_seconds: float = 2.0,
    ) -> RunFile:
        """Open the file of an earlier run to continue after ``step``; later records are dropped.

        They are dropped in the update that has replaced them (or fills the buffer, or is the last
        one): until then the file keeps all that it had, whatever happens to the disk or to this
        process.  A record of ``step`` itself is dropped, too, if it lies between two steps that the
        root attribute ``every`` asks for: it is that of an interrupted run.

        Parameters
        ----------
        path : name of the file
        step : last step to keep (default: that of the last checkpoint)
        repeated : whether a record of ``step`` is still to come, which replaces that of the file
        meta : root attributes to change, such as ``ranks``
        flush_seconds : as in the constructor

        Raises
        ------
        ValueError
            If it is not a run file, or ``step`` is not given and there is no checkpoint.
        """
        step = find_checkpoint(path)[0] if step is None else step
        with open_run(path) as file:
            layout, x = _Layout.of(file), readable(file["trajectory/x"], os.fspath(path))
            of_checkpoint = referred(file.get("checkpoint", {}).values())
            of_others = referred([file["trajectory/x"], file["result/x"]])
            steps, every = file["metrics/step"][:], float(file.attrs.get("every", 1))
        ahead = int(steps[-1]) if len(steps) else -1
        # An interrupted run has a record of its last step, which an uninterrupted one would not
        # have between two records: it is dropped.
        kept_too = _is_asked_for(step, every) and not repeated
        steps = steps[steps <= step if kept_too else steps < step]
        kept = len(steps)
        last = int(steps[-1]) if kept else -1
        self = cls.__new__(cls)
        self._begin(
            AtomicFile(path, existing=True),
            layout,
            flush_seconds,
            _Resumed(
                step,
                last,
                ahead if ahead > step else last,
                of_checkpoint | of_others,
                dict(meta or {}),
            ),
        )
        self._exists, self._resuming, self._flushed = True, True, kept
        self._shards = of_checkpoint
        if self._waiting.trajectory is not None and isinstance(x, Sharded):
            self._waiting.trajectory.begin_with(x.first(kept))
        if not self.later:
            try:
                self.flush()
            except BaseException:
                self._file.close()
                raise
        return self

    @property
    def later(self) -> bool:
        """Whether the file still has records of later steps, which a resumed run computes again."""
        return self._resumed.ahead > self._last

    @property
    def last(self) -> int:
        """The step of the last record; -1 without records."""
        return self._last

    @property
    def saved(self) -> int:
        """The step of the last record of this run that is in the file; -1 without records."""
        return self._saved

    @property
    def checkpointed(self) -> int:
        """The step of the last checkpoint that was written since the file was opened; -1 without
        one.
        """
        return self._checkpoint

    @property
    def sharded(self) -> bool:
        """Whether the rows of agents are in shards."""
        return self._layout.sharded

    @property
    def shards(self) -> set[str]:
        """The names of the shards that the file refers to."""
        trajectory = self._waiting.trajectory
        found = self._shards | (trajectory.shards if trajectory else set())
        return found | self._resumed.shards if self.later else found

    def append(
        self, step: int, metrics: Mapping[str, Any], X: NDArray[Any] | Sharded | None = None
    ) -> None:
        """Record a step: its metrics and, if the trajectory is recorded, a copy of the rows X (n,
        d) of all agents.

        The metrics with a number for each agent are the arrays ``agents/<name>``. The first record
        is flushed at once.  The record of the step at which a run is resumed exists already and is
        kept.
        """
        if self._waiting.full:  # an earlier flush failed
            self.flush()
        if step <= self._last:
            if step == self._resumed.last:
                return
            raise ValueError(
                f"record of step {step} after that of step {self._last}: expected increasing steps"
            )
        self._waiting.add(step, metrics, X)
        self._last = step
        due = not self._flushed or time.monotonic() >= self._due
        if self._waiting.full or (due and not self.later):
            self.flush()

    def flush(self) -> None:
        """Write the buffered records, which then outlive the process."""
        if self._waiting.rows or self._resuming:
            with self._update():
                pass

    def checkpoint(
        self,
        step: int,
        state: Mapping[str, ArrayLike | Sharded],
        asynchronous: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Replace the checkpoint by the solver's state after ``step`` steps, and flush all records;
        nothing is written while the file holds later records than a resumed run has made.

        If the process is killed during the call, the previous checkpoint remains.

        Parameters
        ----------
        step : number of steps made
        state : arrays and numbers by name
        asynchronous : arrays of `Run.asynchronous` so far
        """
        arrays = {
            name: value if isinstance(value, Sharded) else np.asarray(value)
            for name, value in state.items()
        }
        for name, array in arrays.items():
            _check_storable(name, array.dtype)
        if self.later and not self._waiting.full:
            return
        with self._update(
            f"the checkpoint of step {step} ({sum(array.nbytes for array in arrays.values()):,} "
            "bytes) to"
        ) as file:
            group = file.require_group("checkpoint")
            for name in set(group) - set(arrays):
                del group[name]
            for name, array in arrays.items():
                _set(group, name, array)
            group.attrs["step"] = step
            _set_asynchronous(file, asynchronous or {})
        self._shards, self._checkpoint = _files(arrays.values()), step

    def finish(
        self,
        x: ArrayLike | Sharded,
        outcome: str,
        steps: int,
        asynchronous: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Write the result (the rows x (n, d) of all agents), the outcome of the run, and the
        remaining records.

        The arrays `asynchronous` are those of `Run.asynchronous`.
        """
        x = x if isinstance(x, Sharded) else np.asarray(x)
        if x.shape != self._layout.shape:
            raise ValueError(
                f"result x has shape {x.shape}, expected {self._layout.shape}: all agents' rows"
            )
        with self._update("the result to") as file:
            _set_asynchronous(file, asynchronous or {})
            _set_result(
                file, x, str(outcome.value) if isinstance(outcome, Enum) else outcome, steps
            )
        self._shards |= _files([x])

    def fail(self, reason: str = "", outcome: str = FAILED) -> None:
        """Write the remaining records and the outcome with its reason; only these two
        where there is no space for records.

        A file that holds more than the records so far (of a resumed run, or of another one before
        the first record) stays as it is.
        """
        if self.later or not (self._exists or self._waiting.rows):
            return
        try:
            with self._update() as file:
                _set_result(file, None, outcome, max(self._last, 0), reason)
        except OSError:
            if not self._exists or self._resuming:
                raise
            self._waiting.rows.clear()
            with self._update() as file:
                _set_result(file, None, outcome, int(file["result/x"].attrs["steps"]), reason)

    def close(self) -> None:
        """Flush the buffered records and close the file.  May be called again."""
        try:
            if not (self._file.closed or self._failed or self.later):
                self.flush()
        finally:
            self._file.close()

    def __enter__(self) -> RunFile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(OSError) if error else nullcontext():  # the first error takes precedence
            self.close()

    def _begin(self, file: AtomicFile, layout: _Layout, seconds: float, resumed: _Resumed) -> None:
        self._file, self._layout, self._resumed = file, layout, resumed
        self._waiting = _Waiting(layout)
        self._shards = set[str]()  # of checkpoint and result
        self._checkpoint = -1
        self._seconds, self._due = seconds, 0.0
        self._exists = self._failed = False
        # Whether the file still is as it was before it was resumed.
        self._resuming = False
        self._flushed = 0
        self._last = self._saved = resumed.last

    @contextmanager
    def _update(self, what: str = "") -> Iterator[Any]:
        """Update of the file that also writes the buffered records; `what` else it writes is for
        the disk at once.
        """
        if self._file.closed:
            raise ValueError(f"{self._file.path} is closed: nothing more can be recorded")
        try:
            with self._file.update(sync=bool(what)) as file:
                if not self._exists:
                    self._layout.create(file)
                if self._resuming:
                    self._resumed.shorten(file, self._layout, self._flushed)
                self._waiting.write(file)
                yield file
        except OSError as error:
            self._failed = True
            if isinstance(error, FileExistsError):  # another program replaced the file
                raise
            raise self._explain(error, what) from error
        self._exists, self._failed, self._resuming = True, False, False
        self._flushed += len(self._waiting.rows)
        self._saved = self._last
        self._waiting.written()
        self._due = time.monotonic() + self._seconds

    def _explain(self, error: OSError, what: str) -> OSError:
        saved = "it holds no records" if self._exists else "nothing was written"
        if self._flushed:
            saved = (
                f"its first {self._flushed} records are safe"
                + ", and the checkpoint before" * bool(what)
            )
        if self._resuming:
            saved = "the file is as it was"
        why = os.strerror(error.errno) if error.errno else str(error)
        remedy = REMEDY.get(
            error.errno or 0, "check that the disk and the folder exist and are writable"
        )
        text = f"cannot write {what}{' ' * bool(what)}{self._file.path}: {why}; {saved}; {remedy}"
        return OSError(error.errno, text) if error.errno else OSError(text)


def annotate(path: str | os.PathLike[str], **attributes: str) -> None:
    """Set root attributes of the file of a run that has ended.

    Raises
    ------
    OSError
        The file cannot be written, or another process is writing it.

    Examples
    --------
    >>> import os, tempfile, mpidec.record as record
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> with record.RunFile(
    ...     path, n=1, row_shape=(1,), metrics=["error"], meta={}, trajectory=False
    ... ) as file:
    ...     file.append(0, {"error": 1.0})
    >>> annotate(path, comment="first")
    >>> record.read(path).attributes["comment"]
    'first'
    """
    with AtomicFile(path, existing=True) as made, made.update(sync=True) as file:
        file.attrs.update(attributes)


def _is_asked_for(step: int, every: float) -> bool:
    """Whether a record is due at `step`: the integer part of a multiple of `every`."""
    return int(math.ceil(step / every - 1e-9) * every + 1e-9) == step


def _place(name: str) -> str:
    return name if name.startswith(AGENTS) else f"metrics/{name}"


def _add_matrix(group: h5py.Group, W: csr_array) -> None:
    group["indptr"], group["indices"], group["data"] = W.indptr, W.indices, W.data


def _check_storable(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufc":
        raise TypeError(
            f"checkpoint: {name} is of type {dtype}, expected an array of numbers or a number"
        )


def _add_scales(file: h5py.File) -> None:
    """Attach the steps as dimension scales to metrics and trajectory; agents and entries are
    dimensions without values.
    """
    for group in (file["metrics"], file["trajectory"]):
        group["step"].make_scale("step")
        for name, dataset in group.items():
            if name != "step":
                dataset.dims[0].attach_scale(group["step"])
    x = file["trajectory/x"]
    for axis, length in enumerate(x.shape[1:], 1):
        name = ("agent", "entry")[axis - 1] if axis < 3 else f"axis{axis}"
        scale = file.create_dataset(f"trajectory/{name}", (length,), ">f4")
        scale.make_scale(f"{NO_VARIABLE}{length:10d}")
        x.dims[axis].attach_scale(scale)


def _set_asynchronous(file: h5py.File, arrays: Mapping[str, ArrayLike]) -> None:
    if "left" in file.get("asynchronous", ()) and "steps" in arrays:
        # Resumed from a checkpoint before the deaths.
        del file["asynchronous/left"], file["asynchronous/lost_mass"]
    for name, array in arrays.items():
        group = file.require_group("pending" if name.startswith("queue") else "asynchronous")
        if name in group:
            del group[name]
        group[name] = np.asarray(array)


def _grow(dataset: h5py.Dataset, rows: ArrayLike) -> None:
    """Add rows to a data set."""
    added = np.asarray(rows, dataset.dtype)
    start = dataset.shape[0]
    dataset.resize(start + len(added), axis=0)
    dataset[start:] = added


def _set(group: h5py.Group, name: str, array: NDArray[Any] | Sharded) -> None:
    """Replace a data set of a group, or create it."""
    old = group.get(name)
    of_its_own = isinstance(array, np.ndarray) and old is not None and not old.is_virtual
    if of_its_own and (old.shape, old.dtype) == (array.shape, array.dtype):
        old[...] = array
        return
    if old is not None:
        del group[name]
    if isinstance(array, Sharded):
        array.create(group, name)
    else:
        group[name] = array


def _place_again(group: h5py.Group, name: str, rows: Sharded) -> h5py.Dataset:
    """Replace a virtual data set, with its attributes and dimension scales."""
    old = group[name]
    scales = [list(dimension.values()) for dimension in old.dims]
    for axis, found in enumerate(scales):
        for scale in found:
            old.dims[axis].detach_scale(scale)
    attributes = dict(old.attrs)
    del group[name]
    new = rows.create(group, name)
    new.attrs.update(attributes)
    for axis, found in enumerate(scales):
        for scale in found:
            new.dims[axis].attach_scale(scale)
    return new


def _files(arrays: Iterable[Any]) -> set[str]:
    """Return the shards of those that are in shards."""
    return {name for array in arrays if isinstance(array, Sharded) for name in array.files}


def referred(datasets: Iterable[h5py.Dataset]) -> set[str]:
    """Return the shards that data sets of a run file refer to."""
    return _files(Sharded.of(each, "") for each in datasets if each.is_virtual)


def _set_result(
    file: h5py.File, x: ArrayLike | Sharded | None, outcome: str, steps: int, reason: str = ""
) -> None:
    dataset = file["result/x"]
    if isinstance(x, Sharded):
        dataset = _place_again(file["result"], "x", x)
    elif x is not None:
        dataset[...] = x
    if dataset.attrs.get("outcome") != outcome:
        dataset.attrs["outcome"] = outcome
    dataset.attrs["steps"] = steps
    if reason:
        dataset.attrs["reason"] = (
            reason.encode("utf-8", "backslashreplace").decode().replace("\0", " ")[:LONGEST_REASON]
        )
    else:
        dataset.attrs.pop("reason", None)
