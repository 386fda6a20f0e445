"""Cases on which solvers are checked: small graphs, and quadratics with different data on each
agent.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache

import numpy as np

from ..comm.mixing import Network
from ..comm.runtime import ALONE
from ..driver.internals import Result, as_topology, solve
from ..exceptions import ContractError
from ..problems import LeastSquares, Term
from ..solvers import Solver
from ..solvers.internals import check_dataclass, step_size_of, with_step_size
from ..topology import Schedule, Topology, cycle, from_weights, push_pull
from .linear import QuadraticCosts

# Numbers of agents: the first one that the solver's graph has.
SIZES = (7, 8, 6)
# Local steps; steps of a random schedule.
FEW, DRAWS = 3, 5
# A small step size; curvatures are about 1.
SMALL = 0.04


def require(truth: object, what: object, name: str, found: str, look: str) -> None:
    """Raise a `ContractError` with the measurement `found`, and where to `look`, unless `truth`."""
    if not truth:
        raise ContractError(f"{what!r} fails '{name}': {found}; {look}")


def check_all(what: object, checks: Mapping[str, Callable[[], None]]) -> None:
    """Raise a `ContractError` with a line for each check that fails."""
    lacking = []
    for name, check in checks.items():
        try:
            check()
        except ContractError as error:
            lacking.append(str(error))
        except Exception as error:
            lacking.append(f"{what!r} fails '{name}': {type(error).__name__}: {error}")
    if lacking:
        raise ContractError("\n".join(lacking))


def made(solver: Solver | type[Solver]) -> Solver:
    """The solver; a class is made with its defaults, but few local steps."""
    check_dataclass(solver)
    if not inspect.isclass(solver):
        return solver
    try:
        one = solver()
        rounds = {name: FEW for name in ("local_steps", "period") if name in vars(one)}
        few = one.period <= FEW or not rounds
        return one if few else dataclasses.replace(one, **rounds)  # type: ignore[type-var]
    except TypeError as error:
        raise TypeError(
            f"{solver.__name__} cannot be made without arguments ({error}): hand over a solver "
            "with numbers, "
            f"such as {solver.__name__}(...)"
        ) from None


def graph_of(solver: Solver, n: int = 0) -> Topology | Schedule:
    """The solver's own graph of `n` agents, or of a small number of them; of a random schedule some
    draws, repeated.

    Examples
    --------
    >>> import mpidec
    >>> graph_of(mpidec.solvers.RelaySGD()).name
    'binary_tree'
    """
    for size in (n,) if n else SIZES:
        try:
            graph = as_topology(solver.needs.graph, size)
            return graph if graph.period else cycle(map(graph.at, range(DRAWS)))
        except ValueError:
            if size == (n or SIZES[-1]):
                raise
    raise AssertionError


@cache
def directed(kind: str, n: int = 5) -> Topology:
    """A directed, strongly connected graph with random weights: "row" or "column" stochastic, or
    a "pair" of both.
    """
    if kind == "pair":
        return push_pull(directed("row", n), directed("column", n))
    rng = np.random.default_rng(n)
    A = np.eye(n) + np.roll(np.eye(n), 1, axis=0) + (rng.random((n, n)) < 0.4)
    A = (A > 0) * rng.uniform(0.2, 1, (n, n))
    return from_weights(A / A.sum(axis=1 if kind == "row" else 0, keepdims=True))


def bearable(solver: Solver, kinds: tuple[str, ...]) -> Iterator[Topology | Schedule]:
    """The solver's own graph, and a directed graph of each of the `kinds` that the solver declares.

    Not of a kind of which it takes special graphs only, such as trees.
    """
    yield graph_of(solver)
    for kind in kinds:
        with suppress(ValueError):
            if kind in solver.needs.kinds:
                solver.check(directed(kind))
                yield directed(kind)


def costs(n: int, d: int = 3) -> QuadraticCosts:
    """Quadratics whose curvatures and minimizers differ between the agents."""
    rng = np.random.default_rng([5, n])
    return QuadraticCosts(rng.uniform(0.5, 2, (n, 1)), rng.standard_normal((n, d)))


def problem(
    f: QuadraticCosts,
    lo: int = 0,
    hi: int | None = None,
    term: Term | None = None,
    x_star: np.ndarray | None = None,
) -> LeastSquares:
    """The quadratics of the agents `lo` to `hi` as a problem, each agent with a basis of its
    own.
    """
    n, d = f.c.shape
    Q = np.linalg.qr(np.random.default_rng(n).standard_normal((n, d, d)))[0]
    A = np.sqrt(f.h)[:, :, None] * Q
    b = np.einsum("npd,nd->np", A, f.c)
    return LeastSquares(
        A[lo:hi], b[lo:hi], term=term, x_star=f.minimizer if x_star is None else x_star
    )


def alone(n: int) -> Network:
    """A network of `n` agents in this process."""
    return Network(n, comm=ALONE)


def searches(solver: Solver) -> bool:
    """Whether the step size is "auto" or "safe"."""
    return isinstance(step_size_of(solver), str)


def with_number(solver: Solver, size: float = SMALL) -> Solver:
    """The solver with a number as step size."""
    return with_step_size(solver, size) if searches(solver) else solver


def resized(solver: Solver, size: float) -> Solver:
    """The solver with this step size in place of its own, if it has one."""
    return with_step_size(solver, size) if "step_size" in vars(solver) else solver


@cache
def solved(solver: Solver) -> tuple[Result, QuadraticCosts]:
    """A run of an exact solver until the error is at rounding, and its costs."""
    graph = graph_of(solver)
    f = costs(graph.n)
    with alone(graph.n) as net, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stop = {"error_max": 1e-11}
        result = solve(problem(f), solver, graph, steps=3000, net=net, every=2, stop=stop)
        return result, f
