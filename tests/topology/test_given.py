"""What users give as a graph.  No MPI."""

import networkx as nx
import numpy as np
import pytest

import mpidec.topology as T
from mpidec.driver.arguments import as_topology
from mpidec.topology.base.drawing import positions
from mpidec.topology.given import as_graph

pytestmark = pytest.mark.serial


def test_graphs_of_a_users_function_have_its_name():
    def mine(n):
        return nx.cycle_graph(n)

    def weighted(n):
        return T.from_weights(np.full((n, n), 1 / n))

    assert (as_graph(mine, 5).name, as_graph(weighted, 5).name) == ("mine", "weighted")
    assert as_graph(T.ring, 5) == T.ring(5) == as_graph("ring", 5)
    assert as_graph(nx.cycle_graph(5), 5).name == "from_networkx"
    assert as_topology(mine, 5).name == "mine"
    np.testing.assert_allclose(  # drawn by distance, as without the name
        positions(as_graph(mine, 5)), positions(as_graph(nx.cycle_graph(5), 5))
    )


def test_a_graph_of_a_file_has_the_name_of_its_function(tmp_path):
    (tmp_path / "graphs.py").write_text("def mine(n):\n    return [[1 / n] * n] * n\n")
    assert as_graph(f"{tmp_path}/graphs.py:mine", 4).name == "mine"
