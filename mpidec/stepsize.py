"""Safe step sizes of the solvers on a graph, for L-smooth functions.

On quadratics of equal curvature h the modes of `W` decouple, and a step of a method with two variables is a 2 x 2 matrix
for each eigenvalue lam of `W`, with a = step_size * h.  A step size is considered safe if, at twice its value, no mode
grows for curvatures from L / 1000 to L; the factor 2 allows for different curvatures of the agents.  Methods without such
a matrix have a fixed multiple of 1 / L.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

DENSE = 600                                         # largest number of agents for which all eigenvalues are computed
CURVATURES = np.geomspace(1e-3, 1, 8)
LARGEST, SMALLEST = 1.0, 2.0**-16
SPARE = 0.5
UNKNOWN = 0.25                                      # in units of 1 / L, if the eigenvalues are not known
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
"""Matrix of a step by solver and variant, row by row: first the iterate, then the second variable in the same units."""


def safe(name: str, options: Mapping[str, Any], topology: Any, smoothness: float) -> float:
    """Return a safe step size of the solver `name` on a topology.

    Parameters
    ----------
    name : str
        Name of the solver in `mpidec.solvers.CATALOGUE`.
    options : mapping
        Parameters of the solver, of which `variant` and `order` are used.
    topology : Topology or Schedule
        Topology or schedule of the mixing matrices.
    smoothness : float
        Largest smoothness constant L of any agent; if it is 0, the step size is 1.

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
    """Return the eigenvalues of `W` except 1; only the smallest of a large symmetric `W`; None if they are not known."""
    if topology.period != 1:
        return None
    if topology.n <= DENSE:
        lams: Modes = np.linalg.eigvals(topology.at(0).W.toarray()).astype(complex)
        return np.delete(lams, np.argmin(abs(lams - 1)))
    if not topology.symmetric:
        return None
    from scipy.sparse.linalg import eigsh
    return np.asarray(eigsh(topology.at(0).W, k=1, which="SA", tol=1e-3, return_eigenvectors=False, v0=_start(topology.n)), complex)


def _start(n: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal(n)


def _largest_stable(recursion: Recursion, lams: Modes) -> float:
    a = LARGEST
    while a > SMALLEST and not _stable(recursion, lams, a):
        a *= 0.5**0.5
    return a if a > SMALLEST else UNKNOWN            # unstable at any step size; the solver itself warns of it


def _stable(recursion: Recursion, lams: Modes, a: float) -> bool:
    lam, curvature = np.broadcast_arrays(lams[:, None], a * CURVATURES)
    p, q, r, s = recursion(lam, curvature)
    half, determinant = (p + s) / 2, p * s - q * r
    root = np.sqrt(half * half - determinant + 0j)
    return bool((np.maximum(abs(half + root), abs(half - root)) <= 1 + 1e-12).all())
