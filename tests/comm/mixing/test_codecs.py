"""Codecs: errors, encoded sizes, and independence of the rows beside a row."""

import numpy as np
import pytest
from helpers.codecs import ALL, rows, through

from mpidec.comm.mixing import codecs
from mpidec.comm.mixing.codecs import CODECS, QSGD, RandK, TopK, codec

pytestmark = pytest.mark.serial


DETERMINISTIC = [c for c in ALL if not isinstance(c, (QSGD, RandK))]
SIZES = [0, 1, 2, 7, 8, 9, 129, 1024, 1025, 5000]


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


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: codec("toop_k"), "codec 'toop_k' is unknown: did you mean top_k"),
        (lambda: codec("zip"), "expected one of identity, float16"),
        (lambda: codec("float16", k=1), "has no parameter 'k'"),
        (lambda: codec(None), "codec None is unknown"),
    ],
)
def test_wrong_parameters_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_the_catalogue_is_documented():
    for name, make in CODECS.items():
        assert ">>>" in make.__doc__, name
        assert isinstance(make(), codecs.Codec)
