"""Hashes of the data and files that a run was made from, by which a resumed run notices that they have changed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

DATA = "problem.data"  # the setting that names the data; their content is compared, not their file
BLOCK = 1 << 20


def file_hashes(sources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return name and SHA-256 of the file of each of `sources`, by setting; a module or a name without a file is left out.

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
    """Return the name of the first file that is another one than in the root attributes of a run, `but` for one setting; or ""."""
    try:
        recorded = json.loads(then.get("files", "{}"))
        old = {key: str(file["sha256"]) for key, file in recorded.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""
    return next(
        (
            file["name"]
            for key, file in now.items()
            if key != but and old.get(key, file["sha256"]) != file["sha256"]
        ),
        "",
    )


def change(
    then: Mapping[str, Any], now: Mapping[str, Any], sources: Mapping[str, str] | None
) -> str:
    """Return what has changed between the root attributes of a run and those of the run that continues it; or "".

    `sources` names files by setting; None, of a Python program, for data without a name.  Data of the package are not compared:
    they follow from the settings.
    """
    own = sources is None or DATA in sources
    old, new = then.get("data_hash"), now.get("data_hash")
    if own and old and new and old != new:
        name = os.path.basename((sources or {}).get(DATA, "")) or "the data of the problem"
        counts = [int(attributes.get("data_samples", 0)) for attributes in (then, now)]
        how = (
            f"{counts[0]} samples then, {counts[1]} now"
            if counts[0] != counts[1]
            else f"{counts[0]} samples with other values"
        )
        return f"{name} {'has' if sources else 'have'} changed since the run began: {how}"
    file = changed_file(then, json.loads(now.get("files", "{}")), but=DATA)
    return f"{file} has changed since the run began" if file else ""
