"""Abstract bases of the mixers and of their steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np

from ...exceptions import RankMismatchError
from ..runtime.pending import Pending
from ..transport.base import Counters
from .codecs import Codec
from .packing import Empty, RowsT

if TYPE_CHECKING:
    from ...topology import Schedule, Topology


Lost = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
Attack = (
    str
    | float
    | Callable[[int, int, np.ndarray], object]
    | Callable[[int, int, np.ndarray, int], object]
)
RobustRule = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class StepOperator(ABC):
    """The operator of one step.

    Attributes
    ----------
    topology : Topology
    n, m : int
        Number of all agents, and of those on this rank.
    agents : range
        The agents on this rank.
    """

    topology: Topology
    n: int
    m: int
    agents: range

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology!r})"

    @property
    def parts(self) -> Sequence[StepOperator]:
        """The operators of the graphs among which the columns of a row are divided: this one, if there is one graph."""
        return [self]

    @property
    @abstractmethod
    def next(self) -> StepOperator:
        """The operator of the following step; a static one returns itself."""

    @property
    def R(self) -> StepOperator:
        """The row-stochastic operator of a pair; of any other `W`, itself."""
        return self

    @property
    def C(self) -> StepOperator:
        """The column-stochastic operator of a pair; of any other `W`, itself."""
        return self

    @abstractmethod
    def at(self, k: int) -> StepOperator:
        """The operator of step `k`."""

    def gamma(self, d: int) -> float:
        """The step towards the neighbours of a compressed mixing of rows of `d` entries; 1 without a codec."""
        return 1.0

    @abstractmethod
    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`, or several arrays of rows (list, tuple or dict)."""

    @abstractmethod
    def start(self, X: RowsT, out: RowsT | None = None) -> Pending:
        """Begin to mix `X`; `wait()` on the result returns the mixed rows."""

    @abstractmethod
    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        """Take no part in a mixing, or in another operation, so that the neighbours do not wait for this rank."""

    @contextmanager
    def _propagate_errors(self, op: str = "W(X)") -> Iterator[None]:
        """A context whose errors also reach the neighbours, since this rank takes no part in what they begin."""
        try:
            yield
        except (TypeError, ValueError, MemoryError) as error:
            if not isinstance(error, RankMismatchError):
                self.abort_operation(error, op)
            raise

    @abstractmethod
    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """The sender's row for each edge out of the local agents: `(m, ...) -> (out-edges, ...)`."""

    @abstractmethod
    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge: `(out-edges, ...) -> (in-edges, ...)`."""

    @abstractmethod
    def sum_edges(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent: `(in-edges, ...) -> (m, ...)`."""

    @abstractmethod
    def own(self, X: np.ndarray) -> np.ndarray:
        """The rows times the agents' weights for themselves: `D X`, with the diagonal D of `W`."""

    @property
    @abstractmethod
    def in_edges(self) -> int:
        """Number of edges into the local agents."""


Step = TypeVar("Step", bound=StepOperator, covariant=True)


class Operator(ABC, Generic[Step]):
    """Abstract base of the mixers: `Y = W(X)` replaces each agent's row by an average of its neighbours' rows.

    `W(X)` uses the operator of the current step and moves on to the next step; `W.at(k)` is the operator of step k and
    changes nothing.

    Parameters
    ----------
    topology : Topology or Schedule
    agents : range
        The agents on this rank.
    empty : callable (shape, dtype) -> array
        Makes uninitialized rows for the local agents, shape `(m, *shape)`.
    counts
        Counters `rounds`, `messages` and `bytes`: one object, shared by a mixer and all mixers made of it.

    Attributes
    ----------
    n, m : int
        Number of all agents, and of those on this rank.
    feedback : bool
        Whether the mixer remembers rows from step to step (error feedback): then `memory()` belongs in a checkpoint.
    """

    feedback: bool = False
    columnwise: bool = True  # each column of the rows is mixed by itself
    refused: ClassVar[Mapping[str, str]] = {}  # calls that a mixer has no answer to, and why

    def __init__(
        self,
        topology: Topology | Schedule,
        agents: range,
        empty: Empty,
        counts: Counters,
    ):
        self.topology, self.agents, self.empty, self.counts = topology, agents, empty, counts
        self.n, self.m = topology.n, len(agents)
        self._step = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology!r})"

    @abstractmethod
    def at(self, k: int) -> Step:
        """The operator of step `k`."""

    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`, with the operator of the current step; see `Phase.__call__`."""
        return self._advance()(X, out)

    def start(self, X: RowsT, out: RowsT | None = None) -> Pending:
        """Begin to mix `X` with the operator of the current step; see `Phase.start`."""
        return self._advance().start(X, out)

    def _advance(self) -> Step:
        self._step += 1
        return self.at(self._step - 1)

    def compress(
        self,
        codec: str | Codec,
        *,
        feedback: bool | None = None,
        gamma: float | None = None,
        seed: int | None = None,
        **options: object,
    ) -> Operator[StepOperator]:
        """This mixer with encoded rows; see `Mixer.compress`.

        Raises
        ------
        ValueError
            If it is compressed or accelerated already: compress first, then accelerate.
        """
        raise self._refusal("compress")

    def accelerate(self, K: int, method: str = "chebyshev") -> Operator[StepOperator]:
        """K mixings in one call; see `Mixer.accelerate`.

        Raises
        ------
        ValueError
            If it is accelerated already: give the number of all mixings at once.
        """
        raise self._refusal("accelerate")

    def lossy(
        self, messages: float | np.ndarray | Lost, *, seed: int = 0, fill: str = "renormalize"
    ) -> Operator[StepOperator]:
        """This mixer with messages that are lost; see `Mixer.lossy`.

        Raises
        ------
        ValueError
        """
        raise self._refusal("lossy")

    def attacked(self, attacks: Mapping[int, Attack]) -> Operator[StepOperator]:
        """This mixer with agents that send other rows than their own; see `Mixer.attacked`.

        Raises
        ------
        ValueError
        """
        raise self._refusal("attacked")

    def noisy(self, sigma: float, *, seed: int = 0) -> Operator[StepOperator]:
        """This mixer with noise on what arrives; see `Mixer.noisy`.

        Raises
        ------
        ValueError
        """
        raise self._refusal("noisy")

    def robust(
        self,
        rule: str | RobustRule,
        *,
        tau: float | None = None,
        delta: float | None = None,
        trim: int | None = None,
    ) -> Operator[StepOperator]:
        """This mixer with a robust rule in place of the average; see `Mixer.robust`.

        Raises
        ------
        ValueError
        """
        raise self._refusal("robust")

    def repeat(self, S: int) -> Operator[StepOperator]:
        """S mixings in one step; see `Mixer.repeat`.

        Raises
        ------
        ValueError
        """
        raise self._refusal("repeat")

    def _refusal(self, call: str) -> ValueError:
        return ValueError(
            self.refused.get(call)
            or f"{call} of a mixer that is {type(self).__name__.lower()} already: take each at most once, in the order "
            "W.compress(codec, feedback=False).attacked(...).noisy(...), then lossy, robust or neither, then repeat"
        )

    @property
    def rounds(self) -> int:
        """Number of mixings and exchanges so far."""
        return int(self.counts.rounds)

    @property
    def messages(self) -> int:
        """Number of rows that the agents of this rank sent to other agents."""
        return int(self.counts.messages)

    @property
    def bytes(self) -> int:
        """Size of these rows."""
        return int(self.counts.bytes)

    def gamma(self, d: int) -> float:
        r"""The :math:`\gamma` for which the mixer is close to :math:`I + \gamma (W - I)` on rows of `d` entries."""
        return 1.0

    @property
    def disturbance(self) -> str:
        """What moves the limit of exact methods, such as "10 % of the messages are lost"; empty if nothing does."""
        return ""

    def memory(self) -> dict[str, np.ndarray]:
        """Rows remembered from step to step, by name: arrays `(m, ...)` of the local agents.  Collective."""
        return {}

    def recall(self, memory: Mapping[str, np.ndarray]) -> None:
        """Continue with the `memory` of an equal mixer, which may have run on another number of ranks.  Collective.

        Raises
        ------
        ValueError
            If this mixer has no memory, or not of this shape.
        """
        if memory:
            raise ValueError(
                f"a mixer without error feedback has no memory, got {', '.join(sorted(memory))}: compress it with "
                "the codec and the feedback of the mixer that the memory comes from"
            )

    @abstractmethod
    def close(self) -> None:
        """Free the communicators; collective, and safe to repeat."""
