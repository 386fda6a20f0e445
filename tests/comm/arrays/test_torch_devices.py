"""Tensors on a device without one: the calls of torch.cuda go to a stand-in, all else is PyTorch's own on CPU tensors."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from mpidec.comm.arrays.devices import Torch, torch_format

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.serial


class Stream:
    def __init__(self):
        self.waited = 0

    def synchronize(self):
        self.waited += 1


class Cuda:
    """torch.cuda with a current stream that is not the default one; events know their stream."""

    def __init__(self):
        self.current, self.default, self.entered = Stream(), Stream(), []
        self.Event = lambda: SimpleNamespace(record=self.events.append)
        self.events = []

    def current_stream(self, place=None):
        return self.current

    def default_stream(self, place=None):
        return self.default

    @contextlib.contextmanager
    def device(self, place):
        self.entered.append(place)
        yield


class OnCPU(Torch):
    kind = "cpu"

    def __init__(self):
        self.cuda = Cuda()

    @property
    def library(self):
        def empty(*args, pin_memory=False, **options):
            return torch.empty(*args, **options)

        return SimpleNamespace(**vars(torch) | {"cuda": self.cuda, "empty": empty})


def test_work_is_waited_for_on_the_stream_that_is_current():
    device, X = OnCPU(), torch.arange(6.0).reshape(3, 2)
    device.synchronize(X.device)
    assert (device.cuda.current.waited, device.cuda.default.waited) == (1, 0)
    memory, seen = device.pinned(24)
    buffer = memory.view(torch.float32)
    device.copy_out(X.reshape(-1), buffer)
    assert seen.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    back = torch.zeros(6)
    device.copy_in(back, buffer)
    assert torch.equal(back, X.reshape(-1))
    assert device.cuda.events == [device.cuda.current] * 2
    with device.on(X.device):
        assert device.cuda.entered == [X.device]


def views(X):
    """Tensors whose memory is not what they say: of gradients, transposed, negated, conjugated."""
    yield X
    yield X.clone().requires_grad_()
    yield X.t().contiguous().t()
    yield (-X)._neg_view()
    if X.is_complex():
        yield X.conj().clone().conj()
        yield X.resolve_conj().conj().resolve_conj().conj()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_what_is_sent_are_the_numbers_of_a_tensor(dtype):
    device = OnCPU()
    X = torch.randn(3, 4, dtype=torch.complex64 if dtype.is_complex else torch.float64).to(dtype)
    expected = X.contiguous().reshape(-1).view(torch.uint8)
    for Y in views(X):
        assert torch.equal(Y.detach().resolve_conj().resolve_neg(), X)
        assert torch.equal(device.bytes(Y), expected)
        flat = device.flat(Y)
        assert torch.equal(flat, X) and not (flat.is_neg() or flat.is_conj())
        real = device.real(flat)
        again = device.from_real(real, X.shape, torch_format(dtype))
        assert torch.equal(again, X)
    assert device.span(X) == (X.data_ptr(), X.data_ptr() + X.numel() * X.element_size())
    assert device.matches({"torch"}, X) and not device.matches({"numpy"}, X)
    other = device.constant(np.ones((2, 4)), X.device)
    assert device.concatenate([other, device.zeros_like(other)], 0).sum() == 8
