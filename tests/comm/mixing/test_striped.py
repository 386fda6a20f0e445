"""Columns that several graphs divide among them."""

import numpy as np
import pytest
from helpers.losses import masks, stack, weights

import mpidec
from mpidec import topology as T

N, D = 7, 5


@pytest.mark.parametrize("lossy", [False, True])
def test_columns_are_divided_among_graphs(lossy):
    X, lost = stack(), masks(3)
    graphs = T.striped([T.binary_tree(N), T.ring(N), T.star(N)])
    want, edges = np.empty_like(X), []
    for stripe, graph in enumerate(graphs):
        V = graph.W.toarray()
        V = weights(V, lost[1, stripe], "renormalize") if lossy else V
        want[:, stripe::3] = (V @ X)[:, stripe::3]
        arrives = ~lost[1, stripe] if lossy else np.ones((N, N), bool)
        edges.append((np.where(V != 0, 1, 0) - np.eye(N)) * arrives)
    with mpidec.Network(N) as net:
        mixer, here = net.mixer(graphs), slice(net.lo, net.hi)
        W = (mixer.lossy(lost) if lossy else mixer).at(1)
        np.testing.assert_allclose(W(X[here]), want[here], atol=1e-15)
        A, B, C = W([X[here], X[here, :4], X[here, :1]])  # each array is divided by itself
        np.testing.assert_array_equal(A[:, :4], B)
        np.testing.assert_array_equal(A[:, :1], C)
        sums = W.sum_edges(W.exchange(W.to_edges(X[here])))
        for stripe in range(3):
            np.testing.assert_allclose(
                sums[:, stripe::3], (edges[stripe] @ X)[here, stripe::3], atol=1e-14
            )
        one = mixer.bytes
        mixer(X[here])
        sent = net.sum(np.full((net.m, 1), (mixer.bytes - one) / net.m))
        assert sent.item() == pytest.approx(
            8 * sum(g.source.arcs * len(range(stripe, D, 3)) for stripe, g in enumerate(graphs))
        )
