"""Asynchronous runs: events of agents at their own pace, simulated in one process."""

from .result import AsyncResult as AsyncResult
from .simulation import simulate as simulate
