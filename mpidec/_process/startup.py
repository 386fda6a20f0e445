"""Ctrl-C while a command is still loading: one line and status 130 instead of the traceback of
an import.
"""

from __future__ import annotations

import os
import signal
import sys

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def _command() -> str:
    """Return the command that is started: ``python -m mpidec.run``, or ``mpidec run``; "" for other
    programs.
    """
    started, *rest = sys.argv or [""]
    if started == "-m":
        started, *rest = sys.orig_argv[sys.orig_argv.index("-m") + 1 :]
    if os.path.basename(started) == "mpidec":
        return ".".join(["mpidec", *rest[:1]])
    return started if started.startswith("mpidec.") else ""


def _end(*_: object) -> None:
    if next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0":
        os.write(2, f"{_COMMAND}: interrupted\n".encode())
    os._exit(130)


_COMMAND = _command()
if _COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)


def loaded() -> None:
    """Handle Ctrl-C as usual from now on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
