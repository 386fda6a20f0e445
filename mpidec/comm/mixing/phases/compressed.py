"""Encoded rows, with or without error feedback: the operator of one step, and its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .... import _validation as check
from ...._complex import as_reals, from_reals, is_complex
from ...arrays import BFLOAT16, ArrayT, Restore as ToKind
from ...runtime import Pending
from ..base.edges import LocalEdges
from ..base.packing import joined, split
from ..base.step import MAX_CALLS, EdgeOperator, StepOperator
from ..codecs import Codec
from ..codecs.base import decode, encode
from .exchange import EdgeExchange
from .wrapped import WrappedPhase, targets

if TYPE_CHECKING:
    from ....topology import Schedule, Topology

# Begins the names of what the column-stochastic operator of a pair remembers.
PAIR = "C_"


class Estimate:
    r""":math:`\hat X` of the rows of one call of a step: of the local agents, and of their
    neighbours on other ranks.
    """

    def __init__(self, own: np.ndarray, halo: np.ndarray):
        self.own, self.halo = own, halo
        self.pending: Pending | None = None

    def complete(self) -> None:
        """Complete the mixing in progress, which updates `halo`.

        Raises
        ------
        RuntimeError
            If it has failed: neighbours may not have the same rows any more.
        """
        if self.pending is not None:
            try:
                self.pending.wait()
            except Exception as error:
                raise RuntimeError(
                    f"the error feedback is out of step ({error}): make a new mixer, "
                    "W.compress(...)"
                ) from error
            self.pending = None


class Memory:
    r"""Memory of the error feedback: :math:`\hat X` for each call of a step, by (call, length of
    a row, dtype).
    """

    def __init__(self) -> None:
        self._estimates: dict[tuple[int, int, str], Estimate] = {}

    def estimate(self, call: int, rows: np.ndarray, halo: int) -> Estimate:
        r"""Return the :math:`\hat X` of the given call for such rows, with nothing under way; zero
        at first.
        """
        d, dtype = rows.shape[1], rows.dtype
        key = call, d, dtype.char
        if key not in self._estimates:
            self._estimates[key] = Estimate(np.zeros(rows.shape, dtype), np.zeros((halo, d), dtype))
        self._estimates[key].complete()
        return self._estimates[key]

    def save(self) -> dict[str, np.ndarray]:
        """Return the rows of the local agents, by "call_d_dtype"."""
        for estimate in self._estimates.values():
            estimate.complete()
        return {
            "_".join(map(str, key)): estimate.own.copy()
            for key, estimate in self._estimates.items()
        }

    def restore(self, saved: Mapping[str, np.ndarray], phase: EdgeExchange) -> None:
        """Continue with the rows that `save` returned, and fetch those of the neighbours."""
        estimates = {}
        for name in sorted(saved):
            call, d, char = name.split("_")
            own = np.array(saved[name], np.dtype(char))
            if own.shape != (phase.m, int(d)):
                raise ValueError(
                    f"memory {name} has shape {own.shape}, expected ({phase.m}, {d}): the rows of "
                    "the local agents"
                )
            estimates[int(call), int(d), char] = Estimate(own, np.array(phase.fetch(own).wait()))
        self._estimates = estimates


@dataclass(frozen=True)
class Compression:
    r"""Rows that are sent encoded by a codec C; made by `Mixer.compress`.

    Without feedback,

    .. math:: Y = X + \gamma (W - I)\, C(X)

    and with feedback (CHOCO-gossip), where :math:`\hat X` is the estimate of X that all neighbours
    share,

    .. math:: \hat X \leftarrow \hat X + C(X - \hat X), \qquad Y = X + \gamma (W - I) \hat X

    with :math:`C / (1 + \omega)` for C if C is unbiased.  An agent's own row is decoded like those
    of the others, so a doubly (column) stochastic W preserves the average (sum) however large the
    errors of C are.  Faults beside it (noise, losses, attacks) add their own errors only: with
    `noisy(0.0)` or `lossy(0.0)` the results are those of the codec alone.

    Parameters
    ----------
    codec : Codec
    agents : range
        The agents on this rank.
    gamma : float, optional
        By default :math:`\delta / (2 - \delta)` with feedback, the largest for which random
        coordinates are stable for any spectrum of W; without feedback 1, or :math:`\delta` if C is
        unbiased.
    memory : Memory, optional
        None without feedback.
    exchanges : bool
        Whether rows for single neighbours, which have no feedback, may be sent: it was neither
        requested nor is it needed.

    Notes
    -----
    Sent per call: an encoded row to each neighbour; `bytes` counts it.  Agents on one rank exchange
    decoded rows, too.

    With feedback a mixer remembers :math:`\hat X`, zero at first, of its own agents and of their
    neighbours on other ranks. Each call that a solver makes within a step mixes a different
    quantity and has its own :math:`\hat X`: calls are distinguished by their order since `W.at(k)`,
    and by the length and the dtype of the rows.  Several arrays in one call count as calls of their
    own, whose encoded rows travel in one message.  The calls of the mixer itself, `W(X)`, are steps
    with one call each.  `memory()` returns :math:`\hat X` of the local agents and `recall`
    continues with it; `solve` stores it in its checkpoints, so that a resumed run has the bits of
    an uninterrupted one.

    The less of a row a codec sends, the smaller the step size of a solver has to be: with rows of 8
    entries, EXTRA and exact diffusion at 0.2 to 0.3 / L converge with `fraction=0.5` and not with
    `k=1`, and D2 not even with rand_k at 0.5.

    :math:`(W - I) C(X)` is summed times 2^40 (float64; 2^20 for float32), so that its rounding
    errors are small relative to it and the average does not drift: rows of more than 1e296 (1e32)
    overflow.

    Random numbers belong to the codec's seed, the agent, the step and the call: results do not
    depend on the number of ranks.

    References
    ----------
    A. Koloskova, S. U. Stich, M. Jaggi, "Decentralized stochastic optimization and gossip
    algorithms with compressed communication", ICML 2019.

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

    codec: Codec
    agents: range
    gamma: float | None
    memory: Memory | None
    exchanges: bool

    @classmethod
    def of(
        cls,
        codec: Codec,
        topology: Topology | Schedule,
        agents: range,
        feedback: bool | None,
        gamma: float | None,
    ) -> Compression:
        """For a topology, and its agents on this rank; by default with feedback as `with_feedback`
        says.

        Raises
        ------
        ValueError
            If feedback is requested over a schedule, or gamma is not in (0, 1].
        """
        exchanges = not (feedback or codec.feedback)
        if feedback is None:
            feedback = with_feedback(codec, topology)
        if feedback and topology.period != 1:
            raise ValueError(
                f"error feedback needs the same neighbours at every step, those of {topology.name} "
                "change: take "
                'feedback=False, with a codec such as "blockwise8" or "qsgd", or a static topology'
            )
        if gamma is not None:
            gamma = check.number(gamma, "compress: gamma", above=0, most=1)
        return cls(codec, agents, gamma, Memory() if feedback else None, exchanges)

    def __str__(self) -> str:
        feedback = self.memory is not None
        return f"compress({self.codec!r}, feedback={feedback}, gamma={self.gamma})"

    @cached_property
    def columns(self) -> Compression:
        """The same for the column-stochastic operator of a pair, whose neighbours may be others:
        with a memory of its own.
        """
        return replace(self, memory=None if self.memory is None else Memory())

    def save(self) -> dict[str, np.ndarray]:
        """See `Compressed.memory`."""
        if self.memory is None or self.columns.memory is None:
            return {}
        columns = self.columns.memory.save()
        return self.memory.save() | {f"{PAIR}{name}": X for name, X in columns.items()}

    def restore(self, saved: Mapping[str, np.ndarray], phase: EdgeExchange) -> None:
        """Continue with what `save` returned: rows of the operator `phase`, and of its `C`."""
        columns = {name.removeprefix(PAIR): X for name, X in saved.items() if name.startswith(PAIR)}
        if self.memory is not None:
            own = {name: X for name, X in saved.items() if not name.startswith(PAIR)}
            self.memory.restore(own, phase)
        if columns and self.columns.memory is not None and isinstance(phase.C, EdgeExchange):
            self.columns.memory.restore(columns, phase.C)

    def step_size(self, d: int) -> float:
        r""":math:`\gamma` for rows of `d` entries."""
        if self.gamma is not None:
            return self.gamma
        delta = self.codec.delta(d)
        if self.memory is not None:
            return delta / (2 - delta)
        return delta if self.codec.unbiased else 1.0


class CompressedPhase(WrappedPhase, EdgeOperator):
    """The operator of one step of a `Compressed` mixer; it counts its calls.

    Parameters
    ----------
    phase, k, at, empty
        See `WrappedPhase`.
    compression : Compression
    calls : iterator of int
        Numbers of the calls, shared by both operators of a pair.
    """

    _phase: EdgeExchange

    def __init__(
        self,
        phase: EdgeExchange,
        k: int,
        at: Callable[[int], StepOperator],
        compression: Compression,
        calls: Iterator[int],
    ):
        super().__init__(phase, k, at)
        self._compression, self._calls = compression, calls

    @property
    def C(self) -> CompressedPhase:
        """The column-stochastic operator of a pair, with the same codec; of any other `W`,
        itself.
        """
        C = self._phase.C
        if not isinstance(C, EdgeExchange) or C is self._phase:
            return self
        return CompressedPhase(
            C,
            self._k,
            lambda k: self._at(k).C,
            self._compression.columns,
            self._calls,
        )

    def gamma(self, d: int) -> float:
        r""":math:`\gamma` for rows of `d` entries."""
        return self._compression.step_size(d)

    def _call(self) -> tuple[int, int]:
        """Return the number of this call within the step, and the step of its random numbers."""
        call = next(self._calls)
        if call == MAX_CALLS:
            raise RuntimeError(
                f"more than {MAX_CALLS} calls in one step of a compressed mixer: use the operator "
                "of each step, "
                "W.at(k)"
            )
        return call, self._k * MAX_CALLS + call

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        super().abort_operation(error, "fetch" if op == "W(X)" else op)

    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending:
        if is_complex(arrays[0]):  # codecs take pairs of real numbers
            target = None if out is None else as_reals(out)
            pairs = self.start_all([as_reals(X) for X in arrays], target)
            return Pending(pairs, lambda: [from_reals(Y) for Y in pairs.wait()])
        with self._propagate_errors():
            for X in arrays:
                _check(X)
        calls = [self._call() for _ in arrays]
        steps, made = [step for _, step in calls], targets(arrays, out)
        memory = self._compression.memory
        if memory is None:
            return self._begin_direct(arrays, made, steps)
        halo = len(self._phase.halo)
        try:
            estimates = [memory.estimate(call, X, halo) for X, (call, _) in zip(arrays, calls)]
        except (RuntimeError, MemoryError) as error:
            self.abort_operation(error)
            raise
        return self._begin_feedback(arrays, made, steps, estimates)

    def _begin_direct(
        self, arrays: list[np.ndarray], made: list[np.ndarray], steps: list[int]
    ) -> Pending:
        """`X + gamma (W - I) C(X)` of each array"""
        codec, agents, halo = self._compression.codec, self.agents, self._phase.halo
        with self._propagate_errors():
            encoded = [encode(codec, X, step, agents) for X, step in zip(arrays, steps)]
            known = [
                decode(codec, Z, X.shape[1], X.dtype, step, agents)
                for Z, X, step in zip(encoded, arrays, steps)
            ]
        arrival = self._phase.fetch(joined(encoded))

        def finish() -> list[np.ndarray]:
            arrived = split(arrival.wait(), encoded)
            return [
                self._move(X, Q, decode(codec, Z, X.shape[1], X.dtype, step, halo), Y)
                for X, Y, Q, Z, step in zip(arrays, made, known, arrived, steps)
            ]

        return Pending(arrival, finish)

    def _begin_feedback(
        self,
        arrays: list[np.ndarray],
        made: list[np.ndarray],
        steps: list[int],
        estimates: list[Estimate],
    ) -> Pending:
        """`X_hat += C(X - X_hat)`, then `X + gamma (W - I) X_hat`, of each array"""
        codec, agents, halo = self._compression.codec, self.agents, self._phase.halo
        # An unbiased codec may enlarge a row; scaled by delta, it contracts, as error feedback
        # needs.
        scales = [codec.delta(X.shape[1]) if codec.unbiased else 1.0 for X in arrays]
        with self._propagate_errors():
            encoded = [
                encode(codec, X - X_hat.own, step, agents)
                for X, X_hat, step in zip(arrays, estimates, steps)
            ]
        for Z, X_hat, step, scale in zip(encoded, estimates, steps, scales):
            codec.add(Z, X_hat.own, step, agents, scale)
        arrival = self._phase.fetch(joined(encoded))

        def finish() -> list[np.ndarray]:
            arrived = split(arrival.wait(), encoded)
            for Z, X_hat, step, scale in zip(arrived, estimates, steps, scales):
                X_hat.pending = None
                codec.add(Z, X_hat.halo, step, halo, scale)
            return [
                self._move(X, X_hat.own, X_hat.halo, Y)
                for X, Y, X_hat in zip(arrays, made, estimates)
            ]

        pending = Pending(arrival, finish)
        # The next call with these estimates completes this one first.
        for X_hat in estimates:
            X_hat.pending = pending
        return pending

    def _move(self, X: np.ndarray, Q: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`X + gamma (W - I) Q`"""
        gamma = self._compression.step_size(X.shape[1])
        self._phase.difference(Q, halo, out)
        if gamma != 1:
            out *= gamma
        out += X
        return out

    @property
    def edges(self) -> LocalEdges:
        """The edges of the local agents."""
        return self._phase.edges

    @property
    def diagonal(self) -> np.ndarray:
        """The agents' weights for themselves."""
        return self._phase.diagonal

    def edge_rows(self, M: ArrayT) -> tuple[np.ndarray, str, ToKind[ArrayT]]:
        self._codec_of_edges()
        rows, format, restore = self._phase.edge_rows(M)
        with self._propagate_errors("W.exchange(M)"):
            if format == BFLOAT16:
                raise TypeError("rows are bfloat16, codecs know float32 and float64: M.float()")
        return rows, format, restore

    def _codec_of_edges(self) -> Codec:
        codec = self._compression.codec
        if not self._compression.exchanges:
            raise ValueError(
                f"a different row for each neighbour is sent without error feedback, and {codec!r} "
                "mixes with it: "
                'take compress("blockwise8") or "float16", without feedback'
            )
        return codec

    def carry(self, rows: np.ndarray) -> np.ndarray:
        """Send a row over each edge, encoded; see `EdgeOperator.carry`.

        Raises
        ------
        ValueError
            If error feedback was requested, or the codec needs it: rows for single neighbours have
            none.
        """
        codec = self._codec_of_edges()
        flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        if is_complex(rows):
            got = from_reals(self.carry(as_reals(flat)))
            return got.reshape(len(got), *rows.shape[1:])
        out_edges, in_edges = (
            ends.senders * self.n + ends.receivers for ends in (self.edges.out_of, self.edges.into)
        )
        with self._propagate_errors("W.exchange(M)"):
            _check(flat)
            _, step = self._call()
            encoded = np.ascontiguousarray(encode(codec, flat, step, out_edges))
        arrived = self._phase.carry(encoded)
        decoded = decode(codec, arrived, flat.shape[1], flat.dtype, step, in_edges)
        return decoded.reshape(len(arrived), *rows.shape[1:])

    def spread(
        self, arrays: list[np.ndarray], leave: Callable[[np.ndarray], np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Send the rows encoded; those of the local agents are decoded, too."""
        if is_complex(arrays[0]):
            pairs = self.spread(
                [as_reals(X) for X in arrays], lambda R: as_reals(leave(from_reals(R)))
            )
            return [(from_reals(own), from_reals(came)) for own, came in pairs]
        codec, edges, known, sent = self._compression.codec, self.edges, [], []
        steps = []
        for X in arrays:
            with self._propagate_errors("W.exchange(M)"):
                _check(X)
                _, step = self._call()
                encoded = encode(codec, X, step, self.agents)
                known.append(decode(codec, encoded, X.shape[1], X.dtype, step, self.agents))
            rows = X[edges.senders]
            left = leave(rows)
            with self._propagate_errors("W.exchange(M)"):
                if left is not rows:
                    encoded = encode(codec, left, step, edges.out_of.senders)
                else:
                    encoded = encoded[edges.senders]
            sent.append(encoded)
            steps.append(step)
        arrived = split(self._phase.carry(np.ascontiguousarray(joined(sent))), sent)
        return [
            (Q, decode(codec, Z, X.shape[1], X.dtype, step, edges.into.senders))
            for X, Q, Z, step in zip(arrays, known, arrived, steps)
        ]


def with_feedback(codec: Codec | type[Codec], topology: Topology | Schedule) -> bool:
    """Return whether mixing uses error feedback by default: the codec needs it, or it is lossy and
    the neighbours stay the same.

    Examples
    --------
    >>> from mpidec import topology
    >>> from mpidec.comm.mixing.codecs import QSGD, Identity
    >>> [with_feedback(QSGD(), graph(8)) for graph in (topology.ring, topology.one_peer_exponential)]
    [True, False]
    >>> with_feedback(Identity(), topology.ring(8))
    False
    """
    return codec.feedback or (codec.lossy and topology.period == 1)


def _check(rows: np.ndarray) -> None:
    if rows.dtype.char not in "fd":
        raise TypeError(
            f"rows are {rows.dtype}, codecs know float32 and float64: mix X.astype(np.float32)"
        )
