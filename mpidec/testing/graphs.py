"""The contract of graphs: properties of a topology, or a schedule, for several numbers of
agents.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import ClassVar

import numpy as np

from ..driver.internals import as_topology
from ..exceptions import ContractError
from ..topology import Schedule, Topology
from .case import require

# Numbers of agents; those that a graph refuses are left out, but not all of n > 1.
SIZES = (
    1,
    2,
    3,
    5,
    8,
    12,
    16,
)
Make = Callable[[int], Topology | Schedule]
# Steps of a schedule without a period.
DRAWS = 8


@cache
def _made(make: Make) -> tuple[Topology | Schedule, ...]:
    """The graphs of the sizes that it takes."""
    found, refused = [], []
    for n in SIZES:
        try:
            found.append(as_topology(make(n), n))
        except ValueError as error:
            refused.append(f"n = {n}: {error}")
    if all(graph.n == 1 for graph in found):
        several = [line for line in refused if not line.startswith("n = 1:")]
        name = getattr(make, "__name__", repr(make))
        raise ContractError(f"{name} makes no graph of any of {SIZES[1:]} agents; {several[0]}")
    return tuple(found)


def _phases(make: Make) -> Iterator[Topology]:
    """All phases of all sizes, and both matrices of a pair."""
    for graph in _made(make):
        for k in range(graph.period or DRAWS):
            phase = graph.at(k)
            yield from (phase.R, phase.C) if phase.kind == "pair" else (phase,)


def _reached(A: np.ndarray) -> bool:
    """Whether there is a path between any two agents, of the graph of nonzero entries."""
    reach = (A != 0) | np.eye(len(A), dtype=bool)
    for _ in range(len(A).bit_length()):
        reach = reach @ reach
    return bool(reach.all())


def sums(make: Make) -> None:
    """Rows, columns, or both, sum to one, as the kind says."""
    for graph in _phases(make):
        W = graph.W.toarray()
        away = [float(abs(W.sum(axis=axis) - 1).max()) for axis in (1, 0)]  # rows, columns
        kinds = {"doubly": max(away), "row": away[0], "column": away[1]}
        require(
            kinds[graph.kind] <= 1e-14 and np.isfinite(W).all(),
            graph,
            "sums",
            f"rows sum to 1 up to {away[0]:.2g}, columns up to {away[1]:.2g}, but its kind is "
            f"{graph.kind!r}",
            "divide each row (or column) by its sum, or change its kind",
        )
        require(
            W.shape == (graph.n, graph.n) and W.dtype == np.float64,
            graph,
            "sums",
            f"W has the shape {W.shape} and the dtype {W.dtype}, expected {(graph.n, graph.n)} and "
            "float64",
            "rows are receivers, columns senders",
        )


def words(make: Make) -> None:
    """`directed`, `symmetric`, `connected` and `is_tree` are those of W; over its steps, every
    agent reaches every other.
    """
    for graph in _phases(make):
        W = graph.W.toarray()
        A = (W != 0) & ~np.eye(graph.n, dtype=bool)
        directed, connected = bool((A != A.T).any()), _reached(A)
        found = {
            "directed": (graph.directed, directed),
            "symmetric": (graph.symmetric, bool((W == W.T).all())),
            "connected": (graph.connected, connected),
            "is_tree": (
                graph.is_tree,
                not directed and connected and A.sum() == 2 * (graph.n - 1),
            ),
        }
        for name, (given, value) in found.items():
            require(
                given == value,
                graph,
                "words",
                f"{name} is {given}, but of its W it is {value}",
                "which entries of W are not zero?",
            )
    for schedule in _made(make):
        steps = schedule.period or 8 * schedule.n
        union = sum(abs(schedule.at(k).W.toarray()) for k in range(steps))
        require(
            _reached(np.asarray(union)),
            schedule,
            "words",
            f"in {steps} steps, some agent does not reach another",
            "solvers cannot agree on it: add edges",
        )


def blocks(make: Make) -> None:
    """Rows, columns and neighbours are those of W, also of a block of agents."""
    rng = np.random.default_rng(0)
    for graph in _phases(make):
        n, W = graph.n, graph.W.toarray()
        lo, hi = sorted(int(i) for i in rng.integers(n + 1, size=2))
        i = lo % n
        off = W * ~np.eye(n, dtype=bool)
        pairs = {
            f"rows({lo}, {hi})": (graph.rows(lo, hi).toarray(), W[lo:hi]),
            f"columns({lo}, {hi})": (graph.columns(lo, hi).toarray(), W[:, lo:hi].T),
            f"in_neighbors({i})": (graph.in_neighbors(i), np.flatnonzero(off[i])),
            f"out_neighbors({i})": (graph.out_neighbors(i), np.flatnonzero(off[:, i])),
        }
        for name, (given, expected) in pairs.items():
            require(
                np.array_equal(given, expected),
                graph,
                "blocks",
                f"{name} is {given.tolist()}, of W it is {expected.tolist()}",
                "a graph by a rule computes its rows and its columns from the same edges",
            )


def gap(make: Make) -> None:
    """The spectral gap is that of the dense product over a period; 1 means that this product is
    the average.
    """
    for graph in _made(make):
        if graph.period is None or graph.n == 1 or graph.kind == "pair":
            continue
        # Several graphs that act in the same step.
        if isinstance(graph, Iterable):
            least = min(part.spectral_gap() for part in graph)
            require(
                graph.spectral_gap() == least,
                graph,
                "gap",
                f"spectral_gap() is {graph.spectral_gap():.12g}, the least of its graphs is "
                f"{least:.12g}",
                "the columns of the slowest graph decide",
            )
            continue
        P = np.eye(graph.n)
        for k in range(graph.period):
            P = graph.at(k).W.toarray() @ P
        if graph.kind == "doubly":
            left = float(np.linalg.norm(P - 1 / graph.n, 2))
        else:
            left = float(np.sort(abs(np.linalg.eigvals(P)))[-2])
        expected = 1 - (left if left > 1e-13 else 0.0) ** (1 / graph.period)
        require(
            abs(graph.spectral_gap() - expected) <= 1e-10,
            graph,
            "gap",
            f"spectral_gap() is {graph.spectral_gap():.12g}, of the dense matrices it is "
            f"{expected:.12g}",
            "is the product taken over a period, its root and its order?",
        )
        if graph.spectral_gap() == 1 and graph.kind == "doubly":
            away = float(abs(P - 1 / graph.n).max())
            require(
                away <= 1e-13,
                graph,
                "gap",
                f"spectral_gap() is 1, but the product over a period differs by {away:.2g} from "
                "the average",
                "are all phases in the period, in their order?",
            )


def repeats(make: Make) -> None:
    """A graph that is made again, sent to another process, or asked for a step of a later period
    is the same.
    """
    for graph in _made(make):
        again, sent = as_topology(make(graph.n), graph.n), pickle.loads(pickle.dumps(graph))
        same = again == graph == sent and again.fingerprint() == graph.fingerprint()
        require(
            same,
            graph,
            "repeats",
            "a second one of the same n differs, or one that was pickled",
            "take random numbers from a seed, np.random.default_rng([seed, n]), so that all ranks "
            "have the same graph",
        )
        for k in (0, 3):
            later = k + (graph.period or 0)
            require(
                (graph.at(k).W != again.at(later).W).nnz == 0,
                graph,
                "repeats",
                f"steps {k} and {later} differ, but its period is {graph.period}",
                "at(k) is a function of k, modulo the period",
            )


GRAPHS: dict[str, Callable[[Make], None]] = {
    check.__name__: check for check in (sums, words, blocks, gap, repeats)
}
"""The properties of graphs, by name."""


def check_topology(make: Make) -> None:
    """Check all properties that a graph must have, for several numbers of agents.

    Parameters
    ----------
    make : callable
        A function of the number of agents that returns a topology or a schedule.

    Raises
    ------
    ContractError
        With a line for each property that the graph lacks; or if it refuses all numbers of agents
        but one.

    Examples
    --------
    >>> import mpidec
    >>> mpidec.testing.check_topology(mpidec.topology.ring)
    """
    _made(make)
    lacking = []
    for check in GRAPHS.values():
        try:
            check(make)
        except ContractError as error:
            lacking.append(str(error))
    if lacking:
        raise ContractError("\n".join(lacking))


class TopologyContract:
    """Base class of tests for pytest: a test for each property that a graph must have.

    Attributes
    ----------
    topology : function of n
        A function needs `staticmethod`.

    Examples
    --------
    >>> import mpidec
    >>> class TestRing(mpidec.testing.TopologyContract):
    ...     topology = staticmethod(mpidec.topology.ring)
    >>> TestRing().test_sums()
    """

    topology: ClassVar[Make]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, check in GRAPHS.items():
            setattr(cls, f"test_{name}", staticmethod(partial(check, cls.topology)))
