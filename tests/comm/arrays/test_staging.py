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


@pytest.mark.parametrize("way", ["copy_in", "copy_out"])
def test_buffers_of_a_copy_that_failed_are_not_used_again(device, monkeypatch, way):
    """A copy that was begun may still read or write them."""
    X = np.ones(100)

    def there_and_back():
        host, _, restore = arrays.to_host(device.array(X))
        return restore(host, "<f8").get()

    there_and_back()
    made, pinned, copy = [], device.pinned, getattr(device, way)
    monkeypatch.setattr(device, "pinned", lambda nbytes: made.append(nbytes) or pinned(nbytes))
    calls = []

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("the device is lost")
        return copy(*args)

    monkeypatch.setattr(device, way, failing)
    with pytest.raises(RuntimeError, match="lost"):
        there_and_back()
    monkeypatch.setattr(device, way, copy)
    np.testing.assert_array_equal(there_and_back(), X)
    assert made == [40, 40]
