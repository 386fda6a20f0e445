"""Does MPI take device arrays?"""

from __future__ import annotations

import ctypes

import pytest
from helpers.formats import network, stack
from mpi4py import MPI

from mpidec.comm.runtime import cuda as cuda_aware

pytestmark = pytest.mark.most(2)


def test_a_bad_choice_is_an_error(device, monkeypatch):
    monkeypatch.setenv("MPIDEC_GPU_MPI", "yes")
    cuda_aware.cuda_aware.cache_clear()
    with (
        network() as (W, mine),
        pytest.raises(ValueError, match="MPIDEC_GPU_MPI is 'yes', expected one of auto, on, off"),
    ):
        W(device.array(stack()[mine]))


def test_who_is_asked_first(monkeypatch):
    monkeypatch.setattr(cuda_aware, "query_library", lambda: (True, "the library"))
    assert cuda_aware.detect_cuda({"MPIDEC_GPU_MPI": "off"}) == (False, "MPIDEC_GPU_MPI=off")
    assert cuda_aware.detect_cuda({"MPIDEC_GPU_MPI": "ON"}) == (True, "MPIDEC_GPU_MPI=on")
    assert (
        cuda_aware.detect_cuda({"MPIDEC_GPU_MPI": "auto"})
        == cuda_aware.detect_cuda({})
        == (True, "the library")
    )
    monkeypatch.setattr(cuda_aware, "query_library", lambda: (False, "the library"))
    assert cuda_aware.detect_cuda({"MPICH_GPU_SUPPORT_ENABLED": "1"}) == (False, "the library")
    monkeypatch.setattr(cuda_aware, "query_library", lambda: None)
    assert cuda_aware.detect_cuda({"MPICH_GPU_SUPPORT_ENABLED": "1"}) == (
        True,
        "MPICH_GPU_SUPPORT_ENABLED=1",
    )
    assert (
        cuda_aware.detect_cuda({"MPICH_GPU_SUPPORT_ENABLED": "0"})[0]
        is cuda_aware.detect_cuda({})[0]
        is None
    )


def test_the_library_is_asked():
    assert cuda_aware.MPI.Is_initialized()  # this name loads MPI, as a network does
    said = cuda_aware.query_library()
    library = ctypes.CDLL(MPI.__file__)
    names = [
        name
        for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support")
        if hasattr(library, name)
    ]
    assert said is None if not names else said[1] == names[0] and isinstance(said[0], bool)


def test_what_mpi_is_handed():
    rows = cuda_aware.DeviceRows(1000, 5, 24, None)
    whole = {
        "shape": (120,),
        "typestr": "|u1",
        "data": (1000, False),
        "strides": None,
        "version": 3,
    }
    assert rows.__cuda_array_interface__ == whole
    part = rows[1:3].__cuda_array_interface__
    assert (part["shape"], part["data"], len(rows[4:])) == ((48,), (1024, False), 1)
    assert rows[2:2].__cuda_array_interface__["data"] == (0, False)
