"""What the integrations share: objects of all ranks, and the model that is evaluated."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
import torch

from ..comm.mixing import Network
from ..optim import Decentralized
from ..optim.internals import mean

T = TypeVar("T")


def refuse_drop(options: Mapping[str, Any]) -> None:
    """Refuse an option of `Decentralized` that needs a loop which repeats its own calls.

    Raises
    ------
    ValueError
    """
    if options.get("on_failure", "end") != "end":
        raise ValueError(
            'on_failure="drop": the trainer\'s own calls of all workers cannot be repeated without '
            "those that die: use a loop of your own, or mpidec train --survive, or continue from a "
            "checkpoint, mpidec restart -- mpirun ..."
        )


def gathered(net: Network, thing: T, what: str) -> list[T]:
    """Return the objects of all ranks, in the order of the ranks.  Collective."""
    net.matching.agree(what, "")
    data = np.frombuffer(pickle.dumps(thing), np.uint8)
    lengths = net.collectives.gather_all(np.array(len(data)), what)
    rows = net.collectives.gather_all(np.resize(data, int(lengths.max())), what)
    return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths)]


def broadcast(net: Network, thing: T, root: int, what: str) -> T:
    """Return the object of rank `root`.  Collective."""
    net.matching.agree(what, f"root {root}")
    return net.collectives.broadcast(thing, root, what)


def average_model(
    model: torch.nn.Module, optimizers: Sequence[Decentralized], net: Network
) -> ExitStack:
    """Let the model hold the average over all workers, until the context that is returned ends.
    Collective.

    Parameters
    ----------
    model : torch.nn.Module
    optimizers : list of Decentralized
        Those that train it now; if there are none, its parameters and buffers are averaged as they
        are.
    net : Network
    """
    # trainers evaluate in inference mode, whose tensors no parameter can hold
    with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
        for optimizer in optimizers:
            stack.enter_context(optimizer.consensus())
        for value in [] if optimizers else [*model.parameters(), *model.buffers()]:
            if value.is_floating_point():
                stack.callback(value.data.copy_, value.detach().clone())
                value.data.copy_(mean(net, value.detach().reshape(1, -1)).view_as(value))
        return stack.pop_all()
