"""Events of a timeline: see `_events.c`."""

from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

def clock() -> int: ...

class Log:
    error: int

    def __init__(self, file: int, rank: int, /) -> None: ...
    def add(self, kind: bytes, begin: int, end: int, number: int, /) -> None: ...
    def write(self, text: bytes, /) -> None: ...
    def keep_writing(self, pause: float, /) -> None: ...
    def stop(self) -> None: ...
    def timed(
        self,
        function: Callable[P, R | None],
        start: bytes | None,
        kind: bytes,
        numbers: Iterator[int],
        busy: bytearray,
        /,
    ) -> Callable[P, R | None]: ...
