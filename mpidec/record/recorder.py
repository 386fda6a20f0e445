"""Collective part of recording: all ranks contribute their rows, rank 0 writes the file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np

from .._words import warn
from ..exceptions import ResumeError as ResumeError
from .atomic import check_format
from .fingerprint import Fingerprint
from .reader import find_checkpoint, head
from .runfile import BUFFER_BYTES, RunFile
from .sharded import Sharded
from .shards import NodeCollectives, Shards, remove_shards

if TYPE_CHECKING:
    from scipy.sparse import csr_array

State = TypeVar("State", bound=tuple[Any, ...])
T = TypeVar("T")
# The counters of a checkpoint, beside the fields of the state.  Each clock counts other things,
# and only the clock that has written them reads them (`totals` and `recall`):
#   steps   seconds, rounds, bytes, rows, gradients
#   queue   simulated time, events, messages, bytes, gradients
#   ranks   seconds, messages, bytes, events
_COUNTERS = "counters"
# Prefix of the mixer's memory; no field has a dot in its name.
_MEMORY = "memory."
# Root attributes that a resumed run replaces.
CHANGED = (
    "ranks",
    "mpi",
    "config",
    "settings",
    "f_star",
    "every",
    "curve",
    "files",
    "data_hash",
    "data_samples",
    "lost",
)
# Not attributes, but arrays of `RunFile(groups=...)`: the linear model of a problem, and what a
# search for a step size has found.
MODEL, SEARCH = GROUPS = "model", "search"
# And those that describe each part of a run.
PART = (
    "created",
    "command",
    "host",
    "versions",
    "git",
)
# Entries of W up to which it is worth storing.
_LARGEST_TOPOLOGY = 5_000_000


class Blocks(Protocol):
    """Agents over ranks."""

    def counts(self) -> np.ndarray:
        """Number of agents on each rank."""


class RowCollectives(NodeCollectives, Protocol):
    """A network that gathers and scatters rows of agents or of edges, `counts` on each rank."""

    @property
    def partition(self) -> Blocks: ...

    def gather_rows(self, X: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray | None:
        """Return the rows of all ranks, on rank 0."""

    def scatter(self, stack: np.ndarray | None, counts: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of this rank, from those on rank 0."""


class GraphPhase(Protocol):
    """One mixing matrix."""

    @property
    def W(self) -> csr_array: ...

    @property
    def C(self) -> GraphPhase: ...


class Phases(Protocol):
    """A topology, or a sequence of them with a period or without."""

    @property
    def kind(self) -> str: ...

    @property
    def period(self) -> int | None: ...

    def at(self, k: int) -> GraphPhase: ...


@dataclass(frozen=True)
class Record:
    """Recording options; `solve(record="run.h5")` is short for `solve(record=Record("run.h5"))`.

    Parameters
    ----------
    path : str or path
        HDF5 file.
    trajectory : bool
        Whether every record includes the iterates of all agents, `n * d` numbers.
    flush_seconds, checkpoint_seconds : float
        Intervals at which the file is brought up to date, and at which a state to resume from is
        stored.
    resume : bool
        Continue the run in `path` from its last checkpoint; later records are dropped and recorded
        again.  It is refused if what shapes the curve has changed: data, code, the problem and its
        oracle, the solver and its parameters, W, mixing, x0, seed.
    replace : bool
        Replace the file if it exists, when the first record is written; otherwise it is refused.
    config : str or callable
        TOML text that reruns the experiment, or a function `config(solver)` that returns it for the
        solver of the run, whose step size has been found.
    sources : mapping, optional
        What the experiment names as its own, by setting: ``{"problem.data": "mine.csv",
        "solver.name": "my.py:NIDS"}``.  By default the arrays of the problem, and the files of a
        solver and a problem that were named ``FILE.py:NAME``.
    changed : bool
        With `resume`, continue although something of that has changed, other than W: what was and
        what is are told by the attribute `resumed` of the file.
    lost : str or callable
        The attribute `lost` of the file, if it is not empty, or a function `lost()` that returns
        it: ranks that have died, a line for each death that the run has survived.
    sharded : bool, optional
        Whether the rows of agents (trajectory, checkpoints, result) are in files beside the run
        file, one for each node, whose names begin with that of the run file: no rank gathers the
        rows of all nodes.  The run file refers to them by virtual data sets, and is read as any
        other one, also by h5py; all these files are moved together.  All nodes have to see the
        folder.  By default if there are several nodes, they see the folder, and a state takes 16
        MiB or more.  A resumed run keeps to what its file has.

    Examples
    --------
    >>> Record("run.h5", trajectory=False).path
    'run.h5'
    """

    path: str | os.PathLike[str]
    trajectory: bool = True
    flush_seconds: float = 2.0
    checkpoint_seconds: float = 30.0
    resume: bool = False
    replace: bool = False
    config: str | Callable[[Any], str] = ""
    sources: Mapping[str, str] | None = None
    changed: bool = False
    lost: str | Callable[[], str] = ""
    sharded: bool | None = None

    def __post_init__(self) -> None:
        for name in ("trajectory", "resume", "replace", "changed", "sharded"):
            value, automatic = getattr(self, name), name == "sharded"
            if not isinstance(value, (bool, np.bool_)) and not (automatic and value is None):
                raise TypeError(
                    f"Record: {name} is {value!r:.60}, expected True{',' if automatic else ' or'} "
                    f"False{' or None (by the size of a state)' * automatic}"
                )

    def deaths(self) -> dict[str, str]:
        """Return the attribute `lost`, if ranks have died."""
        lost = self.lost() if callable(self.lost) else self.lost
        return {"lost": lost} if lost else {}

    def check(self) -> None:
        """Refuse a file that exists, unless it is to be replaced or resumed.

        Raises
        ------
        FileExistsError, ValueError
        """
        path = os.fspath(self.path)
        if not self.resume:
            check_format(path)
        if self.resume and self.replace:
            raise ValueError(
                f"Record({path!r}) has both resume=True and replace=True, expected one of them"
            )
        if self.changed and not self.resume:
            raise ValueError(
                f"Record({path!r}) has changed=True without resume=True: a new run has nothing to "
                "compare with"
            )
        if not (self.resume or self.replace) and os.path.isfile(path):
            raise FileExistsError(
                f"{path} exists: choose another name, replace it with "
                f"record=mpidec.Record({path!r}, "
                "replace=True), or continue its run with resume=True"
            )


class Recorder(Generic[State]):
    """Collective writer of one run; rank 0 gathers the rows and owns the file.

    A file error (such as a full disk) is kept in `error` on rank 0, for the caller to raise on all
    ranks.
    """

    def __init__(self, net: RowCollectives, spec: Record, state: State, per_edge: tuple[str, ...]):
        self._net, self._spec, self._per_edge = net, spec, per_edge
        self._state: type[State] = type(state)
        self._counts = edge_counts(net, state, per_edge)
        self._file: RunFile | None = None
        self._shards: Shards | None = None
        self._replaces = False  # a file, whose shards are removed with the first checkpoint
        # Attribute `resumed` of a resumed run.
        self._parts = ""
        self._changes: list[str] = []  # since the part before
        # Step of the last record of a resumed run.
        self._kept: int | None = None
        self.error: Exception | None = None

    def create(
        self,
        row_shape: tuple[int, ...],
        names: tuple[str, ...],
        state: State,
        topology: Phases,
        meta: Mapping[str, Any],
        records: int | None = None,
    ) -> None:
        """Create a new file for about so many `records`; collective; an error is raised on all
        ranks.
        """
        fields: tuple[str, ...] = state._fields  # type: ignore[attr-defined]
        shapes = {name: self._stacked(name, value) for name, value in zip(fields, state)}
        self._shards = self._chosen_shards(shapes)
        self._replaces = self._net.rank == 0 and os.path.isfile(self._spec.path)
        self._on_root(
            lambda: RunFile(
                self._spec.path,
                n=self._net.n,
                row_shape=row_shape,
                metrics=names,
                meta={name: value for name, value in meta.items() if name not in GROUPS},
                groups={name: meta[name] for name in GROUPS if name in meta},
                topology=phases(topology),
                columns=column_phases(topology),
                trajectory=self._spec.trajectory,
                state=shapes,
                dtype=shapes["X"][1],
                flush_seconds=self._spec.flush_seconds,
                records=records,
                sharded=self._shards is not None,
            )
        )

    def _chosen_shards(self, shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> Shards | None:
        """Return the shards of a new run with states of these shapes and types, if it has any;
        collective.
        """
        wanted = self._spec.sharded
        size = sum(np.dtype(kind).itemsize * math.prod(shape) for shape, kind in shapes.values())
        if wanted is False or (wanted is None and (self._net.size == 1 or size < BUFFER_BYTES)):
            return None
        shards = Shards(self._net, self._spec.path)
        if wanted is None and shards.nodes == 1:
            return None
        if shards.in_reach():
            return shards
        if wanted:
            raise ValueError(
                f"Record({os.fspath(self._spec.path)!r}, sharded=True): not all nodes see the "
                "folder of the file, expected one on a file system that they share"
            )
        return None

    def load(
        self, topology: Phases, meta: Mapping[str, Any]
    ) -> tuple[int, State, np.ndarray, dict[str, np.ndarray]]:
        """Return the step, the state, the counters and the mixer's memory of the last checkpoint;
        collective, the file is not changed.

        `meta` are the root attributes that the run would have if it began now.
        """
        nothing: tuple[int, dict[str, Any]] = (0, {})

        def stored_state() -> tuple[int, dict[str, Any]]:
            try:
                found, run, given = (
                    find_checkpoint(self._spec.path),
                    head(self._spec.path),
                    phases(topology),
                )
                given = None if given is None else given + column_phases(topology)
            except ValueError as error:
                raise ResumeError(str(error)) from error
            self._compare(run.attributes, meta)
            self._parts = str(run.attributes.get("resumed", ""))
            if not _equal_phases(run.topology + run.columns, given):
                raise ResumeError(
                    f"{self._spec.path}: the run was made with another W, not that of "
                    f"{topology!r:.80}: resume it with its own topology"
                )
            return found

        step, stored = self._try(stored_state) or nothing
        self._net.agree(self.error)
        step, counters = self._shared((step, stored.pop(_COUNTERS, np.zeros(5))))
        kinds = self._shared(
            {
                name: value if isinstance(value, Sharded) else np.ndim(value) > 0
                for name, value in stored.items()
            }
        )
        fields: tuple[str, ...] = self._state._fields  # type: ignore[attr-defined]
        remembered = sorted(name for name in kinds if name.startswith(_MEMORY))
        if set(kinds) - set(remembered) != set(fields):
            found = ", ".join(sorted(set(kinds) - set(remembered)))
            raise ResumeError(
                f"{self._spec.path}: its checkpoint has the fields {found}, expected "
                f"{', '.join(fields)}: resume "
                "with the solver that wrote it"
            )
        rows: dict[str, Any] = {}
        for name in (*fields, *remembered):
            value, kind = stored.get(name), kinds[name]
            if isinstance(kind, Sharded):
                rows[name] = self._read_own(name, kind)
            elif kind:
                rows[name] = self._net.scatter(value, self._counts.get(name))
            else:
                rows[name] = self._shared(value)
        state, memory = restored(self._state, rows)
        return step, state, counters, memory

    def _read_own(self, name: str, rows: Sharded) -> np.ndarray:
        """Return the rows of this rank, which are in shards; collective."""
        counts = self._rows_of(name)
        low, found, error = int(counts[: self._net.rank].sum()), np.empty(0), None
        try:
            if len(rows) != counts.sum():
                raise ValueError(
                    f"{rows.path}: its checkpoint has {len(rows)} rows of {name}, expected "
                    f"{counts.sum()}"
                )
            found = rows[low : low + int(counts[self._net.rank])]
        except ValueError as caught:
            error = ResumeError(str(caught))
        self._net.agree(error)
        return found

    def _rows_of(self, name: str) -> np.ndarray:
        """Return the numbers of rows of a field on each rank."""
        return self._counts.get(name, self._net.partition.counts())

    def _compare(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Find what has changed since the run began, by its root attributes; refuse it unless the
        record allows changes.
        """
        spec = self._spec
        try:
            before = Fingerprint.stored(then)
            after = Fingerprint.stored(now, sources=spec.sources)
        except ValueError as error:
            raise ResumeError(f"{spec.path}: damaged: {error}") from error
        self._changes, names = after.changes(before), after.incomparable(before)
        if names and before.ranks != after.ranks:
            warn(
                f"{spec.path}: {', '.join(names)}: differs between the ranks, and is not compared "
                "with that of the run, which had another number of ranks"
            )
        if self._changes and not spec.changed:
            remedy = (
                "another record, or continue on purpose with changed=True beside resume=True"
                if spec.sources is None
                else "--out another file"
            )
            raise ResumeError(
                f"{spec.path}: {'; '.join(self._changes)}: restore it, or begin a new run with "
                f"{remedy}"
            )

    def asynchronous(self) -> dict[str, np.ndarray]:
        """Return the arrays of `Run.asynchronous` and `Run.pending`; collective."""

        def arrays() -> dict[str, np.ndarray]:
            run = head(self._spec.path)
            return {**run.asynchronous, **run.pending}

        found: dict[str, np.ndarray] = self._shared(self._try(arrays) or {})
        self._net.agree(self.error)
        return found

    def resume(
        self,
        step: int,
        meta: Mapping[str, Any],
        repeated: bool = False,
        saved: int | None = None,
    ) -> bool:
        """Reopen the file to continue after `step`; whether it has later records; collective, an
        error is raised on all ranks.

        `meta` are the root attributes of this part of the run: some replace those of the file,
        others are added to `resumed`, and `lost` to what it was.  `repeated` is as for
        `RunFile.resume`, and so is the step of the last record that is kept, if it is not `step`.
        """
        kept = {name: value for name, value in meta.items() if name in CHANGED}
        if self._net.rank == 0 and any(name in meta for name in PART):
            self._parts += resumed(step, self._changes, meta)
            kept["resumed"] = self._parts
        path, seconds = self._spec.path, self._spec.flush_seconds

        def reopen() -> RunFile:
            try:
                if "lost" in kept:
                    before = str(head(path).attributes.get("lost", ""))
                    told: dict[str, str] = {}  # of a rank that writes now, too: other seconds
                    for line in [*before.splitlines(), *kept["lost"].splitlines()]:
                        told.setdefault(line.partition(" went on ")[0], line)
                    kept["lost"] = "\n".join(told.values())
                last = step if saved is None else saved
                return RunFile.resume(
                    path, last, repeated=repeated, meta=kept, flush_seconds=seconds
                )
            except ValueError as error:
                raise ResumeError(str(error)) from error

        self._on_root(reopen)
        file = self._file
        told = None if file is None else (file.last, file.later, file.sharded)
        self._kept, later, sharded = self._shared(told) or (None, False, False)
        self._close_shards()
        self._shards = Shards(self._net, path) if sharded else None
        return later

    def rejoin(
        self,
        step: int,
        meta: Mapping[str, Any],
        records: Iterable[Mapping[str, float]],
        rows: Mapping[int, np.ndarray],
        saved: tuple[int, str],
    ) -> None:
        """Reopen the file to continue after `step`, of which the ranks have a copy in memory, and
        add those of the records so far that it lacked when that was made, with the rows of their
        steps: what the file has there may be of another run, which is resumed with changes.
        `saved` is what the method of this name returned then; collective.
        """
        last, self._parts = saved
        self.resume(step, meta, saved=last)
        for metrics in records:
            number = int(metrics["step"])
            if last < number:
                self.append(number, metrics, rows.get(number, np.empty(0)))

    def saved(self) -> tuple[int, str]:
        """Return the step of the last record that is in the file, and the attribute `resumed`;
        collective.
        """
        return self._shared((-1 if self._file is None else self._file.saved, self._parts))

    def has(self, step: int) -> bool:
        """Return whether the resumed run has a record of `step`, its last one."""
        return self._kept == step

    def append(self, step: int, metrics: Mapping[str, float], X: np.ndarray) -> None:
        """Add a record; collective if the trajectory is stored."""
        stack: np.ndarray | Sharded | None = None
        if self._spec.trajectory and self._shards is None:
            stack = self._net.gather(X)
        elif self._spec.trajectory and self._shards is not None and not self.has(step):
            shards, counts = self._shards, self._net.partition.counts()
            stack = self._written(lambda: shards.append(X, counts), None)
        self.append_gathered(step, metrics, stack)

    def append_gathered(
        self,
        step: int,
        metrics: Mapping[str, float],
        stack: np.ndarray | Sharded | None,
        flush: bool = False,
    ) -> None:
        """Add a record of the rows of all agents, which rank 0 has already, and write it at once
        if asked to.
        """

        def write(file: RunFile) -> None:
            file.append(step, metrics, stack)
            if flush:
                file.flush()

        self._on_file(write)

    def restart(self, step: int) -> None:
        """Drop the records after `step` when others replace them; collective, an error is raised
        on all ranks.
        """
        self._net.agree(self.error)
        self._on_file(RunFile.close)
        self.resume(step, {})

    def checkpoint(
        self,
        step: int,
        s: State,
        counters: np.ndarray,
        memory: Mapping[str, np.ndarray],
        asynchronous: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Store the state after `step` steps and the mixer's memory, so that the run can resume
        there; collective.

        The arrays `asynchronous` are those of `Run.asynchronous`, and under names that begin with
        "queue" those of `Run.pending`, the same on all ranks.
        """
        stored = self._gathered(held(s, memory))
        stored[_COUNTERS] = counters

        def write(file: RunFile) -> None:
            file.checkpoint(step, stored, asynchronous)
            self._tidy(file)

        self._on_file(write)

    def _gathered(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays of a checkpoint as rank 0 writes them into the run file; collective."""
        rows = {name: value for name, value in found.items() if np.ndim(value)}
        counts = {name: self._rows_of(name) for name in rows}
        alone = {name: value for name, value in found.items() if name not in rows}
        shards = self._shards
        if shards is None:
            return alone | {
                name: self._net.gather_rows(value, counts[name]) for name, value in rows.items()
            }
        nothing = dict[str, Sharded]()
        return alone | self._written(lambda: shards.write(rows, counts), nothing)

    def _written(self, act: Callable[[], T], otherwise: T) -> T:
        """Return what `act` has written into shards, and `otherwise` if it could not: the error is
        then that of all ranks.
        """
        try:
            return act()
        except (OSError, ValueError) as error:
            self.error = self.error or error
            return otherwise

    def _tidy(self, file: RunFile) -> None:
        if self._shards is not None:
            self._shards.tidy(file.shards)
        elif self._replaces:
            remove_shards(self._spec.path, lambda *_: False)
            self._replaces = False

    def finish(
        self,
        X: np.ndarray,
        outcome: str,
        steps: int,
        asynchronous: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Write the result and close the file; collective; an error is raised on all ranks.

        The arrays `asynchronous` are those of `Run.asynchronous`, the same on all ranks.
        """
        self.finish_gathered(self._gathered({"X": X}).get("X"), outcome, steps, asynchronous)

    def finish_gathered(
        self,
        stack: np.ndarray | Sharded | None,
        outcome: str,
        steps: int,
        asynchronous: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """`finish` with the rows of all agents, which rank 0 has already."""

        def write(file: RunFile) -> None:
            file.finish(cast(Any, stack), outcome, steps, asynchronous)
            file.close()
            self._tidy(file)

        self._close_shards()
        self._on_file(write)
        if (failed := self.error) is not None:
            self.abandon()
        self._net.agree(failed)

    def abandon(self, reason: str = "") -> None:
        """Write what is recorded, and the outcome "failed" if there is a reason, and close the
        file; errors are ignored.
        """
        self.error = None
        if reason:
            self._on_file(lambda file: file.fail(reason))
        self.error = None
        self._on_file(RunFile.close)
        self._close_shards()
        alone = self._net.rank == 0 and not os.path.exists(self._spec.path)
        if self._shards is not None and alone:
            self._shards.tidy(())  # nothing was written that refers to them

    def _close_shards(self) -> None:
        if self._shards is not None:
            self._shards.close()

    def _on_file(self, act: Callable[[RunFile], object]) -> None:
        """`act` with the file, on rank 0."""
        file = self._file
        if file is not None:
            self._try(lambda: act(file))

    def _shared(self, thing: T) -> T:
        return self._net.collectives.broadcast(thing, 0, "the record")

    def _on_root(self, make: Callable[[], RunFile]) -> None:
        def assign() -> None:
            self._file = make()

        self._try(assign)
        self._net.agree(self.error)

    def _try(self, act: Callable[[], T]) -> T | None:
        if self._net.rank == 0 and self.error is None:
            try:
                return act()
            except (OSError, ValueError) as error:
                self.error = error
            except ImportError as error:  # h5py is loaded here, where open files may have run out
                self.error = OSError(
                    f"cannot write {os.fspath(self._spec.path)}: {error}: check h5py, and the "
                    "limit of open files "
                    "(ulimit -n)"
                )
        return None

    def _stacked(self, name: str, value: Any) -> tuple[tuple[int, ...], Any]:
        if np.ndim(value) == 0:
            return (), np.asarray(value).dtype
        return (
            int(self._counts[name].sum()) if name in self._counts else self._net.n,
            *value.shape[1:],
        ), value.dtype


def edge_counts(
    net: RowCollectives, state: tuple[Any, ...], per_edge: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Return the numbers of rows on each rank of those fields of a state that have one for each
    edge; collective.
    """
    if not per_edge:
        return {}
    mine = np.array(len(getattr(state, per_edge[0])))
    return dict.fromkeys(per_edge, net.collectives.gather_all(mine, "the record"))


def held(s: tuple[Any, ...], memory: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return what a copy of a run holds, in a file or in memory, by name: the fields of the state,
    and the rows of the mixer's memory.
    """
    fields: dict[str, Any] = s._asdict()  # type: ignore[attr-defined]
    return {**fields, **{_MEMORY + name: memory[name] for name in sorted(memory)}}


def restored(kind: type[State], found: Mapping[str, Any]) -> tuple[State, dict[str, np.ndarray]]:
    """Return the state and the mixer's memory of a copy; the inverse of `held`."""
    names = {name for name in found if name.startswith(_MEMORY)}
    state = kind(**{name: value for name, value in found.items() if name not in names})
    return state, {name.removeprefix(_MEMORY): found[name] for name in sorted(names)}


def resumed(step: int, changes: Sequence[str], meta: Mapping[str, Any]) -> str:
    """Return the line of the attribute `resumed` on a part of a run: its first step, what has
    changed, and where it ran.

    Examples
    --------
    >>> resumed(5, ["seed was 0, is now 1"], {"host": "node1"})
    'step 5, changed: seed was 0, is now 1, host: node1\\n'
    """
    told = [f"changed: {'; '.join(changes)}"] if changes else []
    told += [f"{name}: {meta[name]}" for name in PART if name in meta]
    return f"step {step}, {', '.join(told)}\n"


def phases(topology: Phases) -> list[csr_array] | None:
    """Return the mixing matrices of one period, or None if there is no period or they are too
    large.
    """
    if topology.period is None:
        return None
    found = [topology.at(k).W for k in range(topology.period)]
    return found if sum(W.nnz for W in found) <= _LARGEST_TOPOLOGY else None


def column_phases(topology: Phases) -> list[csr_array]:
    """Return the column-stochastic matrices of one period, if there are pairs in it and `phases`
    has matrices.
    """
    pairs = topology.kind == "pair" and phases(topology) is not None
    return [topology.at(k).C.W for k in range(topology.period or 0)] if pairs else []


def _equal_phases(there: Sequence[csr_array], given: Sequence[csr_array] | None) -> bool:
    """Return whether matrices are those of a file; a file without any fits all."""
    if not there or given is None:
        return not there
    return len(there) == len(given) and all(
        A.shape == B.shape and (A != B).nnz == 0 for A, B in zip(there, given)
    )
