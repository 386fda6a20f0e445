"""A topology: networkx, fingerprints, pickles, and what it refuses.  No MPI."""

import contextlib
import dataclasses
import inspect
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from helpers.graphs import RULES

import mpidec.topology as T

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("name", RULES)
def test_to_networkx_and_back(name):
    topology = T.CATALOGUE[name](16)
    G = topology.to_networkx()
    assert G.is_directed() == topology.directed and list(G) == list(range(16))
    np.testing.assert_allclose(
        T.from_networkx(G, "weight").W.toarray(), topology.W.toarray(), atol=3e-16
    )
    assert G.nodes[3]["self_weight"] == topology.W[3, 3]
    assert not T.star(4, weights="uniform").to_networkx().is_directed()


# ---------------------------------------------------------------------------------------------------------------------
# Frozen, equal, picklable; the same everywhere


def distinct():
    for name in T.CATALOGUE:
        yield from (T.CATALOGUE[name](n) for n in (4, 8, 16))
    yield from (
        T.star(8, center=1),
        T.grid(8, shape=(1, 8)),
        T.chain(8, weights="uniform"),
        T.chain(8, weights=0.2),
        T.chain(8, weights=0.25),
        T.exponential(8, base=3),
        T.symmetric_exponential(8, base=2),
        T.ceca(8, ports=1),
        T.ceca(8, ports=1, parity="repository"),
        T.cycle([T.ring(8)]),
        T.cycle([T.ring(8), T.chain(8)]),
        T.base_k(8, 3),
        T.random_matchings(T.ring(8)),
        T.random_matchings(T.ring(8), seed=1),
        T.matcha(T.ring(8)),
        T.matcha(T.ring(8), 0.3),
        T.matcha(T.ring(8), seed=1),
        T.spanning_tree(T.torus(8)),
        T.spanning_tree(T.torus(8), root=3),
        T.hypercuboid(8, [4, 2]),
        T.hypercuboid(8, [2, 4]),
        T.inner_outer(8, kind="ring"),
        T.inner_outer(8, 8),
        T.regular_tree(8, 4),
        T.equitopo(8, "OU"),
        T.equitopo(8, eta=0.4),
        T.equitopo(8, seed=1),
        T.equitopo(8, M=3),
        T.equitopo(8, "D-static"),
        T.cycle([T.chain(8), T.ring(8)]),
        T.from_weights(T.ring(8).W),
        T.from_networkx(nx.cycle_graph(8)),
    )


OTHER = {  # values of the parameters of graphs, beside the default
    "weights": ["uniform", "push", "lazy", "max_degree", "best_constant", 0.11, 0.12],
    "seed": [3],
    "base": [3],
    "k": [2, 3],
    "ports": [1],
    "parity": ["repository"],
    "kind": ["OU", "D-static", "U-static", "ring"],
    "M": [3],
    "eta": [0.3],
    "p": [0.3, 0.8],
    "radius": [0.6],
    "shape": [(1, 8), (2, 4), (4, 2)],
    "factors": [[4, 2], [2, 4]],
    "machine_size": [2, 4],
    "fraction": [0.3],
    "degree": [4],
    "center": [2],
    "reverse": [True],
    "budget": [0.3, 0.9],
    "H": [2, 3],
    "root": [3],
}


def varied():
    """Graphs of 8 agents with each value of each parameter; schedules over a graph also with several of these."""
    for make in T.CATALOGUE.values():
        names = [*inspect.signature(make).parameters][1:]
        for graph in ["ring", "chain", "exponential"] if "graph" in names else [None]:
            over = {} if graph is None else {"graph": graph}
            for options in (
                {},
                *({name: value} for name in names for value in OTHER.get(name, ())),
            ):
                with contextlib.suppress(ValueError):
                    yield make(8, **over, **options)
    yield T.random_matchings(T.star(8, center=7))  # whose edges begin where those of a chain do
    for graph in (T.star(8), T.exponential(8)):
        for make in (T.failing_links, T.sleeping_agents):
            yield from (make(graph, p, seed) for p in (0.3, 0.8) for seed in (0, 1))
            yield make(make(graph, 0.3), 0.3)
        yield T.cycle([graph, T.ring(8)])
        yield T.push_pull(graph, T.chain(8, weights="push"))
        yield T.push_pull(T.chain(8, weights="uniform"), graph)


def test_no_two_matrices_share_a_fingerprint():
    """Of graphs, of schedules, and of the graphs of their steps."""
    known, steps = {}, {}
    for graph in varied():
        matrices = []
        for k in range(min(graph.period or 12, 12)):
            phase = graph.at(k)
            parts = (phase.R, phase.C) if phase.kind == "pair" else (phase,)
            matrices += [b"".join(part.W.toarray().tobytes() for part in parts)]
            assert steps.setdefault(phase.fingerprint(), matrices[-1]) == matrices[-1], graph
        assert known.setdefault(graph.fingerprint(), matrices) == matrices, graph
    assert len(steps) > 300 and {*OTHER} | {"graph", "ties"} == {
        name for make in T.CATALOGUE.values() for name in [*inspect.signature(make).parameters][1:]
    }


def test_fingerprints_tell_topologies_apart_and_are_the_same_in_every_process():
    prints = [topology.fingerprint() for topology in distinct()]
    assert len(set(prints)) == len(prints) and all(0 <= number < 2**63 for number in prints)
    code = "import sys, test_topology; print([t.fingerprint() for t in test_topology.distinct()])"
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=__file__.rsplit("/", 1)[0],
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "PYTHONHASHSEED": "12", "PYTHONPATH": ":".join(sys.path)},
    )
    assert out.stdout.strip() == str(prints), out.stderr


def test_pickles_are_equal_small_and_read_only():
    for topology in distinct():
        if isinstance(topology, T.Topology):
            _ = topology.W, topology.fingerprint()
        copy = pickle.loads(pickle.dumps(topology))
        assert copy == topology and hash(copy) == hash(topology) and repr(copy) == repr(topology)
        assert not copy.at(0).W.data.flags.writeable
    assert len(pickle.dumps(T.exponential(10**6))) < 2000


def test_topologies_are_frozen():
    for topology in (T.ring(4), T.grid(4), T.from_weights(np.eye(1)), T.erdos_renyi(5)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            topology.name = "other"
        with pytest.raises(AttributeError):
            topology.n = 5
        with pytest.raises(ValueError, match="read-only"):
            topology.W.data[0] = 0
        topology.rows(0, 1).data[:] = 0  # fresh
        topology.columns(0, 1).data[:] = 0
        topology.in_neighbors(0)[:] = 0
        assert topology.rows(0, 1).sum() == pytest.approx(1)
    assert repr(T.ring(4)) == "Topology('ring', n=4, kind='doubly', directed=False)"
    assert T.ring(4) != "ring" and T.ring(4) != T.ring(5) and T.ring(4) == T.ring(np.int32(4))


# ---------------------------------------------------------------------------------------------------------------------
# Wrong calls


WRONG = [
    (
        lambda: T.ring(4).in_neighbors(4),
        ValueError,
        "ring.in_neighbors: agent is 4, expected an integer from 0 to 3",
    ),
    (
        lambda: T.ring(4).out_neighbors(-1),
        ValueError,
        "agent is -1, expected an integer from 0 to 3",
    ),
    (
        lambda: T.ring(4).rows(2, 5),
        ValueError,
        "ring.rows: hi is 5, expected an integer from 0 to 4",
    ),
    (lambda: T.ring(4).rows(3, 2), ValueError, "lo is 3, expected an integer from 0 to 2"),
    (lambda: T.ring(4).columns(0, 2.0), TypeError, "hi is 2.0, expected an integer"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_networkx_is_imported_only_where_it_is_used():
    code = "import sys, mpidec.topology as T; T.erdos_renyi(9), T.ceca(9); sys.exit('networkx' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**__import__("os").environ, "PYTHONPATH": ":".join(sys.path)},
        ).returncode
        == 0
    )
