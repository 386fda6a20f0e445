"""The supervisor of a job: it starts it again while its files get further, on the hosts that are
left.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from dataclasses import dataclass
from functools import partial

from ..cli import Status, plural, say
from .hosts import HostProbe, Launcher
from .jobs import Ending, Restartable
from .processes import Processes
from .progress import started
from .watch import Watch

# Starts in a row that may add nothing: a rank can die before the first checkpoint of a start.
IDLE = 2
# Status of a shell that cannot start a command.
NO_COMMAND = (126, 127)
# Status of a launcher that the supervisor has ended.
KILLED = 128 + 9
# Seconds in which another process may finish writing the file.
WRITING = 60.0


@dataclass
class Supervisor:
    """A job, its launcher, and how often it may start again.

    Parameters
    ----------
    job : Restartable
    launcher : Launcher
    probe : HostProbe
    times : int
        Restarts at most.
    silent : float
        Seconds without a change of its files after which a job counts as hanging.
    """

    job: Restartable
    launcher: Launcher
    probe: HostProbe
    times: int
    silent: float = math.inf
    starts: int = 0
    idle: int = 0

    def run(self) -> int:
        """Start the job until it has ended; return the exit status."""
        left = [*self.launcher.slots]
        with Processes(self.job.interrupt) as processes:
            while True:
                before, words = self.job.reached(), self._words(left)
                if self.starts:
                    self._tell(f"start {self.starts + 1}: {shlex.join(words)}")
                self.starts += 1
                lost = partial(self.probe.silent, left)
                end = processes.run(words, Watch(self.job, self.silent, lost))
                status = end if isinstance(end, int) else KILLED
                if killed := processes.clean():
                    self._tell(f"the launcher has left processes of the job: {killed} killed")
                if (ended := self.job.ending(status)) is not None:
                    return self._ended(ended, end)
                if processes.signal is not None:
                    self._tell(f"{self._at()}: ended by {processes.signal.name}")
                    return Status.INTERRUPTED
                if (why := self._hopeless(before, status)) is not None:
                    self._tell(f"{self._at()}: {self._how(end)}; {why}")
                    return status or Status.FAILED
                self._tell(f"{self._at()}: {self._how(end)}; it starts again")
                left = self._hosts(left)
                if not left and self.launcher.slots:
                    self._tell(f"no host is left: none answers {self.probe.command}")
                    return status or Status.FAILED

    def _words(self, left: list[str]) -> list[str]:
        first, ranks = self.launcher.ranks, self.launcher.fewer(left, self.job.any_ranks)
        fewer = ranks is not None and first is not None and ranks < first
        return [*self.launcher.on(left, ranks), *self.job.begin(first, fewer)]

    def _ended(self, ended: Ending, end: int | str) -> int:
        """Return the status of a job whose files say how it has ended."""
        if self.starts > 1 or end != ended.status:
            again = f"after {plural(self.starts - 1, 'restart')}" if self.starts > 1 else ""
            other = f"although {self._how(end)}" if end != ended.status else ""
            parts = [f"{self.job.path}: {ended.text}", *filter(None, [again, other])]
            self._tell(", ".join(parts))
        return ended.status

    def _hopeless(self, before: float | None, status: int) -> str | None:
        """Return why the job does not start again; None if it does."""
        reached = self.job.reached()
        further = reached is not None and reached > (-1 if before is None else before)
        self.idle = 0 if further else self.idle + 1
        if self.starts <= self.times:
            return None if further else self._stuck(reached, status)
        if self.idle > IDLE:
            return f"{self.idle} starts in a row added nothing: mend what is reported above"
        return f"no restart is left of {self.times}: allow more --times"

    def _stuck(self, reached: float | None, status: int) -> str | None:
        """Return why a job whose last start added nothing does not start again."""
        if status in (Status.INPUT, Status.INTERRUPTED, *NO_COMMAND):
            return "a restart would end likewise"
        # A job whose ranks die before there is a file starts anew, as often as --times says.
        if self.idle > IDLE and reached is None and status == Status.OK:
            return "the command does not write it: name the file that says how far it is"
        stuck = "no further than when it started"
        if self.job.why():
            return f"{stuck}: mend what is reported above"
        if self.idle >= IDLE and reached is not None:
            return f"{stuck}, as before: mend what ends it, or store checkpoints more often"
        if self.idle > IDLE and status == Status.FAILED:
            return f"{self.idle} starts in a row have ended so: mend what is reported above"
        return None

    def _hosts(self, last: list[str]) -> list[str]:
        """Return the hosts that answer now, when nobody writes the file any more."""
        deadline = time.monotonic() + WRITING
        while self.job.busy() and time.monotonic() < deadline:
            time.sleep(0.1)
        slots = self.launcher.slots
        silent = self.probe.silent([*slots])
        left = [host for host in slots if host not in silent]
        if left != last and left:
            first, ranks = self.launcher.ranks, self.launcher.fewer(left, self.job.any_ranks)
            kept = "" if self.job.any_ranks else ": this job needs as many as before"
            who = f"no answer from {', '.join(silent)} ({self.probe.command})"
            self._tell(
                f"{who if silent else 'all hosts answer again'}: it continues on "
                f"{', '.join(left)}, {ranks} of {first} ranks{kept}"
            )
        return left

    def _at(self) -> str:
        path, reached = self.job.path, self.job.reached()
        if reached is not None:
            return f"{path} {self.job.shown(reached)}"
        if not os.path.exists(path):
            return f"{path} is not written yet"
        return f"{path} " + ("is as it was before" if started(path) else "is empty")

    def _how(self, end: int | str) -> str:
        if isinstance(end, str):
            return f"{end}; the supervisor has ended it"
        why = self.job.why()
        return f"the launcher ended with status {end}" + (f" ({why})" if why else "")

    def _tell(self, text: str) -> None:
        say("restart", text)
