"""The functions of a problem as solvers call them, and exceptions of a rank, which are kept until
the next decision of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .._complex import is_complex
from ..exceptions import ResumeError
from ..problems import Oracle
from ..problems.internals import REAL, Gradient, Gradients, Measured, moves, prox_of
from ..protocols import Motion, Reductions, Sample, StepSize
from ..solvers import Solver
from ..solvers.internals import Asynchronous, name_of

if TYPE_CHECKING:
    from ..problems import Problem, Term

Evaluate = Callable[..., np.ndarray]
T = TypeVar("T")


def gradients_for(
    solver: Solver, oracle: Oracle | None, agents: Sequence[int], seed: int
) -> Gradients | None:
    """Return the gradients of the local agents; None for a solver that asks for nothing.

    Raises
    ------
    ValueError
        If the problem has not what the solver needs.
    """
    needs, name = solver.needs, name_of(solver)
    if isinstance(solver, Asynchronous):
        if needs.functions != ("grad",):
            raise ValueError(
                f"{name} needs {', '.join(needs.functions) or 'nothing'} of the functions, "
                "expected gradients: events take one gradient each"
            )
        if oracle is None and not solver.needs_problem:
            return None
    if not needs.problem:
        return None
    if oracle is None:
        what = "gradients" if needs.functions == ("grad",) else "functions"
        what = "samples" if needs.data else what
        raise ValueError(f"{name} needs the {what} of a problem, but problem is None")
    if needs.argmin:
        _check_argmin(name, oracle)
    if needs.data:
        samples_for(solver, oracle, agents, seed)
        return None
    return oracle.gradients(agents, seed)


def samples_for(
    solver: Solver, oracle: Oracle | None, agents: Sequence[int], seed: int
) -> Measured | None:
    """Return the samples of the local agents, `sample(k)`; None for a solver that takes none.

    Raises
    ------
    ValueError
        If the problem has no samples, or its target no known motion.
    """
    needs, name = solver.needs, name_of(solver)
    if oracle is None or not needs.data:
        return None
    samples, problem = oracle.samples(agents, seed), name_of(oracle.problem)
    if samples is None:
        raise ValueError(
            f"{name} needs samples (u, y), which {problem} does not have: pass a "
            "mpidec.problems.Stream, LeastSquares or MiniBatch(LeastSquares(A, b), 1), or take a "
            "solver of gradients, such as Diffusion"
        )
    if "motion" in needs.functions and oracle.motion is None and moves(oracle.problem):
        raise ValueError(
            f"{name} needs to know how the target of {problem} moves: pass a "
            "mpidec.problems.StateSpace(F, Q, H, R), or take DiffusionRLS, which forgets"
        )
    return samples


def _check_argmin(name: str, oracle: Oracle) -> None:
    """Refuse an oracle for a solver that minimizes each agent's own function."""
    if prox_of(oracle.problem) is None:
        raise ValueError(
            f"{name} needs problem.prox, which {type(oracle.problem).__name__} does not have"
        )
    if oracle.draws:
        raise ValueError(
            f"{name} minimizes each agent's own function and takes no random gradients, got "
            f"{name_of(oracle.layers()[0])}: "
            "pass the problem itself, or take a linearized method, such as DLM"
        )


class Errors:
    """The first exception of this rank, which all ranks raise together at their next decision.

    Until then the rank goes on, since others wait for it in their mixings.
    """

    def __init__(self, net: Reductions):
        self._net = net
        self.first: Exception | None = None
        # Whether all ranks have raised an exception together.
        self.common = False

    def note(self, error: Exception) -> None:
        """Keep an exception for the next decision."""
        self.first = self.first or error

    def raise_together(self, error: Exception | None = None) -> None:
        """Raise the exception of the lowest rank that has one, on all ranks; collective."""
        try:
            self._net.agree(self.first or error)
        except Exception:
            self.common = True
            raise

    def or_zeros(
        self, shape: tuple[int, ...], dtype: DTypeLike, evaluate: Evaluate, *arguments: object
    ) -> np.ndarray:
        """Return what `evaluate` returns; zeros once it has raised an exception on one of several
        ranks.
        """
        if self.first is None:
            try:
                answer = np.asarray(evaluate(*arguments))
                if answer.shape == shape and answer.dtype == dtype:
                    return answer
                return _as_asked(answer, shape, dtype)
            except Exception as error:
                self._keep(error)
        return np.zeros(shape, dtype)

    def or_else(self, evaluate: Callable[[], T], instead: Callable[[], T]) -> T:
        """Return what `evaluate` returns; what `instead` does once it has raised an exception on
        one of several ranks.
        """
        if self.first is None:
            try:
                return evaluate()
            except Exception as error:
                self._keep(error)
        return instead()

    def _keep(self, error: Exception) -> None:
        """Keep an exception for the next decision of the ranks; one rank alone raises it."""
        if self._net.size == 1:
            raise error
        self.note(error)


def _as_asked(answer: np.ndarray, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return the answer of a problem in the dtype that is asked for, or refuse it."""
    if answer.shape != shape:
        raise ValueError(
            "the problem returned gradients (or values, proximal points, samples) of shape "
            f"{answer.shape}, expected {shape}"
        )
    if answer.dtype == dtype:
        return answer
    if is_complex(answer) and not is_complex(np.dtype(dtype)):
        raise TypeError(
            "the problem returned complex gradients (or values, proximal points, samples), "
            f"expected real numbers: {REAL}"
        )
    return answer.astype(dtype)


class Answers:
    """The functions of the local agents, step by step, as solvers ask them
    (`mpidec.protocols.Functions`).

    Parameters
    ----------
    problem : problem or None
    term : Term or None
    gradient : callable or None
        `gradient(X, k)`: the gradients of step k.
    errors : Errors, optional
        Where exceptions wait; None raises them at once.
    samples : callable or None
        `sample(k)`: the samples of step k.
    motion : Motion or None
        How the minimizer moves.

    Attributes
    ----------
    gradients, points : int
        Number of gradients, and of proximal points of whole functions, that each agent has
        answered.
    """

    def __init__(
        self,
        problem: Problem | None,
        term: Term | None,
        gradient: Gradient | None,
        errors: Errors | None = None,
        samples: Measured | None = None,
        motion: Motion | None = None,
    ):
        self._errors, self._samples, self._motion = errors, samples, motion
        self._problem, self._term, self._gradient = problem, term, gradient
        self._grad = gradient.all if isinstance(gradient, Gradients) else gradient
        self._checked, self._k = _at_once if errors is None else errors.or_zeros, 0
        self.gradients = self.points = 0
        self._prox = prox_of(problem)
        self._starts = _has_start(self._prox)

    def at(self, k: int) -> Answers:
        """Return the functions at step k."""
        self._k = k
        return self

    def grad(self, X: np.ndarray) -> np.ndarray:
        """Return the gradients of the smooth parts at the rows of X."""
        self.gradients += 1
        return self._checked(X.shape, X.dtype, self._grad, X, self._k)  # type: ignore[arg-type]

    def value(self, X: np.ndarray) -> np.ndarray:
        """Return the values of the functions at the rows of X, with their term."""
        return self._checked(X.shape[:1], X.real.dtype, self._problem.value, X)  # type: ignore[union-attr]

    def prox(self, V: np.ndarray, t: StepSize) -> np.ndarray:
        """Return the proximal points of the term at the rows of V; V itself without a term."""
        term = self._term
        if term is None:
            return V
        return self._checked(V.shape, V.dtype, term.prox, V, t)

    def argmin(self, V: np.ndarray, t: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Return the proximal points of the functions with their term, with a parameter for each
        agent; found from `start` on.
        """
        self.points += 1
        known = {"start": start} if self._starts else {}
        return self._checked(V.shape, V.dtype, partial(self._prox, **known), V, t[:, 0].real)  # type: ignore[misc, arg-type]

    def sample(self, X: np.ndarray) -> Sample:
        """Return what the local agents measure, in the dtype of their rows X."""
        (m, d), dtype = X.shape, X.dtype

        def drawn() -> Sample:
            H, y, R = self._samples(self._k)  # type: ignore[misc]
            p = np.shape(y)[-1]
            shapes = (H, (m, p, d)), (y, (m, p)), (R, (m, p, p))
            return Sample(*(_as_asked(np.asarray(A), shape, dtype) for A, shape in shapes))

        def nothing() -> Sample:
            return Sample(
                np.zeros((m, 1, d), dtype), np.zeros((m, 1), dtype), np.ones((m, 1, 1), dtype)
            )

        return drawn() if self._errors is None else self._errors.or_else(drawn, nothing)

    def motion(self) -> Motion:
        """Return how the target moves."""
        return self._motion  # type: ignore[return-value]

    def memory(self) -> dict[str, np.ndarray]:
        """Return what variance-reduced gradients remember, by name."""
        return self._gradient.memory() if isinstance(self._gradient, Gradients) else {}

    def recall(
        self, memory: Mapping[str, np.ndarray], gradients: int, points: int, step: int
    ) -> None:
        """Continue after `step` steps with what `memory` returned, and with the numbers of
        gradients and proximal points.

        Raises
        ------
        ResumeError
        """
        self.gradients, self.points = gradients, points
        gradient = self._gradient if isinstance(self._gradient, Gradients) else None
        recall(gradient, memory, step)


def recall(gradients: Gradients | None, memory: Mapping[str, np.ndarray], step: int) -> None:
    """Continue after `step` steps with what the gradients remembered then.

    Raises
    ------
    ResumeError
        The file is that of an oracle with another memory.
    """
    remembered = None if gradients is None else gradients.remembered
    if step > 0 and (remembered is None) == bool(memory):
        raise ResumeError(
            f"the checkpoint of step {step} has {'a' if memory else 'no'} memory of "
            "variance-reduced gradients: resume with the oracle that wrote it"
        )
    if memory and remembered is not None:
        try:
            remembered.recall(memory)
        except ValueError as error:
            raise ResumeError(str(error)) from error


def answers_of(
    solver: Solver,
    oracle: Oracle | None,
    agents: Sequence[int],
    seed: int,
    errors: Errors | None = None,
) -> Answers:
    """Return the functions of the local agents, of which the solver asks what it needs.

    Raises
    ------
    ValueError
        If the problem has not what the solver needs.
    """
    gradients = gradients_for(solver, oracle, agents, seed)
    if oracle is None:
        return Answers(None, None, gradients, errors)
    samples, motion = samples_for(solver, oracle, agents, seed), oracle.motion
    if motion is None and "motion" in solver.needs.functions:
        eye = np.eye(oracle.problem.d)
        motion = Motion(eye, 0 * eye)  # a target that does not move
    return Answers(oracle.problem, oracle.term, gradients, errors, samples, motion)


def _at_once(
    shape: tuple[int, ...], dtype: DTypeLike, evaluate: Evaluate, *arguments: object
) -> np.ndarray:
    return evaluate(*arguments)


def _has_start(prox: object) -> bool:
    """Return whether a method `prox` has the parameter `start`."""
    try:
        return callable(prox) and "start" in signature(prox).parameters
    except ValueError:  # of compiled functions
        return False
