"""Accelerated mixers: several mixings in one call, as a polynomial of W."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import Any

import numpy as np

from .compressed import Compressed
from .wrapped import Derived, DerivedPhase, Then
from .mixer import Mixer
from .pending import Pending

METHODS = ("chebyshev", "fastmix")


class AcceleratedPhase(DerivedPhase):
    """The operator of one step of an `Accelerated` mixer."""

    _mixer: Accelerated

    def _begin(self, rows: np.ndarray, target: np.ndarray) -> Pending:
        omegas = self._mixer.omegas(rows.shape[1])
        before, now = rows, rows
        for omega in omegas[:-1]:
            before, now = now, _combined(omega, self._phase(now), before)
        last = self._phase.start(now, target)
        return Then(last, lambda: _combined(omegas[-1], last.wait(), before))

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Refused: acceleration is for averages.

        Raises
        ------
        ValueError
        """
        raise ValueError("an accelerated mixer takes averages, and a solver that sends each neighbour a row of its own does not "
                         "use them: give it the mixer as it is")


class Accelerated(Derived):
    r"""K mixings in one call, :math:`Y = P_K(W) X`; made by `Mixer.accelerate`.

    With s the second largest modulus of an eigenvalue of W,

    .. math:: X_{k+1} = \omega_{k+1} W X_k + (1 - \omega_{k+1}) X_{k-1}, \qquad k = 0, ..., K - 1

    chebyshev: :math:`\omega_1 = 1,\; \omega_{k+1} = 2 / (2 - s r_k)` with :math:`r_1 = s,\; r_{k+1} = s \omega_{k+1} / 2`, so that
    :math:`P_K(\lambda) = T_K(\lambda / s) / T_K(1 / s)`, of all polynomials with :math:`P_K(1) = 1` the smallest on [-s, s].

    fastmix: :math:`\omega_k = 1 + \eta,\; \eta = (1 - \sqrt{1 - s^2}) / (1 + \sqrt{1 - s^2})`, and :math:`X_{-1} = X_0`.

    Parameters
    ----------
    W : Mixer
        Of a static topology with a symmetric, connected W; compressed or not.
    K : int
    method : {"chebyshev", "fastmix"}

    Attributes
    ----------
    s : float
        Of the W of the topology.

    Raises
    ------
    ValueError
        If the topology is a schedule, not symmetric or not connected; or over a mixer that is compressed by top_k or rand_k.

    Warns
    -----
    RuntimeWarning
        If K mixings may amplify disagreement: fastmix, with few mixings and eigenvalues near -s.

    Notes
    -----
    Sent per call: K rows to each neighbour, one after the other; `start` returns when the last of them is under way.  The
    average is kept.  The eigenvalues of :math:`P_K(W)` reach down to -`contraction()`, often below those of W, and a solver that
    needs them well above -1 then needs smaller steps, or more mixings.  Over a compressed mixer, W is
    :math:`I + \gamma (W - I)`, and each of the K mixings has a memory of its own.

    References
    ----------
    chebyshev: M. Arioli, J. Scott, "Chebyshev acceleration of iterative refinement", Numerical Algorithms 66 (2014), Section 2.
    fastmix: J. Liu, A. S. Morse, "Accelerated linear iterations for distributed averaging", Annual Reviews in Control 35
    (2011), Section 4.

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

    def __init__(self, W: Mixer | Derived, K: int, method: str = "chebyshev"):
        if isinstance(W, Accelerated):
            raise ValueError("accelerate of an accelerated mixer: ask for all mixings at once, W.accelerate(K)")
        super().__init__(W)
        if method not in METHODS:
            raise ValueError(f"method is {method!r}, expected one of {', '.join(METHODS)}")
        if isinstance(K, bool) or not isinstance(K, (int, np.integer)) or K < 1:
            raise ValueError(f"K is {K!r}, expected a whole number of mixings >= 1")
        self.K, self.method = int(K), method
        topology: Any = W.topology
        remedy = 'take topology.symmetric_exponential(n), or an undirected graph with weights="metropolis"'
        if topology.period != 1:
            raise ValueError(f"acceleration needs the same W at every step, {topology.name} is a schedule: {remedy}")
        if not topology.symmetric:
            raise ValueError(f"acceleration needs a symmetric W, that of the {topology.name} topology is not: {remedy}")
        if isinstance(W, Compressed) and W.codec.feedback:
            raise ValueError(f"{W.codec!r} sends too little of a row for acceleration, which would amplify what is missing: take "
                             'compress("blockwise8"), "qsgd" or "float16", or mix more often without acceleration')
        self.s = 1 - topology.spectral_gap()
        if self.s >= 1:
            raise ValueError(f"the {topology.name} topology never agrees (spectral gap 0): take a connected one")
        worst = self.contraction(1 << 20)
        if worst >= 1 + 1e-12:
            warnings.warn(f"{self.K} mixings of {method} over the {topology.name} topology may amplify disagreement by "
                          f'{worst:.3g}: take method="chebyshev" or more mixings', RuntimeWarning, stacklevel=3)

    def at(self, k: int) -> AcceleratedPhase:
        """The operator of step `k`."""
        return AcceleratedPhase(self, self.W.at(k), k)

    def omegas(self, d: int) -> tuple[float, ...]:
        r""":math:`\omega_1, ..., \omega_K` for rows of `d` entries (the same for all d, but over a compressed mixer)."""
        return _omegas(self._s(d), self.K, self.method)

    def contraction(self, d: int = 1) -> float:
        r""":math:`\max |P_K(\lambda)|` over :math:`|\lambda| \le s`: what is left of a disagreement at most."""
        s = self._s(d)
        before, now = np.ones(513), np.ones(513)
        lam = s * np.cos(np.linspace(0, np.pi, 513))
        for omega in _omegas(s, self.K, self.method):
            before, now = now, omega * lam * now + (1 - omega) * before
        return float(np.abs(now).max())

    def _s(self, d: int) -> float:
        gamma = _gamma(self.W, d)
        return max(1 - gamma * (1 - self.s), gamma * (1 + self.s) - 1)

    def memory(self) -> dict[str, np.ndarray]:
        """The memory of the mixer below, if it is compressed."""
        return self.W.memory() if isinstance(self.W, Derived) else {}

    def recall(self, memory: Any) -> None:
        """Take up a memory; see `Compressed.recall`."""
        if isinstance(self.W, Derived):
            self.W.recall(memory)
        else:
            super().recall(memory)


def _gamma(W: Mixer | Derived, d: int) -> float:
    return W.gamma(d) if isinstance(W, Derived) else 1.0


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


def _combined(omega: float, now: np.ndarray, before: np.ndarray) -> np.ndarray:
    """`omega now + (1 - omega) before`, in place of `now`; equal rows stay as they are."""
    if omega != 1:
        now -= before
        now *= omega
        now += before
    return now
