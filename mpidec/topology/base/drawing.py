"""Pictures of graphs and their spectra, with networkx and matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..._style import COLOURS, STYLES, figure
from ...protocols import ConstantGraph
from .source import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from networkx import Graph as NetworkxGraph

MOST_AGENTS = 512
MOST_PHASES = 7
ROUNDING = 1e-12  # of eigenvalues
PANEL = 2.6  # inches
WRAP = 4  # panels side by side
# Inches from the middle of a graph to its border.
HALF = 1.05
NODE, EDGE, MARK = COLOURS[0], "0.55", COLOURS[1]
LATTICES = ("grid", "torus", "hypercube")


class Drawn(ConstantGraph, Protocol):
    """A topology, as its picture needs it."""

    @property
    def source(self) -> Source:
        """What the edges come from, which may know places of the agents."""

    @property
    def connected(self) -> bool:
        """Whether what an agent knows reaches all others."""

    def neighbors(self, i: int) -> NDArray[np.int64]:
        """Return the agents that send to agent i, or receive from it."""

    def to_networkx(self) -> NetworkxGraph:
        """Return the graph of networkx."""


def draw(
    name: str, phases: Sequence[Any], kind: str, gap: float | None, more: str, style: str
) -> Figure:
    """Return the picture of a topology (one phase) or of the phases of a schedule, and of how they
    mix.

    Parameters
    ----------
    name : name of the topology or schedule
    phases : the topologies to draw; with several, also products of them in this order
    kind : stochasticity of all phases
    gap : spectral gap, None if it is not known
    more : remark on phases that are not drawn
    style : "screen" or "paper"
    """
    from matplotlib import rc_context
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    n = phases[0].n
    if style not in STYLES:
        raise ValueError(
            f"{name}.plot: style {style!r} is unknown, expected one of {', '.join(STYLES)}"
        )
    if n > MOST_AGENTS:
        raise ValueError(
            f"{name}.plot: {n} agents cannot be drawn legibly, expected at most {MOST_AGENTS}"
        )
    shown = phases[:MOST_PHASES]
    with rc_context(STYLES[style]):
        rows = math.ceil((len(shown) + 1) / WRAP)
        columns = math.ceil((len(shown) + 1) / rows)
        result = figure(
            figsize=(PANEL * columns + 0.5, (PANEL + 0.2) * rows + 0.5),
            layout=ConstrainedLayoutEngine(h_pad=0.08),
        )
        grid = list(result.subplots(rows, columns, squeeze=False).flat)
        at = positions(shown[0]) if len(shown) == 1 else circle(n)
        for k, (axes, phase) in enumerate(zip(grid, shown)):
            _graph(axes, phase, at)
            axes.set_title("" if len(shown) == 1 else f"step {k}")
        (_spectrum if len(phases) == 1 else _contraction)(grid[len(shown)], phases)
        for axes in grid[len(shown) + 1 :]:
            axes.set_visible(False)
        kind_in_words = "graph filter" if kind == "any" else f"{kind} stochastic"
        known = "" if gap is None else f", spectral gap {gap:.4g}"
        result.suptitle(
            f"{name.replace('_', ' ')}, {n} agent{'s' * (n > 1)}, {kind_in_words}{known}{more}"
        )
    return result


def positions(topology: Drawn) -> NDArray[np.float64]:
    """Return a place in the square [-1, 1]^2 for each agent, shape (n, 2), according to the kind
    of graph.
    """
    n = topology.n
    if n > 1 and topology.source.places is not None:
        at = topology.source.places
    elif n > 2 and topology.name in LATTICES:
        at = _lattice(topology)
    elif n > 2 and topology.is_tree and topology.name != "chain":
        at = _tree(topology)
    elif (
        n > 2 and (topology.name == "geometric" or topology.source.explicit) and topology.connected
    ):
        import networkx

        places = networkx.kamada_kawai_layout(topology.to_networkx().to_undirected(), weight=None)
        at = np.array([places[i] for i in range(n)])
    else:
        return circle(n)
    at = at - (at.min(axis=0) + at.max(axis=0)) / 2
    result: NDArray[np.float64] = at / (np.abs(at).max() or 1.0)
    return result


def circle(n: int) -> NDArray[np.float64]:
    """Return n places on the unit circle, clockwise from the top."""
    angles = 2 * np.pi * np.arange(n) / n
    return np.column_stack([np.sin(angles), np.cos(angles)]) * (n > 1)


def _lattice(topology: Drawn) -> NDArray[np.float64]:
    """Return the points of a lattice: the third dimension aslant, and further ones by copies
    side by side.
    """
    strides = [int(j) for j in topology.neighbors(0)]
    shape: Sequence[int] | None = topology.source.group
    # A grid: the neighbours of agent 0 tell its strides.
    if shape is None:
        shape = [b // a for a, b in zip(strides, [*strides[1:], topology.n])][::-1]
    sides = [side for side in shape if side > 1]
    coordinates = np.stack(np.unravel_index(np.arange(topology.n), sides), axis=1).astype(float)[
        :, ::-1
    ]
    at = np.zeros((topology.n, 2))
    for dimension, column in enumerate(coordinates.T):
        if dimension < 3:
            step = [(1.0, 0.0), (0.0, 1.0), (0.42, -0.36)][dimension]
        else:
            width, height = np.ptp(at, axis=0)
            step = (width + 0.6, 0.2) if dimension % 2 else (0.2, height + 0.6)
        at += column[:, None] * step
    return at * [1, -1] / (np.ptp(at, axis=0) if len(sides) > 3 else 1)


def _tree(topology: Drawn) -> NDArray[np.float64]:
    """Return the places of a tree: its centre in the middle if all others are its neighbours,
    else layers below agent 0.
    """
    import networkx

    G = topology.to_networkx()
    hub = max(G.nodes, key=G.degree)
    at = np.zeros((topology.n, 2))
    if G.degree[hub] == topology.n - 1:
        at[[i for i in range(topology.n) if i != hub]] = circle(topology.n - 1)
        return at
    children = {i: sorted(below) for i, below in networkx.bfs_successors(G, 0)}
    leaves = 0

    def place(i: int, depth: int) -> float:
        nonlocal leaves
        below = [place(j, depth + 1) for j in children.get(i, [])]
        leaves += not below
        at[i] = (below[0] + below[-1]) / 2 if below else leaves, -depth
        return float(at[i, 0])

    place(0, 0)
    result: NDArray[np.float64] = at / [max(leaves - 1, 1), max(-at[:, 1].min(), 1)]
    return result


def _graph(axes: Axes, topology: Drawn, at: NDArray[np.float64]) -> None:
    import networkx

    n = topology.n
    distances = np.linalg.norm(at[:, None] - at[None], axis=2) + 9 * np.eye(n)
    diameter = (
        float(np.clip(0.5 * np.quantile(distances.min(axis=1), 0.1) * HALF * 72, 2.5, 17))
        if n > 1
        else 17.0
    )
    G, places = topology.to_networkx(), dict(enumerate(at))
    width = float(np.clip(120 / max(G.number_of_edges(), 1), 0.25, 1.1))
    arrows: dict[str, Any] = {"arrows": False}
    if topology.directed:
        arrows = {
            "arrows": True,
            "arrowsize": 4 + 0.3 * diameter,
            "arrowstyle": "-|>",
            "connectionstyle": "arc3,rad=0.08",
        }
    look = {"ax": axes, "edge_color": EDGE, "width": width, "node_size": diameter**2}
    # Those that wrap around would lie on the others.
    if topology.name == "torus":
        around = [
            (i, j) for i, j in G.edges if np.linalg.norm(at[i] - at[j]) > 1.4 * distances[i].min()
        ]
        networkx.draw_networkx_edges(
            G, places, around, **look, arrows=True, arrowstyle="-", connectionstyle="arc3,rad=0.15"
        )
        G.remove_edges_from(around)
    networkx.draw_networkx_edges(G, places, **look, **arrows)
    networkx.draw_networkx_nodes(
        G, places, ax=axes, node_color=NODE, node_size=diameter**2, linewidths=0
    )
    if diameter >= 8:
        networkx.draw_networkx_labels(
            G, places, ax=axes, font_size=0.5 * diameter, font_color="white"
        )
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axes.set_axis_off()


def _spectrum(axes: Axes, phases: Sequence[Any]) -> None:
    """Draw the eigenvalues of W, by size if they are real because W is symmetric, else in the
    complex plane.
    """
    W = phases[0].W.toarray()
    n = len(W)
    size = float(np.clip(60 / math.sqrt(n), 3, 14))
    if phases[0].symmetric:
        values = np.linalg.eigvalsh(W)[::-1]
        second = float(np.max(np.abs(values[1:]))) if n > 1 else 0.0
        axes.axhspan(-second, second, color=MARK, alpha=0.12, linewidth=0)
        axes.scatter(np.arange(1, n + 1), values, s=size, color=NODE, zorder=3)
        axes.set(
            xlabel="$k$",
            ylabel=r"eigenvalue  $\lambda_k(W)$",
            ylim=(min(-0.05, 1.1 * values.min(), -second - 0.05), 1.08),
        )
        axes.locator_params(axis="x", integer=True)
        axes.set_box_aspect(0.9)
    else:
        values = np.linalg.eigvals(W)
        second = float(np.sort(np.abs(values))[-2]) if n > 1 else 0.0
        turn = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
        axes.fill(second * turn.real, second * turn.imag, color=MARK, alpha=0.12, linewidth=0)
        axes.plot(turn.real, turn.imag, color="0.6", linewidth=0.8)
        axes.scatter(values.real, values.imag, s=size, color=NODE, zorder=3)
        axes.set(
            xlabel=r"$\mathrm{Re}\,\lambda(W)$",
            ylabel=r"$\mathrm{Im}\,\lambda(W)$",
            aspect="equal",
            xlim=(-1.1, 1.1),
            ylim=(-1.1, 1.1),
            xticks=(-1, 0, 1),
            yticks=(-1, 0, 1),
        )
    axes.set_title(rf"second largest $|\lambda|$: {second if second > ROUNDING else 0:.4g}")


def _contraction(axes: Axes, phases: Sequence[Any]) -> None:
    """Draw how much of the largest disagreement is left after each step of the schedule."""
    n = phases[0].n
    product, left = np.eye(n), [1.0]
    for phase in phases:
        product = phase.W @ product
        disagreement = product - product.mean(axis=0)
        left.append(
            float(np.linalg.norm(disagreement - disagreement.mean(axis=1, keepdims=True), 2))
        )
    axes.plot(np.arange(len(left)), left, color=NODE, marker="o", markersize=4)
    axes.set(xlabel="steps", ylim=(-0.05, 1.08))
    axes.locator_params(axis="x", integer=True)
    axes.set_title("largest disagreement left")
    axes.set_box_aspect(0.9)
