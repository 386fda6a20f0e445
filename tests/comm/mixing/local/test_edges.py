"""The edges of a local-view call: weights of both sides, checked."""

import numpy as np
import pytest
from helpers.local import RTOL, dense, random_graph, stack

from mpidec import topology as T

pytestmark = [pytest.mark.most(2), pytest.mark.library]


@pytest.mark.parametrize("seed", range(6))
def test_pull_push_and_both(net, seed):
    n, i, X = net.n, net.rank, stack(net.n, (7,), seed=seed)
    own, there, src, dst = random_graph(n, seed, density=0.2 * seed)
    sources, dests = np.flatnonzero(there[i]).tolist(), np.flatnonzero(there[:, i]).tolist()
    ones = np.ones((n, n))
    for _ in range(2):
        pulled = net.neighbor_allreduce(X[i], own[i], {j: src[i, j] for j in sources}, dests)
        np.testing.assert_allclose(
            pulled, dense(own, there, src, ones, X)[i], rtol=1e-13, atol=1e-13
        )
        pushed = net.neighbor_allreduce(X[i], own[i], dst_weights={j: dst[i, j] for j in dests})
        np.testing.assert_allclose(
            pushed, dense(own, there, ones, dst, X)[i], rtol=1e-13, atol=1e-13
        )


def test_calls_over_the_same_ranks_with_other_weights(net):
    # in one test: on ranks few sets of parameters run, and each of these has a path of its own
    n, i = net.n, net.rank
    for seed, way in enumerate(4 * ["pull", "push", "both"]):
        net.set_topology((T.ring, T.star)[seed // 6](n))
        there = net.topology.at(0).W.toarray() != 0
        np.fill_diagonal(there, False)
        for dtype, rtol in RTOL.items():
            X = stack(n, (2, 1 + 3 * (seed % 2)), dtype, seed)
            for own, _, src, dst in (random_graph(n, seed), random_graph(n, seed + 1)):
                weights = {}
                if way != "push":
                    weights["src_weights"] = {j: src[i, j] for j in range(n) if there[i, j]}
                if way != "pull":
                    weights["dst_weights"] = {j: dst[i, j] for j in range(n) if there[j, i]}
                y = net.neighbor_allreduce(X[i], own[i], **weights)
                factors = (1 if way == "push" else src) * (1 if way == "pull" else dst.T)
                W = np.where(there, factors, 0) + np.diag(own)
                Y = np.tensordot(W, X.astype(np.result_type(dtype, np.float64)), 1)
                np.testing.assert_allclose(y, Y[i], rtol=10 * rtol, atol=10 * rtol)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, "one", None, [1.0, 2.0]])
def test_wrong_weights_in_a_later_call(net, wrong):
    if net.n == 1:
        pytest.skip("needs two ranks")
    right, left = (net.rank + 1) % net.n, (net.rank - 1) % net.n
    for _ in range(3):
        net.neighbor_allreduce(np.ones(2), 0.5, {left: 0.5}, {right: 1.0})
    for weights in ({left: wrong}, {right: 1.0}), ({left: 0.5}, {right: wrong}):
        with pytest.raises((ValueError, TypeError), match=r"expected a (finite )?number"):
            net.neighbor_allreduce(np.ones(2), 0.5, *weights)
    with pytest.raises((ValueError, TypeError), match="self_weight"):
        net.neighbor_allreduce(np.ones(2), np.nan, {left: 0.5}, {right: 1.0})


def test_pull_along_a_part_of_the_topology(net):
    X, n, i = stack(net.n), net.n, net.rank
    net.set_topology(T.complete(n))
    sources = [j for j in range(n) if j != i and (i + j) % 2]
    y = net.neighbor_allreduce(X[i], np.float32(0.25), {np.int64(j): j + 1 for j in sources})
    np.testing.assert_allclose(y, 0.25 * X[i] + sum((j + 1) * X[j] for j in sources))
    np.testing.assert_allclose(net.neighbor_allreduce(X[i], 2, []), 2 * X[i])


def test_mass_is_conserved(net):
    X, n, i = stack(net.n), net.n, net.rank
    dests = sorted({(i + 1) % n, (i + 2) % n} - {i})
    share = 1 / (len(dests) + 1)
    x, total = X[i], net.allreduce(X[i], average=False)
    for _ in range(20):
        x = net.neighbor_allreduce(x, share, dst_weights=dict.fromkeys(dests, share))
    np.testing.assert_allclose(net.allreduce(x, average=False), total, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "arguments, error, word",
    [
        ((1,), ValueError, "only self_weight given"),
        ((None, {}), ValueError, "src_weights"),
        ((None, None, {}), ValueError, "dst_weights"),
        ((1, {99: 1.0}, {}), ValueError, "rank 99"),
        ((1, {}, [-1]), ValueError, "rank -1"),
        ((1, {}, [0.5]), TypeError, "0.5"),
        ((1, {}, "01"), TypeError, "list"),
        ((np.nan, {}, {}), ValueError, "finite"),
        (("a", {}, {}), TypeError, "'a'"),
        ((), ValueError, "no topology is set"),
    ],
)
def test_wrong_arguments_everywhere(net, arguments, error, word):
    with pytest.raises(error, match=word):
        net.neighbor_allreduce(np.ones(2), *arguments)
    assert net.allreduce(2.0) == 2  # and the next call is as good as ever
