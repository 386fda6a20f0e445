"""Equal starts: compare or broadcast what all workers begin with."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..comm.mixing import Network


def check_settings(net: Network, **settings: Any) -> None:
    """Raise on every rank unless all ranks have the same settings.

    Raises
    ------
    ValueError
        Naming the first setting that differs.
    """
    theirs = net.comm.allgather({name: str(value) for name, value in settings.items()})
    for rank, listed in enumerate(theirs):
        for name, value in theirs[0].items():
            if listed[name] != value:
                raise ValueError(
                    f"{name} is {value} on rank 0 and {listed[name]} on rank {rank}, expected the same on every rank"
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
    theirs = net.comm.allgather(named)
    for rank, listed in enumerate(theirs):
        for (name, requires), (name0, requires0) in zip(listed, theirs[0]):
            if name == name0 and requires != requires0:
                raise ValueError(
                    f"parameter {name}: requires_grad is {requires0} on rank 0 and {requires} on rank {rank}: freeze "
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
        (name, f"{tuple(p.shape)} {str(p.dtype).removeprefix('torch.')}", _digest(p))
        for name, p in named
    ]
    theirs = net.comm.allgather(mine)
    root = theirs[0]
    for rank, listed in enumerate(theirs):
        for (name, kind, digest), (name0, kind0, digest0) in zip(listed, root):
            if (name, kind) != (name0, kind0):
                raise ValueError(
                    f"the models of ranks 0 and {rank} differ: parameter {name0} {kind0} on rank 0, {name} {kind} "
                    f"on rank {rank}; build the same model on every rank"
                )
            if digest != digest0:
                raise ValueError(
                    f"the models of ranks 0 and {rank} differ in the values of parameter {name} {kind}: give every "
                    "rank the same seed before the model is built, or call "
                    "mpidec.optim.broadcast_parameters(model)"
                )
        if len(listed) != len(root):
            extra = (listed if len(listed) > len(root) else root)[min(len(listed), len(root))]
            raise ValueError(
                f"the models of ranks 0 and {rank} differ: {len(root)} and {len(listed)} trainable parameters, the "
                f"first that one of them lacks is {extra[0]} {extra[1]}; build the same model on every rank"
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
    if isinstance(model, torch.nn.Module):
        values: list[Any] = [*model.parameters(), *model.buffers()]
    else:
        values = list(model.values()) if isinstance(model, Mapping) else list(model)
        values = [value[1] if isinstance(value, (tuple, list)) else value for value in values]
    tensors = [value.detach() for value in values if isinstance(value, torch.Tensor)]
    with _network(net) as net:
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
    with _network(net) as net:
        packed = io.BytesIO()
        if net.rank == root:
            torch.save(optimizer.state_dict(), packed)
        packed = io.BytesIO(net.comm.bcast(packed.getvalue(), root))
    optimizer.load_state_dict(torch.load(packed, map_location="cpu", weights_only=True))


class _network:
    """A context: the given network, or one that ends with the context."""

    def __init__(self, net: Network | None):
        self._net, self._own = net, net is None

    def __enter__(self) -> Network:
        self._net = Network() if self._net is None else self._net
        return self._net

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._own and self._net is not None and kind is None:
            self._net.close()
