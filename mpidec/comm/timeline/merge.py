"""One timeline of the files of all ranks, with aligned clocks, and arrows of who waited for
whom.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from .file import TimelineFile
from .waits import Event, Waited, stragglers, waits

# Microseconds of waiting that get no arrow.
SHORT = 5.0


def read(text: str) -> list[dict[str, Any]]:
    """Return the events of one rank; of a job that was killed, all complete ones."""
    events = []
    for line in text.splitlines():
        try:
            event = json.loads(line.strip().rstrip(","))
        except ValueError:
            # A bracket, or the line at which the job was killed.
            continue
        if isinstance(event, dict) and {"ph", "name", "pid"} <= event.keys():
            events.append(event)
    return events


def files(prefix: str) -> list[str]:
    """Return the files `<prefix><rank>.json`, in the order of the ranks."""
    pattern = re.compile(re.escape(os.path.basename(prefix)) + r"(\d+)\.json")
    folder = os.path.dirname(prefix)
    ranks = {
        int(match[1]): path
        for path in glob.glob(os.path.join(glob.escape(folder), "*.json"))
        if (match := pattern.fullmatch(os.path.basename(path)))
    }
    return [ranks[rank] for rank in sorted(ranks)]


def aligned(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Return the events of all ranks by the clock of rank 0, from 0 on, in their order."""
    about, spans = [], []
    for text in texts:
        offset, own = 0.0, read(text)
        for event in own:
            if event["ph"] == "M":
                offset = event["args"]["offset"] if event["name"] == "clock" else offset
                about += [event] * (event["name"] not in ("clock", "end"))
        for event in own:
            if event["ph"] != "M":
                event["ts"] += offset
                spans.append(event)
    zero = min((event["ts"] for event in spans), default=0.0)
    for event in spans:
        event["ts"] = round(event["ts"] - zero, 3)
    return [*about, *sorted(spans, key=lambda event: (event["ts"], -event["dur"]))]


def arrows(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an arrow for each wait, from what the late rank began to the end of the wait; both
    ends lie within an event.
    """
    made: list[dict[str, Any]] = []
    for number, wait in enumerate(
        each for each in waits(events) if each.until - each.begin > SHORT
    ):
        common = {"name": "waited for", "cat": "wait", "id": number}
        begin, end = _within(wait.cause, wait.until), _within(wait.event, wait.until)
        if begin <= end:  # else the clocks differ too much
            made.append({"ph": "s", **common, **_place(wait.cause, begin)})
            made.append({"ph": "f", "bp": "e", **common, **_place(wait.event, end)})
    return made


def _within(event: Event, time: float) -> float:
    """Return the time within an event that is nearest to another one; its end belongs to the next
    event.
    """
    inside = min(time, event["ts"] + max(event["dur"] - 0.001, 0.0))
    return round(float(max(event["ts"], inside)), 3)


def _place(event: Event, time: float) -> dict[str, object]:
    return {"pid": event["pid"], "tid": event["tid"], "ts": time}


def merge(texts: Iterable[str], path: str | os.PathLike[str]) -> list[Waited]:
    """Write one file of the texts of those of all ranks; what each rank waited.

    Raises
    ------
    OSError
        The file cannot be written; its name is in the error.
    """
    events = aligned(texts)
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": [*events, *arrows(events)], "displayTimeUnit": "ms"}, file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    return stragglers(events)


class Gathers(Protocol):
    """A communicator of mpi4py."""

    def gather(self, text: str, /) -> list[str] | None: ...


def prefix_of(path: str | os.PathLike[str]) -> str:
    """Return where the files of the ranks lie until they are merged into `path`: run.json is made
    of run.0.json, run.1.json, ...

    Examples
    --------
    >>> prefix_of("runs/a.json")
    'runs/a.'
    """
    return os.path.splitext(os.fspath(path))[0] + "."


def gathered(
    comm: Gathers, file: TimelineFile, path: str | os.PathLike[str]
) -> list[Waited] | None:
    """Merge the files of all ranks into one, that rank 0 writes; what each rank waited, there.
    Collective.
    """
    file.flush()
    try:
        with open(file.path, encoding="utf-8") as written:
            text = written.read()
    except OSError:
        text = ""  # deleted meanwhile
    texts = comm.gather(text)
    return None if texts is None else merge(texts, path)


def table(waited: Sequence[Waited]) -> list[list[str]]:
    """Return the table of stragglers: rank, share of its time that it waited, for whom most, and
    how long others waited for it.
    """
    rows = [["rank", "waited", "most for", "others waited for it"]]
    for each in waited:
        share = each.waited / each.seconds if each.seconds else 0.0
        late, most = next(iter(each.whom.items()), (None, 0.0))
        whom = "" if late is None else f"rank {late} ({most / each.waited:.0%})"
        rows.append([str(each.rank), f"{share:.1%}", whom, f"{each.caused:.3g} s"])
    return rows
