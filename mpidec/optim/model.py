"""The models that a rank trains, their comparison between ranks, and their parameters in the groups
of an optimizer.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch

from .._words import parameters
from ..comm.mixing import Network
from ..comm.runtime import checksum
from ..nn import Stacked
from .methods import mean

T = TypeVar("T")
Models: TypeAlias = "torch.nn.Module | Sequence[torch.nn.Module]"
SHARDED = "whose ranks hold parts of it: mpidec mixes whole models, so leave the sharding out"


class Model:
    """The models that an optimizer trains on this rank.

    Parameters
    ----------
    models : torch.nn.Module, or a list of them
    optimizer : torch.optim.Optimizer, optional
        Without one all parameters are one group.

    Attributes
    ----------
    parts : list of torch.nn.Module
    stacked : bool
        Whether the parameters of several agents are stacked.
    names : dict
        The name of each parameter, by its `id`.
    """

    def __init__(self, models: Models, optimizer: torch.optim.Optimizer | None = None):
        self.parts = [models] if isinstance(models, torch.nn.Module) else list(models)
        self.stacked = isinstance(self.parts[0], Stacked)
        self._prefixes = [f"{i}." if len(self.parts) > 1 else "" for i in range(len(self.parts))]
        self.names = {
            id(p): prefix + name
            for prefix, part in zip(self._prefixes, self.parts)
            for name, p in part.named_parameters()
        }
        whole: list[dict[str, Any]] = [
            {"params": [p for part in self.parts for p in part.parameters()], "lr": 1.0}
        ]
        self._optimizer, self.optimized = optimizer, optimizer is not None
        self.groups = (lambda: whole) if optimizer is None else (lambda: optimizer.param_groups)
        self._counts = [len(group["params"]) for group in self.groups()]
        self._frozen = [p for p in self.parameters() if not p.requires_grad]

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters in the order of the groups."""
        return [p for group in self.groups() for p in group["params"]]

    @property
    def agents(self) -> int | None:
        """How many agents are stacked; None without stacks."""
        return next((part.m for part in self.parts if isinstance(part, Stacked)), None)

    def refusal(self, net: Network) -> Exception | None:
        """Return what is wrong with the models on this rank."""
        if why := refusal(self.parts, self.parameters()):
            return TypeError(why)
        for part in self.parts:
            held = part.m if isinstance(part, Stacked) else 1
            if held != net.m:
                return ValueError(
                    f"rank {net.rank}: the network has {net.m} agents here, the model is of "
                    f"{held}: one agent per rank, or mpidec.nn.Stacked(model, net.m)"
                )
        for g, group in enumerate(self.groups()):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in self.names:
                    return ValueError(
                        f"parameter {i} of group {g} of the optimizer, of shape "
                        f"{tuple(parameter.shape)}, is not a parameter of the model: pass all "
                        "models that the optimizer trains, as a list"
                    )
        return None

    def check(self, net: Network, equal: bool) -> None:
        """Refuse models of which ranks train other parameters; or, with `equal`, that differ in
        values: parameters in the order of the groups, then all the others, and buffers.
        """
        trained = {id(p): (self.names[id(p)], p) for p in self.parameters()}
        check_trained(net, [(name, p.requires_grad) for name, p in trained.values()])
        if equal:
            others = [
                (name, value)
                for part in self.parts
                for name, value in [*part.named_parameters(), *part.named_buffers()]
                if id(value) not in trained
            ]
            named = [*trained.values(), *others]
            check_equal(net, [(name, value[0] if self.stacked else value) for name, value in named])

    def check_unchanged(self) -> None:
        """Refuse parameters that became trainable after the optimizer was wrapped."""
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise RuntimeError(
                    f"parameter {self.names[id(parameter)]} was frozen when it was wrapped and "
                    "takes no part in the averages: wrap the optimizer again after unfreezing it"
                )
        if [len(group["params"]) for group in self.groups()] != self._counts:
            raise RuntimeError(
                "the optimizer has got or lost parameters since it was wrapped, which take no part "
                "in the averages: close the wrapper and wrap the optimizer again"
            )

    def check_replaced(self) -> None:
        """Refuse a model that has lost parameters which are trained, to others in their place."""
        if lost := self._replaced():
            raise RuntimeError(
                f"parameter {lost[0]} is trained, but is not a parameter of the model any more, as "
                "after load_state_dict(assign=True) or with a new layer in its place: wrap a new "
                "optimizer after such changes"
            )

    def _replaced(self) -> list[str]:
        present = {id(p) for part in self.parts for p in part.parameters()}
        trained = {id(p) for p in self.parameters()}
        return [name for key, name in self.names.items() if key in trained - present]

    def settings(self, rates: bool, constant: bool, modules: bool) -> dict[tuple[str, str], str]:
        """What is the same on all ranks: kind and description, and value.

        Parameters
        ----------
        rates : bool
            Whether the hyper-parameters of the optimizer are among it.
        constant : bool
            Of these with a schedule only the initial rates.
        modules : bool
            Whether the modules are among it.
        """
        found: dict[tuple[str, str], str] = {}
        if self._optimizer is not None:
            made = type(self._optimizer)
            found["optimizer", "the optimizer"] = made.__name__
            # The groups also hold what some optimizers estimate, which differs between workers.
            every = {"lr", "initial_lr", *(parameters(cast(Hashable, made)) or ())} - {"params"}
            for g, group in enumerate(self.groups() if rates else ()):
                known = {"initial_lr"} if constant and "initial_lr" in group else every
                for name in sorted(known & set(group)):
                    found["group", f"{name} of parameter group {g}"] = _text(group[name])
        found["replaced", "the list of replaced parameters"] = (
            ", ".join(self._replaced()) or "empty"
        )
        for prefix, part in zip(self._prefixes, self.parts):
            for name, parameter in part.named_parameters():
                what = f"requires_grad of parameter {prefix}{name}"
                found["frozen", what] = str(parameter.requires_grad)
            for name, module in part.named_modules() if modules else ():
                kind = type(module)
                more = f"({module.extra_repr()})" if kind.__module__.startswith("torch.nn") else ""
                what = f"module {prefix}{name}" if name else f"model {prefix}".strip(" .")
                found["module", what] = kind.__name__ + more
                found["mode", f"training of {what}"] = str(module.training)
        return found

    def take_over(self, net: Network, root: int) -> None:
        """Take the parameters, and the optimizer's state of them, of rank `root`.  Collective."""
        optimizer, packed = self._optimizer, io.BytesIO()
        if net.rank == root:
            state = {} if optimizer is None else optimizer.state_dict()["state"]
            torch.save({"state": state, "rows": [p.data for p in self.parameters()]}, packed)
        packed = io.BytesIO(net.comm.bcast(packed.getvalue(), root))
        if net.rank == root:
            return
        given = torch.load(packed, map_location="cpu", weights_only=True)
        for parameter, value in zip(self.parameters(), given["rows"]):
            parameter.data.copy_(value)
        if optimizer is not None:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": given["state"]})

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of floating-point numbers."""
        return [b for part in self.parts for b in part.buffers() if b.is_floating_point()]

    def average_buffers(self, net: Network, checked: bool) -> None:
        """Replace the buffers by their averages over all agents; with `checked` raise on all
        ranks, and leave them, if an average is nan.
        """
        buffers = [b if self.stacked else b[None] for b in self.buffers()]
        averages = [mean(net, rows) for rows in buffers]
        if checked and any(bool(each.isnan().any()) for each in averages):
            net.agree(self._infinite_buffer(net.lo))
        for rows, average in zip(buffers, averages):
            rows.copy_(average.expand_as(rows))

    def _infinite_buffer(self, first: int) -> ValueError | None:
        """Return an error with the first buffer, of the workers from `first` on, that is not
        finite.
        """
        for prefix, part in zip(self._prefixes, self.parts):
            for name, buffer in part.named_buffers():
                for i, row in enumerate(buffer if self.stacked else [buffer]):
                    wrong = row[~row.isfinite()]
                    if len(wrong):
                        return ValueError(
                            f"worker {first + i}: buffer {prefix}{name} is {float(wrong[0])}: look "
                            "at this worker's data (check=False goes on)"
                        )
        return None


def _text(value: Any) -> str:
    """Return a hyper-parameter as text, without the rounding of schedules."""
    value = value.tolist() if isinstance(value, (torch.Tensor, np.generic)) else value
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_text, value))})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def differences(net: Network, mine: Sequence[T]) -> Iterator[tuple[int, T | None, T | None]]:
    """Where the lists of ranks differ from that of rank 0: rank, its entry and that of rank 0,
    None past the end of a list.
    """
    if len(net.collectives.distinct(np.array(checksum(repr([*mine]).encode())), "settings")) == 1:
        return
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
        (f"{name} {tuple(p.shape)} {str(p.dtype).removeprefix('torch.')}", digest(p))
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


def digest(parameter: torch.Tensor) -> bytes:
    """Return a digest of the values."""
    data = parameter.detach().cpu().contiguous()
    return hashlib.blake2b(data.flatten().view(torch.uint8).numpy(), digest_size=8).digest()


def refusal(models: Iterable[torch.nn.Module], tensors: Iterable[torch.Tensor]) -> str:
    """Return why a model cannot be trained or sent from rank to rank, or "": another wrapper shares
    it between the processes.

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
