"""Stacked models: m workers of one model in one process, evaluated and differentiated in one
batched pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

# Modules that vmap does not batch: recurrent layers and attention, whose kernels have no batching
# rule.
UNBATCHED = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)
# Parameters of a model up to which one batched pass was faster than a loop, measured on a CPU (see
# `loops`).
BATCHED = 80_000


def loops(model: nn.Module) -> bool:
    """Return whether a loop over the workers is chosen, rather than one batched pass.

    On a CPU a batched pass saves the overhead of many small calls, but batched products and the
    grouped convolutions that batched ones become are slower than plain ones. With 16 workers and
    batches of 32, it took 0.35 of the time of a loop over plain models and optimizers for an mlp of
    10,000 parameters, 0.6 for a cnn on images of 8 x 8 pixels, 1.6 for one on 32 x 32 pixels
    (137,000 parameters), and 1.2 for an mlp of 170,000.

    Examples
    --------
    >>> loops(nn.Linear(2, 1)), loops(nn.Linear(1000, 100)), loops(nn.LSTM(2, 1))
    (False, True, True)
    """
    parameters = list(model.parameters())
    large = (
        sum(parameter.numel() for parameter in parameters if parameter.device.type == "cpu")
        > BATCHED
    )
    return large or any(isinstance(module, UNBATCHED) for module in model.modules())


def evaluate(model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, loop: bool) -> Tensor:
    """Return the outputs of m copies of `model`, (m, B, ...) -> (m, B, ...), by vmap or by a loop
    over the copies.

    Parameters
    ----------
    model : Module
        The function; its own parameters and buffers are not used.
    tensors : dict
        Stacked parameters and buffers by name, each with a leading dimension m. Buffers are updated
        in place.
    x : (m, B, ...) tensor
        Inputs of each copy.
    loop : bool

    Examples
    --------
    >>> model = nn.Linear(1, 1, bias=False)
    >>> evaluate(
    ...     model, {"weight": torch.tensor([[[1.0]], [[2.0]]])}, torch.ones(2, 1, 1), loop=False
    ... ).flatten().tolist()
    [1.0, 2.0]
    """
    if not loop and len(x) > 1:
        batched = vmap(
            lambda mine, inputs: functional_call(model, mine, (inputs,)), randomness="different"
        )
        return batched(dict(tensors), x)
    # Its backward is one stack, that of t[i] is m of them.
    rows = {name: tensor.unbind(0) for name, tensor in tensors.items()}
    return torch.stack(
        [
            functional_call(model, {name: row[i] for name, row in rows.items()}, (inputs,))
            for i, inputs in enumerate(x)
        ]
    )


class Stacked(nn.Module):
    """m workers of one model, whose parameters and buffers have a leading dimension m.

    ``stacked(x)`` maps the workers' batches (m, B, ...) to their outputs (m, B, ...). Any
    elementwise optimizer of torch, over ``stacked.parameters()``, then trains the m workers at
    once, each as if it were alone.

    Parameters
    ----------
    model : Module
        The start of every worker; it is copied. Each call takes one tensor and returns one.
    m : int
        Number of workers in this process.
    loop : bool, optional
        Whether the workers are evaluated one after the other, rather than batched by
        `torch.func.vmap`; by default True for models of more than 80,000 parameters on a CPU, and
        for those with recurrent layers or attention.

    Raises
    ------
    ValueError
        If `m` is less than 1.

    Notes
    -----
    Names are those of the model: ``0.weight`` of shape (m, ...). Tied parameters are one stacked
    parameter, frozen ones are frozen. Batch norm normalises by each worker's own batch, and updates
    its own running statistics; dropout draws for each worker.

    The data of the parameters may be replaced by views of a larger array, such as ``X[:,
    a:b].view(m, *shape)`` of rows (m, d).

    Examples
    --------
    >>> stacked = Stacked(nn.Sequential(nn.Linear(2, 1)), 4)
    >>> [(name, tuple(p.shape)) for name, p in stacked.named_parameters()]
    [('0.weight', (4, 1, 2)), ('0.bias', (4, 1))]
    >>> stacked(torch.zeros(4, 3, 2)).shape
    torch.Size([4, 3, 1])
    """

    def __init__(self, model: nn.Module, m: int, loop: bool | None = None) -> None:
        if m < 1:
            raise ValueError(f"m = {m}, expected at least 1 worker")
        super().__init__()
        self.m = m
        self.loop = loops(model) if loop is None else loop
        # No submodule: its parameters are not those of the workers.
        self.__dict__["_model"] = copy.deepcopy(model)
        _mirror(model, self, m, {})

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all workers, (m, B, ...) -> (m, B, ...)."""
        if x.shape[:1] != (self.m,):
            raise ValueError(
                f"the input has shape {tuple(x.shape)}, expected ({self.m}, B, ...): one batch for "
                "each of the "
                f"{self.m} workers"
            )
        return evaluate(
            self._model,
            {**dict(self.named_parameters()), **dict(self.named_buffers())},
            x,
            self.loop,
        )

    def worker(self, i: int) -> nn.Module:
        """Return an ordinary model with a copy of the weights and buffers of worker `i`."""
        if not 0 <= i < self.m:
            raise ValueError(f"worker {i}, expected 0 .. {self.m - 1}")
        model: nn.Module = copy.deepcopy(self._model)
        mine = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(mine[name][i])
                tensor.requires_grad_(mine[name].requires_grad)
        return model

    def train(self, mode: bool = True) -> Stacked:
        """Switch all workers to training (or evaluation), as `torch.nn.Module.train` does."""
        self._model.train(mode)
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Stacked:
        """Move or convert the model, too, which may hold tensors that are neither parameters nor
        buffers.
        """
        self._model._apply(fn, *args, **kwargs)
        super()._apply(fn, *args, **kwargs)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Stacked:
        new = Stacked.__new__(Stacked)
        memo[id(self)] = new
        new.__dict__.update(
            {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
        )
        return new


def _mirror(model: nn.Module, into: nn.Module, m: int, done: dict[int, Any]) -> None:
    """Give `into` the submodules of `model`, with stacked parameters and buffers; what is shared
    in the model is shared again.
    """
    # By identity: parameters and modules that are shared in the model (tied weights) are shared
    # again.
    into.training = model.training
    for name, parameter in model._parameters.items():
        if parameter is not None and id(parameter) not in done:
            done[id(parameter)] = nn.Parameter(
                _copies(parameter, m), requires_grad=parameter.requires_grad
            )
        into._parameters[name] = None if parameter is None else done[id(parameter)]
    for name, buffer in model._buffers.items():
        if buffer is not None and id(buffer) not in done:
            done[id(buffer)] = _copies(buffer, m)
        into._buffers[name] = None if buffer is None else done[id(buffer)]
    into._non_persistent_buffers_set = set(model._non_persistent_buffers_set)
    for name, child in model._modules.items():
        if child is not None and id(child) not in done:
            done[id(child)] = nn.Module()
            _mirror(child, done[id(child)], m, done)
        into._modules[name] = None if child is None else done[id(child)]


def _copies(tensor: Tensor, m: int) -> Tensor:
    return tensor.detach().expand(m, *tensor.shape).clone(memory_format=torch.contiguous_format)
