"""Reader of run files, finished or not."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._predictions import TEST_BYTES, LinearPredictor, scored
from .._words import ByName, warn
from ..exceptions import ResumeError
from .atomic import is_written
from .checked import open_checked
from .sharded import Sharded, readable, refuse_references, stored

if TYPE_CHECKING:
    import h5py
    from pandas import DataFrame
    from scipy.sparse import csr_array

SCHEMA = 1
# Outcome of a run that is in progress or was killed.
RUNNING = "running"
# Outcome of a run that an exception has ended.
FAILED = "failed"
# End of what is told of a run on this machine that was killed.
ABANDONED = "no process is writing it"


@dataclass(frozen=True, repr=False)
class Run:
    """Contents of a run file at the time it was read.

    Parameters
    ----------
    path : name of the file
    config : TOML text that reruns the experiment ("" if the file has none)
    attributes : root attributes: ``schema mpidec config seed agents ranks mpi created``
    metrics : arrays of equal length, by name: ``step time rounds bytes consensus ...``
    outcome : ``"completed"``, ``"stopped"``, ``"missed"``, ``"diverged"``, ``"interrupted"``,
        ``"failed"`` (by an exception), or ``"running"`` if no end was written: the run is in
        progress or was killed
    steps : number of steps made, as far as recorded
    x : (n, d) final rows of all agents, None for an unfinished run, or one with a reason
    reason : text of the exception that ended a failed run, or a diverged training, else ""
    asynchronous : of an asynchronous run that has ended: arrays `steps` (n,) of each agent; `edges`
        (E, 2) and `averagings` (E,) on them (pairwise methods); `staleness`, a histogram (push
        methods); `idle` (ranks,), shares of the time; after deaths, `left`, the agents that are
        left, and `lost_mass`.  Else empty
    pending : of a simulated run: what its last checkpoint has under way, for a restart; else empty
    agents : arrays (records, n) by name, with a number for each agent at each record: of a
        training, `loss`, `accuracy` and metrics
    topology : mixing matrices (n, n), one per phase, R of a pair; empty if they were not recorded
    columns : the matrices C of pairs, one per phase; empty without pairs
    unfinished : of a run without an end: when the file was last written, and whether a process here
        is writing it; else ""
    """

    path: str
    config: str
    attributes: Mapping[str, Any]
    metrics: Mapping[str, NDArray[Any]]
    outcome: str
    steps: int
    x: NDArray[Any] | None
    topology: tuple[csr_array, ...]
    reason: str = ""
    asynchronous: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    pending: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    agents: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    columns: tuple[csr_array, ...] = ()
    unfinished: str = ""

    def __repr__(self) -> str:
        agents = self.attributes.get("agents", "?")
        rows = "no final rows" if self.x is None else f"x {self.x.shape}"
        return (
            f"Run({self.path!r}: {self.unfinished or f'{self.outcome} after {self.steps} steps'}"
            f"{last_values(self.metrics)}; {agents} agents, {rows}, "
            f"records: {len(self.metrics.get('step', ()))}; metrics: {' '.join(self.metrics)})"
        )

    def to_frame(self) -> DataFrame:
        """Return the metrics as a pandas table: a column for each metric, and the steps as index.

        Raises
        ------
        ImportError
            Without pandas.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(f"to_frame: {error}: pip install pandas") from None
        columns = {name: values for name, values in self.metrics.items() if name != "step"}
        index = pandas.Index(self.metrics["step"], name="step")
        return pandas.DataFrame(columns, index=index)

    def trajectory(
        self, records: slice | Sequence[int] | np.ndarray = slice(None)
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Read recorded iterates: their steps (k,) and all agents' rows (k, n, d).

        Parameters
        ----------
        records : selection as in NumPy: ``slice(-10, None)``, ``[0, 5]``.  The file is read at the
            time of the call, so a run in progress may have more records than ``metrics``.
        """
        refused: Exception | None = None
        with open_run(self.path) as file:
            steps = stored(file["trajectory/step"])[()]
            x = readable(file["trajectory/x"], self.path)
            try:
                found = steps[records], x[records]
            except (IndexError, TypeError) as error:  # of the selection
                refused = error
        if refused is not None:
            raise refused
        return found

    def predict(self, A: ArrayLike) -> NDArray[Any]:
        """Return what the average of the final rows predicts for samples as they were given to the
        problem, (N, features) -> (N,): targets, or labels; of an unfinished run, that of the last
        rows in the file.

        Raises
        ------
        ValueError
            If the file holds no linear model, or no rows, or the samples have other features.

        Examples
        --------
        >>> import os, tempfile, mpidec
        >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
        >>> data = ([[0.0], [1.0], [3.0]], ["ill", "ill", "well"])
        >>> problem = mpidec.problems.load_problem(data, n=3, intercept=True, l2=0.01)
        >>> result = mpidec.solve(problem, "extra", "ring", steps=300, record=path)
        >>> read(path).predict([[0.5], [2.5]]).tolist(), read(path).score(*data)
        (['ill', 'well'], 1.0)
        """
        model, x = self._fitted()
        return model.predict(x, A)

    def score(self, A: ArrayLike | None = None, y: ArrayLike | None = None) -> float:
        """Return the accuracy of the predictions for samples with labels `y`, (N,), or their R^2
        for other targets; without arguments for the samples held out (`test` of `load_problem`), if
        they have at most 4 MiB.

        Raises
        ------
        ValueError
            As `predict`, if there is not one target per sample, if one of both is missing, or if
            the file has no samples.
        """
        model, x = self._fitted()
        if A is None and y is None and (size := model.given.omitted):
            raise ValueError(
                f"score() has no samples: those held out take {size / 2**20:.3g} MiB, and "
                f"{self.path} stores at most {TEST_BYTES >> 20} MiB: give them, score(A, y)"
            )
        return scored(model, model.held_out, x, A, y)

    def _fitted(self) -> tuple[LinearPredictor, NDArray[Any]]:
        """The model, and the average of the last rows."""
        model, X = None, self.x
        with open_run(self.path) as file:
            if "model" in file:
                model = LinearPredictor.restored(
                    {name: stored(dataset)[()] for name, dataset in file["model"].items()}
                )
            if X is None and len(file["trajectory/x"]):
                X = readable(file["trajectory/x"], self.path)[-1]
        if model is None:
            raise ValueError(
                f"{self.path} holds no linear model, expected the file of a run of a problem such "
                "as those of problems.load_problem, written by this version or a later one"
            )
        if X is None:
            raise ValueError(
                f"{self.path} holds no rows to predict with: the run is "
                f"{self.unfinished or self.outcome}, and its trajectory was not recorded: resume it"
            )
        if X.ndim > 2:
            raise ValueError(
                f"{self.path} is the file of {X.shape[1]} runs, expected that of one: "
                "problem.predict(run.x[:, 0].mean(axis=0), A)"
            )
        return model, X.mean(axis=0)


def last_values(metrics: Mapping[str, NDArray[Any]]) -> str:
    """Return the last objective, error and consensus as text, as far as they are recorded.

    Examples
    --------
    >>> last_values({"error": np.array([1.0, 1e-9]), "step": np.array([0, 10])})
    ', error 1e-09'
    """
    recorded = [name for name in ("objective", "error", "consensus") if len(metrics.get(name, ()))]
    return "".join(f", {name} {metrics[name][-1]:.4g}" for name in recorded)


def read(path: str | os.PathLike[str]) -> Run:
    """Read a run file: configuration, metrics, result and topology; the trajectory is read on
    demand.

    This works while the run is in progress and after it was killed: the file holds all records up
    to the last flush.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or it is not a run file that this version can read.

    Examples
    --------
    >>> import os, tempfile, mpidec.record as record
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> with record.RunFile(
    ...     path, n=4, row_shape=(2,), metrics=["error"], meta={}, trajectory=False
    ... ) as file:
    ...     file.append(0, {"error": 1.0})
    >>> run = record.read(path)
    >>> run.outcome, run.metrics["error"], run.attributes["agents"]
    ('running', array([1.]), 4)
    """
    return _run(path, rows=True)


def head(path: str | os.PathLike[str]) -> Run:
    """Read a run file as `read`, but for the final rows of all agents."""
    return _run(path, rows=False)


def _run(path: str | os.PathLike[str], rows: bool) -> Run:
    with open_run(path) as file:
        attributes = {
            k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()
        }
        result, n = file["result/x"], int(attributes["agents"])
        if result.shape[:1] != (n,):
            raise ValueError(
                f"its attribute agents is {n}, but /result/x has the shape {result.shape}"
            )
        outcome, reason = str(result.attrs["outcome"]), str(result.attrs.get("reason", ""))
        return Run(
            path=os.fspath(path),
            config=str(attributes.get("config", "")),
            attributes=attributes,
            metrics=ByName((name, dataset[()]) for name, dataset in columns(file).items()),
            outcome=outcome,
            steps=int(result.attrs["steps"]),
            x=None
            if outcome in (RUNNING, FAILED) or reason or not rows
            else _final(readable(result, os.fspath(path))),
            topology=tuple(_matrix(phase, n) for phase in _phases(file)),
            columns=tuple(_matrix(phase["C"], n) for phase in _phases(file) if "C" in phase),
            reason=reason,
            asynchronous={
                name: stored(dataset)[()] for name, dataset in file.get("asynchronous", {}).items()
            },
            agents={name: stored(dataset)[()] for name, dataset in file.get("agents", {}).items()},
            pending={name: stored(array)[()] for name, array in file.get("pending", {}).items()},
            unfinished=_unfinished(path, result, attributes) if outcome == RUNNING else "",
        )


def _final(result: h5py.Dataset | Sharded) -> NDArray[Any]:
    """Return the final rows; with a warning NaN for those in files that are missing."""
    if not isinstance(result, Sharded):
        return cast("NDArray[Any]", result[()])
    rows, missing = result.there()
    if missing:
        warn(
            f"{result.path}: the final rows that are in {', '.join(missing)} are NaN, as that is "
            "missing: it belongs beside the run file, under this name"
        )
    return rows


def _unfinished(
    path: str | os.PathLike[str], result: h5py.Dataset, attributes: Mapping[str, Any]
) -> str:
    """What can be told of a run without an end: killed, or going on here or elsewhere."""
    last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.stat(path).st_mtime))
    steps, host, here = int(result.attrs["steps"]), attributes.get("host"), platform.node()
    if (written := is_written(path)) is None:
        who = "no telling whether it goes on"
    elif written:
        who = "a process is writing it"
    elif host is None or host == here:
        who = ABANDONED
    else:
        who = f"no process of {here} is writing it, begun on {host}"
    return f"incomplete, {steps} steps so far, last written {last}, {who}"


def arrays_of(path: str | os.PathLike[str], group: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of a group of a run file, by name; none if it has no such group."""
    with open_run(path) as file:
        return {name: stored(dataset)[()] for name, dataset in file.get(group, {}).items()}


def last_checkpoint(path: str | os.PathLike[str]) -> tuple[int, dict[str, Any]]:
    """Read the last checkpoint: its step and all that was stored, by name (arrays; 0-d ones as
    Python numbers).

    A run of `solve` stores the fields of the solver's state, `counters` (time, rounds, bytes, rows,
    gradients), and, with error feedback, a row per agent for each `memory.<call>_<length>_<dtype>`;
    of a triggered mixer `memory.W<graph>_<call>_<length>_<dtype>`.

    Raises
    ------
    ResumeError
        If the run has no checkpoint.
    ValueError
        If the file is damaged, or no run file.

    Examples
    --------
    >>> import os, tempfile, mpidec.record as record
    >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
    >>> with record.RunFile(path, n=2, row_shape=(1,), metrics=["error"], meta={}) as file:
    ...     file.checkpoint(10, {"X": [[1.0], [2.0]], "k": 10})
    >>> record.last_checkpoint(path)
    (10, {'X': array([[1.],
           [2.]]), 'k': 10})
    """
    step, state = find_checkpoint(path)
    return step, {
        name: value[()] if isinstance(value, Sharded) else value for name, value in state.items()
    }


def find_checkpoint(path: str | os.PathLike[str]) -> tuple[int, dict[str, Any]]:
    """Read the last checkpoint as `last_checkpoint`, but for rows in shards: these are described
    (`Sharded`).
    """
    with open_run(path) as file:
        group = file.get("checkpoint")
        if group is None:
            raise ResumeError(
                f"{os.fspath(path)}: holds no checkpoint, so the run cannot be resumed: start it "
                "again"
            )
        state = {name: _value(dataset, os.fspath(path)) for name, dataset in group.items()}
        step = int(group.attrs["step"])
        if step < 0:
            raise ValueError(f"its checkpoint is that of step {step}, expected at least 0")
        counters = state.get("counters", np.zeros(5))
        if np.shape(counters) not in ((4,), (5,)):  # of asynchronous runs, of synchronous ones
            raise ValueError(
                f"the counters of its checkpoint have the shape {np.shape(counters)}, expected (5,)"
            )
        return step, state


def _value(dataset: h5py.Dataset, path: str) -> Any:
    found = readable(dataset, path)
    if isinstance(found, Sharded):
        return found
    return found[()] if found.ndim else found[()].item()


def checkpoint_step(path: str | os.PathLike[str]) -> int | None:
    """Return the step of the last checkpoint, from which a run resumes; None without one."""
    with open_run(path) as file:
        return int(file["checkpoint"].attrs["step"]) if "checkpoint" in file else None


@contextmanager
def open_run(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a run file for reading; raise ``ValueError`` if it is not one, or if it refers to
    other files than its shards.
    """
    # Imported on use: it is slow to load, and most ranks have no file.
    import h5py

    path = os.fspath(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder, expected a run file")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist")
    if not h5py.is_hdf5(path):
        # Raises PermissionError if the file is not readable.
        os.close(os.open(path, os.O_RDONLY))
        raise ValueError(
            f"{path}: not an HDF5 file, expected a run file (of python -m mpidec.run or python -m "
            "mpidec.train)"
        )
    with open_checked(path) as file:
        refuse_references(file, path, shards=True)
        schema = file.attrs.get("schema")
        if schema is None or "mpidec" not in file.attrs or "metrics" not in file:
            raise ValueError(
                f"{path}: HDF5, but not a run of mpidec (no attribute 'schema' or no '/metrics')"
            )
        if not isinstance(schema, (int, np.integer)):
            raise ValueError(f"its schema is {schema!r:.40}, expected a number up to {SCHEMA}")
        if schema > SCHEMA:
            writer = f"mpidec {file.attrs['mpidec']}"
            raise ValueError(
                f"{path}: schema {schema} of {writer}, expected at most {SCHEMA}: upgrade mpidec"
            )
        yield file


def columns(file: h5py.File, grows: bool = False) -> dict[str, Any]:
    """Return the data sets of the metrics, which have a number for each record; with `grows`, to
    which records can be added.
    """
    found = {name: stored(dataset) for name, dataset in file["metrics"].items()}
    rows = found["step"].shape[:1]
    for dataset in found.values():
        if dataset.shape != rows or dataset.dtype.kind == "c" or (grows and not dataset.chunks):
            raise ValueError(
                f"{dataset.name} is {dataset.shape} {dataset.dtype}"
                f"{'' if dataset.chunks else ', of fixed size'}, expected a real number for each "
                f"of the {rows[0]} records"
            )
    return found


def _phases(file: h5py.File) -> list[h5py.Group]:
    group = file.get("topology", {})
    return [group] if "data" in group else [group[key] for key in sorted(group, key=int)]


def _matrix(group: h5py.Group, n: int) -> csr_array:
    from scipy.sparse import csr_array

    W = csr_array(
        tuple(stored(group[name])[()] for name in ("data", "indices", "indptr")), shape=(n, n)
    )
    # An index out of range would be read beyond the array.
    W.check_format(full_check=True)
    return W
