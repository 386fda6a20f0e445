"""Events in time: Poisson clocks of the agents, or a given table; and the random numbers that
belong to agents.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._validation import is_number, number, takes
from ...topology import Topology
from ..arguments import Delay

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Gradient = Callable[[int, np.ndarray, int], np.ndarray]  # gradient(i, x, k)
DelayOf = Callable[[int, int], float]
LossOf = Callable[[int], bool]
# time, kind, i, j: an event of agent i (a gradient, or a wake-up), or of the agents i and j (an
# averaging); a plain tuple, since making a named one costs a fiftieth of an event
Event = tuple[float, int, int, int]

GRADIENT, AVERAGING = 0, 1  # kinds of events
# Purposes of random numbers: those of one agent never overlap.
WAKE, MEET, CHOICE, DELAY, DROP = range(5)
BLOCK = 64


def generator(seed: int, agent: int, purpose: int) -> np.random.Generator:
    """Return the random numbers of an agent for a purpose, one after the other, whatever the other
    agents do.
    """
    return np.random.default_rng([seed, agent, purpose])


def intervals(seed: int, agent: int, purpose: int, rate: float) -> Iterator[float]:
    """Intervals of a Poisson clock."""
    draw = generator(seed, agent, purpose)
    while True:
        yield from (draw.standard_exponential(BLOCK) / rate).tolist()


def uniforms(seed: int, agent: int, purpose: int) -> Iterator[float]:
    """Uniform numbers in [0, 1)."""
    draw = generator(seed, agent, purpose)
    while True:
        yield from draw.random(BLOCK).tolist()


def ticking(clocks: Sequence[tuple[int, Iterator[float]]]) -> Iterator[tuple[float, int]]:
    """Time and name of each tick of many clocks, given as (name, intervals), in the order of
    time.
    """
    of = dict(clocks)
    heap = [(next(clock), name) for name, clock in clocks]
    heapq.heapify(heap)
    while heap:
        t, name = heap[0]
        yield t, name
        heapq.heapreplace(heap, (t + next(of[name]), name))


def meetings(seed: int, rates: np.ndarray, edges: csr_array | None = None) -> Iterator[Event]:
    """Gradients, or wake-ups, of agents by Poisson clocks of the given `rates`, and averagings on
    edges.

    Parameters
    ----------
    edges : sparse array (n, n), optional
        Rates of averagings of the edges.  Each agent has a clock with half the sum of the rates of
        its edges, and chooses the edge by its share.
    """
    from scipy.sparse import csr_array

    n = len(rates)
    edges = csr_array((n, n)) if edges is None else edges
    total = np.asarray(edges.sum(axis=1)).ravel().tolist()
    clocks = [
        (i, intervals(seed, i, WAKE, rate)) for i, rate in enumerate(rates.tolist()) if rate > 0
    ]
    clocks += [
        (n + i, intervals(seed, i, MEET, rate / 2)) for i, rate in enumerate(total) if rate > 0
    ]
    choices = [uniforms(seed, i, CHOICE) for i in range(n)]
    neighbors = [edges.indices[edges.indptr[i] : edges.indptr[i + 1]].tolist() for i in range(n)]
    shares = [
        np.cumsum(edges.data[edges.indptr[i] : edges.indptr[i + 1]])[:-1].tolist() for i in range(n)
    ]
    for t, name in ticking(clocks):
        if name < n:
            yield t, GRADIENT, name, name
        else:
            i = name - n
            yield (t, AVERAGING, i, neighbors[i][bisect(shares[i], next(choices[i]) * total[i])])


def replayed(table: np.ndarray) -> Iterator[Event]:
    """Events of a checked table."""
    return zip(*(table[name].tolist() for name in ("time", "kind", "i", "j")))


def checked(
    events: np.ndarray, topology: Topology, kinds: Sequence[int], solver: str
) -> np.ndarray:
    """Return the table of events if the agents of `topology` can have them.

    Raises
    ------
    TypeError, ValueError
        It is no structured array with the fields time, kind, i and j, or an event is impossible.

    Examples
    --------
    >>> import mpidec
    >>> table = np.array([(0.5, 1, 0, 2)], [("time", float), ("kind", int), ("i", int), ("j", int)])
    >>> checked(table, mpidec.topology.ring(4), (0, 1), "A2CiD2")
    Traceback (most recent call last):
    ...
    ValueError: events[0] averages the agents 0 and 2, which are no neighbours in ring
    """
    names = ("time", "kind", "i", "j")
    given = (
        (events.dtype.names or ()) if isinstance(events, np.ndarray) and events.ndim == 1 else ()
    )
    if not set(names) <= set(given):
        fields = f" with the fields {', '.join(given)}" if given else ""
        raise TypeError(
            f"events is a {type(events).__name__}{fields}, expected a structured array of one "
            "dimension with the "
            "fields time, kind, i and j"
        )
    if np.iscomplexobj(events["time"]):
        raise TypeError("events has complex times, expected real numbers")
    times, n = np.asarray(events["time"], float), topology.n

    def refuse(wrong: np.ndarray, text: Callable[[Any], str]) -> None:
        if wrong.any():
            k = int(np.argmax(wrong))
            raise ValueError(f"events[{k}] {text(events[k])}")

    refuse(
        ~np.isfinite(times) | (times < 0),
        lambda e: f"has the time {e['time']}, expected a finite number >= 0",
    )
    refuse(
        np.r_[False, np.diff(times) < 0],
        lambda e: f"has the time {e['time']}, less than the event before: sort them by time",
    )
    expected = " or ".join(
        f"{kind} ({('gradient', 'averaging')[kind]})" if len(kinds) > 1 else "0 (wake-up)"
        for kind in kinds
    )
    refuse(
        ~np.isin(events["kind"], kinds),
        lambda e: f"has the kind {e['kind']}, expected {expected} for {solver}",
    )

    def unknown_agent(name: str) -> Callable[[Any], str]:
        return lambda e: f"has {name} = {e[name]}, expected an agent in 0 .. {n - 1}"

    averaging = events["kind"] == AVERAGING
    for name in ("i", "j"):
        wrong = ((events[name] < 0) | (events[name] >= n)) & (averaging | (name == "i"))
        refuse(wrong, unknown_agent(name))
    W, apart = topology.W, np.zeros(len(events), bool)
    i, j = events["i"][averaging], events["j"][averaging]
    apart[averaging] = (i == j) | (np.asarray(W[i, j]).ravel() == 0 if len(i) else False)
    refuse(
        apart,
        lambda e: (
            f"averages the agents {e['i']} and {e['j']}, which are no neighbours in {topology.name}"
        ),
    )
    result: np.ndarray = events
    return result


# A checkpoint stores the generators of delays, as a delay of the user's takes any number of draws
# from them, but of losses only how many numbers were drawn: each takes one.
class Delays:
    """Random delays, `delay(rng, i, j)`, with random numbers of each sender's own."""

    def __init__(self, delay: Callable[[np.random.Generator, int, int], float], seed: int):
        self._delay, self._seed = delay, seed
        self._of: dict[int, np.random.Generator] = {}

    def __call__(self, i: int, j: int) -> float:
        if i not in self._of:
            self._of[i] = generator(self._seed, i, DELAY)
        return self._delay(self._of[i], i, j)

    def state(self) -> list[Any]:
        """Return the states of the generators, for JSON."""
        return [[i, rng.bit_generator.state] for i, rng in self._of.items()]

    def recall(self, state: list[Any]) -> None:
        """Continue from what `state` has returned."""
        for i, stored in state:
            self._of[i] = generator(self._seed, i, DELAY)
            self._of[i].bit_generator.state = stored


class Losses:
    """Whether the next message of an agent is lost, with probability `drop`."""

    def __init__(self, drop: float, seed: int):
        self._drop = drop
        self._of = cache(lambda i: uniforms(seed, i, DROP))
        self._drawn: dict[int, int] = defaultdict(int)

    def __call__(self, i: int) -> bool:
        self._drawn[i] += 1
        return next(self._of(i)) < self._drop

    def state(self) -> list[Any]:
        """Return how many numbers each agent has drawn, for JSON."""
        return list(self._drawn.items())

    def recall(self, state: list[Any]) -> None:
        """Continue from what `state` has returned."""
        for i, drawn in state:
            self._drawn[i] = drawn
            next(islice(self._of(i), drawn, drawn), None)


def delays(delay: Delay | None, seed: int) -> DelayOf | None:
    """Return the function (i, j) -> delay of the next message from i to j; None if there are no
    delays.

    Parameters
    ----------
    delay : float, (low, high), callable or None
        A callable is given the random numbers of the sender, i and j.

    Examples
    --------
    >>> delays(0.5, 0)(0, 1), delays(None, 0)
    (0.5, None)
    """
    if delay is None or (isinstance(delay, (int, float)) and delay == 0):
        return None
    if callable(delay):
        takes(delay, "delay", "rng", "i", "j")

        def checked_delay(rng: np.random.Generator, i: int, j: int) -> float:
            value = delay(rng, i, j)
            if not is_number(value) or not 0 <= value < np.inf:
                raise ValueError(
                    f"delay(rng, {i}, {j}) returned {value!r}, expected a finite number >= 0"
                )
            return float(value)

        return Delays(checked_delay, seed)
    numbers = delay if isinstance(delay, (tuple, list)) else (delay, delay)
    if (
        len(numbers) != 2
        or not all(is_number(v) and np.isfinite(v) for v in numbers)
        or not 0 <= numbers[0] <= numbers[1]
    ):
        raise ValueError(
            f"delay is {delay!r}, expected a number >= 0, (low, high), or a function of (rng, i, j)"
        )
    low, high = map(float, numbers)
    if low == high:
        return lambda i, j: low
    return Delays(lambda rng, i, j: rng.uniform(low, high), seed)


def losses(drop: float, seed: int) -> LossOf | None:
    """Return the function i -> whether the next message of agent i is lost; None if none is.

    Examples
    --------
    >>> losses(0.0, 0) is None
    True
    """
    number(drop, "drop", least=0, below=1)
    if drop == 0:
        return None
    return Losses(drop, seed)
