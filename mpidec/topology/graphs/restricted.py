"""What is left of a graph without some of its agents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.topology import Topology
from .explicit import from_weights


def restricted(graph: Topology, agents: Sequence[int]) -> Topology:
    """Return a graph between some of its agents, with Metropolis weights; of a directed one, with
    equal weights for all that an agent receives.

    Raises
    ------
    ValueError
        They are not connected: an edge that nobody has given may not exist.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> restricted(ring(4), [0, 1, 3]).W.toarray().round(3).tolist()
    [[0.333, 0.333, 0.333], [0.333, 0.667, 0.0], [0.333, 0.0, 0.667]]
    """
    import scipy.sparse as sparse
    from scipy.sparse.csgraph import connected_components

    edges = (graph.W.tocsr()[[*agents]][:, [*agents]] != 0).tocoo()
    i, j = edges.row[edges.row != edges.col], edges.col[edges.row != edges.col]
    if connected_components(edges, connection="strong")[0] > 1:
        raise ValueError(
            f"the {graph.name} topology is not connected without agents "
            f"{', '.join(str(k) for k in range(graph.n) if k not in agents)}: give its name, or a "
            f"function of n, of which one of {len(agents)} agents can be made"
        )
    if graph.directed:
        arrows = sparse.csr_array((np.ones(len(i)), (i, j)), edges.shape) + sparse.eye_array(
            len(agents)
        )
        return from_weights(sparse.diags_array(1 / arrows.sum(1)) @ arrows)
    degrees = np.bincount(i, minlength=len(agents))
    W = sparse.csr_array((1 / (1 + np.maximum(degrees[i], degrees[j])), (i, j)), edges.shape)
    return from_weights(W + sparse.diags_array(1 - W.sum(1)))
