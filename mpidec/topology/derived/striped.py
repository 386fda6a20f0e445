"""Several graphs at once, which divide the columns of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..._words import with_known_options
from ..base.schedule import Periodic, refuse_filter
from ..base.topology import Topology


@dataclass(frozen=True, eq=False, repr=False)
class Striped(Periodic):
    """Several graphs that act in the same step: column c of a row travels over graph c mod K.

    With trees that have different leaves, all agents send about the same amount, and no more than
    over one graph.  Iterating over it gives the graphs.

    Parameters
    ----------
    name : str
        Name of the function that built it, e.g. "double_binary_trees".
    phases : tuple of Topology
        The graphs, doubly (or row) stochastic, with the same n.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpidec.topology import chain, ring
    >>> from mpi4py import MPI
    >>> both = Striped("ring_and_chain", (ring(3), chain(3)))
    >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
    ...     net.mixer(both)(np.array([[3., 3.], [0., 0.], [0., 0.]])).round(9).tolist()
    [[1.0, 2.0], [1.0, 1.0], [1.0, 0.0]]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_filter(self.name, self)
        # The weight of push-sum would be another one in each graph.
        if self.kind in (
            "column",
            "pair",
        ):
            given = "a pair of matrices" if self.kind == "pair" else "column stochastic"
            raise ValueError(
                f"{self.name}: a graph is {given}, expected doubly stochastic ones: use "
                'weights="metropolis"'
            )

    divides_columns = True

    def __iter__(self) -> Iterator[Topology]:
        return iter(self.phases)

    def __len__(self) -> int:
        return len(self.phases)

    def __getitem__(self, stripe: int) -> Topology:
        return self.phases[stripe]

    @property
    def is_tree(self) -> bool:
        """Whether each graph is undirected and connected with n - 1 edges."""
        return all(graph.is_tree for graph in self.phases)

    def spectral_gap(self) -> float:
        """Return the smallest spectral gap of the graphs."""
        return min(graph.spectral_gap() for graph in self.phases)


@with_known_options
def striped(topologies: Iterable[Topology]) -> Striped:
    """Several graphs at once: column c of a row travels over graph c mod K.

    Parameters
    ----------
    topologies : iterable of Topology
        K doubly (or row) stochastic graphs with the same n.

    Raises
    ------
    TypeError
        An element is a schedule, or no topology.
    ValueError
        The list is empty, the numbers of agents differ, or a graph is column stochastic or a pair.

    Examples
    --------
    >>> from mpidec.topology import chain, star
    >>> striped([chain(5), star(5)]).is_tree
    True
    """
    graphs = tuple(topologies)
    for stripe, graph in enumerate(graphs):
        if not isinstance(graph, Topology):
            raise TypeError(
                f"striped: element {stripe} is {graph!r} ({type(graph).__name__}), expected a "
                "constant topology such as "
                "topology.ring(16)"
            )
    if not graphs:
        raise ValueError("striped: got no topologies, expected at least one")
    return Striped("striped", graphs)
