"""Equal starts: compare what all workers begin with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

import torch

from ..comm.mixing import Network

T = TypeVar("T")
SHARDED = "whose ranks hold parts of it: mpidec mixes whole models, so leave the sharding out"


def differences(net: Network, mine: Sequence[T]) -> Iterator[tuple[int, T | None, T | None]]:
    """Where the lists of ranks differ from that of rank 0: rank, its entry and that of rank 0,
    None past the end of a list.
    """
    root, *others = net.comm.allgather(list(mine))
    for rank, theirs in enumerate(others, 1):
        for here, first in zip_longest(theirs, root):
            if here != first:
                yield rank, here, first


def check_settings(net: Network, **settings: object) -> None:
    """Raise on every rank unless all ranks have the same settings.

    Raises
    ------
    ValueError
        Naming the first setting that differs.
    """
    values = [str(value) for value in settings.values()]
    for rank, here, first in differences(net, list(zip(settings, values))):
        name, value = here or ("", "")
        raise ValueError(
            f"{name} is {first and first[1]} on rank 0 and {value} on rank {rank}, expected the "
            "same on every rank"
        )


def check_trained(net: Network, named: list[tuple[str, bool]]) -> None:
    """Raise on every rank if a parameter is trained on one rank and frozen on another one.

    Parameters
    ----------
    net : Network
    named : list of (str, bool)
        The parameters of the optimizer, and whether they require gradients.

    Raises
    ------
    ValueError
        Naming the first parameter of which ranks differ.
    """
    for rank, here, first in differences(net, named):
        if here and first and here[0] == first[0]:
            raise ValueError(
                f"parameter {here[0]}: requires_grad is {first[1]} on rank 0 and {here[1]} on rank "
                f"{rank}: freeze "
                "the same parameters on every rank"
            )


def check_equal(net: Network, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise on every rank unless all ranks hold the same parameters.

    Raises
    ------
    ValueError
        Naming the first parameter that differs.
    """
    mine = [
        (f"{name} {tuple(p.shape)} {str(p.dtype).removeprefix('torch.')}", _digest(p))
        for name, p in named
    ]
    for rank, here, first in differences(net, mine):
        if here and first and here[0] == first[0]:
            raise ValueError(
                f"the models of ranks 0 and {rank} differ in the values of parameter {here[0]}: "
                "give every rank the "
                "same seed before the model is built, or call "
                "mpidec.optim.broadcast_parameters(model)"
            )
        raise ValueError(
            f"the models of ranks 0 and {rank} differ: "
            f"{f'parameter {first[0]}' if first else 'no more parameters'} "
            f"on rank 0, {here[0] if here else 'no more parameters'} on rank {rank}; build the "
            "same model on every rank"
        )


def _digest(parameter: torch.Tensor) -> bytes:
    data = parameter.detach().cpu().contiguous()
    return hashlib.blake2b(data.flatten().view(torch.uint8).numpy(), digest_size=8).digest()


def refusal(models: Iterable[torch.nn.Module], tensors: Iterable[torch.Tensor]) -> str:
    """Why a model cannot be trained or sent from rank to rank, or "": another wrapper shares it
    between the processes.

    Examples
    --------
    >>> refusal([torch.nn.Linear(2, 1)], [torch.ones(2)])
    ''
    """
    for model in models:
        for part in model.modules():
            kind = type(part).__name__
            if kind == "DistributedDataParallel":
                return (
                    f"the model is wrapped by {kind}, which averages gradients over all ranks: "
                    "pass model.module"
                )
            if kind == "FullyShardedDataParallel":
                return f"the model is wrapped by {kind}, {SHARDED}"
    if any(base.__name__ == "DTensor" for one in tensors for base in type(one).__mro__):
        return f"a parameter is a DTensor, as after fully_shard (FSDP2), {SHARDED}"
    return ""
