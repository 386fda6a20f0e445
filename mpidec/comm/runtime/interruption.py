"""Interrupts (Ctrl-C, or a batch system's signal), deferred until a run can end cleanly."""

from __future__ import annotations

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


_current: list[_Deferred] = []  # that of the outermost context


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Context that defers Ctrl-C and `interrupt`, and yields a function that returns whether one
    came; the second Ctrl-C raises.

    Within another such context it shares the outer one's interrupts.  Where SIGINT has another
    handler, or is ignored, as in the background of a shell script, it stays so; outside the main
    thread nothing is deferred.

    Examples
    --------
    >>> with interrupts() as interrupted:
    ...     interrupted()
    False
    """
    if _current:
        outer = _current[0]
        yield lambda: outer.noted
        return
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    deferred, handled = _Deferred(), signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _current.append(deferred)
    if handled:
        signal.signal(signal.SIGINT, deferred)
    try:
        yield lambda: deferred.noted
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _current.clear()


def interrupt(*_: object) -> None:
    """Interrupt this process like the first Ctrl-C, however often it is called: a launcher may
    pass a signal on twice.
    """
    if not _current:
        raise KeyboardInterrupt
    _current[0].noted = True
