"""Ctrl-C while ``python -m mpidec.run`` is still loading: one line and status 130 instead of the traceback of an import."""

from __future__ import annotations

import os
import signal
import sys

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def _end(*_: object) -> None:
    if next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0":
        os.write(2, b"mpidec.run: interrupted\n")
    os._exit(130)


if (
    sys.argv[:1] == ["-m"]
    and "mpidec.run" in sys.orig_argv
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _end)


def loaded() -> None:
    """Handle Ctrl-C as usual from now on."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
