"""Robust rules in place of the average, against their definitions."""

import numpy as np
import pytest
from helpers.faults import stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T


def clip_gossip(W, own, sent, tau=None, delta=None):
    """Self-centred clipping of the rows `sent`, agent by agent."""
    Y = own.copy()
    for i in range(len(W)):
        far = sorted((np.linalg.norm(sent[j] - own[i]), j) for j in np.flatnonzero(W[i]) if j != i)
        radius, reached, total = tau, W[i, i], 0.0
        if delta is not None:
            for distance, j in far:
                if reached < 1 - delta - 1e-12:
                    reached, total = reached + W[i, j], total + W[i, j] * distance**2
            radius = (total / delta) ** 0.5
        for distance, j in far:
            Y[i] += W[i, j] * min(1, radius / max(distance, 1e-300)) * (sent[j] - own[i])
    return Y


def trimmed(W, own, sent, trim):
    Y = own.copy()
    for i in range(len(W)):
        for c in range(own.shape[1]):
            values = sorted(sent[j, c] for j in np.flatnonzero(W[i]) if j != i)
            Y[i, c] = np.mean([own[i, c], *values[trim : len(values) - trim]])
    return Y


RULES = {
    "clip tau": (("clip",), {"tau": 0.7}, clip_gossip),
    "clip delta": (("clip",), {"delta": 0.4}, clip_gossip),
    "trimmed mean": (("trimmed_mean",), {"trim": 1}, trimmed),
}


@pytest.mark.parametrize("n", [5, 7])
@pytest.mark.parametrize("rule", RULES)
def test_rules(rule, n):
    name, options, dense = RULES[rule]
    graph, own, P = T.erdos_renyi(n, p=0.8, seed=1), stack(n), stack(n, 2, 1)  # of unequal weights
    W, sent = graph.W.toarray(), own.copy()
    sent[1], sent[3] = -own[1], 100.0
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        here = slice(net.lo, net.hi)
        make = lambda some: (
            some.mixer(graph).attacked({1: "sign_flip", 3: 100}).robust(*name, **options)
        )
        mixer = make(net)
        Y = mixer(own[here])
        np.testing.assert_allclose(Y, dense(W, own, sent, **options)[here], atol=1e-13)
        np.testing.assert_array_equal(Y, make(alone)(own)[here])  # the same bits
        Y, Q = mixer([own[here], P[here]])  # each array by itself
        np.testing.assert_array_equal(Y, mixer(own[here]))
        np.testing.assert_array_equal(Q, mixer(P[here]))
        assert mixer(own[here].astype(np.float32)).dtype == np.float32


def test_an_attacker_with_two_faces_and_one_that_is_named_twice():
    n, X = 5, stack(5)
    graph = T.erdos_renyi(n, p=0.8, seed=1)
    dense = graph.W.toarray()
    wanted = dense @ X
    wanted += dense[:, [2]] * (
        (10.0 * np.arange(n)[:, None] - 1) * X[2] * (np.arange(n) != 2)[:, None]
    )
    with mpidec.Network(n) as net:
        W, here = net.mixer(graph), slice(net.lo, net.hi)
        told = W.attacked({2: lambda step, agent, row, receiver: 10 * receiver * row})
        np.testing.assert_allclose(told(X[here]), wanted[here], atol=1e-13)
        other = W.attacked({2: lambda step, agent, row, times=-1: times * row})  # not `receiver`
        np.testing.assert_array_equal(other(X[here]), W.attacked({2: "sign_flip"})(X[here]))
        with pytest.raises(ValueError, match="agent 2 is named twice"):
            W.attacked(Twice())


class Twice(dict):
    """A mapping with two keys for one agent."""

    def items(self):
        return [(2, 1.0), (np.int64(2), "sign_flip")]


def test_two_of_eighteen_agents_send_a_constant():
    n, bad, X = 18, {3: 100.0, 11: 100.0}, stack(18)
    graph, right = T.erdos_renyi(n, p=0.5, seed=1), [i for i in range(n) if i not in bad]
    W = graph.W.toarray()
    rules = {
        "plain": lambda mixer: mixer,
        "clip": lambda mixer: mixer.robust("clip", delta=W[right][:, list(bad)].sum(axis=1).max()),
        "trimmed_mean": lambda mixer: mixer.robust("trimmed_mean", trim=2),
        "median": lambda mixer: mixer.robust(lambda x, X, w: np.median([x, *X], axis=0)),
    }
    with mpidec.Network(n) as net:
        error = {}
        for name, rule in rules.items():
            mixer, Y = rule(net.mixer(graph).attacked(bad)), X[net.lo : net.hi]
            for _ in range(60):
                Y = mixer(Y)
            mean = gathered(net, Y)[right].mean(axis=0)
            error[name] = np.linalg.norm(mean - X[right].mean(axis=0))
    assert error.pop("plain") > 150
    assert max(error.values()) < 1.6


def gathered(net, Y):
    return np.concatenate(net.comm.allgather(Y))


def test_a_row_that_is_not_finite_is_left_out():
    n, X, graph = 5, stack(5), T.complete(5)
    for what in np.nan, np.inf:
        with mpidec.Network(n) as net:
            for rule in ("clip", {"tau": 1e3}), ("clip", {"delta": 0.3}), ("trimmed_mean", {}):
                Y = (
                    net.mixer(graph)
                    .attacked({4: what})
                    .robust(rule[0], **rule[1])(X[net.lo : net.hi])
                )
                assert np.isfinite(Y).all()
                if rule[1] == {"tau": 1e3}:
                    want = X + (X[:4].sum(axis=0) - (4 + 0 * X) * X) / n
                    np.testing.assert_allclose(
                        Y[: 4 - net.lo], want[net.lo : min(net.hi, 4)], atol=1e-14
                    )


@pytest.mark.parametrize("attack", ["sign_flip", 100.0])
@pytest.mark.parametrize("method", ["dgd", "gradient_tracking"])
def test_solvers(method, attack):
    """The recursions with clipped averages."""
    n, steps, step, bad, delta = 7, 40, 0.1, 5, 0.34
    graph, a = T.erdos_renyi(n, p=0.8, seed=2), stack(n, 2) / 4 + 3
    W = graph.W.toarray()

    def mix(X):
        sent = X.copy()
        sent[bad] = -X[bad] if attack == "sign_flip" else attack
        return clip_gossip(W, X, sent, delta=delta)

    X, S = np.zeros((n, 2)), np.zeros((n, 2)) - a
    for _ in range(steps):
        if method == "dgd":
            X = mix(X) - step * (X - a)
        else:
            before, X = X, mix(X - step * S)
            S = mix(S + X - before)
    solver = {"dgd": mpidec.solvers.DGD, "gradient_tracking": mpidec.solvers.GradientTracking}
    with mpidec.Network(n) as net:
        result = mpidec.solve(
            mpidec.problems.LeastSquares(np.repeat(np.eye(2)[None], net.m, 0), a[net.lo : net.hi]),
            solver[method](step),
            graph,
            steps=steps,
            x0=np.zeros(2),
            net=net,
            mixing=lambda W: W.attacked({bad: attack}).robust("clip", delta=delta),
        )
        np.testing.assert_allclose(gathered(net, result.X), X, atol=1e-11)
