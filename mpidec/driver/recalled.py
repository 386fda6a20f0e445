"""What the file of a run keeps of the search for its step size: the choice, and what its guard
compares with, so that a resumed run is judged as an undisturbed one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._complex import as_reals
from ..comm.runtime import on_all_ranks
from ..exceptions import ResumeError
from ..record.internals import SEARCH, arrays_of, head
from ..solvers.internals import start_of
from .plan import Plan
from .stepsize import Choice, Guard, requested_rule, with_size

TABLE = ("tried", "predicted", "early", "seconds")  # of a choice, beside the arrays a time


class Recalled(NamedTuple):
    """A choice, the estimated minimizer (None without one) and how far the agents' own gradients
    lead from it; see `Guard`.
    """

    choice: Choice
    point: NDArray[Any] | None
    away: float


def search_arrays(choice: Choice, guard: Guard | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of the group `search` of a run file: `about` is JSON in UTF-8."""
    table = {name: np.asarray(value) for name, value in vars(choice).items() if name in TABLE}
    about = {name: value for name, value in vars(choice).items() if name not in TABLE}
    text = json.dumps(about, default=np.generic.item)
    found = {"about": np.frombuffer(text.encode(), np.uint8), **table}
    if guard is not None:
        found |= {"point": guard.point, "away": np.array(guard.away)}
    return found


def _restored(path: str, arrays: dict[str, NDArray[Any]], d: int, steps: int) -> Recalled:
    """Return what `search_arrays` has stored, of rows of `d` real numbers, for a run of `steps`."""
    try:
        about = json.loads(arrays["about"].tobytes())
        table: dict[str, Any] = {name: arrays[name] for name in TABLE}
        choice = Choice(**about, **table | {"seconds": float(arrays["seconds"])})
        point, away = arrays.get("point"), float(arrays.get("away", 0.0))
    except (KeyError, TypeError, ValueError) as error:
        raise ResumeError(f"{path}: damaged: its group {SEARCH}: {error}") from error
    if point is not None and (point.shape != (d,) or point.dtype != np.float64):
        raise ResumeError(
            f"{path}: damaged: its {SEARCH}/point is {point.dtype} {point.shape}, expected float64 "
            f"({d},)"
        )
    # a prediction of the error is that after the steps for which it was made
    return Recalled(choice if choice.rule == "error" else replace(choice, steps=steps), point, away)


def as_recorded(plan: Plan) -> tuple[Plan, Recalled | None]:
    """Return the plan of a resumed run, with the step size and the weights that the run has found
    before, and what its file has of the search: None if it has nothing, or not of this step size;
    collective.
    """
    record, net, solver = plan.record, plan.net, plan.solver
    if record is None or not record.resume or plan.oracle is None:
        return plan, None
    asked, path = requested_rule(solver) is not None, os.fspath(record.path)
    recalled: Recalled | None = None
    found = 0.0, "", dict[str, NDArray[Any]]()
    with on_all_ranks(net):
        if net.rank == 0:
            # of a number, other parts of a resume tell what is wrong with the file
            with suppress(*() if asked else (OSError, ValueError)):
                found = _found(path)
            if found[2] and not record.changed:  # other data have another minimizer
                recalled = _restored(path, found[2], as_reals(plan.X).shape[1], plan.steps)
    size, weights, recalled = net.collectives.broadcast(
        (*found[:2], recalled), 0, "the step size of the run"
    )
    if asked:
        solver = with_size(solver, size)
    elif recalled is None or start_of(solver) != size:
        return plan, None
    return replace(plan, solver=solver, topology=plan.topology.chosen(weights)), recalled


def _found(path: str) -> tuple[float, str, dict[str, NDArray[Any]]]:
    """Return the step size that the run in a file has found, the weights, and the arrays of its
    search, if the file has any.
    """
    found = head(path).attributes
    if "step_size" not in found:
        raise ValueError(
            f"{path}: its step size was given as a number: resume with the same number"
        )
    return float(found["step_size"]), str(found.get("weights", "")), arrays_of(path, SEARCH)
