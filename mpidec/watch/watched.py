"""Files of runs that are being written."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from ..record import Run, read
from ..record.internals import ABANDONED, COUNTERS

# What is counted or timed, beside COUNTERS, rather than measured of the iterates.
_PROGRESS = ("time", "epoch", "samples_per_second")


class WatchedFile:
    """A file of a run, which may be written and need not be there yet.

    Parameters
    ----------
    path : str

    Attributes
    ----------
    path : str
    run : Run or None
        What has been read last.
    over : bool
        Whether nothing more is to be expected: the run has ended or was killed.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    """

    def __init__(self, path: str):
        if not os.path.isdir(folder := os.path.dirname(os.path.abspath(path))):
            raise FileNotFoundError(f"{path}: there is no folder {folder}")
        self.path, self.run, self.over = path, None, False
        self._seen: tuple[int, int, int] | None = None

    run: Run | None

    def look(self) -> bool:
        """Read the file if it has changed; return whether there is something new.

        Raises
        ------
        ValueError, OSError
            If it is not the file of a run.
        """
        if not os.path.exists(self.path):
            return False
        abandoned = self.run is not None and self.run.unfinished.endswith(ABANDONED)
        status = os.stat(self.path)
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen == self._seen and (self.over or abandoned):
            # Two looks at the same records, as a run that ends is not written any more, either.
            new, self.over = not self.over, True
            return new
        new, self._seen, self.run = seen != self._seen, seen, read(self.path)
        self.over = not self.run.unfinished
        return new

    @property
    def state(self) -> str:
        """How far the run is, or how it has ended, in a few words."""
        run = self.run
        if run is None:
            return "waiting for its first record"
        if not run.unfinished:
            reason = f": {' '.join(run.reason.split())}" if run.reason else ""
            return f"{run.outcome} after {run.steps} steps{reason}"
        if self.over:
            return f"no outcome after {run.steps} steps: {ABANDONED}, so it was killed"
        ago = time.time() - os.stat(self.path).st_mtime if os.path.exists(self.path) else 0.0
        return f"running, {run.steps} steps, last written {ago:.0f} s ago"

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The metrics that are measured of the iterates, and recorded."""
        metrics: dict[str, Any] = {} if self.run is None else dict(self.run.metrics)
        return {
            name: values
            for name, values in metrics.items()
            if name not in COUNTERS and name not in _PROGRESS and np.isfinite(values).any()
        }
