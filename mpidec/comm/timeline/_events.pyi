"""Events of a timeline: see `_events.c`; what does the same without a compiler has the types."""

from .events_in_python import Log as Log, clock as clock
