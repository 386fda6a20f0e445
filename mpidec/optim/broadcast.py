"""Equal starts: compare or broadcast what all workers begin with."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import zip_longest
from typing import Any, TypeVar

import torch

from ..comm.mixing import Network

T = TypeVar("T")


def differences(net: Network, mine: Sequence[T]) -> Iterator[tuple[int, T | None, T | None]]:
    """Where the lists of ranks differ from that of rank 0: rank, its entry and that of rank 0, None past the end of a list."""
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
            f"{name} is {first and first[1]} on rank 0 and {value} on rank {rank}, expected the same on every rank"
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
                f"parameter {here[0]}: requires_grad is {first[1]} on rank 0 and {here[1]} on rank {rank}: freeze "
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
                f"the models of ranks 0 and {rank} differ in the values of parameter {here[0]}: give every rank the "
                "same seed before the model is built, or call mpidec.optim.broadcast_parameters(model)"
            )
        raise ValueError(
            f"the models of ranks 0 and {rank} differ: {f'parameter {first[0]}' if first else 'no more parameters'} "
            f"on rank 0, {here[0] if here else 'no more parameters'} on rank {rank}; build the same model on every rank"
        )


def _digest(parameter: torch.Tensor) -> bytes:
    data = parameter.detach().cpu().contiguous()
    return hashlib.blake2b(data.flatten().view(torch.uint8).numpy(), digest_size=8).digest()


def broadcast_parameters(model: Any, net: Network | None = None, root: int = 0) -> None:
    """Copy the parameters and buffers of rank `root` to all ranks, in place.

    Parameters
    ----------
    model : torch.nn.Module, state dict, or iterable of tensors or of (name, tensor) pairs
    net : Network, optional
        A network over `MPI.COMM_WORLD` by default, closed afterwards.
    root : int

    Notes
    -----
    Collective.  The tensors may lie on any device.

    Examples
    --------
    >>> import torch
    >>> broadcast_parameters(torch.nn.Linear(3, 1))
    """
    if not isinstance(model, Iterable) and not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}, expected a torch.nn.Module, a state dict or tensors"
        )
    if isinstance(model, torch.nn.Module):
        values: list[Any] = [*model.parameters(), *model.buffers()]
    else:
        values = list(model.values()) if isinstance(model, Mapping) else list(model)
        values = [value[1] if isinstance(value, (tuple, list)) else value for value in values]
    tensors = [value.detach() for value in values if isinstance(value, torch.Tensor)]
    with Network() if net is None else nullcontext(net) as net:
        numbers = sum(tensor.numel() for tensor in tensors)
        net.matching.agree(
            "broadcast_parameters",
            f"root {_root(root, net)}, {len(tensors)} tensors of {numbers} numbers",
        )
        arrays = net.comm.bcast(
            [tensor.cpu() for tensor in tensors] if net.rank == root else None, root
        )
    if [tuple(array.shape) for array in arrays] != [tuple(tensor.shape) for tensor in tensors]:
        raise ValueError(
            f"rank {root} has {len(arrays)} tensors of other shapes than the {len(tensors)} here: build the same "
            "model on every rank"
        )
    for tensor, array in zip(tensors, arrays):
        tensor.copy_(array)


def _root(root: int, net: Network) -> int:
    if root not in range(net.size):
        raise ValueError(f"root is {root!r}, expected a rank from 0 to {net.size - 1}")
    return root


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, net: Network | None = None, root: int = 0
) -> None:
    """Copy the state and the hyper-parameters of the optimizer of rank `root` to all ranks.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Any; its state may be missing on the other ranks.
    net : Network, optional
        A network over `MPI.COMM_WORLD` by default, closed afterwards.
    root : int

    Notes
    -----
    Collective.

    Examples
    --------
    >>> import torch
    >>> broadcast_optimizer_state(torch.optim.Adam(torch.nn.Linear(3, 1).parameters()))
    """
    with Network() if net is None else nullcontext(net) as net:
        net.matching.agree("broadcast_optimizer_state", f"root {_root(root, net)}")
        packed = io.BytesIO()
        if net.rank == root:
            torch.save(optimizer.state_dict(), packed)
        packed = io.BytesIO(net.comm.bcast(packed.getvalue(), root))
    optimizer.load_state_dict(torch.load(packed, map_location="cpu", weights_only=True))
