"""What tests of the memory of the node share."""

from __future__ import annotations

from mpidec.comm.runtime import arena as arena_module

shared = arena_module.shared


def inside(X):
    """Whether the memory of an array lies in the arena."""
    return shared.in_arena(X.ctypes.data)
