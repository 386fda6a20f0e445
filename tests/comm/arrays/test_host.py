"""Arrays of any library as NumPy arrays: PyTorch on the CPU, byte orders, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import launch
from helpers.formats import FORMATS, expected, network, pytorch, some, stack

import mpidec
from mpidec.comm.arrays import devices, host as arrays
from mpidec.comm.arrays.formats import BFLOAT16

pytestmark = pytest.mark.most(2)


def test_rows_for_a_kind(device):
    with mpidec.Network(5) as net:
        X = net.empty(3, like=device.garbage((2,), "<f4", 1))
        assert (X.shape, X.format, X.place) == ((net.m, 3), "<f4", 1)
        assert net.empty((2, 2), np.float32, like=np.ones(3)).dtype == np.float32
        assert net.empty(2).dtype == np.float64


def test_other_byte_orders():
    X = stack()
    with network() as (W, mine):
        np.testing.assert_array_equal(W(X[mine].astype(">f8")), W(X[mine]))


@pytest.mark.parametrize("transport", ["auto", "p2p"])
@pytest.mark.parametrize("format", some(FORMATS))
def test_tensors(format, transport):
    torch = pytorch()
    X, dtype = stack(shape=(3, 2), format=format), devices.torch_dtype(format)
    with network(transport=transport) as (W, mine):
        tensor = torch.from_numpy(X[mine].copy()).to(dtype)
        Y, out = W(tensor), torch.empty_like(tensor)
        assert isinstance(Y, torch.Tensor) and Y.dtype == dtype and Y.shape == tensor.shape
        plain = lambda Z: (Z.float() if format == BFLOAT16 else Z).numpy()
        np.testing.assert_array_equal(plain(Y), expected(W, X[mine], format))
        assert W(tensor, out=out) is out and torch.equal(out, Y)
        assert torch.equal(tensor, torch.from_numpy(X[mine].copy()).to(dtype))
        many = W({"a": tensor, "b": tensor[..., :1]})
        assert torch.equal(many["a"], Y) and torch.equal(many["b"], Y[..., :1])


def test_tensors_are_not_copied():
    torch = pytorch()
    X = np.ones((4, 100))
    rows, restore = arrays.as_rows(torch.from_numpy(X), 4)
    assert np.shares_memory(rows, X) and np.shares_memory(restore(rows).numpy(), X)
    with mpidec.Network(5) as net:
        rows = net.empty(3, like=torch.ones(2, dtype=torch.float32))
        assert rows.dtype == torch.float32 and rows.shape == (net.m, 3)


def test_tensors_with_a_history():
    torch = pytorch()
    X = stack(shape=(3, 2), format="<c16")
    with network() as (W, mine):
        tensor = torch.from_numpy(X[mine])
        parameter = torch.nn.Parameter(tensor.clone())
        assert W(parameter).requires_grad and torch.equal(W(parameter), W(tensor))
        assert torch.equal(W(tensor.conj()), torch.from_numpy(W(X[mine].conj())))
        assert torch.equal(
            W(tensor.transpose(1, 2)), torch.from_numpy(W(X[mine].transpose(0, 2, 1)))
        )
        assert torch.equal(W(tensor.imag), torch.from_numpy(W(X[mine].imag)))


def test_tensors_that_cannot_be_read():
    torch = pytorch()
    with network() as (W, _):
        rows = torch.ones((W.m, 2))
        for wrong, said in [
            (rows.to("meta"), "is on device meta"),
            (rows.to_sparse(), "to_dense"),
            (rows.to(int), "rows have dtype int64"),
            (rows.to(torch.bool), "rows have dtype bool"),
            (rows.to(torch.float8_e5m2), "float8_e5m2, expected"),
        ]:
            with pytest.raises(TypeError, match=said):
                W(wrong)
        with pytest.raises(ValueError, match="expected a C-contiguous array"):
            W(torch.ones((W.m, 2)), out=torch.empty((2, W.m + 1)))


def test_arrays_of_unknown_devices():
    class Foreign:
        __cuda_array_interface__ = {"shape": (1,)}  # noqa: RUF012

    with pytest.raises(
        TypeError, match=r"Foreign on a device, expected an array of cupy or torch: cupy\.asarray"
    ):
        arrays.to_host(Foreign())


@pytest.mark.launch
def test_numpy_rows_import_no_other_library():
    code = (
        "import sys, numpy as np, mpidec\nwith mpidec.Network(3) as net:\n    W = net.mixer(mpidec.topology.ring(3))\n"
        "    W(np.ones((3, 2), np.float32)); W([np.ones(3), np.ones((3, 1))]); net.allreduce\n"
        "assert not {'torch', 'cupy'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=launch.patient(60), env=dict(os.environ)
    )
