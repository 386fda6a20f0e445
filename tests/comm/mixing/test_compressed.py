"""Compressed mixers against dense recursions, on any number of ranks: run alone, or under mpirun."""

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing.codecs import CODECS, Codec, codec
from mpidec.comm.mixing.mixers.operator import Operator, StepOperator

N, D = 9, 20
SMALL = {"top_k": {"fraction": 0.2}, "rand_k": {"fraction": 0.2}, "blockwise8": {"block": 8}}
LOSSY = [name for name in CODECS if name != "identity"]
QUICK = (
    ["blockwise8", "top_k"] if MPI.COMM_WORLD.size > 1 else CODECS
)  # the bits do not depend on the number of ranks


def some(names):
    """The codecs as parameters, most of them slow under several ranks."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def stack(n=N, shape=(D,), dtype=float, seed=0):
    return (np.random.default_rng([seed, n]).standard_normal((n, *shape)) + 3).astype(dtype)


def dense(W, c, X, feedback, gamma, steps):
    """The recursions of `Compressed`, with the codec alone and dense matrices."""
    n, hat = len(X), np.zeros_like(X)
    for k in range(steps):
        if feedback:
            hat = hat + (c.delta(X.shape[1]) if c.unbiased else 1) * through(c, X - hat, k * 64)
            X = X + gamma * (W - np.eye(n)) @ hat
        else:
            X = X + gamma * (W - np.eye(n)) @ through(c, X, k * 64)
    return X


def through(c, X, step):
    agents = range(len(X))
    return c.decode(c.encode(X, step, agents), X.shape[1], X.dtype, step, agents)


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("name", some(CODECS))
def test_the_dense_recursion_is_the_oracle(name, feedback):
    X, topology = stack(), T.erdos_renyi(N, seed=1)
    with mpidec.Network(N) as net:
        W = net.mixer(topology).compress(
            name, feedback=feedback, gamma=0.3, seed=4, **SMALL.get(name, {})
        )
        Y = X[net.lo : net.hi]
        for k in range(5):
            Y = W.at(k)(Y)
        want = dense(topology.W.toarray(), W.codec, X, feedback, 0.3, 5)
        np.testing.assert_allclose(Y, want[net.lo : net.hi], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "transport, name",
    [("shared", name) for name in CODECS]
    + [
        pytest.param(
            transport, name, marks=() if name in ("blockwise8", "top_k") else pytest.mark.slow
        )
        for transport in ("neighbor", "p2p")
        for name in CODECS
    ],
)
@pytest.mark.parametrize("feedback", [False, True])
def test_bits_do_not_depend_on_the_ranks(name, feedback, transport):
    X = stack(dtype=np.float32 if feedback else float)
    with (
        mpidec.Network(N, transport=transport) as net,
        mpidec.Network(N, comm=MPI.COMM_SELF) as alone,
    ):
        W, W_alone = (
            of.mixer(T.exponential(N)).compress(name, feedback=feedback, **SMALL.get(name, {}))
            for of in (net, alone)
        )
        Y, Y_alone = X[net.lo : net.hi], X
        for k in range(4):
            Y, Y_alone = W.at(k)(Y), W_alone.at(k)(Y_alone)
            np.testing.assert_array_equal(Y, Y_alone[net.lo : net.hi])
        assert (
            net.comm.allreduce(W.bytes)
            == W_alone.bytes
            == W_alone.messages * W.codec.nbytes(D, X.dtype)
        )
        assert net.comm.allreduce(W.messages) == W_alone.messages
        assert W.rounds == 4


@pytest.mark.serial
@pytest.mark.parametrize("name", LOSSY)
def test_feedback_reaches_the_exact_average(name):
    X = stack()
    with mpidec.Network(N, comm=MPI.COMM_SELF) as net:
        W = net.mixer(T.exponential(N)).compress(name, feedback=True, **SMALL.get(name, {}))
        for _ in range(600):
            X = W(X)
    np.testing.assert_allclose(X, np.tile(stack().mean(axis=0), (N, 1)), atol=1e-9)


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("name", some(CODECS))
def test_the_average_is_kept_whatever_is_lost(name, feedback):
    X = stack()
    with mpidec.Network(N) as net:
        W = net.mixer(T.ring(N)).compress(name, feedback=feedback, **SMALL.get(name, {}))
        Y = X[net.lo : net.hi]
        for k in range(100):
            Y = W.at(k)(Y)
        np.testing.assert_allclose(net.mean(Y), X.mean(axis=0), rtol=1e-13)


@pytest.mark.serial
@pytest.mark.parametrize("name", CODECS)
def test_the_average_does_not_drift(name):
    X = stack()
    with mpidec.Network(N) as net:
        W = net.mixer(T.ring(N)).compress(name, feedback=False, **SMALL.get(name, {}))
        for _ in range(2000):
            X = W(X)
    np.testing.assert_allclose(X.mean(axis=0), stack().mean(axis=0), rtol=1e-14)


@pytest.mark.parametrize(
    "dtype, weight, spread, tol",
    [(np.float32, 2.0**-12, 2.0**-6, 1e-6), (float, 2.0**-30, 2.0**-10, 1e-15)],
)
def test_small_differences_of_rows_keep_their_digits(dtype, weight, spread, tol):
    """(W - I) X is 2^40 (float32: 2^18) times smaller than X; products with these weights are exact."""
    n = 8
    X = (1 + spread * np.random.default_rng(0).random((n, D))).astype(dtype)
    with mpidec.Network(n) as net:
        W, own = net.mixer(T.complete(n, weights=weight)).at(0), X[net.lo : net.hi]
        got = W.difference(own, W.fetch(own).wait(), np.empty_like(own))
        want = weight * (X.astype(np.longdouble).sum(axis=0) - n * X.astype(np.longdouble))
        np.testing.assert_allclose(
            got, want[net.lo : net.hi].astype(float), rtol=tol, atol=tol * weight * spread
        )


@pytest.mark.parametrize("name", ["float16", "bfloat16", "blockwise8", "top_k", "rand_k"])
def test_rows_that_agree_stay_as_they_are(name):
    x = np.tile(stack(1), (N, 1))
    with mpidec.Network(N) as net:
        W, X = net.mixer(T.exponential(N)).compress(name, feedback=False), x[net.lo : net.hi]
        np.testing.assert_array_equal(W(X), X)


def test_column_stochastic_weights_keep_the_sum():
    topology, X = T.star(N, weights="push"), stack()
    with mpidec.Network(N) as net:
        W = net.mixer(topology).compress("top_k", fraction=0.2)
        Y = X[net.lo : net.hi]
        for k in range(50):
            Y = W.at(k)(Y)
        np.testing.assert_allclose(net.sum(Y), X.sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("make", [T.one_peer_exponential, T.ceca])
def test_schedules_go_without_feedback(make):
    X = stack()
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        W, W_alone = (of.mixer(make(N)).compress("blockwise8") for of in (net, alone))
        Y, Y_alone = X[net.lo : net.hi], X
        for _ in range(7):
            Y, Y_alone = W(Y), W_alone(Y_alone)
        np.testing.assert_array_equal(Y, Y_alone[net.lo : net.hi])
        np.testing.assert_allclose(Y_alone, [X.mean(axis=0)] * N, atol=0.4)
        with pytest.raises(
            ValueError, match="error feedback needs the same neighbours at every step"
        ):
            net.mixer(make(N)).compress("top_k")


@pytest.mark.serial
def test_bytes_of_the_top_percent_of_16_megabytes():
    d = 1 << 21
    with mpidec.Network(2) as net:
        W = net.mixer(T.ring(2)).compress("top_k", fraction=0.01)
        W(np.zeros((net.m, d)))
        assert net.comm.allreduce(W.messages) == 2
        assert net.comm.allreduce(W.bytes) / (2 * 8 * d) <= 0.016


@pytest.mark.parametrize("name", ["qsgd", "rand_k"])
def test_the_seed_reaches_the_codec(name):
    X, graph, options = stack(), T.ring(N), SMALL.get(name, {})
    with mpidec.Network(N) as net:
        own = slice(net.lo, net.hi)
        for given, seed in (({}, 0), ({"seed": 0}, 0), ({"seed": 3}, 3)):
            made = codec(name, seed=seed, **options)
            want = dense(graph.W.toarray(), made, X, False, 0.3, 1)[own]
            for W in (
                net.mixer(graph).compress(name, feedback=False, gamma=0.3, **given, **options),
                net.mixer(graph).compress(made, feedback=False, gamma=0.3),
            ):
                np.testing.assert_allclose(W(X[own]), want, rtol=1e-12, atol=1e-12)
        with pytest.raises(ValueError, match="already has its parameters, got seed"):
            net.mixer(graph).compress(codec(name), seed=3)
        net.mixer(graph).compress("float16", seed=3)  # draws nothing: the seed has no effect


def test_the_interface_is_that_of_a_mixer():
    with mpidec.Network(N) as net:
        plain = net.mixer(T.ring(N))
        for W in (
            plain,
            plain.compress("float16"),
            plain.compress("qsgd", feedback=True),
            plain.accelerate(2),
            plain.compress("qsgd", feedback=True).accelerate(2),
        ):
            assert (
                isinstance(W, Operator)
                and isinstance(W.at(3), StepOperator)
                and isinstance(W.at(3).next, StepOperator)
            )
            assert (
                W.topology is plain.topology and (W.n, W.m) == (N, net.m) and W.agents == net.agents
            )
            assert W.counts is plain.counts
            before = W.rounds, W.messages, W.bytes
            W(np.ones((net.m, 3)))
            assert (
                before[0] < W.rounds == plain.rounds
                and W.messages == plain.messages
                and W.bytes == plain.bytes
            )
            assert W.feedback == bool(W.memory())
        W.close()
        with pytest.raises(RuntimeError, match="is closed"):
            W(np.ones((net.m, 3)))


@pytest.mark.parametrize(
    "memory, message",
    [
        ({"0_3_d": np.zeros((N + 1, 3))}, "expected .*the rows of the local agents"),
        ({"0_3_d": np.zeros((N, 4))}, "memory 0_3_d has shape"),
    ],
)
def test_a_memory_of_another_shape_is_refused(memory, message):
    with mpidec.Network(N) as net, pytest.raises(ValueError, match=message):
        net.mixer(T.ring(N)).compress("top_k").recall(memory)


def test_each_call_of_a_step_has_its_own_memory():
    X, Z = stack(), stack(seed=1)
    with mpidec.Network(N) as net:
        both, one, two = (net.mixer(T.ring(N)).compress("top_k", fraction=0.2) for _ in range(3))
        A, B, A_alone, B_alone = (
            X[net.lo : net.hi],
            Z[net.lo : net.hi],
            X[net.lo : net.hi],
            Z[net.lo : net.hi],
        )
        for k in range(6):
            W = both.at(k)
            A, B = W(A), W(B)
            A_alone, B_alone = one.at(k)(A_alone), two.at(k)(B_alone)
        np.testing.assert_array_equal(A, A_alone)
        np.testing.assert_array_equal(B, B_alone)
        assert sorted(both.memory()) == [f"0_{D}_d", f"1_{D}_d"]
        assert all(hat.shape == (net.m, D) for hat in both.memory().values())


def test_each_call_and_each_edge_has_its_own_random_numbers():
    with mpidec.Network(N) as net:
        W, X = (
            net.mixer(T.complete(N)).compress("qsgd", seed=1).at(3),
            np.tile(stack(1), (net.m, 1)),
        )
        once, again = net.comm.allgather(W(X)), net.comm.allgather(W(X))
        assert np.any(np.concatenate(once) != np.concatenate(again))
        arrived = np.concatenate(
            net.comm.allgather(W.exchange(W.to_edges(X)))
        )  # by receiver, then sender
        of_agent_0 = arrived.reshape(N, N - 1, D)[1:, 0]
        assert len(np.unique(of_agent_0, axis=0)) == N - 1


def test_many_under_way_and_in_any_order():
    X = stack()
    with mpidec.Network(N) as net:
        W, V = (net.mixer(T.ring(N)).compress("top_k", fraction=0.2) for _ in range(2))
        rows = [X[net.lo : net.hi] * k for k in range(1, 5)]
        pending = [W.start(row) for row in rows]
        late = [pending[k].wait() for k in (2, 0, 3, 1)]
        now = [V(row) for row in rows]
        for k, Y in zip((2, 0, 3, 1), late):
            np.testing.assert_array_equal(Y, now[k])
        out = net.empty(D)
        assert W(X[net.lo : net.hi], out=out) is out
        np.testing.assert_array_equal(out, V(X[net.lo : net.hi]))


def test_the_memory_goes_on_in_another_mixer():
    X = stack()
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        whole = alone.mixer(T.ring(N)).compress("top_k", fraction=0.2)
        Y = X
        for k in range(5):
            Y = whole.at(k)(Y)
        W = net.mixer(T.ring(N)).compress("top_k", fraction=0.2)
        W.recall({key: hat[net.lo : net.hi] for key, hat in whole.memory().items()})
        np.testing.assert_array_equal(W.at(5)(Y[net.lo : net.hi]), whole.at(5)(Y)[net.lo : net.hi])


@pytest.mark.parametrize("name", ["identity", "float16", "blockwise8", "qsgd"])
def test_exchanges_are_encoded_edge_by_edge(name):
    X = stack(shape=(2, 5))
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        got, W = [], None
        for of in (net, alone):
            W = of.mixer(T.binary_tree(N)).compress(name, **SMALL.get(name, {}))
            phase = W.at(3)
            M = phase.exchange(phase.to_edges(X[of.lo : of.hi]))
            assert M.shape == (phase.in_edges, 2, 5)
            got.append(phase.sum_edges(M))
        np.testing.assert_array_equal(got[0], got[1][net.lo : net.hi])
        plain = alone.mixer(T.binary_tree(N)).at(0)
        np.testing.assert_allclose(
            got[1],
            plain.sum_edges(plain.exchange(plain.to_edges(X))),
            rtol=0 if name == "identity" else 2,
            atol=0 if name == "identity" else 1e-9,
        )
        assert W.bytes == W.messages * W.codec.nbytes(10, float)
        with pytest.raises(ValueError, match="is sent without error feedback"):
            net.mixer(T.binary_tree(N)).compress("top_k").at(0).exchange(np.zeros((0, 3)))


def test_fewer_agents_than_ranks_and_no_columns():
    for n in (1, 2):
        with mpidec.Network(n) as net:
            for name in QUICK:
                for feedback in (False, True):
                    W = net.mixer(T.ring(n)).compress(name, feedback=feedback)
                    assert W(np.ones((net.m, 3))).shape == (net.m, 3)
                    assert W(np.ones((net.m, 0))).shape == (net.m, 0)
                    assert W(np.ones(net.m)).shape == (net.m,)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda W: W.compress("top_l"), ValueError, "did you mean top_k"),
        (lambda W: W.compress("top_k", frac=1), ValueError, "did you mean fraction"),
        (
            lambda W: W.compress("top_k", gamma=0),
            ValueError,
            "gamma is 0, expected a finite number > 0",
        ),
        (
            lambda W: W.compress("top_k").compress("float16"),
            ValueError,
            "compressed already: compress once",
        ),
        (
            lambda W: W.accelerate(2).compress("float16"),
            ValueError,
            r"W.compress\(...\).accelerate\(K\)",
        ),
        (
            lambda W: W.compress("float16")(np.ones((W.m, 2), np.longdouble)),
            TypeError,
            "codecs know float32 and float64",
        ),
        (
            lambda W: W.compress("float16")(np.ones((W.m + 1, 2))),
            ValueError,
            "one row for each agent",
        ),
        (lambda W: W.compress("float16")([np.ones((W.m, 2))], out=1), TypeError, "expected none"),
        (
            lambda W: W.compress("float16", feedback=False).recall({"a": 1}),
            ValueError,
            "without error feedback has no memory",
        ),
        (
            lambda W: [Wk(np.ones((W.m, 1))) for Wk in [W.compress("top_k").at(0)] * 65],
            RuntimeError,
            "the operator of each step",
        ),
    ],
)
def test_wrong_use_is_named(call, error, message):
    with mpidec.Network(N) as net, pytest.raises(error, match=message):
        call(net.mixer(T.ring(N)))


def test_a_codec_of_ones_own():
    class Halves(Codec):
        def nbytes(self, d, dtype):
            return d * np.dtype(dtype).itemsize

        def encode(self, X, step, agents):
            return (X / 2).view(np.uint8)

        def decode(self, rows, d, dtype, step, agents):
            return np.ascontiguousarray(rows).view(dtype).reshape(len(rows), d)

        def delta(self, d):
            return 0.75

    X = stack()
    with mpidec.Network(N) as net:
        W = net.mixer(T.ring(N)).compress(Halves(), feedback=False, gamma=1)
        np.testing.assert_allclose(
            W(X[net.lo : net.hi]),
            ((np.eye(N) + T.ring(N).W.toarray()) / 2 @ X)[net.lo : net.hi],
            rtol=1e-13,
        )
        assert codec(W.codec) is W.codec
