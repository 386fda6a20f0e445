"""Codecs: errors, encoded sizes, and independence of the rows beside a row."""

from itertools import pairwise

import numpy as np
import pytest

from mpidec.comm.mixing import codecs
from mpidec.comm.mixing.codecs import CODECS, QSGD, Blockwise8, Float16, RandK, TopK, codec

pytestmark = pytest.mark.serial

ALL = [
    *(codec(name) for name in CODECS),
    TopK(fraction=0.3),
    TopK(k=3),
    RandK(k=5, seed=7),
    QSGD(levels=1, bucket=8),
    QSGD(levels=127, bucket=512, seed=3),
    QSGD(levels=7),
    Blockwise8(block=100),
]
DETERMINISTIC = [c for c in ALL if not isinstance(c, (QSGD, RandK))]
SIZES = [0, 1, 2, 7, 8, 9, 129, 1024, 1025, 5000]


def rows(m, d, dtype=float, seed=0):
    return (np.random.default_rng([seed, m, d]).standard_normal((m, d)) * 10 + 1).astype(dtype)


def through(c, X, step=0, agents=None):
    agents = range(len(X)) if agents is None else agents
    encoded = c.encode(X, step, agents)
    assert encoded.dtype == np.uint8 and encoded.shape == (len(X), c.nbytes(X.shape[1], X.dtype))
    Y = c.decode(encoded, X.shape[1], X.dtype, step, agents)
    assert Y.dtype == X.dtype and Y.shape == X.shape
    return Y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("c", ALL, ids=repr)
def test_shapes_zeros_and_no_rows(c, dtype):
    for d in SIZES:
        X = rows(3, d, dtype)
        kept = X.copy()
        through(c, X)
        np.testing.assert_array_equal(X, kept)
        assert not through(c, np.zeros((2, d), dtype)).any()
        through(c, np.zeros((0, d), dtype))
        assert 0 < c.delta(d) <= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("c", DETERMINISTIC, ids=repr)
def test_deterministic_codecs_contract_each_row(c, dtype):
    cases = [
        make(d)
        for d in (1, 9, 1024, 5000, 33000)
        for make in (
            lambda d: rows(4, d),
            lambda d: np.eye(4, d),
            lambda d: rows(4, d) ** 5,
            lambda d: np.ones((1, d)),
        )
    ]
    for X in (case.astype(dtype) for case in cases):
        lost = np.square(X - through(c, X), dtype=float).sum(axis=1)
        assert (
            lost <= (1 - c.delta(X.shape[1])) * np.square(X, dtype=float).sum(axis=1) * (1 + 1e-6)
        ).all()


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


def test_rand_k_loses_what_it_says_and_every_place_as_often():
    c, X, times = RandK(k=5, seed=7), rows(2, 20), 1500
    Y = np.array([through(c, X, step) for step in range(times)])
    hits = (Y[:, 0] != 0).mean(axis=0)
    assert (abs(hits - 0.25) < 5 * np.sqrt(0.25 * 0.75 / times)).all()
    np.testing.assert_array_equal(Y[:, 0] != 0, Y[:, 1] != 0)  # the same places for all agents
    np.testing.assert_allclose(
        np.square(Y - X).sum(axis=2).mean(axis=0),
        (1 - c.delta(20)) * np.square(X).sum(axis=1),
        rtol=0.05,
    )
    chosen = [set(np.flatnonzero(y)) for y in Y[:, 0]]
    assert np.mean([len(a & b) for a, b in pairwise(chosen)]) == pytest.approx(
        5 * 0.25, rel=0.1
    )  # no overlap of streams


@pytest.mark.parametrize("d", [3, 1024, 1025, 70000, 200_001])
def test_top_k_keeps_the_largest(d):
    c, X = TopK(fraction=0.1), rows(2, d)
    Y, k = through(c, X), TopK(fraction=0.1).kept(d)
    assert ((Y != 0).sum(axis=1) == k).all()
    np.testing.assert_array_equal(Y[Y != 0], X[Y != 0])
    for x, y in zip(abs(X), abs(Y)):
        assert np.sort(x)[-k] == y[y != 0].min()


@pytest.mark.parametrize("d", [1000, 3000])
def test_top_k_of_equals_takes_the_first(d):
    X = np.tile([1.0, -1.0, 2.0, 0.0], (2, d // 4))
    k = d // 4 + 10
    np.testing.assert_array_equal(
        np.flatnonzero(through(TopK(k=k), X)[0]),
        np.sort(np.r_[np.flatnonzero(X[0] == 2), np.flatnonzero(abs(X[0]) == 1)[:10]]),
    )


@pytest.mark.parametrize(
    "c", [TopK(k=9), RandK(k=9), TopK(fraction=1), RandK(fraction=1.0)], ids=repr
)
def test_all_entries_are_the_row(c):
    for d in (1, 5, 9):
        X = rows(3, d)
        np.testing.assert_array_equal(through(c, X), X)


def test_bytes_of_an_encoded_row():
    d = 1 << 21  # 16 MB of float64
    assert TopK().nbytes(d, "f8") / (8 * d) < 0.0126
    assert TopK().nbytes(d, "f4") / (4 * d) < 0.0151
    assert RandK().nbytes(d, "f8") / (8 * d) < 0.01001
    assert [
        codec(name).nbytes(1000, "f8")
        for name in ("identity", "float16", "bfloat16", "blockwise8", "qsgd")
    ] == [8000, 2002, 2000, 1004, 4 * 8 + 125 * 5]


@pytest.mark.parametrize("d", [5, 1500, 40000])
@pytest.mark.parametrize("c", ALL, ids=repr)
def test_a_row_does_not_depend_on_the_rows_beside_it(c, d):
    X, agents = rows(3, d), range(10, 13)
    encoded = c.encode(X, 3, agents)
    Y = c.decode(encoded, d, X.dtype, 3, agents)
    for i in range(3):
        alone = c.encode(X[i : i + 1], 3, agents[i : i + 1])
        np.testing.assert_array_equal(encoded[i : i + 1], alone)
        np.testing.assert_array_equal(
            Y[i : i + 1], c.decode(alone, d, X.dtype, 3, agents[i : i + 1])
        )


@pytest.mark.parametrize("c", [QSGD(), RandK(k=3)], ids=repr)
def test_random_numbers_belong_to_seed_agent_and_step(c):
    X = np.tile(rows(1, 40), (2, 1))
    first = through(c, X, 5, [1, 2])
    np.testing.assert_array_equal(first, through(c, X, 5, [1, 2]))
    assert (through(c, X, 6, [1, 2]) != first).any()
    assert (
        through(codec("qsgd", seed=1) if isinstance(c, QSGD) else RandK(k=3, seed=1), X, 5, [1, 2])
        != first
    ).any()
    assert (first[0] == first[1]).all() == isinstance(c, RandK)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_random_numbers_are_philox_with_the_seed_in_the_key(seed):
    """The draws themselves are pinned: a codec that drops its seed, or shares a stream with an oracle, fails."""

    def draws(purpose, agent, step):
        return np.random.Generator(
            np.random.Philox(key=np.array([seed, agent], np.uint64), counter=[0, step, purpose, 0])
        )

    X, step = rows(2, 8), 6
    agents, norm = (
        (3, 11),
        np.nextafter(np.linalg.norm(X, axis=1).astype(np.float32), np.float32(np.inf)),
    )
    U = np.array([draws(3, agent, step).random(8, np.float32) for agent in agents])
    levels = np.floor(X * (15 / norm.astype(float))[:, None] + U)
    np.testing.assert_allclose(
        through(codec("qsgd", seed=seed), X, step, agents), levels * norm[:, None] / 15, rtol=1e-6
    )
    kept = np.sort(draws(4, 0, step).choice(8, 3, replace=False, shuffle=False))
    np.testing.assert_array_equal(
        np.flatnonzero(through(RandK(k=3, seed=seed), X, step, agents)[0]), kept
    )


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
        (lambda: codec("toop_k"), "codec 'toop_k' is unknown: did you mean top_k"),
        (lambda: codec("zip"), "expected one of identity, float16"),
        (lambda: codec("top_k", fration=0.1), "did you mean fraction"),
        (lambda: codec("float16", k=1), "has no parameter 'k'"),
        (lambda: codec(TopK(), k=3), "already has its parameters"),
        (lambda: codec(None), "codec None is unknown"),
        (lambda: TopK(fraction=0), "fraction is 0"),
        (lambda: TopK(k=0), "k is 0, expected an integer from 1"),
        (lambda: RandK(fraction=1.5), "fraction is 1.5"),
        (lambda: TopK(fraction="a"), "fraction is 'a'"),
        (lambda: QSGD(levels=200), "levels is 200, expected an integer from 1 to 127"),
        (lambda: QSGD(bucket=12), r"multiple of 8 \(e.g. 8\)"),
        (lambda: Blockwise8(block=0.5), "block is 0.5"),
        (lambda: RandK(seed=-1), "seed is -1"),
    ],
)
def test_wrong_parameters_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_the_catalogue_is_documented():
    for name, make in CODECS.items():
        assert ">>>" in make.__doc__, name
        assert isinstance(make(), codecs.Codec)
