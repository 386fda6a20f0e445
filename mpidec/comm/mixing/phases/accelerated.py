"""Several mixings in one call, as a polynomial of W: the operator of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .... import _validation as check
from ...._complex import width
from ...runtime import Pending
from ..base.step import StepOperator
from .wrapped import WrappedPhase

if TYPE_CHECKING:
    from ....topology import Schedule, Topology

METHODS = ("chebyshev", "fastmix")


@dataclass(frozen=True)
class Acceleration:
    r"""K mixings in one call, :math:`Y = P_K(W) X`; made by `Mixer.accelerate`.

    With s the second largest modulus of an eigenvalue of W,

    .. math:: X_{k+1} = \omega_{k+1} W X_k + (1 - \omega_{k+1}) X_{k-1}, \qquad k = 0, ..., K - 1

    chebyshev: :math:`\omega_1 = 1,\; \omega_{k+1} = 2 / (2 - s r_k)` with :math:`r_1 = s,\; r_{k+1}
    = s \omega_{k+1} / 2`, so that :math:`P_K(\lambda) = T_K(\lambda / s) / T_K(1 / s)`, of all
    polynomials with :math:`P_K(1) = 1` the smallest on [-s, s].

    fastmix: :math:`\omega_k = 1 + \eta,\; \eta = (1 - \sqrt{1 - s^2}) / (1 + \sqrt{1 - s^2})`, and
    :math:`X_{-1} = X_0`.

    Parameters
    ----------
    K : int
        Number of mixings.
    method : {"chebyshev", "fastmix"}
    s : float
        The second largest modulus of an eigenvalue of the topology's W.

    Notes
    -----
    Sent per call: K rows to each neighbour, one after the other; `start` returns once the last of
    them is under way.  The average is preserved.  The eigenvalues of :math:`P_K(W)` reach down to
    -`contraction()`, often below those of W; a solver that needs them well above -1 then needs a
    smaller step size, or more mixings.  Over a compressed mixer, W is :math:`I + \gamma (W - I)`,
    and with error feedback each of the K mixings has its own memory.

    References
    ----------
    chebyshev: M. Arioli, J. Scott, "Chebyshev acceleration of iterative refinement", Numerical
    Algorithms 66 (2014). fastmix: J. Liu, A. S. Morse, "Accelerated linear iterations for
    distributed averaging", Annual Reviews in Control 35 (2011).

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> with mpidec.Network(16, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.ring(16)).accelerate(20)
    ...     X = np.eye(16)
    ...     W.contraction(16), float(np.linalg.norm(W(X) - 1 / 16, 2))
    (0.00297..., 0.00297...)
    """

    K: int
    method: str
    s: float

    @classmethod
    def of(cls, topology: Topology | Schedule, K: int, method: str) -> Acceleration:
        """Over a static topology with a symmetric, connected W.

        Raises
        ------
        ValueError
            If the topology is a schedule, not symmetric or not connected.

        Warns
        -----
        RuntimeWarning
            If K mixings may amplify disagreement: fastmix, with few mixings and eigenvalues near
            -s.
        """
        check.choice(method, "method", METHODS)
        K = check.integer(K, "K")
        remedy = 'take topology.symmetric_exponential(n), or an undirected graph with weights="metropolis"'
        if topology.period != 1:
            raise ValueError(
                f"acceleration needs the same W at every step, {topology.name} is a schedule: "
                f"{remedy}"
            )
        graph = topology.at(0)
        if not graph.symmetric:
            raise ValueError(
                f"acceleration needs a symmetric W, that of the {graph.name} topology is not: "
                f"{remedy}"
            )
        s = 1 - graph.spectral_gap()
        if s >= 1:
            raise ValueError(
                f"the {graph.name} topology never agrees (spectral gap 0): take a connected one"
            )
        return cls(K, method, s)

    def omegas(self, gamma: float) -> tuple[float, ...]:
        r""":math:`\omega_1, ..., \omega_K` over :math:`I + \gamma (W - I)`."""
        return _omegas(self._s(gamma), self.K, self.method)

    def contraction(self, gamma: float) -> float:
        r""":math:`\max |P_K(\lambda)|` over :math:`|\lambda| \le s`: upper bound of what one
        call leaves of a disagreement.
        """
        s = self._s(gamma)
        before, now = np.ones(513), np.ones(513)
        lam = s * np.cos(np.linspace(0, np.pi, 513))
        for omega in _omegas(s, self.K, self.method):
            before, now = now, omega * lam * now + (1 - omega) * before
        return float(np.abs(now).max())

    def _s(self, gamma: float) -> float:
        radius: float = max(1 - gamma * (1 - self.s), gamma * (1 + self.s) - 1)
        return radius


class AcceleratedPhase(WrappedPhase):
    """The operator of one step of an `Accelerated` mixer.

    Parameters
    ----------
    phase, k, at, empty
        See `WrappedPhase`.
    omegas : callable
        `omegas(d)`: the coefficients for rows of `d` entries.
    """

    def __init__(
        self,
        phase: StepOperator,
        k: int,
        at: Callable[[int], StepOperator],
        omegas: Callable[[int], tuple[float, ...]],
    ):
        super().__init__(phase, k, at)
        self._omegas = omegas

    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending:
        *omegas, omega = self._of(arrays)
        before, now = self._after(omegas, arrays)
        last = self._phase.start_all(now, out)
        return Pending(last, lambda: _combined(omega, last.wait(), before))

    def mix_all(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return self._after(self._of(arrays), arrays)[1]

    def _of(self, arrays: list[np.ndarray]) -> list[tuple[float, ...]]:
        """Return the coefficients of each mixing for each array."""
        return list(zip(*(self._omegas(width(X)) for X in arrays)))

    def _after(
        self, omegas: Sequence[tuple[float, ...]], arrays: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the rows before the last of some mixings, and after it."""
        before, now = arrays, arrays
        for omega in omegas:
            before, now = now, _combined(omega, self._phase.mix_all(now), before)
        return before, now

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Raise: only averages can be accelerated.

        Raises
        ------
        ValueError
        """
        raise ValueError(
            "an accelerated mixer computes averages only, and this solver sends a different row to "
            "each neighbour: "
            "give it the mixer without acceleration"
        )


@lru_cache(maxsize=256)
def _omegas(s: float, K: int, method: str) -> tuple[float, ...]:
    root = math.sqrt(1 - s * s)
    if method == "fastmix":
        return (1 + (1 - root) / (1 + root),) * K
    omegas, r = [1.0], s
    for _ in range(K - 1):
        omegas.append(2 / (2 - s * r))
        r = s * omegas[-1] / 2
    return tuple(omegas)


def _combined(
    omegas: Sequence[float], now: list[np.ndarray], before: list[np.ndarray]
) -> list[np.ndarray]:
    """`omega now + (1 - omega) before` of each array, in place of `now`; equal rows stay
    unchanged.
    """
    for omega, Y, X in zip(omegas, now, before):
        if omega != 1:
            Y -= X
            Y *= omega
            Y += X
    return now
