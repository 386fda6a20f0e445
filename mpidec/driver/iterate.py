"""`mpidec.iterate`: the steps of a solver, for loops written by the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import isfunction, ismethod
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._complex import is_complex
from .._validation import integer, returned, takes
from ..comm.mixing.internals import Operator, StepOperator
from ..problems import OracleLike
from ..solvers import Solver
from ..solvers.internals import Asynchronous, OfSteps, at_step, iterate as _iterate, name_of
from .answers import Answers, answers_of
from .arguments import as_oracle, check_callbacks
from .plan import State
from .stepsize import requested_rule

if TYPE_CHECKING:
    from ..problems import Oracle, Problem

Functions = Callable[[np.ndarray, int], np.ndarray]  # gradient(X, k)


def iterate(
    solver: Solver,
    F: Problem | OracleLike | Functions | OfSteps | None,
    W: Operator[StepOperator],
    s: np.ndarray | State,
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
        `solver` is asynchronous, needs what `F` does not have, or a graph of another kind; rows or
        gradients have another shape than those of the local agents.

    Notes
    -----
    Collective, step by step: each rank takes the same number of them.  The graph is checked where
    `s` are the initial rows, and what a function returns at each step; nothing is measured or
    recorded.

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
        ("s", s, (np.ndarray, State), "the rows, an array (m, d), or a state"),
        ("agents", agents, (Sequence, np.ndarray, NoneType), "the numbers of the local agents"),
    ):
        if not isinstance(given, kind):
            raise TypeError(f"{name} is {' '.join(repr(given).split()):.60}, expected {expected}")
    first, seed = integer(first, "first", least=0), integer(seed, "seed", least=0)
    steps = None if steps is None else integer(steps, "steps", least=0)
    if isinstance(solver, Asynchronous):
        raise TypeError(
            f"{name_of(solver)} is asynchronous: run it with mpidec.solve, or mpidec.simulate"
        )
    if requested_rule(solver) is not None:
        raise ValueError(
            f"{name_of(solver)}: step_size is {solver.step_size!r}, expected a number, or a "
            "function of the step: mpidec.tune finds one"
        )
    X = s if isinstance(s, np.ndarray) else s.X
    if np.ndim(X) < 1 or len(X) != W.m:
        raise ValueError(
            f"s has rows of shape {np.shape(X)}, expected {(W.m, *np.shape(X)[1:])}: one for each "
            "agent of this rank"
        )
    asked = F if isinstance(F, OfSteps) else _answers(solver, F, X, W, agents, seed)
    if isinstance(s, np.ndarray):
        graph = W.topology
        solver.check(graph.at(0) if graph.period == 1 else graph)
        s = at_step(solver, first).init(s, W.at(first))
    return _iterate(solver, asked, W, s, first, steps)


def _answers(
    solver: Solver,
    F: Problem | OracleLike | Functions | None,
    X: np.ndarray,
    W: Operator[StepOperator],
    agents: Sequence[int] | None,
    seed: int,
) -> Answers:
    """Return the functions that the solver asks; those of a user are checked."""
    called = isfunction(F) or ismethod(F) or isinstance(F, partial)
    needs = solver.needs
    if (needs.argmin or needs.data) and (F is None or called):
        what = "samples" if needs.data else "minimizers of the local functions"
        raise TypeError(f"{name_of(solver)} needs {what}, F is {F!r:.60}: pass the problem")
    if F is None:
        return Answers(None, None, lambda X, k: np.zeros_like(X))
    if called:
        return Answers(None, None, _checked(cast("Functions", F)))
    oracle = cast("Oracle", as_oracle(cast("Problem", F)))
    if oracle.problem.m != W.m:
        raise ValueError(
            f"the problem has {oracle.problem.m} agents, but this rank hosts {W.m} of the {W.n} of "
            "W: pass the data of the local agents, A[net.lo:net.hi]"
        )
    check_callbacks(oracle.problem, X, W.agents.start, solver.needs.problem)
    return answers_of(solver, oracle, range(W.m) if agents is None else agents, seed)


def _checked(gradient: Functions) -> Functions:
    """Return the function `gradient`, refused where it returns other things than gradients: NumPy
    would spread a row, or a number, over all agents.
    """
    takes(gradient, "gradient", "X", "k")

    def checked(X: np.ndarray, k: int) -> np.ndarray:
        what = "numbers" if is_complex(X) else "real numbers"
        return returned(gradient(X, k), "gradient(X, k)", X.shape, what)

    return checked
