"""Copies between device and host, of a stand-in for devices."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.formats import network, stack
from mpi4py import MPI

import mpidec
from mpidec.comm.arrays import host as arrays

pytestmark = pytest.mark.most(2)


def test_start_has_copied_when_it_returns(device):
    X = stack()
    with network(transport="neighbor") as (W, mine):
        if MPI.COMM_WORLD.size == 1:
            pytest.skip("in one process the rows stay on the device")
        D = device.array(X[mine])
        pending = W.start(D)
        D._memory[...] = np.nan
        np.testing.assert_array_equal(pending.wait().get(), W(X[mine]))


def test_the_current_stream_is_synchronized_and_pieces_take_turns(device):
    X = stack(8, (100,))
    with mpidec.Network(8) as net:
        rows = X[net.lo : net.hi]
        device.switch(0)
        D, behind = device.array(rows), device.streams[0].add(lambda: None)
        host, _, restore = arrays.to_host(D)
        np.testing.assert_array_equal(host, rows)
        pieces = -(-rows.nbytes // 40)
        assert device.count("synchronize") == (pieces > 0) and device.count("out") == pieces
        assert max((size for kind, size in device.log if kind == "out"), default=40) == 40
        assert behind.number > device.streams[0].done  # another stream was left alone
        back = restore(host, "<f8")
        host[...] = np.nan  # it may change at once
        assert device.count("in") == pieces
        np.testing.assert_array_equal(back.get(), rows)


def test_buffers_are_made_once(device, monkeypatch):
    made = []
    pinned = device.pinned
    monkeypatch.setattr(device, "pinned", lambda nbytes: made.append(nbytes) or pinned(nbytes))
    for _ in range(5):
        arrays.to_host(device.array(np.ones(100)))
    assert made == [40, 40]
