"""Mixers: `Y = W(X)` replaces each agent's row by a weighted average of its neighbours' rows."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

from ....topology import Changing
from ....topology.internals import column_part, transpose
from ...runtime import Context, Counts, Pending
from ...transport import Counters, Ending, Kinds, neighbor_collectives
from ..base.packing import RowsT
from ..base.traced import trace
from ..phases.changing import ChangingPhase
from ..phases.phase import Phase
from .operator import Operator

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse import csr_array

    from ....topology import Schedule, Topology

PhaseT = TypeVar("PhaseT", bound=Phase)
_PHASES = 64  # of a random schedule kept at a time, and of a period with communicators


class Mixer(Operator[Phase]):
    """The operator `W` of a topology, or of a schedule of them, on a network; made by
    `Network.mixer`.

    `W(X)` mixes with the operator of the current step: a static topology (or a schedule of period
    1) has only one, and any other schedule moves on by one step at each call.  `W.at(k)` is the
    operator of step k; it does not move the schedule.

    Attributes
    ----------
    rounds : int
        Number of mixings and exchanges so far.
    messages, bytes : int
        Rows that the agents of this rank sent to other agents, and their size; edges between two
        agents of one rank count like all others, so that the totals over all ranks do not depend on
        the number of ranks.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.one_peer_exponential(4))
    ...     X = np.array([[4.], [0.], [0.], [0.]])
    ...     W(W(X)).ravel().tolist(), W.rounds, W.messages, W.bytes
    ([1.0, 1.0, 1.0, 1.0], 2, 8, 64)
    """

    def __init__(
        self, context: Context, topology: Topology | Schedule, counts: Counters | None = None
    ):
        lo, hi = context.partition.bounds(context.rank)
        super().__init__(
            topology.at(0) if topology.period == 1 else topology,
            range(lo, hi),
            counts or Counts(),
        )
        self._context = context
        self._kinds: Kinds = {}  # of the last exchanges of a random schedule
        self.closed = False
        self._phases: OrderedDict[int, Phase] = OrderedDict()
        self._static: Phase | None = None
        self._changing: ChangingPhase | None = None
        alone = context.size == 1 and context.timeline is None
        if alone and isinstance(topology, Changing) and topology.kind != "column":
            self._changing = self._operator(ChangingPhase, cast("Topology", topology), 0)
        if topology.period == 1:
            self._static = self.at(0)
        if (
            context.transport == "neighbor"
            and context.size > 1
            and topology.period is not None
            and topology.period <= _PHASES
        ):
            phases = [self.phase(k) for k in range(topology.period)]
            made = neighbor_collectives(
                context.comm, context.row_type, [phase.plan for phase in phases]
            )
            for phase, messages in zip(phases, made):
                phase.use(messages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology!r}{', closed' * self.closed})"

    def at(self, k: int) -> Phase:
        """Return the operator of step `k`."""
        static = self._static
        return self.phase(k) if static is None else static

    def phase(self, k: int) -> Phase:
        """Return the operator of one topology of the schedule: that of step `k`."""
        if self._static is not None:
            return self._static
        if self.closed:
            raise RuntimeError(
                f"the mixer of the {self.topology.name} topology is closed: ask its network for a "
                "new one"
            )
        period = self.topology.period
        key = k if period is None else k % period
        if key not in self._phases:
            if len(self._phases) >= _PHASES and period is None:
                self._phases.popitem(last=False)[1].free()
            made: Phase | None = self._changing and self._changing.step(key)
            self._phases[key] = made or self._operator(Phase, self.topology.at(key), key)
        return self._phases[key]

    def _operator(self, kind: type[PhaseT], topology: Topology, k: int) -> PhaseT:
        made = kind(
            self._context,
            topology,
            k,
            counts=self.counts,
            at=self.at,
            transposed=lambda k: self.T.at(k),
            columns=lambda k: self.C.at(k),
            periodic=self.topology.period is not None,
            kinds=self._kinds,
        )
        return trace(made, "mixing", self._context.timeline)

    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`, with the operator of the current step; see
        `Phase.__call__`.
        """
        phase = self._static
        if phase is None:
            k, self._step = self._step, self._step + 1
            if self._changing is not None:
                Y = self._changing.mix_once(k, X, out)
                if Y is not None:
                    return Y
            phase = self.at(k)
        Y = phase.mix(X, out)
        return phase.mix_any(X, out) if Y is None else Y

    def start(self, X: RowsT, out: RowsT | None = None) -> Pending:
        """Begin to mix `X` with the operator of the current step; see `Phase.start`."""
        return (self._static or self._advance()).start(X, out)

    def with_weights(self, A: ArrayLike | csr_array) -> Phase:
        """Return the operator of the current step with other weights; see `Phase.with_weights`."""
        return (self._static or self._advance()).with_weights(A)

    @cached_property
    def T(self) -> Mixer:
        """The mixer of the transposed topology, which gradients are mixed with; made once, and
        counted together with this one.

        Collective when it is used for the first time.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(
        ...         mpidec.topology.from_weights([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.25, 0.25, 0.5]])
        ...     )
        ...     W.T(np.eye(3)).tolist()
        [[0.5, 0.0, 0.25], [0.5, 0.5, 0.25], [0.0, 0.5, 0.5]]
        """
        with self._context.engine:
            transposed = Mixer(self._context, transpose(self.topology), self.counts)
        transposed.__dict__["T"] = self
        return transposed

    @cached_property
    def C(self) -> Mixer:
        """The mixer of the column-stochastic matrices of a topology of pairs, counted together with
        this one; else itself.

        Collective when it is used for the first time.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.chain(3, weights="push-pull"))
        ...     pulled, pushed = W.at(0).R(np.ones((3, 1))), W.C(np.array([[3.0], [0.0], [0.0]]))
        ...     pulled.ravel().tolist(), float(pushed.sum())
        ([1.0, 1.0, 1.0], 3.0)
        """
        if self.topology.kind != "pair":
            return self
        with self._context.engine:
            return Mixer(self._context, column_part(self.topology), self.counts)

    def close(self, ends: Ending = "complete") -> None:
        """Free the communicators; collective, and safe to repeat."""
        if self.closed:
            return
        self.closed = True
        for phase in self._phases.values():
            phase.free(ends)
        self._phases.clear()
        self._static = self._changing = None
        if "T" in self.__dict__:
            self.T.close(ends)
        if self.__dict__.get("C", self) is not self:
            self.C.close(ends)
