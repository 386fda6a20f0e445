"""Environment variables: what BlueFog's mean here, and what processes need to find `bluefog`."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

IMPORTABLE = str(Path(__file__).parent / "importable")
PREFIX = "BLUEFOG_"
# Those that mean something here: what they are called, or None where mpidec reads them as they are.
MEANINGFUL = {
    "BLUEFOG_NODES_PER_MACHINE": "MPIDEC_RANKS_PER_MACHINE",
    "BLUEFOG_TIMELINE": None,
    "BLUEFOG_CYCLE_TIME": None,
    "BLUEFOG_LOG_LEVEL": None,
}
# What was set so, until the next time.
_translated: dict[str, str] = {}
# BlueFog's levels by the names of Python's.
LEVELS = {
    "trace": "DEBUG",
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "fatal": "CRITICAL",
}


def translate(environment: MutableMapping[str, str]) -> None:
    """Set mpidec's variables to what BlueFog's say now, unless the user has set them."""
    for theirs, ours in MEANINGFUL.items():
        if ours is not None:
            if ours in _translated and environment.get(ours) == _translated.pop(ours):
                del environment[ours]
            if theirs in environment and ours not in environment:
                environment[ours] = _translated[ours] = environment[theirs]


def ignored(environment: Mapping[str, str]) -> list[str]:
    """BlueFog's variables that are set and mean nothing here.

    Examples
    --------
    >>> ignored({"BLUEFOG_FUSION_THRESHOLD": "20", "BLUEFOG_TIMELINE": "run", "HOME": "/"})
    ['BLUEFOG_FUSION_THRESHOLD']
    """
    return sorted(
        name for name in environment if name.startswith(PREFIX) and name not in MEANINGFUL
    )


def level(environment: Mapping[str, str]) -> str | None:
    """Return the level of Python's logging that BLUEFOG_LOG_LEVEL asks for, or None.

    Raises
    ------
    ValueError
        An unknown level.
    """
    given = environment.get("BLUEFOG_LOG_LEVEL")
    if not given:
        return None
    if given.lower() not in LEVELS:
        raise ValueError(f"BLUEFOG_LOG_LEVEL is {given!r}, expected one of {', '.join(LEVELS)}")
    return LEVELS[given.lower()]


def make_importable(environment: MutableMapping[str, str]) -> None:
    """Put the folder with `bluefog` in front of PYTHONPATH, for processes that are started with
    this environment.
    """
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if IMPORTABLE not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([IMPORTABLE, *filter(None, paths)])
