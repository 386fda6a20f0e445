"""Spectral gaps: BlueFog's numbers, and large graphs without dense matrices.  No MPI."""

import networkx as nx
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import mpidec.topology as T

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("make", "rho"),
    [
        (lambda: T.exponential(4), 1 / 3),
        (lambda: T.exponential(6), 1 / 2),
        (lambda: T.exponential(8), 1 / 2),
        (lambda: T.exponential(16), 0.6),
        (lambda: T.exponential(4, base=3), 1 / 3),
        (lambda: T.exponential(6, 3), 0.5773503),
        (lambda: T.symmetric_exponential(4), 1 / 3),
        (lambda: T.symmetric_exponential(6), 2 / 3),
        (lambda: T.symmetric_exponential(8), 1 / 2),
        (lambda: T.symmetric_exponential(4, base=2), 0),
        (lambda: T.symmetric_exponential(6, base=2), 0.2),
        (lambda: T.grid(4), 1 / 3),
        (lambda: T.grid(6), 0.75),
        (lambda: T.grid(8), 0.8535534),
        (lambda: T.grid(16), 0.8690343),
        (lambda: T.star(4), 3 / 4),
        (lambda: T.star(6), 5 / 6),
        (lambda: T.ring(4), 1 / 3),
        (lambda: T.ring(6), 2 / 3),
        (lambda: T.ring(8), 0.8047379),
        (lambda: T.ring(16), 0.9492530),
        (lambda: T.complete(7), 0),
    ],
)
def test_spectral_radii_that_bluefog_has(make, rho):
    assert 1 - make().spectral_gap() == pytest.approx(rho, abs=5e-4)


@threadpool_limits.wrap(limits=1)  # threads of BLAS that spin are slow where others use the cores
def test_large_spectra_without_dense_matrices():
    for topology in (
        T.chain(601),
        T.grid(625),
        T.star(700),
        T.erdos_renyi(700),
        T.from_weights(T.exponential(700).W),
    ):
        sigma = np.linalg.svd(topology.W.toarray(), compute_uv=False)
        assert topology.spectral_gap() == pytest.approx(1 - sigma[1], rel=1e-7)
    row = T.erdos_renyi(700, weights="uniform")
    values = np.sort(np.abs(np.linalg.eigvals(row.W.toarray())))
    assert row.spectral_gap() == pytest.approx(1 - values[-2], rel=1e-7)
    small = T.star(9, weights="uniform")
    assert small.spectral_gap() == pytest.approx(
        1 - np.sort(np.abs(np.linalg.eigvals(small.W.toarray())))[-2]
    )
    best = T.grid(625, weights="best_constant").W.toarray()
    values = np.linalg.eigvalsh(nx.laplacian_matrix(nx.grid_2d_graph(25, 25)).toarray())
    assert -best[0, 1] * (values[-1] + values[1]) == pytest.approx(-2, rel=1e-8)


@pytest.mark.parametrize("kind", ["doubly", "row", "column"])
def test_gaps_of_random_graphs_are_those_of_their_draws(kind):
    weights = {"doubly": "metropolis", "row": "uniform", "column": "push"}[kind]
    graph = T.erdos_renyi(9, p=0.4, seed=2, weights=weights)
    rng = np.random.default_rng(0)
    masks = [m | m.T for m in rng.random((200, 9, 9)) < 0.2]
    made = [
        T.failing_links(graph, 0.3),
        T.sleeping_agents(graph, 0.3),
        T.from_function(9, lambda k: masks[k], weights=weights, kind=kind),
    ]
    for schedule in made:
        D = np.array([schedule.at(k).W.toarray() for k in range(200)]) - 1 / 9
        E = np.einsum("kji,kjl->il", D, D) / 200
        assert schedule.kind == kind
        assert schedule.spectral_gap() == pytest.approx(
            1 - np.sqrt(np.linalg.eigvalsh(E)[-1]), rel=1e-9
        )
