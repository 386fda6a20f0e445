"""Kinds of arrays: PyTorch on the CPU, 16-bit floats, and a stand-in for devices; run alone, or under mpirun."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import fake_cupy, launch, standin
from helpers.formats import FORMATS, N, stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.arrays import devices, host as arrays, staging
from mpidec.comm.arrays.formats import BFLOAT16, narrow, widen
from mpidec.comm.runtime import cuda_aware
from mpidec.comm.transport import device as transport_device

pytestmark = pytest.mark.most(2)


def some(formats, quick=("<f4", "<c16", BFLOAT16)):
    """The formats as parameters, most of them slow under several ranks."""
    return [
        pytest.param(
            one, marks=pytest.mark.slow if MPI.COMM_WORLD.size > 1 and one not in quick else ()
        )
        for one in formats
    ]


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


def rounded(X, format):
    return widen(narrow(X, BFLOAT16), BFLOAT16) if format == BFLOAT16 else X.astype(format)


def expected(W, X, format):
    """`W X` by NumPy rows in the precision of the arithmetic, rounded once."""
    wide = X.astype(np.float32) if format in ("<f2", BFLOAT16) else X
    return rounded(W(wide), format)


def pytorch():
    """The module; not on many ranks, whose imports take longer than all the tests."""
    if MPI.COMM_WORLD.size > 4:
        pytest.skip("PyTorch on up to 4 ranks")
    return pytest.importorskip("torch")


@contextlib.contextmanager
def network(n=N, topology=None, transport="auto"):
    """A mixer, and this rank's slice."""
    with mpidec.Network(n, transport=transport) as net:
        yield net.mixer(topology or T.exponential(n)), slice(net.lo, net.hi)


# -- the stand-in -----------------------------------------------------------------------------------------------------


def test_the_stand_in_is_strict(device):
    X = device.array([1.0, 2.0])
    with pytest.raises(TypeError):
        np.asarray(X)
    with pytest.raises(RuntimeError, match="before the stream"):
        device.copy_out(device.bytes(X), np.empty(16, np.uint8))
    assert np.isnan(X._memory).all()
    np.testing.assert_array_equal(X.get(), [1.0, 2.0])


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


def test_a_bad_choice_is_an_error(device, monkeypatch):
    monkeypatch.setenv("MPIDEC_GPU_MPI", "yes")
    cuda_aware.cuda_aware.cache_clear()
    with (
        network() as (W, mine),
        pytest.raises(ValueError, match="MPIDEC_GPU_MPI is 'yes', expected one of auto, on, off"),
    ):
        W(device.array(stack()[mine]))


@pytest.mark.parametrize("format", some(["<f4", "<c16", "<f2", BFLOAT16], ["<c16", BFLOAT16]))
def test_every_local_call_takes_device_arrays(device, format):
    net = mpidec.Network()
    r, n, X = net.rank, net.size, stack(net.size, (4, 2), format)
    plain = X if format != BFLOAT16 else X.astype(np.float32)
    once = 1e-6 if format not in ("<f2", BFLOAT16) else 2e-2
    own = lambda rank=r: device.array(X[rank], format, place=1)
    right, left = (r + 1) % n, (r - 1) % n

    def check(got, want):
        assert isinstance(got, standin.Array) and (got.format, got.place) == (format, 1)
        np.testing.assert_allclose(got.get().astype(complex), want, rtol=once, atol=once)

    net.set_topology(T.ring(n))
    net.set_machine_topology(T.ring(len(net.machines())))
    check(net.neighbor_allreduce(own()), np.tensordot(T.ring(n).W.toarray(), plain, 1)[r])
    check(
        net.neighbor_allgather(own()),
        np.concatenate([plain[:0].reshape(0, 2), *(plain[j] for j in T.ring(n).in_neighbors(r))]),
    )
    check(net.allreduce(own()), plain.astype(complex).mean(axis=0))
    check(net.broadcast(own(), root=n - 1), plain[n - 1])
    Wm, machines = T.ring(len(net.machines())).W.toarray(), net.machines()
    means = np.array([plain[ranks].astype(complex).mean(axis=0) for ranks in machines])
    check(
        net.hierarchical_neighbor_allreduce(own()),
        np.tensordot(Wm, means, 1)[next(i for i, m in enumerate(machines) if r in m)],
    )
    if n > 1:
        check(
            net.neighbor_allreduce(own(), 0.5, {left: 0.5}, [right]), plain[r] / 2 + plain[left] / 2
        )
        check(net.exchange({right: own()}, src_ranks=[left])[left], plain[left])
    if r < n - n % 2:
        check(net.pair_gossip(own(), r ^ 1), plain[r] / 2 + plain[r ^ 1] / 2)
    assert device.count("synchronize") >= 4
    net.close()


def test_rows_for_a_kind(device):
    with mpidec.Network(5) as net:
        X = net.empty(3, like=device.garbage((2,), "<f4", 1))
        assert (X.shape, X.format, X.place) == ((net.m, 3), "<f4", 1)
        assert net.empty((2, 2), np.float32, like=np.ones(3)).dtype == np.float32
        assert net.empty(2).dtype == np.float64


# -- 16 bits, and byte orders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_float16_is_summed_in_float32_and_rounded_once(transport):
    X = stack(40, (50,), "<f2")
    with network(40, T.complete(40), transport) as (W, mine):
        Y, out = W(X[mine]), np.empty_like(X[mine])
        assert Y.dtype == np.float16 and W(X[mine], out=out) is out
        np.testing.assert_array_equal(Y, expected(W, X[mine], "<f2"))
        np.testing.assert_array_equal(out, Y)
        exact = (T.complete(40).W @ X.astype(float))[mine]
        assert (np.abs(Y - exact) <= 0.501 * np.spacing(np.abs(Y)) + 1e-6).all()


def test_other_byte_orders():
    X = stack()
    with network() as (W, mine):
        np.testing.assert_array_equal(W(X[mine].astype(">f8")), W(X[mine]))


# -- PyTorch on the CPU -----------------------------------------------------------------------------------------------


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


def test_bfloat16_is_rounded_as_torch_rounds():
    torch = pytorch()
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    bits[:6000] = bits[:6000] & 0xFFFF0000 | 0x8000  # half way between two
    values = np.append(bits, np.uint32([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF])).view(
        np.float32
    )
    numbers = values[~np.isnan(values)]
    np.testing.assert_array_equal(
        narrow(numbers, BFLOAT16).view(np.int16),
        torch.from_numpy(numbers.copy()).to(torch.bfloat16).view(torch.int16).numpy(),
    )
    assert np.isnan(widen(narrow(values[np.isnan(values)], BFLOAT16), BFLOAT16)).all()


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


# -- does MPI take device arrays? -------------------------------------------------------------------------------------


def test_who_is_asked_first(monkeypatch):
    monkeypatch.setattr(cuda_aware, "query_library", lambda: (True, "the library"))
    assert cuda_aware.detect({"MPIDEC_GPU_MPI": "off"}) == (False, "MPIDEC_GPU_MPI=off")
    assert cuda_aware.detect({"MPIDEC_GPU_MPI": "ON"}) == (True, "MPIDEC_GPU_MPI=on")
    assert (
        cuda_aware.detect({"MPIDEC_GPU_MPI": "auto"})
        == cuda_aware.detect({})
        == (True, "the library")
    )
    monkeypatch.setattr(cuda_aware, "query_library", lambda: (False, "the library"))
    assert cuda_aware.detect({"MPICH_GPU_SUPPORT_ENABLED": "1"}) == (False, "the library")
    monkeypatch.setattr(cuda_aware, "query_library", lambda: None)
    assert cuda_aware.detect({"MPICH_GPU_SUPPORT_ENABLED": "1"}) == (
        True,
        "MPICH_GPU_SUPPORT_ENABLED=1",
    )
    assert (
        cuda_aware.detect({"MPICH_GPU_SUPPORT_ENABLED": "0"})[0] is cuda_aware.detect({})[0] is None
    )


def test_the_library_is_asked():
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
