"""Departures: buckets leave in their order, each as soon as its gradients are complete."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..comm.mixing import Network
from ..comm.runtime import MPI, GroupComm, died, living, progress
from .rows import Bucket

# Seconds between two calls by which messages progress: short against a network's latency.
_TURN = 2e-3
_NEVER_SENT = 32767  # the largest tag that every MPI has: a message that is found ends the call
# Steps for which nothing leaves early after gradients have changed: at first, and at most.
_FIRST_REST, _LONGEST_REST = 8, 1024


class Departures:
    """The order in which the buckets of a step leave: during the backward pass as far as their
    gradients are complete, the others in `finish`.

    The number of backward passes of a step is the largest of the steps so far, for each parameter;
    in the first step nothing leaves early.

    Parameters
    ----------
    buckets : list of Bucket
    leave : method (int)
        Sends a bucket.

    Attributes
    ----------
    left : int
        Buckets that have left in this step: the first ones.
    paused : bool
        Whether gradients are not those of a step.
    """

    def __init__(self, buckets: Sequence[Bucket], leave: Callable[[int], None]):
        self._buckets, self._method = buckets, weakref.WeakMethod(leave)
        self._place = {id(p): i for i, bucket in enumerate(buckets) for _, p in bucket.named}
        self._passes = dict.fromkeys(self._place, 0)
        self._rest, self._resting = 0, 0
        self._lock = threading.RLock()  # devices differentiate in threads of their own
        self.paused = False
        this = weakref.ref(self)

        def ready(parameter: torch.Tensor) -> None:
            departures = this()
            if departures is not None:
                departures._ready(id(parameter))

        self._hooks = [
            p.register_post_accumulate_grad_hook(ready)
            for bucket in buckets
            for _, p in bucket.named
        ]
        self.left = 0
        self.forget()

    def begin(self, changed: bool = False) -> None:
        """Begin the next step, when all that has left has arrived.

        If gradients had `changed` since they left, on any rank, nothing leaves early in the next
        steps: in twice as many as after the last such step, if there was none without in between.
        """
        self._passes = {key: max(self._fired[key], most) for key, most in self._passes.items()}
        if changed:
            self._rest = self._resting = min(max(2 * self._rest, _FIRST_REST), _LONGEST_REST)
        elif self.lazy:
            self._resting -= 1
        else:
            self._rest = 0
        self.left, self.paused = 0, False
        self.forget()

    def forget(self) -> None:
        """Forget the gradients of this step, which are dropped."""
        self._fired = dict.fromkeys(self._place, 0)
        self._missing = [bucket.count for bucket in self._buckets]

    def _ready(self, key: int) -> None:
        with self._lock:
            if self.paused:
                return
            self._fired[key] += 1
            if self._fired[key] != self._passes[key]:
                return
            self._missing[self._place[key]] -= 1
            if not self.lazy:
                while self.left < len(self._buckets) and not self._missing[self.left]:
                    self._leave(self.left)
            if self.left:
                progress()

    def _leave(self, i: int) -> None:
        leave = self._method()
        self.left += 1
        if leave is not None:
            leave(i)

    def finish(self) -> int:
        """Let the buckets leave that have not; return how many had."""
        early = self.left
        while self.left < len(self._buckets):
            self._leave(self.left)
        return early

    @property
    def begun(self) -> bool:
        """Whether gradients of this step have come, so that buckets may have left on some rank."""
        return self.left > 0 or any(self._fired.values())

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context in which gradients are not those of a step."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    @property
    def lazy(self) -> bool:
        """Whether nothing leaves early in this step."""
        return self._resting > 0

    def close(self) -> None:
        """Let nothing leave any more."""
        _remove(self._hooks)


class Progress:
    """What lets messages between nodes progress while this process computes: a thread, where MPI
    has MPI_THREAD_MULTIPLE, between `start` and `stop`; otherwise hooks of the models.

    Parameters
    ----------
    net : Network
    models : list of torch.nn.Module
        Those that are differentiated while messages are under way; may be empty.
    advance : method ()
        Makes progress beyond that of MPI, at any time.
    """

    def __init__(
        self, net: Network, models: Sequence[torch.nn.Module], advance: Callable[[], None]
    ):
        self._wanted, ended = threading.Event(), threading.Event()
        self._end: Callable[[], object] = lambda: None
        if net.single_node or not models:
            return
        if isinstance(net.comm, GroupComm) or MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            hooks = _polled(models)
            self._end = weakref.finalize(self, lambda: _remove(hooks))
            return
        events = self._wanted, ended
        arguments = *events, weakref.WeakMethod(advance)
        thread = threading.Thread(target=_turn, args=arguments, daemon=True, name="mpidec-progress")
        thread.start()
        self._end = weakref.finalize(self, lambda: _stop(*events, thread))  # also before MPI ends

    def start(self) -> None:
        """Messages are under way, and this process computes."""
        self._wanted.set()

    def stop(self) -> None:
        """This process waits for messages itself, or none are under way."""
        self._wanted.clear()

    def close(self) -> None:
        """End the thread, or remove the hooks."""
        self._end()


def _turn(
    wanted: threading.Event, ended: threading.Event, method: weakref.WeakMethod[Callable[[], None]]
) -> None:
    while not ended.wait(_TURN):
        try:
            living().Iprobe(tag=_NEVER_SENT)
            advance = method()
            if advance is not None:
                advance()
        except Exception as error:
            if not died(error):
                raise
            return  # the thread of the step finds out, too
        del advance
        wanted.wait()


def _stop(wanted: threading.Event, ended: threading.Event, thread: threading.Thread) -> None:
    ended.set()
    wanted.set()
    thread.join()


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _polled(models: Iterable[torch.nn.Module]) -> list[Any]:
    """Hooks that let MPI progress messages between nodes while the models are evaluated and
    differentiated.
    """
    hooks: list[Any] = []
    for part in models:
        hooks += [
            module.register_forward_hook(lambda *_: progress())
            for module in part.modules()
            if not [*module.children()]
        ]
        hooks += [
            p.register_post_accumulate_grad_hook(lambda _: progress())
            for p in part.parameters()
            if p.requires_grad
        ]
    return hooks
