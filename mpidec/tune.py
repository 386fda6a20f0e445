"""Find the step size of an experiment without running it: ``mpirun -n 16 python -m mpidec.tune experiment.toml -o tune.png``.

The flags are those of ``python -m mpidec.run``; ``python -m mpidec.run --tune`` is the same command.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from .tuning import tune as tune


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m mpidec.tune``; return its exit status.  The name of the picture is checked before the search."""
    from mpi4py import MPI

    from .assemble import InputError, on_root

    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        on_root(MPI.COMM_WORLD, _check_picture, arguments)
    except InputError as error:
        if MPI.COMM_WORLD.rank == 0:
            print(f"mpidec.tune: error: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Barrier()
        return error.status
    return int(import_module("mpidec.run").main(["--tune", *arguments]))


def _check_picture(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-o")
    try:
        picture = parser.parse_known_args(list(arguments))[0].o
    except argparse.ArgumentError:                          # told by the command itself
        return
    if picture is not None:
        try:
            from .plot.command import check_name

            check_name(picture)
        except ImportError as error:
            raise ValueError(f"-o {picture}: {error}: pip install 'mpidec[plot]'") from None


class _Function(ModuleType):
    """A module that is called like the function in it: the import of this one replaces the function `mpidec.tune`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return tune(*args, **options)


sys.modules[__name__].__class__ = _Function

if __name__ == "__main__":
    sys.exit(main())
