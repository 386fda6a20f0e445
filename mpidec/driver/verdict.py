"""Verdict on a run in a few words: whether its error has plateaued, falls, has grown, or has not
changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

MEASURES = ("error_rms", "gradient_norm", "consensus")  # the first one of a run is judged
LEAST = 8  # records
# Largest change, in logarithms, on a plateau; if its values are noisy.
STILL, LEVEL = 0.01, 0.3
SURE = 4.0  # standard errors
# Relative change in a run without progress.
UNMOVED = 0.01
PART = 0.25  # of the run, during which a plateau must have lasted
# Times below zero the size that an objective had at the start.
UNBOUNDED = 2.0
# Largest ratio of two values of a plateau that is stated by one number.
WIDE = 1.3
ROUNDED = 1e-12  # of the largest value: below, values differ by rounding
TINY = 1e-3  # of the largest value: below, a growth is rounding, or a start at the solution


def verdict(metrics: Mapping[str, np.ndarray], limit: str = "") -> str:
    """Describe how the agents' error (or gradient norm, or consensus) developed in a run; empty if
    too little is recorded.

    Parameters
    ----------
    metrics : dict of arrays
        All records of the run.
    limit : str
        Why the error stops falling, if that is known.

    Examples
    --------
    >>> steps = np.arange(0, 1010, 10)
    >>> verdict({"step": steps, "error_rms": 0.9**steps + 0.13})
    'error_rms has plateaued at 0.13 since step 70'
    >>> verdict({"step": steps, "error_rms": 0.9**steps + 0.13}, "10 % of the messages are lost")
    'error_rms has plateaued at 0.13 since step 70: 10 % of the messages are lost'
    >>> verdict({"step": steps, "error_rms": 0.9**steps + 1 + 0.3 * (-1.0) ** np.arange(101)})
    'error_rms stays between 0.7 and 1.3 since step 50'
    >>> verdict({"step": steps, "error_rms": 0.99**steps})
    'error_rms still falls'
    >>> verdict({"step": steps, "error_rms": 1.01**steps})
    'error_rms has grown from 1 to 2.1e+04'
    >>> verdict({"step": steps, "error_rms": np.ones(101)})
    'no progress: error_rms is 1, as at the start'
    >>> verdict({"step": steps + 700, "error_rms": np.ones(101)})  # resumed
    'error_rms is 1, as at step 700'
    """
    name = next(filter(metrics.__contains__, MEASURES), None)
    if name is None or len(metrics[name]) < LEAST or not np.isfinite(metrics[name]).all():
        return ""
    values, steps = np.asarray(metrics[name], float), np.asarray(metrics["step"])
    first, last = values[0], values[-1]
    if name == "gradient_norm" and (fallen := unbounded(metrics)):
        return fallen
    if not last:
        zero = steps[np.flatnonzero(np.append(1.0, values))[-1]]
        return f"{name} is 0 since step {zero}{_apart(metrics, name)}"
    if np.ptp(values) <= UNMOVED * first:
        # A resumed run may have been at its solution.
        none = "" if steps[0] else "no progress: "
        return f"{none}{name} is {last:.3g}, as at {_start(steps[0])}"
    since = plateau_since(values, steps)
    if since is not None:
        return f"{name} {_plateau(values, since, steps)}{limit and f': {limit}'}"
    if last > 2 * first and last > TINY * values.max():
        return f"{name} has grown from {first:.2g} to {last:.2g}"
    return f"{name} still falls" if falling(values) else ""


def _apart(metrics: Mapping[str, np.ndarray], name: str) -> str:
    """The consensus at the end, of a run whose gradient norm is judged."""
    apart = metrics["consensus"][-1] if name == "gradient_norm" else 0.0
    return f", and consensus {apart:.2g}" if apart else ""


def _start(step: int) -> str:
    """The first step of the records, which is a later one in a run that was resumed."""
    return f"step {step}" if step else "the start"


def _plateau(values: np.ndarray, since: int, steps: np.ndarray) -> str:
    """Describe the plateau that begins at record `since`."""
    rest, first = values[since:], values[0]
    level = float(np.median(rest))
    at = f"has plateaued at {level:.2g}"
    if rest.max() > WIDE * rest.min() and level > ROUNDED * values.max():
        at = f"stays between {rest.min():.2g} and {rest.max():.2g}"
    farther = f", farther than at {_start(steps[0])} ({first:.2g})" if level > 2 * first else ""
    return f"{at} since step {steps[since]}{farther}"


def falling(values: np.ndarray, least: float = STILL) -> bool:
    """Return whether the values of the last quarter are lower than all of the quarter before, in
    the median, and by so large a part.

    Examples
    --------
    >>> falling(0.9 ** np.arange(20)), falling(np.array([4.0, 2.0, 1.0, 1.2, 0.9, 1.1, 1.0, 0.9]))
    (True, False)
    """
    quarter = max(len(values) // 4, 1)
    before, after = values[-2 * quarter : -quarter], float(np.median(values[-quarter:]))
    return len(before) > 0 and after < float(before.min() - least * abs(before.min()))


def unbounded(metrics: Mapping[str, np.ndarray]) -> str:
    """Return what tells that the objective may be unbounded below: it has fallen far below zero,
    and the gradient has not; or "".

    Examples
    --------
    >>> unbounded({"objective": np.array([1.0, -2.0, -5.0]), "gradient_norm": np.ones(3)})
    'the objective has fallen from 1 to -5, and gradient_norm has not (1, 1 at the start): it may be unbounded below'
    """
    f, gradient = metrics.get("objective"), metrics.get("gradient_norm")
    if f is None or gradient is None or not f[-1] <= min(f) or f[-1] >= -UNBOUNDED * abs(f[0]):
        return ""
    if gradient[-1] < (1 - UNMOVED) * gradient[0]:
        return ""
    return (
        f"the objective has fallen from {f[0]:.3g} to {f[-1]:.3g}, and gradient_norm has not "
        f"({gradient[-1]:.2g}, "
        f"{gradient[0]:.2g} at the start): it may be unbounded below"
    )


def plateau_since(values: np.ndarray, steps: np.ndarray) -> int | None:
    r"""Return the record at which a plateau begins that lasts for at least the last quarter of the
    run; None if there is none.

    A plateau is a level line through the logarithms of that quarter: it changes by less than
    1 %, or by less than its own uncertainty if the gradients are random, and by less than a tenth
    of the change before, as in a slow but steady fall it would not.
    """
    quarter = int(np.searchsorted(steps, steps[-1] - PART * (steps[-1] - steps[0])))
    tail = values[quarter:]
    if quarter < 2 or len(tail) < 3:
        return None
    if not tail.min() > 0:
        return None if tail.any() else int(np.flatnonzero(np.append(1.0, values))[-1])
    y, t = np.log(tail), np.linspace(-0.5, 0.5, len(tail))
    change = float(t @ y / (t @ t))
    noise = float(np.linalg.norm(y - y.mean() - change * t) / np.sqrt(len(t) - 2))
    moved = np.abs(np.log(values[:quarter].clip(min=1e-300)) - y.mean()).max()
    uncertain = min(SURE * noise / float(np.linalg.norm(t)), LEVEL) * (len(t) >= LEAST)
    if abs(change) > max(STILL, uncertain) or (
        change < 0 and -change > max(0.1 * moved, uncertain)
    ):
        return None
    inside = (values <= tail.max() * (1 + STILL)) & (values >= tail.min() * (1 - STILL))
    return int(np.flatnonzero(~np.append(False, inside))[-1])  # the record after the last outside


def limit_of(values: np.ndarray) -> float:
    r"""Return the limit v of a sequence :math:`v_k = v + c \rho^k`, by Aitken's extrapolation from
    its second half; 0 if unknown.

    Examples
    --------
    >>> round(limit_of(0.9 ** np.arange(20) + 0.13), 6)
    0.13
    """
    if len(values) < 5:
        return 0.0
    span = (len(values) - 1) // 4
    a, b, c = (float(values[-1 - j * span]) for j in (2, 1, 0))
    if not a > b > c > 0 or not a - b > b - c:
        return 0.0
    return max(c - (b - c) ** 2 / ((a - b) - (b - c)), 0.0)
