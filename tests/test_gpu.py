"""CuPy arrays and PyTorch tensors on real devices, against the same rows on the host; run alone, or under mpirun."""
from __future__ import annotations

import contextlib

import numpy as np
import pytest
from mpi4py import MPI
from test_arrays import FORMATS, N, stack

import mpidec
from mpidec import topology as T
from mpidec.arrays import devices
from mpidec.arrays import host as arrays
from mpidec.arrays.formats import BFLOAT16, narrow, widen
from mpidec.mixing import phase
from mpidec.runtime import cuda_aware

pytestmark = pytest.mark.gpu


class CuPy:
    """What the tests need of one library."""

    def __init__(self):
        self.library = pytest.importorskip("cupy")
        self.device = devices.CuPy()

    def array(self, values, format):
        return self.library.asarray(values)

    def host(self, X):
        return X.get()

    @contextlib.contextmanager
    def stream(self):
        with self.library.cuda.Stream(non_blocking=True):
            yield

    def slow(self, values):
        """An array whose making takes a while on the current stream."""
        busy = self.library.ones((3000, 3000))
        for _ in range(20):
            busy = busy @ busy / 3000
        return self.library.asarray(values) + 0 * busy.sum()


class Torch:
    """The same."""

    def __init__(self):
        self.library = pytest.importorskip("torch")
        if not self.library.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")
        self.device = devices.Torch()

    def array(self, values, format):
        return self.library.from_numpy(np.ascontiguousarray(values)).to("cuda", devices.torch_dtype(format))

    def host(self, X):
        return (X.float() if X.dtype == self.library.bfloat16 else X).cpu().numpy()

    @contextlib.contextmanager
    def stream(self):
        with self.library.cuda.stream(self.library.cuda.Stream()):
            yield

    def slow(self, values):
        busy = self.library.ones((3000, 3000), device="cuda", dtype=self.library.float64)
        for _ in range(20):
            busy = busy @ busy / 3000
        return self.library.from_numpy(np.ascontiguousarray(values)).cuda() + 0 * busy.sum()


@pytest.fixture(params=[CuPy, Torch])
def kind(request):
    return request.param()


@pytest.fixture(params=["staged", "aware"])
def aware(request, monkeypatch):
    if request.param == "aware" and MPI.COMM_WORLD.size > 1 and not cuda_aware.cuda_aware()[0]:
        pytest.skip(f"MPI takes no device arrays: {cuda_aware.cuda_aware()[1]}")
    monkeypatch.setattr(phase, "cuda_aware", lambda: (request.param == "aware", "the test says so"))


@pytest.mark.parametrize("transport", ["auto", "neighbor", "p2p"])
@pytest.mark.parametrize("format", FORMATS)
def test_device_rows_give_the_bits_of_the_host(kind, aware, format, transport):
    if format == BFLOAT16 and isinstance(kind, CuPy):
        pytest.skip("CuPy has no bfloat16")
    X = stack(shape=(5, 3), format=format)
    with mpidec.Network(N, transport=transport) as net:
        W, rows = net.mixer(T.exponential(N)), X[net.lo:net.hi]
        D = kind.array(rows, format)
        Y = W(D)
        assert type(Y) is type(D) and Y.dtype == D.dtype and Y.shape == D.shape and Y.device == D.device
        want = W(rows.astype(np.float32)) if format == BFLOAT16 else W(rows)
        np.testing.assert_array_equal(kind.host(Y), widen(narrow(want, BFLOAT16), BFLOAT16) if format == BFLOAT16 else want)
        dense = np.tensordot(T.exponential(N).W.toarray(), X, 1)[net.lo:net.hi]
        np.testing.assert_allclose(kind.host(Y), dense, rtol=0, atol=2e-2 if format in ("<f2", BFLOAT16) else 1e-5)


@pytest.mark.parametrize("size", [1, 1000, 3_000_001])
def test_there_and_back(kind, size):
    X = np.random.default_rng(0).standard_normal(size)          # 24 MB: more pieces than buffers
    host, format, restore = arrays.to_host(kind.array(X, "<f8"))
    np.testing.assert_array_equal(host, X)
    back = restore(host, format)
    host[...] = 0
    np.testing.assert_array_equal(kind.host(back), X)


def test_another_stream_is_the_current_one(kind, aware):
    X = stack(shape=(1000,))
    with mpidec.Network(N) as net:
        W, rows = net.mixer(T.exponential(N)), X[net.lo:net.hi]
        for _ in range(3):
            with kind.stream():
                Y = W(kind.slow(rows))
                Y += 1
                got = kind.host(Y)
            np.testing.assert_array_equal(got, W(rows) + 1)


def test_out_and_many_and_pending(kind, aware):
    X, p = stack(shape=(4, 2)), stack(shape=(), seed=1)
    with mpidec.Network(N, transport="p2p") as net:
        W, mine = net.mixer(T.star(N)), slice(net.lo, net.hi)
        D, q = kind.array(X[mine], "<f8"), kind.array(p[mine], "<f8")
        out = kind.array(np.zeros_like(X[mine]), "<f8")
        assert W(D, out=out) is out
        np.testing.assert_array_equal(kind.host(out), W(X[mine]))
        np.testing.assert_array_equal(kind.host(D), X[mine])
        many = W({"x": D, "p": q})
        np.testing.assert_array_equal(kind.host(many["x"]), W(X[mine]))
        np.testing.assert_array_equal(kind.host(many["p"]), W(p[mine]))
        pending = [W.start(D), W.start(q)]
        np.testing.assert_array_equal(kind.host(pending[1].wait()), W(p[mine]))
        np.testing.assert_array_equal(kind.host(pending[0].wait()), W(X[mine]))
        swapped = D.transpose(1, 2) if isinstance(kind, Torch) else D.transpose(0, 2, 1)
        np.testing.assert_array_equal(kind.host(W(swapped)), W(X[mine].transpose(0, 2, 1)))
        rows = net.empty(3, like=D)
        assert type(rows) is type(D) and rows.dtype == D.dtype and rows.device == D.device


def test_a_thousand_agents_on_a_device(kind):
    X = stack(1030, (4,))
    with mpidec.Network(1030) as net:
        W, rows = net.mixer(T.ring(1030)), X[net.lo:net.hi]
        np.testing.assert_array_equal(kind.host(W(kind.array(rows, "<f8"))), W(rows))


@pytest.mark.parametrize("format", ["<f4", "<c16", "<f2"])
def test_every_local_call(kind, format):
    with mpidec.Network() as net:
        r, n = net.rank, net.size
        X = stack(n, (4, 2), format)
        net.set_topology(T.ring(n))
        net.set_machine_topology(T.ring(len(net.machines())))
        calls = [lambda x: net.neighbor_allreduce(x), lambda x: net.neighbor_allgather(x), lambda x: net.allreduce(x),
                 lambda x: net.broadcast(x, 0), lambda x: net.hierarchical_neighbor_allreduce(x),
                 lambda x: net.neighbor_allreduce(x, 0.5, {(r - 1) % n: 0.5} if n > 1 else {}, [(r + 1) % n] if n > 1 else []),
                 lambda x: net.exchange({(r + 1) % n: x}, [(r - 1) % n])[(r - 1) % n] if n > 1 else x,
                 lambda x: net.pair_gossip(x, r ^ 1) if r < n - n % 2 else x]
        for call in calls:
            D = kind.array(X[r], format)
            Y = call(D)
            assert type(Y) is type(D) and Y.dtype == D.dtype and Y.device == D.device
            np.testing.assert_array_equal(kind.host(Y), call(X[r]))


def test_the_pinned_memory_is_pinned(kind):
    memory, view = kind.device.pinned(1 << 20)
    view[:] = 7
    assert memory[5] == 7
    if isinstance(kind, Torch):
        assert memory.is_pinned()


def test_gradients_are_left_behind():
    kind = Torch()
    with mpidec.Network(N) as net:
        W, X = net.mixer(T.ring(N)), stack()
        parameter = kind.library.nn.Parameter(kind.array(X[net.lo:net.hi], "<f8"))
        Y = W(parameter)
        assert not Y.requires_grad
        np.testing.assert_array_equal(kind.host(Y), W(X[net.lo:net.hi]))
