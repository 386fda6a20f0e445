"""Mixers: `Y = W(X)` moves rows between agents and takes weighted averages of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from .pending import Pending
from .phase import Phase
from ..runtime.context import Context
from ..runtime.node import Counts

if TYPE_CHECKING:
    from ..topology import Schedule, Topology
    from .accelerated import Accelerated
    from .codecs.base import Codec
    from .compressed import Compressed

_PHASES = 64                                        # phases of a random schedule that are kept at a time


class Mixer:
    """The operator `W` of a topology, or of a schedule of them, on a network; made by `Network.mixer`.

    `W(X)` mixes with the operator of the current step: a static topology has but one, and a schedule moves on by one at
    each call.  `W.at(k)` is the operator of step k; it does not move the schedule.

    Attributes
    ----------
    rounds : int
        Mixings and exchanges so far.
    messages, bytes : int
        Rows that the agents of this rank sent to other agents, and their size; an edge between two agents of one rank
        counts as any other, so that the totals over all ranks do not depend on the number of ranks.

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

    def __init__(self, context: Context, topology: Topology | Schedule):
        self._context, self.topology = context, topology
        lo, hi = context.partition.bounds(context.rank)
        self.n, self.m, self.agents = context.partition.n, hi - lo, range(lo, hi)
        self.counts = Counts()
        self.kinds: dict[Any, Any] = {}             # what a random schedule exchanged last
        self._static: Phase | None = None
        self._step, self._closed = 0, False
        self._phases: OrderedDict[int, Phase] = OrderedDict()
        if topology.period == 1:
            self._static = self.at(0)

    def at(self, k: int) -> Phase:
        """The operator of step `k`; collective when a phase is used for the first time."""
        if self._closed:
            raise RuntimeError(f"the mixer of the {self.topology.name} topology is closed: ask its network for a new one")
        if self._static is not None:
            return self._static
        period = self.topology.period
        key = k if period is None else k % period
        if key not in self._phases:
            if len(self._phases) >= _PHASES and period is None:
                self._phases.popitem(last=False)[1].free()
            self._phases[key] = Phase(self._context, self.topology.at(key), key, self.counts, self.at, period is not None, self.kinds)
        return self._phases[key]

    def __call__(self, X: Any, out: Any = None) -> Any:
        """Mix the rows `X`, shape `(m, ...)`, with the operator of the current step; see `Phase.__call__`."""
        phase = self._static
        if phase is None:
            phase = self._now()
        Y = phase.mix(X, out)
        return phase.start(X, out).wait() if Y is None else Y

    def start(self, X: Any, out: Any = None) -> Pending:
        """Begin to mix `X`; see `Phase.start`."""
        return self._now().start(X, out)

    @property
    def rounds(self) -> int:
        """Mixings and exchanges so far."""
        return self.counts.rounds

    @property
    def messages(self) -> int:
        """Rows that the agents of this rank sent to other agents."""
        return self.counts.messages

    @property
    def bytes(self) -> int:
        """Their size."""
        return self.counts.bytes

    def _now(self) -> Phase:
        self._step += 1
        return self.at(self._step - 1)

    def compress(self, codec: str | Codec, *, feedback: bool | None = None, gamma: float | None = None, seed: int = 0,
                 **options: Any) -> Compressed:
        """This mixer with rows that travel encoded; see `Compressed`.

        Parameters
        ----------
        codec : {"identity", "float16", "bfloat16", "blockwise8", "qsgd", "top_k", "rand_k"} or Codec
        feedback : bool, optional
            Whether neighbours remember what they know of a row, and get what is new; by default for top_k and rand_k.
        gamma : float, optional
            Step towards the neighbours, in (0, 1].
        seed : int
            Of the codec's random numbers.
        **options
            Parameters of the codec, such as `fraction=0.01` or `k=100`, `levels` and `bucket`, `block`.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).compress("bfloat16")
        ...     W(np.array([[3.14159], [0.], [0.], [0.]])).ravel().tolist(), W.bytes
        ([1.047..., 1.046875, 0.0, 1.046875], 16)
        """
        from .compressed import compressed
        return compressed(self, codec, feedback, gamma, seed, options)

    def accelerate(self, K: int, method: str = "chebyshev") -> Accelerated:
        """K mixings in one call, which together average better than K by themselves; see `Accelerated`.

        Parameters
        ----------
        K : int
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
        from .accelerated import Accelerated
        return Accelerated(self, K, method)

    def close(self, out_of_step: bool = False) -> None:
        """Free the communicators; collective, and safe to repeat."""
        for phase in self._phases.values():
            phase.free(out_of_step)
        self._phases.clear()
        self._closed = True
