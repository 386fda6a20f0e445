"""Mixing of rows that stay on a device, with a stand-in for devices."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from helpers import standin
from helpers.formats import FORMATS, N, expected, network, some, stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.arrays.formats import BFLOAT16
from mpidec.comm.transport import device as transport_device

pytestmark = pytest.mark.most(2)


@pytest.mark.parametrize("transport", ["auto", "neighbor", "p2p"])
@pytest.mark.parametrize("format", some(FORMATS))
def test_device_rows_give_the_bits_of_the_host(device, aware, format, transport):
    X = stack(shape=(5, 3), format=format)
    with network(transport=transport) as (W, mine):
        Y = W(device.array(X[mine], format, place=1))
        assert isinstance(Y, standin.Array) and (Y.place, Y.format, Y.shape) == (
            1,
            format,
            X[mine].shape,
        )
        np.testing.assert_array_equal(Y.get(), expected(W, X[mine], format))


@pytest.mark.parametrize("topology", [T.star(N), T.one_peer_exponential(8), T.ring(1030)])
def test_any_topology_on_a_device(device, aware, topology):
    X = stack(topology.n)
    with network(topology.n, topology, "p2p") as (W, mine):
        Y, Z = device.array(X[mine]), X[mine]
        for k in range(3):
            Y, Z = W.at(k)(Y), W.at(k)(Z)
        np.testing.assert_array_equal(Y.get(), Z)


def test_any_layout_on_a_device(device, aware):
    X = stack(N, (4, 2))
    with network() as (W, mine):
        D = device.array(np.repeat(X[mine], 2, axis=1))
        np.testing.assert_array_equal(W(D.view(D._memory[:, ::2])).get(), W(X[mine]))
        assert W(device.array(np.ones((W.m, 0)))).shape == (W.m, 0)
        np.testing.assert_array_equal(W(device.array(np.ones(W.m))).get(), np.ones(W.m))


def test_out_on_a_device(device, aware):
    X = stack(format="<f4")
    with network(transport="p2p") as (W, mine):
        D, out = device.array(X[mine], place=1), device.garbage(X[mine].shape, "<f4", 1)
        assert W(D, out=out) is out
        np.testing.assert_array_equal(out.get(), W(X[mine]))
        np.testing.assert_array_equal(D.get(), X[mine])
        if W.m:
            with pytest.raises(ValueError, match="overlaps"):
                W(D, out=D)
        for wrong in (
            np.empty_like(X[mine]),
            device.garbage(X[mine].shape, "<f4", 0),
            device.garbage(X[mine].shape, "<f8", 1),
            device.garbage((W.m, 9), "<f4", 1),
        ):
            with pytest.raises(
                ValueError, match="expected a C-contiguous stand-in array on the same device"
            ):
                W(D, out=wrong)


def test_wrong_rows_on_a_device(device, aware):
    with network() as (W, _):
        with pytest.raises(ValueError, match="rows have shape"):
            W(device.array(np.ones((W.m + 1, 2))))
        with pytest.raises(TypeError, match="rows have dtype int64, expected floating-point"):
            W(device.array(np.ones((W.m, 2), int)))


def test_many_device_arrays_in_one_message(device, aware):
    X, p, q = stack(shape=(3, 2)), stack(shape=(), seed=1), stack(shape=(2,), format="<f4")
    with network() as (W, mine):
        D, rounds = [device.array(Z[mine]) for Z in (X, p)], W.rounds
        Y = W(D)
        assert W.rounds == rounds + 1 and all(isinstance(Z, standin.Array) for Z in Y)
        for got, Z in zip(Y, (X, p)):
            np.testing.assert_array_equal(got.get(), W(Z[mine]))
        named, rounds = (
            W({"x": device.array(X[mine]), "q": device.array(q[mine]), "p": p[mine]}),
            W.rounds,
        )
        assert list(named) == ["x", "q", "p"] and isinstance(named["p"], np.ndarray)
        for name, Z in {"x": X, "q": q}.items():
            np.testing.assert_array_equal(named[name].get(), W(Z[mine]))
        with pytest.raises(TypeError, match="several arrays"):
            W(D, out=D[0])


def test_pending_device_mixings_in_any_order(device, aware):
    stacks = [stack(shape=(k + 1,), seed=k) for k in range(4)]
    with network(transport="p2p") as (W, mine):
        pending = [W.start(device.array(X[mine])) for X in stacks]
        for k in (2, 0, 3, 1):
            np.testing.assert_array_equal(pending[k].wait().get(), W(stacks[k][mine]))


def test_bytes_are_counted_alike(device, aware):
    for format, size in (("<f8", 8), (BFLOAT16, 2), ("<f2", 2), ("<c8", 8)):
        with network() as (W, mine):
            W(device.array(stack(shape=(5,), format=format)[mine], format))
            messages, sent = MPI.COMM_WORLD.allreduce(W.messages), MPI.COMM_WORLD.allreduce(W.bytes)
            assert (messages, sent) == (3 * N, 3 * N * 5 * size) and W.rounds == 1


def test_ranks_with_and_without_device_rows(device, monkeypatch):
    """Either they meet, or they are told: nobody waits for ever."""
    X = stack()
    for aware in (False, True):
        monkeypatch.setattr(
            transport_device, "cuda_aware", lambda aware=aware: (aware, "the test says so")
        )
        net = mpidec.Network(N, transport="p2p")
        W, rows = net.mixer(T.complete(N)), X[net.lo : net.hi]
        given = device.array(rows) if net.rank % 2 else rows
        if aware and net.size > 1:
            with (
                pytest.raises(ValueError, match=r"W\(X\) from device to device")
                if net.m
                else contextlib.nullcontext()
            ):
                W(given)
            net.comm.Barrier()
        else:
            Y = W(given)
            np.testing.assert_array_equal(Y.get() if isinstance(Y, standin.Array) else Y, W(rows))
            net.close()
