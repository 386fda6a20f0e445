"""File of a training: rank 0 writes the metrics, and the states of all ranks on one node; those of
several nodes are in files beside it (`RankStates`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._version import __version__
from ..comm.mixing import Network
from ..driver.internals import provenance
from ..record import Run, RunFile, last_checkpoint
from ..record.internals import Fingerprint, Shards, head, phases, remove_shards, resumed, spread
from ..topology import Schedule, Topology
from .shards import SHARDS, RankStates
from .states import flat, nested


@dataclass
class WorkerColumns:
    """The columns of the file that belong to the workers that are left.

    Attributes
    ----------
    first : list of int
        Those of the workers with which this part of the training has begun.
    width : int
        The number of workers at first.
    lost : str
        Who has died before this part, a line for each time.
    told : int
        How many have died since, as far as the file knows.
    left : list of int
        Those of the workers that are left now.
    """

    first: list[int]
    width: int
    lost: str = ""
    told: int = 0

    def __post_init__(self) -> None:
        self.left = self.first

    def keep(self, workers: Sequence[int]) -> None:
        """Leave out all but some of the first ones."""
        self.left = [self.first[i] for i in workers]

    def of_all(self, values: np.ndarray) -> np.ndarray:
        """Return values of the workers for all that there were at first: NaN of the dead."""
        return spread(values, self.left, self.width)


class TrainFile:
    """Run file of a training, and the checkpoints in it: ``rank<r>.<name>``, for each rank;
    collective.

    Parameters
    ----------
    net : Network
    path : str

    Raises
    ------
    OSError, ValueError
        On every rank, if the file cannot be read or written.
    """

    def __init__(self, net: Network, path: str):
        self._net, self.path, self._shards = net, path, RankStates(net, path)
        self._file: RunFile | None = None
        self._kept = ""  # the set of shards of the checkpoint, on rank 0
        self._changes: list[str] = []  # since the part before
        # Attribute `resumed` of a resumed training.
        self._parts = ""
        self._make: Callable[[], None] = lambda: None

    def create(
        self,
        config: str,
        seed: int,
        mpi: str,
        d: int,
        metrics: Sequence[str],
        per_worker: Sequence[str],
        topology: Topology | Schedule | list[Topology] | None,
        records: int,
        fingerprint: Fingerprint,
        lost: str = "",
    ) -> None:
        """Start a new file with rows of `d` parameters; `lost` is who has died before."""
        net = self._net
        meta: dict[str, str | int] = {
            "mpidec": __version__,
            "config": config,
            "seed": seed,
            "ranks": net.size,
            "mpi": mpi,
            **fingerprint.attributes(),
            **({"lost": lost} if lost else {}),
        }
        stored = phases(topology) if isinstance(topology, (Topology, Schedule)) else None

        def make() -> None:
            self._file = RunFile(
                self.path,
                n=net.n,
                row_shape=(d,),
                metrics=metrics,
                meta=meta | provenance(),
                topology=stored,
                trajectory=False,
                dtype=np.float32,
                records=records,
                per_agent=per_worker,
                sharded=self._shards.several,
            )

        self._make = make
        self._on_root(make)

    def renew(
        self,
        records: Sequence[Mapping[str, Any]],
        per_worker: Sequence[str],
        meta: Mapping[str, str | int],
    ) -> None:
        """Let the first of the ranks that are left go on with the file, which has all `records`
        then; `meta` are attributes that have changed.
        """

        def own() -> None:
            if self._file is not None:
                self._file.close()
            if not records:  # whatever is there is of another training
                self._make()
                return
            self._file = RunFile.resume(self.path, int(records[-1]["step"]), meta=meta)
            for record in records:
                if record["step"] > self._file.last:
                    self._file.append(record["step"], _columns(record, per_worker))

        self._on_root(own)

    def load(
        self,
        fingerprint: Fingerprint,
        settings: Callable[[str], Mapping[str, object]],
        changed: bool,
    ) -> tuple[int, dict[str, Any], list[dict[str, Any]], WorkerColumns]:
        """Return the step and this rank's state of the last checkpoint, the records up to it, and
        the columns of the workers that are left.

        Parameters
        ----------
        fingerprint : Fingerprint
            That of this training.
        settings : callable
            What shapes a curve, by name, from the text of its settings.
        changed : bool
            Whether data and settings may have changed.
        """
        parts: list[Any] = []

        def stored() -> None:
            run, (step, arrays) = head(self.path), last_checkpoint(self.path)
            parts[:] = self._of_ranks(run, step, arrays)
            self._check(run, fingerprint, settings, changed)

        self._on_root(stored)
        step, mine, records, shard, columns = self._net.comm.scatter(parts or None)
        state: dict[str, Any] = {}
        error: Exception | None = None
        try:
            mine = self._shards.load(*shard) if shard else mine
            state = nested(mine, f"rank{self._net.rank}.")
        except OSError as caught:
            error = OSError(
                f"{self.path}: the states of rank {self._net.rank} are in a file beside it that "
                f"cannot be read ({caught}): keep the files that begin with its name together"
            )
        except (KeyError, ValueError, TypeError) as caught:
            error = ValueError(
                f"{self.path}: the checkpoint is damaged ({caught!r}): train anew, or from a copy"
            )
        self._net.agree(error)
        return step, state, records, columns

    def _of_ranks(self, run: Run, step: int, arrays: Mapping[str, np.ndarray]) -> Iterator[Any]:
        """Yield what each rank of the checkpoint needs of it: some may have died since."""
        number, *firsts = arrays[SHARDS].tolist() if SHARDS in arrays else [None]
        self._kept = _set_of(arrays)
        ranks = len(firsts) or len({name.partition(".")[0] for name in arrays})
        if ranks != self._net.size:
            raise ValueError(
                f"{self.path}: was trained on {ranks} rank{'s' * (ranks > 1)}, this job has "
                f"{self._net.size}: "
                f"resume it with mpirun -n {ranks}"
            )
        found = {**run.metrics, **run.agents}
        kept = np.flatnonzero(run.metrics["step"] <= step)
        records = [{name: values[i] for name, values in found.items()} for i in kept]
        left = [int(i) for i in str(run.attributes.get("workers", "")).split()]
        lost, width = str(run.attributes.get("lost", "")), int(run.attributes["agents"])
        columns = WorkerColumns(left or [*range(self._net.n)], width, lost)
        for rank in range(ranks):
            own = f"rank{rank}."
            mine = {name: array for name, array in arrays.items() if name.startswith(own)}
            yield step, mine, records, (number, firsts[rank]) if firsts else None, columns

    def _check(
        self,
        run: Run,
        fingerprint: Fingerprint,
        settings: Callable[[str], Mapping[str, object]],
        changed: bool,
    ) -> None:
        """Refuse a file whose data, code or settings have `changed`, unless they may."""
        try:
            then = Fingerprint.stored(run.attributes, settings(run.config))
        except ValueError as error:
            raise ValueError(f"{self.path}: damaged: {error}") from error
        self._changes = fingerprint.changes(then, absent="not set")  # options of one of them
        if self._changes and not changed:
            raise ValueError(
                f"{self.path}: {'; '.join(self._changes)}: restore it, or begin a new training "
                "with another file, "
                "--out (or continue on purpose: fit(..., resume=True, changed=True))"
            )
        self._parts = str(run.attributes.get("resumed", ""))

    def resume(self, step: int, config: str, fingerprint: Fingerprint) -> None:
        """Reopen the file to continue after `step`."""

        def reopen() -> None:
            meta = {"config": config, **fingerprint.attributes()}
            meta["resumed"] = self._parts + resumed(step, self._changes, provenance())
            self._file = RunFile.resume(self.path, step, meta=meta)

        self._on_root(reopen)

    def append(self, step: int, record: Mapping[str, Any], per_worker: Sequence[str]) -> None:
        """Add a record, the same on all ranks."""
        self._on_root(lambda: self._file.append(step, _columns(record, per_worker)))  # type: ignore[union-attr]

    def checkpoint(self, step: int, state: Mapping[str, object]) -> None:
        """Replace the checkpoint by the states of all ranks."""
        merged = self._shards.gather(flat(state, f"rank{self._net.rank}."))

        def write() -> None:
            file: RunFile = self._file  # type: ignore[assignment]
            file.checkpoint(step, merged)
            if file.checkpointed == step:
                self._kept = _set_of(merged)
            self._tidy(file)

        self._on_root(write)

    def finish(self, rows: np.ndarray, columns: WorkerColumns, outcome: str, steps: int) -> None:
        """Write the parameters of all workers and the outcome, and close the file.

        Parameters
        ----------
        rows : array, (m, d)
            Of the workers of this rank.
        columns : WorkerColumns
            Those of the workers that are left; the parameters of the others are NaN.
        """
        net = self._net
        x: Any = None
        file: RunFile = self._file  # type: ignore[assignment]
        if net.collectives.broadcast(net.rank == 0 and file.sharded, 0, "the result"):
            shards = Shards(net, self.path)
            found = shards.write({"x": rows}, {"x": net.partition.counts()}).get("x")
            x = found and found.spread(columns.left, columns.width)
        elif (stack := net.gather(rows)) is not None:
            x = columns.of_all(stack)

        def write() -> None:
            file.finish(x, outcome, steps)
            file.close()
            self._tidy(file)

        self._on_root(write)

    def abandon(self, reason: str, outcome: str) -> None:
        """Write an outcome and close the file; errors are ignored; not collective."""
        try:
            if self._file is not None:
                self._file.fail(reason, outcome)
                self._file.close()
        except (OSError, ValueError):
            pass

    def _tidy(self, file: RunFile) -> None:
        """Remove the shards that the file does not refer to."""
        kept, referred = self._kept, file.shards
        remove_shards(self.path, lambda name, number: number == kept or name in referred)

    def _on_root(self, act: Callable[[], None]) -> None:
        error: Exception | None = None
        if self._net.rank == 0:
            try:
                act()
            except (OSError, ValueError) as caught:
                error = caught
            except KeyError as caught:
                error = ValueError(
                    f"{self.path}: the file is damaged, it lacks {caught}: train anew, or from a "
                    "copy"
                )
            except ImportError as caught:  # h5py
                error = OSError(f"cannot write {os.fspath(self.path)}: {caught}")
        self._net.agree(error)


def _set_of(checkpoint: Mapping[str, np.ndarray]) -> str:
    """Return the number of the shards of a checkpoint; "" if there are none."""
    return f"{int(checkpoint[SHARDS][0]):08x}" if SHARDS in checkpoint else ""


def _columns(record: Mapping[str, Any], per_worker: Sequence[str]) -> dict[str, Any]:
    """Return a record as the file has it."""
    return {**record, **{f"agents/{name}": record[name] for name in per_worker}}
