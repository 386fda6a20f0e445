"""Compressed mixers: rows travel encoded, and what a codec loses is lost for nobody."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np

from .codecs import CODECS, Codec
from .codecs import codec as codec_of
from .wrapped import Derived, DerivedPhase, Then, flat
from .mixer import Mixer
from .pending import Pending

_CALLS = 1 << 6                                     # memories, and calls in a step


class Memory:
    r""":math:`\hat X` of the local agents and of their neighbours on other ranks, for one of the rows mixed in a step."""

    def __init__(self, own: np.ndarray, halo: np.ndarray):
        self.own, self.halo = own, halo
        self.pending: Pending | None = None

    def settle(self) -> None:
        """Complete the mixing that is under way."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None


class CompressedPhase(DerivedPhase):
    """The operator of one step of a `Compressed` mixer; it counts its calls."""

    _mixer: Compressed

    def __init__(self, mixer: Compressed, phase: Any, k: int):
        super().__init__(mixer, phase, k)
        self._calls = 0

    def _call(self) -> tuple[int, int]:
        """Which call of the step this is, and the number for which its random numbers are drawn."""
        if self._calls == _CALLS:
            raise RuntimeError(f"{_CALLS} calls of one step of a compressed mixer: ask for the operator of each step, W.at(k)")
        self._calls += 1
        return self._calls - 1, self._k * _CALLS + self._calls - 1

    def _begin(self, rows: np.ndarray, target: np.ndarray) -> Pending:
        mixer, phase, codec = self._mixer, self._phase, self._mixer.codec
        agents, halo = mixer.agents, phase.halo
        d, dtype = rows.shape[1], rows.dtype
        _check(rows)
        call, step = self._call()
        if not mixer.feedback:
            sent = codec.encode(rows, step, agents)
            Q = codec.decode(sent, d, dtype, step, agents)
            arrives = phase.fetch(sent)
            return Then(arrives, lambda: self._move(rows, Q, codec.decode(arrives.wait(), d, dtype, step, halo), target))
        memory = mixer.memory_of(call, d, dtype, len(halo))
        memory.settle()
        scale = codec.delta(d) if codec.unbiased else 1.0
        sent = codec.encode(rows - memory.own, step, agents)
        codec.add(sent, memory.own, step, agents, scale)
        arrives = phase.fetch(sent)

        def finish() -> np.ndarray:
            codec.add(arrives.wait(), memory.halo, step, halo, scale)
            return self._move(rows, memory.own, memory.halo, target)
        memory.pending = Then(arrives, finish)
        return memory.pending

    def _move(self, X: np.ndarray, Q: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`X + gamma (W - I) Q`"""
        gamma = self._mixer.gamma(X.shape[1])
        self._phase.difference(Q, halo, out)
        if gamma != 1:
            out *= gamma
        out += X
        return out

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row to each neighbour, encoded; see `Phase.exchange`.

        Raises
        ------
        ValueError
            If the codec takes feedback to be of use: there is none here.
        """
        mixer, phase, codec = self._mixer, self._phase, self._mixer.codec
        if mixer.feedback or codec.feedback:
            raise ValueError(f"a row of its own for each neighbour goes without error feedback, {codec!r} mixes with it: take "
                             'compress("blockwise8") or "float16", without feedback')
        rows, (senders, sources) = flat(M), _edge_numbers(phase)
        _check(rows)
        _, step = self._call()
        arrived = phase.exchange(codec.encode(rows, step, senders))
        return codec.decode(arrived, rows.shape[1], rows.dtype, step, sources).reshape(len(arrived), *M.shape[1:])


class Compressed(Derived):
    r"""A mixer whose rows travel encoded by a codec C; made by `Mixer.compress`.

    Without feedback,

    .. math:: Y = X + \gamma (W - I)\, C(X)

    and with feedback (CHOCO-gossip), where :math:`\hat X` is what all neighbours know of X,

    .. math:: \hat X \leftarrow \hat X + C(X - \hat X), \qquad Y = X + \gamma (W - I) \hat X

    with :math:`C / (1 + \omega)` for C if C is unbiased.  An agent's own row is decoded like those of the others: what one
    agent gives away is what another one gets, and a doubly (column) stochastic W keeps the average (sum), whatever C loses.

    Parameters
    ----------
    W : Mixer
        One that is neither compressed nor accelerated.
    codec : Codec
    feedback : bool
        Only with the same neighbours at every step.
    gamma : float, optional
        By default :math:`\delta / (2 - \delta)` with feedback, the largest for which random coordinates are stable whatever the
        spectrum of W; without, 1, or :math:`\delta` if C is unbiased.

    Raises
    ------
    ValueError
        If W is compressed or accelerated already, feedback is asked for over a schedule, or gamma is not in (0, 1].
    TypeError
        When it is called with rows of other numbers than float32 and float64.

    Notes
    -----
    Sent per call: an encoded row to each neighbour; `bytes` counts it.  Agents on one rank hand each other decoded rows, too.

    With feedback a mixer remembers :math:`\hat X`, zero at first, of its own agents and of their neighbours on other ranks:
    so many rows for each call that a solver makes within a step, since these are different quantities.  The calls of a step
    are told apart by their order since `W.at(k)`, by the length and by the dtype of the rows; the calls of the mixer itself,
    `W(X)`, are steps with one call each.  `memory()` returns what is remembered and `recall` takes it up; a mixer that
    starts anew goes on to converge, after as long as the first :math:`\hat X` took to form.

    The less of a row a codec sends, the smaller the step size of a solver has to be: with rows of 8 entries, EXTRA and exact
    diffusion at 0.2 to 0.3 / L go with `fraction=0.5` and not with `k=1`, and D2 not even with rand_k at 0.5.

    :math:`(W - I) C(X)` is summed times 2^40 (float64; 2^20 for float32), so that its rounding errors are small next to itself
    and the average does not drift: rows of more than 1e296 (1e32) overflow.

    Random numbers belong to the codec's seed, the agent, the step and the call: results do not depend on the ranks.

    References
    ----------
    A. Koloskova, S. U. Stich, M. Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
    communication", ICML 2019, Algorithm 1 and Theorem 2.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.ring(4)).compress("top_k", fraction=0.25)
    ...     X = np.arange(32.).reshape(4, 8)
    ...     for _ in range(300):
    ...         X = W(X)
    ...     print(X[0].round(6).tolist(), W.bytes / W.messages)
    [12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0] 24.0
    """

    def __init__(self, W: Mixer | Derived, codec: Codec, feedback: bool, gamma: float | None = None):
        if not isinstance(W, Mixer):
            raise ValueError(f"compress of a mixer that is {type(W).__name__.lower()} already: compress first, and once, then "
                             "accelerate: W.compress(...).accelerate(K)")
        super().__init__(W)
        if feedback and W.topology.period != 1:
            raise ValueError(f"error feedback needs the same neighbours at every step, those of {W.topology.name} change: take "
                             'feedback=False, with a codec such as "blockwise8" or "qsgd", or a static topology')
        number = isinstance(gamma, (int, float, np.number)) and not isinstance(gamma, bool)
        if gamma is not None and not (number and 0 < gamma <= 1):
            raise ValueError(f"compress: gamma is {gamma!r}, expected a number > 0 and <= 1")
        self.codec, self.feedback, self._gamma = codec, feedback, gamma
        self._memories: dict[tuple[int, int, str], Memory] = {}

    def at(self, k: int) -> CompressedPhase:
        """The operator of step `k`; its calls are counted from zero."""
        return CompressedPhase(self, self.W.at(k), k)

    def gamma(self, d: int) -> float:
        r""":math:`\gamma` for rows of `d` entries."""
        if self._gamma is not None:
            return self._gamma
        delta = self.codec.delta(d)
        if self.feedback:
            return delta / (2 - delta)
        return delta if self.codec.unbiased else 1.0

    def memory_of(self, call: int, d: int, dtype: np.dtype, others: int) -> Memory:
        """What is remembered of the rows mixed by the call number `call` of a step."""
        key = call, d, dtype.char
        if key not in self._memories:
            self._memories[key] = Memory(np.zeros((self.m, d), dtype), np.zeros((others, d), dtype))
        return self._memories[key]

    def memory(self) -> dict[str, np.ndarray]:
        r""":math:`\hat X` of the local agents, by "call_d_dtype": arrays (m, d)."""
        for memory in self._memories.values():
            memory.settle()
        return {"_".join(map(str, key)): memory.own.copy() for key, memory in self._memories.items()}

    def recall(self, memory: Mapping[str, np.ndarray]) -> None:
        r"""Take up the :math:`\hat X` of the local agents that `memory` returned, on any number of ranks.

        Raises
        ------
        ValueError
            If the mixer works without feedback and there is something to recall.

        Notes
        -----
        Collective: the rows of neighbours on other ranks are fetched in full.
        """
        if memory and not self.feedback:
            raise ValueError(f"a mixer without feedback has no memory to recall, got {', '.join(memory)}")
        phase = self.W.at(0)
        self._memories.clear()
        for key in sorted(memory):
            call, d, char = key.split("_")
            own = np.array(memory[key], np.dtype(char)).reshape(self.m, int(d))
            self._memories[int(call), int(d), char] = Memory(own, np.array(phase.fetch(own).wait()))


def compressed(W: Mixer | Derived, name: str | Codec, feedback: bool | None, gamma: float | None, seed: int,
               options: Mapping[str, Any]) -> Compressed:
    """The compressed mixer, with the defaults of its codec."""
    seeded = isinstance(name, str) and name in CODECS and "seed" in signature(CODECS[name]).parameters
    codec = codec_of(name, **({"seed": seed} if seeded else {}), **options)
    return Compressed(W, codec, codec.feedback if feedback is None else bool(feedback), gamma)


def _check(rows: np.ndarray) -> None:
    if rows.dtype.char in "FD":
        raise TypeError(f"rows are {rows.dtype}, codecs know real numbers: mix X.view(np.{rows.real.dtype}), twice the columns")
    if rows.dtype.char not in "fd":
        raise TypeError(f"rows are {rows.dtype}, codecs know float32 and float64: mix X.astype(np.float32)")


def _edge_numbers(phase: Any) -> tuple[np.ndarray, np.ndarray]:
    """A number for each edge, `sender * n + receiver`: of those out of and into the local agents, as `exchange` orders them."""
    (sender, receiver), (home, source) = phase.plan._out, phase.plan._in
    return sender * phase.n + receiver, source * phase.n + home
