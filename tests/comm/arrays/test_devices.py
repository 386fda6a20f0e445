"""Device arrays of PyTorch and CuPy, by what they call."""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import pytest
from helpers import fake_cupy, standin
from helpers.formats import FORMATS, N, expected, network, pytorch, some, stack

from mpidec import topology as T
from mpidec.comm.arrays import devices, host as arrays, staging
from mpidec.comm.arrays.formats import BFLOAT16
from mpidec.comm.transport import device as transport_device

pytestmark = pytest.mark.most(2)


def test_the_stand_in_is_strict(device):
    X = device.array([1.0, 2.0])
    with pytest.raises(TypeError):
        np.asarray(X)
    with pytest.raises(RuntimeError, match="before the stream"):
        device.copy_out(device.bytes(X), np.empty(16, np.uint8))
    assert np.isnan(X._memory).all()
    np.testing.assert_array_equal(X.get(), [1.0, 2.0])


@pytest.mark.parametrize("format", some(FORMATS, [BFLOAT16]))
def test_torch_on_a_device_by_its_operations(format, monkeypatch):
    """All of `devices.Torch` but for the calls that need a device."""
    torch = pytorch()

    class OnCpu(devices.Torch):
        kind = "cpu"
        on = staticmethod(lambda place: contextlib.nullcontext())
        synchronize = staticmethod(lambda place: None)
        _record = staticmethod(lambda place: standin.Stream().add(lambda: None))

        def pinned(self, nbytes):
            memory = torch.empty(nbytes, dtype=torch.uint8)
            return memory, memory.numpy()

    monkeypatch.setattr(devices, "KNOWN", [OnCpu()])
    monkeypatch.setattr(staging, "CHUNK", 40)
    X, dtype = stack(shape=(3, 2), format=format), devices.torch_dtype(format)
    plain = lambda Z: (Z.float() if format == BFLOAT16 else Z).numpy()
    for aware in (False, True):
        monkeypatch.setattr(
            transport_device, "cuda_aware", lambda aware=aware: (aware, "the test says so")
        )
        for topology in (T.exponential(N), T.star(N)):
            with network(N, topology, "p2p") as (W, mine):
                tensor = torch.from_numpy(X[mine].copy()).to(dtype)
                Y, out = W(tensor), torch.empty_like(tensor)
                assert Y.dtype == dtype
                np.testing.assert_array_equal(plain(Y), expected(W, X[mine], format))
                assert W(tensor, out=out) is out and torch.equal(out, Y)
                assert torch.equal(W([tensor, tensor[:, 0]])[1], Y[:, 0])
                host, code, restore = arrays.to_host(tensor)
                assert torch.equal(restore(host, code), tensor)
    with network(1100, T.ring(1100)) as (W, mine):
        Z = stack(1100, (2,), format)
        np.testing.assert_array_equal(
            plain(W(torch.from_numpy(Z[mine].copy()).to(dtype))), expected(W, Z[mine], format)
        )


@pytest.mark.parametrize(
    "format", some([format for format in FORMATS if format != BFLOAT16], ["<f4"])
)
def test_cupy_by_what_is_called(format, aware, monkeypatch):
    """All of `devices.CuPy`, with a module that looks like CuPy."""
    cupy = fake_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(staging, "CHUNK", 40)
    monkeypatch.setattr(staging, "_SPARE", {})
    for n, topology in ((N, T.exponential(N)), (N, T.star(N)), (1100, T.ring(1100))):
        X = stack(n, (3, 2), format)
        with network(n, topology, "p2p") as (W, mine):
            D, out = cupy.asarray(X[mine]), cupy.asarray(np.zeros_like(X[mine]))
            Y = W(D)
            assert type(Y) is fake_cupy.ndarray and Y.dtype == format
            np.testing.assert_array_equal(Y.get(), expected(W, X[mine], format))
            assert W(D, out=out) is out
            np.testing.assert_array_equal(out.get(), Y.get())
            np.testing.assert_array_equal(W([D, D[:, :1]])[1].get(), Y.get()[:, :1])
            np.testing.assert_array_equal(W(D.transpose(0, 2, 1)).get(), Y.get().transpose(0, 2, 1))
            if W.m:
                with pytest.raises(ValueError, match="overlaps"):
                    W(D, out=D)
            assert type(arrays.empty_like(D, (W.m, 3), None, np.empty)) is fake_cupy.ndarray
            host, code, restore = arrays.to_host(D)
            np.testing.assert_array_equal(host, X[mine])
            np.testing.assert_array_equal(restore(host, code).get(), X[mine])
    assert cupy.cuda.get_current_stream().synchronized
