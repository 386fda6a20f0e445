"""Pictures of graphs and schedules: nodes, edges, eigenvalues, and what is left of a disagreement."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from mpidec import topology
from mpidec.topology.base.drawing import positions

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.serial


def points(axes, number=0) -> np.ndarray:
    return np.asarray(axes.collections[number].get_offsets())


@pytest.mark.parametrize("n", [1, 2, 4, 16])
@pytest.mark.parametrize(
    "name",
    [
        "ring",
        "grid",
        "star",
        "binary_tree",
        "exponential",
        "hypercube",
        "torus",
        "one_peer_exponential",
    ],
)
def test_every_graph_is_drawn(name, n, tmp_path):
    T = topology.CATALOGUE[name](n)
    shown = T.plot()
    assert len(shown.axes) >= T.period + 1 and f"{n} agent" in shown.get_suptitle()
    shown.savefig(tmp_path / "graph.png", dpi=20)
    places = positions(T.at(0))
    assert places.shape == (n, 2) and np.abs(places).max() <= 1 + 1e-12
    assert len(np.unique(places.round(6), axis=0)) == n  # no agent hides another one


def test_a_graph_shows_its_edges_and_its_eigenvalues():
    graph, spectrum = topology.grid(16).plot("paper").axes
    assert len(graph.collections[0].get_segments()) == 24 and [
        text.get_text() for text in graph.texts
    ] == list(map(str, range(16)))
    values = np.linalg.eigvalsh(topology.grid(16).W.toarray())[::-1]
    assert np.allclose(points(spectrum), np.column_stack([np.arange(1, 17), values]))
    graph, spectrum = topology.exponential(16).plot().axes
    assert len(graph.patches) == 16 * 4  # arrows
    assert np.allclose(
        np.abs(points(spectrum) @ [1, 1j]).max(), 1
    ) and spectrum.get_title().endswith("0.6")


def test_a_schedule_shows_its_phases_and_what_each_step_leaves():
    *graphs, contraction = topology.one_peer_exponential(8).plot().axes
    assert [axes.get_title() for axes in graphs] == ["step 0", "step 1", "step 2"]
    x, left = contraction.lines[0].get_data()
    product = topology.one_peer_exponential(8).at(0).W.toarray()
    assert x.tolist() == [0, 1, 2, 3] and left[0] == 1 and left[-1] < 1e-12
    assert np.isclose(left[1], np.linalg.norm(product - 1 / 8, 2))


def test_unknown_graphs_are_laid_out_by_distance():
    graph, _ = topology.from_networkx(nx.karate_club_graph()).plot().axes
    assert len(graph.collections[0].get_segments()) == 78


def test_graphs_too_large_to_draw_say_so():
    with pytest.raises(
        ValueError, match=r"ring.plot: 1000 agents cannot be drawn legibly, expected at most 512"
    ):
        topology.ring(1000).plot()
    with pytest.raises(ValueError, match="style 'pink' is unknown, expected one of screen, paper"):
        topology.ring(4).plot("pink")
