"""Quantizers: bias and variance, overflow, packing."""

import numpy as np
import pytest
from helpers.codecs import ALL, rows, through

from mpidec.comm.mixing.codecs import QSGD, BFloat16, Blockwise8, Float16, RandK

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("d", [1, 6, 40])
@pytest.mark.parametrize(
    "c", [QSGD(), QSGD(levels=1, bucket=8), QSGD(levels=3, bucket=16, seed=5)], ids=repr
)
def test_qsgd_is_unbiased_and_its_variance_is_bounded(c, d):
    X, times = rows(1, d), 1000
    Y = np.array([through(c, X, step)[0] for step in range(times)])
    omega, square = 1 / c.delta(d) - 1, np.square(X).sum()
    assert (
        abs(Y.mean(axis=0) - X[0])
        <= 5 * np.sqrt(np.square(Y - X).mean(axis=0) / times) + 1e-6 * abs(X)
    ).all()
    assert np.square(Y - X).sum(axis=1).mean() <= omega * square * 1.02
    assert np.square(Y * c.delta(d) - X).sum(axis=1).mean() <= (1 - c.delta(d)) * square * 1.02


@pytest.mark.parametrize("c", [c for c in ALL if not isinstance(c, RandK)], ids=repr)
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_stays_so(c):
    for d, dtype in ((1, "f4"), (50, "f8"), (3000, "f8"), (40000, "f4")):
        X = rows(4, d, dtype)
        X[:3, d // 2] = np.nan, np.inf, -np.inf
        Y = through(c, X)
        assert not np.isfinite(Y[:3, d // 2]).any()
        assert np.isfinite(Y[3]).all()


def test_float16_does_not_overflow():
    for X in (rows(2, 9) * 1e300, rows(2, 9) * 1e-300, rows(2, 9, np.float32) * np.float32(1e36)):
        np.testing.assert_allclose(
            through(Float16(), X), X, rtol=2**-10, atol=abs(X).max() * 2**-24
        )
    np.testing.assert_array_equal(
        through(Float16(), np.array([[1.0, -0.5, 3.0]])), [[1.0, -0.5, 3.0]]
    )


@pytest.mark.parametrize("bits", range(1, 9))
def test_packing_is_lossless(bits):
    from mpidec.comm.mixing.codecs.quantizers import _pack, _unpack

    values = np.random.default_rng(bits).integers(0, 2**bits, (3, 40)).astype(np.uint8)
    packed = _pack(values, bits)
    assert packed.shape == (3, 5 * bits)
    np.testing.assert_array_equal(_unpack(packed, bits), values)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: QSGD(levels=200), "levels is 200, expected an integer from 1 to 127"),
        (lambda: QSGD(bucket=12), r"multiple of 8 \(e.g. 8\)"),
        (lambda: Blockwise8(block=0.5), "block is 0.5"),
    ],
)
def test_wrong_parameters_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.serial
@pytest.mark.parametrize("levels", [1, 2, 7, 15, 50, 127])
@pytest.mark.parametrize("d", [8, 64, 200])
def test_delta_is_that_of_the_worst_row(levels, d):
    """Against the mean error: of an entry between two levels, at the share p, p (1 - p) times the square of a level."""
    codec = QSGD(levels=levels, bucket=128)
    length = min(d, codec.bucket)
    rows = [np.random.default_rng(d).standard_normal(length), np.ones(length)]
    for entries in range(1, length):  # all small ones just below the middle between two levels
        for half in (0.5, 1.5):
            small = np.full(length, half / levels)
            rest = 1 - (entries * small[0] ** 2)
            if rest >= 0:
                small[entries:] = 0
                small[-1] = np.sqrt(rest)
                rows.append(small)
    worst = 0.0
    for x in rows:
        scaled = np.abs(x) / np.linalg.norm(x) * levels
        p = scaled % 1
        worst = max(worst, float((p * (1 - p)).sum()) / levels**2)
    omega = 1 / codec.delta(d) - 1
    assert worst <= omega * (1 + 1e-9)
    assert omega <= max(4.5 * worst, 1e-12)
    X = np.tile(rows[0], (2000, 1))
    found = codec.decode(codec.encode(X, 0, range(len(X))), length, X.dtype, 0, range(len(X)))
    assert ((found - X) ** 2).sum(axis=1).mean() <= omega * (X[0] ** 2).sum()


@pytest.mark.serial
@pytest.mark.parametrize("d", [2, 9, 64, 1000])
def test_delta_is_no_smaller_than_a_row_loses(d):
    """Of codecs that round all entries: some row loses a fourth of 1 - delta, or more."""
    for c in (Blockwise8(), Blockwise8(block=100), Float16(), BFloat16()):
        rows = [np.full(d, 1 + 2.0**-bits) for bits in (8, 11)]  # between two numbers of 16 bits
        for level in (0.5, 1.5):  # and of 127 levels
            rows.append(np.append(127.0, np.full(d - 1, level * 0.999)))
        X = np.array(rows)
        Y = c.decode(c.encode(X, 0, range(len(X))), d, X.dtype, 0, range(len(X)))
        lost = ((X - Y) ** 2).sum(axis=1) / (X**2).sum(axis=1)
        assert lost.max() <= (1 - c.delta(d)) * (1 + 1e-9), c
        assert 1 - c.delta(d) <= 4 * lost.max() * (d / (d - 1)), c
