"""Detection of network adapters that perform MPI's one-sided calls in hardware, from the system
and the MPI library.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...runtime import MPI

SYSTEM = Path("/sys/class")
_SLOW = {"tcp", "sockets", "udp", "shm", "self", "sm", "vader", "posix", "sysv", "cma", "net"}
# Drivers of adapters whose one-sided calls are messages.
_SOFTWARE = {"efa", "hfi1", "qib"}
# What each library can be told: variables of its tools interface, and environment variables of the
# layers below it.
_MPICH = ("MPIR_CVAR_CH4_NETMOD", "MPIR_CVAR_OFI_USE_PROVIDER"), ("FI_PROVIDER", "UCX_TLS")
_OPEN_MPI = ("osc", "pml", "btl"), ("FI_PROVIDER", "UCX_TLS")


class Interconnect(NamedTuple):
    """Properties of the interconnect between nodes."""

    offloaded: bool
    text: str


@cache
def interconnect() -> Interconnect:
    """Return whether adapters perform one-sided calls, as far as adapters, settings and the
    library's version tell.
    """
    found, said = adapters(SYSTEM), settings()
    library = MPI.Get_library_version()
    told = ", ".join(f"{name}={value}" for name, value in said.items()) or "no settings"
    if not found:
        return Interconnect(False, f"no adapter for remote memory access in {SYSTEM}; {told}")
    text = f"{', '.join(found)}; {told}"
    if "MPICH" in library and "ch4:" not in library:
        return Interconnect(False, f"{text}; this build of MPICH has no ch4 device")
    slow = [name for name, value in said.items() if excludes(value)]
    if slow:
        return Interconnect(False, f"{text}: {slow[0]} keeps MPI off the adapter")
    return Interconnect(True, text)


def adapters(system: Path) -> list[str]:
    """Active adapters that perform remote memory access: InfiniBand and RoCE, Slingshot."""
    found = []
    for device in sorted(system.glob("infiniband/*")):
        driver = (device / "device/driver").resolve().name
        active = any("ACTIVE" in _text(port) for port in device.glob("ports/*/state"))
        if active and (device / "device/driver").exists() and driver not in _SOFTWARE:
            found.append(device.name)
    return found + [device.name for device in sorted(system.glob("cxi/*"))]


def settings() -> dict[str, str]:
    """Return the network settings of the MPI library and the layers below it that differ from the
    defaults.
    """
    names, environment = _MPICH if "MPICH" in MPI.Get_library_version() else _OPEN_MPI
    values = {name: _variable(name) for name in names}
    values |= {name: os.environ.get(name, "") for name in environment}
    return {name: value for name, value in values.items() if value}


def excludes(value: str) -> bool:
    """Return whether a list of components or transports names only such as have no remote memory
    access.
    """
    names = {name.strip().split(";")[0] for name in value.lower().split(",")}
    return not value.startswith("^") and names <= _SLOW


def _variable(name: str) -> str:
    """Return a control variable of MPI's tools interface; empty if there is none."""
    index, handle, count, given = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    text = ctypes.create_string_buffer(1 << 14)
    try:
        library = ctypes.CDLL(MPI.__file__)
        # Open MPI takes this one from now on, also where it is a lower one.
        level = MPI.Query_thread()
        if library.MPI_T_init_thread(level, ctypes.byref(given)):
            return ""
        try:
            if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
                return ""
            if library.MPI_T_cvar_handle_alloc(
                index, None, ctypes.byref(handle), ctypes.byref(count)
            ):
                return ""
            failed = count.value > len(text) or library.MPI_T_cvar_read(handle, text)
            library.MPI_T_cvar_handle_free(ctypes.byref(handle))
            return "" if failed else text.value.decode(errors="replace")
        finally:
            library.MPI_T_finalize()
    except (AttributeError, OSError):  # no such function, or another way of loading MPI
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
