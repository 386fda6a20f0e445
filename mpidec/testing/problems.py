"""The contract of problems and oracles: what each one must do with the rows of the local agents,
and tests of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..problems import Oracle, OracleLike
from ..problems.internals import (
    adapted,
    is_sampled,
    mismatch,
    prox_of,
    smoothness_of,
    solution_of,
    term_of,
)
from .case import check_all, require

if TYPE_CHECKING:
    from ..problems import Problem

POINTS = 3
SEED = 0
# Relative: gradients at the minimizer, proximal points.
NEAR = 1e-6
ROUNDING = 1e-10  # of a difference of gradients over a distance of 1e-4, relative to them
DRAWS, LIMIT = 256, 6.0  # of random gradients; standard errors


def _points(problem: Problem) -> list[np.ndarray]:
    rng = np.random.default_rng([7, problem.d])
    return [rng.standard_normal((problem.m, problem.d)) for _ in range(POINTS)]


def _close(A: np.ndarray, B: np.ndarray, rtol: float = NEAR) -> bool:
    size = max(float(np.linalg.norm(A)), float(np.linalg.norm(B)), 1e-12)
    return bool(np.linalg.norm(A - B) <= rtol * size)


def shapes(problem: Problem) -> None:
    """`value` returns a number for each agent, `grad` a row for each agent, all finite."""
    for X in _points(problem):
        for name, found, shape in (
            ("value", problem.value(X), (problem.m,)),
            ("grad", problem.grad(X), X.shape),
        ):
            what = type(found).__name__
            if isinstance(found, np.ndarray):
                what = f"{found.dtype} {found.shape}" + (
                    "" if np.isfinite(found).all() else ", not finite"
                )
            require(
                isinstance(found, np.ndarray)
                and found.shape == shape
                and found.dtype.kind == "f"
                and np.isfinite(found).all(),
                problem,
                "shapes",
                f"{name}(X) returns {what}, expected finite real numbers of shape {shape}",
                "sum over the entries of a row (axis=1), not over the agents",
            )


def differences(problem: Problem) -> None:
    """The gradients are those of the values, less those of the term, at random points."""
    term = term_of(problem)
    for X in _points(problem):
        found = mismatch(
            lambda X: problem.value(X) - (0 if term is None else term.value(X)),
            problem.grad,
            X,
            range(problem.m),
        )
        if found is not None:
            require(
                False,
                problem,
                "differences",
                f"along a direction, the value of agent {found.row} changes at the rate "
                f"{found.value:.6g}, its gradient says "
                f"{found.grad:.6g}",
                "is a factor, a sign or a part missing?",
            )


def rows(problem: Problem) -> None:
    """The value and the gradient of an agent depend on its own row only, to the last bit."""
    X, Y, _ = _points(problem)
    for i in range(problem.m):
        Z = Y.copy()
        Z[i] = X[i]
        for name, function in (("value", problem.value), ("grad", problem.grad)):
            require(
                np.array_equal(np.asarray(function(X))[i], np.asarray(function(Z))[i]),
                problem,
                "rows",
                f"{name}(X)[{i}] changes with the rows of other agents",
                "row i of the result is f_i at row i: use no means or norms over all rows",
            )


def subsets(problem: Problem) -> None:
    """`grad(X, agents)`, where there is one, returns the same bits for some of the agents, in
    any order.
    """
    if "agents" not in signature(problem.grad).parameters:
        return
    X, whole = _points(problem)[0], problem.grad(_points(problem)[0])
    for some in ([i] for i in range(problem.m)):
        found = problem.grad(X[some], agents=some)  # type: ignore[call-arg]
        require(
            np.array_equal(found, whole[some]),
            problem,
            "subsets",
            f"grad(X, agents={some}) is another gradient than row {some[0]} of grad(X)",
            "row j of X belongs to agent agents[j]",
        )


def in_place(problem: Problem) -> None:
    """`value` and `grad` leave X as it is, and return arrays of their own, which later calls do
    not change.
    """
    X, Y, _ = _points(problem)
    for name, function in (("value", problem.value), ("grad", problem.grad)):
        kept = X.copy()
        found = function(X)
        first = np.copy(found)
        require(
            np.array_equal(X, kept),
            problem,
            "in_place",
            f"{name}(X) changes X",
            "write X - a in place of X -= a",
        )
        again = function(Y)
        require(
            not np.shares_memory(found, X)
            and not np.shares_memory(found, again)
            and np.array_equal(found, first),
            problem,
            "in_place",
            f"{name}(X) returns a view of X, or of an array that a later call changes",
            "return a new array, such as a copy",
        )
        require(
            np.array_equal(function(X), first),
            problem,
            "in_place",
            f"{name}(X) is another one when it is called again with the same X",
            "draw random numbers in an oracle, start(agents, seed), not in the problem",
        )


def smoothness(problem: Problem) -> None:
    """Where there is a `smoothness`, gradients change by no more than it says, times the
    distance.
    """
    try:
        stated = smoothness_of(problem)
    except ValueError:
        return
    if stated is None:
        return
    L = np.asarray(stated, float)
    require(
        L.shape == (problem.m,) and (L >= 0).all(),
        problem,
        "smoothness",
        f"smoothness has the shape {L.shape}, expected {(problem.m,)}, one number >= 0 per agent",
        "return an array",
    )
    D = _points(problem)[0]
    for X in (*_points(problem), np.zeros_like(D)):
        # Towards the direction of largest curvature.
        for _ in range(8):
            h = 1e-4 / max(float(np.linalg.norm(D)), 1e-300)
            G = problem.grad(X)
            change = problem.grad(X + h * D) - G
            ratio = np.linalg.norm(change, axis=1) / np.maximum(
                h * np.linalg.norm(D, axis=1), 1e-300
            )
            require(
                (ratio <= L * (1 + 1e-4) + ROUNDING * np.linalg.norm(G)).all(),
                problem,
                "smoothness",
                f"a gradient changes by {float(ratio.max()):.6g} times the distance, agent "
                f"{int(np.argmax(ratio - L))}, but its "
                f"smoothness is {float(L[np.argmax(ratio - L)]):.6g}",
                'step_size="safe" relies on it: is it the largest eigenvalue of the Hessian, of '
                "the whole f_i?",
            )
            size = np.linalg.norm(change, axis=1, keepdims=True)
            D = np.where(size > 0, change / np.maximum(size, 1e-300), D)


def minimizer(problem: Problem) -> None:
    """`x_star` and `solution()`, where there are such, minimize the mean of the functions, with
    their term.
    """
    known = getattr(problem, "x_star", None)
    found = {} if callable(known) or is_sampled(problem) else {"x_star": known}
    if solve := solution_of(problem):
        found["solution()"] = solve()
    term = term_of(problem)
    zero = np.zeros((problem.m, problem.d))
    for name, x in found.items():
        if x is None:
            continue
        require(
            np.shape(x) == (problem.d,),
            problem,
            "minimizer",
            f"{name} has the shape {np.shape(x)}, expected {(problem.d,)}",
            "it is one point for all agents",
        )
        G = problem.grad(np.tile(x, (problem.m, 1)))
        g = G.mean(axis=0)
        scale = max(abs(G).max(), abs(problem.grad(zero).mean(axis=0)).max()) or 1.0
        if term is not None:
            g = x - term.prox(np.tile(x - g / scale, (1, 1)), 1 / scale)[0]
            g = g * scale
        require(
            float(abs(g).max()) <= NEAR * scale,
            problem,
            "minimizer",
            f"at {name}, the mean of the agents' gradients is {float(abs(g).max()):.3g}, theirs "
            f"are up to {scale:.3g}; expected 0",
            "errors of a run are measured from it; None if it is not known",
        )


def prox(problem: Problem) -> None:
    r"""`prox(V, t)`, where there is one, minimizes :math:`f_i(x) + \|x - v_i\|^2 / (2 t)`, with
    a number t or one per agent.
    """
    point = prox_of(problem)
    if point is None:
        return
    V, term = _points(problem)[0], term_of(problem)
    for t in (0.3, np.linspace(0.1, 2.0, problem.m)):
        X = point(V.copy(), t)
        sizes = np.broadcast_to(t, (problem.m,))[:, None]
        expected = V - sizes * problem.grad(X)
        if term is not None:
            expected = np.concatenate(
                [term.prox(row[None], float(s)) for row, s in zip(expected, sizes[:, 0])]
            )
        require(
            _close(X, expected, 1e-5),
            problem,
            "prox",
            f"X = prox(V, t) is {float(abs(X - expected).max()):.3g} away from V - t grad(X) (with "
            "a term, from the "
            "proximal point of that), expected 0",
            "t multiplies f: the factor of the square is 1 / (2 t)",
        )


def draws(oracle: Oracle) -> None:
    """Random gradients are the same for the same seed, agent and step, with the exact gradient
    as their mean.
    """
    problem: Problem = oracle.problem
    X = _points(problem)[0]
    agents = range(5, 5 + problem.m)
    first, again = (oracle.start(agents, SEED) for _ in range(2))
    for k in range(3):
        G, kept = first(X, k), X.copy()
        require(
            np.array_equal(G, again(X, k)),
            oracle,
            "draws",
            f"gradient(X, {k}) is another one after a second start(agents, seed)",
            "draw with np.random.default_rng([seed, agent, k])",
        )
        require(
            G.shape == X.shape and np.array_equal(X, kept) and not np.shares_memory(G, X),
            oracle,
            "draws",
            f"gradient(X, k) has the shape {G.shape}, expected {X.shape}, in a new array",
            "one row per local agent",
        )
    # A subgradient, which a kink leaves open.
    if not oracle.smooth:
        return
    drawn = oracle.start(agents, SEED)
    found = np.array([drawn(X, k) for k in range(DRAWS)])
    exact = problem.grad(X)
    noise = LIMIT * found.std(axis=0) / np.sqrt(DRAWS) + 1e-9 * abs(found).max()
    away = abs(found.mean(axis=0) - exact) / noise
    require(
        (away <= 1).all(),
        oracle,
        "draws",
        f"the mean of {DRAWS} gradients of agent {int(np.argmax(away.max(axis=1)))} is "
        f"{float(away.max()):.3g} times as far from "
        "the exact gradient as chance explains",
        "is a sample's gradient multiplied by (samples of the agent) / (batch size), and drawn "
        "uniformly?",
    )


PROPERTIES: dict[str, Callable[[Problem], None]] = {
    "shapes": shapes,
    "differences": differences,
    "rows": rows,
    "subsets": subsets,
    "in_place": in_place,
    "smoothness": smoothness,
    "minimizer": minimizer,
    "prox": prox,
}


def properties(problem: Problem | OracleLike) -> dict[str, Callable[[], None]]:
    """The checks of the properties that a problem, or an oracle and the problem in it, must have,
    by name.

    Examples
    --------
    >>> import mpidec
    >>> list(properties(mpidec.problems.LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]])))
    ['shapes', 'differences', 'rows', 'subsets', 'in_place', 'smoothness', 'minimizer', 'prox']
    """
    if problem is None:
        raise TypeError("problem is None, expected a problem or an oracle of one")
    oracle = adapted(problem)
    checks = {name: partial(check, oracle.problem) for name, check in PROPERTIES.items()}
    if oracle.problem is problem:
        return {**checks}
    return {**checks, "draws": partial(draws, oracle)}


def check_problem(problem: Problem | OracleLike) -> None:
    """Check all properties that a problem must have, and those of the gradients of an oracle.

    Parameters
    ----------
    problem : problem or oracle
        With all agents in this process, or some.

    Raises
    ------
    ContractError
        With a line for each property that the problem lacks.

    Examples
    --------
    >>> import mpidec
    >>> C = np.array([[1.0], [3.0]])
    >>> half = lambda X: ((X - C) ** 2).sum(axis=1) / 2
    >>> mpidec.testing.check_problem(
    ...     mpidec.problems.Custom(half, lambda X: X - C, m=2, d=1, x_star=[2.0])
    ... )
    """
    check_all(problem, properties(problem))


class ProblemContract:
    """Base class of tests for pytest: a test for each property that a problem must have.

    Attributes
    ----------
    problem : problem or oracle

    Examples
    --------
    >>> import mpidec
    >>> class TestSquares(mpidec.testing.ProblemContract):
    ...     problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]])
    >>> TestSquares().test_minimizer()
    """

    problem: ClassVar[Problem | OracleLike]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, check in properties(cls.problem).items():
            setattr(cls, f"test_{name}", staticmethod(check))
