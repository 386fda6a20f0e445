"""Equal initial states: broadcast parameters and optimizer states to all workers."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

import torch

from ..comm.mixing import Network
from .decentralized import Decentralized
from .model import refusal
from .views import refuse_copies


def broadcast_parameters(
    model: torch.nn.Module | Iterable[object], net: Network | None = None, root: int = 0
) -> None:
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
    values = _values(model)
    refuse_copies(values)
    if why := refusal([model] if isinstance(model, torch.nn.Module) else [], values):
        raise TypeError(why)
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
            f"rank {root} has {len(arrays)} tensors of other shapes than the {len(tensors)} here: "
            "build the same model on every rank"
        )
    for tensor, array in zip(tensors, arrays):
        tensor.copy_(array)


def _values(model: object) -> list[object]:
    """Return the parameters and buffers of a module; of a state dict, or an iterable, what it
    holds.
    """
    if isinstance(model, torch.nn.Module):
        return [*model.parameters(), *model.buffers()]
    if not isinstance(model, Iterable):
        raise TypeError(
            f"model is a {type(model).__name__}, expected a torch.nn.Module, a state dict or "
            "tensors"
        )
    listed = model.values() if isinstance(model, Mapping) else model
    return [value[1] if isinstance(value, (tuple, list)) else value for value in listed]


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
        Any; its state may be missing on the other ranks.  Of a wrapped one the state of the
        optimizer within, and the number of steps where the algorithm keeps nothing of each worker's
        own.
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
    averager = optimizer.averager if isinstance(optimizer, Decentralized) else None
    inner = optimizer.optimizer if isinstance(optimizer, Decentralized) else optimizer
    if why := refusal([], (p for group in inner.param_groups for p in group["params"])):
        raise TypeError(why)
    with Network() if net is None else nullcontext(net) as net:
        net.matching.agree("broadcast_optimizer_state", f"root {_root(root, net)}")
        packed = io.BytesIO()
        if net.rank == root:
            steps = 0 if averager is None else averager.steps
            torch.save({"state": inner.state_dict(), "steps": steps}, packed)
        packed = io.BytesIO(net.comm.bcast(packed.getvalue(), root))
    given = torch.load(packed, map_location="cpu", weights_only=True)
    inner.load_state_dict(given["state"])
    if averager is not None:
        averager.follow(given["steps"])
