"""Sums that are not finite, found by the compiled kernels as they compute them."""

from __future__ import annotations

from ..kernels import _kernel
from .arena import shared

COMPILED = _kernel is not None and shared is not None


def watch(change: int = 0) -> bool:
    """Return whether a mixing of this process has made a number that is not finite since the last
    call, while it was watched.

    Parameters
    ----------
    change : int
        1 to begin to watch, -1 to end.
    """
    return bool(_kernel.watch(change)) | bool(shared.watch(change)) if COMPILED else False
