"""Networks: times of exchanges between nodes, from a file or of a typical network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Network:
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
    """

    name: str
    sizes: np.ndarray
    neighbors: np.ndarray
    seconds: np.ndarray

    @property
    def seconds_per_byte(self) -> float:
        """Inverse rate of a node's link: the slope of T_1 between the two largest sizes."""
        last = self.seconds[0, -2:]
        return float((last[1] - last[0]) / (self.sizes[-1] - self.sizes[-2]))

    def exchange(self, k: float, size: float) -> float:
        """Return T_k(s): 0 for k = 0, and beyond the measured k and s along the last line.

        Examples
        --------
        >>> net = Network("", np.array([0, 100]), np.array([1, 2]), np.array([[1.0, 3], [2, 6]]))
        >>> net.exchange(1, 50), net.exchange(2, 200), net.exchange(4, 100), net.exchange(0, 8)
        (2.0, 10.0, 12.0, 0.0)
        """
        if not k:
            return 0.0
        column = [_linear(size, self.sizes, row) for row in self.seconds]
        return _linear(k, self.neighbors, np.array(column))


def _linear(x: float, at: np.ndarray, values: np.ndarray) -> float:
    if len(at) == 1 or x <= at[0]:
        return float(values[0])
    i = min(int(np.searchsorted(at, x)), len(at) - 1)
    slope = (values[i] - values[i - 1]) / (at[i] - at[i - 1])
    return float(values[i - 1] + slope * (x - at[i - 1]))


def network(name: str) -> Network:
    """Return a typical network by its name, or that of a file.

    Raises
    ------
    ConfigError
        The file is not complete.
    """
    if name not in TYPICAL:
        return _read(name)
    latency, rate, further = TYPICAL[name]
    k, sizes = np.array(NEIGHBORS), np.array(BYTES)
    seconds = latency + further * (k[:, None] - 1) + k[:, None] * sizes * 8 / rate
    return Network(name, sizes, k, seconds)


def _read(path: str) -> Network:
    if not Path(path).is_file():
        names = ", ".join(TYPICAL)
        raise ConfigError(f"--network {path}: expected a file of exchange times, or {names}")
    try:
        content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        times: Mapping[str, Sequence[float]] = content["exchange_seconds"]
        sizes, k = np.array(content["bytes"], float), np.array([int(key) for key in times])
        seconds = np.array([times[key] for key in times], float)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: {error!r}; expected JSON with bytes = [...] and exchange_seconds = "
            '{"1": [...], "2": [...], ...}, one time for each size'
        ) from None
    sound = sizes.ndim == 1 and len(sizes) > 1 and seconds.shape == (len(k), len(sizes))
    if not (sound and k[0] == 1 and (np.diff(k) > 0).all() and (np.diff(sizes) > 0).all()):
        raise ConfigError(f"{path}: expected increasing bytes, neighbours from 1, a time for each")
    if not (np.isfinite(seconds) & (seconds > 0)).all() or seconds[0, -1] <= seconds[0, -2]:
        raise ConfigError(f"{path}: expected times > 0, larger for the last size than before it")
    return Network(path, sizes, k, seconds)
