"""Timeline of a training run, for chrome://tracing and Perfetto: a process per rank, a lane to compute and one to mix."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..comm.mixing import Network

_LANES = ("compute", "mix")
_LANE = {"forward": 0, "backward": 0, "update": 0, "mix": 1, "wait": 1}


class Timeline:
    """Spans of time of one rank; `write` collects those of all ranks.

    Parameters
    ----------
    model : torch.nn.Module
        Its forward passes are spans, and so is the time from the end of one to what the optimizer does next: loss and backward.
    """

    def __init__(self, net: Network, model: torch.nn.Module):
        self._spans: list[tuple[str, float, float]] = []
        self._forward = self._end = 0.0
        net.comm.Barrier()
        self._zero = time.perf_counter()
        self._hooks = [
            model.register_forward_pre_hook(self._before),
            model.register_forward_hook(self._after),
        ]

    def _before(self, *_: Any) -> None:
        self._forward = time.perf_counter()

    def _after(self, *_: Any) -> None:
        end = time.perf_counter()
        self._spans.append(("forward", self._forward, end))
        self._end = end if torch.is_grad_enabled() else 0.0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A span from here to the end of the context."""
        start = time.perf_counter()
        if self._end:
            self._spans.append(("backward", self._end, start))
        self._end = 0.0
        yield
        self._spans.append((name, start, time.perf_counter()))

    def write(self, net: Network, path: str | os.PathLike[str]) -> None:
        """Write the spans of all ranks to a file, on rank 0; collective."""
        for hook in self._hooks:
            hook.remove()
        spans = [(name, start - self._zero, end - start) for name, start, end in self._spans]
        gathered = net.comm.gather(spans)
        if gathered is None:
            return
        events: list[dict[str, Any]] = []
        for rank, some in enumerate(gathered):
            titles = [("process_name", 0, f"rank {rank}")]
            titles += [("thread_name", lane, name) for lane, name in enumerate(_LANES)]
            events += [
                {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": {"name": name}}
                for what, lane, name in titles
            ]
            events += [
                {
                    "ph": "X",
                    "name": name,
                    "cat": _LANES[_LANE[name]],
                    "pid": rank,
                    "tid": _LANE[name],
                    "ts": round(start * 1e6),
                    "dur": round((start + length) * 1e6) - round(start * 1e6),
                }
                for name, start, length in some
            ]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
