"""Python version of `_events.c`, ten times slower."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

clock = time.perf_counter_ns


class Log:
    """Events, and the file that they are written to.

    Parameters
    ----------
    file : int
        A file descriptor, which it closes.
    rank : int

    Attributes
    ----------
    error : int
        The error number that has ended the writing, or 0.
    """

    def __init__(self, file: int, rank: int):
        self._file, self._rank, self.error = file, rank, 0
        self._lanes = {threading.get_ident(): 0}
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._events: list[tuple[bytes, int, int, int, int]] = []

    def __del__(self) -> None:
        os.close(self._file)

    def add(self, kind: bytes, begin: int, end: int, number: int) -> None:
        """Add an event of this thread."""
        if not self._stopped.is_set():
            self._events.append((kind, threading.get_ident(), begin, end, number))

    def write(self, text: bytes) -> None:
        """Write all events so far, and a text."""
        with self._lock:
            events = self._events[:]
            del self._events[: len(events)]
            made = b"".join([self._line(*event) for event in events]) + text
            while made and not self._stopped.is_set():
                try:
                    made = made[os.write(self._file, made) :]
                except OSError as error:
                    self.error = error.errno or -1
                    self.stop()

    def keep_writing(self, pause: float) -> None:
        """Write every so many seconds until the log is stopped."""
        while not self._stopped.wait(pause):
            if self._events:
                self.write(b"")

    def stop(self) -> None:
        """Take no more events."""
        self._stopped.set()

    def timed(
        self,
        function: Callable[P, R | None],
        start: bytes | None,
        kind: bytes,
        numbers: Iterator[int],
        busy: bytearray,
    ) -> Callable[P, R | None]:
        """Return a function whose calls are events, unless it returns None, or a larger call is
        under way.
        """

        def timed(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if busy[0]:
                return function(*args, **kwargs)
            begin = clock()
            result = function(*args, **kwargs)
            if result is not None:
                end, number = clock(), next(numbers)
                if start is not None:
                    self.add(start, begin, begin, number)
                self.add(kind, begin, end, number)
            return result

        return timed

    def _line(self, kind: bytes, thread: int, begin: int, end: int, number: int) -> bytes:
        named = b""
        if thread not in self._lanes:
            lane = self._lanes[thread] = len(self._lanes)
            named = (
                b'{"ph": "M", "name": "thread_name", "pid": %d, "tid": %d, "args": {"name": "thread %d"}},\n'
                % (self._rank, lane, lane)
            )
        counted = b"%d" % number if number >= 0 else b""
        return named + b'{"tid":%d,"ts":%d,"dur":%d%b%b}},\n' % (
            self._lanes[thread],
            begin // 1000,
            end // 1000 - begin // 1000,
            kind,
            counted,
        )
