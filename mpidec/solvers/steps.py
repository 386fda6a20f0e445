"""Steps of a solver: the loop that every synchronous run, search, theory and test shares."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Protocol, runtime_checkable

from .base import Solver, at_step, step_size_of

Calls = Callable[[Solver], tuple[Callable[..., Any], Callable[..., Any]]]


@runtime_checkable
class OfSteps(Protocol):
    """What is different at each step: functions, or the operator W."""

    def at(self, k: int) -> Any:
        """That of step `k`."""


def iterate(
    solver: Solver,
    F: OfSteps,
    W: OfSteps,
    s: Any,
    first: int = 0,
    steps: int | None = None,
    calls: Calls | None = None,
) -> Iterator[Any]:
    """The states after the steps `first`, `first + 1`, ...: the mathematics of a run.

    Parameters
    ----------
    solver : Solver
    F : functions
        `F.at(k)` are those of step k (`mpidec.protocols.Functions`).
    W : mixer
        `W.at(k)` is the operator of step k.
    s : State
        That before the step `first`.
    steps : int, optional
        How many; by default without end.
    calls : callable, optional
        `calls(solver)` returns what takes the place of `solver.ask` and `solver.step`.
    """
    varying, calls = callable(step_size_of(solver)), calls or _calls
    ask, step = calls(solver)
    for k in count(first) if steps is None else range(first, first + steps):
        if varying:
            ask, step = calls(at_step(solver, k))
        s = step(s, ask(F.at(k), s), W.at(k))
        yield s


def _calls(solver: Solver) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return solver.ask, solver.step


def after(solver: Solver, F: OfSteps, W: OfSteps, s: Any, steps: int, first: int = 0) -> Any:
    """The state after `steps` steps from the state `s` before step `first` on."""
    return deque(iterate(solver, F, W, s, first, steps), maxlen=1).pop() if steps else s
