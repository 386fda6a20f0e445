"""Timelines: the events of each rank in files for Perfetto, and an analysis of waiting times."""

from .file import TimelineFile as TimelineFile, clock as clock
from .merge import (
    files as files,
    gathered as gathered,
    merge as merge,
    prefix_of as prefix_of,
    table as table,
)
from .timeline import Timeline as Timeline
from .waits import Waited as Waited
