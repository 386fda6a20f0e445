"""Base class of the mixers, and mixers derived from another one: compressed, faulty, repeated,
accelerated.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

import numpy as np

from .... import _validation as check
from ....topology.internals import refuse_filter
from ...runtime import Pending
from ...transport import Counters
from .. import codecs
from ..base.packing import RowsT
from ..base.step import EdgeOperator, StepOperator as StepOperator
from ..codecs import Codec
from ..faults.faults import Attack, Attacks, Fault, Faults, LinkNoise, Loss, Lost, RobustRule
from ..faults.robust import Robust
from ..phases.accelerated import AcceleratedPhase, Acceleration
from ..phases.channel import ChannelPhase
from ..phases.compressed import CompressedPhase, Compression
from ..phases.exchange import EdgeExchange
from ..phases.repeated import RepeatedPhase
from ..phases.striped import StripedPhase
from ..phases.triggered import Heard, Trigger, TriggeredPhase

if TYPE_CHECKING:
    from ....topology import Schedule, Topology

# The calls that make a mixer of another one, in their order: each at most once.
FAULTS = "attacked", "noisy", "lossy", "robust"
ORDER = "triggered", "compress", *FAULTS, "repeat", "accelerate"
_MADE = {
    "compress": "is compressed",
    "lossy": "loses messages",
    "repeat": "mixes several times",
    "accelerate": "is accelerated",
}
# What is refused, (an earlier call, the next one), beside what the order refuses: what to do
# instead, where more is to be said.
_HEARD = (
    "the neighbours of an agent must have heard the same row, which losses, noise, attacks and "
    "robust rules change: take one of both"
)
EXCLUDED = {
    **{(fault, "accelerate"): "" for fault in FAULTS},
    **{pair: _HEARD for fault in FAULTS for pair in ((fault, "triggered"), ("triggered", fault))},
    **dict.fromkeys(
        [("compress", "triggered"), ("triggered", "compress")],
        "a codec and a threshold both decide what neighbours know of a row: take one of both",
    ),
    ("triggered", "triggered"): "state one threshold, as a function of the step",
    ("repeat", "triggered"): "W.triggered(...).repeat(S)",
    ("accelerate", "triggered"): "W.triggered(...).accelerate(K)",
    ("compress", "compress"): "compress once, then accelerate: W.compress(...).accelerate(K)",
    ("lossy", "compress"): "compress first: W.compress(...).lossy(...)",
    ("lossy", "accelerate"): "its W changes from step to step: W.lossy(...).repeat(K)",
    ("lossy", "lossy"): "state all losses at once, as an array or a function",
    ("lossy", "attacked"): "W.attacked(...).lossy(...)",
    (
        "lossy",
        "noisy",
    ): "zeros that take the place of lost rows would be noisy: W.noisy(...).lossy(...)",
    ("lossy", "robust"): "a robust rule would take the zeros in place of lost rows for rows",
    ("repeat", "compress"): "compress first: W.compress(...).repeat(S)",
    ("repeat", "accelerate"): "use W.accelerate(K) for all mixings of a step",
    ("repeat", "lossy"): "W.lossy(...).repeat(S), where each mixing has its own losses",
    ("repeat", "repeat"): "ask for all mixings at once, W.repeat(S)",
    ("accelerate", "compress"): "compress first, then accelerate: W.compress(...).accelerate(K)",
    ("accelerate", "accelerate"): "ask for all mixings at once, W.accelerate(K)",
    ("accelerate", "lossy"): "its W would change from step to step: W.lossy(...).repeat(K)",
    ("accelerate", "repeat"): "ask for all mixings at once, W.accelerate(K)",
}
_GENERAL = (
    "take each at most once, in the order W.compress(codec, "
    "feedback=False).attacked(...).noisy(...), "
    "then lossy, robust or neither, then repeat"
)


class Kept(NamedTuple):
    """Options of `rebuilt`: which parts of a mixer are kept.

    Attributes
    ----------
    codec : bool
        The codec; its gamma is kept in any case.
    faults : bool
        What moves the limit of exact methods, such as lost messages.
    d : int, optional
        Length of the rows whose gamma is kept; by default the codec keeps what it was given.
    runs : int
        Number of runs whose rows a row has one after the other: codec and faults act on each of
        them, with its own draws.
    """

    codec: bool = True
    faults: bool = True
    d: int | None = None
    runs: int = 1


class Limits(NamedTuple):
    """Properties of a mixer that limit the accuracy of exact methods on rows of one length.

    Attributes
    ----------
    codec : Codec or None
        That loses something of such rows.
    feedback : bool
        Whether error feedback makes up for that.
    disturbance : str
        See `Operator.disturbance`.
    """

    codec: Codec | None = None
    feedback: bool = False
    disturbance: str = ""


Step = TypeVar("Step", bound=StepOperator, covariant=True)


class Operator(ABC, Generic[Step]):
    """Abstract base of the mixers: `Y = W(X)` replaces each agent's row by an average of its
    neighbours' rows.

    `W(X)` uses the operator of the current step and moves on to the next step; `W.at(k)` is the
    operator of step k and changes nothing.

    Parameters
    ----------
    topology : Topology or Schedule
    agents : range
        The agents on this rank.
    counts
        Counters `rounds`, `messages` and `bytes`: one object, shared by a mixer and all mixers made
        of it.

    Attributes
    ----------
    n, m : int
        Number of all agents, and of those on this rank.
    codec : Codec or None
        With which the rows are encoded.
    feedback : bool
        Whether the mixer remembers rows from step to step (error feedback): then `memory()` belongs
        in a checkpoint.
    """

    # The calls that made it of the mixer of the topology.
    layers: tuple[str, ...] = ()
    codec: Codec | None = None
    feedback: bool = False
    # Each column of the rows is mixed by itself.
    columnwise: bool = True

    def __init__(
        self,
        topology: Topology | Schedule,
        agents: range,
        counts: Counters,
    ):
        self.topology, self.agents, self.counts = topology, agents, counts
        self.n, self.m = topology.n, len(agents)
        self._step = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology!r})"

    @abstractmethod
    def at(self, k: int) -> Step:
        """Return the operator of step `k`."""

    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`, with the operator of the current step; see
        `Phase.__call__`.
        """
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
    ) -> Compressed:
        """This mixer with encoded rows; see `compressed.Compression`.

        Parameters
        ----------
        codec : {"identity", "float16", "bfloat16", "blockwise8", "qsgd", "top_k", "rand_k"} or Codec
        feedback : bool, optional
            Whether neighbours remember an estimate of each row and receive only its changes; by
            default, if the codec is lossy and the topology is static.  Without it the rows
            themselves are rounded: an exact method ends at a distance proportional to the rounding
            errors of its rows.
        gamma : float, optional
            Step towards the neighbours, in (0, 1].
        seed : int, optional
            Seed of the codec's random numbers, by default 0; a `Codec` has its own.
        **options
            Parameters of the codec, such as `fraction=0.01` or `k=100`, `levels` and `bucket`,
            `block`.

        Raises
        ------
        ValueError
            If the mixer is made of another one already.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).compress("bfloat16")
        ...     W(np.array([[3.14159], [0.], [0.], [0.]])).ravel().tolist(), W.bytes
        ([1.0479..., 1.0468..., 0.0, 1.0468...], 16)
        """
        self._allow("compress")
        made = codecs.codec(codec, seed, **options)
        return Compressed(self, made, None if feedback is None else bool(feedback), gamma)

    def triggered(
        self,
        threshold: float | Callable[[int], float],
        *,
        decay: float = 1.0,
        conserving: bool = True,
    ) -> Triggered:
        """This mixer with rows that are sent only if they have moved; see `triggered.Trigger`.

        Parameters
        ----------
        threshold : float or function of the step k
            An agent sends its row if its distance from the row that its neighbours have heard last
            is larger.
        decay : float
            By which the threshold is multiplied in each step, in (0, 1].
        conserving : bool
            Whether a doubly stochastic W preserves the average, whatever is not sent.

        Raises
        ------
        ValueError
            If the topology is a schedule without a period, or the mixer is made of another one
            already.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).triggered(0.5)
        ...     Y = W(np.array([[3.0], [0.1], [0.0], [0.0]]))  # agents 1 to 3 stay silent
        ...     Y.round(9).ravel().tolist(), W.messages
        ([1.0, 1.1, 0.0, 1.0], 2)
        """
        self._allow("triggered")
        return Triggered(self, Trigger(threshold, decay, conserving))

    def accelerate(self, K: int, method: str = "chebyshev") -> Accelerated:
        """K mixings in one call, combined so that they average better than K separate ones; see
        `accelerated.Acceleration`.

        Parameters
        ----------
        K : int
            Number of mixings.
        method : {"chebyshev", "fastmix"}

        Raises
        ------
        ValueError
            If the mixer is made of another one that is not compressed, or the codec sends only a
            few entries of a row.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).accelerate(2)
        ...     W(np.array([[4.], [0.], [0.], [0.]])).round(3).ravel().tolist(), W.rounds
        ([1.176, 0.941, 0.941, 0.941], 2)
        """
        self._allow("accelerate")
        return Accelerated(self, K, method)

    def lossy(
        self, messages: float | np.ndarray | Lost, *, seed: int = 0, fill: str = "renormalize"
    ) -> Channel:
        """This mixer with messages that are lost; see `faults.Loss`.

        Parameters
        ----------
        messages : float, array of bool or callable
            The probability of each message to be lost; the lost messages, `[step, receiver,
            sender]` (for graphs that divide the columns `[step, graph, receiver, sender]`), none
            after the last step; or a function of (step, receivers, senders) that returns which are
            lost, for arrays of agents: an array of bools like these, or one bool for all messages
            of the step.
        seed : int
            Of the draws for a probability: they belong to the seed, the step and the edge.
        fill : {"renormalize", "own", "zero"}
            What takes the place of a lost row in an average: the others, whose weights grow; the
            agent's own row; or zeros.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     lost = np.zeros((1, 3, 3), bool)
        ...     lost[0, 1, 2] = True  # agent 1 does not hear agent 2 in step 0
        ...     W = net.mixer(mpidec.topology.complete(3))
        ...     [
        ...         W.lossy(lost, fill=fill)(np.diag([3.0, 6.0, 9.0]))[1].round(9).tolist()
        ...         for fill in ("renormalize", "own")
        ...     ]
        [[1.5, 3.0, 0.0], [1.0, 4.0, 0.0]]
        """
        graphs = len(self.at(0).parts)
        return self._past("lossy", lambda: Loss(messages, seed, fill, self.n, graphs))

    def attacked(self, attacks: Mapping[int, Attack]) -> Channel:
        """This mixer with agents that send other rows than their own; see `faults.Attacks`.

        Parameters
        ----------
        attacks : dict
            What these agents send: "sign_flip", -1 times their row; a number, in all entries
            (`math.nan`, too); or what a function of (step, agent, row) returns, which is called for
            each row that the agent sends to a neighbour.  If the function has a fourth parameter
            `receiver`, it is told the neighbour: to each one it may send another row.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.complete(4)).attacked({2: "sign_flip", 3: 100.0})
        ...     W(np.array([[4.], [8.], [12.], [16.]])).ravel().tolist()
        [25.0, 25.0, 31.0, 4.0]
        """
        return self._past("attacked", lambda: Attacks(attacks, self.n))

    def noisy(self, sigma: float, *, seed: int = 0, clip: float | None = None) -> Channel:
        """This mixer with Gaussian noise on what arrives; see `faults.LinkNoise`.

        Parameters
        ----------
        sigma : float
            Standard deviation of the noise in each entry of each row that arrives.
        seed : int
            Of the draws: they belong to the seed, the step and the edge.
        clip : float, optional
            Longer rows are shortened to this Euclidean norm before the noise is added, so that
            `mpidec.theory.privacy` can say what the noise hides.

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
        return self._past("noisy", lambda: LinkNoise(sigma, seed, clip))

    def robust(
        self,
        rule: str | RobustRule,
        *,
        tau: float | None = None,
        delta: float | None = None,
        trim: int | None = None,
    ) -> Channel:
        """This mixer with a robust rule of each agent in place of the average; see `faults.robust.Robust`.

        Parameters
        ----------
        rule : {"clip", "trimmed_mean"} or callable
            Self-centred clipping (ClippedGossip); the coordinate-wise trimmed mean; or a function
            of the agent's row (d,), the rows of its neighbours (degree, d) in ascending order of
            the agents, and their weights (degree,).
        tau : float, optional
            clip: the radius; a difference to a neighbour's row that is longer is shortened to it.
        delta : float, optional
            clip: a bound on the weight of the wrong neighbours of an agent, from which the radius
            follows, instead of `tau`.
        trim : int, optional
            trimmed_mean: how many values of the neighbours are left out at both ends, by default 1.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.complete(4)).attacked({3: 100.0})
        ...     X = np.array([[4.0], [8.0], [12.0], [16.0]])
        ...     [
        ...         W.robust(*rule)(X).ravel().tolist()
        ...         for rule in [("trimmed_mean",), (lambda x, X, w: np.median(X, axis=0),)]
        ...     ]
        [[8.0, 10.0, 10.0, 12.0], [12.0, 12.0, 8.0, 8.0]]
        """
        return self._past("robust", lambda: Robust.named(rule, tau, delta, trim))

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
        self._allow("repeat")
        return Repeated(self, S)

    def _past(self, call: str, fault: Callable[[], Fault]) -> Channel:
        """This mixer with a further fault."""
        self._allow(call)
        return Channel(self, [fault()])

    def _allow(self, call: str) -> None:
        """Refuse a call that cannot be applied to this mixer.

        Raises
        ------
        ValueError
        """
        if call != "repeat":
            refuse_filter(f"W.{call}", self.topology)
        for made in reversed(self.layers):
            remedy = EXCLUDED.get((made, call))
            if remedy is not None or ORDER.index(call) <= ORDER.index(made):
                raise ValueError(
                    f"{call} of a mixer that {_MADE.get(made, f'is {made}')} already: "
                    f"{remedy or _GENERAL}"
                )
        if self.feedback and call in FAULTS:
            raise ValueError(
                f"{call}: neighbours must have the same estimates of a row, which error feedback "
                "builds up from what "
                'arrives: take a codec without it, W.compress("blockwise8", '
                f"feedback=False).{call}(...)"
            )

    @property
    def calls(self) -> str:
        """The calls by which it is derived from the mixer `W` of the topology."""
        return "W"

    @property
    def base(self) -> Operator[StepOperator]:
        """The mixer of the topology, from which it is derived."""
        return cast("Operator[StepOperator]", self)

    def rebuilt(self, base: Operator[StepOperator], keep: Kept) -> Operator[StepOperator]:
        """Return the same mixer derived from another `base`, by the calls that are kept."""
        return base

    def limits(self, d: int) -> Limits:
        """Return what limits the accuracy of exact methods on rows of `d` entries."""
        return Limits()

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
        r"""Return the :math:`\gamma` for which the mixer is close to :math:`I + \gamma (W - I)` on
        rows of `d` entries.
        """
        return 1.0

    @property
    def disturbance(self) -> str:
        """What moves the limit of exact methods, such as "10 % of the messages are lost"; empty
        if nothing does.
        """
        return ""

    @property
    def withheld(self) -> np.ndarray | None:
        """How many messages each local agent has not sent, (m, 1), of a triggered mixer."""
        return None

    @property
    def draws(self) -> bool:
        """Whether its codec or one of its faults draws random numbers, which a seed changes."""
        return False

    def memory(self) -> dict[str, np.ndarray]:
        """Rows remembered from step to step, by name: arrays `(m, ...)` of the local agents.
        Collective.
        """
        return {}

    def recall(self, memory: Mapping[str, np.ndarray]) -> None:
        """Continue with the `memory` of an equal mixer, which may have run on another number of
        ranks.  Collective.

        Raises
        ------
        ValueError
            If this mixer has no memory, or not of this shape.
        """
        if memory:
            raise ValueError(
                f"a mixer without error feedback has no memory, got {', '.join(sorted(memory))}: "
                "compress it with "
                "the codec and the feedback of the mixer that the memory comes from"
            )

    @abstractmethod
    def close(self) -> None:
        """Free the communicators; collective, and safe to repeat."""


class Wrapped(Operator[Step]):
    """A mixer derived from the mixer `W`, with the same agents, topology and counters.

    Attributes
    ----------
    W : Operator
        The mixer below.
    """

    def __init__(self, W: Operator[StepOperator], *calls: str):
        super().__init__(W.topology, W.agents, W.counts)
        self.layers = *W.layers, *calls
        self.W, self.codec, self.feedback, self.columnwise = W, W.codec, W.feedback, W.columnwise

    @property
    @abstractmethod
    def call(self) -> str:
        """The call that makes it of the mixer below."""

    @abstractmethod
    def over(self, W: Operator[StepOperator]) -> Operator[StepOperator]:
        """Return the same mixer made of another one."""

    def with_weights(self, A: object) -> StepOperator:
        """Refused; see `StepOperator.with_weights`."""
        return self.at(0).with_weights(A)

    @property
    def calls(self) -> str:
        return f"{self.W.calls}.{self.call}"

    @property
    def base(self) -> Operator[StepOperator]:
        return self.W.base

    def rebuilt(self, base: Operator[StepOperator], keep: Kept) -> Operator[StepOperator]:
        return self.over(self.W.rebuilt(base, keep))

    def limits(self, d: int) -> Limits:
        return self.W.limits(d)

    def gamma(self, d: int) -> float:
        """That of the mixer below."""
        return self.W.gamma(d)

    @property
    def disturbance(self) -> str:
        """That of the mixer below; see `Operator.disturbance`."""
        return self.W.disturbance

    @property
    def withheld(self) -> np.ndarray | None:
        return self.W.withheld

    @property
    def draws(self) -> bool:
        return self.W.draws

    def __repr__(self) -> str:
        return f"{self.W!r}.{self.call}"

    def memory(self) -> dict[str, np.ndarray]:
        """Return the memory of the mixer below."""
        return self.W.memory()

    def recall(self, memory: Mapping[str, np.ndarray]) -> None:
        """Continue with the memory of an equal mixer; see `Compressed.recall`."""
        self.W.recall(memory)

    def close(self) -> None:
        """Close the mixer below; collective, and safe to repeat."""
        self.W.close()


class Channel(Wrapped[StepOperator]):
    """A mixer whose rows are subject to faults on the edges; made by `attacked`, `noisy`,
    `lossy` and `robust`.

    Parameters
    ----------
    W : Operator
        A mixer, compressed (without error feedback) or not; or a `Channel`, whose faults come
        first.
    faults : sequence of Fault
        In the order in which the rows meet them.
    """

    faults: Faults

    def __init__(self, W: Operator[StepOperator], faults: Sequence[Fault]):
        if isinstance(W, Channel):
            faults, W = [*W.faults, *faults], W.W
        super().__init__(W, *(fault.call for fault in faults))
        self.faults = Faults(faults)
        self.columnwise = W.columnwise and all(fault.columnwise for fault in faults)
        for fault in faults:
            for part in W.at(0).parts:
                fault.check(part.topology, W.topology.period == 1)

    @property
    def call(self) -> str:
        """The calls that make it of the mixer below."""
        return ".".join(map(repr, self.faults))

    def over(self, W: Operator[StepOperator]) -> Channel:
        return Channel(W, self.faults)

    def rebuilt(self, base: Operator[StepOperator], keep: Kept) -> Operator[StepOperator]:
        below = self.W.rebuilt(base, keep)
        kept = [fault for fault in self.faults if keep.faults or not str(fault)]
        kept = [fault.of_runs(keep.runs) for fault in kept] if keep.runs > 1 else kept
        return Channel(below, kept) if kept else below

    def limits(self, d: int) -> Limits:
        return self.W.limits(d)._replace(disturbance=self.disturbance)

    @property
    def disturbance(self) -> str:
        """What the faults do to averages; see `Operator.disturbance`."""
        return " and ".join(filter(None, map(str, self.faults)))

    @property
    def draws(self) -> bool:
        return self.W.draws or any(fault.draws for fault in self.faults)

    def at(self, k: int) -> StepOperator:
        """Return the operator of step `k`; its calls are counted from zero."""
        phase = self.W.at(k)
        if isinstance(phase, EdgeOperator):
            return ChannelPhase(
                phase, k, self.at, faults=self.faults, graph=0, graphs=1, calls=count()
            )
        parts = [cast(EdgeOperator, part) for part in phase.parts]
        faulty = [
            ChannelPhase(
                part, k, self.at, faults=self.faults, graph=graph, graphs=len(parts), calls=count()
            )
            for graph, part in enumerate(parts)
        ]
        return StripedPhase(faulty, k, self.at, self.agents)


class Compressed(Wrapped[CompressedPhase]):
    """A mixer whose rows are sent encoded by a codec; made by `compress`.  See
    `compressed.Compression`.

    Parameters
    ----------
    W : Mixer
    codec : Codec
    feedback : bool, optional
        Only with the same neighbours at every step; by default `with_feedback(codec, W.topology)`.
    gamma : float, optional

    Raises
    ------
    ValueError
        If feedback is requested over a schedule, or gamma is not in (0, 1].
    TypeError
        When called with rows that are neither float32 nor float64.
    """

    codec: Codec

    def __init__(
        self,
        W: Operator[StepOperator],
        codec: Codec,
        feedback: bool | None = None,
        gamma: float | None = None,
    ):
        super().__init__(W, "compress")
        self._compression = Compression.of(codec, W.topology, W.agents, feedback, gamma)
        self.codec, self.feedback = codec, self._compression.memory is not None

    @property
    def call(self) -> str:
        """The call that makes it of the mixer below."""
        return str(self._compression)

    def over(self, W: Operator[StepOperator]) -> Compressed:
        return W.compress(self.codec, feedback=self.feedback, gamma=self._compression.gamma)

    def rebuilt(self, base: Operator[StepOperator], keep: Kept) -> Operator[StepOperator]:
        gamma = self._compression.gamma if keep.d is None else self.gamma(keep.d)
        if keep.codec:
            codec = self.codec if keep.runs == 1 else codecs.CodecOfRuns(self.codec, keep.runs)
            return base.compress(codec, feedback=self.feedback, gamma=gamma)
        lazy = gamma is not None and gamma < 1
        return base.compress("identity", feedback=False, gamma=gamma) if lazy else base

    def limits(self, d: int) -> Limits:
        lossy = self.codec.delta(d) < 1
        return Limits(self.codec, self.feedback) if lossy else Limits()

    @property
    def draws(self) -> bool:
        return self.codec.draws or self.W.draws

    def _phase_at(self, k: int) -> EdgeExchange:
        return cast(EdgeExchange, self.W.at(k))

    def at(self, k: int) -> CompressedPhase:
        """Return the operator of step `k`; its calls are counted from zero."""
        return CompressedPhase(self._phase_at(k), k, self.at, self._compression, count())

    def gamma(self, d: int) -> float:
        r""":math:`\gamma` for rows of `d` entries."""
        return self._compression.step_size(d)

    def memory(self) -> dict[str, np.ndarray]:
        r""":math:`\hat X` of the local agents, by "call_d_dtype", or "C_call_d_dtype": arrays (m,
        d); empty without feedback.

        Notes
        -----
        Collective: mixings under way are completed.
        """
        return self._compression.save()

    def recall(self, memory: Mapping[str, np.ndarray]) -> None:
        r"""Continue with the :math:`\hat X` that `memory` returned, perhaps on another number of
        ranks.

        Raises
        ------
        ValueError
            If the mixer works without feedback and `memory` is not empty, or an array does not have
            the local agents' rows.

        Notes
        -----
        Collective: the rows of neighbours on other ranks are fetched in full.
        """
        if self.feedback:
            self._compression.restore(memory, self._phase_at(0))
        else:
            super().recall(memory)


class Triggered(Wrapped[StepOperator]):
    """A mixer whose rows are sent only if they have moved; made by `triggered`.  See
    `triggered.Trigger`.

    Parameters
    ----------
    W : Mixer
    trigger : Trigger
    """

    def __init__(self, W: Operator[StepOperator], trigger: Trigger):
        trigger.check(W.topology)
        super().__init__(W, "triggered")
        self.trigger, self.feedback, self.columnwise = trigger, True, False
        self._heard = Heard(W.m)

    @property
    def call(self) -> str:
        """The call that makes it of the mixer below."""
        return repr(self.trigger)

    def over(self, W: Operator[StepOperator]) -> Triggered:
        return Triggered(W, self.trigger)

    def rebuilt(self, base: Operator[StepOperator], keep: Kept) -> Operator[StepOperator]:
        return self.over(base) if keep.faults and self.disturbance else base

    def limits(self, d: int) -> Limits:
        return Limits(disturbance=self.disturbance)

    @property
    def disturbance(self) -> str:
        """What the threshold does to averages; see `Operator.disturbance`."""
        return str(self.trigger)

    @property
    def withheld(self) -> np.ndarray:
        return self._heard.withheld

    def at(self, k: int) -> StepOperator:
        """Return the operator of step `k`; its calls are counted from zero."""
        phase, period = self.W.at(k), cast(int, self.topology.period)
        if isinstance(phase, EdgeExchange):
            return self._phase(phase, k, k % period)
        parts = [self._phase(part, k, graph) for graph, part in enumerate(phase.parts)]
        return StripedPhase(parts, k, self.at, self.agents)

    def _phase(self, phase: StepOperator, k: int, graph: int) -> TriggeredPhase:
        below, place = cast(EdgeExchange, phase), f"W{graph}"
        return TriggeredPhase(below, k, self.at, self.trigger, self._heard, place, count())

    def _below(self, place: str) -> EdgeExchange:
        """Return the operator of the mixer below that has this name; see `TriggeredPhase`."""
        graph = int(place[1:])
        phase = self.W.at(graph)
        below = phase if isinstance(phase, EdgeExchange) else phase.parts[graph]
        return cast(EdgeExchange, below.C if place[0] == "C" else below)

    def memory(self) -> dict[str, np.ndarray]:
        r"""Return the rows that the neighbours of the local agents have heard last, by
        "operator_call_d_dtype", and how many messages each agent has not sent, "withheld".

        Notes
        -----
        Collective: mixings under way are completed.
        """
        return self._heard.save()

    def recall(self, memory: Mapping[str, np.ndarray]) -> None:
        """Continue with the rows that `memory` returned, perhaps on another number of ranks.

        Raises
        ------
        ValueError
            If an array does not have the local agents' rows.

        Notes
        -----
        Collective: the rows of neighbours on other ranks are fetched in full.
        """
        self._heard.restore(memory, self._below)


class Repeated(Wrapped[RepeatedPhase]):
    r"""S mixings in one step; made by `Mixer.repeat`.

    .. math:: Y = W^{(Sk + S - 1)} \cdots W^{(Sk + 1)} W^{(Sk)} X

    Step k takes S operators of a schedule, one after the other, so that no phase is left out.

    Parameters
    ----------
    W : Operator
    S : int

    Notes
    -----
    Sent per call: S rows to each neighbour, one after the other; `start` returns once the last of
    them is under way.
    """

    def __init__(self, W: Operator[StepOperator], S: int):
        super().__init__(W, "repeat")
        self.S = check.integer(S, "repeat: S")

    @property
    def call(self) -> str:
        """The call that makes it of the mixer below."""
        return f"repeat({self.S})"

    def over(self, W: Operator[StepOperator]) -> Repeated:
        return Repeated(W, self.S)

    def at(self, k: int) -> RepeatedPhase:
        """Return the operator of step `k`."""
        phases = list(map(self.W.at, range(self.S * k, self.S * k + self.S)))
        return RepeatedPhase(phases, k, self.at)


class Accelerated(Wrapped[AcceleratedPhase]):
    """K mixings in one call; made by `accelerate`.  See `accelerated.Acceleration`.

    Parameters
    ----------
    W : Operator
        A mixer of a static topology with a symmetric, connected W; compressed or not.
    K : int
        Number of mixings.
    method : {"chebyshev", "fastmix"}

    Attributes
    ----------
    s : float
        The second largest modulus of an eigenvalue of the topology's W.

    Raises
    ------
    ValueError
        If the topology is a schedule, not symmetric or not connected.

    Warns
    -----
    RuntimeWarning
        If K mixings may amplify disagreement: fastmix, with few mixings and eigenvalues near -s.
    """

    def __init__(self, W: Operator[StepOperator], K: int, method: str = "chebyshev"):
        super().__init__(W, "accelerate")
        if W.codec is not None and W.codec.feedback:
            raise ValueError(
                f"{W.codec!r} sends too little of a row for acceleration, which would amplify its "
                "errors: take "
                'compress("blockwise8"), "qsgd" or "float16", or mix more often without '
                "acceleration"
            )
        self._acceleration = made = Acceleration.of(W.topology, K, method)
        self.K, self.method, self.s = made.K, made.method, made.s
        worst = self.contraction(1 << 20)
        if worst >= 1 + 1e-12:
            warnings.warn(
                f"{self.K} mixings of {method} over the {W.topology.name} topology may amplify "
                "disagreement by "
                f'{worst:.3g}: take method="chebyshev" or more mixings',
                RuntimeWarning,
                stacklevel=3,
            )

    @property
    def call(self) -> str:
        """The call that makes it of the mixer below."""
        return f"accelerate({self.K}, method={self.method!r})"

    def over(self, W: Operator[StepOperator]) -> Accelerated:
        return Accelerated(W, self.K, self.method)

    def at(self, k: int) -> AcceleratedPhase:
        """Return the operator of step `k`."""
        return AcceleratedPhase(self.W.at(k), k, self.at, self.omegas)

    def omegas(self, d: int) -> tuple[float, ...]:
        r""":math:`\omega_1, ..., \omega_K` for rows of `d` entries; d matters only over a
        compressed mixer.
        """
        return self._acceleration.omegas(self.W.gamma(d))

    def contraction(self, d: int = 1) -> float:
        r""":math:`\max |P_K(\lambda)|` over :math:`|\lambda| \le s`: upper bound of what one
        call leaves of a disagreement.
        """
        return self._acceleration.contraction(self.W.gamma(d))
