"""Mixers that are made of another one: the same interface, another operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays.host import as_rows, as_target
from ..runtime.memory import empty
from .mixer import Mixer
from .pending import Pending

if TYPE_CHECKING:
    from ..topology import Schedule, Topology
    from .accelerated import Accelerated
    from .compressed import Compressed


class Then(Pending):
    """A mixing that goes on when another one has ended: `finish()` makes the result."""

    def __init__(self, first: Pending, finish: Callable[[], Any]):
        super().__init__(first, finish)


class DerivedPhase:
    """The operator of one step of a derived mixer, over the operator `phase` of the mixer below."""

    def __init__(self, mixer: Derived, phase: Any, k: int):
        self._mixer, self._phase, self._k = mixer, phase, k
        self.topology, self.n, self.m = phase.topology, mixer.n, mixer.m

    @property
    def next(self) -> Any:
        """The operator of the following step."""
        return self._mixer.at(self._k + 1)

    def at(self, k: int) -> Any:
        """The operator of step `k`."""
        return self._mixer.at(k)

    def __call__(self, X: Any, out: np.ndarray | None = None) -> Any:
        """Mix the rows `X`, shape `(m, ...)`; a list, tuple or dict of arrays is mixed as one row per agent."""
        return self.start(X, out).wait()

    def start(self, X: Any, out: np.ndarray | None = None) -> Pending:
        """Begin to mix `X`; `wait()` on what comes back returns the mixed rows."""
        if isinstance(X, (Mapping, list, tuple)):
            if out is not None:
                raise TypeError("out is given, expected none when several arrays are mixed")
            many = self._start_many(list(X.values() if isinstance(X, Mapping) else X))
            return Then(many, lambda: dict(zip(X, many.wait()))) if isinstance(X, Mapping) else many
        rows, home = as_rows(X, self.m)
        if out is None:
            target = empty(rows.shape, rows.dtype)
        else:
            target, home = as_target(out, X, rows)
        pending = self._begin(rows, target)
        return Then(pending, lambda: home(pending.wait()))

    def _start_many(self, arrays: list[Any]) -> Pending:
        if not arrays:
            return Pending(None, list)
        pairs = [as_rows(X, self.m) for X in arrays]
        if len({rows.dtype for rows, _ in pairs}) > 1:
            separate = [self.start(X) for X in arrays]
            return Pending(None, lambda: [pending.wait() for pending in separate])
        joint = self.start(np.concatenate([rows for rows, _ in pairs], axis=1))

        def split() -> list[Any]:
            parts = np.split(joint.wait(), np.cumsum([rows.shape[1] for rows, _ in pairs])[:-1], axis=1)
            return [home(np.ascontiguousarray(part)) for part, (_, home) in zip(parts, pairs)]
        return Then(joint, split)

    def _begin(self, rows: np.ndarray, target: np.ndarray) -> Pending:
        """Begin to mix `rows` (m, d) into `target`, which the pending returns."""
        raise NotImplementedError

    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """The sender's row for each edge out of the local agents; see `Phase.to_edges`."""
        return self._phase.to_edges(X)

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row to each neighbour; see `Phase.exchange`."""
        raise NotImplementedError

    def sum_edges(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent; see `Phase.sum_edges`."""
        return self._phase.sum_edges(M)

    @property
    def in_edges(self) -> int:
        """Edges into the local agents."""
        return self._phase.in_edges


class Derived:
    """A mixer made of the mixer `W`, whose counters it shares; `W(X)` is the operator of the current step, as of a `Mixer`.

    Attributes
    ----------
    W : Mixer
    net, topology, n, m, rounds, messages, bytes
        Those of `W`.
    """

    def __init__(self, W: Mixer | Derived):
        self.W = W
        self.agents = W.agents
        self.topology: Topology | Schedule = W.topology
        self.n: int = W.n
        self.m: int = W.m
        self._step = 0

    def at(self, k: int) -> Any:
        """The operator of step `k`."""
        raise NotImplementedError

    def __call__(self, X: Any, out: np.ndarray | None = None) -> Any:
        """Mix the rows `X`, shape `(m, ...)`, with the operator of the current step."""
        return self.start(X, out).wait()

    def start(self, X: Any, out: np.ndarray | None = None) -> Pending:
        """Begin to mix `X`; `wait()` on what comes back returns the mixed rows."""
        self._step += 1
        return self.at(self._step - 1).start(X, out)

    def compress(self, codec: Any, *, feedback: bool | None = None, gamma: float | None = None, seed: int = 0,
                 **options: Any) -> Compressed:
        """See `Mixer.compress`."""
        from .compressed import compressed
        return compressed(self, codec, feedback, gamma, seed, options)

    def accelerate(self, K: int, method: str = "chebyshev") -> Accelerated:
        """See `Mixer.accelerate`."""
        from .accelerated import Accelerated
        return Accelerated(self, K, method)

    def gamma(self, d: int) -> float:
        r""":math:`\gamma`, if the mixer is near :math:`I + \gamma (W - I)` on rows of `d` entries."""
        return 1.0

    def memory(self) -> dict[str, np.ndarray]:
        """What the mixer remembers from step to step: arrays with a row per local agent."""
        return {}

    def recall(self, memory: Mapping[str, np.ndarray]) -> None:
        """Go on with the `memory` of another such mixer, on any number of ranks; collective.

        Raises
        ------
        ValueError
            If this mixer has no memory, and there is something to recall.
        """
        if memory:
            raise ValueError(f"{type(self).__name__} has no memory to recall, got {', '.join(memory)}")

    def close(self) -> None:
        """Close the mixer below; collective, and safe to repeat."""
        self.W.close()


def _shared(name: str) -> property:
    def get(self: Derived) -> int:
        return getattr(self.W, name)

    def put(self: Derived, value: int) -> None:
        setattr(self.W, name, value)
    return property(get, put, doc=f"`{name}` of the mixer below.")


for _name in ("rounds", "messages", "bytes"):
    setattr(Derived, _name, _shared(_name))


def flat(M: np.ndarray) -> np.ndarray:
    """The rows as a matrix, C-contiguous."""
    return np.ascontiguousarray(M).reshape(len(M), math.prod(M.shape[1:]))
