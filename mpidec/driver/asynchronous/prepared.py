"""What asynchronous runs share, in one process and on ranks: the solver, its rates and its
events.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ..._validation import floats, unmasked
from ...protocols import Reductions
from ...solvers import Solver
from ...solvers.internals import PairwiseSolver, PushSolver
from ...topology import Topology, mixing_constants
from ..plan import Queue


def as_asynchronous(solver: Solver) -> PairwiseSolver | PushSolver:
    """Return `solver`, refused with a TypeError if it is not asynchronous."""
    if not isinstance(solver, (PairwiseSolver, PushSolver)):
        raise TypeError(
            f"{type(solver).__name__} is synchronous: run it with mpidec.solve; asynchronous "
            "solvers are A2CiD2, "
            "AsyncPushSum, PairwiseGossip and RunningSumTracking"
        )
    return solver


def check_queue(clock: object, solver: Solver, net: Reductions) -> None:
    """Refuse what is no queue of events, and what cannot run on one.

    Raises
    ------
    TypeError, ValueError
    """
    if not isinstance(clock, Queue):
        raise TypeError(f"clock is {clock!r:.60}, expected mpidec.Queue(), or leave it out")
    as_asynchronous(solver)
    if net.size > 1:
        raise ValueError(
            f"net has {net.size} ranks, but a queue of events is in one process: leave net out, "
            "or pass a Network(n, comm=MPI.COMM_SELF)"
        )


def prepared(
    solver: PairwiseSolver | PushSolver, topology: Topology
) -> PairwiseSolver | PushSolver:
    """Return the asynchronous solver with numbers for the parameters that depend on the graph.

    Examples
    --------
    >>> import mpidec
    >>> prepared(mpidec.solvers.A2CiD2(0.1), mpidec.topology.complete(2)).eta
    1.0
    """
    if isinstance(solver, PairwiseSolver):
        return solver.prepared(partial(mixing_constants, topology))
    return solver


def checked_rates(rates: ArrayLike | None, n: int) -> np.ndarray:
    unmasked(rates, "rates")
    try:
        pace = floats(1.0 if rates is None else rates, "rates")
    except (TypeError, ValueError):
        pace = np.array(np.nan)
    if (
        pace.shape not in ((), (n,))
        or not np.isfinite(pace).all()
        or (pace < 0).any()
        or not pace.any()
    ):
        raise ValueError(
            f"rates is {rates!r:.60}, expected a number > 0, or {n} numbers >= 0, of which some "
            "are > 0"
        )
    return np.array(np.broadcast_to(pace, (n,)))


def pauses(straggler: Mapping[int, float] | None, n: int) -> dict[int, float]:
    """Return the seconds that agents sleep at each event, by agent, if they are valid.

    Raises
    ------
    ValueError
    """
    given = dict(straggler or {}) if isinstance(straggler, (Mapping, type(None))) else {None: None}
    for agent, seconds in given.items():
        whole = isinstance(agent, numbers.Integral) and 0 <= int(agent) < n
        if not whole or not isinstance(seconds, numbers.Real) or not 0 <= float(seconds) < math.inf:
            raise ValueError(
                f"straggler is {straggler!r}, expected agents in 0 .. {n - 1} and seconds: {{0: "
                f"0.5}}"
            )
    return {int(agent): float(seconds) for agent, seconds in given.items()}
