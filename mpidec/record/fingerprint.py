"""What must be equal where a run, a training, a sweep or an experiment continues: settings, files
and data.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Fingerprint:
    """What must be equal where a run, a training, a sweep or an experiment continues.

    Parameters
    ----------
    settings : mapping
        Texts, numbers and lists of numbers by name.
    sources : mapping, optional
        The user's files by setting; None, of a Python program, for data without a name.
    files : mapping
        Their names and hashes, from `file_hashes`.
    data : (str, int)
        Hash and number of the samples; "" where they are not known.
    ranks : int, optional
        Number of ranks, where settings may differ between them.

    Examples
    --------
    >>> then, now = Fingerprint({"seed": "0"}), Fingerprint({"seed": "5", "dtype": "float64"})
    >>> now.changes(then)
    ['seed was 0, is now 5']
    >>> now.changes(then, absent="not set")
    ['seed was 0, is now 5', 'dtype was not set, is now float64']
    """

    settings: Mapping[str, Any]
    sources: Mapping[str, str] | None = None
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    data: tuple[str, int] = ("", 0)
    ranks: int | None = None

    @classmethod
    def stored(
        cls,
        attributes: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> Fingerprint:
        """Return that of root attributes; by default with the settings of their `curve`.

        Raises
        ------
        ValueError
            The attributes are damaged.
        """
        files = table(attributes, "files")
        if not all(
            isinstance(one, Mapping) and {"name", "sha256"} <= set(one) for one in files.values()
        ):
            raise ValueError(f"its attribute files is {attributes['files']!r:.60}, expected hashes")
        data = str(attributes.get("data_hash", "")), int(attributes.get("data_samples", 0))
        known = table(attributes, "curve") if settings is None else settings
        return cls(known, sources, files, data, attributes.get("ranks"))

    def attributes(self) -> dict[str, str | int]:
        """Return the root attributes that tell of files and data."""
        digest, samples = self.data
        found: dict[str, str | int] = {"files": json.dumps(self.files)} if self.files else {}
        return {**found, **({"data_hash": digest, "data_samples": samples} if digest else {})}

    def changes(self, then: Fingerprint, absent: str | None = None) -> list[str]:
        """Return what has changed since `then`, with the values then and now.

        Data of the package are not compared: they follow from the settings.  Settings of which one
        of the two does not know are not compared either, unless `absent` stands for those.
        """
        old, new = then.settings, self.settings
        pairs = {
            name: (old.get(name, absent), new.get(name, absent))
            for name in [*new, *old]
            if absent or (name in old and name in new)
        }
        # numbers that a run has measured differ by rounding errors, given ones do not
        rounding = 0.0 if absent else ROUNDING.get(str(new.get("dtype")), 1e-9)
        alone = self.incomparable(then) if self.ranks == then.ranks else []
        return [
            *self._of_data(then),
            *self._of_files(then),
            *(f"{name} differs between the ranks only then, or only now" for name in alone),
            *(
                f"{name} was {_shown(before)}, is now {_shown(now)}"
                for name, (before, now) in pairs.items()
                if not _alike(before, now, rounding)
            ),
        ]

    def incomparable(self, then: Fingerprint) -> list[str]:
        """Return the settings that differ between the ranks of one of the two, so that the other
        has nothing to compare them with, such as one on another number of ranks.

        Examples
        --------
        >>> then = Fingerprint({"Own.rows on 2 ranks": "3 on rank 0"})
        >>> Fingerprint({"Own.rows": "6"}).incomparable(then)
        ['Own.rows']
        """
        alone = {*then.settings} ^ {*self.settings}
        return sorted(
            {name.rpartition(ON)[0] for name in alone if name.endswith(" ranks") and ON in name}
        )

    def _of_files(self, then: Fingerprint) -> list[str]:
        same = DATA if self.data[0] and then.data[0] else ""  # their content is compared
        changed = (
            f"{file['name']} has changed since the run began"
            for key, file in self.files.items()
            if key != same and key in then.files and then.files[key]["sha256"] != file["sha256"]
        )
        return [*changed][:1]

    def _of_data(self, then: Fingerprint) -> list[str]:
        own = self.sources is None or DATA in self.sources
        (old, before), (new, now) = then.data, self.data
        if not (own and old and new and old != new):
            return []
        name = os.path.basename((self.sources or {}).get(DATA, "")) or "the data of the problem"
        how = (
            f"{before} samples then, {now} now"
            if before != now
            else f"{now} samples with other values"
        )
        return [f"{name} {'has' if self.sources else 'have'} changed since the run began: {how}"]


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
    if not (isinstance(one, list) and isinstance(other, list) and len(one) == len(other)):
        return one == other or _number(one) == _number(other) is not None
    try:
        pairs = np.array([*zip(one, other)], float).reshape(-1, 2)
    except (ValueError, TypeError):
        return one == other  # texts
    atol = rounding * np.abs(pairs[np.isfinite(pairs)]).max(initial=0.0)
    return np.allclose(pairs[:, 0], pairs[:, 1], rtol=0, atol=float(atol), equal_nan=True)


def _number(text: object) -> float | None:
    """Return the number that a text is: 1 and 1.0 are the same."""
    try:
        return float(str(text))
    except ValueError:
        return None


def _shown(value: object) -> str:
    parts = value if isinstance(value, list) else [str(value)]
    return ", ".join(f"{x:.8g}" if isinstance(x, (int, float)) else str(x) for x in parts)
