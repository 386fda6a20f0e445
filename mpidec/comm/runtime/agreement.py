"""Collective validation of input: an error on any rank is raised on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ...exceptions import InputError, mark
from ...protocols import Reductions
from .collectives import portable
from .communicator import Communicator

T = TypeVar("T")
# Raised for invalid input.
REFUSALS = (
    ValueError,
    TypeError,
    OSError,
    MemoryError,
    ImportError,
    OverflowError,
)


def on_root(comm: Communicator, act: Callable[..., T], *args: object) -> T:
    """Return on every rank the result of `act(*args)` on rank 0; the others sleep meanwhile to
    leave the cores to rank 0.

    Raises
    ------
    InputError
        On every rank, if `act` raises one of REFUSALS.
    Exception
        On every rank, if `act` raises another one.
    """
    result: T | None = None
    error: Exception | None = None
    if comm.rank == 0:
        try:
            result = act(*args)
        except REFUSALS as refusal:
            error = InputError(message(refusal))
        except Exception as caught:
            error = caught
    meet(comm)
    value: T
    value, theirs = comm.bcast((result, error and portable(error)))
    if error is None and theirs is not None:
        mark(theirs, from_another_rank=True)
        error = theirs
    if error is not None:
        mark(error, on_all_ranks=True)
        raise error
    return value


def meet(comm: Communicator) -> None:
    """Wait until all ranks have arrived, however long one of them works; the others sleep, to leave
    the cores to it.
    """
    done, pause = comm.Ibarrier(), 0.001
    while not done.Test():
        time.sleep(pause)
        pause = min(1.2 * pause, 0.02)


@contextmanager
def on_all_ranks(net: Reductions) -> Iterator[None]:
    """A context of all ranks: if some raise an exception in it, all raise that of the lowest of
    them.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    net.agree(error)


@contextmanager
def agreed(net: Reductions) -> Iterator[None]:
    """A context of all ranks: if one refuses its input in it, all raise its `InputError`; other
    errors are raised as they are.
    """
    with on_all_ranks(net):
        try:
            yield
        except REFUSALS as caught:
            raise InputError(message(caught)) from caught


def message(error: BaseException) -> str:
    """Return the text of a refusal, with the file that it concerns."""
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
