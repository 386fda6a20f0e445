"""`mpidec.iterate`: the steps of a solver, for loops written by the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import isfunction, ismethod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..comm.mixing.internals import Operator, StepOperator
from ..problems import OracleLike
from ..solvers import Solver
from ..solvers.internals import Asynchronous, OfSteps, at_step, iterate as _iterate, name_of
from .answers import Answers, gradients_for
from .arguments import as_oracle
from .stepsize import requested_rule

if TYPE_CHECKING:
    from ..problems import Oracle, Problem

Functions = Callable[[np.ndarray, int], np.ndarray]  # gradient(X, k)


def iterate(
    solver: Solver,
    F: Problem | OracleLike | Functions | OfSteps | None,
    W: Operator[StepOperator],
    s: Any,
    first: int = 0,
    steps: int | None = None,
    *,
    agents: Sequence[int] | None = None,
    seed: int = 0,
) -> Iterator[Any]:
    r"""Yield the states of a solver after each step, for loops of your own: adaptive filters,
    notebooks, tests of a new method.  `solve` takes the same steps.

    .. math:: s_{k+1} = \mathrm{step}(s_k, \mathrm{ask}(F_k, s_k), W_k)

    Parameters
    ----------
    solver : Solver
        A synchronous one, whose step size is a number or a function of k.
    F : problem, oracle, function or None
        What the solver asks: the functions of the local agents, an oracle of their gradients, or
        the gradients themselves, ``gradient(X, k)`` for the rows `X`, (m, d) -> (m, d); None for
        methods that average.
    W : Mixer
        ``net.mixer(topology)``, or what is derived from it.
    s : array (m, d) or state
        The initial rows of the local agents, or the state before the step `first`.
    first : int
        Number of the first step, which schedules of W, of the step size and of draws follow.
    steps : int, optional
        How many; by default without end.
    agents : sequence of int, optional
        The local agents, for the draws of an oracle; by default 0, ..., m - 1.
    seed : int
        Of the draws of an oracle.

    Yields
    ------
    state
        A NamedTuple; its field `X` has the iterates of the local agents.  Later steps do not
        change it.

    Raises
    ------
    TypeError, ValueError
        `solver` is asynchronous, or needs what `F` does not have.

    Notes
    -----
    Collective, step by step: each rank takes the same number of them.  Nothing is checked, measured
    or recorded on the way.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> C = np.array([[1.0], [3.0], [0.0], [4.0]])
    >>> with mpidec.Network(4) as net:
    ...     W, X = net.mixer(mpidec.topology.ring(4)), np.zeros((net.m, 1))
    ...     extra, gradient = mpidec.solvers.EXTRA(0.5), lambda X, k: X - C[net.lo : net.hi]
    ...     for s in mpidec.iterate(extra, gradient, W, X, steps=100):
    ...         pass
    >>> s.X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    for name, given, kind, expected in (
        ("solver", solver, Solver, "a solver: mpidec.solvers.EXTRA(0.1)"),
        ("W", W, Operator, "a mixer: net.mixer(topology)"),
        ("s", s, (np.ndarray, tuple), "the rows, an array (m, d), or a state"),
    ):
        if not isinstance(given, kind):
            raise TypeError(f"{name} is {given!r:.60}, expected {expected}")
    if isinstance(solver, Asynchronous):
        raise TypeError(
            f"{name_of(solver)} is asynchronous: run it with mpidec.solve, or mpidec.simulate"
        )
    if requested_rule(solver) is not None:
        raise ValueError(
            f"{name_of(solver)}: step_size is {solver.step_size!r}, expected a number, or a "
            "function of the step: mpidec.tune finds one"
        )
    if isinstance(s, np.ndarray):
        s = at_step(solver, first).init(s, W.at(first))
    asked = F if isinstance(F, OfSteps) else _answers(solver, F, len(s.X), agents, seed)
    return _iterate(solver, asked, W, s, first, steps)


def _answers(
    solver: Solver,
    F: Problem | OracleLike | Functions | None,
    m: int,
    agents: Sequence[int] | None,
    seed: int,
) -> Answers:
    if solver.needs.argmin and (
        F is None or isfunction(F) or ismethod(F) or isinstance(F, partial)
    ):
        raise TypeError(
            f"{name_of(solver)} needs minimizers of the local functions, F is {F!r:.60}: pass the "
            "problem"
        )
    if F is None:
        return Answers(None, None, lambda X, k: np.zeros_like(X))
    if isfunction(F) or ismethod(F) or isinstance(F, partial):
        return Answers(None, None, F)
    oracle = cast("Oracle", as_oracle(cast("Problem", F)))
    gradients = gradients_for(solver, oracle, agents or range(m), seed)
    return Answers(oracle.problem, oracle.term, gradients)
