"""A command of mpidec whose ranks die: python tests/helpers/dying.py RANK:PLACE:COUNT[:after] ... -- run ...

Rank RANK of the job ends by SIGKILL when it comes to PLACE, a function MODULE.NAME or method
MODULE.CLASS.NAME of the package, for the COUNT-th time (after: when it returns).  PLACE=NUMBER in
place of a death sets a constant of the package on all ranks.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def owner_of(place: str) -> tuple[Any, str]:
    """Return the module or the class of a name, and the name in it."""
    parts = place.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(["mpidec", *parts[:cut]]))
            break
        except ImportError:
            continue
    for name in parts[cut:-1]:
        owner = getattr(owner, name)
    return owner, parts[-1]


def dies(place: str, count: int, after: bool) -> None:
    """Let this process end at the `count`-th call of `place`."""
    dies_at(*owner_of(place), count, after)


def dies_at(owner: Any, name: str, count: int, after: bool) -> Callable[[], None]:
    """Let this process end at the `count`-th call of a function; return what undoes that."""
    former, calls = getattr(owner, name), [0]

    @wraps(former)
    def counted(*args: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = former(*args, **options)
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)
    return lambda: setattr(owner, name, former)


def main() -> int:
    """Run the command line."""
    from mpidec.__main__ import main as command

    cut = sys.argv.index("--")
    if os.environ.get("OMPI_COMM_WORLD_RANK") is not None:
        for one in sys.argv[1:cut]:
            if "=" in one:
                place, _, value = one.partition("=")
                setattr(*owner_of(place), float(value))
                continue
            rank, place, count, *more = one.split(":")
            if rank == os.environ["OMPI_COMM_WORLD_RANK"]:
                dies(place, int(count), bool(more))
    return command(sys.argv[cut + 1 :])


if __name__ == "__main__":
    raise SystemExit(main())
