"""The file of one rank: a list of Chrome trace events, one in a line, valid at any time except
for its last bracket.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading

try:
    import mpidec.comm.timeline._events as native
except ImportError:  # no compiler where the package was installed
    import mpidec.comm.timeline.events_in_python as native  # type: ignore[no-redef]

_OFTEN = 0.02  # seconds between two writes
_FILES: dict[str, TimelineFile] = {}

clock = native.clock  # in nanoseconds


class TimelineFile:
    """Events of this process, which a thread writes while the program goes on.

    Parameters
    ----------
    path : str
    rank : int
        Among all processes.
    offset : int
        Nanoseconds to be added to this clock for that of rank 0.

    Attributes
    ----------
    log : Log
        The events.
    writer : threading.Thread

    Notes
    -----
    The times in the file are microseconds of this node's monotonic clock; "clock" says how far it
    is from that of rank 0.  When the disk is full, a line says so, and the file ends there.
    """

    def __init__(self, path: str, rank: int, offset: int = 0):
        self.path, self.rank = path, rank
        self._process, self._closed = os.getpid(), False
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW  # not what a link leads to
        self.log = native.Log(os.open(path, flags, 0o666), rank)
        self.log.write(b"[\n")
        self._meta("process_name", name=f"rank {rank}")
        self._meta("process_sort_index", sort_index=rank)
        self._meta("thread_name", name="main thread")
        self.synchronize(offset)
        self.writer = threading.Thread(
            target=self._keep_writing, name="mpidec-timeline", daemon=True
        )
        self.writer.start()
        atexit.register(self.close)

    @classmethod
    def of(cls, prefix: str, rank: int) -> TimelineFile:
        """Return the file `<prefix><rank>.json`; the same object for all networks of this
        process.
        """
        path = os.path.abspath(f"{prefix}{rank}.json")
        file = _FILES.get(path)
        if file is None or file.closed or not os.path.exists(path):
            if file is not None:
                file.close()
            file = _FILES[path] = cls(path, rank)
        return file

    @property
    def closed(self) -> bool:
        """Whether nothing more is written, as in a forked child."""
        return self._closed or os.getpid() != self._process

    def synchronize(self, offset: int) -> None:
        """Store the offset of this clock from that of rank 0, in nanoseconds."""
        self._meta("clock", offset=offset / 1e3)

    def kind(self, name: str, category: str, counted: bool = False, /, **args: object) -> bytes:
        """Return a kind of events: all of their text but thread and times, and a number if they are
        counted.
        """
        about = {"ph": "X", "name": name, "cat": category, "pid": self.rank, "args": args}
        text = "," + json.dumps(about, separators=(",", ":"))[1:-2]
        return f'{text}{"," * bool(args)}"number":'.encode() if counted else text.encode()

    def add(self, kind: bytes, begin: int, end: int, number: int = -1) -> None:
        """One event, from `begin` to `end` of `clock()`."""
        self.log.add(kind, begin, end, number)

    def flush(self) -> None:
        """Write all events so far."""
        if not self.closed:
            self.log.write(b"")

    def close(self) -> None:
        """Write the rest, and the bracket that closes the list; safe to repeat."""
        if self.closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self.log.write(f"{self._described('end')}\n]\n".encode())
        self.log.stop()

    def remove(self) -> None:
        """Close the file, and delete it."""
        self.close()
        if os.path.exists(self.path):
            os.remove(self.path)

    def _meta(self, name: str, /, **args: object) -> None:
        self.log.write(f"{self._described(name, **args)},\n".encode())

    def _described(self, name: str, /, **args: object) -> str:
        return json.dumps({"ph": "M", "name": name, "pid": self.rank, "tid": 0, "args": args})

    def _keep_writing(self) -> None:
        self.log.keep_writing(_OFTEN)
        if self.log.error:
            print(
                f"mpidec: the timeline {self.path} ends here: {os.strerror(self.log.error)}",
                file=sys.stderr,
                flush=True,
            )


def _stop_in_child() -> None:
    for file in _FILES.values():
        file.log.stop()


os.register_at_fork(after_in_child=_stop_in_child)
