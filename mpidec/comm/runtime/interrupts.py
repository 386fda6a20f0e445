"""Interrupts (Ctrl-C, or a batch system's signal) that take effect where a run can end cleanly."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Deferred:
    """Signal handler that notes the first interrupt and raises at the second one."""

    def __init__(self) -> None:
        self.noted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.noted:
            raise KeyboardInterrupt
        self.noted = True


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Context that defers Ctrl-C and yields a function that returns whether it was pressed; the second Ctrl-C raises.

    Within another such context it shares the outer one's interrupts.  Where SIGINT has another handler, or outside the main
    thread, it changes nothing.

    Examples
    --------
    >>> with interrupts() as interrupted:
    ...     interrupted()
    False
    """
    current = signal.getsignal(signal.SIGINT)
    if isinstance(current, _Deferred):
        yield lambda: current.noted
        return
    if (
        threading.current_thread() is not threading.main_thread()
        or current is not signal.default_int_handler
    ):
        yield lambda: False
        return
    deferred = _Deferred()
    signal.signal(signal.SIGINT, deferred)
    try:
        yield lambda: deferred.noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt(*_: object) -> None:
    """Interrupt this process like the first Ctrl-C, however often it is called: a launcher may pass a signal on twice."""
    current = signal.getsignal(signal.SIGINT)
    if isinstance(current, _Deferred):
        current.noted = True
    else:
        os.kill(os.getpid(), signal.SIGINT)
