"""The contract of codecs: what each one must do with rows, and tests of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from ..comm.mixing.internals import Codec
from .case import check_all, require

LENGTHS = (1, 7, 64, 257)  # of rows
AGENTS = (3, 0, 11)  # of the rows that are encoded together
# Steps over which random codecs are averaged.
DRAWS = 120
# Size of small rows, which neither vanish nor overflow.
TINY = 1e-30
LIMIT = 5.0  # standard errors


def _rows(d: int, dtype: type = np.float64) -> np.ndarray:
    rng = np.random.default_rng(d)
    X = rng.standard_normal((len(AGENTS), d))
    X[1] *= rng.standard_exponential(d) ** 4  # few large entries
    return X.astype(dtype)


def _decoded(codec: Codec, X: np.ndarray, step: int = 0) -> np.ndarray:
    rows = codec.encode(X, step, AGENTS)
    return codec.decode(rows, X.shape[1], X.dtype, step, AGENTS)


def _cases() -> Iterator[np.ndarray]:
    for d in LENGTHS:
        yield from (_rows(d), _rows(d, np.float32))


def shapes(codec: Codec) -> None:
    """Encodings are bytes, as many as `nbytes` says; decoded rows have the shape and dtype of
    the rows; `add` adds them.
    """
    for X in _cases():
        d, kept = X.shape[1], X.copy()
        rows = codec.encode(X, 2, AGENTS)
        expected = (len(X), codec.nbytes(d, X.dtype))
        require(
            rows.dtype == np.uint8 and rows.shape == expected,
            codec,
            "shapes",
            f"encode() of {len(X)} rows of {d} {X.dtype} returns {rows.dtype} {rows.shape}, "
            f"expected uint8 {expected}",
            "nbytes(d, dtype) is the size of every encoded row",
        )
        require(
            np.array_equal(X, kept),
            codec,
            "shapes",
            "encode() changes the rows that it is handed",
            "make a new array",
        )
        Q = codec.decode(rows, d, X.dtype, 2, AGENTS)
        require(
            Q.shape == X.shape and Q.dtype == X.dtype,
            codec,
            "shapes",
            f"decode() returns {Q.dtype} {Q.shape}, expected {X.dtype} {X.shape}",
            "decode into the dtype that it is handed",
        )
        total = np.ones_like(X)
        codec.add(rows, total, 2, AGENTS, 0.5)
        away = float(abs(total - (1 + X.dtype.type(0.5) * Q)).max())
        require(
            away <= 8 * np.finfo(X.dtype).eps * (1 + float(abs(Q).max())),
            codec,
            "shapes",
            f"add(scale=0.5) is {away:.2g} away from half of the decoded rows",
            "leave add() out: that of Codec decodes and adds",
        )


def draws(codec: Codec) -> None:
    """The encoding of an agent's row depends on the codec, the row, the step and the agent only."""
    for X in _cases():
        first, again = (codec.encode(X, 5, AGENTS) for _ in range(2))
        alone = codec.encode(X[1:2], 5, AGENTS[1:2])
        require(
            np.array_equal(first, again) and np.array_equal(first[1:2], alone),
            codec,
            "draws",
            f"the same rows of {X.shape[1]} entries, of the same step and agents, have other "
            "encodings "
            + (
                "in a second call"
                if not np.array_equal(first, again)
                else "without the other agents"
            ),
            "draw with np.random.default_rng([seed, agent, step]) for each row, and round each row "
            "by itself",
        )


def delta(codec: Codec) -> None:
    """The decoded rows are as close to the rows as `delta` says, in the mean over steps."""
    for X in _cases():
        d = X.shape[1]
        said = codec.delta(d)
        require(0 < said <= 1, codec, "delta", f"delta({d}) is {said}", "it is in (0, 1]")
        X = X.astype(np.float64)
        scale = said if codec.unbiased else 1.0
        size = (X**2).sum(axis=1)
        left = np.array(
            [((X - scale * _decoded(codec, X, k)) ** 2).sum(axis=1) / size for k in range(DRAWS)]
        )
        spread = left.std(axis=0)  # large parts may be drawn rarely
        spread = np.where(spread > 0, np.maximum(spread, np.sqrt(said * (1 - said))), 0.0)
        noise = LIMIT * spread / np.sqrt(DRAWS)
        worst = int(np.argmax(left.mean(axis=0) - noise))
        require(
            left.mean(axis=0)[worst] - noise[worst] <= 1 - said + 1e-12,
            codec,
            "delta",
            f"decoded rows of {d} entries leave {left.mean(axis=0)[worst]:.3g} of the squared "
            "norm, in the mean over "
            f"{DRAWS} steps, expected at most 1 - delta = {1 - said:.3g}",
            "a delta that is too large makes gamma too large, and mixing diverge",
        )


def mean(codec: Codec) -> None:
    """The mean of the decoded rows over steps is the row, where the codec is `unbiased`."""
    for X in _cases():
        found = np.array([_decoded(codec, X.astype(np.float64), k) for k in range(DRAWS)])
        away = abs(found.mean(axis=0) - X)
        noise = (LIMIT + 1) * found.std(axis=0) / np.sqrt(DRAWS) + 0.02 * abs(X).max() / DRAWS**0.5
        require(
            (away <= noise).all(),
            codec,
            "mean",
            f"the mean of {DRAWS} decoded rows of {X.shape[1]} entries is "
            f"{float((away / noise).max()):.2g} times as far from "
            "the row as chance explains",
            "is the rounding random, with the right probability?  Or unbiased = False",
        )


def lossless(codec: Codec) -> None:
    """Decoded rows are the rows, where the codec is not `lossy`."""
    for X in _cases():
        require(
            np.array_equal(_decoded(codec, X), X),
            codec,
            "lossless",
            f"decoded rows of {X.dtype} are not the rows",
            "lossy = False says so",
        )


def small(codec: Codec) -> None:
    """Zero rows are decoded as zero, and tiny and huge ones are finite and no larger than the
    bound allows.
    """
    for d in LENGTHS:
        for size in (0.0, TINY, 1 / TINY):
            X = size * _rows(d)
            Q = _decoded(codec, X)
            most = (2 / codec.delta(d)) * float(np.linalg.norm(X, axis=1).max())
            require(
                np.isfinite(Q).all() and float(np.linalg.norm(Q, axis=1).max()) <= most,
                codec,
                "small",
                f"rows of size {size:g} are decoded as rows of size "
                f"{float(np.linalg.norm(Q, axis=1).max()):.3g}",
                "divide by the largest entry only where it is not zero",
            )


def nonfinite(codec: Codec) -> None:
    """A row with an entry that is NaN or infinite has one when it is decoded, and the other rows
    have none.
    """
    for X in _cases():
        for bad in (np.nan, np.inf, -np.inf):
            Z = X.copy()
            Z[1, -1] = bad
            with np.errstate(all="ignore"):
                Q = _decoded(codec, Z)
            lost = np.isfinite(Q[1]).all() and codec.delta(X.shape[1]) > 0 and _sends_all(codec, X)
            require(
                not lost and np.isfinite(np.delete(Q, 1, axis=0)).all(),
                codec,
                "nonfinite",
                f"the entry {bad} of a row of {X.shape[1]} is "
                + ("decoded as a number" if lost else "spread to the rows of other agents"),
                "let scales be NaN where the row is, so that divergence is seen",
            )


def _sends_all(codec: Codec, X: np.ndarray) -> bool:
    """Whether a codec sends something of the last entry of a row, whatever the step draws."""
    Z = np.zeros_like(X)
    Z[:, -1] = 1.0
    return bool(all(_decoded(codec, Z, k)[:, -1].any() for k in range(4)))


PROPERTIES: dict[str, tuple[Callable[[Codec], None], Callable[[Codec], bool]]] = {
    "shapes": (shapes, lambda codec: True),
    "draws": (draws, lambda codec: True),
    "delta": (delta, lambda codec: True),
    "mean": (mean, lambda codec: codec.unbiased),
    "lossless": (lossless, lambda codec: not codec.lossy),
    "small": (small, lambda codec: True),
    "nonfinite": (nonfinite, lambda codec: True),
}


def properties(codec: Codec) -> dict[str, Callable[[], None]]:
    """The checks of the properties that a codec must have, by name.

    Examples
    --------
    >>> from mpidec.comm.mixing.codecs import TopK
    >>> list(properties(TopK(k=2)))
    ['shapes', 'draws', 'delta', 'small', 'nonfinite']
    """
    return {
        name: partial(check, codec)
        for name, (check, applies) in PROPERTIES.items()
        if applies(codec)
    }


def check_codec(codec: Codec) -> None:
    """Check all properties that a codec must have.

    Parameters
    ----------
    codec : Codec

    Raises
    ------
    ContractError
        With a line for each property that the codec lacks.

    Examples
    --------
    >>> import mpidec
    >>> from mpidec.comm.mixing.codecs import TopK
    >>> mpidec.testing.check_codec(TopK(k=2))
    """
    check_all(codec, properties(codec))


class CodecContract:
    """Base class of tests for pytest: a test for each property that a codec must have.

    Attributes
    ----------
    codec : Codec

    Examples
    --------
    >>> import mpidec
    >>> from mpidec.comm.mixing.codecs import TopK
    >>> class TestTopK(mpidec.testing.CodecContract):
    ...     codec = TopK(k=2)
    >>> TestTopK().test_delta()
    """

    codec: ClassVar[Codec]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, check in properties(cls.codec).items():
            setattr(cls, f"test_{name}", staticmethod(check))
