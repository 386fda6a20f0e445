"""Weights that change on a graph, and graphs that change, against mixers that are kept."""

import numpy as np
import pytest
from helpers.mixing import TRANSPORTS, random_weights, stack

import mpidec
from mpidec import topology as T
from mpidec.comm.kernels import weighted

pytestmark = [pytest.mark.wide, pytest.mark.library]


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(weighted, "_dense", None)
    elif weighted._dense is None:
        pytest.skip("the kernel is not compiled")


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [1, 5, 13])
def test_weights_that_change_have_the_bits_of_a_kept_mixer(n, transport):
    X, W_dense = stack(n, (3, 2)), random_weights(n, seed=1)
    with mpidec.Network(n, transport=transport) as net:
        W = net.mixer(T.from_weights(W_dense))
        sent = 0
        for k in range(3):
            A = W_dense * np.random.default_rng(k).uniform(0.1, 1, (n, n))
            if k == 2:  # some edges have the weight 0
                A[np.random.default_rng(k).random((n, n)) < 0.5] = 0
                A[range(n), range(n)] += 0.1
            A /= A.sum(axis=1, keepdims=True)
            kept = net.mixer(T.from_weights(A, connected=False))
            expected = kept(X[net.lo : net.hi])
            for given in A, A[net.lo : net.hi]:
                made = W.with_weights(given)
                np.testing.assert_array_equal(made(X[net.lo : net.hi]), expected)
                np.testing.assert_array_equal(made.next.at(7)(X[net.lo : net.hi]), expected)
                sent += 2 * np.count_nonzero(W_dense[:, net.lo : net.hi]) - 2 * net.m
            np.testing.assert_array_equal(
                made.own(X[net.lo : net.hi]),
                np.diag(A)[net.lo : net.hi, None, None] * X[net.lo : net.hi],
            )
        assert W.messages == sent
        expected = np.tensordot(W_dense, X, 1)[net.lo : net.hi]
        np.testing.assert_allclose(W(X[net.lo : net.hi]), expected, rtol=1e-13, atol=1e-14)


def test_a_neighbour_of_weight_zero_has_no_influence():
    with mpidec.Network(6) as net:
        X = np.ones((6, 2))
        X[2] = np.nan
        A = T.ring(6).W.toarray()
        A[1], A[3] = np.eye(6)[1], np.eye(6)[3]
        Y = net.mixer("ring").with_weights(A)(X[net.lo : net.hi])
        wrong = [i for i in net.agents if np.isnan(Y[i - net.lo]).any()]
        assert wrong == [i for i in net.agents if i == 2]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_wrong_weights_are_refused_and_all_go_on(transport):
    ring = T.ring(7).W.toarray()
    sums, beside, negative, nan = (ring.copy() for _ in range(4))
    sums[range(7), range(7)] += 0.01
    beside[:, :] = 1 / 7
    negative[range(7), range(7)] += 0.5
    negative[range(7), np.arange(-1, 6)] -= 0.5
    nan[range(7), range(7)] = np.nan
    with mpidec.Network(7, transport=transport) as net:
        W = net.mixer("ring")
        for A, message in (
            (sums, "row of A sums to 1.01"),
            (beside, r"A\[\d, \d\] is 0.142857, expected 0 where agent"),
            (negative, r"is -0.166667, expected >= 0"),
            (nan, "row of A sums to nan"),
            (ring[:, :-1], r"A has shape \(7, 6\)"),
            (ring * 1j, "dtype complex128"),
        ):
            if net.m or np.shape(A) != (7, 7) or np.iscomplexobj(A):
                with pytest.raises(ValueError, match=message):
                    W.with_weights(A)
        X = stack(7, (2,))
        np.testing.assert_allclose(W(X[net.lo : net.hi]), (ring @ X)[net.lo : net.hi], atol=1e-14)
        if net.size == 1:
            with pytest.raises(
                ValueError, match="has no transpose, which gradients are mixed with"
            ):
                _ = W.with_weights(ring).T
            push = net.mixer(T.star(7, weights="push"))
            with pytest.raises(
                ValueError, match="is of kind 'column', expected rows that sum to 1"
            ):
                push.with_weights(np.eye(7))
            for other in (W.repeat(2), W.compress("top_k", fraction=0.5).at(3), W.accelerate(2)):
                with pytest.raises(TypeError, match="expected the mixer of one graph itself"):
                    other.with_weights(ring)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["doubly", "row", "column"])
def test_graphs_that_change_have_the_bits_of_kept_mixers(kind, transport):
    n, weights = 9, {"doubly": "metropolis", "row": "uniform", "column": "push"}[kind]
    X = stack(n, (4,))

    def edges(k):
        drawn = np.random.default_rng(k).random((n, n)) < 0.3
        return drawn | drawn.T | np.eye(n, dtype=bool)

    def kept(k):
        import networkx

        graph = networkx.from_numpy_array(edges(k))
        return T.from_networkx(graph, weights, connected=False)

    with mpidec.Network(n, transport=transport) as net:
        W = net.mixer(T.from_function(n, edges, kind=kind, weights=weights))
        V = net.mixer(T.from_function(n, lambda k: kept(k).W.toarray(), kind=kind))
        Y = X[net.lo : net.hi]
        for k in range(6):
            expected = net.mixer(kept(k))(Y)
            Z = V(Y)
            Y = W(Y)
            np.testing.assert_array_equal(Y, Z)
            np.testing.assert_array_equal(Y, expected)
        assert (W.messages, W.bytes) == (V.messages, V.bytes)
        assert W.messages == sum(
            np.count_nonzero(edges(k)[:, net.lo : net.hi]) - net.m for k in range(6)
        )
