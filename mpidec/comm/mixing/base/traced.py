"""Networks, mixings and windows that record their calls in a timeline: subclasses used only
if a timeline is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

from ...runtime import Pending
from ...timeline import Timeline, clock

ObjectT = TypeVar("ObjectT")
# Whom a call waits for, and who takes part in it.
Near = tuple[Sequence[int] | None, str]
_TIMELINE = "_timeline"
_ALL: Near = None, ""
_OF_ALL = ("allreduce", "allgather", "broadcast", "barrier", "hierarchical_neighbor_allreduce")
_REDUCTIONS = "sum", "mean", "gather", "scatter"
_TRANSFERS = "put", "accumulate", "get"


class Traced(Pending):
    """A handle whose wait is an event."""

    def __init__(self, pending: Pending, waited: Callable[[int], None]):
        super().__init__(pending, pending.wait)
        self._waited: Callable[[int], None] | None = waited

    def wait(self) -> Any:
        """Complete the communication; see `Pending.wait`."""
        if self._waited is None:
            return super().wait()
        begin, waited, self._waited = clock(), self._waited, None
        try:
            return super().wait()
        finally:
            waited(begin)


def trace(made: ObjectT, kind: str, timeline: Timeline | None) -> ObjectT:
    """Make an object of a `kind` record its calls, if there is a timeline; return the object."""
    if timeline is not None:
        made.__class__ = _subclass(cast(Hashable, type(made)), kind)
        setattr(made, _TIMELINE, timeline)
    return made


def _of(traced: object) -> Timeline:
    timeline: Timeline = getattr(traced, _TIMELINE)
    return timeline


@lru_cache
def _subclass(cls: type, kind: str) -> type:
    methods = _METHODS[kind]()
    return type(
        cls.__name__, (cls,), {name: make(getattr(cls, name)) for name, make in methods.items()}
    )


Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def _call(op: str, near: Callable[..., Near]) -> Make:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: object, *args: Any, **kwargs: Any) -> Any:
            timeline = _of(self)
            result = timeline.call(
                op, *near(self, *args, **kwargs), function, self, *args, **kwargs
            )
            if op == "barrier":
                timeline.file.flush()
            return result

        return call

    return make


def _start(op: str, near: Callable[..., Near]) -> Make:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def start(self: object, *args: Any, **kwargs: Any) -> Pending:
            timeline = _of(self)
            pending, waited = timeline.start(
                op, *near(self, *args, **kwargs), function, self, *args, **kwargs
            )
            return pending if waited is None else Traced(pending, waited)

        return start

    return make


# What is read of the objects that are traced


class _Mixing(Protocol):
    _near: Sequence[int]


class _Calls(_Mixing, Protocol):
    rank: int


class _Window(Protocol):
    out_neighbors: Sequence[int]


# Networks


def _of_all(net: object, *args: object, **kwargs: object) -> Near:
    return _ALL


def _of_neighbors(place: int, name: str, dests: str) -> Callable[..., Near]:
    """Return those that the call names as sources, or the in-neighbours in the graph; all where
    only the receivers are named.
    """

    def near(net: _Calls, x: object, *args: object, **kwargs: object) -> Near:
        given = args[place] if len(args) > place else kwargs.get(name)
        sent = args[place + 1] if len(args) > place + 1 else kwargs.get(dests)
        if given is None and sent is not None:
            return _ALL
        return net._near if given is None else _listed(given), ""

    return near


def _of_exchange(net: object, messages: object, src_ranks: object = None) -> Near:
    return _listed(messages if src_ranks is None else src_ranks), ""


def _of_pair(net: _Calls, x: object, peer: object, *_: object, **__: object) -> Near:
    low, high = sorted([net.rank, peer]) if isinstance(peer, int) else (0, 0)
    return _listed([peer]), f" {low}-{high}"


def _listed(given: object) -> Sequence[int] | None:
    """Return the ranks that the user has named, unchecked."""
    if not isinstance(given, Iterable):
        return None
    return [rank for rank in given if isinstance(rank, int)]


def _of_networks() -> Mapping[str, Make]:
    return {op: _call(op, _of_all) for op in _REDUCTIONS}


def _of_local_calls() -> Mapping[str, Make]:
    near: dict[str, Callable[..., Near]] = dict.fromkeys(_OF_ALL, _of_all)
    near["neighbor_allreduce"] = _of_neighbors(1, "src_weights", "dst_weights")
    near["neighbor_allgather"] = _of_neighbors(0, "src_ranks", "dst_ranks")
    near["exchange"], near["pair_gossip"] = _of_exchange, _of_pair
    methods = {op: _call(op, near[op]) for op in near}
    methods |= {f"start_{op}": _start(op, near[op]) for op in near}
    # Else an event of the mixing.
    methods["_neighbor_allreduce"] = methods.pop("neighbor_allreduce")
    return methods


# Mixings


def _of_mixing(phase: _Mixing, *_: object, **__: object) -> Near:
    return phase._near, ""


def _of_phases() -> Mapping[str, Make]:
    return {
        "mix_any": _call("W(X)", _of_mixing),
        "start": _start("W(X)", _of_mixing),
        "fetch": _start("fetch", _of_mixing),
        "carry": _call("W.exchange(M)", _of_mixing),
    }


# Windows: nobody waits for anybody but in a mutex


def _alone(op: str) -> Make:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: object, *args: Any, **kwargs: Any) -> Any:
            timeline = _of(self)
            return timeline.call(f"win {op}", (), "", function, self, *args, **kwargs)

        return call

    return make


def _mutex(function: Callable[..., Any]) -> Callable[..., AbstractContextManager[None]]:
    @contextmanager
    def held(
        self: _Window, ranks: Iterable[int] | int | None = None, timeout: float | None = None
    ) -> Iterator[None]:
        timeline = _of(self)
        whose = (
            self.out_neighbors
            if ranks is None
            else [ranks]
            if isinstance(ranks, int)
            else list(ranks)
        )
        mutex, begin = function(self, whose, timeout), clock()
        about = {"role": "mutex", "mutexes": timeline.names(whose)}
        with mutex:
            timeline.alone("mutex wait", begin, **about)
            begin = clock()
            try:
                yield
            finally:
                timeline.alone("mutex", begin, **about)

    return held


def _of_windows() -> Mapping[str, Make]:
    methods = {op: _alone(op) for op in (*_TRANSFERS, "update", "flush")}
    methods |= {f"start_{op}": _alone(op) for op in _TRANSFERS}
    return methods | {"collect": _alone("collect"), "mutex": _mutex}


_METHODS: Mapping[str, Callable[[], Mapping[str, Make]]] = {
    "network": _of_networks,
    "local": _of_local_calls,
    "mixing": _of_phases,
    "window": _of_windows,
}
