"""Find the step size of an experiment without running it: ``mpirun -n 16 python -m mpidec.tune experiment.toml -o tune.png``.

The flags are those of ``python -m mpidec.run``; ``python -m mpidec.run --tune`` is the same command.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from .tuning import tune as tune


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m mpidec.tune``; return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return int(import_module("mpidec.run").main(["--tune", *arguments], program="mpidec.tune"))


class _Function(ModuleType):
    """A module that is called like the function in it: the import of this one replaces the function `mpidec.tune`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return tune(*args, **options)


sys.modules[__name__].__class__ = _Function

if __name__ == "__main__":
    sys.exit(main())
