"""The contract of solvers: which properties each one must have, and tests of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from .._words import settings
from ..solvers import Bias, OneOf, Solver
from ..solvers.internals import Asynchronous, limits
from . import acceptance, arrays, asynchronous, convergence, invariants
from .case import FEW, check_all, graph_of, made, searches


class Property(NamedTuple):
    """A property of solvers: its check, and whether a solver must have it."""

    check: Callable[[Any], None]
    applies: Callable[[Any], bool]


def _always(solver: Solver) -> bool:
    return True


def _optimizes(solver: Solver) -> bool:
    return solver.needs.problem


def _exact(solver: Solver) -> bool:
    return solver.exact and _optimizes(solver)


def _elsewhere(solver: Solver) -> bool:
    return solver.bias_on(graph_of(solver)) is Bias.OTHER


def _averages(solver: Solver) -> bool:
    return solver.keeps_mean or "row" not in solver.needs.kinds


def _descends(solver: Solver) -> bool:
    return solver.needs.problem


def _not_of_samples(solver: Solver) -> bool:
    return not solver.needs.data


COMMON = {
    "minimizer": Property(convergence.minimizer, _exact),
    "term": Property(convergence.term, lambda solver: solver.needs.term),
    "rate": Property(convergence.rate, lambda solver: _exact(solver) and not solver.adaptive),
    "bias": Property(
        convergence.bias,
        lambda solver: (
            not solver.exact
            and _descends(solver)
            and not solver.adaptive
            and not _elsewhere(solver)
        ),
    ),
    "noise": Property(
        convergence.noise,
        lambda solver: _descends(solver) and not solver.adaptive,
    ),
    "steady": Property(
        convergence.steady,
        lambda solver: _descends(solver) and not solver.adaptive,
    ),
    "mean": Property(
        invariants.mean,
        lambda solver: solver.keeps_mean,
    ),
    "average": Property(invariants.average, _averages),
    "dtype": Property(arrays.dtype, _always),
    "rows": Property(arrays.rows, lambda solver: solver.keeps_rows),
    "in_place": Property(arrays.in_place, _always),
    "tensors": Property(arrays.tensors, _not_of_samples),
    "columns": Property(arrays.columns, searches),
    "complex": Property(arrays.complex_rows, _not_of_samples),
    "bits": Property(arrays.bits, _always),
    "kinds": Property(acceptance.kinds, _always),
    "few_agents": Property(acceptance.few_agents, _always),
}
"""The properties of synchronous solvers."""

ASYNCHRONOUS = {
    "minimizer": Property(asynchronous.minimizer, _exact),
    "bias": Property(asynchronous.bias, lambda solver: not solver.exact),
    "average": Property(asynchronous.average, lambda solver: not solver.needs_problem),
    "kinds": Property(asynchronous.kinds, _always),
    "few_agents": Property(asynchronous.few_agents, _always),
}
"""The properties of asynchronous solvers."""


def properties(solver: Solver | type[Solver]) -> dict[str, Callable[[], None]]:
    """The checks of the properties that a solver must have, by name.

    Parameters
    ----------
    solver : Solver or class
        A class is made with its defaults.

    Examples
    --------
    >>> import mpidec
    >>> list(properties(mpidec.solvers.PairwiseGossip))
    ['bias', 'average', 'kinds', 'few_agents']
    """
    one = made(solver)
    table = ASYNCHRONOUS if isinstance(one, Asynchronous) else COMMON
    return {name: partial(check, one) for name, (check, applies) in table.items() if applies(one)}


def check_solver(solver: Solver | type[Solver]) -> None:
    """Check all properties that a solver must have; collective over `MPI.COMM_WORLD`.

    Parameters
    ----------
    solver : Solver or class
        A class is made with its defaults.

    Raises
    ------
    ContractError
        With a line for each property that the solver lacks.

    Examples
    --------
    >>> import mpidec
    >>> mpidec.testing.check_solver(mpidec.solvers.ExactDiffusion)
    """
    check_all(made(solver), properties(solver))


class SolverContract:
    """Base class of tests for pytest: a test for each property that a solver must have.

    Attributes
    ----------
    solver : Solver or class
        A class is made with its defaults.

    Examples
    --------
    >>> import mpidec
    >>> class TestEXTRA(mpidec.testing.SolverContract):
    ...     solver = mpidec.solvers.EXTRA
    >>> TestEXTRA().test_minimizer()
    """

    solver: ClassVar[Solver | type[Solver]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, check in properties(cls.solver).items():
            setattr(cls, f"test_{name}", staticmethod(check))


def variants(solver: type[Solver]) -> list[Solver]:
    """A solver with its defaults, then with each other choice of a text or truth value, and with
    and without local steps.

    Examples
    --------
    >>> import mpidec
    >>> variants(mpidec.solvers.Diffusion)
    [Diffusion(step_size='auto', order='atc'), Diffusion(step_size='auto', order='cta')]
    """
    first = made(solver)
    found, bounds = [first], limits(solver)
    for name, value in settings(first).items():
        others: list[Any] = [FEW if value == 1 else 1] if name == "local_steps" else []
        if isinstance(limit := bounds.get(name), OneOf):
            others = [choice for choice in limit if choice != value]
        elif isinstance(value, bool):
            others = [not value]
        for other in others:
            try:
                found.append(dataclasses.replace(first, **{name: other}))  # type: ignore[type-var]
            except ValueError:  # not with the other defaults
                continue
    return found
