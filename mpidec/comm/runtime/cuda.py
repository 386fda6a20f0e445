"""Detection of CUDA-aware MPI, and buffers of device memory for MPI calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .mpi import MPI

CHOICES = ("auto", "on", "off")
ENVIRONMENT = {  # variable: values that enable CUDA support
    "MPICH_GPU_SUPPORT_ENABLED": ("1",),
    "MPIR_CVAR_ENABLE_GPU": ("1", "true", "yes"),
    "MV2_USE_CUDA": ("1",),
    "OMPI_MCA_opal_cuda_support": ("1", "true"),
    "OMPI_MCA_mpi_cuda_support": ("1", "true"),
    "OMPI_MCA_accelerator": ("cuda",),
    "PSM2_CUDA": ("1",),
    "I_MPI_OFFLOAD": ("1", "2"),
}
# MPIX_GPU_SUPPORT_CUDA in MPICH's mpi.h.
_MPICH_CUDA = 0


def detect_cuda(environment: Mapping[str, str] | None = None) -> tuple[bool | None, str]:
    """Return whether MPI accepts device arrays (None: unknown), and the source of this information.

    The first of these sources that gives an answer: `MPIDEC_GPU_MPI=on|off`; the library
    (`MPIX_Query_cuda_support`, `MPIX_GPU_query_support`); the environment variables that enable it
    in the known libraries.

    Raises
    ------
    ValueError
        If `MPIDEC_GPU_MPI` has another value.

    Examples
    --------
    >>> detect_cuda({"MPIDEC_GPU_MPI": "off"})
    (False, 'MPIDEC_GPU_MPI=off')
    """
    environment = os.environ if environment is None else environment
    choice = (environment.get("MPIDEC_GPU_MPI") or "auto").lower()
    if choice not in CHOICES:
        raise ValueError(
            f"MPIDEC_GPU_MPI is {environment['MPIDEC_GPU_MPI']!r}, expected one of "
            f"{', '.join(CHOICES)}"
        )
    if choice != "auto":
        return choice == "on", f"MPIDEC_GPU_MPI={choice}"
    answer = query_library()
    if answer is not None:
        return answer
    for variable, values in ENVIRONMENT.items():
        if environment.get(variable, "").lower() in values:
            return True, f"{variable}={environment[variable]}"
    return None, "the library has no MPIX_Query_cuda_support, and no known variable enables it"


@lru_cache
def cuda_aware() -> tuple[bool, str]:
    """Return whether device arrays are passed to MPI, and the reason; determined once per
    process.
    """
    aware, reason = detect_cuda()
    return bool(aware), reason


def query_library() -> tuple[bool, str] | None:
    """Return the answer of the MPI library that mpi4py has loaded, and the function that gave it;
    None if it has no such function.
    """
    try:
        # Looks symbols up in the libraries that this module is linked with, too.
        library = ctypes.CDLL(MPI.__file__)
    except OSError:
        return None
    for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support"):
        try:
            function = getattr(library, name)
        except AttributeError:
            continue
        function.restype = ctypes.c_int
        if name == "MPIX_Query_cuda_support":
            function.argtypes = []
            return function() == 1, name
        supported = ctypes.c_int(0)
        function.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
        if function(_MPICH_CUDA, ctypes.byref(supported)) == MPI.SUCCESS:
            return bool(supported.value), name
    return None


class DeviceRows:
    """Contiguous rows in device memory as an MPI buffer (by `__cuda_array_interface__`).

    Parameters
    ----------
    address : int
        Address of row 0.
    count, row_bytes : int
        Number of rows, and size of a row.
    owner : object
        The array that owns the memory; kept alive.
    """

    def __init__(self, address: int, count: int, row_bytes: int, owner: object):
        self._address, self._count, self._row_bytes, self._owner = address, count, row_bytes, owner

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> DeviceRows:
        start, stop, _ = rows.indices(self._count)
        return DeviceRows(
            self._address + start * self._row_bytes,
            max(stop - start, 0),
            self._row_bytes,
            self._owner,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        nbytes = self._count * self._row_bytes
        address = self._address if nbytes else 0
        return {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
