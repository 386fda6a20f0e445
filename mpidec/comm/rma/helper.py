"""Helper: a thread that looks after messages while its rank computes."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

INTERVAL = 5e-4  # seconds between two looks


class Helper:
    """Thread that calls some functions every half a millisecond, while there are any.

    Parameters
    ----------
    failed : callable
        Called in that thread after an exception of one of them, which ends it.

    Notes
    -----
    Needs `MPI_THREAD_MULTIPLE`.  While the main thread is in a loop of Python code, it gets its turn every 5 ms
    (`sys.setswitchinterval`).
    """

    def __init__(self, failed: Callable[[], None]):
        self._failed, self._lock, self._end = failed, threading.Lock(), threading.Event()
        self._polls: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None

    def add(self, poll: Callable[[], None]) -> None:
        """Call `poll`, which returns at once."""
        with self._lock:
            self._polls.append(poll)
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="mpidec-window", daemon=True)
            self._thread.start()
            atexit.register(self.stop)  # before MPI is finalized

    def remove(self, poll: Callable[[], None]) -> None:
        """Call `poll` no longer: it has returned."""
        with self._lock:
            self._polls.remove(poll)
        if not self._polls:
            self.stop()

    def _run(self) -> None:
        while not self._end.wait(INTERVAL):
            with self._lock:
                for poll in self._polls:
                    try:
                        poll()
                    except BaseException:
                        self._failed()
                        raise

    def stop(self) -> None:
        """Return when the thread has ended; safe to repeat, and in a forked child."""
        self._end.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None
        atexit.unregister(self.stop)
