"""Small run files, and a disk that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import h5py
import numpy as np

from mpidec.record import RunFile

NAMES = ("time", "rounds", "bytes", "consensus", "objective")
META = {"mpidec": "0.1", "config": "[run]\nsteps = 3\n", "seed": 7, "ranks": 2, "mpi": "MPICH"}


def iterate(step: int, n: int, d: int) -> np.ndarray:
    return step + np.arange(n * d).reshape(n, d) / 7


def metrics(step: int) -> dict[str, float]:
    return {
        "time": step / 8,
        "rounds": 2 * step,
        "bytes": 2**53 + step,
        "consensus": 1 / (1 + step),
        "objective": -step,
    }


def new(path, n=3, d=2, **options) -> RunFile:
    return RunFile(path, **{"n": n, "row_shape": (d,), "metrics": NAMES, "meta": META, **options})


def fill(file: RunFile, steps, n=3, d=2) -> None:
    for step in steps:
        file.append(step, metrics(step), iterate(step, n, d))


def check(path, n=3, d=2, trajectory=True) -> int:
    """Read `path` with plain h5py, compare every record with what was recorded, and return how many there are."""
    with h5py.File(path, "r") as file:
        step = file["metrics/step"][:]
        assert np.array_equal(step, np.arange(len(step)))
        expected = [metrics(int(k)) for k in step]
        assert set(file["metrics"]) == {"step", *NAMES}
        for name in NAMES:
            assert np.array_equal(file["metrics"][name][:], [row[name] for row in expected]), name
        if trajectory:
            assert np.array_equal(file["trajectory/step"][:], step)
            assert file["trajectory/x"].shape == (len(step), n, d)
            assert np.array_equal(file["trajectory/x"][:], [iterate(int(k), n, d) for k in step])
        return len(step)


def spares(folder: Path) -> list[Path]:
    return list(folder.glob(".*"))


class FullDisk:
    """Stands in for `os` in the module under test: from the `room`-th write on there is no space."""

    def __init__(self, room: int):
        self.room = room

    def __getattr__(self, name):
        return getattr(os, name)

    def pwrite(self, *args):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(*args)


def error_of(action) -> OSError | None:
    try:
        action()
    except OSError as error:
        return error
    return None
