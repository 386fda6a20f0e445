"""Environment of this process: cores, load, compiled modules, BLAS threads, GPUs, HDF5, the
current folder.  No MPI.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..comm.runtime import MODULES, cores as cores

KERNEL, NODE_MEMORY, RECORDS, EVENTS = COMPILED = MODULES
CGROUPS = Path("/sys/fs/cgroup")
QUOTA = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # of versions 2 and 1
# Elsewhere the ranks of a node exchange messages.
READS_MEMORY = sys.platform == "linux"


def cpu() -> str:
    """Name of the processor."""
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def quota() -> float:
    """CPU quota of the container in cores, that of its control group; infinite without a limit."""
    for names in QUOTA:
        try:
            words = [word for name in names for word in (CGROUPS / name).read_text().split()]
            granted, period = map(int, words)
        except OSError:
            continue
        except ValueError:  # "max": no limit
            break
        if granted > 0 and period > 0:  # -1: no limit, in version 1
            return granted / period
    return float("inf")


def load() -> float | None:
    """Load of the host, averaged over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def memory() -> int | None:
    """Bytes of available memory; None where the system does not tell."""
    try:
        found = re.search(
            r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE
        )
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None


def uncompiled() -> dict[str, str]:
    """Compiled modules of the package that should be there on this system and cannot be
    imported, and why.
    """
    found = {}
    for name in COMPILED if READS_MEMORY else (KERNEL, RECORDS, EVENTS):
        try:
            importlib.import_module(name)
        except ImportError as error:
            found[name] = str(error)
    return found


def blas_threads() -> int:
    """Threads that NumPy's BLAS starts in this process."""
    from threadpoolctl import threadpool_info

    return max(
        (pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1
    )


def installed(package: str) -> str | None:
    """Version of a package, without importing it; None if it is not installed."""
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return "(version unknown)"


def gpu_libraries() -> list[str]:
    """Return the installed libraries for CUDA devices, with their versions."""
    return [f"{name} {found}" for name in ("cupy", "torch") if (found := installed(name))]


def devices() -> int:
    """Number of CUDA devices, from the driver: neither cupy nor torch is imported, and no
    context is created.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return 0
        return count.value
    except (OSError, AttributeError):
        return 0


def hdf5() -> tuple[str, bool]:
    """Versions of h5py and HDF5, and whether they write in parallel."""
    import h5py

    return f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}", bool(h5py.get_config().mpi)


def write_test(folder: str | os.PathLike[str] = ".") -> int:
    """Write, close and read an HDF5 file in `folder`, and return the free bytes there.

    Raises
    ------
    OSError
        If that fails.
    """
    import h5py

    with tempfile.TemporaryDirectory(prefix=".mpidec-doctor-", dir=folder) as temporary:
        path = Path(temporary, "test.h5")
        with h5py.File(path, "w") as file:
            file["x"] = range(1000)
        with h5py.File(path, "r") as file:
            if file["x"][-1] != 999:
                raise OSError(f"{path}: the file does not contain what was written")
    return shutil.disk_usage(folder).free
