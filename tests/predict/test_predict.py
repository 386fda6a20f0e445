"""Rows over links against a count edge by edge; times against the closed form of a known network."""

import json

import numpy as np
import pytest

from mpidec import topology
from mpidec.exceptions import ConfigError
from mpidec.experiment import Setting, settings as config
from mpidec.predict import simulation
from mpidec.predict.cluster import cluster
from mpidec.predict.command import main
from mpidec.predict.counting import flow, nodes_of, overlapped
from mpidec.predict.model import cost, mean_cost
from mpidec.predict.simulation import COUNTED, Simulator

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
@pytest.mark.parametrize("agents", [24, 40])
@pytest.mark.parametrize("name", GRAPHS)
def test_counted_rows_are_those_of_the_edges(name, agents, placement):
    node = nodes_of(24, 4, placement)
    host = np.repeat(range(24), [len(part) for part in np.array_split(range(agents), 24)])
    for k in range(3):
        graph = GRAPHS[name](agents).at(k)
        edges = [(i, j) for i in range(agents) for j in graph.out_neighbors(i) if i != j]
        far = {(i, host[j]) for i, j in edges if node[host[i]] != node[host[j]]}
        ends = [[(host[i], rank)[end] for i, rank in far] for end in (0, 1)]
        pairs = {(host[i], rank) for i, rank in far}
        sent, received = ([sum(e[end] == i for e in pairs) for i in range(24)] for end in (0, 1))
        expected = (
            max(sent + received),
            max(min(sent[i], received[j]) for i, j in pairs),
            max(end.count(i) for end in ends for i in range(24)),
            max(sum(node[i] == m for i in end) for end in ends for m in range(6)),
            max(sum(host[j] == i for _, j in edges) for i in range(24)),
        )
        assert flow(graph, node).traffic == expected


def test_times_of_a_known_network(tmp_path):
    file = tmp_path / "network.json"
    times = {"1": [1e-3, 2e-3, 3e-3], "2": [1e-3, 4e-3, 7e-3]}
    content = {"bytes": [0, 1000, 2000], "exchange_seconds": times}
    file.write_text(json.dumps(content))
    net = cluster(str(file))
    # One rank a node: T_2(s).  Four a node: a ring has 1 row more over the link than over a rank.
    one = mean_cost(topology.ring(8), nodes_of(8, 1, "slot"), 500, net)
    assert np.isclose(one.seconds - one.kernel, 2.5e-3) and one.rows == 2
    two_nodes = flow(topology.ring(8), nodes_of(8, 4, "slot")).traffic
    four = cost(two_nodes, 500, net)
    assert np.isclose(four.latency, 1e-3) and np.isclose(four.bytes, 5e-4)
    assert np.isclose(four.link, 5e-4) and four.kernel == 2 * 500 * net.memory
    # The hub of a star has 3 messages of 1 ms of latency over its link, its neighbours 1 each.
    hub = mean_cost(topology.star(4), nodes_of(4, 1, "slot"), 500, net)
    assert np.isclose(hub.seconds - hub.kernel, 1e-3 + 3 * 5e-4)
    # A further message adds the least of T_2 - T_1.  In the 1 ms that a message of 1,000 bytes
    # takes beside latency and bytes, another one uses the link.
    slow = {"1": [1e-3, 3e-3, 4e-3, 0.102], "2": [1.25e-3, 5e-3, 8e-3, 0.2]}
    file.write_text(json.dumps({"bytes": [0, 1000, 2000, 100000], "exchange_seconds": slow}))
    net = cluster(str(file))
    assert np.isclose(net.hub(1, 1000), 2e-3) and np.isclose(net.hub(3, 1000), 4.5e-3)
    for size, link in ((1000, 0.0), (2000, 1e-3)):
        assert np.isclose(cost(two_nodes, size, net).link, link)
    reductions = {"4x2": [4e-3] * 3, "2x2": [2e-3] * 3, "4x1": [3e-3] * 3}
    shared = {"shared_exchange_seconds": [5e-3, 8e-3], "ranks_per_node": 2}
    content |= {"memory_seconds_per_byte": 1e-9, "allreduce_seconds": reductions, **shared}
    file.write_text(json.dumps(content))
    net = cluster(str(file))
    # Two ranks a node send 1,000 bytes more each in 3 ms.
    assert np.isclose(net.shared_per_byte, 1.5e-6) and net.memory == 1e-9
    assert [round(1e3 * net.allreduce(*at, 9), 9) for at in ((4, 2), (8, 2), (4, 4), (1, 2))] == [
        4,
        6,
        5,
        0,
    ]
    short = {"bytes": [0, 1000], "exchange_seconds": {"1": [1e-3]}}
    alone = content | {"ranks_per_node": 1}
    wrong_times = [
        content | {"shared_exchange_seconds": pair} for pair in ([-1.0, 1.0], [1.0, np.inf])
    ]
    refused = [(short, "a time for each"), (alone, "ranks_per_node >= 2")]
    for wrong, said in [*refused, *((each, "expected shared") for each in wrong_times)]:
        file.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=said):
            cluster(str(file))


def test_latencies_of_a_schedule_overlap():
    # Two ranks a node; each goes out in every second step, and waits for the other in between.
    node = np.array([0, 0, 1, 1])
    inner = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    out = [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    flows = [
        flow(topology.from_weights((np.eye(4) + W) / 2, connected=False), node)
        for W in (inner, out)
    ]
    assert overlapped(flows, [1.0, 1.0], [1.0, 1.0], 4) == 0.5
    apart = topology.inner_outer(16, 4)
    flows = [flow(apart.at(k), nodes_of(16, 4, "slot")) for k in range(apart.period)]
    assert overlapped(flows, [1.0] * len(flows), [1.0] * len(flows), 16) == 0.5
    assert overlapped(flows[:1], [1.0], [1.0], 16) == 1.0


def test_ranks_that_need_not_wait_for_their_messages_go_on(tmp_path):
    # On two of four links of a circle a row takes 1 ms, and its sender waits for it, or not.
    shift = np.roll(np.eye(4), 1, axis=0)
    circle = topology.from_weights((np.eye(4) + shift) / 2)
    times = {"bytes": [0, 1000], "exchange_seconds": {"1": [1e-3, 1e-3 + 1e-9]}}
    file, node = tmp_path / "network.json", np.array([0, 0, 1, 1])
    for sending, seconds in (([1e-9, 1e-9], 0.5e-3), ([1e-3, 1e-3], 1e-3)):
        file.write_text(json.dumps({**times, "send_seconds": sending}))
        found = mean_cost(circle, node, 8, cluster(str(file))).latency
        assert found == pytest.approx(seconds, rel=1e-4)
    file.write_text(json.dumps({**times, "send_seconds": [1e-3]}))
    with pytest.raises(ConfigError, match=r"a time for each|times > 0"):
        cluster(str(file))


@pytest.mark.parametrize(
    "mixing, mixings, size",
    [("", 2, 240), ("accelerate = 3", 6, 240), ('codec = "top_k"\nfraction = 0.1', 2, 34)],
)
def test_a_step_is_counted_in_a_run(tmp_path, mixing, mixings, size):
    file = tmp_path / "experiment.toml"
    file.write_text(f'[topology]\nname = "ring"\n[mixing]\n{mixing}\n[run]\nagents = 32\n')
    demand = Simulator(config.load(config.read_toml(str(file))), None).demand(topology.ring(16))
    # Gradient tracking mixes its first gradients only once.
    assert demand.mixings == pytest.approx(mixings * (2 * COUNTED - 1) / (2 * COUNTED))
    assert (demand.size, demand.gradients) == (size, 1)


def test_a_rank_with_one_agent_takes_more_than_a_share_of_the_step_of_many():
    """The calls of a step take the same time for 64 agents of few unknowns as for 2."""
    demand = Simulator(config.load([]), 1).demand(topology.ring(64))
    assert demand.overhead > 4 * demand.compute


def test_steps_are_simulated_and_continued_by_the_rate(monkeypatch):
    simulator = Simulator(config.load([]), 4)
    ring = topology.ring(8)
    simulated = simulator.course(ring, 1e-4, 60)
    continued = simulator.course(ring, 1e-4, 0)
    assert simulated.how == "" and simulated.simulated == simulated.steps
    assert continued.how == "~" and continued.simulated == 1
    assert 0.2 < continued.steps / simulated.steps < 5
    monkeypatch.setattr(simulation, "MOST_EDGES", 31)
    assert simulator.course(topology.inner_outer(8, 4), 1e-9, 0).steps is None
    biased = Simulator(config.load([Setting("solver.name", "dgd", "")]), 4)
    assert biased.course(ring, 1e-9, 0.1).steps == np.inf


def test_hierarchical_graphs_are_cheaper_on_large_nodes(capsys):
    assert main(["--ranks", "256", "--dimension", "8192", "--placement", "slot"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert [lines[name][-1] for name in ("ring", "inner_outer")] == ["2", "1"]
    assert lines["one_peer_exponential"][-1] == "23.88"  # hops 1 to 128: (1 + ... + 64 + 64) / 8


def test_graphs_that_cannot_be_counted_are_refused(tmp_path, capsys):
    file = tmp_path / "experiment.toml"
    for name, ranks, said in (
        ("hypercube", "24", "24"),
        ("complete", "65536", "edges"),
        ("ringg", "16", "did you mean ring?"),
    ):
        file.write_text(f'[topology]\nname = "{name}"\n')
        assert main([str(file), "--ranks", ranks]) == 2
        assert said in capsys.readouterr().err


def test_a_graph_of_the_user_is_built_for_the_agents_of_the_experiment(tmp_path, capsys):
    """Also one of networkx, and one that has one size only."""
    (tmp_path / "own.py").write_text(
        "import networkx as nx\n\n"
        "def fixed(n):\n    assert n == 9, n\n    return nx.cycle_graph(9)\n"
    )
    (tmp_path / "own.toml").write_text('[run]\nagents = 9\n[topology]\nname = "own.py:fixed"\n')
    for size, compared in ("4", False), ("3", True):
        flags = ["--ranks=9", f"--ranks-per-node={size}"]
        assert main([str(tmp_path / "own.toml"), *flags]) in (0, None)
        text = capsys.readouterr().out
        assert "\nown.py:fixed " in text and ("inner_outer" in text) is compared
    # Also where the data have fewer samples, as of breast_cancer 569.
    (tmp_path / "large.py").write_text(
        "import networkx as nx\n\ndef fixed(n):\n"
        "    if n != 640:\n        raise ValueError('wrong n')\n    return nx.cycle_graph(n)\n"
    )
    many = [f"--set=topology.name={tmp_path}/large.py:fixed", "--ranks=640"]
    assert main([*many, "--set=run.agents=640"]) in (0, None)
    assert "\n640 agents, 640 ranks on 10 nodes\n" in capsys.readouterr().out
    assert main(many) == 2
    assert "counted with 16 agents, or with run.agents" in capsys.readouterr().err


def test_so_is_one_of_a_training(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "own.py").write_text(
        "import networkx as nx\n\ndef wheel(n):\n    return nx.wheel_graph(n)\n"
    )
    (tmp_path / "train.toml").write_text(
        '[algorithm]\nname = "atc"\n[topology]\nname = "own.py:wheel"\n'
    )
    assert main([str(tmp_path / "train.toml"), "--ranks=9"]) in (0, None)
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "wheel" in one]
    assert "ring" not in line


@pytest.mark.parametrize(
    "change, said",
    [
        ({"gradient_seconds": "fast"}, "could not convert"),
        ({"gradient_seconds": -1.0}, "gradient_seconds is -1"),
        ({"memory_seconds_per_byte": float("nan")}, "memory_seconds_per_byte is nan"),
        ({"ranks_per_node": 2.7}, "integer"),
        ({"allreduce_seconds": {"1x2": [1e-3] * 3}}, "by nodes and ranks"),
        ({"bytes": [-8, 1000, 2000]}, "bytes from 0"),
        ({"exchange_seconds": {"1": [5e-3, 1e-3, 2e-3]}}, "larger for the last size"),
    ],
)
def test_times_that_no_prediction_can_use_are_refused(tmp_path, change, said):
    file = tmp_path / "network.json"
    times = {"bytes": [0, 1000, 2000], "exchange_seconds": {"1": [1e-3, 2e-3, 3e-3]}}
    file.write_text(json.dumps(times | change))
    with pytest.raises(ConfigError, match=said):
        cluster(str(file))


def test_more_neighbours_take_no_less_time(tmp_path):
    """Noise of a calibration, beyond which a line with a slope below 0 would follow."""
    file = tmp_path / "network.json"
    times = {"1": [2e-3, 3e-3], "2": [1e-3, 4e-3]}
    file.write_text(json.dumps({"bytes": [0, 1000], "exchange_seconds": times}))
    assert np.isclose(cluster(str(file)).exchange(8, 0), 2e-3)
    # Of 1,000 bytes a second one adds nothing: a hub with 100 neighbours still needs time for each.
    times = {"1": [1e-3, 4e-3], "2": [1.5e-3, 3e-3]}
    file.write_text(json.dumps({"bytes": [0, 1000], "exchange_seconds": times}))
    assert np.isclose(cluster(str(file)).hub(100, 0), 1e-3 + 99 * 0.5e-3)


def test_an_all_reduce_waits_for_steps_between_nodes_and_grows_beyond_the_measured_ones(tmp_path):
    typical = cluster("ethernet")
    assert typical.allreduce(2, 64, 0) == typical.allreduce(2, 1, 0) == 2 * typical.exchange(1, 0)
    # Of three nodes, which are no power of two, it takes longer than of four.
    times = {"1": [1e-3, 2e-3]}
    reductions = {"4x2": [2e-3, 5e-3], "3x2": [3e-3, 6e-3], "2x2": [1e-3, 2e-3]}
    file = tmp_path / "network.json"
    content = {"bytes": [0, 1000], "exchange_seconds": times, "allreduce_seconds": reductions}
    file.write_text(json.dumps(content))
    net = cluster(str(file))
    assert np.isclose(net.allreduce(16, 2, 0), 2 * 2e-3)
    assert np.isclose(net.allreduce(16, 2, 1000), 2 * 2e-3 + 3e-3 * (15 / 16) / (3 / 4))


def test_settings_of_the_experiment_are_flags(capsys):
    assert main(["--set", "solver.name=extra", "--set", "run.agents=8", "--ranks=8"]) in (0, None)
    said = capsys.readouterr().out
    assert "a step: 1 mixing of rows of 240 B" in said and "8 agents, 8 ranks" in said
    assert main(["--set", "solver.nam=extra"]) == 2
    assert "did you mean name?" in capsys.readouterr().err
    assert main(["--set", "run.agents=8", "--ranks=8,16"]) == 2
    said = capsys.readouterr()
    assert not said.out and "--ranks 16: run.agents is 8, expected at most 8 ranks" in said.err
