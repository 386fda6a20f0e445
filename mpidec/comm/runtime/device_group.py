"""Tensors on devices between the ranks of a process group, by the messages of its backend (NCCL)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# gloo's messages take tensors of the host only.
_HOST_ONLY = ("", "gloo")


class Works:
    """Messages under way, with the calls of a request of mpi4py."""

    def __init__(self, works: Sequence[Any]):
        self._works, self.done = works, False

    def Test(self) -> bool:
        """Return whether all messages are complete; the current stream then follows them."""
        if not self.done and all(work.is_completed() for work in self._works):
            for work in self._works:
                work.wait()
            self.done = True
        return self.done

    def Wait(self) -> None:
        """Let the current stream follow the messages."""
        for work in self._works:
            work.wait()


class DeviceGroup:
    """Messages between devices, in a process group of their own: the backend matches the messages of
    two ranks by their order alone, and those of the user must not come between.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup
    """

    def __init__(self, process_group: ProcessGroup):
        self._of_user, self._name = process_group, ""

    def backend(self, kind: str) -> str:
        """Return what moves tensors on devices of a kind, such as "nccl"; empty if nothing does."""
        import torch.distributed as dist

        pairs = (pair.split(":") for pair in str(dist.get_backend_config(self._of_user)).split(","))
        found = next((name for device, name in pairs if device == kind), "")
        self._name = "" if found in _HOST_ONLY else found
        return self._name

    @cached_property
    def _group(self) -> Any:
        import torch.distributed as dist

        ranks = dist.get_process_group_ranks(self._of_user)
        return dist.new_group(ranks, backend=self._name, use_local_synchronization=True)

    def start(
        self, arriving: Sequence[tuple[int, Any]], leaving: Sequence[tuple[int, Any]]
    ) -> Works:
        """Begin to receive into tensors and to send others, each from or to a rank; all ranks post
        their messages in the same order, and the first call makes the group.
        """
        import torch.distributed as dist

        group, operations = self._group, []
        for act, parts in ((dist.irecv, arriving), (dist.isend, leaving)):
            operations += [
                dist.P2POp(act, tensor, group=group, group_peer=rank) for rank, tensor in parts
            ]
        return Works(dist.batch_isend_irecv(operations) if operations else [])

    def free(self) -> None:
        """Free the group, if there is one; collective."""
        import torch.distributed as dist

        if "_group" in self.__dict__ and dist.is_initialized():
            dist.destroy_process_group(self.__dict__.pop("_group"))
