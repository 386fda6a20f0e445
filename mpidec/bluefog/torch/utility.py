"""Equal parameters and equal optimizers on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch

from ... import optim
from ..session import current
from .mpi_ops import allreduce_

Named: TypeAlias = (
    Mapping[str, torch.Tensor] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
)


def broadcast_parameters(params: Named, root_rank: int) -> None:
    """Copy a state dict, tensors or (name, tensor) pairs of rank `root_rank` to all ranks, in
    place.  Collective.
    """
    optim.broadcast_parameters(params, current("broadcast_parameters").net, root_rank)


def allreduce_parameters(params: Named) -> None:
    """Average a state dict, tensors or (name, tensor) pairs over all ranks, in place.  Collective.

    Whole numbers, such as the counts of batch norm, stay as they are.
    """
    values: Iterable[torch.Tensor | tuple[str, torch.Tensor]] = (
        params.values() if isinstance(params, Mapping) else params
    )
    for value in values:
        tensor = value[1] if isinstance(value, tuple) else value
        if tensor.is_floating_point():
            allreduce_(tensor.detach())


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Copy the state and the hyper-parameters of the optimizer of rank `root_rank` to all
    ranks.  Collective.
    """
    optim.broadcast_optimizer_state(optimizer, current("broadcast_optimizer_state").net, root_rank)
