"""Objects and arguments in one line of text, the same in every process."""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Mapping
from dataclasses import is_dataclass

import numpy as np

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Described:
    """Base class of objects whose `repr` is one line: class, sizes, and the options that are not the defaults."""

    def _extent(self) -> Mapping[str, object]:
        """The sizes, by name."""
        return {}

    def __repr__(self) -> str:
        return describe(self, self._extent())


def describe(thing: object, sizes: Mapping[str, object] | None = None) -> str:
    """The class of an object, `sizes` (by default `m` and `d`), and arguments of its constructor that are not the defaults.

    An argument is read from the attribute of its name (or with an underscore before it); data and `x_star` are left out.

    Examples
    --------
    >>> class Own:
    ...     def __init__(self, A, sigma, scale=1.0):
    ...         self.d, self.A, self.sigma, self._scale = 3, A, sigma, scale
    >>> describe(Own(np.ones((2, 2)), 0.5)), describe(Own(np.ones((2, 2)), 0.5, scale=2.0))
    ('Own(d=3, sigma=0.5)', 'Own(d=3, sigma=0.5, scale=2.0)')
    """
    if sizes is None:
        sizes = {name: getattr(thing, name) for name in ("m", "d") if hasattr(thing, name)}
    held: dict[str, object] = getattr(thing, "__dict__", {})
    parts = {name: str(size) for name, size in sizes.items()}
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        key = name if name in held else f"_{name}"
        several = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if several or key not in held or name in {*parts, "x_star"} or _is_data(held[key]):
            continue
        text = word(_number(held[key]))
        if parameter.default is parameter.empty or text != word(parameter.default):
            parts[name] = text
    return f"{type(thing).__name__}({', '.join(f'{name}={text}' for name, text in parts.items())})"


def word(thing: object) -> str:
    """An argument in words: an array by its shape and fingerprint, a function by its name, other objects without addresses.

    Examples
    --------
    >>> word(0.5), word({1: len}), word(np.zeros(3, bool)), word(object())
    ('0.5', '{1: len}', 'array (3,) #ff41d912', 'object()')
    """
    if isinstance(thing, np.ndarray):
        return f"array {thing.shape} #{zlib.crc32(thing.tobytes()):08x}"
    if isinstance(thing, Mapping):
        return "{" + ", ".join(f"{key}: {word(value)}" for key, value in thing.items()) + "}"
    if callable(thing) and not is_dataclass(thing):
        return str(getattr(thing, "__qualname__", type(thing).__name__))
    if type(thing).__repr__ is object.__repr__:
        return describe(thing)
    return ADDRESS.sub("", " ".join(repr(thing).split()))


def _number(value: object) -> object:
    """The number of which an array consists, if there is one."""
    if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
        number: object = value.flat[0].item()
        return number
    return value


def _is_data(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(part, np.ndarray) for part in value)
    return isinstance(value, np.ndarray) and value.ndim > 1
