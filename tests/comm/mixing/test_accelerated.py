"""Accelerated mixers against polynomials of the dense matrix, on any number of ranks: run alone, or under mpirun."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import topology as T

N = 12
GRAPHS = [
    T.ring,
    T.grid,
    T.star,
    T.complete,
    T.symmetric_exponential,
    lambda n: T.erdos_renyi(n, seed=3),
]


def stack(n=N, shape=(5,), dtype=float):
    return (np.random.default_rng(n).standard_normal((n, *shape)) + 2).astype(dtype)


def polynomial(W, X, K, method):
    """The recurrences as the literature has them, with a_k, which grow."""
    s = 0.0 if len(W) == 1 else np.sort(abs(np.linalg.eigvalsh(W)))[-2]
    if method == "fastmix":
        eta = (1 - np.sqrt(1 - s**2)) / (1 + np.sqrt(1 - s**2))
        before, now = X, X
        for _ in range(K):
            before, now = now, (1 + eta) * W @ now - eta * before
        return now
    if s < 1e-12:
        return np.linalg.matrix_power(W, K) @ X
    a, before, now = [1, 1 / s], X, W @ X
    for _ in range(K - 1):
        a.append(2 / s * a[-1] - a[-2])
        before, now = now, 2 * a[-2] / (s * a[-1]) * W @ now - a[-3] / a[-1] * before
    return now


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.filterwarnings("ignore:.*may amplify")
def test_the_dense_polynomial_is_the_oracle(make):
    for n in (1, 2, N):
        topology, X = make(n), stack(n)
        with mpidec.Network(n) as net:
            plain = net.mixer(topology)
            for method, K in itertools.product(("chebyshev", "fastmix"), (1, 2, 3, 8)):
                W, rounds = plain.accelerate(K, method), plain.rounds
                want = polynomial(topology.W.toarray(), X, K, method)
                np.testing.assert_allclose(
                    W(X[net.lo : net.hi]),
                    want[net.lo : net.hi],
                    rtol=1e-11,
                    atol=1e-11,
                    err_msg=f"{method}, n={n}, K={K}",
                )
                assert W.rounds == rounds + K


@pytest.mark.parametrize("transport", ["shared", "neighbor", "p2p"])
@pytest.mark.parametrize("method", ["chebyshev", "fastmix"])
def test_bits_do_not_depend_on_the_ranks(method, transport):
    X = stack(dtype=np.float32)
    with (
        mpidec.Network(N, transport=transport) as net,
        mpidec.Network(N, comm=MPI.COMM_SELF) as alone,
    ):
        W, W_alone = (of.mixer(T.grid(N)).accelerate(4, method) for of in (net, alone))
        Y, Y_alone = X[net.lo : net.hi], X
        for k in range(5):
            Y, Y_alone = W.at(k)(Y), W_alone.at(k)(Y_alone)
            np.testing.assert_array_equal(Y, Y_alone[net.lo : net.hi])
        assert net.comm.allreduce(W.bytes) == W_alone.bytes == 20 * 4 * 5 * T.grid(N).source.arcs


@pytest.mark.serial
@pytest.mark.parametrize(
    "make, n", [(T.ring, 32), (T.grid, 25), (T.star, 16), (T.symmetric_exponential, 64)]
)
def test_the_contraction_is_that_of_the_theory(make, n):
    with mpidec.Network(n) as net:
        plain = net.mixer(make(n))
        for K in (1, 4, 12):
            W = plain.accelerate(K)
            left = np.linalg.norm(W(np.eye(n)) - 1 / n, 2)
            theory = 1 / np.cosh(K * np.arccosh(1 / W.s))  # 1 / T_K(1 / s)
            assert left == pytest.approx(theory, rel=1e-6)  # the eigenvalue s, or -s, is there
            assert W.contraction() == pytest.approx(theory, rel=1e-6)
            assert left <= W.s**K * (1 + 1e-9)
        fast = plain.accelerate(24, "fastmix")
        assert np.linalg.norm(fast(np.eye(n)) - 1 / n, 2) <= fast.contraction() * (1 + 1e-9)


@pytest.mark.parametrize("method", ["chebyshev", "fastmix"])
def test_the_average_is_kept_and_agreement_to_the_last_bit(method):
    X = stack()
    with mpidec.Network(N) as net:
        W = net.mixer(T.ring(N)).accelerate(6, method)
        Y = X[net.lo : net.hi]
        for _ in range(30):
            Y = W(Y)
        np.testing.assert_allclose(net.mean(Y), X.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(Y, np.tile(X.mean(axis=0), (net.m, 1)), rtol=1e-12)
        same = np.tile(X[0], (net.m, 1))
        np.testing.assert_array_equal(W(same), same)


def test_the_interface_is_that_of_a_mixer():
    X = stack(shape=(2, 3))
    with mpidec.Network(N) as net:
        W, own = net.mixer(T.ring(N)).accelerate(3), slice(net.lo, net.hi)
        Y = W(X[own])
        pending = [W.start(X[own]), W.start(2 * X[own])]
        np.testing.assert_array_equal(pending[1].wait(), 2 * Y)
        np.testing.assert_array_equal(pending[0].wait(), Y)
        A, B = W([X[own], X[own, 0]])
        np.testing.assert_array_equal(A, Y)
        np.testing.assert_array_equal(B, Y[:, 0])
        out = net.empty((2, 3))
        assert W(X[own], out=out) is out
        np.testing.assert_array_equal(out, Y)
        assert W.at(0).next.n == W.n == N and W.at(3).topology is W.topology
        np.testing.assert_allclose(W(X[own] * 1j), Y * 1j, rtol=1e-14)
        with pytest.raises(ValueError, match="computes averages only"):
            W.at(0).exchange(W.at(0).to_edges(X[own]))


@pytest.mark.parametrize("name", ["identity", "float16", "blockwise8", "qsgd"])
def test_over_a_compressed_mixer(name):
    X = stack(shape=(16,))
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        W, W_alone = (
            of.mixer(T.ring(N)).compress(name, feedback=True).accelerate(4) for of in (net, alone)
        )
        Y, Y_alone = X[net.lo : net.hi], X
        for k in range(3):
            Y, Y_alone = W.at(k)(Y), W_alone.at(k)(Y_alone)
            np.testing.assert_array_equal(Y, Y_alone[net.lo : net.hi])
        assert len(W.memory()) == 4
        for k in range(3, 150 if net.size == 1 else 3):
            Y = W.at(k)(Y)
        if net.size == 1:
            np.testing.assert_allclose(Y, [X.mean(axis=0)] * N, atol=1e-6)
        W.recall(W.memory())


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda net: net.mixer(T.exponential(N)).accelerate(2),
            "symmetric W, that of the exponential topology is not: take topology",
        ),
        (lambda net: net.mixer(T.ring(N)).compress("rand_k").accelerate(2), "too little of a row"),
        (
            lambda net: net.mixer(T.one_peer_exponential(N)).accelerate(2),
            "one_peer_exponential is a schedule",
        ),
        (
            lambda net: net.mixer(T.ring(N)).accelerate(0),
            "K is 0, expected an integer >= 1",
        ),
        (lambda net: net.mixer(T.ring(N)).accelerate(2.0), "K is 2.0"),
        (
            lambda net: net.mixer(T.ring(N)).accelerate(2, "cheby"),
            "method is 'cheby', expected one of chebyshev, fastmix",
        ),
        (
            lambda net: net.mixer(T.ring(N)).accelerate(2).accelerate(2),
            "ask for all mixings at once",
        ),
        (lambda net: net.mixer(T.ring(N)).accelerate(2).recall({"a": 1}), "has no memory"),
    ],
)
def test_wrong_use_is_named(call, message):
    with mpidec.Network(N) as net, pytest.raises((ValueError, TypeError), match=message):
        call(net)


@pytest.mark.parametrize(
    "make",
    [lambda: T.cycle([T.ring(4)]), lambda: T.one_peer_exponential(2)],
    ids=["cycle", "one_peer"],
)
def test_a_schedule_of_period_1_is_static(make):
    """Acceleration and error feedback need a static topology: a schedule of period 1 is one."""
    schedule = make()
    n = schedule.n
    with mpidec.Network(n) as net:
        X = stack(n)[net.lo : net.hi]
        W, V = net.mixer(schedule), net.mixer(schedule.at(0))
        assert W.topology is schedule.at(0) and W.at(5) is W.at(0)
        np.testing.assert_array_equal(W.accelerate(3)(X), V.accelerate(3)(X))
        both = W.compress("top_k", fraction=0.4), V.compress("top_k", fraction=0.4)
        for _ in range(3):
            np.testing.assert_array_equal(both[0](X), both[1](X))


def test_fastmix_warns_where_it_amplifies():
    with (
        mpidec.Network(8) as net,
        pytest.warns(
            RuntimeWarning, match="1 mixings of fastmix over the ring topology may amplify"
        ),
    ):
        net.mixer(T.ring(8)).accelerate(1, "fastmix")
