"""The life of a network: what all ranks make and free together, whatever happens in between."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers.refusals import use, works
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing.base.lifecycle import _LEFT

pytestmark = [pytest.mark.most(1), pytest.mark.timeout(200)]


several = pytest.mark.mpi(min_size=2)


@several
@pytest.mark.parametrize(
    "arguments, text",
    [
        (lambda rank: {"n": 4 + 2 * (rank == 1)}, r"n is 4 on rank 0 and 6 on rank 1"),
        (lambda rank: {"n": "x" if rank == 0 else 4}, r"number of agents is 'x'"),
        (lambda rank: {"n": 0 if rank == 1 else 4}, r"number of agents is 0"),
        (
            lambda rank: {"transport": "shared" if rank else "neighbor"},
            r"transport is neighbor on rank 0 and shared on rank 1",
        ),
        (
            lambda rank: {"transport": "pigeon" if rank == 1 else "p2p"},
            r"transport is 'pigeon', expected one of",
        ),
    ],
)
def test_networks_that_differ(transport, arguments, text):
    given = {"transport": transport, **arguments(MPI.COMM_WORLD.rank)}
    for _ in range(3):
        with pytest.raises(ValueError, match=text):
            mpidec.Network(**given)
    with mpidec.Network(4, transport=transport) as net:
        works(net)


@several
def test_ranks_per_node_that_differ(monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(1 + MPI.COMM_WORLD.rank))
    with pytest.raises(ValueError, match="MPIDEC_RANKS_PER_NODE is 1 on rank 0 and 2 on rank 1"):
        mpidec.Network()
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "few" if MPI.COMM_WORLD.rank == 0 else "1")
    with pytest.raises(ValueError, match="MPIDEC_RANKS_PER_NODE is 'few'"):
        mpidec.Network()


def test_calls_of_a_closed_network(transport):
    net = mpidec.Network(transport=transport)
    net.set_topology(T.ring(net.n))
    W, x = net.mixer(T.ring(net.n)), net.empty(3)
    x[...] = net.rank
    P, A, B, Y = W.at(0), W.accelerate(2), W.compress("bfloat16"), W(x)
    y, copy = net.mean(x), Y.copy()
    net.close()
    np.testing.assert_array_equal(Y, copy)  # rows outlive their network
    np.testing.assert_array_equal(x, np.full((1, 3), float(net.rank)))
    M = np.ones((P.in_edges, 3))
    calls = {
        "W": lambda: W(x),
        "P": lambda: P(x),
        "A": lambda: A(x),
        "B": lambda: B(x),
        "W.start": lambda: W.start(x),
        "P.start": lambda: P.start(x),
        "exchange": lambda: P.exchange(M),
        "fetch": lambda: P.fetch(x),
        "sum": lambda: net.sum(x),
        "mean": lambda: net.mean(x),
        "gather": lambda: net.gather(x),
        "scatter": lambda: net.scatter(x),
        "allreduce": lambda: net.allreduce(x),
        "broadcast": lambda: net.broadcast(x, 0),
        "neighbor_allreduce": lambda: net.neighbor_allreduce(x),
        "neighbor_allgather": lambda: net.neighbor_allgather(x),
        "barrier": net.barrier,
        "agree": net.agree,
        "machines": net.machines,
        "mixer": lambda: net.mixer(T.ring(net.n)),
        "set_topology": lambda: net.set_topology(T.ring(net.n)),
        "pair_gossip": lambda: net.pair_gossip(x, (net.rank + 1) % net.size),
        "exchange of the network": lambda: net.exchange({}, []),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "returned"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    alone = net.size == 1  # a network of one rank has nothing that could be closed
    if net.size == 1:
        del said["pair_gossip"]  # with nobody
    wrong = {
        name: text
        for name, text in said.items()
        if not (text.startswith("RuntimeError") and "closed" in text)
        and not (alone and text == "returned")
    }
    assert not wrong, wrong
    net.close()
    assert "closed" in repr(net) and y.shape == (3,)


def figures():
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "kB": sum(
            int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))
        ),
    }


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="what a process uses is read in /proc"
)
@pytest.mark.parametrize("under_way", [False, True], ids=["idle", "under way"])
def test_networks_that_an_exception_leaves(transport, comm, under_way):
    """Many of them: descriptors, mappings, communicators and memory of each go when the next ones are made."""
    many, warm = (260, 40) if comm.size <= 2 else (50, 10)

    def leave(count):
        for _ in range(count):
            with contextlib.suppress(KeyError), mpidec.Network(transport=transport) as net:
                pending = use(net)
                if not under_way:
                    pending.wait()
                raise KeyError

    def number():
        made = [comm.Dup() for _ in range(2)]
        found = max(one.py2f() & 0xFFFFFF for one in made)
        for one in made:
            one.Free()
        return found

    leave(warm)
    before = {**figures(), "communicators": number()}
    leave(many)
    after = {**figures(), "communicators": number()}
    grown = {
        name: (before[name], after[name])
        for name, slack in (
            ("descriptors", 8),
            ("mappings", 40),
            ("kB", 8192),
            ("communicators", 40),
        )
        if after[name] - before[name] > slack
    }
    assert not any(comm.allgather(grown)), f"before, after: {grown}"
    with mpidec.Network(transport=transport) as net:  # nothing is in the way of the next one
        works(net)


@several
def test_an_exception_that_one_rank_sees_leaves_nothing_in_the_way(transport, comm):
    """Rank 0 leaves its network by an exception, the others by their own, later, in the midst of other calls."""
    for k in range(5):
        try:
            with mpidec.Network(transport=transport) as net:
                pending = use(net)
                if net.rank == k % net.size:
                    raise KeyError
                pending.wait()
                raise ValueError
        except (KeyError, ValueError):
            pass
        with mpidec.Network(transport=transport) as net:
            works(net, k)


@several
def test_a_sum_that_one_rank_was_interrupted_in(transport, comm):
    """Its communicator has a collective under way on one rank: the network is left alone when the next one is made."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for k in range(3):
            with (
                contextlib.suppress(KeyboardInterrupt, KeyError),
                mpidec.Network(transport=transport) as net,
            ):
                W, X = net.mixer(T.complete(net.n)), np.ones((1, 2))
                net.sum(W(X))
                if net.rank == k % net.size:
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                    net.sum(X)
                raise KeyError
            with mpidec.Network(transport=transport) as net:
                works(net, k)
    finally:
        signal.signal(signal.SIGALRM, before)


@several
def test_a_network_that_is_dropped_is_left_at_once(transport):
    """Not by a garbage collection, amid which a signal would be lost."""
    gc.collect()
    gc.disable()
    try:
        net = mpidec.Network(transport=transport)
        use(net).wait()
        net.neighbor_allreduce(1.0, 1, [], [])
        left = weakref.ref(net)
        del net
        assert left() is None or left() in _LEFT
    finally:
        gc.enable()
    with mpidec.Network(transport=transport) as net:
        works(net)
