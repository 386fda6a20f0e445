"""BlueFog's activities: events of the program in the timeline of `BLUEFOG_TIMELINE`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...comm.timeline import Timeline, clock
from ..session import current

logger = logging.getLogger("bluefog")
_begun: dict[
    tuple[str, int], list[tuple[str, int]]
] = {}  # by tensor and thread, the inner ones last
_warned = False


def _timeline(call: str) -> Timeline | None:
    """Return the timeline of the session; without one, a line the first time."""
    global _warned
    timeline = current(call).net.context.timeline
    if timeline is None and not _warned:
        _warned = True
        logger.error("bf.%s: there is no timeline: set BLUEFOG_TIMELINE before bf.init()", call)
    return timeline


def timeline_start_activity(tensor_name: str, activity_name: str) -> bool:
    """Begin an activity on a tensor, in this thread, alone or within another one; False without
    a timeline.
    """
    if _timeline("timeline_start_activity") is None:
        return False
    _begun.setdefault((tensor_name, threading.get_ident()), []).append((activity_name, clock()))
    return True


def timeline_end_activity(tensor_name: str) -> bool:
    """End the last activity begun on a tensor, and write it down; False without a timeline, or
    if none has begun.
    """
    timeline = _timeline("timeline_end_activity")
    if timeline is None:
        return False
    key = tensor_name, threading.get_ident()
    if key not in _begun:
        logger.error("bf.timeline_end_activity: no activity on %r has begun", tensor_name)
        return False
    activity, begin = _begun[key].pop()
    if not _begun[key]:
        del _begun[key]
    kind = timeline.file.kind(activity, "activity", tensor=tensor_name)
    timeline.file.add(kind, begin, clock())
    timeline.file.flush()
    return True


@contextmanager
def timeline_context(tensor_name: str, activity_name: str) -> Iterator[None]:
    """An activity on a tensor, from here to the end of the context."""
    timeline_start_activity(tensor_name, activity_name)
    try:
        yield
    finally:
        timeline_end_activity(tensor_name)
