"""Quantities of runs and their axes: f - f* from the objective, and every metric of the files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..record import Run
from .labels import settings

X = {
    "steps": ("step", "steps"),
    "bytes": ("bytes", "data sent by all agents"),
    "seconds": ("time", "seconds"),
    "gradients": ("gradients", "gradients"),
    "rounds": ("rounds", "rounds of communication"),
    "time": ("time", "simulated time, gradients of an agent"),
    "epochs": ("epoch", "epochs"),
}
Y = {
    "objective": r"$f(\bar{x}) - f^{\ast}$",
    "consensus": r"consensus  $\mathrm{rms}_i\,\Vert x_i - \bar{x}\Vert$",
    "error": r"error  $\Vert\bar{x} - x^{\ast}\Vert\,/\,\Vert x^{\ast}\Vert$",
    "error_rms": r"error  $\mathrm{rms}_i\,\Vert x_i - x^{\ast}\Vert\,/\,\Vert x^{\ast}\Vert$",
    "error_max": r"error  $\max_i\,\Vert x_i - x^{\ast}\Vert\,/\,\Vert x^{\ast}\Vert$",
    "accuracy_worst": "accuracy, worst",
    "accuracy_mean": "accuracy, mean",
    "accuracy_consensus": "accuracy, average model",
    "loss_mean": "test loss, mean",
    "loss_worst": "test loss, worst",
    "loss_consensus": "test loss, average model",
    "train_loss": "training loss, mean",
    "lr": "learning rate",
    "gradient_norm": r"gradient  $\Vert\nabla f(\bar{x})\Vert$",
}
# Of trainings.
CURVES = (
    "accuracy_worst",
    "accuracy_mean",
    "accuracy_consensus",
    "consensus",
    "loss_mean",
)
LOWEST = r"$f(\bar{x})\,-\,$smallest recorded $f$"
SEVERAL = r"$f(\bar{x}) - f^{\ast}$  (or $-$ smallest recorded $f$)"
# How gradients are estimated, which changes no f.
SAMPLING = (
    "problem.batch_size",
    "problem.variance_reduction",
    "problem.snapshot_period",
)
# Values beyond are not drawn: logarithmic axes overflow.
LARGEST = 1e200
ROUNDING = 4 * np.finfo(float).eps


def x_values(run: Run, name: str) -> NDArray[np.float64]:
    """Return the values of an x axis at the records of a run."""
    if name not in X:
        raise ValueError(f"x axis {name!r} is unknown, expected one of {', '.join(X)}")
    clock = run.attributes.get("clock")
    if name == "seconds" and clock == "simulated":
        raise ValueError(
            f"{run.path} is a simulated run, whose time is not in seconds: use the x axis time or "
            "steps"
        )
    if name == "time" and clock != "simulated":
        raise ValueError(f"{run.path} is not a simulated run: use the x axis seconds or steps")
    if name == "gradients" and clock is not None:
        # Those of all agents are recorded.
        return _metric(run, "gradients", name, ()) / int(run.attributes["agents"])
    other = "seconds" if clock == "simulated" else "time"
    return _metric(
        run,
        X[name][0],
        name,
        [axis for axis, (metric, _) in X.items() if metric in run.metrics and axis != other],
    )


def y_values(runs: Sequence[Run], name: str) -> tuple[list[NDArray[np.float64]], str]:
    """Return a quantity at the records of each run, and its label; infinite, NaN and huge values
    become NaN.
    """
    known = [
        key
        for key in runs[0].metrics
        if all(key in run.metrics for run in runs) and key not in {m for m, _ in X.values()}
    ]
    columns = [_metric(run, name, name, known) for run in runs]
    columns = [np.where(np.abs(column) < LARGEST, column, np.nan) for column in columns]
    return (
        _gaps(runs, columns)
        if name == "objective"
        else (columns, Y.get(name, name.replace("_", " ")))
    )


def band_of(run: Run, name: str, y: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...] | None:
    """Return the ends of the band of a quantity, drawn as `y`, of a file of many runs; None of
    others.
    """
    if "runs" not in run.attributes or f"{name}_low" not in run.metrics:
        return None
    shift = np.asarray(run.metrics[name], float) - y
    ends = (np.asarray(run.metrics[f"{name}_{end}"], float) - shift for end in ("low", "high"))
    return tuple(np.where(end > 0, end, np.nan) if name == "objective" else end for end in ends)


def axes_by_default(runs: Sequence[Run]) -> list[str]:
    """Return the x axes of a figure without a choice: epochs of trainings, seconds if a run is
    asynchronous, its own time if all
    are simulated."""
    if all("epoch" in run.metrics for run in runs):
        return ["epochs"]
    clocks = {run.attributes.get("clock", "synchronous") for run in runs}
    if clocks == {"synchronous"}:
        return ["steps", "bytes", "seconds"]
    return (
        ["seconds"]
        if "simulated" not in clocks
        else ["time"]
        if clocks == {"simulated"}
        else ["steps"]
    )


def drawn_by_default(runs: Sequence[Run]) -> list[str]:
    """Return the quantities of a figure without a choice: objective, consensus and error as far as
    all runs have them, and of
    trainings accuracies, consensus and loss."""
    shared = {name for name in runs[0].metrics if all(name in run.metrics for run in runs)}
    if CURVES[-1] in shared:
        return [name for name in CURVES if name in shared]
    last = ["error" if "error" in shared else "gradient_norm"]
    return [name for name in ["objective", "consensus", *last] if name in shared] or sorted(
        shared - {m for m, _ in X.values()}
    )[:3]


def _metric(run: Run, metric: str, name: str, known: Iterable[str]) -> NDArray[np.float64]:
    if metric not in run.metrics:
        raise ValueError(
            f"{run.path}: {name!r} is not recorded, expected one of {', '.join(known)}"
        )
    return np.asarray(run.metrics[metric], float)


def _gaps(
    runs: Sequence[Run], columns: Sequence[NDArray[np.float64]]
) -> tuple[list[NDArray[np.float64]], str]:
    """Return f - f*, with the f* of the file or else the smallest f that any run of the same
    problem has recorded.

    Differences within the rounding error of f, and negative ones, become NaN: they are noise.
    """
    stored = [_stored(run) for run in runs]
    problems = [_problem(run, column) for run, column in zip(runs, columns)]
    gaps: list[NDArray[np.float64]] = []
    lowest: dict[tuple[Any, ...], float] = {}
    for problem, column in zip(problems, columns):
        lowest[problem] = min(
            lowest.get(problem, math.inf), float(np.nanmin(column, initial=math.inf))
        )
    for optimum, problem, column in zip(stored, problems, columns):
        f = lowest[problem] if optimum is None else optimum
        gap = column - f if math.isfinite(f) else column
        gaps.append(np.where(gap > ROUNDING * abs(f), gap, np.nan))
    known = [optimum is not None for optimum in stored]
    return gaps, Y["objective"] if all(known) else SEVERAL if any(known) else LOWEST


def _stored(run: Run) -> float | None:
    value = run.attributes.get("f_star")
    return (
        float(value)
        if value is not None and np.ndim(value) == 0 and math.isfinite(float(value))
        else None
    )


def _problem(run: Run, column: NDArray[np.float64]) -> tuple[Any, ...]:
    """Return what determines f: the problem, its data, the number of agents and the seed; of a
    program's own problems, f at the beginning stands for the first and the last.
    """
    given: Mapping[str, Any] = settings(run)
    data = [str(run.attributes.get(key)) for key in ("agents", "data_hash")]
    if not given:
        return (*data, *column[:1].tolist())
    return (
        *data,
        *(
            f"{key}={value}"
            for key, value in sorted(given.items())
            if key in ("run.agents", "run.seed")
            or (key.startswith("problem.") and key not in SAMPLING)
        ),
    )
