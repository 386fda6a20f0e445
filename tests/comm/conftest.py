"""Fixtures of several rooms of comm."""

from __future__ import annotations

import pytest
from helpers import standin
from helpers.refusals import TRANSPORTS

import mpidec
from mpidec.comm.arrays import devices, staging
from mpidec.comm.transport import device as transport_device


@pytest.fixture
def traced(comm, shared_tmp):
    with mpidec.Network(timeline=str(shared_tmp / "t.")) as net:
        yield net


@pytest.fixture
def device(monkeypatch):
    """A stand-in device, copied in pieces of 40 bytes."""
    made = standin.Standin()
    monkeypatch.setattr(devices, "KNOWN", [made, *devices.KNOWN])
    monkeypatch.setattr(staging, "CHUNK", 40)
    return made


@pytest.fixture(params=["staged", "aware"])
def aware(request, monkeypatch):
    """Whether MPI is said to take device arrays (it takes the stand-in's, whose memory is the host's)."""
    monkeypatch.setattr(
        transport_device, "cuda_aware", lambda: (request.param == "aware", "the test says so")
    )
    return request.param == "aware"


@pytest.fixture
def net():
    with mpidec.Network(transport="shared") as net:
        yield net


@pytest.fixture(params=TRANSPORTS)
def transport(request, monkeypatch):
    monkeypatch.setenv(
        "MPIDEC_TIMEOUT", "600"
    )  # the test's own limit is shorter, and shows where the ranks are
    return request.param
