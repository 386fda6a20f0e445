"""Schedules from a function.  No MPI."""

import networkx as nx
import numpy as np
import pytest
from helpers.graphs import dense_weights

import mpidec.topology as T

pytestmark = pytest.mark.serial


def drawn(k, n=9):
    edges = np.triu(np.random.default_rng(k).random((n, n)) < 0.3, 1)
    return edges | edges.T


def test_edges_get_weights_and_matrices_keep_theirs():
    metropolis = T.from_function(9, drawn)
    uniform = T.from_function(
        9, lambda k: drawn(k) | np.eye(9, dtype=bool), kind="row", weights="uniform"
    )
    networkx = T.from_function(9, lambda k: nx.from_numpy_array(drawn(k)))
    for k in (0, 5, 6):
        A = drawn(k)
        expected = dense_weights(A, "metropolis")
        for schedule in metropolis, networkx, T.from_function(9, lambda k, W=expected: W):
            assert schedule.at(k).kind == "doubly" and not schedule.directed
            np.testing.assert_allclose(schedule.at(k).W.toarray(), expected, atol=3e-16)
            assert schedule.at(k).out_neighbors(3).tolist() == np.flatnonzero(A[3]).tolist()
        np.testing.assert_allclose(
            uniform.at(k).W.toarray(), dense_weights(A, "uniform"), atol=3e-16
        )
    push = T.from_function(4, lambda k: T.star(4, weights="push"), kind="column")
    assert push.at(3) == T.star(4, weights="push") and push.directed


def test_the_gap_is_that_of_the_mean_square():
    schedule = T.from_function(9, drawn)
    J = np.full((9, 9), 1 / 9)
    squares = [(W - J).T @ (W - J) for W in (schedule.at(k).W.toarray() for k in range(200))]
    expected = 1 - np.linalg.norm(np.mean(squares, axis=0), 2) ** 0.5
    assert schedule.spectral_gap() == pytest.approx(expected, abs=1e-12)
    assert len(schedule.plot().axes) == 8


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (np.eye(3) * 0.9, {}, r"step 2: agent 0: row of W sums to 0.9, expected 1 \(kind="),
        (
            np.array([[1.0, 0, 0], [1, 0, 0], [0, 0, 1]]),
            {},
            "step 2: agent 0: column of W sums to 2",
        ),
        (np.array([[1.5, -0.5], [-0.5, 1.5]]), {}, r"step 2: agent 0: W\[0, 1\] = -0.5"),
        (np.full((3, 3), np.nan), {}, "step 2: agent 0: .* nan, expected a finite number"),
        (np.eye(2), {}, "step 2: the graph has 2 agents, expected 3"),
        (T.star(3, weights="push"), {}, 'column stochastic, expected doubly .*kind="column"'),
        (T.star(3).W.toarray() > 0, {"weights": "uniform"}, 'row stochastic, .*kind="row"'),
        (np.ones((3, 3), complex), {}, "entries of type complex128"),
    ],
)
def test_what_the_function_returns_is_checked(made, options, message):
    schedule = T.from_function(3, lambda k: np.eye(3) if k < 2 else made, **options)
    schedule.at(1)
    with pytest.raises((ValueError, TypeError), match=message):
        schedule.at(2)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"expected a function of \(k\)"):
        T.from_function(3, np.eye(3))
    with pytest.raises(ValueError, match="weights is 'fdla', expected weights that agents know"):
        T.from_function(3, drawn, weights="fdla")
    with pytest.raises(ValueError, match=r"failing_links: .* from_function"):
        T.failing_links(T.from_function(9, drawn))
    signed = np.array([[1.5, -0.5], [-0.5, 1.5]])
    assert (T.from_function(2, lambda k: signed, signed=True).at(0).W.toarray() == signed).all()
