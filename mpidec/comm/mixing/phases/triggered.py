"""Rows that are sent only if they have moved: the operator of one step, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .... import _validation as check
from ...._words import word
from ...runtime import Pending
from ..base.step import StepOperator
from ..codecs.base import bytes_of
from .compressed import Estimate, Memory
from .exchange import EdgeExchange, scaled
from .wrapped import WrappedPhase, targets

if TYPE_CHECKING:
    from ....topology import Schedule, Topology

# What is remembered beside rows: how many messages each agent has not sent.
WITHHELD = "withheld"


@dataclass(frozen=True, repr=False)
class Trigger:
    r"""Rows that are sent only if they have moved; made by `Mixer.triggered`.

    With :math:`\hat X_i` the row that the neighbours of agent i have heard last, in step k

    .. math::
        \hat X_i &\leftarrow X_i \quad \text{if } \|X_i - \hat X_i\| > \tau_k \text{, which is sent}, \\
        Y &= X + (W - I) \hat X

    so that an agent's own row is always the newest one, and differences are of what both ends of an
    edge know: a doubly (column) stochastic W preserves the average (sum), whatever is not sent.
    Exact methods need that: EXTRA, gradient tracking, push-sum and ADMM reach the minimizer if
    :math:`\sum_k \tau_k < \infty`, and a neighbourhood of it with a constant threshold.

    With `conserving=False`, the agent's weight for itself multiplies its newest row,

    .. math:: Y_i = w_{ii} X_i + \sum_{j \ne i} w_{ij} \hat X_j

    which is closer to :math:`W X`, and moves the average by at most :math:`\max_i (1 - w_{ii})
    \tau_k` in each step: for methods that forget such errors (consensus with a threshold that
    decays to zero does not, diffusion and DGD do).

    Parameters
    ----------
    threshold : float or callable
        :math:`\tau_k`: c of :math:`c\, r^k`, or a function of the step k.
    decay : float
        r, in (0, 1].
    conserving : bool

    Notes
    -----
    Sent per call: the rows that have moved, to all neighbours; `messages` and `bytes` count these.
    With messages, ranks also tell one another which rows these are, one byte for each row, which
    is not counted; in shared memory nothing travels.  Floats of 16 bits are sent as float32.  With
    the threshold 0, each row is sent that has changed, and the results are those of W to the last
    bit.

    Neighbours take :math:`\hat X = 0` to be known before the first message.  Each call that a
    solver makes within a step mixes another quantity and has its own :math:`\hat X`, as each array
    of one call and each operator of a schedule has: a neighbour of step k remembers the row of the
    last step with the same operator.  `memory()` returns the rows of the local agents, which
    `solve` stores in its checkpoints.

    The norm is the Euclidean one of the whole row of an agent; a row that is not finite is sent.

    References
    ----------
    G. S. Seyboth, D. V. Dimarogonas, K. H. Johansson, "Event-based broadcasting for multi-agent
    average consensus", Automatica 49 (2013).

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.ring(4)).triggered(1.0, decay=0.8)
    ...     X = np.array([[4.0], [8.0], [12.0], [16.0]])
    ...     for _ in range(100):
    ...         X = W(X)
    ...     X.round(9).ravel().tolist(), W.messages, 100 * 8
    ([10.0, 10.0, 10.0, 10.0], 528, 800)
    """

    threshold: float | Callable[[int], float]
    decay: float = 1.0
    conserving: bool = True

    def __post_init__(self) -> None:
        if callable(self.threshold):
            check.takes(self.threshold, "triggered: threshold", "k")
            if self.decay != 1:
                raise ValueError(
                    f"triggered: decay is {self.decay}, expected none beside a function of the step"
                )
            return
        numbers = {
            "threshold": check.number(self.threshold, "triggered: threshold", least=0),
            "decay": check.number(self.decay, "triggered: decay", above=0, most=1),
        }
        for name, value in numbers.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        decay = f", decay={self.decay}" * (self.decay != 1)
        return f"triggered({word(self.threshold)}{decay}{', conserving=False' * (not self.conserving)})"

    def __str__(self) -> str:
        """What it does to the limit of exact methods, "" for nothing."""
        constant = isinstance(self.threshold, float) and self.decay == 1
        if constant and self.threshold:
            return f"rows are sent only when they have moved by more than {self.threshold:.3g}"
        return "" if self.conserving or self.threshold == 0 else "the average is not preserved"

    def limit(self, k: int) -> float:
        r""":math:`\tau_k`

        Raises
        ------
        TypeError, ValueError
            If the function returns something other than a number >= 0.
        """
        if isinstance(self.threshold, float):
            return self.threshold * self.decay**k
        where = f"triggered: what the threshold returns for step {k}"
        return check.number(self.threshold(k), where, least=0)

    def check(self, topology: Topology | Schedule) -> None:
        """Refuse a schedule whose operators do not come again.

        Raises
        ------
        ValueError
        """
        if topology.period is None:
            raise ValueError(
                f"triggered: the graphs of {topology.name} do not come again, and a neighbour "
                "remembers what it has heard over the same graph: take a static topology or a "
                "schedule with a period"
            )


def moved(X: np.ndarray, heard: np.ndarray, limit: float) -> np.ndarray:
    """Return which rows are further than `limit` from those that have been heard; if it is 0, which
    ones have other bits.
    """
    if not limit:
        changed: np.ndarray = (bytes_of(X) != bytes_of(heard)).any(axis=1)
        return changed
    with np.errstate(over="ignore", invalid="ignore"):
        near: np.ndarray = np.linalg.norm(X - heard, axis=1) <= limit
    return ~near


class Heard:
    """What the neighbours of the local agents have heard: a `Memory` for each operator of a
    schedule, and for its column-stochastic one if it is a pair.

    Attributes
    ----------
    withheld : array (m, 1)
        How many messages each local agent has not sent.
    """

    def __init__(self, m: int):
        self.memories: dict[str, Memory] = {}
        self.withheld = np.zeros((m, 1))

    def of(self, place: str) -> Memory:
        """The memory of the operator with this name."""
        return self.memories.setdefault(place, Memory())

    def save(self) -> dict[str, np.ndarray]:
        """Return the rows of the local agents, by "operator_call_d_dtype"."""
        rows = {
            f"{place}_{name}": X
            for place, memory in self.memories.items()
            for name, X in memory.save().items()
        }
        return rows | {WITHHELD: self.withheld.copy()} if rows else {}

    def restore(
        self, saved: Mapping[str, np.ndarray], operator: Callable[[str], EdgeExchange]
    ) -> None:
        """Continue with what `save` returned: of each `operator(name)`."""
        rows: dict[str, dict[str, np.ndarray]] = {}
        for name in sorted(saved.keys() - {WITHHELD}):
            place, _, rest = name.partition("_")
            rows.setdefault(place, {})[rest] = saved[name]
        self.memories.clear()
        for place, some in rows.items():
            self.of(place).restore(some, operator(place))
        self.withheld = np.array(saved.get(WITHHELD, np.zeros_like(self.withheld)))


class TriggeredPhase(WrappedPhase):
    """The operator of one step of a `Triggered` mixer, on one graph; it counts its calls.

    Parameters
    ----------
    phase, k, at
        See `WrappedPhase`.
    trigger : Trigger
    heard : Heard
    place : str
        The name of the operator: "W" and the number of the graph in the schedule.
    calls : iterator of int
        Numbers of the calls, shared by both operators of a pair.
    """

    _phase: EdgeExchange

    def __init__(
        self,
        phase: EdgeExchange,
        k: int,
        at: Callable[[int], StepOperator],
        trigger: Trigger,
        heard: Heard,
        place: str,
        calls: Iterator[int],
    ):
        super().__init__(phase, k, at)
        self._trigger, self._heard, self._place, self._calls = trigger, heard, place, calls

    @property
    def C(self) -> StepOperator:
        """The column-stochastic operator of a pair, with the same trigger; of any other `W`,
        itself.
        """
        C, at = self._phase.C, lambda k: self._at(k).C
        if not isinstance(C, EdgeExchange) or C is self._phase:
            return self
        place = self._place.replace("W", "C")
        return TriggeredPhase(C, self._k, at, self._trigger, self._heard, place, self._calls)

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        super().abort_operation(error, "fetch" if op == "W(X)" else op)

    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending:
        if arrays[0].dtype == np.float16:  # summed in float32, rounded once
            wide = self.start_all([X.astype(np.float32) for X in arrays])
            halves = targets(arrays, out)
            return Pending(wide, lambda: [_into(Y, Z) for Y, Z in zip(halves, wide.wait())])
        made, memory, phase = targets(arrays, out), self._heard.of(self._place), self._phase
        try:
            limit = self._trigger.limit(self._k)
            known = [memory.estimate(next(self._calls), X, len(phase.halo)) for X in arrays]
        except Exception as error:
            self.abort_operation(error)
            raise
        sent = [moved(X, each.own, limit) for X, each in zip(arrays, known)]
        for X, each, some in zip(arrays, known, sent):
            # A new array: neighbours may still read the last one in place.
            each.own = np.where(some[:, None], X, each.own)
        silent = ~np.any(sent, axis=0) * phase.edges.degrees
        self._heard.withheld += silent[:, None]
        arrival = phase.fetch_moved(
            [each.own for each in known], sent, [each.halo for each in known]
        )

        def finish() -> list[np.ndarray]:
            for each, halo in zip(known, arrival.wait()):
                each.halo, each.pending = halo, None
            return [
                self._mix(X, each, np.flatnonzero(~some) if limit else [], Y)
                for X, each, some, Y in zip(arrays, known, sent, made)
            ]

        pending = Pending(arrival, finish)
        for each in known:
            each.pending = pending
        return pending

    def _mix(
        self, X: np.ndarray, known: Estimate, rest: np.ndarray | list[int], out: np.ndarray
    ) -> np.ndarray:
        """`W X_hat`, and what the rows that are not sent have moved since; see `Trigger`."""
        self._phase.average(known.own, known.halo, out)
        away = X[rest] - known.own[rest]
        out[rest] += away if self._trigger.conserving else scaled(away, self._phase.diagonal[rest])
        return out

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Raise: only averages can be triggered.

        Raises
        ------
        ValueError
        """
        raise ValueError(
            "a triggered mixer computes averages only, and this solver sends a different row to "
            "each neighbour: give it the mixer without triggered"
        )


def _into(out: np.ndarray, rows: np.ndarray) -> np.ndarray:
    out[:] = rows
    return out
