"""Graphs as users give them: by name, as a function of n, a networkx graph, or a matrix."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from ..plugins import Components
from . import CATALOGUE
from .base.schedule import Schedule
from .base.topology import Topology
from .graphs.explicit import (
    NetworkxGraph as NetworkxGraph,
    from_networkx,
    from_weights,
    is_networkx as is_networkx,
)

if TYPE_CHECKING:
    from .base.weights import WeightsLike

EXPECTED = (
    'expected a name such as "ring", a topology such as mpidec.topology.ring(16), a networkx graph '
    "or a matrix"
)
UNNAMED = "from_networkx", "from_weights"


@runtime_checkable
class AnyMatrix(Protocol):
    """A matrix, also a sparse one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""


Built = Topology | Schedule | NetworkxGraph | AnyMatrix | Sequence[Sequence[float]]
TopologyLike = Built | str | Callable[[int], Built]


def fits(thing: object) -> str | None:
    """Describe what is wrong with `thing` as a topology, or return None if it is a function of n, a
    graph, a matrix or a topology.

    Examples
    --------
    >>> fits(lambda n: None), fits(3)
    (None, 'an object of type int, expected a function of the number of agents n that returns a
    topology, a graph or a matrix')
    """
    if isinstance(thing, (Topology, Schedule)) or is_networkx(thing) or is_matrix(thing):
        return None
    if not inspect.isroutine(thing):
        solver = hasattr(thing, "init") and hasattr(thing, "step")
        what = "a class" if inspect.isclass(thing) else f"an object of type {type(thing).__name__}"
        what = "a solver" if solver else what
        return (
            f"{what}, expected a function of the number of agents n that returns a topology, a "
            "graph or a matrix"
        )
    first = next(iter(inspect.signature(thing).parameters), None)
    if first == "n":
        return None
    return (
        f"a function of {first or 'nothing'}, expected its first parameter to be n, the number of "
        "agents"
    )


TOPOLOGIES = Components("topology", "mpidec.topologies", CATALOGUE, fits)


def as_graph(
    topology: TopologyLike, n: int, weights: WeightsLike | None = None
) -> Topology | Schedule:
    """Return the topology of n agents that `topology` stands for.

    Parameters
    ----------
    topology : Topology, Schedule, str, networkx graph, matrix or function
        A name (one of the package, an entry point, or ``FILE.py:NAME``), a graph, a stochastic
        matrix, or a function of n that returns any of these.
    n : int
        Number of agents.
    weights : str or float, optional
        Those of a networkx graph, which has none of its own.

    Raises
    ------
    ValueError, TypeError
        If it is something else.

    Examples
    --------
    >>> as_graph("ring", 4), as_graph(np.full((2, 2), 0.5), 2)
    (Topology('ring', n=4, kind='doubly', directed=False), Topology('from_weights', n=2,
    kind='doubly', directed=False))
    """
    return named(converted(built(topology, n), weights), topology)


def built(topology: object, n: int) -> object:
    """Resolve a name, and call a function with n agents; return anything else unchanged."""
    make: Any = TOPOLOGIES.find(topology) if isinstance(topology, str) else topology
    if not inspect.isroutine(make):
        return make
    name = make.__name__
    if required := required_parameters(make)[1:]:
        raise TypeError(
            f"topology {name} needs {' and '.join(required)}, too: call it, {name}({n}, "
            f"{', '.join(f'{p}=...' for p in required)})"
        )
    try:
        made = make(n)
    except TypeError as error:
        raise TypeError(
            f"topology {name} cannot be called with n = {n}: {error}; expected a function of n "
            "that returns a "
            "topology, a graph or a matrix"
        ) from error
    graph = isinstance(made, (Topology, Schedule, list, tuple)) or is_networkx(made)
    if not (graph or (is_matrix(made) and len(made.shape) == 2)):
        hint = ": is a return missing?" if made is None else ""
        raise TypeError(
            f"topology {name} returned {what_is(made)} for n = {n}, expected a topology, a graph "
            f"or a matrix ({n}, {n}){hint}"
        )
    return made


def required_parameters(make: Callable[..., object]) -> list[str]:
    """Return the parameters without a default.

    Examples
    --------
    >>> required_parameters(as_graph)
    ['topology', 'n']
    """
    return [
        p.name
        for p in inspect.signature(make).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def converted(made: object, weights: WeightsLike | None = None) -> Topology | Schedule:
    """Convert a networkx graph, with `weights`, or a matrix; return a topology unchanged."""
    if is_networkx(made):
        return from_networkx(made, weights)
    if weights is not None:
        what = "a topology" if isinstance(made, (Topology, Schedule)) else "a matrix"
        raise ValueError(
            f"weights={weights!r} is for networkx graphs, but {what} has weights of its own: omit "
            "it"
        )
    if isinstance(made, (Topology, Schedule)):
        return made
    if is_matrix(made) or isinstance(made, (list, tuple)):
        return from_weights(made)
    remedy = EXPECTED
    if isinstance(made, numbers.Integral) and not isinstance(made, bool):
        remedy = f'name the graph, such as "ring" or mpidec.topology.ring({made})'
    raise TypeError(f"topology is {what_is(made)}: {remedy}")


def named(graph: Topology | Schedule, topology: object) -> Topology | Schedule:
    """Name a user-defined graph after the function, or `FILE.py:NAME`, that made it.

    Examples
    --------
    >>> def pair(n):
    ...     return np.full((n, n), 1 / n)
    >>> named(converted(pair(2)), pair).name, named(converted(pair(2)), "graphs.py:pair").name
    ('pair', 'pair')
    """
    text = (
        topology.__name__
        if inspect.isroutine(topology)
        else str(topology) * isinstance(topology, str)
    )
    name = text.rpartition(":")[2]
    unnamed = isinstance(graph, Topology) and graph.name in UNNAMED and name.isidentifier()
    return replace(graph, name=name) if unnamed else graph  # type: ignore[type-var]


def is_matrix(thing: object) -> TypeGuard[AnyMatrix]:
    """Return whether it is an array, also a sparse one.

    Examples
    --------
    >>> is_matrix(np.eye(2)), is_matrix([[1.0]])
    (True, False)
    """
    return isinstance(thing, AnyMatrix) and not isinstance(thing, type)


def what_is(thing: object) -> str:
    """Describe an argument of the wrong type, for messages.

    Examples
    --------
    >>> what_is(3), what_is(len), what_is(np.ones(2)), what_is({}), what_is(CATALOGUE["ring"](3))
    ('the number 3', 'the function len', 'an array of shape (2,)', 'a dict', 'the topology ring')
    """
    if thing is None:
        return "None"
    if inspect.isclass(thing):
        return f"the class {thing.__name__}"
    if isinstance(thing, (bool, int, float, np.number)):
        return f"the number {thing}"
    if inspect.isroutine(thing):
        return f"the function {thing.__name__}"
    if isinstance(thing, np.ndarray):
        return f"an array of shape {thing.shape}"
    if isinstance(thing, (Topology, Schedule)):
        return f"the topology {thing.name}"
    return f"a {type(thing).__name__}"
