"""Decentralized training: against dense averages, solvers and separate models; everyday needs; refusals.  Any number of ranks."""

import contextlib
import copy
import gc
import itertools
import json
import math
import re
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.counting import calls
from mpi4py import MPI

import mpidec
from mpidec import RankMismatchError, topology
from mpidec.exceptions import from_another_rank

pytestmark = pytest.mark.most(1)

torch = pytest.importorskip("torch")
nn, optim, Stacked = torch.nn, mpidec.optim, mpidec.nn.Stacked

torch.set_num_threads(1)
WORLD = MPI.COMM_WORLD
ASYNCHRONOUS = ("async_push_sum", "pairwise", "a2cid2")
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
}


@pytest.fixture
def net():
    with mpidec.Network() as net:
        yield net


def perceptron(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def sample(worker, k, dtype=torch.float32):
    g = torch.Generator().manual_seed(1000 * worker + k)
    return torch.randn(8, 6, generator=g).to(dtype), torch.randn(8, 2, generator=g).to(dtype)


def backward(model, optimizer, worker, k, dtype=torch.float32):
    x, y = sample(worker, k, dtype)
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def options_of(name, n):
    """A topology of n workers for an algorithm, or None for its own."""
    return {"hierarchical": "ring", "relay": "double_binary_trees"}.get(name)


def fits(name, n):
    return name != "hierarchical" or n % 2 == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce"])
def test_workers_are_dense_averages_of_separate_models(net, name, algorithm):
    make, n, graph = OPTIMIZERS[name], net.n, topology.one_peer_exponential(net.n)
    model = perceptron()
    optimizer = optim.Decentralized(make(model.parameters()), model, graph, algorithm, net)
    models = [perceptron() for _ in range(n)]
    optimizers = [make(other.parameters()) for other in models]

    def mix(W, values):
        for same in zip(*values):
            mixed = torch.tensordot(
                torch.tensor(W, dtype=torch.float32), torch.stack(list(same)), 1
            )
            for value, new in zip(same, mixed):
                value.copy_(new)

    for k in range(50):
        backward(model, optimizer, net.rank, k)
        optimizer.step()
        for worker, (other, its) in enumerate(zip(models, optimizers)):
            backward(other, its, worker, k)
        with torch.no_grad():
            W = graph.at(k).W.toarray()
            if algorithm == "allreduce":
                mix(
                    np.full((n, n), 1 / n),
                    [[p.grad for p in other.parameters()] for other in models],
                )
            if algorithm == "awc":
                mix(W, [[p.data for p in other.parameters()] for other in models])
            for its in optimizers:
                its.step()
            if algorithm == "atc":
                mix(W, [[p.data for p in other.parameters()] for other in models])
    optimizer.close()
    expected = flat(models[net.rank])
    assert (flat(model) - expected).norm() <= 1e-6 * expected.norm()
    assert (
        algorithm != "allreduce" or len(set(net.comm.allgather(flat(model).numpy().tobytes()))) == 1
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in optim.names()
        if name
        not in (
            "atc",
            "awc",
            "allreduce",
            "local",
            "pga",
            "choco",
            "hierarchical",
            "demuon",
            "streaming_diloco",
            *ASYNCHRONOUS,
        )
    ],
)
def test_algorithms_are_the_equations_of_their_solvers(net, name):
    """Stochastic gradient descent by the wrapper is the solver, given the gradients."""
    dtype, lr, n = torch.float64, 0.05, net.n
    model = perceptron(dtype)
    algorithm = optim.algorithm(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a ring is marginal for D2
        optimizer = optim.Decentralized(
            torch.optim.SGD(model.parameters(), lr), model, None, name, net, every=1
        )
    made = {
        "d2": "D2",
        "exact_diffusion": "ExactDiffusion",
        "gradient_tracking": "GradientTracking",
        "push_sum": "PushSum",
        "osgp": "OSGP",
        "relay": "RelaySGD",
        "ceca": "DSGDCECA",
        "qg": "QuasiGlobalMomentum",
        "mixed_momentum": "DecentralizedMomentum",
        "decentlam": "DecentLaM",
        "slowmo": "SlowMo",
        "diloco": "DiLoCo",
        "gasloc": "GASLoC",
        "noloco": "NoLoCo",
    }[name]
    more: dict = {
        "gradient_tracking": {"variant": "semi-atc"},
        "gasloc": {"momentum": 0.5},
        "mixed_momentum": {"mix_momentum": True},
    }.get(name, {})
    if name in ("slowmo", "diloco", "gasloc", "noloco"):
        more["local_steps"] = 1  # with every=1
    solver = getattr(mpidec.solvers, made)(lr, **more)
    if name in ("diloco", "gasloc", "noloco"):  # the movement is a step of its own there
        solver = getattr(mpidec.solvers, made)(1.0, **more)
    W = net.mixer(topology.CATALOGUE[algorithm.graph](n))
    reference = perceptron(dtype)
    order = list(reference.parameters())[::-1]

    def row():
        return torch.cat([p.detach().flatten() for p in order])[None].clone()

    s = solver.init(row(), W.at(0))
    for k in range(12):
        backward(model, optimizer, net.rank, k, dtype)
        optimizer.step()
        at, point = 0, solver.point(s)
        for p in order:
            p.data.copy_(point[0, at : at + p.numel()].view(p.shape))
            at += p.numel()
        backward(reference, torch.optim.SGD(reference.parameters(), lr), net.rank, k, dtype)
        G = torch.cat([p.grad.flatten() for p in order])[None]
        s = solver.step(s, lr * G if name in ("diloco", "gasloc", "noloco") else G, W.at(k))
    point, now = (
        solver.point(s),
        torch.cat([p.detach().flatten() for p in list(model.parameters())[::-1]]),
    )
    optimizer.close()
    assert (now - point[0]).norm() <= 1e-12 * point.norm()


def directed(n):
    """Column stochastic weights that differ from edge to edge."""
    if n == 1:
        return topology.ring(1)
    W = np.eye(n) + sum(
        np.roll(np.eye(n), hop, axis=0) * np.linspace(0.5, 2.0, n) for hop in {1, 2 % n} - {0}
    )
    return topology.from_weights(W / W.sum(axis=0))


def test_overlapped_push_sum_is_its_recursion(net):
    """Dense: shares arrive one step late, and nothing is lost."""
    n, lr, graph = net.n, 0.05, directed(net.n)
    model, dtype = perceptron(torch.float64), torch.float64
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), lr), model, graph, "osgp", net
    )
    models = [perceptron(dtype) for _ in range(n)]
    W = torch.tensor(graph.W.toarray())
    D, start = W.diag().diag(), flat(models[0])
    U, w, late, late_w = start.repeat(n, 1), torch.ones(n, 1, dtype=dtype), 0.0, 0.0
    updates = torch.zeros_like(start)
    for k in range(25):
        backward(model, optimizer, net.rank, k, dtype)
        optimizer.step()
        u = torch.zeros_like(U)
        for worker, other in enumerate(models):
            nn.utils.vector_to_parameters(U[worker] / w[worker], other.parameters())
            backward(other, torch.optim.SGD(other.parameters(), lr), worker, k, dtype)
            u[worker] = -lr * torch.cat([p.grad.flatten() for p in other.parameters()])
        V, updates = U + u, updates + u.sum(0)
        U, w, late, late_w = D @ V + late, D @ w + late_w, (W - D) @ V, (W - D) @ w
        assert (
            (U.sum(0) + (late if n > 1 else torch.zeros_like(U)).sum(0)) / n - start - updates / n
        ).norm() < 1e-12
    optimizer.close()
    expected = U[net.rank] / w[net.rank]
    assert (flat(model) - expected).norm() <= 1e-12 * expected.norm()


def matrix_sign(V):
    """U S W^T, with Muon's polynomial of the singular values in S."""
    U, s, W = np.linalg.svd(V, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return U * s @ W


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("vectors", ["update", "normalized"])
def test_demuon_is_its_equations(n, vectors):
    """Dense, with singular values; AdamW for what is no matrix, and for a matrix whose group says so."""
    shapes = {"kernel": (3, 2, 2), "weight": (4, 3), "bias": (5,), "head": (2, 3), "unused": (2, 2)}
    random, lr, beta = np.random.default_rng(n), 0.05, 0.7
    W = sum(c * np.roll(np.eye(n), i, 0) for i, c in enumerate(random.dirichlet([2] * n)))
    X = {
        name: np.repeat(random.standard_normal((1, *shape)), n, 0) for name, shape in shapes.items()
    }
    c = {name: random.standard_normal((n, *shape)) for name, shape in shapes.items()}

    def adamw(of):
        head = {"params": [of["head"]], "orthogonalize": False, "lr": lr / 2}
        rest = [of[name] for name in shapes if name != "head"]
        return torch.optim.AdamW([{"params": rest}, head], lr, weight_decay=0.1)

    model = nn.ParameterDict({name: torch.tensor(rows[0]) for name, rows in X.items()})
    alone = [{name: nn.Parameter(torch.tensor(X[name][i])) for name in shapes} for i in range(n)]
    M, V = ({name: 0 * rows for name, rows in X.items()} for _ in "MV")
    bases = [adamw(of) for of in alone]
    with mpidec.Network(n) as net:
        stacked = Stacked(model, net.m)
        mine = dict(zip(dict(model.named_parameters()), stacked.parameters()))
        optimizer = optim.Decentralized(
            adamw(mine), stacked, topology.from_weights(W), "demuon", net,
            momentum=beta, vectors=vectors, bucket_bytes=100,
        )  # fmt: skip
        for _ in range(6):
            for name in set(shapes) - {"unused"}:
                mine[name].grad = mine[name].detach() - torch.tensor(c[name][net.lo : net.hi])
            optimizer.step()
            G = {name: X[name] - c[name] for name in shapes}
            for i, (of, base) in enumerate(zip(alone, bases)):
                for name in set(shapes) - {"unused"}:
                    of[name].data, of[name].grad = (
                        torch.tensor(X[name][i]),
                        torch.tensor(G[name][i]),
                    )
                base.step()
            for name in set(shapes) - {"unused"}:
                signed = name in ("kernel", "weight", *["bias"][: vectors == "normalized"])
                a = lr / 2 if name == "head" else lr
                u = np.array([of[name].detach().numpy() for of in alone]) - X[name]
                new = beta * M[name] + (1 - beta) * G[name] if signed else -u / a
                V[name] = np.tensordot(W, V[name] + new - M[name], 1)
                M[name], D = new, V[name]
                if signed:
                    sign = matrix_sign if name != "bias" else lambda v: v / np.linalg.norm(v)
                    D = [
                        sign(v.reshape(len(v), -1) if v.ndim > 1 else v).reshape(v.shape) for v in D
                    ]
                X[name] = np.tensordot(W, X[name] - a * np.array(D), 1)
        optimizer.close()
        for name, parameter in mine.items():
            np.testing.assert_allclose(
                parameter.detach(), X[name][net.lo : net.hi], rtol=1e-11, atol=1e-11
            )


@pytest.mark.serial
def test_the_sign_of_a_matrix_is_that_of_muon():
    """The singular vectors stay, the singular values come near 1; torch's has 8 bits."""
    torch.manual_seed(0)
    for shape in (6, 4), (4, 6), (1, 3):
        V = torch.randn(shape, dtype=torch.float64)
        S = optim.muon.matrix_sign(V)
        assert (S - torch.tensor(matrix_sign(V.numpy()))).norm() < 1e-12
        U, s, W = torch.linalg.svd(V, full_matrices=False)
        one = U.mT @ S @ W.mT
        assert (one - one.diag().diag()).norm() < 1e-12
        assert (one.diag().min() > 0.6 and one.diag().max() < 1.3) or s.min() < 0.01 * s.norm()
        assert (optim.muon.matrix_sign(1e-20 * V) - S).norm() < 1e-12
    if hasattr(torch.optim, "Muon"):
        p = nn.Parameter(torch.zeros(4, 6))
        p.grad = torch.randn(4, 6)
        S = optim.muon.matrix_sign(p.grad)
        torch.optim.Muon([p], 1.0, weight_decay=0, momentum=0, nesterov=False).step()
        assert (p.detach() + S).norm() < 0.05 * S.norm()
    assert optim.muon.matrix_sign(torch.zeros(2, 3)).abs().max() == 0


@pytest.mark.parametrize("warmup", [3, 4])
def test_the_period_of_global_averages_adapts_to_the_loss(net, warmup):
    """The first H = 2 is kept during the warm-up, whose averages make F_0; then H = 2 F_0 / F, rounded up."""
    model, losses = perceptron(torch.float64), [8 * 0.84**k for k in range(24)]
    expected, H, F0, count = [], 2, None, 0
    for k, F in enumerate(losses):
        count += 1
        if count == H:
            expected.append(k)
            count = 0
            if k < warmup:
                F0 = F if F0 is None else (F0 + F) / 2
            else:
                H = math.ceil(2 * F0 / F)
    nobody = topology.from_weights(np.eye(net.n), connected=False)
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1),
        model,
        nobody,
        "pga",
        net,
        period=2,
        adaptive=True,
        warmup=warmup,
    )
    averaged = []
    for k, F in enumerate(losses):
        loss = backward(model, optimizer, net.rank, k, torch.float64)
        optimizer.observe(torch.tensor(F, dtype=torch.float64))
        optimizer.step()
        with optimizer.consensus() as distance:
            averaged += [k] * bool(distance < 1e-12)
    assert loss.requires_grad
    optimizer.close()
    assert averaged == ([*range(24)] if net.n == 1 else expected) and len(expected) > 4
    other = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1),
        model,
        None,
        "pga",
        net,
        equal=False,
        period=1,
        adaptive=True,
    )
    backward(model, other, net.rank, 0, torch.float64)
    with pytest.raises(RuntimeError, match=r"call optimizer\.observe"):
        other.step()
    other.step(lambda: torch.tensor(1.0))
    other.close()


class Difficult(nn.Module):
    """Tied weights, attention, batch norm, a frozen layer, and a head that is not used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight
        self.unused = nn.Linear(8, 2)

    def forward(self, x):
        h = self.embed(x)
        h = self.norm((h + self.attention(h, h, h)[0]).mean(1))
        return self.out(self.frozen(h) + h)


@pytest.mark.parametrize("name", optim.names())
def test_every_algorithm_trains_a_difficult_model(net, name):
    if not fits(name, net.n):
        pytest.skip("pairs of workers need an even number")
    model = Difficult()
    frozen = model.frozen.weight.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        optimizer = optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.2),
            model,
            options_of(name, net.n),
            name,
            net,
            buffers="average",
        )
    g, losses = torch.Generator().manual_seed(net.rank), []
    for _ in range(40):
        x = torch.randint(11, (32, 5), generator=g)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, 0])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        if (
            name in ASYNCHRONOUS
        ):  # else an average with a worker that has just begun may come at the end
            net.barrier()
    with optimizer.consensus() as distance:
        assert 0 <= distance < 3
    optimizer.close()
    assert name != "allreduce" or all(p.grad is None for p in model.unused.parameters())
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]
    assert torch.equal(frozen, model.frozen.weight) and model.out.weight is model.embed.weight


def within(model, lo, hi):
    """Whether all entries of a model are between two values, but for rounding."""
    row = flat(model)
    return bool(torch.isfinite(row).all() and row.min() >= lo - 1e-4 and row.max() <= hi + 1e-4)


def filled(net, graph, algorithm):
    """A model whose entries are the number of the rank, and an optimizer that changes it by averaging only."""
    model = perceptron()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float(net.rank))
    return model, optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.0), model, graph, algorithm, net, equal=False
    )


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_asynchronous_workers_do_not_wait(comm, net, algorithm):
    """Rank 0 pauses until all others have made their steps; averages stay between what is averaged."""
    model, optimizer = filled(net, None, algorithm)
    for k in range(5 if net.rank == 0 else 40):
        backward(model, optimizer, net.rank, k)
        optimizer.step()
        if net.rank == 0 and k == 0:
            for other in range(1, net.size):
                while not comm.iprobe(other):
                    time.sleep(0.005)
                comm.recv(source=other)
    if net.rank:
        comm.send(None, 0)
    with optimizer.consensus() as distance:
        assert 0 <= distance < net.size * len(flat(model)) ** 0.5
    optimizer.close()
    beyond = (
        net.size if algorithm == "a2cid2" else 0
    )  # whose momentum moves rows beyond the average
    assert within(model, -beyond, net.size - 1 + beyond)


@pytest.mark.parametrize("nodes", ["one node", "several nodes"])
def test_a_slow_worker_with_many_neighbours_moves_by_one_difference_at_a_time(
    comm, monkeypatch, nodes
):
    """Several differences from one old row of its would add up to more than the way to their average, and grow with each step."""
    if nodes == "several nodes":
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    with mpidec.Network() as net:
        model, optimizer = filled(net, "star", "pairwise")
        for k in range(8):
            for _ in range(1 if net.rank == 0 else 6):
                backward(model, optimizer, net.rank, k)
                optimizer.step()
                assert within(model, 0, net.size - 1)
            done = comm.Ibarrier()
            while not done.Test():
                mpidec.comm.runtime.progress()
        optimizer.close()


@pytest.mark.parametrize("nodes", ["one node", "several nodes"])
@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_asynchronous_workers_do_not_cease_to_exchange(monkeypatch, algorithm, nodes):
    """And the average counts what is under way."""
    if nodes == "several nodes":
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    with mpidec.Network() as net:
        model, optimizer = filled(net, "ring", algorithm)
        for k in range(1000):
            for _ in range(20 + 10 * (net.rank % 3)):
                backward(model, optimizer, net.rank, k)
                optimizer.step()
            with optimizer.consensus() as distance:
                if algorithm != "a2cid2":  # whose average is that of x and its momentum
                    assert flat(model).mean() == pytest.approx((net.n - 1) / 2, abs=1e-3)
            if distance < 1e-2:
                break
        assert distance < 1e-2
        assert (
            net.size == 1 or net.comm.allreduce(optimizer.averager.sent_bytes) > 0
        )  # some may only have answered
        optimizer.close()


def test_a_worker_that_waits_long_leaves_the_others_weight(net):
    """On a directed ring whose last worker pauses, the first one sends and receives nothing: its p would be halved in each step."""
    graph = topology.from_weights((np.eye(net.n) + np.roll(np.eye(net.n), 1, axis=0)) / 2)
    model, optimizer = filled(net, graph, "async_push_sum")
    for k in range(30):
        if net.rank < net.size - 1 or k == 0:
            backward(model, optimizer, net.rank, k)
            optimizer.step()
        net.barrier()
    window = optimizer.averager._method._windows[0]
    assert window.p >= 0.25 and within(model, 0, net.size - 1)
    optimizer.close()


def test_a_worker_has_itself_while_it_averages_with_others(net, monkeypatch):
    """From a neighbour that has had it until now, too: a third one would average with a row that is about to change."""
    model, optimizer = filled(net, "complete", "pairwise")
    locks = optimizer.averager._method._windows[0].locks
    try_lock, unlock, owners, handed = locks.try_lock, locks.unlock, [], []

    def tried(rank):
        if rank != net.rank:
            owners.append(locks.owner)
        return try_lock(rank)

    def unlocked(hand_over=False):
        handed.append(hand_over)
        unlock(hand_over)

    monkeypatch.setattr(locks, "try_lock", tried)
    monkeypatch.setattr(locks, "unlock", unlocked)
    for turn in range(
        8 * net.size
    ):  # one after the other, so that the draws decide who averages with whom
        if turn % net.size == net.rank:
            backward(model, optimizer, net.rank, turn)
            optimizer.step()
        net.barrier()
    assert set(owners) <= {net.rank} and (net.size == 1 or net.comm.allreduce(sum(handed)) > 0)
    optimizer.close()


@pytest.mark.parametrize(
    "options, text",
    [
        ({"algorithm": "a2cid2", "order": "code"}, 'order="code" does not preserve the average'),
        ({"algorithm": "pairwise", "rate": 3}, "rate is 3.0, expected a number up to 2"),
        ({"algorithm": "pairwise", "seed": -1}, "seed is -1, expected an integer >= 0"),
        (
            {"algorithm": "a2cid2", "step_size": 3},
            "unexpected keyword argument 'step_size'; its own options: eta, alpha, alpha_tilde",
        ),
        (
            {"algorithm": "pairwise", "mixing": lambda W: W},
            "algorithm 'pairwise' does not mix by W",
        ),
        (
            {"algorithm": "allreduce", "mixing": lambda W: W},
            "algorithm 'allreduce' does not mix by W",
        ),
    ],
)
def test_options_that_asynchronous_algorithms_do_not_take(net, options, text):
    model = perceptron()
    with pytest.raises(ValueError, match=re.escape(text)):
        optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net, **options)


@pytest.mark.parametrize("nodes", ["one node", "several nodes"])
@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_asynchronous_workers_go_on_from_a_checkpoint(shared_tmp, monkeypatch, algorithm, nodes):
    """What is on its way between workers is saved, too: the sum over all workers stays the same through restarts."""
    if nodes == "several nodes":
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    with mpidec.Network() as net:
        path = shared_tmp / f"{net.rank}.pt"

        def start():
            model = perceptron(torch.float64)
            return model, optim.Decentralized(
                torch.optim.SGD(model.parameters(), 0.0), model, "ring", algorithm, net, equal=False
            )

        def train(model, optimizer, steps):
            for k in range(steps):
                backward(model, optimizer, net.rank, k, torch.float64)
                optimizer.step()

        def mean(optimizer):
            """Of what the workers have and of what is on its way to them."""
            state = optimizer.state_dict()
            last = state["state"][len(state["state"]) - 1]  # of a bias with two entries
            (numbers,) = state["param_groups"][0]["mpidec"]["parts"]
            if algorithm == "async_push_sum":
                row = flat(model)[-2:] * numbers["numbers"]["p"] + last["mpidec.arrived"]
            elif algorithm == "pairwise":
                row = last["mpidec.x"] - last["mpidec.arrived"] / 2
            else:
                a = optimizer.averager._method._solver
                row = (last["mpidec.x"] + last["mpidec.x_tilde"]) / 2 - (
                    a.alpha + a.alpha_tilde
                ) / 2 * last["mpidec.arrived"]
            return net.mean(row.numpy()[None])

        model, optimizer = start()
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(float(net.rank))
        optimizer.close()
        optimizer = optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.0), model, "ring", algorithm, net, equal=False
        )
        for part in range(3):
            train(model, optimizer, 8 + 5 * (net.rank % 3))
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            train(model, optimizer, 4 * part)  # the training goes on after a checkpoint, ...
            assert mean(optimizer) == pytest.approx((net.n - 1) / 2, rel=1e-12)
            optimizer.close()
            model, optimizer = start()  # and starts again from it
            saved = torch.load(path, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        train(model, optimizer, 3)
        assert mean(optimizer) == pytest.approx((net.n - 1) / 2, rel=1e-12)
        optimizer.close()


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_asynchronous_workers_on_several_nodes(monkeypatch, algorithm):
    """Some ranks have all their neighbours on their own node, and others do not."""
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    model = perceptron()
    with (
        mpidec.Network() as net,
        optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.05), model, "chain", algorithm, net
        ) as optimizer,
    ):
        for k in range(10):
            backward(model, optimizer, net.rank, k)
            optimizer.step()
        with optimizer.consensus() as distance:
            assert 0 <= distance < 3


def test_stacked_workers_are_separate_workers(net):
    """m workers on a rank, stacked, are what m ranks with one model each are."""
    m, n = 2, 2 * net.size
    with mpidec.Network(n) as double:
        stacked = Stacked(perceptron(torch.float64), m)
        optimizer = optim.Decentralized(
            torch.optim.SGD(stacked.parameters(), 0.1, momentum=0.9), stacked, "ring", net=double
        )
        for k in range(6):
            both = [sample(double.lo + i, k, torch.float64) for i in range(m)]
            optimizer.zero_grad()
            out = stacked(torch.stack([x for x, _ in both]))
            (out - torch.stack([y for _, y in both])).square().mean(dim=(1, 2)).sum().backward()
            optimizer.step()
        models = [perceptron(torch.float64) for _ in range(n)]
        its = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in models]
        W = torch.tensor(topology.ring(n).W.toarray())
        for k in range(6):
            for worker, (model, one) in enumerate(zip(models, its)):
                backward(model, one, worker, k, torch.float64)
                one.step()
            for same in zip(*[model.parameters() for model in models]):
                mixed = torch.tensordot(W, torch.stack([p.data for p in same]), 1)
                for p, value in zip(same, mixed):
                    p.data.copy_(value)
        for i in range(m):
            assert (flat(stacked.worker(i)) - flat(models[double.lo + i])).norm() < 1e-12
        optimizer.close()


def test_groups_schedulers_accumulation_and_clipping_are_those_of_torch(net):
    """One worker alone, or equal workers, train as without the wrapper."""

    def run(wrap):
        model = perceptron()
        optimizer = torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters()}],
            lr=0.1,
            momentum=0.9,
        )
        if wrap:
            optimizer = optim.Decentralized(optimizer, model, net=net)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        for k in range(9):
            optimizer.zero_grad()
            for part in range(3):
                x, y = sample(0, 3 * k + part)
                (model(x) - y).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
        return flat(model), optimizer

    wrapped, optimizer = run(True)
    assert isinstance(optimizer, torch.optim.Optimizer) and optimizer.param_groups[0][
        "lr"
    ] == pytest.approx(0.025)
    optimizer.close()
    assert (wrapped - run(False)[0]).norm() <= 1e-6 * wrapped.norm()


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce", "push_sum", "demuon"])
def test_an_overflow_of_one_worker_skips_its_update_not_the_mixing(net, algorithm):
    model = perceptron()
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, algorithm=algorithm, net=net
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for k in range(6):
        x, y = sample(net.rank, k)
        optimizer.zero_grad()
        scaler.scale((model(x) - y).square().mean()).backward()
        if k == 2 and net.rank == 0:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == (2.0 if net.rank == 0 else 4.0)
    assert torch.isfinite(flat(model)).all()
    optimizer.close()


def test_a_skipped_step_leaves_no_average_behind(net):
    """An overflow after `average_gradients`: the next step averages again."""
    model = perceptron()
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, algorithm="allreduce", net=net, check=False
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for k in range(4):
        x, y = sample(net.rank, k)
        optimizer.zero_grad()
        scaler.scale((model(x) - y).square().mean()).backward()
        if k == 1:
            model[0].weight.grad[0, 0] = torch.inf if net.rank == 0 else 0
            scaler.unscale_(optimizer)
            optimizer.average_gradients()
        scaler.step(optimizer)
        scaler.update()
    assert all(torch.equal(flat(model), other) for other in net.comm.allgather(flat(model)))


def test_consensus_shows_the_average_and_gives_the_workers_back(net):
    model = Difficult()
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.2), model, "ring", net=net
    )
    for k in range(3):
        optimizer.zero_grad()
        model(
            torch.randint(11, (8, 5), generator=torch.Generator().manual_seed(10 * net.rank + k))
        ).square().mean().backward()
        optimizer.step()
    mine, statistics = flat(model).clone(), model.norm.running_mean.clone()
    mean = torch.from_numpy(net.mean(mine[None].numpy()))
    with optimizer.consensus() as distance:
        assert (flat(model) - mean).norm() <= 1e-6 * mean.norm()
        assert net.size == 1 or not torch.equal(model.norm.running_mean, statistics)
    assert torch.equal(flat(model), mine) and torch.equal(model.norm.running_mean, statistics)
    square = net.comm.allreduce(float((mine - mean).square().sum()))
    assert distance == pytest.approx((square / net.n) ** 0.5, rel=1e-4, abs=1e-7)
    optimizer.close()


def test_an_averager_does_what_the_wrapper_does(net):
    def run(wrapped):
        model = perceptron()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        if wrapped:
            optimizer = average = optim.Decentralized(optimizer, model, "ring", net=net)
        else:
            average = optim.Averager(model, "ring", net=net)
        for k in range(5):
            backward(model, optimizer, net.rank, k)
            optimizer.step()
            if not wrapped:
                average(model)
        average.close()
        return flat(model)

    assert torch.equal(run(True), run(False))
    with pytest.raises(ValueError, match="which an averager does not see"):
        optim.Averager(perceptron(), algorithm="awc", net=net)


def test_broadcasts(net):
    model = perceptron()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(net.rank)
    optimizer = torch.optim.Adam(model.parameters(), 0.01 * (net.rank + 1))
    if net.rank == 0:
        backward(model, optimizer, 0, 0)
        optimizer.step()
    optim.broadcast_parameters(model, net)
    optim.broadcast_optimizer_state(optimizer, net)
    state = optimizer.state[model[0].weight]
    assert optimizer.param_groups[0]["lr"] == 0.01 and int(state["step"]) == 1
    assert (
        len({*net.comm.allgather((flat(model).sum().item(), float(state["exp_avg"].sum())))}) == 1
    )


@pytest.mark.parametrize("algorithm", ["atc", "gradient_tracking", *ASYNCHRONOUS])
def test_the_state_of_a_wrapped_optimizer_is_broadcast(net, algorithm):
    """That of the optimizer within; what each worker has of its own stays, and then also its number of steps."""
    model = perceptron()
    inner = torch.optim.SGD(model.parameters(), 0.1 * (1 + net.rank), momentum=0.9)
    with optim.Decentralized(inner, model, algorithm=algorithm, net=net) as optimizer:
        for p in model.parameters():
            inner.state[p]["momentum_buffer"] = torch.full_like(p, 1.0 + net.rank)
        optimizer.averager.steps = 0 if net.rank else 4
        optim.broadcast_optimizer_state(optimizer, net)
        assert inner.param_groups[0]["lr"] == 0.1
        assert all((each["momentum_buffer"] == 1).all() for each in inner.state.values())
        assert optimizer.averager.steps == (4 if algorithm == "atc" or net.rank == 0 else 0)
        backward(model, optimizer, net.rank, 0)
        if algorithm == "gradient_tracking" and net.size > 1:
            with pytest.raises(ValueError, match="after steps 4 on rank 0, 0 on rank 1"):
                optimizer.step()
            optimizer.averager.steps = 4
        optimizer.step()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "algorithm",
    [
        *("atc", "awc", "allreduce", "relay", "d2", "gradient_tracking", "osgp", "local", "choco"),
        *ASYNCHRONOUS,
    ],
)
def test_states_that_were_not_saved_together_are_refused(net, algorithm):
    """On all ranks, naming their steps, in every step until they fit; where nobody waits, in the call that loads."""
    model = perceptron()
    saved = {}
    with optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, algorithm=algorithm, net=net
    ) as optimizer:
        for k in range(3):
            backward(model, optimizer, net.rank, k)
            optimizer.step()
            saved[k + 1] = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

        def go_on(step):
            model.load_state_dict(saved[step][0])
            optimizer.load_state_dict(saved[step][1])
            backward(model, optimizer, net.rank, step)
            optimizer.step()

        last = net.size - 1
        steps = ", ".join(f"{2 + (rank == last)} on rank {rank}" for rank in range(net.size))
        with pytest.raises(ValueError, match=f"after steps {steps}; load on every rank"):
            go_on(2 + (net.rank == last))
        if algorithm not in ASYNCHRONOUS:
            with pytest.raises(ValueError, match=f"after steps {steps}"):
                optimizer.step()
        go_on(2)
        assert optimizer.averager.steps == 3


@pytest.mark.mpi(min_size=2)
def test_a_step_is_a_few_calls(net):
    """Rows are mixed as arrays, in one call."""
    model = perceptron()
    with optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, "ring", net=net
    ) as optimizer:
        for k in range(8):  # in the first ones gradients are compared
            backward(model, optimizer, net.rank, k)
            count = calls(optimizer.step, Path(mpidec.__file__).parent)
    assert count <= 40


def test_timeline(net, shared_tmp):
    model = perceptron()
    with optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, net=net, trace=shared_tmp / "run.json"
    ) as optimizer:
        for k in range(3):
            backward(model, optimizer, net.rank, k)
            optimizer.step()
    if net.rank == 0:
        events = json.loads((shared_tmp / "run.json").read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        assert {event["pid"] for event in spans} == set(range(net.size))
        for name in ("forward", "backward", "update", "mix"):
            assert sum(event["name"] == name for event in spans) == 3 * net.size, name
        assert all(event["dur"] >= 0 for event in spans)


def test_a_timeline_that_is_not_written_is_told(net, shared_tmp, capfd):
    model = perceptron()
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, net=net, trace=shared_tmp / "run.json"
    )
    backward(model, optimizer, net.rank, 0)
    optimizer.step()
    del optimizer
    gc.collect()
    assert ("run.json is not written: call close()" in capfd.readouterr().err) == (net.rank == 0)


def test_memory_is_that_of_the_algorithm(net):
    """Beyond parameters, gradients and the optimizer's state: the rows of the method, and one row to mix into."""
    model = nn.Linear(640, 160, bias=False)
    row = model.weight.numel() * 4
    for name, rows in {
        "atc": 1,
        "awc": 1,
        "allreduce": 0,
        "d2": 2,
        "gradient_tracking": 3,
        "qg": 2,
        "demuon": 3,
    }.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            optimizer = optim.Decentralized(
                torch.optim.SGD(model.parameters(), 0.1),
                model,
                algorithm=name,
                net=net,
                equal=False,
            )
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 640)).sum().backward()
            optimizer.step()
        optimizer.close()
        assert optimizer.averager.extra_bytes <= rows * row + 64, name
        assert f"algorithm='{name}'" in repr(optimizer)


def test_models_that_differ_are_refused_by_name(net):
    if net.size == 1:
        pytest.skip("one rank cannot differ")
    model = perceptron()
    if net.rank == 1:
        with torch.no_grad():
            model[2].bias[1] += 1
    with pytest.raises(
        ValueError, match=r"ranks 0 and 1 differ in the values of parameter 2\.bias"
    ):
        optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net)
    model = perceptron()
    model[2].bias.requires_grad_(net.rank != 1)
    with pytest.raises(
        ValueError, match=r"parameter 2\.bias: requires_grad is True on rank 0 and False on rank 1"
    ):
        optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net, equal=False)
    model = nn.Linear(6, 5 + (net.rank == 1))
    with pytest.raises(
        ValueError, match=r"parameter weight \(5, 6\) float32 on rank 0, weight \(6, 6\)"
    ):
        optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net)


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce"])
def test_ranks_that_make_different_numbers_of_steps_are_told_so(algorithm):
    if WORLD.size == 1:
        pytest.skip("one rank cannot differ")
    model = perceptron()
    with (
        contextlib.suppress(RankMismatchError),
        mpidec.Network() as net,
    ):  # closing, too, tells of ranks that have stopped
        optimizer = optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1),
            model,
            "complete" if algorithm != "allreduce" else None,
            algorithm,
            net,
        )

        def train(steps):
            for k in range(steps):
                backward(model, optimizer, net.rank, k)
                optimizer.step()
            optimizer.close()

        with pytest.raises(RankMismatchError, match=r"every rank must call step\(\) equally often"):
            train(3 if net.rank else 4)


@pytest.mark.parametrize("sparse", ["allreduce", "atc"])
def test_sparse_gradients_are_those_of_dense_ones(net, sparse):
    def run(is_sparse):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=is_sparse), nn.Flatten(), nn.Linear(8, 2))
        with optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, algorithm=sparse, net=net
        ) as optimizer:
            g = torch.Generator().manual_seed(net.rank)
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randint(10, (6, 2), generator=g)).square().mean().backward()
                optimizer.step()
        return flat(model)

    torch.testing.assert_close(run(True), run(False))


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce", "d2", "relay", "demuon"])
def test_a_worker_whose_numbers_are_not_finite_is_named(algorithm):
    """By itself, before its neighbours blame themselves."""
    model, bad, said = nn.Linear(500, 20), WORLD.size - 1, ""
    with (
        contextlib.suppress(RankMismatchError),
        mpidec.Network() as net,
    ):  # closing, too, tells of ranks that have stopped
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            optimizer = optim.Decentralized(
                torch.optim.SGD(model.parameters(), 0.1),
                model,
                algorithm=algorithm,
                net=net,
                equal=False,
            )
        for k in range(30):
            optimizer.zero_grad()
            model(torch.ones(2, 500)).square().mean().backward()
            if k == 3 and net.rank == bad:
                model.weight.grad[3, 5] = float("nan")
            try:
                optimizer.step()
            except (ValueError, RuntimeError) as error:
                said, told = str(error), from_another_rank(error)
                break
    whose = "gradient" if algorithm == "allreduce" else "parameter"
    if WORLD.rank == bad:
        assert said.startswith(f"worker {bad}, step 3: {whose} weight is nan")
    else:
        assert said and not said.startswith("worker ")
        if "closes the network" not in said and algorithm != "allreduce":
            # Told by it, or by another one that was told; the last word of the job is its own.
            assert f"worker {bad}, step 3: {whose} weight is nan" in said
            assert "batches" not in said and told


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(algorithm="atk"), "did you mean atc"),
        (dict(algorithm="atc", momentum=0.5), "its own options: none"),
        (dict(algorithm="relay", topology="ring"), "needs a tree"),
        (dict(algorithm="awc", every=2), "communicates in every step"),
        (
            dict(algorithm="pairwise", topology=["ring", "chain"]),
            "needs one topology, since workers exchange whole rows, got 2",
        ),
        (
            dict(algorithm="hierarchical", machine_size=1, topology=["ring", "chain"]),
            "one graph between the .* got 2 topologies",
        ),
        (dict(every=0), "every is 0"),
        (dict(buffers="mean"), "buffers is 'mean', expected one of local, average"),
        (dict(topology=lambda n: topology.ring(n + 1)), "expected .*, as many as"),
        (dict(topology="rnig"), "unknown topology 'rnig': did you mean ring"),
        (dict(topology="Schedule"), "unknown topology 'Schedule'"),
        (dict(algorithm="qg", momentum=1.5), "momentum is 1.5"),
        (dict(algorithm=mpidec.solvers.AsyncPushSum(1.0)), "cannot train"),
        (
            dict(algorithm=mpidec.solvers.ExactDiffusion(0.1)),
            "expected a solver with the step size 1",
        ),
    ],
)
def test_wrong_arguments(net, wrong, message):
    if net.n < 4 and "tree" in message:
        pytest.skip("a ring of fewer workers is a tree")
    model = perceptron()
    wrong = {
        name: value(net.n) if callable(value) and name == "topology" else value
        for name, value in wrong.items()
    }
    with pytest.raises(ValueError, match=message):
        optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net, **wrong)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda rank: dict(every=1 + rank), "every is 1 on rank 0 and 2 on rank 1"),
        (
            lambda rank: dict(algorithm="qg" if rank else "decentlam", topology="ring"),
            "algorithm is decentlam on rank 0 and qg on",
        ),
        (
            lambda rank: dict(algorithm="qg", momentum=0.5 + 0.01 * rank),
            "momentum.*0.5.* on rank 0",
        ),
    ],
)
def test_settings_that_differ_between_ranks(net, wrong, message):
    if net.size == 1:
        pytest.skip("several ranks")
    model = perceptron()
    with pytest.raises(ValueError, match=message):
        optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, net=net, **wrong(net.rank)
        )


def test_the_name_of_two_trees(net):
    if net.n < 2:
        pytest.skip("trees of several workers")
    model = perceptron()
    with optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, "double_binary_trees", "relay", net
    ) as optimizer:
        backward(model, optimizer, net.rank, 0)
        optimizer.step()


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("algorithm", ["atc", "awc", "pga", "choco", "osgp", "push_sum"])
def test_several_topologies_divide_the_columns(algorithm, m):
    """As dense matrices, at a learning rate of 0; the first graph mixes one half of each bucket, the second one the other half."""
    n, steps = m * WORLD.size, 3
    exact = (
        {"mixing": lambda W: W.compress("top_k", fraction=1.0, feedback=True, gamma=1.0)}
        if algorithm == "choco"
        else {}
    )
    more = {"pga": {"period": 2}}.get(algorithm, {})
    ring, star = topology.ring(n).W.toarray(), topology.star(n).W.toarray()
    graphs = [topology.from_weights((np.eye(n) + ring) / 2), topology.from_weights(star)]
    with mpidec.Network(n) as net:
        model = perceptron(torch.float64) if m == 1 else Stacked(perceptron(torch.float64), m)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(net.rank)))
        with optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.0),
            model,
            graphs,
            "atc" if exact else algorithm,
            net,
            equal=False,
            bucket_bytes=200,
            **more,
            **exact,
        ) as optimizer:
            buckets = optimizer.averager.buckets
            starts = [
                np.concatenate(net.comm.allgather(bucket.rows.numpy().copy())) for bucket in buckets
            ]
            for _ in range(steps):
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
                optimizer.step()
            assert len(buckets) > 1
            for bucket, start in zip(buckets, starts):
                for columns, graph in zip(
                    (slice(bucket.d // 2), slice(bucket.d // 2, None)), graphs
                ):
                    X = dense(algorithm, graph.W.toarray(), start[:, columns], steps)
                    np.testing.assert_allclose(
                        bucket.rows.numpy()[:, columns], X[net.lo : net.hi], rtol=0, atol=1e-12
                    )


def dense(algorithm, W, X, steps):
    """Rows after some steps without gradients."""
    D, late, average = np.diag(np.diag(W)), 0 * X, np.full(W.shape, 1 / len(W))
    w, late_w = np.ones((len(W), 1)), np.zeros((len(W), 1))
    for k in range(steps):
        if algorithm == "osgp":
            X, late, w, late_w = D @ X + late, (W - D) @ X, D @ w + late_w, (W - D) @ w
        else:
            X = (average if algorithm == "pga" and k % 2 else W) @ X
    return X / w


def same_batches(net, algorithm, worker, steps=6, averaged=False):
    """What is said of equal batches when the rank trains on those of `worker(step)`."""
    model = perceptron()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1),
            model,
            None if algorithm == "allreduce" else "star",
            algorithm,
            net,
        ) as optimizer:
            for k in range(steps):
                backward(model, optimizer, worker(k), k)
                if averaged:
                    optimizer.average_gradients()
                optimizer.step()
    return [str(each.message) for each in caught if "same batches" in str(each.message)]


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce", "relay", *ASYNCHRONOUS])
def test_ranks_with_the_same_batches_are_warned_of(net, algorithm):
    averaged, last = algorithm == "allreduce", net.size - 1
    one = net.rank == 0
    said = same_batches(net, algorithm, lambda k: 0, averaged=averaged)
    assert len(said) == (one and net.size > 1) and all(
        "of all ranks are equal" in line for line in said
    )
    said = same_batches(
        net, algorithm, lambda k: 0 if net.rank == last else net.rank, averaged=averaged
    )
    assert len(said) == (one and net.size > 1)
    assert net.size < 3 or all(f"of ranks 0 and {last} are equal" in line for line in said)
    for worker, steps in (
        (lambda k: net.rank, 6),
        (lambda k: 0, 1),
        (lambda k: 0 if k == 0 else net.rank, 6),
    ):
        assert not same_batches(net, algorithm, worker, steps, averaged)


def test_gradients_of_zero_and_a_few_steps_are_no_same_batches(net):
    model = perceptron()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, "ring", net=net
        ) as optimizer:
            for k in range(6):
                backward(model, optimizer, 0, k)
                if k > 1:
                    optimizer.zero_grad(set_to_none=k % 2 == 0)
                optimizer.step()


@pytest.mark.parametrize("algorithm", ["atc", "d2", "allreduce", "awc"])
def test_parameters_whose_memory_is_replaced_between_steps(net, algorithm):
    """As by `vector_to_parameters`, or by a conversion and back."""

    def train(change):
        model = perceptron()
        with optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, algorithm=algorithm, net=net
        ) as optimizer:
            for k in range(4):
                backward(model, optimizer, net.rank, k)
                optimizer.step()
                if k == 1:
                    change(model)
                with optimizer.consensus():
                    pass
        return flat(model)

    def replaced(model):
        torch.nn.utils.vector_to_parameters(
            0.5 * torch.nn.utils.parameters_to_vector(model.parameters()), model.parameters()
        )

    @torch.no_grad()
    def in_place(model):
        for p in model.parameters():
            p.mul_(0.5)

    assert torch.equal(train(lambda model: model.double().float()), train(lambda model: None))
    if algorithm == "awc":
        for change in (replaced, in_place):
            with pytest.raises(RuntimeError, match=r"parameter .* was changed between two steps"):
                train(change)
            net.comm.Barrier()
    else:
        assert torch.equal(train(replaced), train(in_place))
    with pytest.raises(RuntimeError, match="expected torch"):
        train(lambda model: model.double())


def test_no_step_is_lost_in_consensus(net):
    model = perceptron()
    optimizer = optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net)
    backward(model, optimizer, net.rank, 0)
    with optimizer.consensus():
        with optimizer.consensus():
            pass
        with pytest.raises(RuntimeError, match="in the context of consensus"):
            optimizer.step()
    optimizer.step()
    optimizer.close()


def test_wrong_optimizers(net):
    model, other = perceptron(), perceptron()
    with pytest.raises(
        ValueError, match=r"parameter 0 of group 0 of the optimizer, of shape \(5, 6\), is not"
    ):
        optim.Decentralized(torch.optim.SGD(other.parameters(), 0.1), model, net=net)
    with pytest.raises(ValueError, match="Own evaluates its closure"):
        optim.Decentralized(
            type("Own", (torch.optim.LBFGS,), {})(model.parameters()), model, net=net
        )
    optimizer = optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net)
    with pytest.raises(TypeError, match="not wrapped yet"):
        optim.Decentralized(optimizer, model, net=net)
    with pytest.raises(RuntimeError, match="wrap it again"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        copy.deepcopy(optimizer)
    with pytest.raises(ValueError, match="earlier versions of mpidec saved 'optimizer'"):
        optimizer.load_state_dict({"optimizer": {}, "averager": {}})
    optimizer.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(RuntimeError, match="has got or lost parameters"):
        optimizer.step()
    optimizer.close()
    if net.m == 1:
        optimizer = optim.Decentralized(
            torch.optim.SGD(other.parameters(), 0.1), other, algorithm="async_push_sum", net=net
        )
        optimizer.close()
        with pytest.raises(RuntimeError, match=r"after close\(\)"):
            optimizer.step()
    half = perceptron()
    half[0].requires_grad_(False)
    optimizer = optim.Decentralized(torch.optim.SGD(half.parameters(), 0.1), half, net=net)
    half[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"parameter 0\.weight was frozen"):
        optimizer.step()


# ---------------------------------------------------------------------------------------------------------------------
# Odd orders of calls


def gradients_of(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("how", ["zero_grad", "zeros", "load_state_dict"])
def test_gradients_averaged_for_a_step_that_was_not_taken_are_forgotten(net, how):
    model = perceptron()
    with optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, None, "allreduce", net
    ) as optimizer:
        state = optimizer.state_dict()
        backward(model, optimizer, net.rank, 0)
        optimizer.average_gradients()
        if how == "load_state_dict":
            optimizer.load_state_dict(state)
            model.zero_grad(set_to_none=False)
        elif how == "zeros":
            optimizer.zero_grad(set_to_none=False)
        x, y = sample(net.rank, 1)
        if how == "zero_grad":
            model.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    assert len(set(net.comm.allgather(flat(model).numpy().tobytes()))) == 1


def test_an_overflow_in_averaged_gradients_is_left_to_the_scaler(net):
    """With the gradients averaged, and clipped, before the step; without a scaler the worker is named."""
    model = perceptron()
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, None, "allreduce", net
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for k in range(5):
        x, y = sample(net.rank, k)
        optimizer.zero_grad()
        scaler.scale((model(x) - y).square().mean()).backward()
        if k == 1 and net.rank == net.size - 1:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.unscale_(optimizer)
        optimizer.average_gradients()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert (
        torch.isfinite(flat(model)).all()
        and len(set(net.comm.allgather(flat(model).numpy().tobytes()))) == 1
    )
    optimizer.close()


def test_a_gradient_that_is_not_finite_is_told_to_all_ranks():
    model, last = perceptron(), WORLD.rank == WORLD.size - 1
    with contextlib.suppress(RankMismatchError), mpidec.Network() as net:
        optimizer = optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, None, "allreduce", net
        )
        backward(model, optimizer, net.rank, 0)
        if last:
            model[2].bias.grad[1] = float("nan")
        optimizer.average_gradients()
        words = rf"worker {net.size - 1}, step 0: gradient 2.bias is nan"
        if last:
            with pytest.raises(ValueError, match=f"^{words}"):
                optimizer.step()
        else:
            optimizer.step()
            with pytest.raises(RankMismatchError, match=f"rank {net.size - 1} gave up .*{words}"):
                optimizer.close()


def test_a_loss_that_is_not_finite_does_not_change_the_period(net):
    model = perceptron()
    with optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1),
        model,
        None,
        "pga",
        net,
        period=1,
        adaptive=True,
        warmup=3,
    ) as optimizer:
        for k in range(8):
            backward(model, optimizer, net.rank, k)
            optimizer.observe(float("nan") if k in (0, 5) else 2.0)
            optimizer.step()
        (state,) = optimizer.state_dict()["param_groups"][0]["mpidec"]["parts"]
    assert state["numbers"] == {"period": 1, "count": 0, "first_loss": 2.0}


@pytest.mark.parametrize("algorithm", ["d2", "qg", "pairwise", "osgp", "async_push_sum"])
def test_parameters_without_entries_take_no_part(net, algorithm):
    model = nn.Linear(3, 2)
    model.register_parameter("none", nn.Parameter(torch.zeros(0, dtype=torch.float64)))
    for one in (model, nn.Module()):
        parameters = [*one.parameters()] or [nn.Parameter(torch.zeros(0))]
        one.register_parameter("last", parameters[-1])
        graph = "chain" if algorithm in ("d2", "pairwise") else None
        with optim.Decentralized(
            torch.optim.SGD(parameters, 0.1), one, graph, algorithm, net, equal=False
        ) as optimizer:
            for p in parameters:
                p.grad = torch.ones_like(p)
            optimizer.step()
            with optimizer.consensus() as distance:
                assert distance >= 0


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_an_asynchronous_state_is_there_after_close(net, algorithm):
    model = perceptron()
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, "ring", algorithm, net
    )
    for k in range(3):
        backward(model, optimizer, net.rank, k)
        optimizer.step()
    optimizer.close()
    state = optimizer.state_dict()
    for refused in (optimizer.step, lambda: optimizer.load_state_dict(state)):
        with pytest.raises(RuntimeError, match=r"after close\(\)"):
            refused()
    with optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, "ring", algorithm, net, equal=False
    ) as again:
        again.load_state_dict(state)
        again.step()
        with (
            again.consensus(),
            pytest.raises(RuntimeError, match="a state is loaded in the context of consensus"),
        ):
            again.load_state_dict(state)


def test_a_step_of_the_inner_optimizer_is_refused_until_close(net):
    model = perceptron()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    with optim.Decentralized(inner, model, net=net) as optimizer:
        backward(model, optimizer, net.rank, 0)
        with pytest.raises(RuntimeError, match=r"call step\(\) of the wrapper"):
            inner.step()
        optimizer.step()
    inner.step()


def test_two_momenta_are_warned_of(net):
    model = perceptron()
    with (
        pytest.warns(RuntimeWarning, match="a momentum of its own"),
        optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model, "ring", "qg", net
        ),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adaptive": True, "period": "4"}, "period is '4', expected a whole number >= 1"),
        ({"period": 0}, "period is 0"),
        ({"adaptive": True, "warmup": -1}, "warmup is -1, expected a whole number >= 0"),
    ],
)
def test_wrong_options_of_pga(net, options, words):
    model = perceptron()
    with pytest.raises(ValueError, match=words):
        optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, None, "pga", net, **options
        )


def test_more_refusals(net):
    model = perceptron()
    optimizer = optim.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, None, "pga", net, adaptive=True
    )
    state = optimizer.state_dict()
    state["param_groups"][0]["mpidec"]["parts"][0]["numbers"].clear()
    with pytest.raises(ValueError, match="is of nothing, expected period, count, first_loss"):
        optimizer.load_state_dict(state)
    optimizer.close()
    with pytest.raises(
        ValueError,
        match=rf"machine_size is {net.n + 1}, expected a divisor of the number of workers {net.n}",
    ):
        optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1),
            model,
            "ring",
            "hierarchical",
            net,
            machine_size=net.n + 1,
        )
    with pytest.raises(
        ValueError, match="'relay' is the name of an algorithm: pass it as algorithm='relay'"
    ):
        optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, "relay", net=net)
    with pytest.raises(ValueError, match="SparseAdam needs sparse gradients"):
        optim.Decentralized(
            torch.optim.SparseAdam(model.parameters()), model, None, "allreduce", net
        )


def test_the_step_of_a_late_mixing_that_is_not_finite():
    """Overlapped push-sum notices in the next step what was wrong with the last one."""
    model, said = nn.Linear(50, 4), ""
    with contextlib.suppress(RankMismatchError), mpidec.Network() as net:
        optimizer = optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, None, "osgp", net, equal=False
        )
        for k in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 50)).square().mean().backward()
            if k == 3 and net.rank == 0:
                model.bias.grad[1] = float("nan")
            try:
                optimizer.step()
            except ValueError as error:
                said = str(error)
                break
    if net.rank == 0:
        assert said.startswith("worker 0, step 3: parameter")


class DTensor(torch.Tensor):
    """In place of torch's, which needs a process group."""


class DistributedDataParallel(nn.Module):
    """In place of torch's, likewise."""

    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.mark.parametrize("kind", ["DTensor", "DistributedDataParallel"])
def test_models_that_others_share_between_ranks_are_refused_by_name(net, kind):
    model = perceptron()
    if kind == "DTensor":
        model[0].bias = nn.Parameter(model[0].bias.detach().as_subclass(DTensor))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for call in (
        lambda: optim.Decentralized(optimizer, model, net=net),
        lambda: optim.broadcast_parameters(model, net),
    ):
        with pytest.raises(TypeError, match=kind):
            call()
    if kind == "DTensor":
        with pytest.raises(TypeError, match=kind):
            optim.broadcast_optimizer_state(optimizer, net)


@pytest.mark.serial
def test_parts_of_buckets_leave_out_no_column():
    """Parts of several graphs are of equal size, to one column, one after the other; none is empty."""
    divided = mpidec.optim.methods.divided
    for d, mixers in itertools.product([1, 2, 3, 7, 12], [1, 2, 3, 5]):
        buckets, names = [SimpleNamespace(d=d), SimpleNamespace(d=d + 1)], [*range(mixers)]
        parts = divided(buckets, names)
        for bucket in buckets:
            own = [(columns, mixer) for whose, columns, mixer in parts if whose is bucket]
            sizes = [columns.stop - columns.start for columns, _ in own]
            assert [k for columns, _ in own for k in range(bucket.d)[columns]] == [*range(bucket.d)]
            assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
            assert len(own) == min(mixers, bucket.d) and len({mixer for _, mixer in own}) == len(
                own
            )


@pytest.mark.serial
@pytest.mark.parametrize("stacked", [False, True])
def test_gradients_fill_the_rows_of_a_bucket(stacked):
    """Whatever the memory held before: the gaps between parameters, and those without a gradient, are zeros."""
    m, shapes = (2 if stacked else 1), [(3,), (2, 5), (17,), (1,)]
    named = [
        (f"p{k}", nn.Parameter(torch.randn(m, *shape) if stacked else torch.randn(shape)))
        for k, shape in enumerate(shapes)
    ]
    bucket = mpidec.optim.rows.Bucket(named, dict, m, stacked, lambda d, like: torch.empty(m, d))
    for k, (_, p) in enumerate(named):
        p.grad = torch.randn_like(p) if k != 2 else None
    rows = torch.full((m, bucket.d), torch.nan)
    bucket.gradients(rows)
    for (_, p), part in zip(named, bucket.parts(rows)):
        expected = torch.zeros_like(p) if p.grad is None else p.grad
        assert torch.equal(part, expected.view(part.shape))
        part.zero_()
    assert bucket.d > 31 and not rows.any()
    assert bucket.used().tolist() == [1, 1, 0, 1]
