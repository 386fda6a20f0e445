"""Messages that are lost: entries of W, draws of seeds, steps and edges."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.losses import masks, stack, weights
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing.faults.faults import Loss

N, D = 7, 5


@pytest.mark.parametrize("weights_of", ["metropolis", "push"])
def test_lost_messages_are_entries_of_w(weights_of):
    X, lost, nothing = stack(), masks(), np.zeros((N, N), bool)
    with mpidec.Network(N) as net:
        W = net.mixer(T.erdos_renyi(N, seed=1, weights=weights_of))
        dense, here = W.topology.W.toarray(), slice(net.lo, net.hi)
        for fill in ("renormalize", "own", "zero"):  # each with both weights
            lossy = W.lossy(lost, fill=fill)
            for k in range(4):  # nothing is lost after the last mask
                V = weights(dense, lost[k] if k < 3 else nothing, fill)
                np.testing.assert_allclose(lossy.at(k)(X[here]), (V @ X)[here], atol=1e-15)
                own = np.diag(V)[:, None] * X
                np.testing.assert_allclose(lossy.at(k).own(X[here]), own[here], atol=1e-15)
            A, B = lossy([X[here], X[here, :1].astype(np.float32)])
            assert B.dtype == np.float32
            np.testing.assert_allclose(A[:, :1], B, atol=1e-6)


def test_a_lost_row_of_an_edge_arrives_as_zeros():
    lost, topology = masks(), T.binary_tree(N)
    edges = [(i, int(j)) for i in range(N) for j in topology.in_neighbors(i)]
    with mpidec.Network(N) as net:
        W = net.mixer(topology).lossy(lost).at(1)
        M = W.exchange(W.to_edges(1.0 + np.arange(net.lo, net.hi)[:, None]))
        want = [(j + 1) * (not lost[1, i, j]) for i, j in edges if i in net.agents]
        np.testing.assert_array_equal(M.ravel(), want)


@pytest.mark.parametrize(
    "fault",
    [
        lambda W: W.noisy(0.1, clip=2.0),
        lambda W: W.attacked({1: lambda step, agent, row: row[::-1]}),
        lambda W: W.lossy(0.4, seed=1),
    ],
)
def test_messages_of_any_shape_have_the_faults_of_their_rows(fault):
    with mpidec.Network(N) as net:
        W = fault(net.mixer(T.binary_tree(N)))
        rows = np.random.default_rng(0).standard_normal((N, 6))[net.lo : net.hi]
        flat = W.at(3).exchange(W.at(3).to_edges(rows))
        for X in rows.reshape(-1, 2, 3), rows.reshape(-1, 1, 6):
            M = W.at(3).exchange(W.at(3).to_edges(X))
            np.testing.assert_array_equal(M, flat.reshape(len(flat), *X.shape[1:]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("fill", ["renormalize", "own", "zero"])
def test_a_lost_message_has_no_influence_whatever_was_in_it(fill, value):
    lost, X = np.zeros((1, N, N), bool), stack()
    lost[0, :, 3] = True  # nobody hears agent 3
    with mpidec.Network(N) as net:
        here, heard = slice(net.lo, net.hi), np.array([i != 3 for i in net.agents], bool)
        W, sent = net.mixer(T.erdos_renyi(N, seed=1)), {3: value}
        spoilt, right = (V.lossy(lost, fill=fill).at(0) for V in (W.attacked(sent), W))
        np.testing.assert_array_equal(spoilt(X[here])[heard], right(X[here])[heard])
        M, R = (V.exchange(V.to_edges(X[here])) for V in (spoilt, right))
        np.testing.assert_array_equal(M, R)


NOTHING = {
    "lossy": lambda W: W.lossy(0.0),
    "noisy": lambda W: W.noisy(0.0),
    "attacked": lambda W: W.attacked({}),
    "robust": lambda W: W.robust("clip", tau=1e9),
    "all": lambda W: W.attacked({}).noisy(0.0).lossy(0.0),
    "repeat": lambda W: W.repeat(1),
    "lossy.repeat": lambda W: W.lossy(0.0).repeat(1),
}


@pytest.mark.parametrize("codec", ["identity", "float16", "qsgd"])
@pytest.mark.parametrize("nothing", NOTHING)
def test_mixers_that_change_nothing_keep_gamma(nothing, codec):
    """W(X) = X + gamma (W - I) X, of numbers that these codecs represent, but for qsgd."""
    X, gamma = np.arange(3.0 * N).reshape(N, 3) ** 2, None if codec == "qsgd" else 0.25
    with mpidec.Network(N) as net:
        W = net.mixer(T.ring(N))
        C = W.compress(codec, feedback=False, gamma=gamma)
        D, here = NOTHING[nothing](C), slice(net.lo, net.hi)
        assert D.gamma(3) == D.at(0).gamma(3) == C.gamma(3) < 1
        if codec != "qsgd":
            dense = X + gamma * (W.topology.W @ X - X)
            np.testing.assert_allclose(D.at(0)(X[here]), dense[here], rtol=1e-12)


@pytest.mark.parametrize("topology", [T.ring(N), T.double_binary_trees(N)], ids=["ring", "trees"])
def test_draws_belong_to_the_edge_and_the_step(topology):
    steps, X = 400, np.eye(N)

    def count(net, seed):
        W = net.mixer(topology).lossy(0.2, seed=seed, fill="zero")
        arrived = [np.count_nonzero(W.at(k)(X[net.lo : net.hi]), axis=1) - 1 for k in range(steps)]
        return np.array(arrived)

    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        all_ = count(alone, 3)
        np.testing.assert_array_equal(count(net, 3), all_[:, net.lo : net.hi])
        assert (all_ != count(alone, 4)).any()
    sent = sum(topology.at(k).source.arcs for k in range(topology.period)) * steps
    if topology.period == 1:
        assert all_.sum() / sent == pytest.approx(0.8, abs=4 * (0.16 / sent) ** 0.5)


@pytest.mark.serial
def test_an_edge_of_two_graphs_loses_the_same_messages():
    def lost(graph):
        return mpidec.Network(N, comm=MPI.COMM_SELF).mixer(graph).lossy(0.4, fill="zero").at(3)

    few, many = (lost(graph)(np.eye(N)) != 0 for graph in (T.ring(N), T.complete(N)))
    there = T.ring(N).W.toarray() != 0
    np.testing.assert_array_equal(few[there], many[there])
    assert not few[there].all()


def test_each_graph_has_losses_of_its_own():
    with mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        W = alone.mixer(T.striped([T.complete(N)] * 2)).lossy(0.3, fill="zero")
        one, two = (
            W.at(5)(np.repeat(np.eye(N), 2, axis=1))[:, stripe::2] != 0 for stripe in (0, 1)
        )
        assert (one != two).any()


def independent(drawn):
    """Draws of mean 0 and variance 1 are not correlated with those beside them, in any of the axes and in several."""
    assert abs((drawn**2).mean() - 1) < 0.1
    for shift in itertools.product((-1, 0, 1), repeat=drawn.ndim):
        if any(shift):
            ahead = tuple(slice(max(0, by), min(0, by) or None) for by in shift)
            behind = tuple(slice(max(0, -by), min(0, -by) or None) for by in shift)
            one, other = drawn[ahead], drawn[behind]
            assert abs((one * other).mean()) < 6 / one.size**0.5, shift


@pytest.mark.serial
def test_losses_of_seeds_graphs_steps_and_edges_are_independent():
    """Those beside each other, in each and in several of these, and the two ways of an edge are not correlated."""
    i, j = (index.ravel() for index in np.indices((N, N)))
    seeds = [Loss(0.4, seed, "zero", N, 3) for seed in range(3)]
    edges = SimpleNamespace(into=(i, j, None))
    rounds = [
        [SimpleNamespace(step=k, graph=s, graphs=3, edges=edges) for k in range(60)]
        for s in range(3)
    ]
    lost = np.array(
        [[[loss._lost(at) for at in each] for each in rounds] for loss in seeds]
    ).reshape(3, 3, 60, N, N)

    independent((lost - 0.4) / 0.24**0.5)
    there = np.triu_indices(N, 1)
    one, other = (each[(..., *there)] - 0.4 for each in (lost, lost.swapaxes(3, 4)))
    assert abs((one * other).mean()) < 6 * 0.24 / one.size**0.5


@pytest.mark.serial
def test_noise_of_seeds_steps_calls_edges_and_graphs_is_independent():
    with mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        W, silent = alone.mixer(T.striped([T.complete(N)] * 2)), np.zeros((N * (N - 1), 6))
        steps = [[W.noisy(1.0, seed=seed).at(k) for k in range(8)] for seed in range(2)]
        drawn = [
            [[[part.exchange(silent) for part in at.parts] for _ in range(3)] for at in each]
            for each in steps
        ]
    independent(np.array(drawn))


def test_a_function_says_what_is_lost():
    X = stack()
    asleep = lambda k, receivers, senders: (receivers % 3 == k) | (senders % 3 == k)
    with mpidec.Network(N) as net:
        W = net.mixer(T.complete(N)).lossy(asleep, fill="own")
        for k in range(3):
            i, j = np.indices((N, N))
            V = weights(np.full((N, N), 1 / N), asleep(k, i, j), "own")
            np.testing.assert_allclose(
                W.at(k)(X[net.lo : net.hi]), (V @ X)[net.lo : net.hi], atol=1e-15
            )
            np.testing.assert_allclose(V.sum(axis=0), 1)  # lost in both directions: still doubly


def test_refusals():
    with mpidec.Network(N) as net:
        W = net.mixer(T.ring(N))
        for make, text in [
            (lambda: W.lossy(1.5), "lossy: messages is 1.5, expected"),
            (lambda: W.lossy(np.zeros((3, 2))), r"bool \(steps, 7, 7\)"),
            (lambda: W.lossy(0.1, fill="none"), "fill"),
            (lambda: W.lossy(0.1, seed=-1), "seed = -1, expected an integer"),
            (lambda: W.accelerate(2).lossy(0.1), r"W.lossy\(...\).repeat\(K\)"),
            (lambda: W.lossy(0.1).accelerate(2), "changes from step to step"),
            (lambda: W.compress("top_k", feedback=True).lossy(0.1), "feedback=False"),
            (lambda: W.repeat(2).at(0).exchange(np.zeros((2, 1))), "averages only"),
            (lambda: W.repeat(2).at(0).own(np.zeros((N, 1))), "diagonal"),
            (lambda: net.mixer(T.double_binary_trees(N)).compress("float16"), "whole rows"),
        ]:
            with pytest.raises(ValueError, match=text):
                make()
