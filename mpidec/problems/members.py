"""Access to optional members of a problem, which a user-defined problem may omit."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from .. import _validation as check
from .._complex import double, doubled
from .._validation import Array
from ..protocols import Sample
from .terms import Term


def term_of(problem: object) -> Term | None:
    """Return the nonsmooth part of every function, whose gradient `grad` leaves out."""
    return cast("Term | None", getattr(problem, "term", None))


def known_minimizer(
    x_star: ArrayLike | Callable[[int], ArrayLike] | None, d: int, n: int = 0
) -> Array | Callable[[int], ArrayLike] | None:
    """A minimizer, (d,), or a function of the step that returns it, checked; or those of at least n
    agents, (n, d), where n > 0.

    Raises
    ------
    TypeError, ValueError
    """
    if n and x_star is not None and not callable(x_star) and np.ndim(x_star) == 2:
        return check.minimizers(x_star, n, d)
    if not callable(x_star):
        return check.minimizer(x_star, d, complex_too=True)
    check.takes(x_star, "x_star", "k")
    return x_star


def x_star_of(problem: object, k: int = 0) -> Array | None:
    """Return the minimizer of the average of all agents' functions, (d,), if it is known; that of
    step k, if it moves.

    Raises
    ------
    ValueError
        If the function of the step returns something else.
    """
    known = getattr(problem, "x_star", None)
    if targets_of(problem) is not None:
        return None
    if callable(known):
        found, d = np.array(known(k)), getattr(problem, "d", None)
        if found.shape != (d,) or not np.isfinite(found).all():
            what = "not finite" if found.shape == (d,) else f"of shape {found.shape}"
            raise ValueError(f"x_star({k}) is {what}, expected finite numbers of shape ({d},)")
        known = found
    return None if known is None else double(np.asarray(known)).reshape(-1)


def targets_of(problem: object) -> Array | None:
    """Return the minimizers of all agents' own functions, (n, d), if these are known in place of
    that of their average.
    """
    known, d = getattr(problem, "x_star", None), getattr(problem, "d", None)
    if known is None or callable(known):
        return None
    array = np.asarray(known)
    many = array.ndim == 2 and array.shape[1] == d and len(array) > 1
    return double(array) if many else None


def moves(problem: object) -> bool:
    """Return whether the minimizer is a function of the step."""
    return callable(getattr(problem, "x_star", None))


def is_sampled(problem: object) -> bool:
    """Return whether value and gradient are means of samples, and the minimizer that of their
    expectation.
    """
    return getattr(problem, "sampled", False) is True


def smoothness_of(problem: object) -> Array | None:
    """Return the smoothness constants of the local agents, (m,).

    Raises
    ------
    ValueError
        If the problem has none for its parameters.
    """
    return cast("Array | None", getattr(problem, "smoothness", None))


def prox_of(problem: object) -> Callable[..., Array] | None:
    """Return the proximal points of the functions: ``prox(V, t)``, perhaps with the argument
    `start`.
    """
    return cast("Callable[..., Array] | None", getattr(problem, "prox", None))


def sample_of(problem: object) -> Callable[..., Sample] | None:
    """Return the samples of the local agents as measurements: ``sample(rows)``, those of the
    numbers `rows`, (m, B), or all.
    """
    return cast("Callable[..., Sample] | None", getattr(problem, "sample", None))


def solution_of(problem: object) -> Callable[[], Array] | None:
    """Return the method that computes the minimizer of the local functions."""
    return cast("Callable[[], Array] | None", getattr(problem, "solution", None))


def agents_of(problem: object) -> int | None:
    """Return the number of all agents, if the problem knows it."""
    n = getattr(problem, "n", None)
    return int(n) if isinstance(n, numbers.Integral) else None


def dtype_of(problem: object, x0: object) -> np.dtype[Any]:
    """Return the dtype of iterates: that of the data of a problem, or else of `x0`, if it is
    float32 or complex.
    """
    given = None if x0 is None else np.asarray(x0).dtype
    dtype = getattr(problem, "dtype", given)  # of Neural, a torch.dtype
    if isinstance(dtype, np.dtype) and dtype in (np.float32, np.complex64):
        return dtype
    return doubled(dtype if isinstance(dtype, np.dtype) else float)


def metrics_of(problem: object) -> Mapping[str, Callable[..., Any]]:
    """Metrics that runs of the problem record beside the usual ones, by name: ``f(X, agents,
    k)``.
    """
    given = getattr(problem, "metrics", None)
    return given if isinstance(given, Mapping) else {}


def is_checked(problem: object) -> bool:
    """Return whether `grad` is to be compared with differences of `value` before a run."""
    return getattr(problem, "check", True) is not False
