"""Where the records of a training go beside its file: a table, TensorBoard, or a function."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..datasets import raised
from ..exceptions import ConfigError
from ..plugins import Components, short
from .components import takes

# Is passed all records so far.
Logger = Callable[[Sequence[Mapping[str, float]]], None]
LOGGERS: Components[Any] = Components("logger", "mpidec.loggers", {}, takes(2, "(step, numbers)"))


def logger(name: str, out: str | None) -> Logger:
    """Return the logger of a training.

    Parameters
    ----------
    name : {"csv", "tensorboard"} or ``FILE.py:NAME``
    out : str, optional
        File of the training.

    Raises
    ------
    ConfigError
        If a file is to be written, and `out` is None.
    ImportError
        Without the package that is needed.
    """
    if name not in ("csv", "tensorboard"):
        return _FunctionLog(name)
    if out is None:
        raise ConfigError(f"log={name} is written beside the file of the training: set `out=`")
    stem = os.path.splitext(out)[0]
    return _CsvLog(f"{stem}-log.csv") if name == "csv" else _TensorBoard(f"{stem}-tensorboard")


class _CsvLog:
    """A table of all records, which is replaced as a whole: a reader finds it complete."""

    def __init__(self, path: str):
        self._path = path

    def __call__(self, records: Sequence[Mapping[str, float]]) -> None:
        new = f"{self._path}.new"
        try:
            with open(new, "w", newline="") as file:
                table = csv.DictWriter(file, [*records[0]])
                table.writeheader()
                table.writerows(records)
            os.replace(new, self._path)
        except OSError as error:
            with suppress(OSError):
                os.remove(new)
            raise OSError(error.errno, f"cannot write {self._path}: {error.strerror}") from error


class _TensorBoard:
    """A folder of events; those of a training that is resumed continue it."""

    def __init__(self, folder: str):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError(
                "log=tensorboard needs TensorBoard, which is not installed: pip install tensorboard"
            ) from None
        self._folder, self._make = folder, SummaryWriter
        self._writer: Any = None

    def __call__(self, records: Sequence[Mapping[str, float]]) -> None:
        step = int(records[-1]["step"])
        self._writer = self._writer or self._make(self._folder, purge_step=step)
        for name, number in records[-1].items():
            if name != "step" and math.isfinite(number):
                self._writer.add_scalar(name, number, step)
        self._writer.flush()


class _FunctionLog:
    """A function of the user's own."""

    def __init__(self, name: str):
        self._name, self._function = short(name), LOGGERS.find(name)

    def __call__(self, records: Sequence[Mapping[str, float]]) -> None:
        numbers = dict(records[-1])
        try:
            self._function(int(numbers.pop("step")), numbers)
        except Exception as error:
            raise ConfigError(f"log {self._name}: {raised(error, self._function)}") from error
