"""Mixers that lose messages: given ones, or each with some probability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ... import _validation as check
from ..._random import LOSSES, Streams, uniform
from ..._words import word
from ..arrays.host import ArrayT
from ..runtime.pending import Pending
from .edges import edges_into
from .exchange import mapped, scaled
from .operator import Lost, Operator, StepOperator
from .packing import Empty
from .repeated import Repeated
from .striped import StripedPhase
from .wrapped import Wrapped, WrappedPhase

FILLS = ("renormalize", "own", "zero")


@dataclass(frozen=True)
class Loss:
    """Which messages are lost.

    Parameters
    ----------
    messages : float, array of bool or callable
        See `Mixer.lossy`.
    seed : int
        Of the draws for a probability.
    n : int
        Number of agents.
    stripes : int
        Number of graphs that a row is divided among.
    """

    messages: float | np.ndarray | Lost
    seed: int
    n: int
    stripes: int = 1

    def __post_init__(self) -> None:
        messages, shape = self.messages, (self.stripes, self.n, self.n)
        Streams(self.seed, LOSSES)  # refuses a wrong seed
        if callable(messages):
            return
        if np.ndim(messages) == 0:
            share = check.number(messages, "lossy: messages", least=0, most=1)
            object.__setattr__(self, "messages", share)
            return
        masks = np.asarray(messages)
        if masks.dtype != bool or masks.shape[1:] not in (shape, shape[1:] * (self.stripes == 1)):
            expected = f"(steps, {self.n}, {self.n})" if self.stripes == 1 else f"(steps, {shape})"
            raise ValueError(
                f"lossy: messages is an array of shape {masks.shape} and type {masks.dtype}, expected a probability, or "
                f"bool {expected}, by step, receiver and sender: True for a message that is lost"
            )
        object.__setattr__(self, "messages", masks.reshape(len(masks), *shape))

    def lost(self, k: int, stripe: int, receivers: np.ndarray, senders: np.ndarray) -> np.ndarray:
        """Whether the messages of step `k` on these edges are lost."""
        messages = self.messages
        if callable(messages):
            return np.broadcast_to(
                np.asarray(messages(k, receivers, senders), bool), len(receivers)
            )
        if isinstance(messages, np.ndarray):
            some: np.ndarray = (
                messages[k, stripe, receivers, senders]
                if k < len(messages)
                else np.zeros(len(receivers), bool)
            )
            return some
        draws = uniform(self.seed, k * self.stripes + stripe, receivers, senders, LOSSES)
        return np.asarray(draws < messages)


class LossyPhase(WrappedPhase):
    """The operator of one step of a `Lossy` mixer, on one graph.

    Parameters
    ----------
    phase, k, at, empty
        See `WrappedPhase`.
    agents : range
        The agents on this rank.
    loss : Loss
    fill : str
    stripe : int
        Number of the graph among those that a row is divided among.
    """

    def __init__(
        self,
        phase: StepOperator,
        k: int,
        at: Callable[[int], StepOperator],
        empty: Empty,
        agents: range,
        loss: Loss,
        fill: str,
        stripe: int,
    ):
        super().__init__(phase, k, at, empty)
        self._settings = agents, loss, fill, stripe
        receivers, senders, weights = edges_into(self.topology, agents.start, agents.stop)
        self._arrives = ~loss.lost(k, stripe, receivers, senders)[:, None]
        own, lost = phase.own(np.ones((self.m, 1))), weights[:, None] * ~self._arrives
        self._weights, missing = weights[:, None] * self._arrives, self.sum_edges(lost)
        arrived = own + self.sum_edges(self._weights)
        self._scale, kept = np.ones((self.m, 1)), np.full((self.m, 1), fill == "own")
        if fill == "renormalize":
            kept = arrived == 0
            np.divide(arrived + missing, arrived, out=self._scale, where=~kept)
        self._own = own * self._scale + missing * kept

    @property
    def C(self) -> StepOperator:
        """The column-stochastic operator of a pair, which loses the same messages; of any other `W`, itself."""
        C = self._phase.C
        if C is self._phase:
            return self
        return LossyPhase(C, self._k, lambda k: self._at(k).C, self._empty, *self._settings)

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        super().abort_operation(error, "W.exchange(M)" if op == "W(X)" else op)

    def _begin(self, rows: np.ndarray, target: np.ndarray) -> Pending:
        arrived = self._phase.exchange(self._phase.to_edges(rows))
        arrived[~self._arrives[:, 0]] = 0  # whatever was sent, also what is not finite
        arrived *= self._weights.astype(rows.dtype)
        sums = self.sum_edges(arrived)
        sums *= self._scale.astype(rows.dtype)
        np.add(rows * self._own.astype(rows.dtype), sums, out=target)
        self._towards(target, rows)
        return Pending(None, lambda: target)

    def own(self, X: ArrayT) -> ArrayT:
        """The rows times the agents' weights for themselves in the sum of what arrives; see `Phase.own`."""
        return scaled(X, self._own)

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge; a row that is lost arrives as zeros."""
        return mapped(self._phase.exchange(M), lambda rows: np.where(self._arrives, rows, 0))


class Lossy(Wrapped[StepOperator]):
    r"""A mixer that loses messages; made by `Mixer.lossy`.

    With :math:`A_i` the neighbours whose message to agent i arrives in a step, :math:`Y_i = w_{ii} X_i + \sum_{j \in A_i} w_{ij}
    X_j` is completed by

    renormalize: the weights of what has arrived, times the same number, so that their sum is that of row i of W;

    own: the agent's own row in place of what is lost, :math:`Y_i + \sum_{j \notin A_i} w_{ij} X_i`;

    zero: nothing.

    Over an edge of `exchange`, zeros arrive for a lost row.

    Parameters
    ----------
    W : Operator
        A mixer, compressed (without error feedback) or not.
    messages, seed, fill
        See `Mixer.lossy`.

    Notes
    -----
    Sent per call: as without losses; `messages` and `bytes` count what is sent, lost or not.  All messages of an edge within one
    step are lost together.  The average of all agents is preserved by no fill, unless messages are lost in both directions of
    an edge and the fill is "own".
    """

    refused: ClassVar = {
        "compress": "compress of a mixer that loses messages: compress first: W.compress(...).lossy(...)",
        "accelerate": "accelerate of a mixer that loses messages: its W changes from step to step: W.lossy(...).repeat(K)",
        "lossy": "lossy of a mixer that loses messages already: state all losses at once, as an array or a function",
        "attacked": "attacked of a mixer that loses messages: W.attacked(...).lossy(...)",
        "noisy": "noisy of a mixer that loses messages: zeros that take the place of lost rows would be noisy: "
        "W.noisy(...).lossy(...)",
        "robust": "robust of a mixer that loses messages: a robust rule would take the zeros in place of lost rows for rows",
    }

    def __init__(
        self,
        W: Operator[StepOperator],
        messages: float | np.ndarray | Lost,
        seed: int = 0,
        fill: str = "renormalize",
    ):
        super().__init__(W)
        self._fill = check.choice(fill, "lossy: fill", FILLS)
        self._stripes = len(W.at(0).parts)
        self.loss = Loss(messages, seed, W.n, self._stripes)

    @property
    def call(self) -> str:
        """The call that makes it of the mixer below."""
        return f"lossy({word(self.loss.messages)}, seed={self.loss.seed}, fill={self._fill!r})"

    def over(self, W: Operator[StepOperator]) -> Lossy:
        return Lossy(W, self.loss.messages, self.loss.seed, self._fill)

    def own_disturbance(self) -> str:
        """The share of lost messages."""
        share = self.loss.messages
        if not isinstance(share, float):
            return "messages are lost"
        return f"{100 * share:.3g} % of the messages are lost" if share else ""

    def repeat(self, S: int) -> Repeated:
        """S mixings in one step, each with losses of its own; see `Mixer.repeat`."""
        return Repeated(self, S)

    def at(self, k: int) -> StepOperator:
        """The operator of step `k`."""
        phase = self.W.at(k)
        parts = [
            LossyPhase(part, k, self.at, self.empty, self.agents, self.loss, self._fill, stripe)
            for stripe, part in enumerate(phase.parts)
        ]
        if self._stripes == 1:
            return parts[0]
        return StripedPhase(parts, k, self.at, self.empty, self.agents)
