"""Handle of a communication in progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Request(Protocol):
    """Something in progress: messages, a reader, an operation, or another `Pending`."""

    def test(self) -> bool:
        """Return whether `wait` would return at once."""

    def wait(self) -> Any:
        """Return when it is complete."""


class Pending:
    """Handle of a communication under way: what every `start` returns.

    What was handed to `start` must not change before `wait` returns.  Handles may be waited for in
    any order, and a handle that is dropped does no harm: the communication completes.

    Parameters
    ----------
    request : object with `test` and `wait`, or None
        What must be complete; None if nothing is under way.
    finish : callable
        Makes the result when the request is complete.

    Examples
    --------
    >>> pending = Pending(None, lambda: [1.0])
    >>> pending.test(), pending.wait(), pending.wait() is pending.wait()
    (True, [1.0], True)
    """

    def __init__(self, request: Request | None, finish: Callable[[], Any]):
        self._request = request
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def __repr__(self) -> str:
        return f"Pending({'complete' if self._finish is None else 'under way'})"

    def wait(self) -> Any:
        """Complete the communication, and return its result; the same object when called again.

        Raises
        ------
        ValueError
            If the ranks disagree; the message names both sides.
        """
        if self._finish is not None:
            if self._request is not None:
                self._request.wait()
            self._result = self._finish()
            self._finish = self._request = None
        return self._result

    def test(self) -> bool:
        """Return whether `wait` would return (or raise) at once; makes progress."""
        return self._finish is None or self._request is None or self._request.test()


class Several:
    """Several communications in progress, combined into one request."""

    def __init__(self, parts: Sequence[Pending]):
        self._parts = parts

    def wait(self) -> None:
        for part in self._parts:
            part.wait()

    def test(self) -> bool:
        complete = [part.test() for part in self._parts]  # each makes progress
        return all(complete)
