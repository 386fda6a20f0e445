"""BlueFog's names against dense products, on any number of ranks; what its programs get wrong ends in one line."""

import contextlib
import itertools
import os
import sys

import networkx as nx
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidec  # noqa: E402
from mpidec.bluefog import (  # noqa: E402
    names,
    session,
    torch as bf,
)
from mpidec.bluefog.common import topology_util, util  # noqa: E402
from mpidec.exceptions import RankMismatchError  # noqa: E402

pytestmark = pytest.mark.most(2)


@pytest.fixture
def size():
    bf.init()
    yield bf.size()
    bf.shutdown()


def stack(n, *shape, seed=0):
    return np.random.default_rng([seed, n]).standard_normal((n, *shape))


def weighted(n, seed=1):
    """A directed graph with weights of all sizes, A[i, j] from i to j."""
    rng = np.random.default_rng([seed, n])
    A = rng.random((n, n)) * (rng.random((n, n)) < 0.6)
    A[np.arange(n), (np.arange(n) + 1) % n] = 0.7
    np.fill_diagonal(A, 0)
    A /= 1.3 * max(1e-9, A.sum(0).max())
    return A + np.diag(1 - A.sum(0))


# Names and graphs


@pytest.mark.serial
def test_a_module_has_two_names(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    names.install()
    import bluefog.torch
    from bluefog.common import topology_util as same
    from bluefog.common.basics import BlueFogBasics
    from bluefog.run.interactive_run import interrupt_hanged_processes
    from bluefog.topology_util import RingGraph
    from bluefog.torch.mpi_ops import allreduce

    assert RingGraph is bf.RingGraph and callable(interrupt_hanged_processes)
    assert bluefog.__version__ == "0.3.0" and BlueFogBasics("here", "mpi_lib").size is bf.size
    calls = "session", "torch.mpi_ops", "torch.windows", "torch.timeline"
    for name in bf.__all__:
        if getattr(bf, name).__module__ in [f"mpidec.bluefog.{room}" for room in calls]:
            assert getattr(bluefog.torch.mpi_ops, name) is getattr(bf, name)
    bf.check_extension("bluefog.torch", bf.__file__, "mpi_lib")
    with pytest.raises(ImportError, match="tensorflow does not exist"):
        util.check_extension("bluefog.tensorflow", "", "mpi_lib")
    assert bluefog.torch is bf and same is topology_util and allreduce is bf.allreduce
    assert bf.__spec__.name == "mpidec.bluefog.torch"
    folder, rest = os.environ["PYTHONPATH"].split(os.pathsep)
    assert rest == "elsewhere" and os.path.exists(os.path.join(folder, "bluefog", "__init__.py"))
    with pytest.raises(ModuleNotFoundError, match=r"bluefog\.tensorflow"):
        import bluefog.tensorflow


@pytest.mark.serial
def test_graphs_send_along_rows():
    left, right = topology_util.RingGraph(5, 1), topology_util.RingGraph(5, 2)
    assert sorted(left.successors(2)) == [1, 2] and sorted(right.successors(2)) == [2, 3]
    assert topology_util.GetSendWeights(right, 4) == (0.5, {0: 0.5})
    assert topology_util.GetRecvWeights(right, 4) == (0.5, {3: 0.5})
    star = topology_util.StarGraph(6, 2)
    assert topology_util.GetRecvWeights(star, 0) == (
        pytest.approx(5 / 6),
        {2: pytest.approx(1 / 6)},
    )
    assert set(topology_util.GetSendWeights(topology_util.ExponentialGraph(11, 3), 4)[1]) == {
        5,
        7,
        2,
    }
    assert not topology_util.IsRegularGraph(star) and topology_util.IsRegularGraph(left)
    backwards = nx.DiGraph()
    backwards.add_nodes_from([2, 1, 0])
    backwards.add_weighted_edges_from([(0, 1, 0.25), (2, 0, 0.5)])
    assert topology_util.GetRecvWeights(backwards, 0) == (0.0, {2: 0.5})


SENDS = [(4, 2, 3, 1, 0, 6, 7, 5), (3, 5, 0, 2, 7, 1, 4, 6), (1, 3, 6, 0, 5, 7, 2, 4), (2, 0, 1, 7, 6, 4, 5, 3)]  # fmt: skip


@pytest.mark.serial
def test_schedules_agree_on_all_ranks():
    def steps(make, n, count=7):
        return list(zip(*(itertools.islice(make(rank), count) for rank in range(n))))

    expo = topology_util.GetInnerOuterExpo2DynamicSendRecvRanks
    found = steps(lambda rank: expo(8, 4, rank), 8, 4)
    assert [tuple(send[0] for send, _ in step) for step in found] == SENDS
    grid = topology_util.MeshGrid2DGraph(6)
    assert steps(lambda r: topology_util.GetDynamicOnePeerSendRecvRanks(grid, r), 6)[0][2:4] == (
        ([5], [1, 5]),
        ([4], []),
    )
    for make, n in [
        (lambda rank: topology_util.GetDynamicOnePeerSendRecvRanks(grid, rank), 6),
        (lambda rank: topology_util.GetInnerOuterRingDynamicSendRecvRanks(15, 3, rank), 15),
        (lambda rank: expo(20, 5, rank), 20),
        (lambda m: topology_util.GetExp2DynamicSendRecvMachineRanks(14, 2, 2 * m + 1, 1), 7),
    ]:
        for step in steps(make, n):
            sent = {(i, j) for i, (dests, _) in enumerate(step) for j in dests}
            assert sent == {(j, i) for i, (_, sources) in enumerate(step) for j in sources}


# Calls


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [True, False])
def test_neighbor_allreduce(size, dtype, weights):
    A, r = weighted(size), bf.rank()
    assert bf.set_topology(nx.from_numpy_array(A, create_using=nx.DiGraph), weights)
    W = A.T if weights else A.T > 0
    W = W / W.sum(1, keepdims=True)
    X = stack(size, 3, 2)
    x = torch.tensor(X[r], dtype=dtype)
    expected = torch.tensor(np.tensordot(W, X, 1)[r])
    close = dict(rtol=0, atol={8: 1e-14, 4: 1e-6, 2: 0.03}[x.element_size()])
    parameter = torch.nn.Parameter(x)
    handle = bf.neighbor_allreduce_nonblocking(x, name="x")
    with pytest.raises(ValueError, match="'x'"):
        bf.neighbor_allreduce_nonblocking(x, name="x")
    for y in (bf.neighbor_allreduce(parameter), bf.wait(handle)):
        assert y.dtype == dtype and not y.requires_grad
        torch.testing.assert_close(y.double(), expected, **close)
    with pytest.raises(ValueError, match="handle"):
        bf.poll(handle)
    src = {int(j): float(2 + j) for j in np.flatnonzero(A[:, r]) if j != r}
    y = bf.neighbor_allreduce(x, self_weight=-0.5, src_weights=src)
    expected = -0.5 * X[r] + sum(w * X[j] for j, w in src.items())
    torch.testing.assert_close(
        y.double(), torch.tensor(expected), rtol=0.03, atol=10 * close["atol"]
    )


def test_weights_are_those_of_the_graph(size):
    """Also where they do not sum to 1, where a loop is missing, and when the same graph has other weights."""
    r, X = bf.rank(), stack(size, 3)
    x = torch.tensor(X[r])
    G = nx.from_numpy_array(2 * weighted(size) - 0.3 * np.eye(size), create_using=nx.DiGraph)
    for factor in (1.0, -0.5):
        for _, _, entry in G.edges(data=True):
            entry["weight"] *= factor
        assert bf.set_topology(G, is_weighted=True)
        expected = np.tensordot(nx.to_numpy_array(G).T, X, 1)[r]
        y = bf.wait(bf.neighbor_allreduce_nonblocking(x))
        np.testing.assert_allclose(bf.neighbor_allreduce(x), expected, atol=1e-14)
        np.testing.assert_allclose(y, expected, atol=1e-14)
    session.network().set_topology(mpidec.topology.complete(size))
    y = bf.wait(bf.neighbor_allreduce_nonblocking(x))
    np.testing.assert_allclose([bf.neighbor_allreduce(x), y], [X.mean(0)] * 2, atol=1e-14)
    bf.set_topology(G, is_weighted=True)
    np.testing.assert_allclose(bf.neighbor_allreduce(x), expected, atol=1e-14)


@pytest.mark.parametrize("counts", [True, False])
def test_edges_of_weight_zero_are_edges(size, counts):
    """Their ranks are neighbours, which are sent to and heard of; where weights do not count, they have those of all others."""
    n, r, X = size, bf.rank(), stack(size, 3)
    links = (weighted(n) != 0) | np.roll(np.eye(n, dtype=bool), 1, 0)
    A = weighted(n, seed=2) * (links & np.roll(np.eye(n, dtype=bool), 1, 1))
    A += np.diag(1 - A.sum(0))
    G = nx.DiGraph()
    G.add_weighted_edges_from((i, j, A[i, j]) for i, j in np.argwhere(links).tolist())
    near = [j for j in range(n) if links[j, r] and j != r]
    far = [j for j in range(n) if links[r, j] and j != r]
    assert bf.GetRecvWeights(G, r) == (A[r, r], {j: A[j, r] for j in near})
    assert bf.GetSendWeights(G, r) == (A[r, r], {j: A[r, j] for j in far})
    fewer = nx.from_numpy_array(A, create_using=nx.DiGraph)
    assert bf.IsTopologyEquivalent(G, G.copy()) and bf.IsTopologyEquivalent(G, fewer) == (n < 3)
    bf.set_topology(G, is_weighted=counts)
    assert (bf.in_neighbor_ranks(), bf.out_neighbor_ranks()) == (near, far)
    W = A.T if counts else links.T / links.sum(0)[:, None]
    x = torch.tensor(X[r])
    np.testing.assert_allclose(bf.neighbor_allreduce(x), (W @ X)[r], rtol=1e-12)
    weights = {j: 1.0 + j for j in near}
    y = bf.neighbor_allreduce(x, self_weight=0.5, src_weights=weights)
    np.testing.assert_allclose(y, X[r] / 2 + sum((1 + j) * X[j] for j in near), rtol=1e-12)
    np.testing.assert_array_equal(bf.neighbor_allgather(x), X[near].ravel())
    bf.win_create(x, "x", zero_init=True)
    bf.win_put(x, "x", dst_weights=dict.fromkeys(far, 1.0))
    bf.barrier()
    np.testing.assert_allclose(bf.win_update("x"), (W @ X)[r], rtol=1e-12)
    bf.win_free()


def test_dynamic_calls_leave_the_graph(size):
    r, X = bf.rank(), stack(size, 4)
    x, hop = torch.tensor(X[r]), 2 % size
    if hop == 0:
        y = bf.neighbor_allreduce(x, self_weight=0.25, src_weights={}, dst_weights=[])
        assert torch.equal(y, x / 4)
        return
    dest, source = (r + hop) % size, (r - hop) % size
    y = bf.neighbor_allreduce(
        x, self_weight=0.3, src_weights={source: 0.7}, dst_weights={dest: 0.9}
    )
    np.testing.assert_allclose(y, 0.3 * X[r] + 0.63 * X[source], rtol=1e-14)
    y = bf.neighbor_allgather(x[:r], src_ranks=[source], dst_ranks=[dest])
    np.testing.assert_array_equal(y, X[source][:source])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("call", ["sum", "nonblocking", "gather", "optimizer"])
def test_lists_that_do_not_agree_raise_on_all_ranks(size, call):
    """One rank names a source that does not send to it; afterwards all go on."""
    r, X = bf.rank(), stack(size, 3)
    x = torch.tensor(X[r])
    src = {1: 0.5} if r == 0 else {}
    knobs = {"self_weight": 0.5, "src_weights": src, "dst_weights": []}
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bf.DistributedAdaptThenCombineOptimizer(optimizer, model)
    vars(optimizer).update(knobs, enable_topo_check=True)
    run = {
        "sum": lambda: bf.neighbor_allreduce(x, **knobs),
        "nonblocking": lambda: bf.wait(bf.neighbor_allreduce_nonblocking(x.half(), **knobs)),
        "gather": lambda: bf.neighbor_allgather(x, src_ranks=list(src), dst_ranks=[]),
        "optimizer": optimizer.step,
    }[call]
    for _ in range(3):
        with pytest.raises(ValueError, match="rank 0 expects a message from rank 1"):
            run()
        np.testing.assert_allclose(bf.allreduce(x), X.mean(0), rtol=1e-13)
        left, right = (r - 1) % size, (r + 1) % size
        y = bf.neighbor_allreduce(x, self_weight=0.5, src_weights={left: 0.5}, dst_weights=[right])
        np.testing.assert_allclose(y, (X[r] + X[left]) / 2)


def test_graphs_that_have_been_set(size, monkeypatch):
    """Each has its own neighbours and weights, whichever object describes it; nothing is sent to set it again."""
    x = torch.tensor(float(bf.rank()))

    def means():
        graphs = [bf.RingGraph(size), bf.StarGraph(size), bf.FullyConnectedGraph(size)]
        skewed = nx.from_numpy_array(2 * weighted(size), create_using=nx.DiGraph)
        for graph, counts in [*itertools.product(graphs, (True, False)), (skewed, True)]:
            assert bf.set_topology(graph, is_weighted=counts) and bf.load_topology() is graph
            A = nx.to_numpy_array(graph)
            A = A if counts else (A > 0) / (A > 0).sum(0)
            expected = A[:, bf.rank()] @ np.arange(size)
            assert bf.neighbor_allreduce(x).item() == pytest.approx(expected, abs=1e-5)

    means()
    monkeypatch.setattr(session.network().mixers, "make", None)  # which makes one with all ranks
    monkeypatch.setattr(session, "from_networkx", None)
    means()


@pytest.mark.parametrize("before", [True, "all", False])
def test_a_call_without_comparison_is_alone(size, before):
    """What `net.check` says holds for the calls after it, also after an error."""
    r, n, net, x = bf.rank(), size, session.network(), torch.tensor([1.0])
    peers = [[(r - 1) % n], [(r + 1) % n]] if n > 1 else [[], []]
    knobs = {
        "self_weight": 0.5,
        "src_weights": dict.fromkeys(peers[0], 1.0),
        "dst_weights": peers[1],
    }
    optimizer = bf.DistributedAdaptThenCombineOptimizer(sgd, linear)
    net.check = before
    for check in (True, False):
        bf.neighbor_allreduce(x, **knobs, enable_topo_check=check)
        assert net.check is before
        bf.wait(bf.neighbor_allreduce_nonblocking(x, **knobs, enable_topo_check=check))
        assert net.check is before
        src, dst = peers
        bf.neighbor_allgather(x, src_ranks=src, dst_ranks=dst, enable_topo_check=check)
        assert net.check is before
        vars(optimizer).update(knobs, enable_topo_check=check)
        optimizer.step()
        with pytest.raises(ValueError, match="99"):
            bf.neighbor_allreduce(x, self_weight=1.0, src_weights={99: 1.0}, dst_weights=[], enable_topo_check=check)  # fmt: skip
        assert net.check is before


def test_calls_of_all_ranks(size):
    r, X = bf.rank(), stack(size, 3)
    x = torch.tensor(X[r])
    np.testing.assert_allclose(bf.allreduce(x), X.mean(0), rtol=1e-13)
    whole = torch.full((2,), r, dtype=torch.int32)
    assert bf.allreduce_(whole, average=False).tolist() == [size * (size - 1) // 2] * 2
    assert whole.dtype == torch.int32
    y = x.clone()
    assert bf.wait(bf.broadcast_nonblocking_(y, size - 1, name="y")) is y
    assert np.array_equal(y, X[-1]) and np.array_equal(bf.broadcast(x, 0), X[0])
    assert bf.allgather(torch.arange(r)).tolist() == [k for i in range(size) for k in range(i)]
    named = {"a": y.clone() * r, "b": torch.tensor(r)}
    bf.allreduce_parameters(named)
    np.testing.assert_allclose(named["a"], y * (size - 1) / 2, rtol=1e-13)
    assert named["b"] == r
    bf.broadcast_parameters(named, root_rank=size - 1)
    assert named["b"] == size - 1


def test_machines(monkeypatch):
    monkeypatch.setenv("BLUEFOG_NODES_PER_MACHINE", "2")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    bf.init()
    n, r = bf.size(), bf.rank()
    machines = -(-n // 2)
    assert (bf.machine_rank(), bf.local_rank()) == divmod(r, 2) and bf.machine_size() == machines
    assert bf.is_homogeneous() == (n % 2 == 0 or n == 1)
    mine = [k for k in range(n) if k // 2 == r // 2]
    x = torch.tensor([r, 7])
    local = bf.allreduce(x, average=False, is_hierarchical_local=True)
    assert local.tolist() == [sum(mine), 7 * len(mine)]
    bf.set_machine_topology(bf.RingGraph(machines, 2), is_weighted=True)
    W = (
        np.eye(machines)
        if machines == 1
        else (np.eye(machines) + np.roll(np.eye(machines), -1, 1)) / 2
    )
    means = [np.mean([k for k in range(n) if k // 2 == m]) for m in range(machines)]
    y = bf.hierarchical_neighbor_allreduce(torch.tensor([float(r)]))
    assert y.item() == pytest.approx(W[r // 2] @ means)
    A = stack(machines, machines, seed=3)  # weights that sum to anything
    bf.set_machine_topology(nx.from_numpy_array(A, create_using=nx.DiGraph), is_weighted=True)
    y = bf.hierarchical_neighbor_allreduce(torch.tensor([float(r)]))
    assert y.item() == pytest.approx(A[:, r // 2] @ means, rel=1e-6)
    session.network().set_machine_topology(mpidec.topology.complete(machines))
    y = bf.hierarchical_neighbor_allreduce(torch.tensor([float(r)]))
    assert y.item() == pytest.approx(np.mean(means), rel=1e-6)
    before, after = (r // 2 - 1) % machines, (r // 2 + 1) % machines
    y = bf.hierarchical_neighbor_allreduce(
        torch.tensor([float(r)]),
        self_weight=0.5,
        src_machine_weights={before: 0.5},
        dst_machine_weights=iter([after]),
    )
    assert y.item() == (means[r // 2] + means[before]) / 2
    number = torch.tensor(r + 0.5)
    local = bf.allreduce(number, average=False, is_hierarchical_local=True)
    assert local.shape == () and local.item() == sum(mine) + len(mine) / 2
    bf.shutdown()


def test_machines_change_nothing_else(monkeypatch):
    """With blocks of ranks as machines, rows of windows travel, and are waited for, as without; all ranks have the same blocks."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    unread = []
    for per in ("", "1"):
        os.environ["BLUEFOG_NODES_PER_MACHINE"] = per
        bf.init()
        assert bf.local_size() == (1 if per else bf.size())
        bf.win_create(torch.ones(2), "x")
        bf.win_put(torch.ones(2), "x")
        bf.barrier()
        unread.append(session.current("test").windows["x"].window.unread)
        bf.shutdown()
    assert unread[0] == unread[1]
    os.environ["BLUEFOG_NODES_PER_MACHINE"] = "1"
    bf.init()
    os.environ["MPIDEC_RANKS_PER_MACHINE"] = str(1 + bf.rank())
    with (
        contextlib.nullcontext()
        if bf.size() == 1
        else pytest.raises(RankMismatchError, match="PER_MACHINE=1")
    ):
        bf.local_size()
    bf.init()
    bf.shutdown()


def test_who_sends_is_inferred(size):
    r = bf.rank()
    lists = [[j for j in range(size) if j != i and (i * j + i) % 3 < 2] for i in range(size)]
    A = np.array([[j in lists[i] or i == j for j in range(size)] for i in range(size)], float)
    found, W = bf.InferSourceFromDestinationRanks(lists[r], construct_adjacency_matrix=True)
    assert found == [i for i in range(size) if r in lists[i]]
    np.testing.assert_allclose(W, A / A.sum(0))
    found, W = bf.InferDestinationFromSourceRanks(lists[r], construct_adjacency_matrix=True)
    assert found == [i for i in range(size) if r in lists[i]]
    np.testing.assert_allclose(W, A.T / A.T.sum(0))


@pytest.mark.mpi(min_size=2)
def test_a_wrong_list_is_refused_on_all_ranks(size):
    """Whichever rank has it; windows stay, and the next calls meet."""
    x = torch.tensor(float(bf.rank()))
    bf.win_create(x.clone(), "x")
    for wrong, infer in itertools.product(
        range(size), (bf.InferSourceFromDestinationRanks, bf.InferDestinationFromSourceRanks)
    ):
        ranks = [(bf.rank() + 1) % size] * (1 + (bf.rank() == wrong))
        with pytest.raises(
            ValueError, match=rf"bf\.{infer.__name__}: the list .* of rank {wrong}, "
        ):
            infer(ranks)
        assert bf.allreduce(x).item() == (size - 1) / 2
        assert infer(ranks[:1]) == [(bf.rank() - 1) % size]
    assert bf.get_current_created_window_names() == ["x"]
    bf.win_free()


# Windows


def test_windows_by_name(size):
    r, X = bf.rank(), stack(size, 5)
    x = torch.tensor(X[r])
    assert bf.win_create(x, "x") and not bf.win_create(x, "x")
    assert not bf.set_topology(bf.RingGraph(size)) and bf.get_current_created_window_names() == [
        "x"
    ]
    near = bf.in_neighbor_ranks()
    bf.win_put(x, "x", self_weight=0.5, dst_weights={j: 1 + j for j in bf.out_neighbor_ranks()})
    bf.barrier()
    assert bf.get_win_version("x") == dict.fromkeys(near, 1)
    np.testing.assert_array_equal(x, X[r] / 2)
    weights = {j: 0.1 + j for j in near}
    other = bf.win_update("x", self_weight=0.3, neighbor_weights=weights, clone=True)
    expected = 0.15 * X[r] + sum(w * (1 + r) * X[j] for j, w in weights.items())
    np.testing.assert_allclose(other, expected, rtol=1e-13)
    np.testing.assert_array_equal(x, X[r] / 2)
    other.fill_(np.nan)
    bf.allreduce(x)  # ranks meet; unlike bf.barrier and bf.win_get, it lets windows be
    if r == 0:
        bf.win_get("x")
    bf.allreduce(x)
    if r > 0:
        bf.win_get("x")
    bf.allreduce(x)  # an update changes what neighbours may still be reading, for a moment
    got = bf.win_update("x", 0.0, dict.fromkeys(near, 1.0), clone=True)
    np.testing.assert_array_equal(got, sum((X[j] / 2 for j in near), 0 * X[r]))
    bf.barrier()
    x.fill_(r + 1)  # neighbours read what the program writes
    bf.barrier()
    assert bf.win_wait(bf.win_get_nonblocking("x", dict.fromkeys(near, 2.0)))
    bf.barrier()
    y = bf.win_update_then_collect("x")
    assert y is x and x.tolist() == [r + 1 + sum(2 * (j + 1) for j in near)] * 5
    bf.barrier()
    with bf.win_mutex("x", for_self=True), pytest.raises(RuntimeError):
        bf.win_mutex("x", ranks=[r]).__enter__()
    with bf.win_mutex("x"):
        bf.win_accumulate(torch.ones(5, dtype=torch.float64), "x", require_mutex=True)
    bf.barrier()
    before = x.clone()
    assert torch.equal(bf.win_update_then_collect("x"), before + len(near))
    kept = x.clone()
    assert bf.win_free() and bf.get_current_created_window_names() == []
    assert torch.equal(x, kept) and x.add_(1).sum() == kept.sum() + 5


def test_windows_of_views_and_whole_numbers(size):
    r = bf.rank()
    both = torch.zeros(2, 3, dtype=torch.int64)
    both[1] = 10**12 + r
    bf.win_create(both[1], "row")
    with pytest.raises(TypeError, match="int64"):
        bf.win_put(both[1].double(), "row")
    bf.win_accumulate(both[1], "row", dst_weights=dict.fromkeys(bf.out_neighbor_ranks(), 2.0))
    bf.barrier()
    near = bf.in_neighbor_ranks()
    bf.win_update("row", 1.0, dict.fromkeys(near, 1.0))
    total = 10**12 + r + sum(10**12 + r + 2 * (10**12 + j) for j in near)  # slots begin as copies
    assert both.tolist() == [[0] * 3, [total] * 3]
    bf.barrier()
    other = both[1].clone()
    bf.win_put(other, "row", self_weight=2.0)
    assert other.tolist() == [2 * total] * 3 and both.tolist() == [[0] * 3, [total] * 3]
    bf.win_free("row")

    square = torch.arange(4.0).view(2, 2) + r
    bf.win_create(square, "square", zero_init=True)
    bf.win_put(square.T, "square", dst_weights=iter(bf.out_neighbor_ranks()))
    bf.barrier()
    bf.win_update("square", 0.0, dict.fromkeys(near, 1.0))
    assert (
        square.tolist()
        == sum((torch.arange(4.0).view(2, 2).T + j for j in near), 0 * square).tolist()
    )
    bf.win_free("square")


def test_a_window_follows_its_parameter(size):
    """Also when that gets other memory, as by an optimizer that lays its parameters out."""
    model = torch.nn.Linear(2, 1, bias=False)
    bf.win_create(model.weight, "w", zero_init=True)
    for k in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        if k:
            bf.DistributedAdaptThenCombineOptimizer(optimizer, model)
        with torch.no_grad():
            model.weight.fill_(k + bf.rank())
        bf.win_put(model.weight, "w")
        bf.barrier()
        bf.win_update_then_collect("w")
        assert model.weight.tolist() == [
            [k * (1 + len(near)) + bf.rank() + sum(near)] * 2 for near in [bf.in_neighbor_ranks()]
        ]
        bf.barrier()
    bf.win_free("w")


def test_a_window_follows_the_strides_of_its_tensor(size):
    square = torch.arange(4.0).view(2, 2)
    bf.win_create(square, "square", zero_init=True)
    bf.win_update("square", 1.0, {})
    square.t_()
    assert bf.win_update("square", 2.0, {}, clone=True).tolist() == [[0, 4], [2, 6]]
    bf.win_free("square")


@pytest.mark.mpi(min_size=2)
def test_ranks_that_make_or_free_other_windows_are_told(size):
    odd = bf.rank() == size - 1
    for create in (
        lambda: bf.win_create(torch.ones(2), "v" if odd else "w"),
        lambda: bf.win_create(torch.ones(2, dtype=torch.int64 if odd else torch.float64), "w"),
        lambda: bf.broadcast_parameters([torch.ones(2)], int(odd)),
        lambda: bf.broadcast_parameters([torch.ones(2 + odd)], 0),
    ):
        with pytest.raises(ValueError, match=f"rank {size - 1} has|rank . has"):
            create()
        bf.init()
    assert bf.win_create(torch.ones(2), "v") and bf.win_create(torch.ones(2), "w")
    with pytest.raises(ValueError, match=r"window '[vw]'"):
        bf.win_free("v" if odd else "w")
    bf.init()
    assert bf.get_current_created_window_names() == ["v", "w"] and bf.win_free()


@pytest.mark.serial
def test_activities_within_activities(tmp_path, monkeypatch):
    monkeypatch.setenv("BLUEFOG_TIMELINE", str(tmp_path / "line_"))
    bf.init()
    try:
        with bf.timeline_context("x", "outer"), bf.timeline_context("x", "inner"):
            pass
        assert not bf.timeline_end_activity("x")
    finally:
        bf.shutdown()
        monkeypatch.delenv("MPIDEC_TIMELINE", raising=False)
    text = "".join(path.read_text() for path in tmp_path.glob("line_*"))
    assert text.index("inner") < text.index("outer")


def test_push_sum_keeps_the_mass(size):
    r = bf.rank()
    bf.turn_on_win_ops_with_associated_p()
    try:
        x = torch.tensor([float(r), 1.0], dtype=torch.float64)
        bf.win_create(x, "x", zero_init=True)
        out = bf.out_neighbor_ranks()
        share = 1 / (len(out) + 1)
        for _ in range(400):
            bf.win_accumulate(x, "x", self_weight=share, dst_weights=dict.fromkeys(out, share))
            bf.win_update_then_collect("x")
        bf.barrier()
        bf.win_update_then_collect("x")
        p = bf.win_associated_p("x")
        assert x[1].item() == pytest.approx(p, rel=1e-12)
        totals = bf.allreduce(torch.tensor([x[0].item(), p], dtype=torch.float64), average=False)
        np.testing.assert_allclose(totals, [size * (size - 1) / 2, size], rtol=1e-12)
    finally:
        bf.turn_off_win_ops_with_associated_p()
    bf.win_accumulate(x, "x", self_weight=0.5)
    assert bf.win_associated_p("x") == p


# Optimizers


def trained(make, passes, accumulate, X0, steps=6):
    """Parameters after some steps of SGD with momentum on |x - a|^2 / 2, where pass k of rank r has a = r + k."""
    model = torch.nn.Linear(1, 3, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(X0[bf.rank()])[:, None])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer = make(optimizer, model)
    k = 0
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes if accumulate else 1):
            y = model(torch.ones(1, 1, dtype=torch.float64))[0]
            ((y - bf.rank() - k).square().sum() / 2).backward()
            k += 1
        optimizer.step()
    if hasattr(optimizer, "unregister_window"):
        optimizer.unregister_window()
    return model.weight.detach().numpy()[:, 0]


def dense_training(W, adapt_first, passes, accumulate, X, steps=6):
    """The same of all ranks at once."""
    n, k, V, r = len(X), 0, 0.0, np.arange(len(X))[:, None]
    for step in range(steps):
        G = 0.0
        for _ in range(passes if accumulate else 1):
            G = G + X - r - k
            k += 1
        V = 0.5 * V + G
        due = accumulate or (step + 1) % passes == 0
        mix = W if due else np.eye(n)
        X = mix @ (X - 0.1 * V) if adapt_first else mix @ X - 0.1 * V
    return X


@pytest.mark.parametrize("passes, accumulate", [(1, True), (3, True), (2, False)])
@pytest.mark.parametrize("adapt_first", [True, False])
def test_num_steps_per_communication(size, passes, accumulate, adapt_first):
    A = weighted(size)
    bf.set_topology(nx.from_numpy_array(A, create_using=nx.DiGraph), is_weighted=True)
    W, X0 = A.T, stack(size, 3)
    kind = (
        bf.DistributedAdaptThenCombineOptimizer
        if adapt_first
        else bf.DistributedAdaptWithCombineOptimizer
    )
    x = trained(lambda o, m: kind(o, m, num_steps_per_communication=passes), passes, accumulate, X0)
    expected = dense_training(W, adapt_first, passes, accumulate, X0)
    np.testing.assert_allclose(x, expected[bf.rank()], rtol=1e-12)


def test_other_optimizers(size):
    X0 = stack(size, 3)
    J, r = np.full((size, size), 1 / size), bf.rank()
    x = trained(
        lambda o, m: bf.DistributedAdaptWithCombineOptimizer(o, m, bf.CommunicationType.allreduce), 1, True, X0
    )  # fmt: skip
    np.testing.assert_allclose(x, dense_training(J, False, 1, True, X0)[r], rtol=1e-12)
    x = trained(
        lambda o, m: bf.DistributedGradientAllreduceOptimizer(o, m), 1, True, X0[[0] * size]
    )
    np.testing.assert_allclose(bf.allreduce(torch.tensor(x)), x, rtol=1e-13)
    np.testing.assert_allclose(
        x, dense_training(J, True, 1, True, X0[[0] * size]).mean(0), rtol=1e-12
    )

    def one_peer(optimizer, model):
        made = bf.DistributedAdaptThenCombineOptimizer(optimizer, model)
        made.self_weight, made.src_weights, made.dst_weights = (
            0.5,
            {(r - 1) % size: 0.5},
            [(r + 1) % size],
        )
        return made

    if size > 1:
        W = (np.eye(size) + np.roll(np.eye(size), -1, 1)) / 2
        np.testing.assert_allclose(
            trained(one_peer, 1, True, X0),
            dense_training(W, True, 1, True, X0)[r],
        )
    for kind in (
        bf.DistributedWinPutOptimizer,
        lambda o, m: _barrier(bf.DistributedPullGetOptimizer(o, m)),
    ):
        x = trained(kind, 1, True, 0 * X0 + 3.0)
        assert np.isfinite(x).all() and bf.get_current_created_window_names() == []


def test_synchronize_mixes_once(size):
    X = stack(size, 2, seed=4)
    A = weighted(size)
    bf.set_topology(nx.from_numpy_array(A, create_using=nx.DiGraph), is_weighted=True)
    for kind, skip in itertools.product(
        (bf.DistributedAdaptThenCombineOptimizer, bf.DistributedAdaptWithCombineOptimizer),
        (True, False),
    ):
        model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            model.weight.copy_(torch.tensor(X[[bf.rank()]]))
        optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.0), model)
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize() if skip else contextlib.nullcontext():
            optimizer.step()
        np.testing.assert_allclose(model.weight.detach()[0], (A.T @ X)[bf.rank()], rtol=1e-12)


def test_parameters_are_not_left_out_without_a_word(size):
    model = torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    optimizer = bf.DistributedAdaptThenCombineOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model
    )
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    model.bias.requires_grad_(True)
    with pytest.raises(RuntimeError, match="bias was frozen when the optimizer was wrapped"):
        optimizer.step()


def _barrier(optimizer):
    optimizer.force_barrier = True
    return optimizer


# Mistakes

x = torch.ones(2)
linear = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(linear.parameters(), 0.1)


def loop(weight):
    graph = nx.DiGraph()
    graph.add_edge(0, 0, weight=weight)
    return graph


MISTAKES = [
    (lambda: bf.set_topology(np.eye(2)), TypeError, "networkx.DiGraph"),
    (lambda: bf.set_topology(nx.Graph()), TypeError, "networkx.DiGraph"),
    (lambda: bf.set_topology(bf.RingGraph(bf.size() + 1)), TypeError, "nodes"),
    (lambda: bf.set_machine_topology(None), ValueError, "networkx.DiGraph"),
    (lambda: bf.hierarchical_neighbor_allreduce(x), RuntimeError, "set_machine_topology"),
    (lambda: bf.neighbor_allreduce([1.0, 2.0]), TypeError, "torch.Tensor"),
    (lambda: bf.neighbor_allreduce(x.int()), TypeError, "int32"),
    (lambda: bf.neighbor_allreduce(x, self_weight=1.0), ValueError, "src_weights"),
    (lambda: bf.neighbor_allreduce(x, src_weights={}), ValueError, "self_weight"),
    (lambda: bf.neighbor_allreduce(x, dst_weights=[0]), ValueError, "self_weight"),
    (lambda: bf.neighbor_allreduce(x, neighbor_weights={}), TypeError, "neighbor_weights"),
    (lambda: bf.neighbor_allreduce(x, self_weight=1.0, src_weights=[0]), ValueError, "dict"),
    (lambda: bf.neighbor_allreduce(x, self_weight=1.0, src_weights={99: 1.0}), ValueError, "99"),
    (lambda: bf.neighbor_allreduce(x, self_weight=1.0, src_weights={bf.rank(): 1.0}), ValueError, "itself"),
    (lambda: bf.neighbor_allreduce(x, self_weight=1.0, src_weights={}, dst_weights=5), ValueError, "dst_weights is 5"),
    (lambda: bf.neighbor_allgather(x, src_ranks=[]), ValueError, "dst_ranks"),
    (lambda: bf.neighbor_allgather(torch.tensor(1.0)), ValueError, "dimension"),
    (lambda: bf.broadcast(x, root_rank=99), ValueError, "99"),
    (lambda: bf.allreduce(x.int()), TypeError, "int32"),
    (lambda: bf.pair_gossip(x, bf.rank()), ValueError, "itself"),
    (lambda: bf.pair_gossip(x, 0, self_weight=1.0), ValueError, "pair_weight"),
    (lambda: bf.wait(handle=12345), ValueError, "12345"),
    (lambda: bf.InferSourceFromDestinationRanks([bf.rank()]), ValueError, "other ranks"),
    (lambda: bf.InferSourceFromDestinationRanks("a"), ValueError, "other ranks"),
    (lambda: bf.win_put(x, "z"), ValueError, "win_create"),
    (lambda: bf.win_update("z"), ValueError, "'z'"),
    (lambda: bf.win_free("z"), ValueError, "'z'"),
    (lambda: bf.win_mutex("z"), ValueError, "'z'"),
    (lambda: bf.win_create([1.0], "z"), TypeError, "list"),
    (lambda: bf.win_create(x * 1j, "z"), TypeError, "complex64"),
    (lambda: bf.win_create(x, 5), TypeError, "name is 5"),
    (lambda: bf.set_topology(nx.DiGraph([(0, "a")])), TypeError, "nodes"),
    (lambda: bf.set_topology(loop(float("nan")), True), ValueError, "from 0 to 0 is nan"),
    (lambda: bf.set_topology(loop("a"), True), ValueError, "from 0 to 0 is 'a'"),
    (lambda: bf.broadcast_parameters([x], 99), ValueError, "99"),
    (lambda: bf.broadcast_parameters(None, 0), TypeError, "NoneType"),
    (lambda: bf.broadcast_optimizer_state(sgd, 99), ValueError, "99"),
    (lambda: bf.DistributedAdaptThenCombineOptimizer(sgd, None), TypeError, "model is None"),
    (lambda: bf.DistributedAdaptThenCombineOptimizer(linear, linear), TypeError, "Linear"),
    (lambda: bf.DistributedAdaptThenCombineOptimizer(sgd, torch.nn.Linear(2, 1)), ValueError, "module"),
    (lambda: bf.DistributedAdaptThenCombineOptimizer(sgd, linear, "allreduce"), ValueError, "CommunicationType"),
    (lambda: bf.DistributedWinPutOptimizer(sgd, linear, num_steps_per_communication=0), ValueError, "number >= 1"),
    (lambda: bf.RingGraph(3, 7), ValueError, "connect_style"),
]  # fmt: skip


@pytest.mark.serial
def test_mistakes_end_in_one_line(size):
    bf.DistributedWinPutOptimizer(sgd, linear)
    again = lambda: bf.DistributedWinPutOptimizer(sgd, linear)
    for call, error, word in [*MISTAKES, (again, ValueError, "window_prefix")]:
        with pytest.raises(error) as caught:
            call()
        assert word in str(caught.value) and "\n" not in str(caught.value), caught.value
        bf.barrier()


@pytest.mark.serial
def test_before_and_after():
    for call in (bf.size, lambda: bf.allreduce(x), lambda: bf.win_update("x"), bf.barrier):
        with pytest.raises(ValueError, match=r"bf\.init"):
            call()
    bf.init(bf.RingGraph)
    assert session.network().n == bf.size() and mpidec.topology.ring(1).n == 1
    bf.shutdown()
    with pytest.raises(ValueError, match="shut down"):
        bf.rank()


@pytest.mark.serial
def test_variables_for_a_block(monkeypatch):
    monkeypatch.setenv("A", "1")
    with util.env(A="2", B="3", C=None):
        assert os.environ["A"] == "2" and os.environ["B"] == "3" and "C" not in os.environ
    assert os.environ["A"] == "1" and "B" not in os.environ
