"""The graphs and schedules of `common.topology_util`."""

from .common.topology_util import *  # noqa: F403
