"""Forward, backward, update, mixing and waiting of a training run in the timeline of its
network.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..comm.mixing import Network
from ..comm.runtime import job, on_all_ranks
from ..comm.timeline import TimelineFile, clock, gathered, prefix_of


class TrainingEvents:
    """Events of one rank; `write` collects those of all ranks.

    Parameters
    ----------
    net : Network
    model : torch.nn.Module
        Its forward passes are events, and so is the time from the end of one to what the optimizer
        does next: loss and backward.
    trace : path, optional
        Where `write` puts the events of all ranks together; until then they are in files beside it,
        unless the network has a timeline of its own.
    owner : object
        If it ends before the events are written, a line says so.
    """

    def __init__(
        self,
        net: Network,
        model: torch.nn.Module,
        trace: str | os.PathLike[str] | None,
        owner: object,
    ):
        timeline, self._trace = net.context.timeline, trace
        self._own = timeline is None
        self._file = (
            TimelineFile.of(prefix_of(trace or "mpidec"), job().rank)
            if timeline is None
            else timeline.file
        )
        self._kinds = {
            name: self._file.kind(name, "mix" if name in ("mix", "wait") else "compute")
            for name in ("forward", "backward", "update", "mix", "wait")
        }
        self._forward = self._end = 0
        self._hooks = [
            model.register_forward_pre_hook(self._before),
            model.register_forward_hook(self._after),
        ]
        self._unwritten = weakref.finalize(
            owner,
            sys.stderr.write,
            f"mpidec: the timeline {trace} is not written: call close(), or use the optimizer in a "
            "with statement\n",
        )
        if trace is None or net.rank:
            self._unwritten.detach()

    def _before(self, *_: Any) -> None:
        self._forward = clock()

    def _after(self, *_: Any) -> None:
        end = clock()
        self._add("forward", self._forward, end)
        self._end = end if torch.is_grad_enabled() else 0

    def _add(self, name: str, begin: int, end: int) -> None:
        self._file.add(self._kinds[name], begin, end)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """An event from here to the end of the context."""
        begin = clock()
        if self._end:
            self._add("backward", self._end, begin)
        self._end = 0
        yield
        self._add(name, begin, clock())

    def write(self, net: Network) -> None:
        """Write the events of all ranks to one file, on rank 0; collective."""
        for hook in self._hooks:
            hook.remove()
        self._unwritten.detach()
        if self._trace is not None:
            with on_all_ranks(net):
                gathered(net.comm, self._file, self._trace)
        if self._own:
            self._file.remove()
