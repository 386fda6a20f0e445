"""Catalogue of the problems, data sets, solvers, topologies and codecs that an experiment can name."""
from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import solvers as _solvers
from . import topology as _topology
from .mixing import codecs as _codecs
from .problems import datasets, registry

__all__ = ["codecs", "data", "data_sets", "default_data", "listing", "problems", "solvers", "topologies"]


def problems() -> dict[str, Callable[..., Any]]:
    """Return the problem classes by name."""
    return {name: entry.make for name, entry in registry.PROBLEMS.items()}


def data_sets() -> dict[str, Callable[..., Any]]:
    """Return the functions that build the data sets, by name."""
    return dict(datasets.DATASETS)


def data(source: str) -> Callable[..., Any] | None:
    """Return the function that builds the data set `source`; a placeholder for a file, None for an unknown name."""
    if source in datasets.DATASETS:
        return datasets.DATASETS[source]
    return _file if os.sep in source or os.path.splitext(source)[1] or os.path.exists(source) else None


def default_data(problem: str) -> str:
    """Return the data set that a problem uses if none is given."""
    return registry.PROBLEMS[problem].data


def _file() -> None:
    """Placeholder for data sets from files, which have no parameters."""


def solvers() -> Mapping[str, Callable[..., Any]]:
    """Return the solver classes by name."""
    return _solvers.CATALOGUE


def topologies() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that build topologies and schedules, by name."""
    return _topology.CATALOGUE


def codecs() -> Mapping[str, Callable[..., Any]]:
    """Return the codec classes by name."""
    return _codecs.CODECS


def listing() -> str:
    """Return all names with a one-line description each."""
    tables = {"problems": {name: entry.description for name, entry in registry.PROBLEMS.items()}}
    tables |= {title: {name: _line(thing) for name, thing in table.items()} for title, table in
             (("data sets", data_sets()), ("solvers", solvers()), ("topologies", topologies()),
              ("codecs", codecs()))}
    tables["data sets"]["FILE"] = "user data: .npz with A (N, d) and y or b (N,), .csv, or LIBSVM (.svm, .libsvm, .txt)"
    width = max(len(name) for table in tables.values() for name in table)
    return "\n\n".join("\n".join([f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in table.items())])
                       for title, table in tables.items())


def _line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".:")
