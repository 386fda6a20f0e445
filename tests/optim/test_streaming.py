"""Streaming DiLoCo over graphs: dense equations, what it equals, and fragments under way."""

import contextlib
import copy
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from helpers import launch
from mpi4py import MPI
from torch import nn

import mpidec
from mpidec import optim, topology
from mpidec.comm.mixing import codecs
from mpidec.exceptions import RankMismatchError
from mpidec.nn import Stacked

N, H, STEPS = 6, 7, 40


class Rows(nn.Module):
    """64 parameters in two tensors, whose rows have no gaps."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(8, 5)), nn.Parameter(torch.zeros(24))
        self.double()

    def forward(self, x):
        return x


TARGETS = torch.from_numpy(np.random.default_rng(1).normal(size=(N, 64)))
ADAMW = partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1)
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def train(net, inner, steps=STEPS, start=None, save=None, **options):
    """The parameters (n, 64) of all workers after `steps`, in the order of the rows."""
    model = Stacked(Rows(), net.m)
    optimizer = optim.Decentralized(
        inner(model.parameters()), model, net=net, **{"every": H, **options}
    )
    if start is not None:
        model.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])
    a, b = model.parameters()
    for _ in range(optimizer.averager.steps, steps):
        for p, t in (
            (b, TARGETS[net.lo : net.hi, :24]),
            (a, TARGETS[net.lo : net.hi, 24:].reshape(net.m, 8, 5)),
        ):
            p.grad = p.detach() - t
        optimizer.step()
        if optimizer.averager.steps == save:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    rows = torch.cat([b.detach(), a.detach().flatten(1)], dim=1).numpy()
    optimizer.close()
    whole = np.concatenate(net.comm.allgather(rows))
    return (whole, saved) if save is not None else whole


def dense(W, mix, inner, P=3, tau=3, alpha=0.5, eta=0.7, mu=0.5, two_rows=False, steps=STEPS, n=N):
    """The equations on stacks of rows; `two_rows` averages anchors and outer gradients."""
    x = nn.Parameter(torch.zeros(n, 64, dtype=torch.float64))
    optimizer = inner([x])
    X = x.detach().numpy()
    anchors, M, arriving = X.copy(), np.zeros((n, 64)), {}
    for k in range(1, steps + 1):
        x.grad = x.detach() - TARGETS[:n]
        optimizer.step()
        for p in range(P):
            columns, offset = slice(64 * p // P, 64 * (p + 1) // P), H * p // P
            if k >= offset + H and (k - offset) % H == 0:
                r, A, Q = (k - offset) // H - 1, anchors[:, columns], anchors - X
                Q = Q[:, columns]
                if two_rows:
                    g, b = W(r) @ Q, W(r) @ A
                    M[:, columns] = mu * M[:, columns] + g
                    arriving[k + tau, p] = b - eta * (g + mu * M[:, columns])
                else:
                    M[:, columns] = mu * M[:, columns] + Q
                    Z = A - eta * (Q + mu * M[:, columns])
                    arriving[k + tau, p] = mix(W(r), Z, p)
            if (k, p) in arriving:
                anchors[:, columns] = arriving[k, p]
                X[:, columns] = (1 - alpha) * X[:, columns] + alpha * anchors[:, columns]
    return X


@pytest.fixture
def net():
    with mpidec.Network(N) as net:
        yield net


def plain(W, Z, p):
    return W @ Z


def trimmed(W, Z, p):
    """The mean of the own value and of the neighbours', without the largest and the smallest."""
    return np.stack(
        [
            (Z[i] + np.sort(np.delete(Z, i, axis=0), axis=0)[1:-1].sum(axis=0)) / (len(Z) - 2)
            for i in range(len(Z))
        ]
    )


class Choco:
    """Differences to what the neighbours know, rounded to 8 bits."""

    def __init__(self):
        self.known = {}

    def __call__(self, W, Z, p):
        known, codec = self.known.get(p, np.zeros_like(Z)), codecs.Blockwise8()
        rows = codec.encode(Z - known, 0, range(len(Z)))
        known = known + codec.decode(rows, Z.shape[1], Z.dtype, 0, range(len(Z)))
        self.known[p] = known
        return Z + (W @ known - known)


@pytest.mark.parametrize(
    "graph, inner, mix, more",
    [
        (topology.ring, ADAMW, "two rows", {}),
        (topology.one_peer_exponential, SGD, plain, {"momentum": 0.4}),
        (topology.ring, SGD, "choco", {"codec": "blockwise8"}),
        (
            topology.complete,
            ADAMW,
            trimmed,
            {"mixing": lambda W: W.robust("trimmed_mean"), "momentum": 0.5, "outer_step": 0.3},
        ),
    ],
    ids=["ring", "one peer", "8 bits", "robust"],
)
def test_dense_equations(net, graph, inner, mix, more):
    """On one rank the same bits; without a codec, whose blocks begin with a bucket, with buckets
    of another size, too."""
    of = graph(N)
    options = {
        "topology": of,
        "algorithm": "streaming_diloco",
        "fragments": 3,
        "delay": 3,
        **more,
    }
    X = train(net, inner, **options)
    with mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        again = train(alone, inner, bucket_bytes=None if "codec" in more else 100, **options)
    expected = dense(
        lambda r: of.at(r).W.toarray(),
        {"choco": Choco(), "two rows": plain}.get(mix, mix),
        inner,
        mu=more.get("momentum", 0.5),
        eta=more.get("outer_step", 0.7),
        two_rows=mix == "two rows",
    )
    assert abs(X - expected).max() <= 1e-12 * abs(expected).max()
    assert np.array_equal(X, again)


@pytest.mark.parametrize("other", ["diloco", "noloco"])
def test_without_fragments_delay_and_blending_it_is_another_algorithm(net, other):
    """DiLoCo over the exact average, and NoLoCo over random pairs."""
    graph = topology.complete(N) if other == "diloco" else "random_matchings"
    whole = {"fragments": 1, "delay": 0, "blend": 1, "outer": other}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = train(net, ADAMW, topology=graph, algorithm="streaming_diloco", **whole)
    expected = train(net, ADAMW, topology=graph, algorithm=other)
    assert abs(X - expected).max() <= 1e-12 * abs(expected).max()


@pytest.mark.parametrize("outer", ["diloco", "noloco"])
def test_a_run_resumed_with_fragments_under_way_has_the_same_bits(net, outer):
    """After 16 steps one fragment is under way (departed at 16 = 2 H + 2), after 20 none has
    departed since the last arrival."""
    options = {
        "topology": "ring",
        "algorithm": "streaming_diloco",
        "fragments": 3,
        "delay": 3,
        "outer": outer,
        "codec": "blockwise8",
    }
    undisturbed = train(net, ADAMW, **options)
    for save in 16, 20:
        X, saved = train(net, ADAMW, save=save, **options)
        assert np.array_equal(X, undisturbed)
        assert np.array_equal(train(net, ADAMW, start=saved, **options), undisturbed)


def test_nobody_waits_before_the_arrival():
    """A rank that comes late to a departure delays the others at the arrival only: it comes after their steps before."""
    model = Rows()
    with mpidec.Network() as net:
        optimizer = optim.Decentralized(
            SGD(model.parameters()),
            model,
            topology.complete(net.n),
            "streaming_diloco",
            net,
            every=4,
            fragments=1,
            delay=3,
        )
        for k in range(15):  # departs with k = 3, 7 and 11, the first time with a set-up
            if k == 11 and net.rank == 0:
                for rank in range(1, net.size):
                    assert launch.until(lambda rank=rank: MPI.COMM_WORLD.Iprobe(rank), 60)
                    MPI.COMM_WORLD.recv(source=rank)
            for p in model.parameters():
                p.grad = torch.full_like(p, net.rank + k)
            optimizer.step()
            if k == 13 and net.rank:
                MPI.COMM_WORLD.send(k, 0)
        assert optimizer.averager.sent_bytes == 3 * (net.n - 1) * 64 * 8
        optimizer.close()


def test_a_worker_that_is_not_finite_is_named_before_it_sends():
    model, said = Rows(), ""
    with contextlib.suppress(RankMismatchError), mpidec.Network() as net:
        bad = net.size - 1
        optimizer = optim.Decentralized(
            SGD(model.parameters()), model, "ring", "streaming_diloco", net, every=8, delay=2
        )
        for k in range(12):
            for p in model.parameters():
                p.grad = torch.full_like(p, np.nan if (k, net.rank) == (6, bad) else net.rank + k)
            try:
                optimizer.step()
            except (ValueError, RuntimeError) as error:
                said = str(error)
                break
    # a single worker, which no sum of a neighbour warns, looks in each step
    named = f"worker {bad}, step {7 if net.size > 1 else 6}: parameter b is nan"
    assert said.startswith(named) if net.rank == bad else named in said
    assert net.rank == bad or bool(torch.isfinite(model.a).all())


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"delay": 7}, "delay is 7, expected at most 6 with every=7"),
        ({"fragments": 8}, "fragments is 8, expected at most 7 with every=7"),
        ({"fragments": 0}, "fragments is 0"),
        ({"blend": 0}, "blend is 0"),
        ({"outer": "gasloc"}, "expected one of diloco, noloco"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"gamma": 0.5}, "gamma has no effect without codec="),
        ({"fraction": 0.5}, "fraction has no effect without codec="),
        ({"topology": ["ring", "chain"]}, "one topology, got 2"),
    ],
)
def test_refusals(net, wrong, words):
    with pytest.raises(ValueError, match=words):
        train(net, SGD, **{"topology": "ring", "algorithm": "streaming_diloco", **wrong})


def test_a_momentum_that_is_too_large_for_a_sparse_graph_is_warned_of(net):
    options = {"algorithm": "streaming_diloco", "momentum": 0.9, "steps": 0}
    with pytest.warns(RuntimeWarning, match="momentum is 0.9 on the ring topology"):
        train(net, SGD, topology="ring", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(net, SGD, topology="complete", **options)
