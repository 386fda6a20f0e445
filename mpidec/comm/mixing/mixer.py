"""Mixers: `Y = W(X)` replaces each agent's row by a weighted average of its neighbours' rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...topology.pair import column_part
from ...topology.transposed import transpose
from ..runtime.context import Context
from ..runtime.memory import empty
from ..runtime.node import Counts
from ..runtime.pending import Pending
from ..transport.base import Counters
from ..transport.halo import Ending, Kinds
from ..transport.messages import neighbor_collectives
from . import codecs
from .accelerated import Accelerated
from .attacked import Attacked
from .compressed import Compressed
from .lossy import Lossy
from .noisy import Noisy
from .operator import Attack, Lost, Operator, RobustRule
from .packing import RowsT
from .phase import Phase
from .repeated import Repeated
from .robust import Robust
from .traced import trace

if TYPE_CHECKING:
    from ...topology import Schedule, Topology

_PHASES = 64  # of a random schedule kept at a time, and of a period with communicators


class Mixer(Operator[Phase]):
    """The operator `W` of a topology, or of a schedule of them, on a network; made by `Network.mixer`.

    `W(X)` mixes with the operator of the current step: a static topology (or a schedule of period 1) has only one, and any
    other schedule moves on by one step at each call.  `W.at(k)` is the operator of step k; it does not move the schedule.

    Attributes
    ----------
    rounds : int
        Number of mixings and exchanges so far.
    messages, bytes : int
        Rows that the agents of this rank sent to other agents, and their size; edges between two agents of one rank
        count like all others, so that the totals over all ranks do not depend on the number of ranks.

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
            lambda shape, dtype: empty((hi - lo, *shape), dtype),
            counts or Counts(),
        )
        self._context = context
        self._kinds: Kinds = {}  # of the last exchanges of a random schedule
        self.closed = False
        self._phases: OrderedDict[int, Phase] = OrderedDict()
        self._static: Phase | None = None
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
        """The operator of step `k`."""
        return self.phase(k)

    def phase(self, k: int) -> Phase:
        """The operator of one topology of the schedule: that of step `k`."""
        if self._static is not None:
            return self._static
        if self.closed:
            raise RuntimeError(
                f"the mixer of the {self.topology.name} topology is closed: ask its network for a new one"
            )
        period = self.topology.period
        key = k if period is None else k % period
        if key not in self._phases:
            if len(self._phases) >= _PHASES and period is None:
                self._phases.popitem(last=False)[1].free()
            made = Phase(
                self._context,
                self.topology.at(key),
                key,
                self.counts,
                self.at,
                lambda k: self.T.at(k),
                lambda k: self.C.at(k),
                period is not None,
                self._kinds,
            )
            self._phases[key] = trace(made, self._context.timeline)
        return self._phases[key]

    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`, with the operator of the current step; see `Phase.__call__`."""
        phase = self._static
        if phase is None:
            phase = self._advance()
        Y = phase.mix(X, out)
        return phase.mix_any(X, out) if Y is None else Y

    def start(self, X: RowsT, out: RowsT | None = None) -> Pending:
        """Begin to mix `X` with the operator of the current step; see `Phase.start`."""
        return (self._static or self._advance()).start(X, out)

    @cached_property
    def T(self) -> Mixer:
        """The mixer of the transposed topology, which gradients are mixed with; made once, and counted together with this one.

        Collective when it is used for the first time.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.from_weights([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.25, 0.25, 0.5]]))
        ...     W.T(np.eye(3)).tolist()
        [[0.5, 0.0, 0.25], [0.5, 0.5, 0.25], [0.0, 0.5, 0.5]]
        """
        with self._context.engine:
            transposed = Mixer(self._context, transpose(self.topology), self.counts)
        transposed.__dict__["T"] = self
        return transposed

    @cached_property
    def C(self) -> Mixer:
        """The mixer of the column-stochastic matrices of a topology of pairs, counted together with this one; else itself.

        Collective when it is used for the first time.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.chain(3, weights="push-pull"))
        ...     W.at(0).R(np.ones((3, 1))).ravel().tolist(), float(W.C(np.array([[3.], [0.], [0.]])).sum())
        ([1.0, 1.0, 1.0], 3.0)
        """
        if self.topology.kind != "pair":
            return self
        with self._context.engine:
            return Mixer(self._context, column_part(self.topology), self.counts)

    def compress(
        self,
        codec: str | codecs.Codec,
        *,
        feedback: bool | None = None,
        gamma: float | None = None,
        seed: int | None = None,
        **options: object,
    ) -> Compressed:
        """This mixer with encoded rows; see `Compressed`.

        Parameters
        ----------
        codec : {"identity", "float16", "bfloat16", "blockwise8", "qsgd", "top_k", "rand_k"} or Codec
        feedback : bool, optional
            Whether neighbours remember an estimate of each row and receive only its changes; by default, if the codec is lossy
            and the topology is static.  Without it the rows themselves are rounded: an exact method ends at a distance
            proportional to the rounding errors of its rows.
        gamma : float, optional
            Step towards the neighbours, in (0, 1].
        seed : int, optional
            Seed of the codec's random numbers, by default 0; a `Codec` has its own.
        **options
            Parameters of the codec, such as `fraction=0.01` or `k=100`, `levels` and `bucket`, `block`.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).compress("bfloat16")
        ...     W(np.array([[3.14159], [0.], [0.], [0.]])).ravel().tolist(), W.bytes
        ([1.0479..., 1.0468..., 0.0, 1.0468...], 16)
        """
        made = codecs.codec(codec, seed, **options)
        return Compressed(self, made, None if feedback is None else bool(feedback), gamma)

    def accelerate(self, K: int, method: str = "chebyshev") -> Accelerated:
        """K mixings in one call, combined so that they average better than K separate ones; see `Accelerated`.

        Parameters
        ----------
        K : int
            Number of mixings.
        method : {"chebyshev", "fastmix"}

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).accelerate(2)
        ...     W(np.array([[4.], [0.], [0.], [0.]])).round(3).ravel().tolist(), W.rounds
        ([1.176, 0.941, 0.941, 0.941], 2)
        """
        return Accelerated(self, K, method)

    def lossy(
        self, messages: float | np.ndarray | Lost, *, seed: int = 0, fill: str = "renormalize"
    ) -> Lossy:
        """This mixer with messages that are lost; see `Lossy`.

        Parameters
        ----------
        messages : float, array of bool or callable
            The probability of each message to be lost; the lost messages, `[step, receiver, sender]` (for graphs that divide
            the columns `[step, graph, receiver, sender]`), none after the last step; or a function of (step, receivers,
            senders) that returns which are lost, for arrays of agents.
        seed : int
            Of the draws for a probability: they belong to the seed, the step and the edge.
        fill : {"renormalize", "own", "zero"}
            What takes the place of a lost row in an average: the others, whose weights grow; the agent's own row; or zeros.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     lost = np.zeros((1, 3, 3), bool)
        ...     lost[0, 1, 2] = True                             # agent 1 does not hear agent 2 in step 0
        ...     W = net.mixer(mpidec.topology.complete(3))
        ...     [W.lossy(lost, fill=fill)(np.diag([3., 6., 9.]))[1].round(9).tolist() for fill in ("renormalize", "own")]
        [[1.5, 3.0, 0.0], [1.0, 4.0, 0.0]]
        """
        return Lossy(self, messages, seed, fill)

    def attacked(self, attacks: Mapping[int, Attack]) -> Attacked:
        """This mixer with agents that send other rows than their own; see `Attacked`.

        Parameters
        ----------
        attacks : dict
            What these agents send: "sign_flip", -1 times their row; a number, in all entries (`math.nan`, too); or what a
            function of (step, agent, row) returns, which is called for each row that the agent sends to a neighbour.  If the
            function has a fourth parameter `receiver`, it is told the neighbour: to each one it may send another row.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.complete(4)).attacked({2: "sign_flip", 3: 100.0})
        ...     W(np.array([[4.], [8.], [12.], [16.]])).ravel().tolist()
        [25.0, 25.0, 31.0, 4.0]
        """
        return Attacked(self, attacks)

    def noisy(self, sigma: float, *, seed: int = 0) -> Noisy:
        """This mixer with Gaussian noise on what arrives; see `Noisy`.

        Parameters
        ----------
        sigma : float
            Standard deviation of the noise in each entry of each row that arrives.
        seed : int
            Of the draws: they belong to the seed, the step and the edge.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.complete(4)).noisy(0.1)
        ...     Y = W(np.ones((4, 10000)))
        ...     float(Y.mean().round(2)), float(Y.std().round(3))     # 0.1 sqrt(3) / 4
        (1.0, 0.043)
        """
        return Noisy(self, sigma, seed)

    def robust(
        self,
        rule: str | RobustRule,
        *,
        tau: float | None = None,
        delta: float | None = None,
        trim: int | None = None,
    ) -> Robust:
        """This mixer with a robust rule of each agent in place of the average; see `Robust`.

        Parameters
        ----------
        rule : {"clip", "trimmed_mean"} or callable
            Self-centred clipping (ClippedGossip); the coordinate-wise trimmed mean; or a function of the agent's row (d,), the rows
            of its neighbours (degree, d) in ascending order of the agents, and their weights (degree,).
        tau : float, optional
            clip: the radius; a difference to a neighbour's row that is longer is shortened to it.
        delta : float, optional
            clip: a bound on the weight of the wrong neighbours of an agent, from which the radius follows, instead of `tau`.
        trim : int, optional
            trimmed_mean: how many values of the neighbours are left out at both ends, by default 1.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.complete(4)).attacked({3: 100.0})
        ...     X = np.array([[4.], [8.], [12.], [16.]])
        ...     [W.robust(*rule)(X).ravel().tolist() for rule in [("trimmed_mean",), (lambda x, X, w: np.median(X, axis=0),)]]
        [[8.0, 10.0, 10.0, 12.0], [12.0, 12.0, 8.0, 8.0]]
        """
        return Robust.of(self, rule, tau, delta, trim)

    def repeat(self, S: int) -> Repeated:
        """S mixings in one step, one after the other; see `Repeated`.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.one_peer_exponential(4)).repeat(2)
        ...     W(np.array([[4.], [0.], [0.], [0.]])).ravel().tolist(), W.rounds
        ([1.0, 1.0, 1.0, 1.0], 2)
        """
        return Repeated(self, S)

    def close(self, ends: Ending = "complete") -> None:
        """Free the communicators; collective, and safe to repeat."""
        if self.closed:
            return
        self.closed = True
        for phase in self._phases.values():
            phase.free(ends)
        self._phases.clear()
        self._static = None
        if "T" in self.__dict__:
            self.T.close(ends)
        if self.__dict__.get("C", self) is not self:
            self.C.close(ends)
