"""Plug-ins: solvers, topologies, problems, data sets and codecs of the user's own, by name.

A name is one of the package, one that an installed package declares as an entry point (groups
``mpidec.solvers``, ``mpidec.topologies``, ``mpidec.problems``, ``mpidec.datasets``,
``mpidec.codecs``), ``FILE.py:NAME``, or ``MODULE:NAME``. A relative file is looked up in the folder
of the experiment file, then in the working folder.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "Components",
    "canonical",
    "is_plugin",
    "located",
    "nearest",
    "short",
    "similar",
    "source",
]

T = TypeVar("T")
SHOWN = 15  # names that a message lists
MODULES = "mpidec_plugin_"  # names of the modules of files
PLUGIN = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


def is_plugin(name: str) -> bool:
    """Return whether `name` has the form ``FILE.py:NAME``, ``MODULE:NAME``, or ``FILE.py`` (whose
    NAME is missing).

    Examples
    --------
    >>> is_plugin("my.py:NIDS"), is_plugin("package.module:NIDS"), is_plugin("extra"), is_plugin("mine.csv")
    (True, True, False, False)
    """
    return bool(PLUGIN.fullmatch(name)) or name.endswith(".py")


def canonical(name: str, known: Iterable[str] | Mapping[str, object]) -> str | None:
    """Return the one of `known` that a user's `name` stands for: in any case, with or without
    hyphens, or as a class.

    None if there is none.

    Raises
    ------
    ValueError
        If it may stand for several.

    Examples
    --------
    >>> known = {"dgd": int, "d2": int, "push_pull": int, "logistic": Components}
    >>> [canonical(name, known) for name in ("DGD", "D^2", "Push-Pull", "components", "pull")]
    ['dgd', 'd2', 'push_pull', 'logistic', None]
    """
    if name in known:
        return name
    things = known if isinstance(known, Mapping) else dict.fromkeys(known)
    plain = {
        key: {_plain(key), _plain(thing.__name__) if isinstance(thing, type) else ""}
        for key, thing in things.items()
    }
    alike = [key for key, names in plain.items() if _plain(name) in names - {""}]
    if len(alike) > 1:
        raise ValueError(f"{name!r} may be {' or '.join(alike)}: write one of them")
    return alike[0] if alike else None


def _plain(name: str) -> str:
    return re.sub(r"[-_^ {}]", "", name).lower()


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the remedy for an unknown name: the closest known ones, or else all of them.

    Examples
    --------
    >>> nearest("Gradient-Traking", ["dgd", "gradient_tracking"])
    'did you mean gradient_tracking?'
    >>> nearest("gradient_traking", ["gradient_tracking", "running_sum_tracking"])
    'did you mean gradient_tracking?'
    >>> nearest("x", ["dgd", "extra"])
    'expected one of dgd, extra'
    """
    known = list(known)
    names = list(dict.fromkeys(known))
    if len(names) > SHOWN + 5:
        names[SHOWN:] = [f"... ({len(names) - SHOWN} more: mpidec run --list)"]
    expected = f"expected one of {', '.join(names) or 'none'}"
    return did_you_mean(name, known, cutoff) or expected


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return "did you mean A or B?", with those of `known` that are similar to `name`; empty if
    there are none.

    Examples
    --------
    >>> did_you_mean("rign", ["ring", "star"]), did_you_mean("x", ["ring", "star"])
    ('did you mean ring?', '')
    """
    near = similar(str(name), known, cutoff)
    return f"did you mean {' or '.join(near)}?" if near else ""


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error of a module without this attribute, with the public names that are similar.

    Examples
    --------
    >>> no_attribute("mpidec", "slove", ["solve", "tune"])
    AttributeError("module 'mpidec' has no attribute 'slove': did you mean solve?")
    """
    hint = did_you_mean(name, known, 0.6)
    # with obj and without name: Python would add its own hint
    return AttributeError(
        f"module {module!r} has no attribute {name!r}{hint and ': '}{hint}",
        obj=sys.modules.get(module),
    )


def public_names(module: str, defined: Mapping[str, object]) -> list[str]:
    """Return the public names of a package with a `CATALOGUE`, among those `defined` in it: what
    its modules define and it imports.

    Examples
    --------
    >>> import mpidec
    >>> public_names("mpidec.solvers", vars(mpidec.solvers))[:3]
    ['A2CiD2', 'ADMM', 'ATG']
    """
    return sorted(
        [
            "CATALOGUE",
            *(
                name
                for name, thing in defined.items()
                if getattr(thing, "__module__", "").startswith(module) and not name.startswith("_")
            ),
        ]
    )


def similar(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return up to three of the `known` names that are close to `name`, whatever its case and
    hyphens; the closest first.

    Examples
    --------
    >>> similar("Gradient-Traking", ["dgd", "gradient_tracking"])
    ['gradient_tracking']
    """
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").replace(" ", "_")
    alike = {
        word: max(difflib.SequenceMatcher(None, word, trial).ratio() for trial in (name, plain))
        for word in dict.fromkeys(known)
    }
    near = sorted((w for w in alike if alike[w] >= cutoff), key=alike.__getitem__, reverse=True)
    return [word for word in near[:3] if alike[word] >= alike[near[0]] - 0.25]  # not a mere ending


def located(
    name: str, *folders: str | os.PathLike[str], suffixes: tuple[str, ...] = (".py",)
) -> str:
    """Return `name` with the absolute path of its file, of one of the `suffixes`; any other name is
    returned unchanged.

    A relative path is looked up in `folders`, then in the working folder, and returned unchanged if
    it is in none.  If an absolute path has gone, a file of the same name in `folders` or in the
    working folder takes its place, so that an experiment can be moved together with its file.

    Examples
    --------
    >>> located("extra"), located("package.module:NIDS")
    ('extra', 'package.module:NIDS')
    """
    place, colon, thing = name.rpartition(":") if PLUGIN.fullmatch(name) else (name, "", "")
    if not place.endswith(suffixes):
        return name
    path = Path(place).expanduser()
    around = [Path(folder).absolute() for folder in (*folders, os.curdir)]
    tries = [folder / path for folder in around] + [
        folder / path.name for folder in around if path.is_absolute()
    ]
    found = next((trial for trial in tries if trial.is_file()), path)
    return f"{os.path.normpath(found)}{colon}{thing}"


def short(name: str) -> str:
    """Return `name` for a table or a label, without the folder of a plug-in's file.

    Examples
    --------
    >>> short("/home/me/my.py:NIDS"), short("extra")
    ('my.py:NIDS', 'extra')
    """
    return os.path.basename(name) if is_plugin(name) else name


def source(thing: object) -> str | None:
    """Return the file of a component that was loaded as ``FILE.py:NAME``; None for any other
    object.

    Examples
    --------
    >>> source(nearest), source(None)
    (None, None)
    """
    module = inspect.getmodule(thing)
    return module.__file__ if module is not None and module.__name__.startswith(MODULES) else None


class Components(Mapping[str, T]):
    """Components of one kind by name: those of the package, of entry points, and of the user's
    files and modules.

    Iteration yields the names of the package and of entry points; plug-ins by ``FILE.py:NAME`` or
    ``MODULE:NAME`` are imported when they are looked up, on every rank that does so: what a file
    should only do as a program belongs behind ``if __name__ == "__main__"``.

    Parameters
    ----------
    kind : str
        What the components are, for messages: "solver".
    group : str
        Group of entry points.
    own : mapping
        The components of the package.
    check : callable
        ``check(thing)`` returns None, or a text that says what `thing` is and what was expected.
    papers : mapping
        Other names, of papers: the component, and its options.

    Examples
    --------
    >>> table = Components("solver", "mpidec.solvers", {"dgd": dict}, lambda thing: None)
    >>> table["dgd"], "dgd" in table, table["collections:Counter"]
    (<class 'dict'>, True, <class 'collections.Counter'>)
    """

    def __init__(
        self,
        kind: str,
        group: str,
        own: Mapping[str, T],
        check: Callable[[object], str | None],
        papers: Mapping[str, tuple[str, Mapping[str, object]]] = MappingProxyType({}),
    ) -> None:
        self.kind, self.group, self.own, self.check = kind, group, own, check
        self._papers = papers

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from sorted(set(self._entry_points()) - set(self.own))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        # A file of data, for one.
        if not isinstance(name, str) or ("." in name and not is_plugin(name)):
            return False
        return name in self.own or is_plugin(name) or name in self._entry_points()

    def __getitem__(self, name: str) -> T:
        """Return the component with this name.

        Raises
        ------
        KeyError
            If no component has this name.
        ValueError
            If a plug-in cannot be imported, or is of another kind; the message is one line.
        """
        thing: T
        if name in self.own:
            return self.own[name]
        if is_plugin(name):
            thing = _load(located(name), self.kind, self.check)
        elif name in (points := self._entry_points()):
            thing = _guarded(points[name].load, f"entry point {name} of {points[name].value}")
        else:
            raise KeyError(name)
        if (complaint := self.check(thing)) is not None:
            raise ValueError(f"{short(name)} cannot be used as a {self.kind}: it is {complaint}")
        return thing

    def key(self, name: str) -> str:
        """Return the name that the table has for what a user calls `name`: in another case, by its
        class, or as in a paper.

        Raises
        ------
        ValueError
            If there is none, with names that are similar, or if there are several.

        Examples
        --------
        >>> Components("solver", "mpidec.solvers", {"exact_diffusion": dict}, lambda thing: None).key("Exact-Diffusion")
        'exact_diffusion'
        """
        if (key := self._key(name)) is not None:
            return key
        raise ValueError(
            f"unknown {self.kind} {name!r}: {nearest(name, self)} (one of your own: FILE.py:NAME)"
        )

    def knows(self, name: str) -> bool:
        """Return whether `key` has an answer."""
        return self._key(name) is not None

    def options(self, name: str) -> Mapping[str, object]:
        """Return the options that a name of a paper has beside the component: those of DIGing
        are ``variant = "diging"``.
        """
        known = canonical(name, self.own) or name in self
        paper = None if known else canonical(name, self._papers)
        return {} if paper is None else self._papers[paper][1]

    def find(self, name: str) -> T:
        """Return the component that a user calls `name`, as `key` does."""
        return self[self.key(name)]

    def _key(self, name: str) -> str | None:
        if name in self.own or is_plugin(name):
            return name
        if "." in name:
            return None
        key = canonical(name, self.own) or canonical(name, dict.fromkeys(self._entry_points()))
        if key is None and (paper := canonical(name, self._papers)) is not None:
            key = self._papers[paper][0]
        return key

    def described(self, describe: Callable[[T], str]) -> dict[str, str]:
        """Return a line for each name; a plug-in that cannot be loaded is listed with its error."""
        lines = {}
        for name in self:
            try:
                lines[name] = describe(self[name])
            except ValueError as error:
                lines[name] = f"(not available: {error})"
            if name not in self.own:
                lines[name] = f"{lines[name]} [{self._entry_points()[name].value}]"
        return lines

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in _declared(*sys.path) if point.group == self.group}


@cache  # once per process: files of all installed packages are read
def _declared(*path: str) -> tuple[EntryPoint, ...]:
    """Return the entry points for this package of those installed on a path."""
    from importlib.metadata import entry_points  # imported on use: it takes 30 ms

    points = entry_points()
    groups = [group for group in points.groups if group.startswith("mpidec.")]
    return tuple(point for group in groups for point in points.select(group=group))


def _load(name: str, kind: str, check: Callable[[object], str | None]) -> Any:
    """Import the file or the module of a plug-in, and return its object."""
    place, _, wanted = name.rpartition(":") if PLUGIN.fullmatch(name) else (name, "", "")
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    if wanted and hasattr(module, wanted):
        return getattr(module, wanted)
    public = {key: thing for key, thing in vars(module).items() if not key.startswith("_")}
    fitting = [
        key
        for key, thing in public.items()
        if inspect.getmodule(thing) is module and check(thing) is None
    ]
    where = os.path.basename(place)
    if not wanted:
        names = " or ".join(f"{where}:{key}" for key in fitting or ["NAME"])
        raise ValueError(f"{where} needs the name of a {kind} in it: {names}")
    raise ValueError(
        f"{place} has no {wanted}: "
        f"{nearest(wanted, fitting or public) if public else 'it is empty'}"
    )


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        hint = did_you_mean(path.name, [other.name for other in path.parent.glob("*.py")], 0.6)
        relative = "a path is relative to the experiment file or the working folder"
        raise ValueError(f"{path}: no such file: {hint or relative}")
    name = f"{MODULES}{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its code runs, as dataclasses and pickle need it
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # modules beside it can be imported
    try:
        _guarded(lambda: spec.loader.exec_module(module), str(path))  # type: ignore[union-attr]
    except ValueError:
        del sys.modules[name]
        raise
    return module


def _module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return _guarded(lambda: importlib.import_module(name), f"module {name}", missing=name)


def _guarded(act: Callable[[], T], what: str, missing: str = "") -> T:
    """Return the result of `act`; whatever it raises becomes a ValueError of one line that names
    the place.
    """
    try:
        return act()
    except (Exception, SystemExit) as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and missing
            and missing.startswith(error.name or " ")
        ):
            raise ValueError(
                f"no module named {error.name!r}: install it, or name a file: FILE.py:NAME"
            ) from None
        place = (
            f"{error.filename}, line {error.lineno}"
            if isinstance(error, SyntaxError)
            else _place(error, what)
        )
        said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        raise ValueError(
            f"{what} cannot be imported: {place}: {type(error).__name__}: {said}"
        ) from error


def _place(error: BaseException, what: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == what] or frames
    return (
        f"line {own[-1].lineno}"
        if own[-1].filename == what
        else f"{own[-1].filename}, line {own[-1].lineno}"
    )
