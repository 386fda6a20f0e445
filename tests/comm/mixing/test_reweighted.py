"""Weights that change on a graph, and graphs that change, against mixers that are kept."""

import networkx
import numpy as np
import pytest
import scipy.sparse
from helpers.mixing import TRANSPORTS, random_weights, stack

import mpidec
from mpidec import topology as T
from mpidec.comm.kernels import weighted

pytestmark = [pytest.mark.wide, pytest.mark.library]


@pytest.fixture(params=["compiled", "numpy"])
def kernel(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(weighted, "_dense", None)
        monkeypatch.setattr(weighted, "_metropolis", None)
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
            own = np.diag(A)[net.lo : net.hi, None, None] * X[net.lo : net.hi]
            A[:] = 7  # what is made of A keeps its own weights
            np.testing.assert_array_equal(made(X[net.lo : net.hi]), expected)
            np.testing.assert_array_equal(made.own(X[net.lo : net.hi]), own)
            sent += np.count_nonzero(W_dense[:, net.lo : net.hi]) - net.m
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


def edges_at(k, n=9):
    """An undirected graph, another one at each step, with loops."""
    drawn = np.random.default_rng(k).random((n, n)) < 0.3
    return drawn | drawn.T


def weights_at(k, n=9):
    """Its lazy weights, by the formula."""
    E = edges_at(k, n) & ~np.eye(n, dtype=bool)
    degree = E.sum(axis=1)
    W = 0.5 * E / (1 + np.maximum.outer(degree, degree))
    return W + np.diag(1 - W.sum(axis=1))


KEPT = np.empty((9, 9))
FORMS = {
    "dense": weights_at,
    "one array": lambda k: np.copyto(KEPT, weights_at(k)) or KEPT,
    "Fortran": lambda k: np.asfortranarray(weights_at(k)),
    "big-endian": lambda k: weights_at(k).astype(">f8"),
    "list": lambda k: weights_at(k).tolist(),
    "bool": edges_at,
    "csr": lambda k: scipy.sparse.csr_array(weights_at(k)),
    "coo": lambda k: scipy.sparse.coo_matrix(weights_at(k)),
    "networkx": lambda k: networkx.from_numpy_array(edges_at(k)),
    "topology": lambda k: T.from_weights(weights_at(k), connected=False),
}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("form", FORMS)
def test_graphs_that_change_mix_by_the_dense_product_in_each_form(form):
    f = FORMS[form]
    with mpidec.Network(9) as net:
        W, V = (net.mixer(T.from_function(9, f, weights="lazy")) for _ in range(2))
        lo, hi = net.lo, net.hi
        for k in range(5):
            X = stack(9, (4,), seed=k)
            kept = net.mixer(T.from_weights(weights_at(k), connected=False))
            Y, expected = W(X[lo:hi]), kept(X[lo:hi])
            np.testing.assert_allclose(Y, (weights_at(k) @ X)[lo:hi], atol=1e-14)
            phase, _, before = V.at(k), V.at(k + 1), V.messages  # each step has its own terms
            np.testing.assert_array_equal(Y, expected)
            np.testing.assert_array_equal(phase(X[lo:hi]), expected)
            assert V.messages - before == kept.messages
            np.testing.assert_allclose(phase.own(X[lo:hi]), kept.at(0).own(X[lo:hi]), rtol=1e-15)
            edges = phase.to_edges(X[lo:hi])
            np.testing.assert_array_equal(edges, kept.at(0).to_edges(X[lo:hi]))
            np.testing.assert_allclose(phase.topology.W.toarray(), weights_at(k), atol=1e-15)
        assert (W.messages, W.bytes) == (V.messages, V.bytes)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("f", [weights_at, edges_at])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex128])
def test_graphs_that_change_take_rows_of_any_kind(f, dtype):
    with mpidec.Network(9) as net:
        W = net.mixer(T.from_function(9, f, weights="lazy"))
        for k, take in enumerate(
            (
                lambda mixer, X: mixer(X),
                lambda mixer, X: mixer(X, np.empty_like(X)),
                lambda mixer, X: mixer.start(X).wait(),
                lambda mixer, X: mixer(X[:, ::-1]),
                lambda mixer, X: mixer([X, X[:, 0]])[1],
                lambda mixer, X: mixer.with_weights(np.eye(9))(X),
            )
        ):
            X = stack(9, (4, 2), dtype, seed=k)[net.lo : net.hi]
            kept = net.mixer(T.from_weights(weights_at(k), connected=False))
            np.testing.assert_array_equal(take(W, X), take(kept, X))
            assert W.at(k).T.topology.kind == "doubly"


@pytest.mark.usefixtures("kernel")
def test_a_wrong_graph_is_refused_at_its_step_and_the_next_one_mixes():
    right = weights_at(0)
    sums, columns, negative, infinite = (right.copy() for _ in range(4))
    sums[1, 1] += 1e-9
    columns[0], columns[1] = np.eye(9)[0], np.eye(9)[0]
    negative[:2, :2] += [[-2, 2], [2, -2]]
    infinite[3, 4] = np.inf
    directed = np.triu(np.ones((9, 9), bool))
    wrong = {
        "agent 1: row of W sums to 1.000000001, expected 1": sums,
        "agent 0: column of W sums to ": columns,
        r"agent 0: W\[0, 0\] = -.*, expected >= 0": negative,
        r"agent 3: W\[3, 4\] = inf, expected a finite number": infinite,
        "lazy weights need an undirected or a regular graph": directed,
        r"the graph has 8 agents, expected 9": np.eye(8),
        "entries of type complex128": right * 1j,
        "entries of type bool": scipy.sparse.csr_array(edges_at(0)),
    }
    forms = list(wrong.items())
    forms += [(message, scipy.sparse.csr_array(A)) for message, A in forms[:4]]
    made = [right]
    with mpidec.Network(9) as net:
        W = net.mixer(T.from_function(9, lambda k: made[0], weights="lazy"))
        X = stack(9)
        x, expected = X[net.lo : net.hi], (right @ X)[net.lo : net.hi]
        W(x)
        for k, (message, given) in enumerate(forms):
            for mix in W, lambda x, k=k: W.at(100 + k)(x):
                made[0] = given
                with pytest.raises((TypeError, ValueError), match=f"from_function.*{message}"):
                    mix(x)
                made[0] = right
                np.testing.assert_allclose(mix(x), expected, atol=1e-14)
        made[0] = negative
        signed = net.mixer(T.from_function(9, lambda k: made[0], signed=True))
        np.testing.assert_allclose(
            signed(X[net.lo : net.hi]), (negative @ X)[net.lo : net.hi], atol=1e-13
        )


def test_the_function_is_called_once_per_step():
    calls = []

    def f(k):
        calls.append(k)
        return weights_at(k)

    with mpidec.Network(9) as net:
        W = net.mixer(T.from_function(9, f))
        for k in range(3):
            W(stack(9)[net.lo : net.hi])
            W.at(k)(stack(9)[net.lo : net.hi])
            W.T.at(k)
            assert W.topology.at(k).kind == "doubly"
        assert calls == [0, 1, 2]
        W.close()
        with pytest.raises(RuntimeError, match="is closed"):
            W(stack(9)[net.lo : net.hi])
