"""Whether the rows of a window travel by MPI's one-sided calls, and the memory for that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...runtime import Collectives, Context, over_mpi, ranks_of_node
from . import offload
from .mpi_memory import Ended, MPIMemory, refusal
from .one_sided import front, mailbox


class OneSidedPlan:
    """Whether rows of a window travel by one-sided calls, and what that takes of its memory.

    Parameters
    ----------
    context : Context
    together : Collectives
    transport : {"auto", "shared", "messages", "rma"}
    ended : Ended or None
        None: there are none.
    what : str
        The call, for messages.

    Attributes
    ----------
    front : int
        Bytes at the beginning of the block of each rank.
    unaided : bool
        Whether MPI performs the calls without the other rank: all are on one node.

    Raises
    ------
    RuntimeError
        On every rank: "rma", and the MPI library has a bug that is in its way.
    """

    def __init__(
        self,
        context: Context,
        together: Collectives,
        transport: str,
        ended: Ended | None,
        what: str,
    ):
        self._comm, self._together, self._what = context.comm, together, what
        self._ended = ended
        several = ended is not None and context.size > 1
        if several and transport == "rma":
            why = refusal()
            together.agree(RuntimeError(f"{what}: {why}") if why else None, what)
        self.used = several and (
            transport == "rma" or (transport == "auto" and self._is_best(context))
        )
        self.front = front(context.size) if self.used else 0
        self.unaided = self.used and self._on_one_node(None)
        self._memory: MPIMemory | None = None

    def _is_best(self, context: Context) -> bool:
        """Return whether there are several nodes, whose adapters perform one-sided calls; the same
        on all ranks.
        """
        if context.memory is not None and context.memory.single_node:
            return False
        possible = np.array([offload.interconnect().offloaded and not refusal()], np.int8)
        return bool(self._together.minimum(possible, self._what)[0]) and not self._on_one_node(
            context.ranks_per_node
        )

    def _on_one_node(self, ranks_per_node: int | None) -> bool:
        """Return whether all ranks are; collective."""
        node = ranks_of_node(self._comm, ranks_per_node)
        one = np.array([node.size == self._comm.size], np.int8)
        node.Free()
        return bool(self._together.minimum(one, self._what)[0])

    def mailbox(self, count: int, dtype: np.dtype) -> int:
        """Bytes of each mailbox."""
        return mailbox(count, dtype) if self.used else 0

    @property
    def allocate(self) -> Callable[[int], np.ndarray] | None:
        """What makes the blocks, if MPI does."""
        return self._allocate if self.used else None

    def _allocate(self, size: int) -> np.ndarray:
        self._memory = MPIMemory(over_mpi(self._comm, self._what), self._together, size)
        return self._memory.block

    def memory(self) -> MPIMemory | None:
        """Return the blocks of all ranks, if there are one-sided calls."""
        if self._memory is not None:
            error = None
            if not self._memory.unified:
                error = RuntimeError(
                    f"{self._what}: the window's memory model is MPI_WIN_SEPARATE, and these calls "
                    "need MPI_WIN_UNIFIED: "
                    "use transport='messages'"
                )
            self._together.agree(error, self._what)
        return self._memory

    def end(self) -> None:
        """Let the blocks be freed once no rank has an array in them; all ranks have reached this
        call.
        """
        if self._memory is not None and self._ended is not None:
            self._memory.end()
            self._ended.add(self._memory)
            self._memory = None
