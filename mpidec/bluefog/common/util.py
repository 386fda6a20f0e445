"""Small tools of BlueFog's programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Set environment variables for the length of a block; those that are None stay as they are."""
    given = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_running_from_ipython() -> bool:
    """Return whether this is an IPython kernel or shell."""
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the interface for this library exists: that for torch does."""
    return ext_base_name == "torch"


def check_extension(ext_name: str, pkg_path: str, *args: str) -> None:
    """Raise an ImportError if the interface `ext_name`, such as "bluefog.torch", does not exist."""
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name} does not exist in mpidec, expected bluefog.torch")


def mpi_built(verbose: bool = False) -> bool:
    """Always: mpidec works over MPI."""
    return True
