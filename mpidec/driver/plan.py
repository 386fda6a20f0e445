"""What a run is made of: its arguments, checked, and what is made of them on all ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from .._complex import as_reals
from .._validation import takes
from ..comm.mixing import Mixer, Network
from ..comm.mixing.internals import Operator, StepOperator
from ..comm.runtime import on_all_ranks
from ..record import Record
from ..solvers import Solver
from .arguments import Delay, check_equal, problem_of
from .metrics import Own
from .outcome import Stop, StopFunction, Target

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

    from ..problems import Oracle, Problem
    from ..topology import Schedule, Topology

Progress = Callable[[int, int, Mapping[str, float]], None]
Mixing = Callable[[Mixer], Operator[StepOperator]]


@runtime_checkable
class Noting(Protocol):
    """Progress that also shows lines of text."""

    def note(self, line: str) -> None:
        """Show a line beside the progress."""


class Printed:
    """Progress in one line for each record."""

    def __call__(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        self.note(
            f"step {step}/{steps}  "
            + "  ".join(
                f"{name} {metrics[name]:.3e}"
                for name in ("objective", "consensus", "error")
                if name in metrics
            )
        )

    def note(self, line: str) -> None:
        print(line, flush=True)


def as_progress(progress: Progress | bool | None) -> Progress | None:
    """Return the argument `progress`, where True prints lines, and False and None nothing."""
    if progress is True:
        return Printed()
    if not progress:
        return None
    takes(progress, "progress", "step", "steps", "metrics")
    return progress


@runtime_checkable
class State(Protocol):
    """State of a solver: a named tuple with the rows of the local agents."""

    @property
    def X(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Queue:
    """The clock of a simulation: `solve(..., clock=Queue())` runs an asynchronous solver on a
    queue of events, in each process that calls it, as `mpidec.simulate` does.

    Parameters
    ----------
    events : structured array, optional
        The events themselves, in place of those of Poisson clocks; see `mpidec.simulate`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), [[1.], [3.], [0.], [4.]])
    >>> solver = mpidec.solvers.RunningSumTracking(0.5)
    >>> mpidec.solve(problem, solver, "ring", steps=800, clock=Queue()).x.round(9)
    array([2.])
    """

    events: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Arguments of one run, checked; see `mpidec.solve`."""

    net: Network
    oracle: Oracle | None
    solver: Solver
    topology: Topology | Schedule
    X: np.ndarray
    steps: int
    every: float
    seed: int
    stop: Stop | None
    target: Target | StopFunction | None
    record: Record | None
    progress: Progress | None
    mixing: Mixing | None
    delay: Delay | None = None
    drop: float = 0.0
    straggler: Mapping[int, float] | None = None
    rates: ArrayLike | None = None
    clock: Queue | None = None
    metrics: Mapping[str, Own] = field(default_factory=dict)
    runs: int = 1

    def by_run(self, X: np.ndarray) -> np.ndarray:
        """Return the rows of several runs as an array (m, runs, d); of one, (m, d), as they are."""
        return X if self.runs == 1 else X.reshape(len(X), self.runs, -1)

    def of_first_run(self, X: np.ndarray) -> np.ndarray:
        """Return the rows of the first run, by which a chosen step size is judged, as real ones."""
        return as_reals(X)[:, : as_reals(self.X).shape[1]]

    @property
    def problem(self) -> Problem | None:
        """The functions of the local agents."""
        return problem_of(self.oracle)

    @property
    def checkpoint_seconds(self) -> float | None:
        """The time between two checkpoints; None where there is no file."""
        return self.record.checkpoint_seconds if self.record else None

    @property
    def tolerance(self) -> float:
        """The relative error at which the run may stop; 1 if it does not look at errors."""
        return self.stop.get("error", 1.0) if isinstance(self.stop, Mapping) else 1.0

    def chosen(self, line: str) -> None:
        """Show the step size that a search has found, where no table at the end does."""
        if isinstance(self.progress, Printed):
            self.note(f"step size {line}")

    def note(self, line: str) -> None:
        """Show a line beside the progress, on rank 0."""
        if isinstance(self.progress, Noting) and self.net.rank == 0:
            self.progress.note(line)

    @contextmanager
    def mixer(self) -> Iterator[Operator[StepOperator]]:
        """The mixer of the topology, or what `mixing` makes of it; collective, and so is the
        end, but after an exception.
        """
        with closing(self.net.mixer(self.topology)) as base:
            mixer = derived(self.mixing, base, self.net)
            yield mixer.lossy(self.drop, seed=self.seed) if self.drop else mixer


@contextmanager
def closing(mixer: Mixer) -> Iterator[Mixer]:
    """Context that closes a mixer; collective, therefore not after an error on this rank only."""
    yield mixer
    mixer.close()


def derived(mixing: Mixing | None, base: Mixer, net: Network) -> Operator[StepOperator]:
    """Return the mixer that `mixing` makes of the mixer of the topology; its errors are raised on
    every rank.
    """
    if mixing is None:
        return base
    with on_all_ranks(net):
        if not callable(mixing):
            raise TypeError(
                f"mixing is {mixing!r:.60}, expected a function of the mixer W, such as "
                'lambda W: W.compress("top_k", fraction=0.01) or lambda W: W.accelerate(3)'
            )
        takes(mixing, "mixing", "W")
        mixer = mixing(base)
        if not isinstance(mixer, Operator):
            raise TypeError(
                f"mixing returned {mixer!r:.60}, expected a mixer derived from its argument: "
                "lambda W: W.accelerate(3)"
            )
    check_equal(net, {"mixing": mixer.calls})
    return mixer


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Return the libraries with threads that are loaded, looked for again when modules have been
    imported: finding them takes a millisecond.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def arithmetic(net: Network) -> Iterator[None]:
    """Context of the steps: BLAS with one thread, temporaries in the memory of the node, and no
    warnings of overflow.
    """
    with (
        _libraries(len(sys.modules)).limit(limits=1, user_api="blas"),
        net.memory(),
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),
    ):
        yield


def resumed_at(step: int, later: bool) -> str:
    """Return what a resumed run tells at its beginning."""
    again = ": later records are computed again" if later else ""
    return f"resumed at step {step}, that of the last checkpoint{again}"
