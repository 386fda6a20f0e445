"""Objects and arguments in one line of text, the same in every process."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from .plugins import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound="Described")
STEP_SIZES = ("step_size", "stepsize", "lr", "learning_rate", "alpha", "eta")
ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)


class _Signature:
    """That of `__init__`; without it `inspect` finds the one of `__new__` in some versions of
    Python.
    """

    def __get__(self, one: object, kind: type) -> inspect.Signature:
        if one is not None:
            raise AttributeError("__signature__")  # of objects that are called
        init: Callable[..., None] = kind.__init__  # type: ignore[misc]
        if init is object.__init__:
            return inspect.Signature()
        full = inspect.signature(init)
        return full.replace(parameters=list(full.parameters.values())[1:])


class Described:
    """Base class of objects whose `repr` is one line: class, sizes, and the options that are not
    the defaults.

    Options that the constructor does not have are refused with the names of those that it has.
    """

    __signature__ = _Signature()

    def __new__(cls: type[D], *args: object, **options: object) -> D:
        if options:
            check_options(cls.__name__, options, parameters(cls))  # type: ignore[arg-type]
        elif args and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return super().__new__(cls)

    def _extent(self) -> Mapping[str, object]:
        """Return the sizes, by name."""
        return {}

    def __repr__(self) -> str:
        return describe(self, self._extent())


class Drawing:
    """Base class of objects that may draw random numbers.

    Attributes
    ----------
    draws : bool
        Whether a seed changes what it does: by default, whether it has a parameter `seed`.

    Examples
    --------
    >>> class Rounded(Drawing):
    ...     def __init__(self, bits, seed=0): ...
    >>> Rounded(8).draws
    True
    """

    @property
    def draws(self) -> bool:
        return "seed" in (parameters(type(self)) or ())  # type: ignore[arg-type]


def command_of_extras(extras: str) -> str:
    """Return the command that installs what this package needs for its `extras`, "plot" or
    "torch,data": in a checkout, from there; else pip finds that mpidec is there, and adds the rest.
    """
    here = Path(__file__).resolve().parents[1]
    if not (here / "pyproject.toml").exists():
        return f"pip install 'mpidec[{extras}]'"
    return f"pip install -e '{'.' if here == Path.cwd() else here}[{extras}]'"


def describe(thing: object, sizes: Mapping[str, object] | None = None) -> str:
    """Return the class of an object, `sizes` (by default `m` and `d`), and arguments of its
    constructor that are not the defaults.

    An argument is read from the attribute of its name (or with an underscore before it); data and
    `x_star` are left out.

    Examples
    --------
    >>> class Own:
    ...     def __init__(self, A, sigma, scale=1.0):
    ...         self.d, self.A, self.sigma, self._scale = 3, A, sigma, scale
    >>> describe(Own(np.ones((2, 2)), 0.5)), describe(Own(np.ones((2, 2)), 0.5, scale=2.0))
    ('Own(d=3, sigma=0.5)', 'Own(d=3, sigma=0.5, scale=2.0)')
    """
    if sizes is None:
        found = {name: getattr(thing, name, None) for name in ("m", "d")}
        sizes = {name: size for name, size in found.items() if size is not None}
    known = held(thing)
    parts = {name: str(size) for name, size in sizes.items()}
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        key = name if name in known else f"_{name}"
        several = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if several or key not in known or name in {*parts, "x_star"} or _is_data(known[key]):
            continue
        text = word(number(known[key]))
        if parameter.default is parameter.empty or text != word(parameter.default):
            parts[name] = text
    return f"{type(thing).__name__}({', '.join(f'{name}={text}' for name, text in parts.items())})"


def held(thing: object) -> Mapping[str, object]:
    """Return the attributes of an object itself, by name; none of one that has slots."""
    return getattr(thing, "__dict__", {})


def settings(thing: object) -> dict[str, object]:
    """Return the fields of a dataclass with their values, by name; empty for any other object.

    Examples
    --------
    >>> import mpidec
    >>> settings(mpidec.solvers.Diffusion(0.1)), settings(0.1)
    ({'step_size': 0.1, 'order': 'atc'}, {})
    """
    known = fields(thing) if is_dataclass(thing) else ()
    return {field.name: getattr(thing, field.name) for field in known}


def warn(text: str) -> None:
    """Give a RuntimeWarning that points to the line of the program that has called the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("mpidec."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def summary(thing: object) -> str:
    """Return the first sentence of the docstring of an object, in one line without its full stop.

    Examples
    --------
    >>> summary(summary)
    'Return the first sentence of the docstring of an object, in one line without its full stop'
    """
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()).rstrip(".:")


def check_options(what: str, given: Iterable[str], known: tuple[str, ...] | None) -> None:
    """Refuse options that `what` does not have; `known` is None if it takes any.

    Examples
    --------
    >>> check_options("EXTRA", ["alpha"], ("step_size",))
    Traceback (most recent call last):
    ...
    TypeError: EXTRA has no option alpha: did you mean step_size? expected one of step_size
    """
    for name in given:
        if known is not None and name not in known:
            hint = did_you_mean(name, known)
            if name in STEP_SIZES and "step_size" in known:
                hint = "did you mean step_size?"
            names = ", ".join(other for other in known if not other.startswith("_"))
            expected = f"expected one of {names}" if names else "expected none"
            raise TypeError(f"{what} has no option {name}: {hint}{hint and ' '}{expected}")


@cache
def parameters(made: Callable[..., object]) -> tuple[str, ...] | None:
    """Return the parameters that may be given by name; None if any may."""
    kinds = inspect.signature(made).parameters
    if any(one.kind is one.VAR_KEYWORD for one in kinds.values()):
        return None
    return tuple(
        name
        for name, one in kinds.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    )


def with_known_options(make: Callable[P, T]) -> Callable[P, T]:
    """Return the function, which refuses options that it does not have with the names of those that
    it has.
    """

    @wraps(make)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        if options:
            check_options(make.__name__, options, parameters(make))
        return make(*args, **options)

    return checked


class ByName(dict[str, T]):
    """A dict whose error for a missing name has those that are similar, and all of them.

    Examples
    --------
    >>> ByName(error=1.0, objective=2.0)["eror"]
    Traceback (most recent call last):
    ...
    KeyError: "no metric 'eror': did you mean error? expected one of error, objective"
    """

    def __missing__(self, name: object) -> T:
        hint = did_you_mean(name, self)
        known = f"expected one of {', '.join(self)}" if self else "nothing is recorded"
        raise KeyError(f"no metric {name!r}: {hint}{hint and ' '}{known}")


def word(thing: object) -> str:
    """Describe an argument: an array by its shape and fingerprint, a function by its name, other
    objects without addresses.

    Examples
    --------
    >>> word(0.5), word({1: len}), word(np.zeros(3, bool)), word(object())
    ('0.5', '{1: len}', 'array (3,) #ff41d912', 'object()')
    """
    if isinstance(thing, np.ndarray):
        return f"array {thing.shape} #{zlib.crc32(thing.tobytes()):08x}"
    if isinstance(thing, Mapping):
        return "{" + ", ".join(f"{key}: {word(value)}" for key, value in thing.items()) + "}"
    if isinstance(thing, (list, tuple)) and type(thing) in (list, tuple):
        inside = ", ".join(map(word, thing))
        return f"[{inside}]" if isinstance(thing, list) else f"({inside}{',' * (len(thing) == 1)})"
    if isinstance(thing, (set, frozenset)):  # in an order that all processes have
        return "{" + ", ".join(sorted(map(word, thing))) + "}"
    if isinstance(thing, partial):
        given = (*thing.args, *(f"{key}={word(value)}" for key, value in thing.keywords.items()))
        return f"{word(thing.func)}({', '.join(map(str, given))}, ...)"
    if callable(thing) and not is_dataclass(thing):
        return str(getattr(thing, "__qualname__", type(thing).__name__))
    if type(thing).__repr__ is object.__repr__:
        return describe(thing)
    return ADDRESS.sub("", " ".join(repr(thing).split()))


def number(value: object) -> object:
    """Return the number of which an array consists, if there is one."""
    if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
        value = value.flat[0]
    return value.item() if isinstance(value, np.generic) else value


def _is_data(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(part, np.ndarray) for part in value)
    return isinstance(value, np.ndarray) and value.ndim > 1
