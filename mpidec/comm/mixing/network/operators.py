"""Operators of a network: its mixers, and rows where mixing is cheapest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ...arrays import Array, empty_like
from ...runtime import empty, memory, refuse_in_child
from ..mixers.factory import Mixers
from ..mixers.mixer import Mixer
from .reductions import NetworkReductions

if TYPE_CHECKING:
    from ....topology.internals import TopologyLike

StepT = TypeVar("StepT", bound=Callable[..., Any])


class NetworkOperators(NetworkReductions):
    """The mixers of a network, and the memory of the rows that they mix."""

    mixers: Mixers

    def mixer(self, topology: TopologyLike) -> Mixer:
        """Return the operator `W` of a topology or a schedule on this network.

        Parameters
        ----------
        topology : Topology, Schedule, str, networkx graph, matrix or function
            As `mpidec.solve` takes it: also a name, such as "ring", or a function of n.

        Raises
        ------
        ValueError, TypeError
            On every rank, if there is no such topology, if it is not for `n` agents, or if the
            ranks hand in different ones.

        Notes
        -----
        Collective: two small reductions.  With `neighbor` a third one, and a graph communicator for
        each topology of the schedule; one with a period of more than 64 steps, or none, uses
        point-to-point messages.
        """
        return self.mixers.make(self.mixers.agreed("net.mixer", topology, self.n))

    def empty(
        self,
        shape: int | tuple[int, ...] = (),
        dtype: DTypeLike | None = None,
        like: Array | None = None,
    ) -> Any:
        """Rows for the local agents, uninitialized: shape `(m, *shape)`, in memory where mixing is
        cheapest.

        Parameters
        ----------
        shape : int or tuple of int
            Of one agent's row.
        dtype : optional
            Of NumPy; float64 by default, or that of `like`.
        like : array, optional
            The rows are of its kind (NumPy, PyTorch, CuPy), where it lives.
        """
        refuse_in_child("net.empty")
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if like is not None:
            return empty_like(like, (self.m, *shape), dtype, empty)
        return empty((self.m, *shape), np.float64 if dtype is None else dtype)

    def memory(self) -> AbstractContextManager[None]:
        """A context in which NumPy allocates large arrays (16 KB and more) in memory where mixing
        is cheapest.

        Temporaries then lie where neighbours read them in place, and in memory that has been used
        before, so that they cost no page faults.  `solve` runs in this context.  Arrays may outlive
        the context and the network.

        Notes
        -----
        The context belongs to the current thread (or task); leave it in the function that has
        entered it.  Where the package was installed without a compiler it does nothing.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net, net.memory():
        ...     float((np.ones((4, 3000)) - 0.5 * np.ones((4, 3000))).sum())
        6000.0
        """
        return memory()

    @contextmanager
    def keeping_rows(self) -> Iterator[None]:
        """A context in which rows that are handed to `W(X)` are never changed afterwards: no
        mixing waits until they are read.
        """
        node = None if self.node is None else self.node.node
        if node is None:
            yield
            return
        before, node.late = node.late, 1
        try:
            yield
            self.wait_for_readers()
        finally:
            node.late = before

    def keeping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a solver's step that never changes rows that it has handed to `W`; leave with
        `wait_for_readers`.
        """
        node = None if self.node is None else self.node.node
        if node is None:
            return step

        def keeping(s: Any, G: Any, W: Any) -> Any:
            node.late = 1
            try:
                return step(s, G, W)
            finally:
                node.late = 0

        return keeping

    def wait_for_readers(self) -> None:
        """Wait until neighbours have read all rows still referenced by past steps."""
        if self.node is not None:
            with self.engine:
                self.node.node.drain()
