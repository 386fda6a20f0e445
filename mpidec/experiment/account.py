"""What the noise on a run's messages hides: its privacy account, where rows are clipped."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np

from .. import theory
from ..driver.internals import Result
from ..record.internals import annotate
from ..solvers import Consensus
from .build import Job
from .settings import Mixing

# Agents, and agents squared times mixings of averaging, at most: beyond, it takes some seconds.
LARGE, WORK = 2000, 500_000


def account(job: Job, result: Result) -> theory.Privacy | str:
    """Return the privacy of a run whose messages are noisy and clipped; else why there is none, ""
    if no row was clipped.

    Of `Consensus`, whose initial rows are clipped, it is exact; of other methods, which clip each
    message, a bound; see `mpidec.theory.privacy`.
    """
    wanted, graph = job.experiment.mixing, job.topology
    mixings, averages = result.steps * (wanted.repeat or 1), isinstance(job.solver, Consensus)
    if wanted.clip is None or not wanted.noise:
        return "" if wanted.clip is None else "none: there is no noise"
    if reason := _outside(wanted, graph.n, mixings, averages):
        return f"none: {reason}"
    last = {name: values[-1] for name, values in result.metrics.items() if len(values)}
    rows = math.ceil(last["bytes"] / max(last["rows"] * job.d * result.X.itemsize, 1) - 1e-9)
    if graph.period == 1:
        mixings = int(last["rounds"])
    elif not averages:
        rows *= math.ceil(last["rounds"] / mixings)
    try:
        return theory.privacy(
            graph,
            wanted.noise / math.sqrt(1 + np.iscomplexobj(result.X)),
            wanted.clip,
            mixings=mixings,
            account="averaging" if averages else "messages",
            rows=max(rows, 1),
        )
    except ValueError as error:
        return f"none: {str(error).removeprefix('privacy: ')}"


def _outside(wanted: Mixing, n: int, mixings: int, averages: bool) -> str:
    """Return why there is no account of noisy mixings, or ""."""
    linear = replace(wanted, noise=None, clip=None, repeat=None) == Mixing()
    if averages and not linear:
        return "mixing has more options"
    if averages and n * n * mixings > WORK:
        return "too many agents and mixings"
    if wanted.codec is not None or n > LARGE or not mixings:
        return "rows are compressed, many or not sent"
    return ""


def state(path: str, found: theory.Privacy | str) -> None:
    """Write the account, if there is one, into the file of a run."""
    if not isinstance(found, str):
        told = {"epsilon": found.worst, "epsilon_mean": found.mean, "delta": found.delta}
        annotate(path, privacy=json.dumps(told))


def worded(found: theory.Privacy | str) -> str:
    """Return the account as a phrase.

    Examples
    --------
    >>> worded(theory.Privacy(np.array([[0.0, 0.5], [0.1, 0.0]]), 1e-5))
    'epsilon 1.99 of the worst pair of agents, 1.17 in the mean, at delta 1e-05'
    """
    if isinstance(found, str):
        return found
    return (
        f"epsilon {found.worst:.3g} of the worst pair of agents, {found.mean:.3g} in the mean, "
        f"at delta {found.delta:g}"
    )
