"""All exceptions of the package, in one tree::

    Exception
    ├── InputError                invalid input of a command or a sweep; `status` is the exit status
    ├── WrongResult               a contender of the benchmark computes something else than the others
    ├── AssertionError
    │   └── ContractError         a solver or a graph lacks a property that it declares
    ├── RuntimeError
    │   └── RanksLost             ranks have died, and those that are left cannot go on
    └── ValueError
        ├── ConfigError           invalid setting: of an experiment file, a flag, a keyword argument
        ├── RankMismatchError     the ranks do not make the same call
        ├── ResumeError           the run in a file cannot be continued
        ├── RunsError             several runs cannot take their steps together
        └── Unstable              no step size makes the solver converge on the graph
    KeyboardInterrupt
    └── Interrupted               Ctrl-C has ended a run; `result` is what it has reached

Other invalid arguments raise Python's own `ValueError` and `TypeError`, and files `OSError`.

An error that all ranks raise is sent from the rank where it happens to the others, whatever its
class; `mark` states on each rank's copy who raises it, so that a traceback is printed once and
other ranks are not notified a second time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = [
    "ConfigError",
    "ContractError",
    "InputError",
    "Interrupted",
    "RankMismatchError",
    "RanksLost",
    "ResumeError",
    "RunsError",
    "Unstable",
    "WrongResult",
    "from_another_rank",
    "mark",
    "on_all_ranks",
]


class InputError(Exception):
    """Invalid input, raised with the same message on every rank and printed once; `status` is
    the exit status.
    """

    def __init__(self, message: str, status: int = 2):
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class WrongResult(Exception):
    """A contender of the benchmark does not compute what it should: the same on every rank."""


class ContractError(AssertionError):
    """A solver or a graph lacks a property that it declares, or that all of them must have."""


class ConfigError(ValueError):
    """Invalid setting; the message names the setting, its origin, and what was expected."""


class RankMismatchError(ValueError):
    """The ranks do not make the same call, or make it with arguments that do not fit together."""


class RanksLost(RuntimeError):
    """Ranks have died, and this one cannot go on without them.

    Attributes
    ----------
    ranks : sequence of int
        Theirs in `MPI.COMM_WORLD`.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()):
        super().__init__(message, tuple(ranks))
        self.ranks = tuple(ranks)

    def __str__(self) -> str:
        return str(self.args[0])


class ResumeError(ValueError):
    """The run in a file cannot be continued: the file is damaged, or settings that determine
    the run's results have changed.
    """


class RunsError(ValueError):
    """Several runs cannot take their steps together, as something computes with the rows of all of
    them, or would all be the same.
    """


class Unstable(ValueError):
    """No step size converges, because the solver is unstable on the graph; raised on every rank."""


class _Ended(Protocol):
    """Result of a run."""

    @property
    def steps(self) -> int: ...


class _Record(Protocol):
    """Where a run is recorded."""

    @property
    def path(self) -> str | os.PathLike[str]: ...


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended a run: raised on every rank by `solve`, and by `simulate`, after the file
    has been completed.

    Attributes
    ----------
    result : Result or AsyncResult
        What the run has reached, with the outcome "interrupted".
    """

    result: Any  # its classes lie above this room

    def __init__(self, result: _Ended, record: _Record | None = None):
        text = f"interrupted after step {result.steps}"
        if record is not None:
            path = os.fspath(record.path)
            obstacle = getattr(result, "obstacle", "")
            text += f": {path} is complete up to it, " + (
                f"but {obstacle}"
                if obstacle
                else f"and record=mpidec.Record({path!r}, resume=True) continues the run"
            )
        super().__init__(text)
        self.result = result


def mark(
    error: BaseException, *, on_all_ranks: bool = False, from_another_rank: bool = False
) -> None:
    """Note on an exception whether all ranks raise it, and whether this rank has received it
    from another one.
    """
    vars(error).update(
        on_all_ranks=on_all_ranks or vars(error).get("on_all_ranks", False),
        from_another_rank=from_another_rank or vars(error).get("from_another_rank", False),
    )


def on_all_ranks(error: BaseException) -> bool:
    """Return whether all ranks raise this error, so that none has to be notified."""
    return bool(vars(error).get("on_all_ranks", False))


def from_another_rank(error: BaseException) -> bool:
    """Return whether this rank has received the error from another one, which reports it."""
    return bool(vars(error).get("from_another_rank", False))
