"""Rows over links against a count edge by edge; times against the closed form of a known network."""

import json

import numpy as np
import pytest

from mpidec import topology
from mpidec.exceptions import ConfigError
from mpidec.predict.command import main
from mpidec.predict.counting import nodes_of, rows
from mpidec.predict.model import cost, mean_cost
from mpidec.predict.network import network

pytestmark = pytest.mark.serial

GRAPHS = {
    "ring": topology.ring,
    "exponential": topology.exponential,
    "one_peer": topology.one_peer_exponential,
    "grid": topology.grid,
    "star": topology.star,
    "inner_outer": lambda n: topology.inner_outer(n, 4),
}


@pytest.mark.parametrize("placement", ["slot", "cyclic"])
@pytest.mark.parametrize("name", GRAPHS)
def test_counted_rows_are_those_of_the_edges(name, placement):
    node = nodes_of(24, 4, placement)
    for k in range(3):
        graph = GRAPHS[name](24).at(k)
        edges = [(i, j) for i in range(24) for j in graph.out_neighbors(i) if i != j]
        far = [(i, j) for i, j in edges if node[i] != node[j]]
        near = [j for i, j in edges if node[i] == node[j]]
        rank = max(sum(e[end] == i for e in far) for end in (0, 1) for i in range(24))
        link = max(sum(node[e[end]] == m for e in far) for end in (0, 1) for m in range(6))
        assert rows(graph, node) == (rank, link, max(near.count(i) for i in range(24)))


def test_times_of_a_known_network(tmp_path):
    file = tmp_path / "network.json"
    times = {"1": [1e-3, 2e-3, 3e-3], "2": [1e-3, 3e-3, 5e-3]}
    file.write_text(json.dumps({"bytes": [0, 1000, 2000], "exchange_seconds": times}))
    net = network(str(file))
    # One rank a node: T_2(s).  Four a node: a ring has 1 row more over the link than over a rank.
    one = mean_cost(topology.ring(8), nodes_of(8, 1, "slot"), 500, net)
    assert np.isclose(one.seconds - one.kernel, 2e-3) and one.rows == 2
    four = cost(rows(topology.ring(8), nodes_of(8, 4, "slot")), 500, net)
    assert np.isclose(four.latency, 1e-3) and np.isclose(four.bytes, 5e-4)
    assert np.isclose(four.link, 5e-4)
    file.write_text(json.dumps({"bytes": [0, 1000], "exchange_seconds": {"1": [1e-3]}}))
    with pytest.raises(ConfigError, match="a time for each"):
        network(str(file))


def test_hierarchical_graphs_are_cheaper_on_large_nodes(capsys):
    assert main(["--ranks", "256", "--dimension", "8192", "--placement", "slot"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert [lines[name][-1] for name in ("ring", "inner_outer")] == ["2", "1"]
    assert lines["one_peer_exponential"][-1] == "23.88"  # hops 1 to 128: (1 + ... + 64 + 64) / 8


def test_graphs_that_cannot_be_counted_are_refused(tmp_path, capsys):
    file = tmp_path / "experiment.toml"
    for name, ranks, said in (("hypercube", "24", "24"), ("complete", "65536", "edges")):
        file.write_text(f'[topology]\nname = "{name}"\n')
        assert main([str(file), "--ranks", ranks]) == 2
        assert said in capsys.readouterr().err
