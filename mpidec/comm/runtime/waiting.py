"""Progress of all communication of this process, and waits with a time-out.

Mixings in shared memory and checked messages only progress when Python polls them.  Each
network registers a `ProgressEngine`; every wait of the package calls `progress`, so that nothing
that was started stands still while its rank waits for something else.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .arena import shared
from .cores import cores
from .job import job

_TURNS = 100  # tests before a clock is read
# Seconds before the first status query, and at most between two.
_FIRST, _RARELY = 0.1, 10.0
# Seconds of waiting after which a rank sleeps between two tests, and for which part of the time
# waited so far: on one node, and between nodes, where the network needs the processor, too.
_ON_NODE, _BETWEEN_NODES = (0.02, 0.01), (1e-3, 0.03)
_ABANDONED: list[object] = []
# Others come from signal handlers.
OWN_ERRORS = (
    TypeError,
    ValueError,
    RuntimeError,
    OSError,
    MemoryError,
)


class _Guard:
    """Re-entrant lock that knows the thread of its last call, where there is no compiled one."""

    def __init__(self) -> None:
        self._lock, self.thread, self._depth, self._polling = threading.Lock(), 0, 0, False

    def acquire(self, polling: bool) -> int:
        """1 if this thread may go on, 0 if another one is in, -1 if that one only polls."""
        with self._lock:
            if self._depth and self.thread != threading.get_ident():
                return -1 if self._polling else 0
            if not self._depth:
                self._polling = polling
            self.thread = threading.get_ident()
            self._depth += 1
            return 1

    def release(self) -> None:
        with self._lock:
            self._depth -= 1


class ProgressEngine:
    """All communication in progress on one network.

    Notes
    -----
    One thread at a time may be in a call of a network; `with engine:` around a call refuses a
    second one.

    Attributes
    ----------
    run : threading.RLock
        Held by the thread of a run, which makes many calls.
    """

    def __init__(self) -> None:
        self.lock: Any = _Guard() if shared is None else shared.Guard()
        self.lock.acquire(False)  # from now on it knows its thread
        self.lock.release()
        self.run = threading.RLock()
        self._polls: list[Callable[[], None]] = []
        self._on_interrupt: list[Callable[[str], None]] = []
        self._polling = self._closed = False
        _ENGINES.add(self)

    def add(self, poll: Callable[[], None]) -> None:
        """Let `poll()`, which must not raise or wait, be called in every wait of the process."""
        self._polls.append(poll)

    def remove(self, poll: Callable[[], None]) -> None:
        """Call `poll()` no longer."""
        if poll in self._polls:
            self._polls.remove(poll)

    def on_interrupt(self, refuse: Callable[[str], None]) -> None:
        """Call `refuse(reason)` when an exception from outside (Ctrl-C, a signal handler) has ended
        a call: this rank may be one operation ahead of or behind the others."""
        self._on_interrupt.append(refuse)

    def interrupt(self, reason: str) -> None:
        """Have further operations refused."""
        for refuse in self._on_interrupt:
            refuse(reason)

    def poll(self) -> None:
        """Make progress, unless the network belongs to another live thread (that of its last
        call), or is being polled.
        """
        if (
            self._polls
            and not self._polling
            and (self.lock.thread == threading.get_ident() or not _lives(self.lock.thread))
            and self.lock.acquire(True) > 0
        ):
            self._polling = True
            try:
                for poll in self._polls:
                    poll()
            finally:
                self._polling = False
                self.lock.release()

    def close(self) -> None:
        """Forget all polls, and refuse further calls."""
        self._closed = True
        self._polls.clear()
        _ENGINES.discard(self)

    def __enter__(self) -> None:
        if _FORKED:
            raise RuntimeError(
                "this process is a forked child, and the network belongs to its parent: mix in the "
                "parent only"
            )
        if self._closed:
            raise RuntimeError("the network is closed: make a new one")
        while (
            entered := self.lock.acquire(False)
        ) < 0:  # another thread polls, and does not wait for anything
            time.sleep(1e-4)
        if not entered:
            raise RuntimeError(
                "another thread is in a call of this network: one thread at a time may use a "
                "network, give each "
                "thread a network of its own"
            )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.lock.release()
        if kind is not None and not issubclass(kind, OWN_ERRORS):
            self.interrupt(kind.__name__)


def _lives(thread: int) -> bool:
    """Return whether a thread has not ended."""
    return thread in sys._current_frames()


_ENGINES: weakref.WeakSet[ProgressEngine] = weakref.WeakSet()
_FORKED: list[int] = []  # not empty in a forked child


def _in_child() -> None:
    _FORKED.append(os.getpid())
    _ENGINES.clear()


os.register_at_fork(after_in_child=_in_child)


def refuse_in_child(call: str) -> None:
    """Refuse a call in a forked child, which MPI does not know.

    Raises
    ------
    RuntimeError
    """
    if _FORKED and job().size > 1:
        raise RuntimeError(
            f"{call}: this process is a forked child, and MPI knows its parent only: communicate "
            "in "
            'the parent, or start the child with multiprocessing.get_context("spawn")'
        )


def progress() -> None:
    """Progress all communication of this process."""
    for engine in list(_ENGINES):
        engine.poll()


def _crowded() -> bool:
    """Return whether there are more ranks than cores on this host, as far as the launcher tells."""
    for variable in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable]) > len(cores())
    return True


CROWDED = _crowded()


def timeout() -> float:
    """Seconds that a rank waits for another one: `MPIDEC_TIMEOUT`, 60 by default, `inf` for
    ever.
    """
    text = os.environ.get("MPIDEC_TIMEOUT") or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(
            f"MPIDEC_TIMEOUT is {text!r}, expected a number of seconds > 0 (inf: no limit)"
        )
    return seconds


class WaitMonitor:
    """Status queries and the time-out of one wait, to be called in every turn of the wait.

    Parameters
    ----------
    what : str or callable
        What this rank waits for, or a function that returns it (in one line, or several complete
        ones).
    ask : callable, optional
        Asks the other ranks where they are, and raises what they reply.
    """

    reports = 0  # that have arrived in this process, and end waits
    pace = _ON_NODE

    def __init__(self, what: str | Callable[[], str], ask: Callable[[], None] | None = None):
        self._what, self._ask = what, ask
        self._began = time.monotonic()
        self._next, self._reports = _FIRST, WaitMonitor.reports

    def poll(self) -> float:
        """Query the other ranks when due, abort after the time-out; return the seconds waited."""
        waited = time.monotonic() - self._began
        if waited >= self._next or self._reports != WaitMonitor.reports:
            limit = timeout()
            if waited > limit:
                expire(self._what, waited)
            self._reports = WaitMonitor.reports
            self._next = min(1.5 * waited + _FIRST, waited + _RARELY, limit)
            if self._ask is not None:
                self._ask()
        return waited


def wait_until(
    test: Callable[[], bool], what: str | Callable[[], str], ask: Callable[[], None] | None = None
) -> None:
    """Return when `test()` is true; make progress meanwhile, and let other processes run.

    Raises
    ------
    Exception
        What `test` or `ask` raises.  What MPI may still read or write is kept then.
    """
    try:
        # Most waits are short: no monitor, and no reading of the clock, for these.
        for _ in range(_TURNS):
            if test():
                return
            os.sched_yield()
        monitor = WaitMonitor(what, ask)
        briefly, part = monitor.pace
        while not test():
            progress()
            waited = monitor.poll()
            if waited < briefly:
                os.sched_yield()
            else:
                time.sleep(min(1e-3, part * waited))
    except BaseException:
        abandon(test)
        raise


def wait_for_other_nodes() -> None:
    """Let waits sleep early from now on: a network of this process spans several nodes."""
    WaitMonitor.pace = _BETWEEN_NODES


def wake_waits() -> None:
    """Let all waits of the process ask in their next turn: a report has arrived."""
    WaitMonitor.reports += 1


def abandon(anything: object) -> None:
    """Keep buffers alive that MPI may still read or write although no caller waits for them."""
    _ABANDONED.append(anything)


def ranks(some: Sequence[int]) -> str:
    """Describe some ranks, for messages."""
    return f"rank{'s' * (len(some) != 1)} {', '.join(map(str, some))}"


def expire(what: str | Callable[[], str], waited: float) -> NoReturn:
    """Report what this rank has waited for, and end the job."""
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
    text = what if isinstance(what, str) else what()
    if "\n" not in text:
        text = (
            f"[rank {job().rank}] mpidec: waited {timeout():g} s, since {since}, for "
            f"{text}, and ends the job "
            "(MPIDEC_TIMEOUT=SECONDS allows more)"
        )
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()
    # Let the others say what they wait for.
    time.sleep(0.5)
    job().Abort(1)
    raise SystemExit(1)
