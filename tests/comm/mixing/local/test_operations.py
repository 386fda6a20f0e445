"""The steps of local-view calls, against dense products, and ranks whose calls differ."""

import contextlib
import itertools

import numpy as np
import pytest
from helpers.local import DTYPES, RTOL, dense, disagree, random_graph, stack

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.most(2), pytest.mark.library]


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
