"""Catalogue of the problems, data sets, solvers, topologies and codecs that an experiment can name, plug-ins included."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable

from . import solvers as _solvers, topology as _topology
from .comm.mixing import codecs as _codecs
from .datasets.built_in import Dataset
from .plugins import Table, is_plugin
from .problems import LinearModel, registry
from .topology import Schedule, Topology

__all__ = [
    "codecs",
    "data",
    "data_sets",
    "default_data",
    "listing",
    "problems",
    "solvers",
    "topologies",
]


def problems() -> Table[type[LinearModel]]:
    """Return the problem classes by name.

    Examples
    --------
    >>> problems()["huber"].__name__
    'Huber'
    """
    return registry.PROBLEM_TABLE


def data_sets() -> Table[Callable[..., Dataset]]:
    """Return the functions that build the data sets, by name.

    Examples
    --------
    >>> list(data_sets())
    ['breast_cancer', 'digits', 'diabetes', 'synthetic_least_squares']
    """
    return registry.DATA_TABLE


def data(source: str) -> Callable[..., Dataset] | Callable[[], None] | None:
    """Return the function that builds the data set `source`; a placeholder for a file, None for an unknown name.

    Examples
    --------
    >>> data("digits").__name__, data("nothing")
    ('digits', None)
    """
    if source in data_sets():
        return registry.maker(source)
    return (
        _file if os.sep in source or os.path.splitext(source)[1] or os.path.exists(source) else None
    )


def default_data(problem: str) -> str | None:
    """Return the data set that a problem uses if none is given, or None: a plug-in has no default.

    Examples
    --------
    >>> default_data("softmax")
    'digits'
    """
    return (
        None
        if is_plugin(problem) or problem not in registry.PROBLEMS
        else registry.PROBLEMS[problem].data
    )


def _file() -> None:
    """Placeholder for data sets from files, which have no parameters."""


def _solver(thing: object) -> str | None:
    """Return what is wrong with `thing` as a solver, or None."""
    if not inspect.isclass(thing):
        return f"{_what(thing)}, expected a class derived from mpidec.solvers.Solver"
    missing = [
        name
        for name in ("init", "step")
        if getattr(thing, name, None) in (None, getattr(_solvers.Solver, name))
    ]
    if missing:
        return f"a class without {' and '.join(missing)}, expected init(X, W) and step(s, G, W) as in mpidec.solvers.Solver"
    return (
        None
        if issubclass(thing, _solvers.Solver)
        else (
            f"a class that does not derive from mpidec.solvers.Solver: write class {thing.__name__}(mpidec.solvers.Solver)"
        )
    )


def _graph(thing: object) -> str | None:
    """Return what is wrong with `thing` as a topology, or None: a function of n, or a graph, a matrix or a topology itself."""
    if (
        isinstance(thing, (Topology, Schedule))
        or hasattr(thing, "adj")
        or (hasattr(thing, "shape") and not inspect.isclass(thing))
    ):
        return None
    if not inspect.isroutine(thing):
        return f"{_what(thing)}, expected a function of the number of agents n that returns a topology, a graph or a matrix"
    first = next(iter(inspect.signature(thing).parameters), None)
    if first == "n":
        return None
    return f"a function of {first or 'nothing'}, expected its first parameter to be n, the number of agents"


def _codec(thing: object) -> str | None:
    """Return what is wrong with `thing` as a codec, or None."""
    if inspect.isclass(thing) and issubclass(thing, _codecs.Codec):
        return None
    return f"{_what(thing)}, expected a class derived from mpidec.comm.mixing.codecs.Codec"


def _what(thing: object) -> str:
    if inspect.isclass(thing):
        return "a solver" if issubclass(thing, _solvers.Solver) else "a class"
    return "a function" if inspect.isroutine(thing) else f"an object of type {type(thing).__name__}"


SOLVERS = Table("solver", "mpidec.solvers", _solvers.CATALOGUE, _solver)
TOPOLOGIES = Table("topology", "mpidec.topologies", _topology.CATALOGUE, _graph)
CODECS = Table("codec", "mpidec.codecs", _codecs.CODECS, _codec)


def solvers() -> Table[type[_solvers.Solver]]:
    """Return the solver classes by name.

    Examples
    --------
    >>> solvers()["extra"].__name__
    'EXTRA'
    """
    return SOLVERS


def topologies() -> Table[Callable[..., Topology | Schedule]]:
    """Return the functions that build topologies and schedules, by name; of a plug-in, also a graph or a matrix itself.

    Examples
    --------
    >>> topologies()["ring"](4)
    Topology('ring', n=4, kind='doubly', directed=False)
    """
    return TOPOLOGIES


def codecs() -> Table[type[_codecs.Codec]]:
    """Return the codec classes by name.

    Examples
    --------
    >>> codecs()["top_k"].__name__
    'TopK'
    """
    return CODECS


def listing() -> str:
    """Return all names with a one-line description each; those of entry points with their origin.

    Examples
    --------
    >>> listing().splitlines()[0]
    'problems:'
    """
    tables = {
        "problems": problems().described(lambda make: registry.description(make) or _line(make))
    }
    tables |= {
        title: table.described(_line)
        for title, table in (
            ("data sets", data_sets()),
            ("solvers", solvers()),
            ("topologies", topologies()),
            ("codecs", codecs()),
        )
    }
    tables["data sets"]["FILE"] = (
        "user data: .npz with A (N, d) and y or b (N,), .csv, or LIBSVM (.svm, .libsvm, .txt)"
    )
    width = max(len(name) for table in tables.values() for name in table)
    text = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in table.items())])
        for title, table in tables.items()
    )
    return f"{text}\n\nOf your own: FILE.py:NAME or MODULE:NAME, for example --solver my.py:NIDS."


def _line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".:")
