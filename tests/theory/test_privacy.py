"""Privacy accounts against closed forms, covariances of all that an agent sees, and attacks."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from scipy.stats import norm

import mpidec
from mpidec import theory, topology
from mpidec.comm.mixing.internals import Channel, Fault, LinkNoise
from mpidec.theory.accounting import epsilon

pytestmark = pytest.mark.serial


def seen_by(v, graph, mixings):
    """The means of the messages that v receives, for each initial row, and their covariance with
    unit noise: from the map of every number that is drawn to every message.
    """
    n = graph.n
    edges = [(k, i, j) for k in range(mixings) for i in range(n) for j in range(n) if i != j]
    known = {(k, i, v) for k, i, _ in edges}
    at = {edge: n + place for place, edge in enumerate(edges)}
    X, messages = np.eye(n, n + len(edges)), []
    for k in range(mixings):
        W = graph.at(k).W.toarray()
        Y = np.diag(W.diagonal()) @ X
        for i, j in zip(*np.nonzero(W - np.diag(W.diagonal()))):
            row = X[j].copy()
            row[at[k, i, j]] += 1
            messages += [row] if i == v else []
            Y[i] += W[i, j] * row
        X = Y
    seen = np.array(messages)
    noise = [at[edge] for edge in edges if edge not in known]
    return seen[:, :n], seen[:, noise] @ seen[:, noise].T


@pytest.mark.parametrize(
    "graph",
    [
        topology.erdos_renyi(6, p=0.5, seed=3),
        topology.exponential(5),
        topology.one_peer_exponential(8),
        topology.random_matchings(topology.ring(6), seed=2),
    ],
    ids=lambda graph: graph.name,
)
def test_averaging_has_the_divergence_of_the_joint_gaussian(graph):
    sigma, clip, mixings = 1.7, 0.6, 5
    mu = theory.privacy(graph, sigma, clip, mixings=mixings).mu
    for v in range(graph.n):
        a, S = seen_by(v, graph, mixings)
        told = (2 * clip / sigma) ** 2 * np.diag(a.T @ np.linalg.solve(S, a))
        others = np.arange(graph.n) != v
        np.testing.assert_allclose(mu[others, v] ** 2, told[others], rtol=1e-9, atol=1e-18)
        assert mu[v, v] == 0


def test_on_complete_graphs_there_is_a_closed_form():
    n, sigma, clip = 7, 2.0, 1.5
    q = (n - 2) / n**2
    more = [1, (n - 1) / n**2 / (1 + q)]
    c = q / (1 + q) * (n - 1) / n**2
    more += [((n - 1) / n**2 / (1 + q)) ** 2 * (n - 1) / (1 + q + c * (n - 1))]
    for mixings in 1, 2, 3:
        a = theory.privacy(topology.complete(n), sigma, clip, mixings=mixings)
        want = 2 * clip / sigma * np.sqrt(sum(more[:mixings])) * (1 - np.eye(n))
        np.testing.assert_allclose(a.mu, want, rtol=1e-12)
        np.testing.assert_allclose(a.renyi(3.0), 1.5 * want**2, rtol=1e-12)
        assert a.worst == pytest.approx(a.mean) == pytest.approx(a.epsilon[0, 1])


def test_epsilon_is_where_the_gaussian_mechanism_has_delta():
    mu, delta = np.array([1e-3, 0.05, 0.5, 2.0, 30.0]), 1e-6
    e = epsilon(mu, delta)
    found = norm.cdf(mu / 2 - e / mu) - np.exp(e + norm.logcdf(-mu / 2 - e / mu))
    np.testing.assert_allclose(found[e > 0], delta, rtol=1e-6)
    rho, orders = mu[:, None] ** 2 / 2, 1 + np.geomspace(1e-3, 1e5, 4000)
    renyi = (orders * rho - np.log(delta) / (orders - 1)).min(axis=1)
    assert (e < renyi).all()
    assert (e > 0.75 * renyi)[2:].all()


def test_messages_count_at_both_ends_and_only_where_they_get():
    star, K = topology.star(5), 3
    mu = theory.privacy(star, 1.0, 0.5, mixings=K, account="messages", rows=2).mu
    assert mu[0, 1] == pytest.approx(np.sqrt(2 * K)) == mu[1, 0] == mu[1, 2]
    assert theory.privacy(star, 1.0, 0.5, mixings=1, account="messages").mu[1, 2] == 0
    peers = topology.one_peer_exponential(8)
    mu = theory.privacy(peers, 1.0, 0.5, mixings=4, account="messages").mu
    np.testing.assert_allclose(mu, 2 * (1 - np.eye(8)))
    mu = theory.privacy(peers, 1.0, 0.5, mixings=1, account="messages").mu
    np.testing.assert_array_equal(mu.T != 0, peers.at(0).W.toarray() - np.eye(8) / 2 != 0)


class Overheard(Fault):
    """What arrives over each edge."""

    call = "noisy"

    def __init__(self):
        self.rows = []

    def __str__(self):
        return ""

    def arrive(self, rows, at, call):
        self.rows.append(rows.copy())
        return rows


def advantage(graph, u, v, mixings, sigma, clip, delta, account, runs=40_000):
    """The largest excess over delta of what v finds out, by a likelihood ratio learned from other
    runs, about which of two initial rows agent u has.
    """
    n, secret = graph.n, np.repeat([-clip, clip], runs // 2)
    ear = Overheard()
    with mpidec.Network(n, comm=MPI.COMM_SELF) as net:
        W = Channel(net.mixer(graph), [LinkNoise(sigma, 5), ear])
        X = np.zeros((n, runs))
        X[u] = secret
        starts = [X]
        for k in range(mixings):
            X = W.at(k)(X)
            starts.append(X)
    edges = [(i, int(j)) for i in range(n) for j in graph.in_neighbors(i)]
    into, out = ([e[end] == v for e in edges] for end in (0, 1))
    features = [rows[into] for rows in ear.rows]
    features += [rows[out] - X[v] for X, rows in zip(starts, ear.rows)]
    F, half = np.vstack(features), np.arange(runs) % 2 == 0
    apart = F[:, half & (secret > 0)].mean(axis=1) - F[:, half & (secret < 0)].mean(axis=1)
    spread = np.cov(F[:, half] - np.outer(apart, secret[half]) / (2 * clip))
    score = np.linalg.solve(spread, apart) @ F[:, ~half]
    true = np.sort(score[secret[~half] > 0])
    false = np.sort(score[secret[~half] < 0])
    at = np.linspace(true.min(), true.max(), 400)
    hits, alarms = (1 - np.searchsorted(s, at) / len(s) for s in (true, false))
    e = account.epsilon[u, v]
    return (hits - np.exp(e) * alarms).max() - delta


def test_a_membership_attack_gets_no_further_than_the_account_and_a_wrong_one_is_noticed():
    graph, u, v, mixings, delta = topology.ring(5), 0, 2, 4, 0.1
    sigma, clip = 0.6, 1.0
    account = theory.privacy(graph, sigma, clip, mixings=mixings, delta=delta)
    setting = (graph, u, v, mixings)
    fair = advantage(*setting, sigma, clip, delta, account)
    assert -0.03 < fair < 0.015  # the bound holds, and the best attack comes close to it
    assert advantage(*setting, sigma / 2, clip, delta, account) > 0.1


def test_refusals():
    ring = topology.ring(4)
    for options, text in [
        ({"mixings": 0}, "mixings is 0"),
        ({"mixings": 1, "delta": 1.0}, "delta is 1"),
        ({"mixings": 1, "account": "local"}, "account is 'local'"),
    ]:
        with pytest.raises(ValueError, match=text):
            theory.privacy(ring, 1.0, 1.0, **options)
    with pytest.raises(ValueError, match="several graphs"):
        theory.privacy(topology.double_binary_trees(7), 1.0, 1.0, mixings=1)
    with pytest.raises(TypeError, match="topology is 'ring', expected one with its agents"):
        theory.privacy("ring", 1.0, 1.0, mixings=1)
