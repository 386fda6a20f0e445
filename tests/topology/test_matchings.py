"""Random matchings, MATCHA and spanning trees of given graphs: against enumeration and networkx.  No MPI."""

import itertools
import math
import pickle

import networkx as nx
import numpy as np
import pytest
from helpers.graphs import UNDIRECTED, edges_of

import mpidec.topology as T
from mpidec.topology.schedules.matchings import matching_decomposition, undirected_edges

pytestmark = pytest.mark.serial


def pairs(partner):
    return {(i, j) for i, j in enumerate(partner.tolist()) if i < j}


def greedy(edges):
    """The matching that takes the edges in this order."""
    taken, used = set(), set()
    for i, j in edges:
        if i not in used and j not in used:
            taken.add((i, j))
            used |= {i, j}
    return taken


# ---------------------------------------------------------------------------------------------------------------------
# Random matchings


def test_random_matchings_are_maximal_and_belong_to_seed_and_step():
    for graph in UNDIRECTED:
        schedule = T.random_matchings(graph, seed=3)
        for k in range(5):
            W = schedule.at(k).W.toarray()
            P = 2 * W - np.eye(graph.n)
            assert (np.eye(graph.n) == P @ P).all() and (P >= 0).all()
            chosen = pairs(P.argmax(axis=1))
            matched = {i for pair in chosen for i in pair}
            assert chosen <= edges_of(graph)
            assert all(matched & set(edge) for edge in edges_of(graph))
    schedule = T.random_matchings(T.torus(20), seed=3)
    copy = pickle.loads(pickle.dumps(schedule))
    forward = [schedule.at(k).fingerprint() for k in range(50)]
    assert [copy.at(k).fingerprint() for k in reversed(range(50))] == forward[::-1]
    assert len(set(forward)) == 50 and copy == schedule != T.random_matchings(T.torus(20), seed=4)


@pytest.mark.parametrize("graph", [T.chain(5), T.star(5), T.from_networkx(nx.lollipop_graph(3, 2))])
def test_expectation_of_random_matchings(graph):
    """All orders of the edges are equally likely."""
    edges, n = sorted(edges_of(graph)), graph.n
    orders = list(itertools.permutations(edges))
    p = {edge: sum(edge in greedy(order) for order in orders) / len(orders) for edge in edges}
    degree = [len(graph.neighbors(i)) for i in range(n)]
    assert all(p[i, j] >= 1 / (degree[i] + degree[j] - 1) - 1e-12 for i, j in edges)
    expected = np.eye(n)
    for (i, j), probability in p.items():
        b = np.eye(n)[i] - np.eye(n)[j]
        expected -= probability / 2 * np.outer(b, b)
    schedule = T.random_matchings(graph, seed=1)
    partners = [schedule._partners(k) for k in range(4000)]  # W = (I + P) / 2, as above
    mean = (np.eye(n) + np.eye(n)[np.array(partners)].mean(axis=0)) / 2
    assert abs(mean - expected).max() < 0.03  # four standard deviations of an entry
    rho = np.linalg.eigvalsh(expected - 1 / n)[-1]
    assert schedule.spectral_gap() == pytest.approx(1 - math.sqrt(rho), abs=0.02)


# ---------------------------------------------------------------------------------------------------------------------
# MATCHA


def test_graphs_are_divided_into_matchings():
    for graph in UNDIRECTED:
        partners = matching_decomposition(graph.n, *undirected_edges("", graph))
        most = max((len(graph.neighbors(i)) for i in range(graph.n)), default=0)
        assert len(partners) <= most + 1
        found = [pairs(partner) for partner in partners]
        assert sum(map(len, found)) == len(edges_of(graph)) and set().union(*found) == edges_of(
            graph
        )
        for partner in partners:
            assert (partner[partner] == np.arange(graph.n)).all()


def laplacians(schedule):
    n = schedule.n
    return [np.eye(n) - np.eye(n)[partner] for partner in schedule.matchings]


def lambda_2(p, L):
    return np.linalg.eigvalsh(np.tensordot(p, L, 1))[1]


@pytest.mark.parametrize("budget", [0.2, 0.5, 0.8])
def test_probabilities_of_matcha_are_the_best(budget):
    rng = np.random.default_rng(0)
    for graph in (
        T.erdos_renyi(9, 0.4, seed=2),
        T.binary_tree(8),
        T.from_networkx(nx.barbell_graph(4, 1)),
    ):
        schedule = T.matcha(graph, budget)
        p, L = schedule.probabilities, laplacians(schedule)
        assert (p >= 0).all() and (p <= 1).all() and p.mean() <= budget + 1e-6
        best = lambda_2(p, L)
        for scale in np.repeat(
            [1, 0.1, 1e-3], 300
        ):  # concave: no feasible point near or far is better
            q = np.clip(p + scale * rng.standard_normal(len(p)), 0, 1)
            q *= min(1, budget / max(q.mean(), 1e-12))
            assert lambda_2(q, L) <= best * (1 + 1e-5)
    two = T.matcha(T.chain(4), budget)  # {01, 23} and {12}
    grid = [
        np.array([q, 2 * budget - q])
        for q in np.linspace(max(0, 2 * budget - 1), min(1, 2 * budget), 2001)
    ]
    assert lambda_2(two.probabilities, laplacians(two)) == pytest.approx(
        max(lambda_2(q, laplacians(two)) for q in grid), rel=1e-5
    )


@pytest.mark.parametrize("budget", [0.3, 0.6, 1.0])
def test_weight_and_gap_of_matcha_by_enumeration(budget):
    schedule = T.matcha(T.from_networkx(nx.lollipop_graph(4, 3)), budget)
    L, p, n = laplacians(schedule), schedule.probabilities, schedule.n

    def rho(alpha):
        total = np.zeros((n, n))
        for active in itertools.product([0, 1], repeat=len(p)):
            W = np.eye(n) - alpha * np.tensordot(active, L, 1)
            total += np.prod(np.where(active, p, 1 - p)) * W.T @ W
        return np.linalg.eigvalsh(total - 1 / n)[-1]

    assert schedule.spectral_gap() == pytest.approx(1 - math.sqrt(rho(schedule.alpha)), abs=1e-12)
    best = rho(schedule.alpha)
    assert all(
        rho(alpha) >= best - 1e-9 for alpha in schedule.alpha * np.array([0.9, 0.99, 1.01, 1.1])
    )
    if budget == 1:
        graph = T.from_networkx(nx.lollipop_graph(4, 3), "best_constant")
        np.testing.assert_allclose(schedule.at(7).W.toarray(), graph.W.toarray(), atol=1e-5)


def test_matchings_of_matcha_are_active_as_often_as_they_should():
    schedule = T.matcha(T.erdos_renyi(9, 0.4, seed=2), 0.4, seed=5)
    copy, n = pickle.loads(pickle.dumps(schedule)), schedule.n
    W = [schedule.at(k).W.toarray() for k in range(2000)]
    assert all((copy.at(k).W.toarray() == W[k]).all() for k in (1999, 0, 17))
    expected = np.eye(n) - schedule.alpha * np.tensordot(
        schedule.probabilities, laplacians(schedule), 1
    )
    assert abs(np.mean(W, axis=0) - expected).max() < 0.02
    assert len({matrix.tobytes() for matrix in W}) > 10


# ---------------------------------------------------------------------------------------------------------------------
# Wrong calls


WRONG = [
    (lambda: T.matcha(T.ring(6), 0), "matcha: budget is 0, expected"),
    (
        lambda: T.matcha(T.exponential(6)),
        "matcha: exponential is directed, expected an undirected graph",
    ),
    (lambda: T.random_matchings(T.one_peer_exponential(6)), "expected a constant topology such as"),
    (lambda: T.random_matchings(T.ring(6)).at(-1), "random_matchings.at: k is -1"),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words[-24:] for _, words in WRONG])
def test_wrong_calls_say_what_is_wrong(call, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert words in str(caught.value)
