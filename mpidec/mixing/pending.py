"""What `start` returns: a mixing under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Waits(Protocol):
    """Something that is under way."""

    def test(self) -> bool: ...

    def wait(self) -> Any: ...


class Pending:
    """A mixing under way; `wait()` completes it and returns the rows.

    The rows handed to `start` must not change before `wait` returns.
    """

    def __init__(self, exchange: Waits | None, finish: Callable[[], Any]):
        self._exchange, self._finish = exchange, finish
        self._result: Any = None

    def wait(self) -> Any:
        """Complete the exchange, and return the mixed rows; again the same object when called again."""
        if self._finish is not None:
            if self._exchange is not None:
                self._exchange.wait()
            self._result, self._finish = self._finish(), None  # type: ignore[assignment]
        return self._result

    def test(self) -> bool:
        """Whether `wait` would return at once; gives MPI the chance to make progress."""
        return self._finish is None or self._exchange is None or self._exchange.test()
