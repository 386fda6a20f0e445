"""Nested states as arrays of numbers and a text: for HDF5, and without pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def flat(state: object, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Arrays by name that hold `state`: dicts, lists and tuples of tensors, arrays, numbers,
    strings and None.

    Parameters
    ----------
    state : nested
    prefix : str
        Of the names; ``<prefix>structure`` holds the nesting, as JSON in UTF-8.

    Raises
    ------
    TypeError
        For a value of another kind.

    Examples
    --------
    >>> state = {"step": 3, "rows": [torch.ones(2), (None, 0.1)], 5: "x"}
    >>> sorted(flat(state))
    ['rows.0', 'structure']
    >>> nested(flat(state))
    {'step': 3, 'rows': [tensor([1., 1.]), (None, 0.1)], 5: 'x'}
    """
    arrays: dict[str, NDArray[Any]] = {}
    text = json.dumps(_structure(state, "", arrays))
    return {
        f"{prefix}{name}": array
        for name, array in {
            **arrays,
            "structure": np.frombuffer(text.encode(), dtype=np.uint8),
        }.items()
    }


def nested(arrays: Arrays, prefix: str = "") -> Any:
    """Return the state that `flat` has turned into `arrays`."""
    return _restored(
        json.loads(bytes(np.asarray(arrays[f"{prefix}structure"])).decode()), arrays, prefix
    )


def _structure(value: object, place: str, arrays: dict[str, NDArray[Any]]) -> object:
    """Return the nesting of a state for JSON; its arrays are added to `arrays`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        name = place or "value"
        while name in arrays:
            name += "_"
        if not isinstance(value, torch.Tensor):
            arrays[name] = np.array(value)
            return {"array": name, "shape": list(np.shape(value))}
        host = value.detach().cpu().contiguous()
        kind = str(host.dtype).removeprefix("torch.")
        arrays[name] = (host.view(torch.int16) if kind == "bfloat16" else host).numpy().copy()
        return {"tensor": name, "dtype": kind, "shape": list(value.shape)}
    if isinstance(value, Mapping):
        return {
            "dict": [
                [key, _structure(each, f"{place}.{key}".strip(".").replace("/", "|"), arrays)]
                for key, each in value.items()
            ]
        }
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {
            kind: [
                _structure(each, f"{place}.{i}".strip("."), arrays) for i, each in enumerate(value)
            ]
        }
    raise TypeError(
        f"{place or 'the state'} is of type {type(value).__name__}, expected tensors, arrays, "
        "numbers, strings, or "
        "dicts and lists of them"
    )


def _restored(structure: object, arrays: Arrays, prefix: str) -> Any:
    if not isinstance(structure, dict):
        return structure
    if "tensor" in structure:
        tensor = torch.from_numpy(
            np.array(arrays[prefix + structure["tensor"]]).reshape(structure["shape"])
        )
        return tensor.view(torch.bfloat16) if structure["dtype"] == "bfloat16" else tensor
    if "array" in structure:
        return np.array(arrays[prefix + structure["array"]]).reshape(structure["shape"])
    if "dict" in structure:
        return {key: _restored(each, arrays, prefix) for key, each in structure["dict"]}
    ((kind, parts),) = structure.items()
    return (tuple if kind == "tuple" else list)(_restored(each, arrays, prefix) for each in parts)
