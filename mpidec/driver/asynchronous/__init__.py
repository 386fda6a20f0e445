"""Asynchronous runs: events of agents at their own pace, on ranks and in one process."""

from .result import AsyncResult as AsyncResult
