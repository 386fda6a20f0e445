"""The calls of programs with one agent per rank, against dense products, on any number of ranks."""

import contextlib
import itertools
import os
import re

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.arrays import formats

pytestmark = [pytest.mark.most(2), pytest.mark.library]

DTYPES = [np.float16, np.float32, np.float64, np.complex64, np.complex128]
RTOL = {"e": 2e-3, "f": 1e-6, "d": 1e-13, "F": 1e-6, "D": 1e-13}


@pytest.fixture
def net():
    with mpidec.Network() as net:
        yield net


def stack(n, shape=(3,), dtype=float, seed=0):
    rng = np.random.default_rng([seed, n])
    X = rng.standard_normal((n, *shape))
    return (X + 1j * rng.standard_normal(X.shape) if np.dtype(dtype).kind == "c" else X).astype(
        dtype
    )


def random_graph(n, seed, density=0.5):
    """Any directed graph, empty rows and columns included: three factors of the weights of its edges."""
    rng = np.random.default_rng([seed, n])
    there = (rng.random((n, n)) < density) & ~np.eye(n, dtype=bool)
    own, src, dst = rng.standard_normal(n), rng.standard_normal((n, n)), rng.standard_normal((n, n))
    return own, there, src, dst


def dense(own, there, src, dst, X):
    W = np.diag(own) + there * src * dst.T
    return np.tensordot(W, X, 1)


def disagree(net, call, *words):
    """The call, or the barrier after it, raises here."""
    with pytest.raises(ValueError) as caught:  # noqa: PT012
        call()
        net.barrier()
        net.barrier()
    for word in words:  # also on a rank that has heard meanwhile that the other one closes
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "make", [T.ring, T.exponential, T.star, T.complete, T.one_peer_exponential]
)
def test_a_topology_mixes_as_its_mixer_does(net, make):
    x = stack(net.n, (2, 3))[net.rank]
    net.set_topology(make(net.n))
    W = net.mixer(make(net.n))
    for _ in range(5):
        y = net.neighbor_allreduce(x)
        np.testing.assert_array_equal(y, W(x[None])[0])
        x = y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (2, 3, 4), (40, 100)])
def test_push_pull_any_shape_and_dtype(net, shape, dtype):
    n, i, X = net.n, net.rank, stack(net.n, shape, dtype)
    own, there, src, dst = random_graph(n, seed=len(shape))
    x, before = X[i], X[i].copy()
    y = net.neighbor_allreduce(
        x,
        own[i],
        {j: src[i, j] for j in range(n) if there[i, j]},
        {j: dst[i, j] for j in range(n) if there[j, i]},
    )
    assert y.shape == shape and y.dtype == dtype and not np.shares_memory(x, y)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(
        y,
        dense(own, there, src, dst, X.astype(np.result_type(dtype, np.float64)))[i],
        rtol=RTOL[np.dtype(dtype).char],
        atol=10 * RTOL[np.dtype(dtype).char],
    )


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


@pytest.mark.parametrize("way", ["pull", "push", "both"])
def test_calls_over_the_same_ranks_with_other_weights(net, way):
    n, i = net.n, net.rank
    for seed in range(12):
        net.set_topology((T.ring, T.star)[seed // 6](n))
        there = net.topology.at(0).W.toarray() != 0
        np.fill_diagonal(there, False)
        X, (own, _, src, dst) = stack(n, (2, 1 + 3 * (seed % 2)), seed=seed), random_graph(n, seed)
        weights = (
            {}
            if way == "push"
            else {"src_weights": {j: src[i, j] for j in range(n) if there[i, j]}}
        )
        weights |= (
            {}
            if way == "pull"
            else {"dst_weights": {j: dst[i, j] for j in range(n) if there[j, i]}}
        )
        y = net.neighbor_allreduce(X[i], own[i], **weights)
        W = np.where(
            there, (1 if way == "push" else src) * (1 if way == "pull" else dst.T), 0
        ) + np.diag(own)
        np.testing.assert_allclose(y, np.tensordot(W, X, 1)[i], rtol=1e-13, atol=1e-13)


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


def test_pulling_along_a_schedule(net):
    net.set_topology(T.one_peer_exponential(net.n))
    for k in range(7):
        W = T.one_peer_exponential(net.n).at(k).W.toarray()
        X, i = stack(net.n, seed=k), net.rank
        y = net.neighbor_allreduce(
            X[i], 0.25, {j: 0.5 + k for j in range(net.n) if j != i and W[i, j] != 0}
        )
        expected = 0.25 * X[i] + sum(
            (0.5 + k) * X[j] for j in range(net.n) if j != i and W[i, j] != 0
        )
        np.testing.assert_allclose(y, expected, rtol=1e-13, atol=1e-13)


def test_pushing_large_arrays(net):
    X = stack(net.n, (30000,))
    right = (net.rank + 1) % net.n
    y = net.neighbor_allreduce(X[net.rank], 0.5, dst_weights={right: 0.5} if net.n > 1 else {})
    np.testing.assert_allclose(y, 0.5 * X[net.rank] + (0.5 * X[net.rank - 1] if net.n > 1 else 0))


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


def test_many_under_way_in_any_order(net):
    X, n, i = stack(net.n, (3000,)), net.n, net.rank
    net.set_topology(T.ring(n))
    right = [(i + 1) % n] if n > 1 else []
    left = [(i - 1) % n] if n > 1 else []
    started = []
    for k in range(8):
        x = X[i] + k
        started.append((net.start_neighbor_allreduce(x), T.ring(n).W.toarray() @ (X + k)))
        started.append(
            (
                net.start_neighbor_allreduce(x, 1.0, dst_weights=dict.fromkeys(right, 1.0)),
                X + k + (np.roll(X + k, 1, axis=0) if n > 1 else 0),
            )
        )
        started.append(
            (
                net.start_neighbor_allreduce(x, 0.0, left, right),
                np.roll(X + k, 1, axis=0) if n > 1 else 0 * X,
            )
        )
        started.append((net.start_allreduce(x), np.tile((X + k).mean(axis=0), (n, 1))))
        started.append((net.start_broadcast(x, n - 1), np.tile(X[-1] + k, (n, 1))))
        started.append((net.start_barrier(), None))
    for t in np.random.default_rng(i).permutation(len(started)):
        pending, expected = started[t]
        while not pending.test():
            pass
        y = pending.wait()
        assert pending.wait() is y
        if expected is not None:
            np.testing.assert_allclose(y, expected[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.bool_, np.complex64, np.uint8])
def test_allgather_of_different_lengths(net, dtype):
    n, i = net.n, net.rank
    rows = [np.full((j, 2), j % 2 + 1).astype(dtype) for j in range(n)]
    net.set_topology(T.complete(n))
    others = [j for j in range(n) if j != i]
    empty = np.empty((0, 2), dtype)
    np.testing.assert_array_equal(
        net.neighbor_allgather(rows[i]), np.concatenate([empty, *(rows[j] for j in others)])
    )
    backwards = others[::-1]
    y = net.neighbor_allgather(rows[i], backwards, others)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.concatenate([empty, *(rows[j] for j in backwards)]))
    y = net.neighbor_allgather(rows[i], dst_ranks=[j for j in others if j > i])
    np.testing.assert_array_equal(y, np.concatenate([empty, *rows[:i]]))
    y = net.allgather(rows[i])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.concatenate(rows))


def test_exchange_sends_each_its_own(net):
    n, i = net.n, net.rank
    got = net.exchange({j: np.full((i + 1, j), 10 * i + j) for j in range(n) if j != i})
    assert list(got) == [j for j in range(n) if j != i]
    for j, array in got.items():
        np.testing.assert_array_equal(array, np.full((j + 1, i), 10 * j + i))
    right = {(i + 1) % n: np.float32(i)} if n > 1 else {}
    got = net.exchange(right, src_ranks=[(i - 1) % n] if n > 1 else [])
    assert {j: float(y) for j, y in got.items()} == ({(i - 1) % n: (i - 1) % n} if n > 1 else {})


@pytest.mark.mpi(min_size=2)
def test_gossip_is_of_two(net):
    X, n, i = stack(net.n, (2000,)), net.n, net.rank
    peer = i ^ 1
    if peer < n:
        both = [net.start_pair_gossip(X[i], peer), net.start_pair_gossip(X[i], peer, 0.25, 2)]
        np.testing.assert_allclose(both[1].wait(), 0.25 * X[i] + 2 * X[peer])
        np.testing.assert_allclose(both[0].wait(), (X[i] + X[peer]) / 2)
    np.testing.assert_allclose(net.allreduce(X[i]), X.mean(axis=0))


@pytest.mark.parametrize("dtype", [*DTYPES, np.int64])
def test_allreduce_and_broadcast(net, dtype):
    for shape in [(), (0, 2), (3, 2), (9000,)]:
        X = (10 * stack(net.n, shape)).astype(dtype)
        x, before = X[net.rank], X[net.rank].copy()
        y = net.allreduce(x, average=False)
        assert y.shape == shape and y.dtype == dtype and not np.shares_memory(x, y)
        rtol = RTOL.get(np.dtype(dtype).char, 0)
        np.testing.assert_allclose(
            y, X.sum(axis=0, dtype=np.result_type(dtype, np.float32)), rtol=rtol, atol=10 * rtol
        )
        for root in range(net.n):
            y = net.broadcast(x, root)
            np.testing.assert_array_equal(y, X[root])
            assert y.dtype == dtype and not np.shares_memory(x, y)
        np.testing.assert_array_equal(x, before)


def starts(net, x):
    """All calls of all ranks, and those with a neighbour, on an array."""
    n, i = net.n, net.rank
    right, left = ([(i + 1) % n], [(i - 1) % n]) if n > 1 else ([], [])
    yield from [
        lambda: net.start_neighbor_allreduce(x, 0.5, left, right),
        lambda: net.start_neighbor_allreduce(x, 0.5, dst_weights=right),
        lambda: net.start_neighbor_allreduce(x, 0.5, left),
        lambda: net.start_neighbor_allgather(x, left, right),
        lambda: net.start_neighbor_allgather(x),
        lambda: net.start_exchange(dict.fromkeys(right, x), left),
        lambda: net.start_hierarchical_neighbor_allreduce(x, 0.5, {}, {}),
        lambda: net.start_allreduce(x),
        lambda: net.start_allreduce(x, average=False),
        lambda: net.start_broadcast(x, n - 1),
    ]
    if n > 1 and i ^ 1 < n:
        yield lambda: net.start_pair_gossip(x, i ^ 1)


def test_what_every_start_returns_is_a_pending(net):
    net.set_topology(T.ring(net.n))
    pending = [
        net.start_neighbor_allreduce(np.ones(3)),
        net.start_barrier(),
        *(start() for start in starts(net, np.ones(3))),
    ]
    assert {type(one) for one in pending} == {mpidec.Pending}
    for one in pending[::-1]:
        one.wait()
        assert one.test()


@pytest.mark.parametrize("size", [3, 50_000])
@pytest.mark.parametrize("end", ["barrier", "close"])
def test_a_handle_that_is_dropped_harms_no_other_rank(size, end):
    """The operation of a dropped handle completes in the next wait, or when the network is closed."""
    with mpidec.Network() as net:
        net.set_topology(T.ring(net.n))
        X = stack(net.n, (size,))
        for dropping in sorted({0, min(1, net.n - 1), net.n - 1}):
            for start in starts(net, X[net.rank]):
                pending = start()
                if net.rank != dropping:
                    assert pending.wait() is not None
                del pending
        pending = net.start_allreduce(X[net.rank])
        if net.rank == 0:
            del pending
            if end == "barrier":
                net.barrier()
        else:
            np.testing.assert_allclose(pending.wait(), X.mean(axis=0), atol=1e-12)
            if end == "barrier":
                net.barrier()


def test_a_closed_network_says_so():
    net = mpidec.Network()
    net.close()
    with pytest.raises(RuntimeError, match="the network is closed"):
        net.barrier()


@pytest.mark.parametrize("per", [1, 2, 3])
def test_hierarchical(net, per, monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(per))
    n, i, X = net.n, net.rank, stack(net.n, (3, 2000))
    count, mine = -(-n // per), i // per
    assert net.machines() == [list(range(m * per, min(n, (m + 1) * per))) for m in range(count)]
    means = np.stack([X[m * per : (m + 1) * per].mean(axis=0) for m in range(count)])
    topology = T.exponential(count)
    net.set_machine_topology(topology)
    W = topology.W.toarray()
    y = net.hierarchical_neighbor_allreduce(X[i])
    np.testing.assert_allclose(y, np.tensordot(W, means, 1)[mine], rtol=1e-12, atol=1e-13)
    if n % per == 0:
        np.testing.assert_allclose(
            y,
            np.tensordot(np.kron(W, np.full((per, per), 1 / per)), X, 1)[i],
            rtol=1e-12,
            atol=1e-13,
        )
    if per == 1:  # rounded once
        Z = X.astype(np.float32)
        y = net.hierarchical_neighbor_allreduce(Z[i])
        exact = np.tensordot(W, Z.astype(float), 1)[i]
        assert (np.abs(y - exact) <= 0.500001 * np.spacing(np.abs(exact).astype("f"))).all()
    own, there, src, dst = random_graph(count, seed=per)
    sources = {m: src[mine, m] for m in np.flatnonzero(there[mine]).tolist()}
    dests = {m: dst[mine, m] for m in np.flatnonzero(there[:, mine]).tolist()}
    y = net.hierarchical_neighbor_allreduce(X[i], own[mine], sources, dests)
    np.testing.assert_allclose(y, dense(own, there, src, dst, means)[mine], rtol=1e-12, atol=1e-12)
    y = net.hierarchical_neighbor_allreduce(X[i], own[mine], dst_machine_weights=dests)
    np.testing.assert_allclose(
        y, dense(own, there, np.ones_like(src), dst, means)[mine], rtol=1e-12, atol=1e-12
    )


def test_bfloat16_rounds_to_nearest_even():
    x = np.array([1.0, 1.00390625, 1.01171875, -3.0e38, np.inf, -0.0, np.nan], np.float32)
    bits = formats.narrow(x, formats.BFLOAT16)
    back = formats.widen(bits, formats.BFLOAT16)
    np.testing.assert_array_equal(back[:2], [1.0, 1.0])
    assert back[2] == 1.015625 and back[4] == np.inf and np.signbit(back[5]) and np.isnan(back[6])
    np.testing.assert_array_equal(formats.narrow(back, formats.BFLOAT16)[:6], bits[:6])


def test_torch_tensors_come_back_as_tensors(net):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        y = net.allreduce(torch.full((2, 3), float(net.rank + 1), dtype=dtype))
        assert y.dtype == dtype and y.shape == (2, 3)
        assert float(y[0, 0]) == (net.n + 1) / 2
        y = net.neighbor_allreduce(torch.ones(3, dtype=dtype), 0.5, [], [])
        assert y.dtype == dtype and y.tolist() == [0.5] * 3


def test_one_agent_on_each_rank():
    with (
        mpidec.Network(os.getpid() * 0 + 97) as net,
        pytest.raises(ValueError, match="one on each"),
    ):
        net.allreduce(1.0)


# ---------------------------------------------------------------------------------------------------------------------
# Wrong use


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


def test_more_wrong_arguments(net):
    i = net.rank
    for call, error in [
        (lambda: net.neighbor_allreduce(np.ones(2), 1, [i], []), ValueError),
        (lambda: net.neighbor_allreduce(np.arange(2), 1, [], []), TypeError),
        (lambda: net.allreduce(np.arange(2)), TypeError),
        (lambda: net.allreduce(np.array(["a"])), TypeError),
        (lambda: net.neighbor_allgather(1.0, [], []), ValueError),
        (lambda: net.broadcast(1.0, net.n), ValueError),
        (lambda: net.exchange([1]), TypeError),
        (lambda: net.set_topology("rign"), ValueError),
        (lambda: net.pair_gossip(1.0, i), ValueError),
        (lambda: net.set_topology(T.ring(net.n + 1)), ValueError),
    ]:
        with pytest.raises(error):
            call()
    if net.n > 1:
        other = (i + 1) % net.n
        with pytest.raises(ValueError, match="twice"):
            net.neighbor_allreduce(np.ones(2), 1, [other, other], [])
        net.set_topology(T.ring(net.n))
    assert net.allreduce(2.0) == 2


@pytest.mark.parametrize(
    "x, word",
    [
        (np.array([1.0, None]), "object"),
        (np.array([{}, []], object), "object"),
        (np.array(["a", "b"]), "expected"),
        (np.zeros(2, "f8,i4"), "expected"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), r"masked.*x\.filled"),
        (np.ma.masked_array([1.0, 2.0]), r"masked.*x\.filled"),
    ],
)
def test_arrays_that_messages_cannot_carry(net, x, word):
    net.set_topology(T.ring(net.n))
    for start in starts(net, x):
        if net.n > 1 or "exchange" not in str(start.__code__.co_names):
            with pytest.raises((TypeError, ValueError), match=rf"{word}|rank \d+ gave up"):
                start().wait()
    assert net.allreduce(2.0) == 2


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("size", [3, 5000])
def test_mismatched_lists(net, size):
    """Rank 1 sends to rank 0, which does not expect it; then rank 0 expects what rank 1 does not send."""
    i, x = net.rank, np.ones(size)
    if i < 2:
        disagree(
            net,
            lambda: net.neighbor_allreduce(x, 1, [], [0] if i else []),
            "rank 1 sends to rank 0 in neighbor_allreduce",
        )
    else:
        disagree(net, lambda: net.neighbor_allreduce(x, 1, [], []), "barrier")


@pytest.mark.mpi(min_size=2)
def test_a_message_that_is_not_sent(net):
    i = net.rank
    if i < 2:
        disagree(
            net,
            lambda: net.neighbor_allreduce(np.ones(3), 1, [] if i else [1], []),
            "rank 0",
            "rank 1",
            "neighbor_allreduce",
        )
    else:
        disagree(net, lambda: net.neighbor_allreduce(np.ones(3), 1, [], []), "barrier")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "x0, x1",
    [
        (np.ones(3), np.ones(4)),
        (np.ones(3), np.ones(3, np.float32)),
        (np.ones(5000), np.ones(3)),
        (np.ones(3), np.ones(5000)),
    ],
)
@pytest.mark.parametrize("op", ["neighbor_allreduce", "pair_gossip", "push"])
def test_different_arrays(net, x0, x1, op):
    i, x = net.rank, (x0, x1)[net.rank % 2]
    if op == "push":
        right = [(i + 1) % net.n]
        disagree(net, lambda: net.neighbor_allreduce(x, 1, dst_weights=right), "an array")
    elif i < 2 and op == "pair_gossip":
        disagree(net, lambda: net.pair_gossip(x, 1 - i), "rank 0", "rank 1")
    elif i < 2:
        disagree(
            net, lambda: net.neighbor_allreduce(x, 1, [1 - i], [1 - i]), "rank 0", "rank 1", "(3,)"
        )


CALLS = {
    "allreduce": lambda net: net.allreduce(1.0),
    "static": lambda net: net.neighbor_allreduce(1.0),
    "broadcast": lambda net: net.broadcast(1.0, 0),
    "barrier": lambda net: net.barrier(),
    "push": lambda net: net.neighbor_allreduce(1.0, 1, dst_weights={}),
    "sum": lambda net: net.allreduce(1.0, average=False),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("first, second", list(itertools.combinations(CALLS, 2)))
def test_different_calls(net, first, second):
    net.set_topology(T.complete(net.n))
    disagree(net, lambda: CALLS[first if net.rank == 0 else second](net), "rank ")


@pytest.mark.mpi(min_size=2)
def test_calls_under_way_in_another_order(net):
    net.set_topology(T.ring(net.n))

    def both():
        first, second = ("ab", "ba")[net.rank == 1]
        calls = [net.start_allreduce(np.ones(3), name=name) for name in (first, second)]
        for call in calls:
            call.wait()

    disagree(net, both, "rank ")


@pytest.mark.mpi(min_size=2)
def test_one_rank_is_wrong_alone(net):
    net.set_topology(T.complete(net.n))
    for x in (np.ones(3), np.arange(3)):
        with pytest.raises((TypeError, ValueError), match=r"rank 1 gave up|int"):
            net.neighbor_allreduce(np.ones(3) if net.rank != 1 else np.arange(3))
        with pytest.raises((TypeError, ValueError), match=r"rank 1 gave up|int"):
            net.allreduce(np.ones(3) if net.rank != 1 else np.arange(3))
        with pytest.raises((TypeError, ValueError), match=r"rank 1 gave up|rank 99"):
            net.neighbor_allreduce(
                x * 1.0,
                1,
                [j for j in range(net.n) if j != net.rank],
                [j for j in range(net.n) if j != net.rank] + [99] * (net.rank == 1),
            )
    assert net.allreduce(2.0) == 2


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("start", [False, True])
def test_a_call_that_fails_takes_its_step_of_the_schedule(start):
    with mpidec.Network(transport="p2p") as net:
        W = [lazy * np.eye(net.n) + (1 - lazy) / net.n for lazy in (0.25, 0.5, 0.75)]
        net.set_topology(T.cycle([T.from_weights(one) for one in W]))
        X = stack(net.n)
        call = (
            (lambda x: net.start_neighbor_allreduce(x).wait()) if start else net.neighbor_allreduce
        )
        with pytest.raises(ValueError, match=r"rank \d+ has rows"):
            call(np.ones(3 + net.rank))
        np.testing.assert_allclose(call(X[net.rank]), (W[1] @ X)[net.rank])


@pytest.mark.mpi(min_size=2)
def test_different_topologies_and_roots(net):
    with pytest.raises(ValueError, match=r"set_topology: .* different topologies .*rank"):
        net.set_topology(T.ring(net.n) if net.rank else T.star(net.n))
    net.barrier()
    disagree(net, lambda: net.broadcast(1.0, int(net.rank == 1)), "rank ")


@pytest.mark.mpi(min_size=3)
def test_the_machine_disagrees(net, monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    count = -(-net.n // 2)
    net.set_machine_topology(T.ring(count))
    if net.rank < 2:
        with pytest.raises(ValueError, match="rank 1 and rank 0 of machine 0"):
            net.hierarchical_neighbor_allreduce(1.0, 1.0 + net.rank, {}, {})


def test_without_the_check_nothing_is_confirmed(net):
    net.check = False
    n, i = net.n, net.rank
    right, left = ([(i + 1) % n], [(i - 1) % n]) if n > 1 else ([], [])
    for _ in range(3):
        y = net.neighbor_allreduce(float(i), 0, left, right)
        assert y == (left[0] if left else 0)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("start", [False, True])
def test_without_the_check_no_term_is_left_out(start):
    """Who sends nothing is named by the rank that expects it, and told of it later, at the latest at the end."""
    with contextlib.suppress(ValueError), mpidec.Network() as net:
        net.check = False
        sources = {1: 0.5} if net.rank == 0 else {}

        def call():
            if start:
                return net.start_neighbor_allreduce(1.0, 0.5, sources, {}).wait()
            return net.neighbor_allreduce(1.0, 0.5, sources, {})

        if net.node is None:
            return
        if net.rank > 0:
            assert call() == 0.5
            return
        with pytest.raises(ValueError, match=r"rank 0 expects a message from rank 1 in .*, but"):
            call()


@pytest.mark.serial
@pytest.mark.launch
def test_a_wait_that_is_too_long_aborts(mpirun):
    code = (
        "import mpidec, time\n"
        "net = mpidec.Network()\n"
        "net.barrier()\n"
        "net.neighbor_allreduce(1.0, 1, [1], []) if net.rank == 0 else time.sleep(20)\n"
    )
    result = mpirun(2, ["-c", code], env={"MPIDEC_TIMEOUT": "1"})
    assert result.returncode != 0
    said = r"\[rank 0\].* waited 1 s.* for rank 1 (in|to begin mixing 1 \()neighbor_allreduce \(dynamic\)"
    assert re.search(said, result.stderr), result.stderr


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("transport", ["auto", "p2p"])
@pytest.mark.parametrize("op", ["sum", "start", "gather", "exchange"])
def test_all_ranks_compare_all_lists(transport, op):
    """One wrong edge raises the same error on all ranks, in that call; they go on."""
    with mpidec.Network(transport=transport) as net:
        net.check = "all"
        n, i, X = net.n, net.rank, stack(net.n, (2,))
        rng = np.random.default_rng(n)
        for dtype in (float, np.float16):
            takes = (rng.random((n, n)) < 0.6) & ~np.eye(n, dtype=bool)
            sends = takes.T.copy()
            a, b = rng.permutation(n)[:2].tolist()
            sends[a, b] ^= True  # a sends to b, which does not expect it, or does not send

            x = X[i].astype(dtype)

            def call(sends, takes=takes, x=x):
                to, of = np.flatnonzero(sends[i]).tolist(), np.flatnonzero(takes[i]).tolist()
                if op == "gather":
                    return net.neighbor_allgather(x[None], of, to).sum(0) + x
                if op == "exchange":
                    return sum(net.exchange(dict.fromkeys(to, x), of).values()) + x
                if op == "start":
                    return net.start_neighbor_allreduce(x, 1.0, of, to).wait()
                weights = dict.fromkeys(of, 1.0), dict.fromkeys(to, 1.0)
                return net.neighbor_allreduce(x, 1.0, *weights)

            expected = ((takes + np.eye(n)) @ X)[i]
            tolerance = 1e-13 if dtype is float else 0.02
            for _ in range(2):
                np.testing.assert_allclose(call(takes.T), expected, atol=tolerance)
                text = (
                    f"rank {a} sends to rank {b} in .*, but rank {b} does not expect"
                    if sends[a, b]
                    else f"rank {b} expects a message from rank {a} in .*, but rank {a} does not"
                )
                with pytest.raises(ValueError, match=text):
                    call(sends)
                assert net.allreduce(1.0) == 1
            net.barrier()


@pytest.mark.parametrize("transport", ["auto", "p2p", "neighbor"])
def test_topologies_that_have_been_set(transport, monkeypatch):
    """They are kept, and begin at their first step; the oldest is forgotten."""
    with mpidec.Network(transport=transport) as net:
        n, i, x = net.n, net.rank, stack(net.n)
        some = [T.ring(n), T.one_peer_exponential(n), T.star(n), T.complete(n)]
        lazy = [T.from_weights(a * np.eye(n) + (1 - a) / n) for a in np.linspace(0.1, 0.9, 20)]

        def mixes(graph):
            net.set_topology(graph)
            assert net.topology == graph
            W = graph.at(0).W.toarray()
            np.testing.assert_allclose(net.neighbor_allreduce(x[i]), (W @ x)[i], atol=1e-13)
            net.set_topology(graph)
            src = {j: 2.0 + j for j in np.flatnonzero(W[i]).tolist() if j != i}
            y = net.neighbor_allreduce(x[i], 0.5, src)
            np.testing.assert_allclose(y, 0.5 * x[i] + sum(w * x[j] for j, w in src.items()))

        for graph in (*some, *lazy, *some):
            mixes(graph)
        with monkeypatch.context() as patch:
            patch.setattr(net.mixers, "make", None)  # which makes one with all ranks
            for graph in (*some[::-1], *some):
                mixes(graph)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_ranks_that_set_different_ones_of_them(transport, weights):
    net = mpidec.Network(transport=transport)
    W = np.full((net.n, net.n), 1 / net.n)
    graphs = [T.from_weights(W), T.from_weights((W + np.eye(net.n)) / 2)]
    for graph in graphs:
        net.set_topology(graph)
    net.set_topology(graphs[net.rank % 2])
    with pytest.raises(ValueError, match=r"rank [01]"):
        net.neighbor_allreduce(np.ones(2), *(1.0, {}) if weights else ())
    with contextlib.suppress(ValueError):
        net.close()
