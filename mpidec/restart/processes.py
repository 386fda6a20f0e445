"""One start of a job: its processes, the signals that are passed on to them, and those that are
left when the launcher has ended.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

from .._process import LOCAL_SIZES, RANKS
from .watch import Watch

MARK = "MPIDEC_RESTART"  # variable that the processes of a job have in common
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# Seconds in which processes whose launcher has ended may end themselves.
GRACE = 3.0
PAUSE = 0.05
LOOK = 1.0  # seconds between two looks at what is written
# Seconds between two looks at a job that starts: not every launcher says how many ranks there are.
FIRST_LOOKS, STARTING = 0.25, 10.0

_RANKS, _LOCAL_SIZES = ([name.encode() for name in names] for names in (RANKS, LOCAL_SIZES))


class Processes:
    """The processes of a job, which the launcher starts: on this machine they have a variable of
    their own in their environment.

    A context manager, in which signals to this process are passed on to the launcher.

    Parameters
    ----------
    passed_as : Signals, optional
        What is passed on in place of any signal but a second Ctrl-C.
    """

    def __init__(self, passed_as: signal.Signals | None = None) -> None:
        self._name, self._passed_as = secrets.token_hex(8), passed_as
        self._launcher: subprocess.Popen[bytes] | None = None
        self.signal: signal.Signals | None = None
        self._former: dict[signal.Signals, object] = {}

    def __enter__(self) -> Processes:
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()
        self.clean()
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def run(self, words: Sequence[str], watch: Watch) -> int | str:
        """Start a command line and return its exit status; or why it hung, after which it was
        ended.

        Raises
        ------
        OSError
            If there is no such command.
        """
        # srun goes on without a rank that has died, unless it is told to end.
        env = {"SLURM_KILL_BAD_EXIT": "1", **os.environ, MARK: self._name}
        self._launcher = subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        if self.signal is not None:  # it came before there was a launcher
            self._launcher.send_signal(self._passed_as or self.signal)
        began = time.monotonic()
        while True:
            starting = time.monotonic() - began < STARTING
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._launcher.wait(FIRST_LOOKS if starting else LOOK)
                return 128 - status if status < 0 else status
            if why := watch.hangs(*self._ranks()):
                self._launcher.kill()
                self._launcher.wait()
                return why

    def clean(self) -> int:
        """End what is left of the job on this machine; return how many processes had to be
        killed.
        """
        deadline, killed = time.monotonic() + GRACE, set[int]()
        while (left := self._left()) and time.monotonic() < deadline + GRACE:
            if time.monotonic() > deadline:
                killed |= {*left}
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(PAUSE)
        return len(killed)

    def _ranks(self) -> tuple[set[bytes], int]:
        """Return the ranks of the job that live on this machine, ``PMI_RANK=3``, and how many the
        launcher has started on it, 0 if it does not say.
        """
        ranks, started = set[bytes](), 0
        for _, words in self._found():
            given = dict(word.split(b"=", 1) for word in words if b"=" in word)
            variable = next((name for name in _RANKS if name in given), None)
            if variable is not None:
                ranks.add(variable + b"=" + given[variable])
                started = max(started, *(int(given.get(name, 0)) for name in _LOCAL_SIZES))
        return ranks, started

    def _left(self) -> list[int]:
        return [pid for pid, _ in self._found()]

    def _found(self) -> Iterator[tuple[int, list[bytes]]]:
        """Return the processes with the variable of the job, and their variables."""
        mark = f"{MARK}={self._name}".encode()
        for name in glob.glob("/proc/[0-9]*/environ"):
            with contextlib.suppress(OSError), open(name, "rb") as file:
                words = file.read().split(b"\0")
                if mark in words:
                    yield int(name.split("/")[2]), words

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        at_once = number == signal.SIGINT and self.signal is not None
        self.signal = signal.Signals(number)
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.send_signal(number if at_once else self._passed_as or number)
