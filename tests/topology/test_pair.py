"""Pairs of weightings of one graph."""

import numpy as np
import pytest

from mpidec import topology as T


def degrees(A):
    """The two weightings by definition, of a graph in which agent i receives from j where A[i, j]."""
    A = A.astype(float) + np.eye(len(A))
    return A / A.sum(axis=1, keepdims=True), A / A.sum(axis=0)


@pytest.mark.serial
def test_the_weights_of_a_digraph_and_of_a_graph():
    networkx = pytest.importorskip("networkx")
    G = networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2), (3, 0), (2, 3)])
    A = networkx.to_numpy_array(G, nodelist=range(4)).T
    star = np.zeros((5, 5))
    star[0, 1:] = star[1:, 0] = 1
    for W, adjacency in (
        (T.from_networkx(G, "push-pull"), A),
        (T.star(5, weights="push-pull"), star),
    ):
        R, C = degrees(adjacency)
        np.testing.assert_allclose(W.R.W.toarray(), R, rtol=1e-15)
        np.testing.assert_allclose(W.C.W.toarray(), C, rtol=1e-15)
        assert (W.kind, W.R.kind, W.C.kind) == ("pair", "row", "column")
        second = [sorted(abs(np.linalg.eigvals(M)))[-2] for M in (R, C)]
        assert W.spectral_gap() == pytest.approx(1 - max(second), abs=1e-12)
    assert T.exponential(6, weights="push-pull") == T.exponential(6)
    assert T.star(5, weights="push-pull") != T.star(5, weights="uniform")
