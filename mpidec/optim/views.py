"""State dicts of models whose parameters are views of rows: they hold copies, as other tools take
each tensor's whole storage for the tensor's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch

_COPIED: WeakSet[torch.nn.Module] = WeakSet()
_COPIES: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


def copy_views(model: torch.nn.Module) -> None:
    """Let `model.state_dict()` return copies of parameters that are views of larger storage.

    Examples
    --------
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> model.weight.data = torch.zeros(9, 1)[4:5]
    >>> copy_views(model)
    >>> model.state_dict()["weight"].untyped_storage().nbytes()
    4
    """
    if model not in _COPIED:
        _COPIED.add(model)
        # register_state_dict_post_hook is in torch since 2.5
        model._register_state_dict_hook(_copy)


def _copy(model: torch.nn.Module, state_dict: dict[str, Any], prefix: str, _: object) -> None:
    # in a deep copy of the model no parameter is a view
    tied: dict[tuple[object, ...], torch.Tensor] = {}
    for name, value in state_dict.items():
        if not name.startswith(prefix) or type(value) is not torch.Tensor:
            continue
        if value.layout is torch.strided and value.untyped_storage().nbytes() > value.nbytes:
            place = value.data_ptr(), value.shape, value.stride()
            if place not in tied:
                tied[place] = value.clone()
            state_dict[name] = tied[place]
            _COPIES[id(tied[place])] = tied[place]


def refuse_copies(values: Iterable[object]) -> None:
    """Raise if some are copies of a model's parameters, of which changes do not reach the model."""
    if any(_COPIES.get(id(value)) is value for value in values):
        raise ValueError(
            "state_dict() of a model whose optimizer is wrapped holds copies of the parameters, to "
            "which values cannot be broadcast: pass the model"
        )
