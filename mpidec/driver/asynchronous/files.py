"""Files of asynchronous runs: checkpoint, result, and what the agents, the edges and the ranks have done."""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...comm.mixing.network import Network
from ...comm.runtime.mpi import MPI
from ...record.recorder import Record, Recorder
from ..provenance import attributes
from ..stopping import Outcome
from .result import SIMULATED, AsyncResult, collected, stacked


def rows(solver: Any, states: Sequence[Any], stacks: Mapping[str, np.ndarray]) -> Any:
    """The states of the local agents as a named tuple of arrays, for a checkpoint; without agents, of arrays without rows."""
    some = states or [solver.init(np.zeros(stacks["x"].shape[1]))]
    fields = vars(collected(some, stacks if states else stacked(some)))
    arrays = {
        name: value[: len(states)]
        for name, value in fields.items()
        if isinstance(value, np.ndarray)
    }
    return namedtuple("State", arrays)(**arrays)


@contextmanager
def failing(recorder: Recorder[Any] | None) -> Iterator[None]:
    """Context of a run: an exception is written into its file, with the outcome "failed"."""
    try:
        yield
    except BaseException as error:
        if recorder is not None:
            recorder.abandon(
                f"{type(error).__name__}: {error}" if isinstance(error, Exception) else ""
            )
        raise


class Writing:
    """The file of a simulated run, written in this process; a context manager.

    Parameters
    ----------
    record : path or Record
    n : int
        Number of agents.
    shape : tuple of int
        Shape of a row.
    names : tuple of str
        Metrics of a record.
    topology, solver
    steps, every, seed
        Of the run.
    least : float or None
        The objective at the solution.
    problem : problem or None
    """

    def __init__(
        self,
        record: str | os.PathLike[str] | Record,
        n: int,
        shape: tuple[int, ...],
        names: tuple[str, ...],
        topology: Any,
        solver: Any,
        steps: int,
        every: float,
        seed: int,
        least: float | None,
        problem: Any,
    ):
        if not isinstance(record, (str, os.PathLike, Record)):
            raise TypeError(
                f"record is {record!r:.60}, expected a path, or mpidec.Record(path, ...)"
            )
        self.record = record if isinstance(record, Record) else Record(record)
        self.record.check()
        if self.record.resume:
            raise ValueError(f"{os.fspath(self.record.path)}: {SIMULATED}")
        self._net, self._last = Network(n, MPI.COMM_SELF), -1
        self.recorder: Recorder[Any] = Recorder(self._net, self.record, (), ())
        meta = attributes(
            self._net,
            self.record,
            solver,
            topology,
            steps,
            every,
            seed,
            function="simulate",
            problem=problem,
        )
        self.recorder.create(
            shape,
            names,
            namedtuple("State", ())(),
            topology,
            meta | {"clock": "simulated"} | ({} if least is None else {"f_star": least}),
            int(steps / every) + 2,
        )

    def append(self, metrics: Mapping[str, Any], X: np.ndarray) -> None:
        """Write a record, if its step is a new one."""
        if metrics["step"] > self._last:
            self._last = int(metrics["step"])
            self.recorder.append(self._last, metrics, X)
            self._net.agree(self.recorder.error)

    def finish(self, result: AsyncResult) -> None:
        """Write the result."""
        finish(self.recorder, result, None, self._last)

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *error: object) -> None:
        self._net.close()


def finish(recorder: Recorder[Any], result: AsyncResult, state: Any, last: int) -> None:
    """Write a checkpoint if the run can be resumed, and the result; collective.

    Parameters
    ----------
    recorder : Recorder
    result : AsyncResult
    state : named tuple
        The `rows` of the states.
    last : int
        Step of the last record in the file.
    """
    if result.outcome is not Outcome.DIVERGED and not result.obstacle:
        recorder.checkpoint(
            last, state, counters({name: column[-1] for name, column in result.metrics.items()}), {}
        )
    recorder.finish(result.X, str(result.outcome), last, arrays(result))


def counters(record: Mapping[str, float]) -> np.ndarray:
    """Time, messages, bytes and events of a record, with which a resumed run goes on."""
    return np.array([record[name] for name in ("time", "messages", "bytes", "events")], float)


class Activity(NamedTuple):
    """What agents, edges and ranks have done so far; the fields are those of `AsyncResult`."""

    counts: np.ndarray
    averagings: Mapping[tuple[int, int], int]
    staleness: np.ndarray
    idle: np.ndarray


def arrays(result: AsyncResult | Activity) -> dict[str, np.ndarray]:
    """What `Run.asynchronous` holds of a run.

    Examples
    --------
    >>> import mpidec
    >>> result = mpidec.simulate(None, mpidec.solvers.PairwiseGossip(), mpidec.topology.ring(3), steps=9, x0=np.eye(3))
    >>> arrays(result)["edges"].tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    found = {"steps": result.counts}
    if result.averagings:
        edges = sorted(result.averagings)
        found |= {
            "edges": np.array(edges, np.int64),
            "averagings": np.array([result.averagings[edge] for edge in edges], np.int64),
        }
    if len(result.staleness):
        found["staleness"] = result.staleness
    if result.idle is not None:
        found["idle"] = result.idle
    return found
