"""Flags of commands that go on when ranks die."""

from __future__ import annotations

import argparse

from .._process import evict_after
from .._validation import number
from ..comm.runtime import cannot_survive
from ..exceptions import ConfigError
from .program import Flag


def survival_flags(how: str) -> list[Flag]:
    """Return --survive, which goes on as `how` says, and --evict."""
    return [
        Flag(
            "--survive",
            action="store_true",
            help=f"go on when ranks die, {how} (Open MPI, with mpirun --with-ft ulfm)",
        ),
        Flag(
            "--evict",
            metavar="SECONDS",
            type=float,
            help="with --survive: a rank that gives no sign of life for so long counts as dead "
            "(30)",
        ),
    ]


def refuse_survival(args: argparse.Namespace, ranks: int) -> None:
    """Refuse --survive where the job ends when a rank dies.

    Raises
    ------
    ConfigError
    """
    if args.survive and ranks > 1 and (why := cannot_survive()):
        raise ConfigError(f"--survive: {why}")


def set_eviction(args: argparse.Namespace) -> None:
    """Set when a rank counts as dead, which MPI reads when it starts."""
    if args.evict is None:
        return
    if not args.survive:
        raise ConfigError("--evict says when a rank counts as dead: add --survive")
    evict_after(number(args.evict, "--evict", least=1))
