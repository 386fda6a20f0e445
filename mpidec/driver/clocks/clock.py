"""The protocol of clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ...comm.mixing.internals import Operator, StepOperator
from ..answers import Errors
from ..metrics import Metrics
from ..plan import State
from ..result import Result

if TYPE_CHECKING:
    from ...topology import Schedule, Topology

Arrays = Mapping[str, np.ndarray]


class Watched(Protocol):
    """What a run is judged by, beside its records.

    Attributes
    ----------
    topology : Topology or Schedule
    disturbance : str
        What moves the limit of an exact method, such as lost messages, or "".
    """

    @property
    def topology(self) -> Topology | Schedule: ...

    @property
    def disturbance(self) -> str: ...

    def limits(self, d: int) -> str:
        """Return why the accuracy for rows of `d` numbers is limited, with a remedy, or ""."""

    def moment(self, k: int) -> str:
        """When step `k` ended, for messages."""


class Clock(Watched, Protocol):
    """What makes the states of a run.

    Attributes
    ----------
    name : str
        The root attribute ``clock`` of the file; empty for synchronous steps.
    function : str
        The function of this package that the run was started with, for the file.
    errors : Errors
        The exceptions of this rank.
    mixer : mixer or None
    """

    name: ClassVar[str]
    function: ClassVar[str]
    errors: Errors

    @property
    def mixer(self) -> Operator[StepOperator] | None: ...

    def names(self, measure: Metrics) -> tuple[str, ...]:
        """Return the metrics of a record."""

    def conditions(self) -> dict[str, object]:
        """Return what shapes the curve beside the solver, the problem and the graph."""

    def begin(self) -> State:
        """Return the first state."""

    def states(self, first: int, s: State) -> Iterator[tuple[int, State, bool]]:
        """The number of the step, the state after it and whether it is recorded, from the state
        `s` of step `first` on.
        """

    def measured(self, measure: Metrics, k: int, s: State, seconds: float) -> dict[str, float]:
        """Return a record: the metrics and the counters after step `k`; collective."""

    def stored(self, s: State) -> tuple[Any, ...]:
        """Return what a restart needs of the states, as a named tuple."""

    def totals(self, seconds: float) -> list[float]:
        """Return the counters in a checkpoint; collective."""

    def memory(self) -> Arrays:
        """Rows of the local agents in a checkpoint, beside the state, by name."""

    def arrays(self) -> Arrays:
        """Other arrays in a checkpoint, the same on all ranks."""

    def recall(
        self, path: str, k: int, s: Any, totals: list[float], memory: Arrays, arrays: Arrays
    ) -> tuple[State, float]:
        """Continue from a checkpoint of step `k`: the state, and the seconds so far.

        Raises
        ------
        ResumeError
        """

    def repeats(self, k: int) -> bool:
        """Whether a later record has the number `k` of the step, too, after `recall`."""

    def finish(self) -> None:
        """End what is on its way, after the last checkpoint."""

    def result(self, result: Result) -> Result:
        """Return the result of a run that has ended, with what the clock knows; collective."""
