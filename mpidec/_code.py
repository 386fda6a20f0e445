"""What a function does, as a hash: two processes that have it from the same source agree, and a
function with another constant does not.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np

# Bytecode differs between versions of Python.
TAG = str(sys.implementation.cache_tag)
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice, np.generic)
MUTATORS = frozenset(
    "append extend update add setdefault pop popitem insert remove discard clear appendleft".split()
)
WRITES = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR"})
READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
GENERATED = frozenset(
    "__init__ __repr__ __eq__ __hash__ __lt__ __le__ __gt__ __ge__ __setattr__ __delattr__".split()
)


def code(thing: object, arrays: bool = True) -> str:
    """Hash of the functions of the user's own that `thing` is or holds; "" if there are none.

    Parameters
    ----------
    thing : function, method, partial, class, object, or a list, dict or dataclass of them
    arrays : whether the numbers in arrays count; they are data, which may be of the local agents

    Notes
    -----
    Covered are bytecode, constants, defaults, the values of a closure, global constants that are
    read, the user-defined functions and classes that are called (also from other files), and of
    objects their class and the parameters of its constructor.  Not covered are names of local
    variables, comments, the docstring, functions of installed packages (which count by their
    names), what a function keeps count in (variables that it assigns; lists, dicts and sets that
    it changes), and attributes of objects that are no parameters.  Hashes are those of one
    version of Python, `TAG`.
    """
    text = _Text(arrays)
    parts = text.of(thing)
    return hashlib.blake2b(parts.encode(), digest_size=6).hexdigest() if text.found else ""


class _Text:
    """Texts of things; `found` tells whether a user-defined function was among them."""

    def __init__(self, arrays: bool) -> None:
        self.found, self._arrays = False, arrays
        # Whose text is being made: functions may call themselves.
        self._open: list[object] = []

    def of(self, thing: object) -> str:
        if isinstance(thing, PLAIN):
            return f"{type(thing).__name__} {thing!r}"
        for number, one in enumerate(self._open):
            if one is thing:
                return f"<{number}>"
        self._open.append(thing)
        try:
            return self._of(thing)
        finally:
            self._open.pop()

    def _array(self, array: np.ndarray) -> str:
        if not self._arrays:
            return "array"
        held = array.tolist() if array.dtype.hasobject else None
        digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
        return f"{array.dtype} {array.shape} {digest if held is None else self.of(held)}"

    def _container(self, thing: Iterable[object]) -> str:
        if isinstance(thing, Mapping):
            items = sorted(f"{self.of(key)}: {self.of(value)}" for key, value in thing.items())
            return f"{{{', '.join(items)}}}"
        words = map(self.of, thing)
        if isinstance(thing, (set, frozenset)):
            return f"{{{', '.join(sorted(words))}}}"
        return f"[{', '.join(words)}]"

    def _of(self, thing: object) -> str:
        if isinstance(thing, np.ndarray):
            return self._array(thing)
        if isinstance(thing, (list, tuple, set, frozenset, Mapping)):
            return self._container(thing)
        if isinstance(thing, CodeType):
            return self._bytecode(thing, thing.co_consts)
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, MethodType):
            return f"{self.of(thing.__func__)} of {self.of(thing.__self__)}"
        if isinstance(thing, functools.partial):
            return self.of([thing.func, thing.args, thing.keywords])
        if isinstance(thing, (staticmethod, classmethod)):
            return self.of(thing.__func__)
        if isinstance(thing, property):
            return self.of([thing.fget, thing.fset])
        if isinstance(thing, type):
            return self._class(thing)
        if isinstance(thing, (ModuleType, BuiltinFunctionType, np.ufunc)):
            return _name(thing)
        inner = getattr(thing, "__wrapped__", getattr(thing, "py_func", None))  # cached, compiled
        if callable(inner):
            return self.of(inner)
        return f"{self.of(type(thing))}({self.of(self._parameters(thing))})"

    def _function(self, function: FunctionType) -> str:
        if not _own(function.__module__):
            return _name(function)
        self.found = True
        made, constants = function.__code__, function.__code__.co_consts
        if constants and isinstance(constants[0], str) and constants[0] == function.__doc__:
            constants = (None, *constants[1:])
        read: dict[str, object] = {}
        cells = zip(made.co_freevars, function.__closure__ or ())
        with_values = {name: cell.cell_contents for name, cell in cells if not _empty(cell)}
        assigned, changed = _assigned(made), _changed(made)
        reads = {*_names(made, *READS)}
        for name, value in {
            **{name: function.__globals__[name] for name in reads & {*function.__globals__}},
            **with_values,
        }.items():
            kept = isinstance(value, (list, dict, set)) and name in changed
            if name not in assigned and not kept:
                read[name] = self._attributes(value, made) if _module(value) else value
        return self.of(
            [self._bytecode(made, constants), function.__defaults__, function.__kwdefaults__, read]
        )

    def _attributes(self, module: object, made: CodeType) -> object:
        """Return the names that the function may use of a user's module."""
        names = {name for one in _nested(made) for name in one.co_names}
        return {name: getattr(module, name) for name in names if hasattr(module, name)}

    def _bytecode(self, made: CodeType, constants: tuple[object, ...]) -> str:
        numbers = made.co_argcount, made.co_posonlyargcount, made.co_kwonlyargcount
        table = getattr(made, "co_exceptiontable", b"")
        return self.of(
            [numbers, made.co_flags, made.co_code, table, list(constants), list(made.co_names)]
        )

    def _class(self, kind: type) -> str:
        if not _own(kind.__module__):
            return _name(kind)
        self.found = True
        members = {
            name: value
            for name, value in vars(kind).items()
            if isinstance(value, (*PLAIN, FunctionType, staticmethod, classmethod, property))
            and name not in ("__doc__", "__module__", "__qualname__", "__firstlineno__")
            and not (is_dataclass(kind) and name in GENERATED and _generated(value))
        }
        return f"{kind.__qualname__} {self.of(members)} {self.of(kind.__bases__)}"

    def _parameters(self, thing: object) -> dict[str, object]:
        if is_dataclass(thing):
            return {field.name: getattr(thing, field.name, None) for field in fields(thing)}
        try:
            names = inspect.signature(type(thing)).parameters
        except (ValueError, TypeError):  # of a class that is not written in Python
            return {}
        known: Mapping[str, object] = getattr(thing, "__dict__", {})
        changed = _counted(type(thing))
        keys = (key for name in names for key in (name, f"_{name}"))
        return {key: known[key] for key in keys if key in known and key not in changed}


def _own(module: str | None) -> bool:
    """Return whether a module is of the user: none of the package, of Python, or installed."""
    top = (module or "").partition(".")[0]
    if top == "mpidec" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return not ("site-packages" in file or "dist-packages" in file)


def _module(value: object) -> bool:
    return isinstance(value, ModuleType) and _own(value.__name__)


def _name(thing: object) -> str:
    name = getattr(thing, "__qualname__", getattr(thing, "__name__", type(thing).__name__))
    return f"{getattr(thing, '__module__', '')}.{name}"


def _empty(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018
    except ValueError:  # of a variable that is not assigned yet
        return True
    return False


def _nested(made: CodeType) -> Iterator[CodeType]:
    yield made
    for constant in made.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _names(made: CodeType, *operations: str) -> Iterator[str]:
    for one in _nested(made):
        for step in dis.get_instructions(one):
            if step.opname in operations:
                yield str(step.argval)


def _assigned(made: CodeType) -> set[str]:
    """Return the variables outside of the function that it assigns."""
    return {*_names(made, "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")}


def _changed(made: CodeType) -> set[str]:
    """Return the lists, dicts and sets outside of the function that it may change."""
    found: set[str] = set()
    for one in _nested(made):
        # What is read in a line of the source.
        line: list[str] = []
        before = ""
        for step in dis.get_instructions(one):
            if step.starts_line:
                line = []
            if step.opname in WRITES:
                found.update(line)
            if before and str(step.argval) in MUTATORS:
                found.add(before)
            before = str(step.argval) if step.opname in READS else ""
            line += [before] if before else []
    return found


def _counted(kind: type) -> set[str]:
    """Return the attributes that methods beside the constructor assign."""
    return {
        name
        for one in kind.__mro__
        for key, value in vars(one).items()
        if isinstance(value, FunctionType) and key not in ("__init__", "__post_init__", "__new__")
        for name in _names(value.__code__, "STORE_ATTR")
    }


def _generated(value: object) -> bool:
    """Return whether it is a method that `dataclass` has written."""
    return isinstance(value, FunctionType) and value.__code__.co_filename == "<string>"
