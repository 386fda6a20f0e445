"""Cores that this process may use."""

import os


def cores() -> frozenset[int]:
    """Cores that this process may use; all of the host where the system does not restrict
    processes to some of them (macOS).
    """
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
