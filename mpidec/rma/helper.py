"""Helper: a thread that looks after messages while its rank computes."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

INTERVAL = 5e-4                                     # seconds between two looks


class Helper:
    """Thread that calls `poll` every half a millisecond, until it is stopped.

    Parameters
    ----------
    poll : callable
        Returns at once; may be called by any thread.

    Notes
    -----
    Needs `MPI_THREAD_MULTIPLE`.  While the main thread is in a loop of Python code, it gets its turn every 5 ms
    (`sys.setswitchinterval`).
    """

    def __init__(self, poll: Callable[[], None]):
        self._poll, self._end = poll, threading.Event()
        self._thread = threading.Thread(target=self._run, name="mpidec-window", daemon=True)
        self._thread.start()
        atexit.register(self.stop)                  # before MPI is finalized

    def _run(self) -> None:
        while not self._end.wait(INTERVAL):
            self._poll()

    def stop(self) -> None:
        """Return when the thread has ended; safe to repeat, and in a forked child."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self.stop)
