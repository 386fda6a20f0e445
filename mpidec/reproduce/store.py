"""The file of an experiment: a group for each cell that has been measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._version import __version__
from .._words import settings as fields_of
from ..exceptions import InputError
from ..experiment import to_toml
from ..record.internals import AtomicFile, Fingerprint, open_checked, stored
from .experiment import Arrays, Experiment


def settings(experiment: Experiment[Any]) -> str:
    """Return the settings of an experiment as TOML, without its axes."""
    values = fields_of(experiment)
    return "\n".join(
        f"{name} = {to_toml(value)}"
        for name, value in values.items()
        if not isinstance(value, tuple)
    )


def key(cell: tuple[object, ...]) -> str:
    """Return the name of a cell's group.

    Examples
    --------
    >>> key(("RelaySGD/Grad", 16, 0.01))
    'RelaySGD|Grad, 16, 0.01'
    """
    return ", ".join(map(str, cell)).replace("/", "|")


class Store:
    """HDF5 file of an experiment, complete and readable after each cell.

    Parameters
    ----------
    path : str
        Continued if it exists.
    experiment : Experiment
    force : bool
        Whether a file that exists is replaced.

    Raises
    ------
    InputError
        If the file is damaged, or has been made with other settings.
    """

    def __init__(self, path: str, experiment: Experiment[Any], force: bool = False):
        self._begun = os.path.exists(path) and not force
        self.path, self._settings = path, settings(experiment)
        if self._begun:
            self._check()
        self._file = AtomicFile(path, self._begun)

    def close(self) -> None:
        """Leave the file as it is, complete."""
        self._file.close()

    def _check(self) -> None:
        remedy = "--force replaces it, --out names another folder"
        try:
            with open_checked(self.path) as file:
                theirs = file.attrs.get("settings")
            read(self.path)
        except ValueError as error:
            raise InputError(f"{error}: {remedy}") from error
        then, now = (
            Fingerprint(dict(line.split(" = ", 1) for line in text.splitlines()))
            for text in ("settings = none" if theirs is None else theirs, self._settings)
        )
        if changes := now.changes(then, absent="not set"):
            raise InputError(
                f"{self.path} was made with other settings ({'; '.join(changes)}): {remedy}"
            )

    def put(
        self, cell: tuple[object, ...], arrays: Mapping[str, ArrayLike], seconds: float
    ) -> None:
        """Write what a cell has given."""
        with self._file.update() as file:
            file.attrs.update(settings=self._settings, mpidec=__version__)
            group = file.create_group(key(cell))
            group.attrs["seconds"] = seconds
            for name, values in arrays.items():
                group[name] = np.asarray(values, float)
        self._begun = True

    def read(self) -> tuple[dict[str, Arrays], float]:
        """Return the arrays of each cell by its key, and the seconds of all."""
        return read(self.path) if self._begun else ({}, 0.0)


def read(path: str) -> tuple[dict[str, Arrays], float]:
    """Return the arrays of each cell of a file by its key, and the seconds that all took."""
    if not os.path.exists(path):
        return {}, 0.0
    with open_checked(path) as file:
        found: dict[str, Arrays] = {
            name: {one: np.asarray(stored(values)) for one, values in group.items()}
            for name, group in file.items()
        }
        return found, float(sum(group.attrs["seconds"] for group in file.values()))
