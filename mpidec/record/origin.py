"""Origin of a run: hashes of data and files, and its settings, by which a resumed run
detects changes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

# The setting that names the data; their content is compared, not their file.
DATA = "problem.data"
BLOCK = 1 << 20
ON = " on "  # after it, in a setting that differs between the ranks, the number of ranks
ROUNDING = {"float32": 1e-5}  # of numbers, relative to the largest one


def file_hashes(sources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return name and SHA-256 of the file of each of `sources`, by setting; a module or a name
    without a file is left out.

    Examples
    --------
    >>> file_hashes({"solver.name": "package.module:NIDS"})
    {}
    """
    found = {}
    for key, name in sources.items():
        place = name.rpartition(":")[0] if ".py:" in name else name
        path = os.path.abspath(os.path.expanduser(place))
        if os.path.isfile(path):
            state = os.stat(path)
            found[key] = {
                "name": os.path.basename(path),
                "sha256": _sha256(path, state.st_mtime_ns, state.st_size, state.st_ino),
            }
    return found


@functools.lru_cache(256)
def _sha256(path: str, *state: int) -> str:
    """SHA-256 of a file; `state` tells one content from the next."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def changed_file(
    then: Mapping[str, Any], now: Mapping[str, Mapping[str, str]], but: str = ""
) -> str:
    """Return the name of the first file that is another one than in the root attributes of a
    run, `but` for one setting; or "".
    """
    recorded = table(then, "files")
    try:
        old = {key: str(file["sha256"]) for key, file in recorded.items()}
    except (TypeError, KeyError):
        raise ValueError(f"its attribute files is {then['files']!r:.60}, expected hashes") from None
    return next(
        (
            file["name"]
            for key, file in now.items()
            if key != but and old.get(key, file["sha256"]) != file["sha256"]
        ),
        "",
    )


def changes(
    then: Mapping[str, Any], now: Mapping[str, Any], sources: Mapping[str, str] | None
) -> list[str]:
    """Return what has changed between the root attributes of a run and those of the run that
    continues it.

    `sources` names files by setting; None, of a Python program, for data without a name.  Data of
    the package are not compared: they follow from the settings.  Settings of which one of them does
    not know are not compared either.

    Examples
    --------
    >>> changes({"curve": '{"seed": "0"}'}, {"curve": '{"seed": "5", "dtype": "float64"}'}, None)
    ['seed was 0, is now 5']
    """
    found = list(filter(None, [_changed_data(then, now, sources)]))
    file = changed_file(then, table(now, "files"), but=DATA)
    if file:
        found.append(f"{file} has changed since the run began")
    if then.get("ranks") == now.get("ranks"):
        incomparable = uncompared(then, now)
        found += [
            f"{name} differs between the ranks only then, or only now" for name in incomparable
        ]
    return found + changed_settings(table(then, "curve"), table(now, "curve"))


def changed_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings that have changed, with what they were and are; numbers in lists
    differ by more than rounding errors.
    """
    rounding = ROUNDING.get(str(now.get("dtype")), 1e-9)
    return [
        f"{name} was {_shown(then[name])}, is now {_shown(now[name])}"
        for name in now
        if name in then and not _alike(then[name], now[name], rounding)
    ]


def uncompared(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ between the ranks of one of two runs, so that the other has
    nothing to compare them with, such as one on another number of ranks.

    Examples
    --------
    >>> uncompared({"curve": '{"Own.rows on 2 ranks": "3 on rank 0"}'}, {"curve": '{"Own.rows": "6"}'})
    ['Own.rows']
    """
    names = [[*table(attributes, "curve")] for attributes in (then, now)]
    alone = {*names[0]} ^ {*names[1]}
    return sorted(
        {name.rpartition(ON)[0] for name in alone if name.endswith(" ranks") and ON in name}
    )


def table(attributes: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a root attribute that is a table in JSON; an empty one for a file without it.

    Raises
    ------
    ValueError
        If it is none.

    Examples
    --------
    >>> table({"curve": "[1, 2]"}, "curve")
    Traceback (most recent call last):
    ...
    ValueError: its attribute curve is '[1, 2]', expected a table in JSON
    """
    text = attributes.get(name, "{}")
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise ValueError(f"its attribute {name} is {text!r:.60}, expected a table in JSON")
    return found


def _alike(one: object, other: object, rounding: float) -> bool:
    if not (isinstance(one, list) and isinstance(other, list)):
        return one == other or _number(one) == _number(other) is not None
    try:
        pairs = np.array([*zip(one, other)], float).reshape(-1, 2)
    except (ValueError, TypeError):
        return False
    atol = rounding * np.abs(pairs[np.isfinite(pairs)]).max(initial=0.0)
    return np.allclose(pairs[:, 0], pairs[:, 1], rtol=0, atol=float(atol), equal_nan=True)


def _number(text: object) -> float | None:
    """Return the number that a text is: 1 and 1.0 are the same."""
    try:
        return float(str(text))
    except ValueError:
        return None


def _shown(value: object) -> str:
    return ", ".join(f"{x:.8g}" for x in value) if isinstance(value, list) else str(value)


def _changed_data(
    then: Mapping[str, Any], now: Mapping[str, Any], sources: Mapping[str, str] | None
) -> str:
    own = sources is None or DATA in sources
    old, new = then.get("data_hash"), now.get("data_hash")
    if not (own and old and new and old != new):
        return ""
    name = os.path.basename((sources or {}).get(DATA, "")) or "the data of the problem"
    counts = [int(attributes.get("data_samples", 0)) for attributes in (then, now)]
    how = (
        f"{counts[0]} samples then, {counts[1]} now"
        if counts[0] != counts[1]
        else f"{counts[0]} samples with other values"
    )
    return f"{name} {'has' if sources else 'have'} changed since the run began: {how}"
