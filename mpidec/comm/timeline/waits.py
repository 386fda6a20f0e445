"""Analysis of who waited for whom, from the events of all ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
# Microseconds by which the clocks of two nodes may differ.
CLOCKS = 100.0


@dataclass(frozen=True)
class Wait:
    """A wait of one rank, until another one had come to the same call or had released a mutex.

    Attributes
    ----------
    rank, late : int
        Who waited, and for whom.
    begin, until : float
        Microseconds.
    event : mapping
        In which.
    cause : mapping
        What the other rank began, or ended, at last.
    """

    rank: int
    late: int
    begin: float
    until: float
    event: Event
    cause: Event


def waits(events: Iterable[Event]) -> list[Wait]:
    """All waits, in the order of their ends.

    A call waits for the ranks that it names ("waits"; all of them if that is null): from its begin
    until the last of them has begun the same one, but not beyond its own end.  A call that has
    ended before another rank began it (the root of a broadcast) has not waited for that one.
    """
    calls: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    mutexes: list[Event] = []
    for event in events:
        about = event.get("args", {})
        if event["ph"] == "X" and about.get("role") == "mutex":
            mutexes.append(event)
        elif event["ph"] == "X" and "waits" in about:
            key = about.get("key", event["name"])
            calls[about["net"], key, about["number"]].append(event)
    found = _of_mutexes(mutexes)
    for same in calls.values():
        found += _of_call(same)
    return sorted(found, key=lambda wait: wait.until)


def _of_call(same: Sequence[Event]) -> Iterator[Wait]:
    """Waits for those who began the same call later."""
    # The first event of each rank in the call; ranks that began after this one's end did not delay
    # it, except within the error of the clocks.
    begun: dict[int, Event] = {}
    for event in sorted(same, key=_begin):
        begun.setdefault(event["pid"], event)
    for event in same:
        if event["args"].get("role") == "start":
            continue
        named = event["args"]["waits"]
        others = [
            begun[rank]
            for rank in (begun if named is None else named)
            if rank in begun
            and rank != event["pid"]
            and _begin(begun[rank]) <= _end(event) + CLOCKS
        ]
        last = max(others, key=_begin, default=event)
        until = min(last["ts"], _end(event))
        if until > event["ts"]:
            yield Wait(event["pid"], last["pid"], event["ts"], until, event, last)


def _of_mutexes(events: Sequence[Event]) -> list[Wait]:
    """Waits for those who held one of the same mutexes, and released it last."""
    held: dict[tuple[int, int], list[Event]] = defaultdict(list)
    asked: list[Event] = []
    for event in sorted(events, key=_begin):
        if event["name"].lower().endswith("wait"):
            asked.append(event)
        else:
            for mutex in event["args"]["mutexes"]:
                held[event["args"]["net"], mutex].append(event)
    found = []
    for event in asked:
        end = event["ts"] + event["dur"]
        holders = []
        for mutex in event["args"]["mutexes"]:
            spans = held[event["args"]["net"], mutex]
            place = bisect_left(spans, end, key=_begin) - 1
            while place >= 0 and event["ts"] < _end(spans[place]):
                if spans[place]["pid"] != event["pid"]:
                    holders.append(spans[place])
                    break
                place -= 1
        if holders:
            last = max(holders, key=_end)
            until = min(end, _end(last))
            found.append(Wait(event["pid"], last["pid"], event["ts"], until, event, last))
    return found


def _begin(event: Event) -> float:
    return float(event["ts"])


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


@dataclass(frozen=True)
class Waited:
    """Total waiting times of one rank.

    Attributes
    ----------
    rank : int
    seconds : float
        From its first event to its last.
    waited : float
        Seconds of them in which any thread waited.
    whom : dict {rank: float}
        Seconds of all threads for each of the others, most first.
    caused : float
        Seconds that the others waited for this rank.
    """

    rank: int
    seconds: float
    waited: float
    whom: Mapping[int, float]
    caused: float


def stragglers(events: Sequence[Event]) -> list[Waited]:
    """Return what each rank waited, and for whom."""
    begin: dict[int, float] = {}
    end: dict[int, float] = {}
    for event in events:
        if event["ph"] == "X":
            rank = event["pid"]
            begin[rank] = min(begin.get(rank, event["ts"]), event["ts"])
            end[rank] = max(end.get(rank, 0.0), event["ts"] + event["dur"])
    whom: dict[int, dict[int, float]] = {rank: defaultdict(float) for rank in begin}
    waited, until = dict.fromkeys(begin, 0.0), dict(begin)
    for wait in sorted(waits(events), key=lambda wait: wait.begin):
        whom[wait.rank][wait.late] += (wait.until - wait.begin) / 1e6
        # threads that wait at the same time wait once
        waited[wait.rank] += max(wait.until - max(wait.begin, until[wait.rank]), 0.0) / 1e6
        until[wait.rank] = max(until[wait.rank], wait.until)
    return [
        Waited(
            rank,
            (end[rank] - begin[rank]) / 1e6,
            waited[rank],
            dict(sorted(whom[rank].items(), key=lambda item: -item[1])),
            sum(whom[other].get(rank, 0.0) for other in whom),
        )
        for rank in sorted(begin)
    ]
