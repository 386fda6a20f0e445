"""Random topologies, rows and memory layouts for the fuzz tests: the same on all ranks that draw with the same generator."""

from __future__ import annotations

import networkx
import numpy as np

from mpidec import topology as T

DTYPES = [np.float16, np.float32, np.float64, np.float64, np.complex64, np.complex128]
SHAPES = [(), (0,), (1,), (2,), (3,), (7,), (33,), (1, 1), (2, 3), (3, 0, 2), (2, 3, 4), (700,)]
LARGE = 1 << 17  # bytes from which on rows are read where they lie
LAYOUTS = ["C", "F", "strided", "reversed", "stack", "part", "unaligned", "readonly"]


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


class Draws(T.Schedule):
    """A random matrix at every step; no period."""

    name, period, directed = "draws", None, True

    def __init__(self, n, seed, kind):
        self.n, self.seed, self.kind = n, seed, kind

    def at(self, k):
        return matrix(np.random.default_rng([self.seed, k]), self.n, self.kind)

    def spectral_gap(self):
        return float("nan")

    def fingerprint(self):
        return hash((self.n, self.seed, self.kind == "row")) & 0x7FFFFFFFFFFFFFFF


def matrix(rng, n, kind=None):
    """A topology of a random matrix: any density, strongly connected or not, agents without in- or out-neighbours included."""
    kind = kind or pick(rng, ["row", "column", "doubly", "signed"])
    if kind == "doubly":  # a mean of permutations, a cycle among them
        parts = [np.eye(n)[rng.permutation(n)] for _ in range(rng.integers(1, 4))] + [
            np.roll(np.eye(n), 1, axis=1)
        ]
        share = rng.random(len(parts)) + 0.1
        return T.from_weights(np.tensordot(share / share.sum(), parts, 1))
    there = rng.random((n, n)) < pick(rng, [0, 0.1, 0.3, 0.6, 1])
    connected = bool(rng.integers(2))
    if connected:
        there |= np.roll(np.eye(n, dtype=bool), 1, axis=1)
    weights = there * (
        rng.standard_normal((n, n)) if kind == "signed" else rng.random((n, n)) + 0.01
    )
    np.fill_diagonal(weights, 0)
    if kind == "signed":
        weights += np.diag(1 - weights.sum(axis=1))
        return T.from_weights(weights, signed=True, connected=False)
    lonely = weights.sum(axis=1) == 0
    weights += np.diag(np.where(lonely | (rng.random(n) < 0.7), rng.random(n) + 0.1, 0))
    weights /= weights.sum(axis=1, keepdims=True)
    return T.from_weights(weights if kind == "row" else weights.T, connected=False)


def catalogue(rng, n):
    """A topology or schedule of the catalogue."""
    names = [name for name in T.CATALOGUE if n & (n - 1) == 0 or name not in ("hypercube", "ceca")]
    name = pick(rng, sorted(names))
    seeded = (
        {"seed": int(rng.integers(99))}
        if name in ("erdos_renyi", "geometric", "small_world")
        else {}
    )
    weights = {"weights": pick(rng, ["metropolis", "push", "uniform"])} if name == "star" else {}
    return T.CATALOGUE[name](n, **seeded, **weights)


def graph(rng, n):
    """Any topology or schedule of `n` agents."""
    kind = int(rng.integers(6))
    if kind <= 1:
        return matrix(rng, n)
    if kind <= 3:
        return catalogue(rng, n)
    if kind == 4:
        return Draws(n, int(rng.integers(1 << 30)), pick(rng, ["row", "column", "doubly"]))
    return T.cycle(
        [
            matrix(rng, n, "doubly")
            if rng.integers(2)
            else T.from_networkx(
                networkx.path_graph(n) if n < 3 else networkx.gnp_random_graph(n, 0.9, seed=1),
                connected=False,
            )
            for _ in range(rng.integers(1, 4))
        ]
    )


def shape(rng, dtype, m):
    """The shape of a row; now and then so long that `m` of them are read where they lie."""
    if rng.random() < 0.15:
        return (LARGE // (np.dtype(dtype).itemsize * max(m, 1)) + int(rng.integers(-2, 40)),)
    return pick(rng, SHAPES)


def rows(rng, n, shape, dtype):
    """The rows of all agents."""
    X = rng.standard_normal((n, *shape))
    return (X + 1j * rng.standard_normal(X.shape) if np.dtype(dtype).kind == "c" else X).astype(
        dtype
    )


def laid_out(layout, x, net):
    """A copy of `x` in memory as `layout` says."""
    if layout == "F":
        return np.array(x, order="F")
    if layout == "strided" and x.ndim > 1:
        return np.repeat(x, 2, axis=-1)[..., ::2]
    if layout == "reversed":
        return np.ascontiguousarray(x[::-1])[::-1]
    if layout == "unaligned":
        memory = np.empty(x.nbytes + 1, np.uint8)
        y = memory[1:].view(x.dtype).reshape(x.shape)
        y[...] = x
        return y
    y = np.array(x)
    if layout == "readonly":
        y.flags.writeable = False
    if layout in ("stack", "part"):
        wide = net.empty(
            (*x.shape[1:-1], x.shape[-1] + 5) if layout == "part" and x.ndim > 1 else x.shape[1:],
            x.dtype,
        )
        y = wide[..., : x.shape[-1]] if layout == "part" and x.ndim > 1 else wide
        y[...] = x
    return y


def tolerance(dtype, terms, X):
    """What rounding may make of a sum of so many terms."""
    return 4 * (terms + 4) * np.finfo(dtype).eps * max(1.0, float(np.abs(X).max(initial=0)))
