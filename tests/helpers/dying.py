"""A command of mpidec whose ranks die: python tests/helpers/dying.py RANK:PLACE:COUNT[:after] ... -- run ...

Rank RANK of the job ends by SIGKILL when it comes to PLACE, a function MODULE.NAME or method
MODULE.CLASS.NAME of the package, for the COUNT-th time (after: when it returns).
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import wraps


def dies(place: str, count: int, after: bool) -> None:
    """Let this process end at the `count`-th call of `place`."""
    parts = place.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner = importlib.import_module(".".join(["mpidec", *parts[:cut]]))
            break
        except ImportError:
            continue
    for name in parts[cut:-1]:
        owner = getattr(owner, name)
    former, calls = getattr(owner, parts[-1]), [0]

    @wraps(former)
    def counted(*args: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = former(*args, **options)
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, parts[-1], counted)


def main() -> int:
    """Run the command line."""
    from mpidec.__main__ import main as command

    cut = sys.argv.index("--")
    if os.environ.get("OMPI_COMM_WORLD_RANK") is not None:
        for one in sys.argv[1:cut]:
            rank, place, count, *more = one.split(":")
            if rank == os.environ["OMPI_COMM_WORLD_RANK"]:
                dies(place, int(count), bool(more))
    return command(sys.argv[cut + 1 :])


if __name__ == "__main__":
    raise SystemExit(main())
