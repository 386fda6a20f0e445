"""What an experiment can name: problems, data sets, solvers and topologies, with a line on each."""
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
    """The losses by name."""
    return {name: entry.make for name, entry in registry.PROBLEMS.items()}


def data_sets() -> dict[str, Callable[..., Any]]:
    """The data sets by name."""
    return dict(datasets.DATASETS)


def data(source: str) -> Callable[..., Any] | None:
    """What makes the data set of this name, or reads the file at this path; None if it is neither."""
    if source in datasets.DATASETS:
        return datasets.DATASETS[source]
    return _file if os.sep in source or os.path.splitext(source)[1] or os.path.exists(source) else None


def default_data(problem: str) -> str:
    """The data set that a problem takes where none is given."""
    return registry.PROBLEMS[problem].data


def _file() -> None:
    """Samples in a file."""


def solvers() -> Mapping[str, Callable[..., Any]]:
    """The solvers by name."""
    return _solvers.CATALOGUE


def topologies() -> Mapping[str, Callable[..., Any]]:
    """The topologies and schedules by name."""
    return _topology.CATALOGUE


def codecs() -> Mapping[str, Callable[..., Any]]:
    """The codecs by name."""
    return _codecs.CODECS


def listing() -> str:
    """All names with a line each."""
    said = {"problems": {name: entry.description for name, entry in registry.PROBLEMS.items()}}
    said |= {title: {name: _line(thing) for name, thing in table.items()} for title, table in
             (("data sets", data_sets()), ("solvers", solvers()), ("topologies", topologies()),
              ("codecs", codecs()))}
    said["data sets"]["FILE"] = "your own: .npz with A (N, d) and y or b (N,), .csv, or LIBSVM (.svm, .libsvm, .txt)"
    width = max(len(name) for table in said.values() for name in table)
    return "\n\n".join("\n".join([f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in table.items())])
                       for title, table in said.items())


def _line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".:")
