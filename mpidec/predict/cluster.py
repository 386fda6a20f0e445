"""Clusters: times of exchanges between nodes, from a calibration or of a typical network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from ..exceptions import ConfigError

BYTES = (8, 4096, 65536, 1 << 20, 1 << 24)
NEIGHBORS = (1, 2, 4)
# Seconds of latency, bits per second of a node's link, and seconds of a further message.
TYPICAL: Mapping[str, tuple[float, float, float]] = {
    "infiniband": (2e-6, 100e9, 5e-7),
    "ethernet": (25e-6, 25e9, 5e-6),
    "wan": (20e-3, 1e9, 1e-5),
}
RANGE = 64  # of sizes, between which the slope is taken
STEEP = 10  # times the slope of a link's rate: a jump
MEMORY = 5e-11  # seconds per byte of a weighted sum: 20 GB/s, one rank's share of a node's memory


@dataclass(frozen=True)
class Cluster:
    """Times T_k(s) of an exchange of s bytes with each of k neighbours on other nodes, one rank a
    node, piecewise linear in k and s.

    Attributes
    ----------
    name : str
    sizes : array, shape (S,)
        Bytes s, increasing.
    neighbors : array, shape (K,)
        Numbers k, increasing from 1.
    seconds : array, shape (K, S)
    memory : float
        Seconds per byte of a row in a weighted sum.
    sending : array, shape (S,), optional
        Times until a rank that only sends s bytes to another goes on; T_1 if not measured.
    shared : array, shape (2,), optional
        T_1(s) of all `per_node` ranks of each node at once, for the two largest sizes.
    per_node : int
    reductions : dict
        Seconds of MPI_Allreduce, shape (S,), by the nodes and the ranks on each, all of them first;
        empty if not measured.
    gradient : float, optional
        Seconds of the gradient of the calibration.
    """

    name: str
    sizes: np.ndarray
    neighbors: np.ndarray
    seconds: np.ndarray
    memory: float = MEMORY
    sending: np.ndarray | None = None
    shared: np.ndarray | None = None
    per_node: int = 1
    reductions: Mapping[tuple[int, int], np.ndarray] = field(default_factory=dict)
    gradient: float | None = None

    @property
    def seconds_per_byte(self) -> float:
        """Inverse rate of a node's link: the slope of T_1 up to the largest size, over a range in
        which the bytes take more time than what disturbs the measured times.
        """
        small = max(int(np.searchsorted(self.sizes, self.sizes[-1] / RANGE, "right")) - 1, 0)
        rise = self.seconds[0, -1] - self.seconds[0, small]
        return float(rise / (self.sizes[-1] - self.sizes[small]))

    def exchange(self, k: float, size: float) -> float:
        """Return T_k(s): 0 for k = 0, and beyond the measured k and s along the last line.

        Examples
        --------
        >>> net = Cluster("", np.array([0, 100]), np.array([1, 2]), np.array([[1.0, 3], [2, 6]]))
        >>> net.exchange(1, 50), net.exchange(2, 200), net.exchange(4, 100), net.exchange(0, 8)
        (2.0, 10.0, 12.0, 0.0)
        """
        if not k:
            return 0.0
        column = [_linear(size, self.sizes, row) for row in self.seconds]
        return _linear(k, self.neighbors, np.array(column))

    def stream(self, size: float, total: float, seconds_per_byte: float) -> float:
        """Return the time of `total` bytes in messages of `size` bytes, which are under way at the
        same time and share one link.

        The latency is that of one message of the largest size up to `size` from which on a message
        waits once more, for an acknowledgement or a handshake: the time jumps there.

        Examples
        --------
        >>> net = Cluster("", np.array([0, 8, 9, 1009]), np.array([1]), np.array([[1.0, 1, 3, 13]]))
        >>> net.stream(8, 16, 0.01), net.stream(1009, 1009, 0.01), net.stream(1009, 2009, 0.02)
        (1.16, 13.0, 43.0)
        """
        slopes = np.diff(self.seconds[0]) / np.diff(self.sizes)
        jumps = self.sizes[1:][slopes > STEEP * self.seconds_per_byte]
        least = min(max(jumps[jumps <= size], default=self.sizes[0]), size)
        return float(self.exchange(1, least) + max(total - least, 0) * seconds_per_byte)

    def hub(self, k: float, size: float) -> float:
        """Return the time of a rank that exchanges `size` bytes with each of k others, which have
        no more messages.  A further message adds the least that one adds to T_k of the smallest
        size: what more is shared with the other ends.
        """
        further = np.diff(self.seconds[:, 0]) / np.diff(self.neighbors)
        messages = max(k - 1, 0) * (further.min() if further.size else 0.0)
        return float(messages + self.stream(size, k * size, self.seconds_per_byte)) * (k > 0)

    def held(self, size: float) -> float:
        """Return the part of T_1(s) for which a rank that sends s bytes waits: 0 where it goes on
        at once (an eager message), 1 where the message is acknowledged.

        Examples
        --------
        >>> sizes, seconds = np.array([0, 100]), np.array([[1.0, 3]])
        >>> eager = Cluster("", sizes, np.array([1]), seconds, sending=np.array([0.0, 3.0]))
        >>> eager.held(0), eager.held(50), Cluster("", sizes, np.array([1]), seconds).held(0)
        (0.0, 0.75, 1.0)
        """
        if self.sending is None:
            return 1.0
        return min(_linear(size, self.sizes, self.sending) / self.exchange(1, size), 1.0)

    @property
    def shared_per_byte(self) -> float:
        """Seconds of a byte on the link while several ranks of a node use it: the slope between the
        two largest sizes of what they exchange at once, or else that of T_1.
        """
        if self.shared is None:
            return self.seconds_per_byte
        sizes = self.sizes[-2:]
        return float(np.diff(self.shared)[0] / np.diff(sizes)[0]) / self.per_node

    def allreduce(self, nodes: int, per_node: int, size: float) -> float:
        r"""Return the time of MPI_Allreduce: piecewise linear in the logarithms of the nodes and of
        the ranks on each, if it was measured, or else by halving and doubling between nodes,
        :math:`2 T_1(0) \log_2 N + 2 s G (N - 1) / N`.  Beyond the measured N, latency and bytes grow
        as there.
        """
        steps, part = float(np.log2(nodes)), (nodes - 1) / nodes
        if not self.reductions:
            return 2 * (steps * self.exchange(1, 0) + size * self.shared_per_byte * part)
        at = {key: _linear(size, self.sizes, row) for key, row in self.reductions.items()}
        _, ranks = next(iter(at))
        rows = []
        for r in dict.fromkeys((1, ranks)):
            if counts := sorted(count for count, each in at if each == r):
                last, times = counts[-1], np.array([0.0, *(at[count, r] for count in counts)])
                if nodes <= last:
                    rows.append(_linear(steps, np.log2([1, *counts]), times))
                    continue
                latency = min(self.reductions[last, r].min(), times[-1])
                bytes_ = (times[-1] - latency) * part / (1 - 1 / last)
                rows.append(float(latency * steps / np.log2(last) + bytes_))
        if len(rows) == 1:
            return rows[0]
        slope = (rows[1] - rows[0]) / float(np.log2(ranks))
        return max(rows[0] + slope * float(np.log2(per_node)), 0.0)


def _linear(x: float, at: np.ndarray, values: np.ndarray) -> float:
    if len(at) == 1 or x <= at[0]:
        return float(values[0])
    i = min(int(np.searchsorted(at, x)), len(at) - 1)
    slope = (values[i] - values[i - 1]) / (at[i] - at[i - 1])
    return float(values[i - 1] + slope * (x - at[i - 1]))


def cluster(name: str) -> Cluster:
    """Return a typical cluster by the name of its network, or that of a file.

    Raises
    ------
    ConfigError
        The file is not complete.
    """
    if name not in TYPICAL:
        return _read(name)
    latency, rate, further = TYPICAL[name]
    return modelled(name, latency, rate, further)


def modelled(name: str, latency: float, rate: float, further: float = 0.0) -> Cluster:
    """Return a cluster whose link has a latency in seconds and a rate in bits per second, and
    `further` seconds for each further message.
    """
    k, sizes = np.array(NEIGHBORS), np.array(BYTES)
    seconds = latency + further * (k[:, None] - 1) + k[:, None] * sizes * 8 / rate
    return Cluster(name, sizes, k, seconds)


def _read(path: str) -> Cluster:
    if not Path(path).is_file():
        names = ", ".join(TYPICAL)
        raise ConfigError(f"--network {path}: expected a file of exchange times, or {names}")
    try:
        content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        times = content["exchange_seconds"]
        sizes, k = np.array(content["bytes"], float), np.array([int(key) for key in times])
        seconds = np.array([times[key] for key in times], float)
        # More messages take no less time: what is measured below is noise.
        seconds = np.maximum.accumulate(seconds, axis=0)
        sending, shared = content.get("send_seconds"), content.get("shared_exchange_seconds")
        gradient = content.get("gradient_seconds")
        reductions = {
            (int(key.partition("x")[0]), int(key.partition("x")[2])): np.array(row, float)
            for key, row in content.get("allreduce_seconds", {}).items()
        }
        found = Cluster(
            path,
            sizes,
            k,
            seconds,
            float(content.get("memory_seconds_per_byte", MEMORY)),
            None if sending is None else np.array(sending, float),
            None if shared is None else np.array(shared, float),
            index(content.get("ranks_per_node", 1)),
            reductions,
            None if gradient is None else float(gradient),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: {error!r}; expected JSON with bytes = [...] and exchange_seconds = "
            '{"1": [...], "2": [...], ...}, one time for each size, as written by mpidec bench '
            "--calibrate"
        ) from None
    _check(found)
    return found


def _check(found: Cluster) -> None:
    """Refuse measured times that no prediction can use."""
    for sound, expected in _expected(found):
        if not sound:
            raise ConfigError(f"{found.name}: {expected}")


def _expected(found: Cluster) -> Iterator[tuple[bool, str]]:
    """Yield whether measured times are sound, and what is expected; each presumes those before."""
    sizes, k, seconds = found.sizes, found.neighbors, found.seconds
    text = "expected increasing bytes, neighbours from 1, a time for each"
    yield sizes.ndim == 1 and len(sizes) > 1 and seconds.shape == (len(k), len(sizes)), text
    yield k[0] == 1 and bool((np.diff(k) > 0).all() and (np.diff(sizes) > 0).all()), text
    text = "expected times > 0, larger for the last size than before it"
    rows = [*seconds, *found.reductions.values()]
    rows += [] if found.sending is None else [found.sending]
    yield all(row.shape == sizes.shape and (row > 0).all() for row in rows), text
    yield bool(np.isfinite(rows).all()) and seconds[0, -1] > seconds[0, -2], text
    yield found.seconds_per_byte > 0, text
    text = 'expected bytes from 0, and allreduce_seconds by nodes and ranks on each, such as "4x2"'
    yield sizes[0] >= 0 and all(nodes > 1 and ranks > 0 for nodes, ranks in found.reductions), text
    memory, gradient, shared = found.memory, found.gradient, found.shared
    yield 0 < memory < np.inf, f"memory_seconds_per_byte is {memory}, expected a time > 0"
    text = f"gradient_seconds is {gradient}, expected a time > 0"
    yield gradient is None or 0 < gradient < np.inf, text
    text = (
        "expected shared_exchange_seconds of the two largest sizes, > 0 and increasing, with "
        "ranks_per_node >= 2"
    )
    yield shared is None or (found.per_node > 1 and _rising(shared)), text


def _rising(pair: np.ndarray) -> bool:
    return pair.shape == (2,) and bool(0 < pair[0] < pair[1] < np.inf)
