"""Safe step sizes: what a method bears on a graph, for functions that are L-smooth.

On quadratics of one curvature h the modes of `W` decouple, and a step of a method with two variables is, for the eigenvalue
lam of `W` and a = step_size * h, a matrix of size 2.  A step size is safe here if no mode grows at any curvature up to L,
with a factor 2 to spare, since the agents' curvatures differ.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

DENSE = 600                                         # agents up to which all eigenvalues are computed
CURVATURES = np.geomspace(1e-3, 1, 8)
LARGEST, SMALLEST = 1.0, 2.0**-16
SPARE = 0.5
UNKNOWN = 0.25                                      # in units of 1 / L, where the eigenvalues are not known
PLAIN = {"dgd": 1.0, "diffusion": 1.0, "push_sum": 1.0, "exact_diffusion": 1.0, "d2": 1.0, "relaysgd": 0.5, "dsgd_ceca": 0.5}

Modes = NDArray[np.complex128]
Recursion = Callable[[Modes, Any], tuple[Any, Any, Any, Any]]
RECURSIONS: dict[tuple[str, str], Recursion] = {
    ("gradient_tracking", "atc"): lambda lam, a: (lam, -lam * a, lam * (lam - 1), lam * (1 - lam * a)),
    ("gradient_tracking", "semi-atc"): lambda lam, a: (lam, -lam * a, lam - 1, lam * (1 - a)),
    ("gradient_tracking", "diging"): lambda lam, a: (lam, -a, lam - 1, lam - a),
    ("push_diging", ""): lambda lam, a: (lam, -lam * a, lam - 1, lam * (1 - a)),
    ("extra", ""): lambda lam, a: (lam - a, -1, (1 - lam) / 2, 1),
    ("dgd", "awc"): lambda lam, a: (lam - a, 0, 0, 0),
}
"""The entries of the matrix of a step, row by row: the iterate first, and in its units the second variable."""


def safe(name: str, options: Mapping[str, Any], topology: Any, smoothness: float) -> float:
    """A safe step size for the solver `name` over a topology, from the largest smoothness constant L of any agent.

    Parameters
    ----------
    name : str
        As in `mpidec.solvers.CATALOGUE`.
    options : mapping
        The solver's parameters: of `variant` and `order` it depends.
    topology : Topology or Schedule
    smoothness : float
        L; where it is 0, any step size does.

    Examples
    --------
    >>> import mpidec
    >>> safe("exact_diffusion", {}, mpidec.topology.ring(8), smoothness=4.0)
    0.25
    >>> safe("gradient_tracking", {}, mpidec.topology.complete(8), smoothness=4.0)
    0.125
    """
    kind = str(options.get("variant", "atc")) if name == "gradient_tracking" else str(options.get("order", ""))
    recursion = RECURSIONS.get((name, kind))
    factor = PLAIN.get(name, UNKNOWN)
    if recursion is not None:
        lams = eigenvalues(topology)
        factor = UNKNOWN if lams is None else SPARE * _largest_stable(recursion, lams)
    return factor / smoothness if smoothness > 0 else 1.0


def eigenvalues(topology: Any) -> Modes | None:
    """The eigenvalues of `W` without the first, 1; of a large symmetric one the smallest alone; None if not known."""
    if topology.period != 1:
        return None
    if topology.n <= DENSE:
        lams: Modes = np.linalg.eigvals(topology.W.toarray()).astype(complex)
        return np.delete(lams, np.argmin(abs(lams - 1)))
    if not topology.symmetric:
        return None
    from scipy.sparse.linalg import eigsh
    return np.asarray(eigsh(topology.W, k=1, which="SA", tol=1e-3, return_eigenvectors=False, v0=_start(topology.n)), complex)


def _start(n: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal(n)


def _largest_stable(recursion: Recursion, lams: Modes) -> float:
    a = LARGEST
    while a > SMALLEST and not _stable(recursion, lams, a):
        a *= 0.5**0.5
    return a if a > SMALLEST else UNKNOWN            # unstable at any step size: the solver warns of it itself


def _stable(recursion: Recursion, lams: Modes, a: float) -> bool:
    lam, curvature = np.broadcast_arrays(lams[:, None], a * CURVATURES)
    p, q, r, s = recursion(lam, curvature)
    half, determinant = (p + s) / 2, p * s - q * r
    root = np.sqrt(half * half - determinant + 0j)
    return bool((np.maximum(abs(half + root), abs(half - root)) <= 1 + 1e-12).all())
