"""Catalogue of the problems, data sets, solvers, topologies and codecs that an experiment can
name, plug-ins included.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from . import solvers as _solvers, topology as _topology
from ._words import summary
from .comm.mixing import codecs as _codecs
from .datasets import DATA_TABLE as DATA_SETS
from .plugins import Components
from .problems import problem_names
from .problems.internals import PROBLEM_TABLE as PROBLEMS
from .topology.internals import TOPOLOGIES

__all__ = [
    "CODECS",
    "DATA_SETS",
    "METRICS",
    "PROBLEMS",
    "SOLVERS",
    "TITLES",
    "TOPOLOGIES",
    "listing",
]


def _solver(thing: object) -> str | None:
    """Return what is wrong with `thing` as a solver, or None."""
    if not inspect.isclass(thing):
        return f"{_what(thing)}, expected a class derived from mpidec.solvers.Solver"
    own = {name for kind in thing.__mro__ if kind is not _solvers.Solver for name in vars(kind)}
    missing = [name for name in ("init", "step") if name not in own]
    if missing:
        return (
            f"a class without {' and '.join(missing)}, expected init(X, W) and step(s, G, W) as in "
            "mpidec.solvers.Solver"
        )
    return (
        None
        if issubclass(thing, _solvers.Solver)
        else (
            "a class that does not derive from mpidec.solvers.Solver: write class "
            f"{thing.__name__}(mpidec.solvers.Solver)"
        )
    )


def _codec(thing: object) -> str | None:
    """Return what is wrong with `thing` as a codec, or None."""
    if inspect.isclass(thing) and issubclass(thing, _codecs.Codec):
        return None
    return f"{_what(thing)}, expected a class derived from mpidec.comm.mixing.codecs.Codec"


def _metric(thing: object) -> str | None:
    """Return what is wrong with `thing` as a metric, or None."""
    return None if callable(thing) else f"{_what(thing)}, expected a function f(X, agents, k)"


def _what(thing: object) -> str:
    if inspect.isclass(thing):
        return "a solver" if issubclass(thing, _solvers.Solver) else "a class"
    return "a function" if inspect.isroutine(thing) else f"an object of type {type(thing).__name__}"


SOLVERS = Components("solver", "mpidec.solvers", _solvers.CATALOGUE, _solver, _solvers.PAPERS)
CODECS = Components("codec", "mpidec.codecs", _codecs.CODECS, _codec)
TITLES = {"solver.name": _solvers.TITLES, "topology.name": _topology.TITLES}
"""Names in figures and printed tables, by setting."""
METRICS: Components[Callable[[np.ndarray, range, int], ArrayLike]] = Components(
    "metric", "mpidec.metrics", {}, _metric
)


def listing() -> str:
    """Return all names with a one-line description each; those of entry points with their origin.

    Examples
    --------
    >>> print(listing().splitlines()[0])
    problems:
    """
    tables = {
        title: table.described(summary)
        for title, table in (
            ("problems", PROBLEMS),
            ("data sets", DATA_SETS),
            ("solvers", SOLVERS),
            ("topologies", TOPOLOGIES),
            ("codecs", CODECS),
        )
    }
    tables["problems"] |= problem_names()
    tables["data sets"]["FILE"] = (
        "user data: .npz with A (N, d) and y or b (N,), .csv, or LIBSVM (.svm, .libsvm, .txt)"
    )
    width = max(len(name) for table in tables.values() for name in table)
    text = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in table.items())])
        for title, table in tables.items()
    )
    around = (
        "In Python, around any solver that takes gradients: solvers.Momentum(solver), "
        "solvers.Adam(solver), solvers.Clip(solver)."
    )
    return (
        f"{text}\n\n{around}\nOf your own: FILE.py:NAME or MODULE:NAME, for example --solver "
        "my.py:NIDS."
    )
