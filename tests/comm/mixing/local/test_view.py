"""The calls of programs with one agent per rank, against dense products, on any number of ranks."""

import os
import re

import numpy as np
import pytest
from helpers.local import DTYPES, RTOL, dense, random_graph, stack

import mpidec
from mpidec import topology as T
from mpidec.comm.arrays import formats

pytestmark = [pytest.mark.most(2), pytest.mark.library]


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


def test_pushing_large_arrays(net):
    X = stack(net.n, (30000,))
    right = (net.rank + 1) % net.n
    y = net.neighbor_allreduce(X[net.rank], 0.5, dst_weights={right: 0.5} if net.n > 1 else {})
    np.testing.assert_allclose(y, 0.5 * X[net.rank] + (0.5 * X[net.rank - 1] if net.n > 1 else 0))


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
