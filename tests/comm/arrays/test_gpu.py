"""CuPy arrays and PyTorch tensors on real devices, against the same rows on the host; run alone, or under mpirun."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from helpers.formats import FORMATS, N, stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.arrays import devices, host as arrays
from mpidec.comm.arrays.formats import BFLOAT16, narrow, widen
from mpidec.comm.runtime import cuda as cuda_aware
from mpidec.comm.transport import device as transport_device

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
        return self.library.from_numpy(np.ascontiguousarray(values)).to(
            "cuda", devices.torch_dtype(format)
        )

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
    monkeypatch.setattr(
        transport_device, "cuda_aware", lambda: (request.param == "aware", "the test says so")
    )


@pytest.mark.parametrize("transport", ["auto", "neighbor", "p2p"])
@pytest.mark.parametrize("format", FORMATS)
def test_device_rows_give_the_bits_of_the_host(kind, aware, format, transport):
    if format == BFLOAT16 and isinstance(kind, CuPy):
        pytest.skip("CuPy has no bfloat16")
    X = stack(shape=(5, 3), format=format)
    with mpidec.Network(N, transport=transport) as net:
        W, rows = net.mixer(T.exponential(N)), X[net.lo : net.hi]
        D = kind.array(rows, format)
        Y = W(D)
        assert (
            type(Y) is type(D)
            and Y.dtype == D.dtype
            and Y.shape == D.shape
            and Y.device == D.device
        )
        want = W(rows.astype(np.float32)) if format == BFLOAT16 else W(rows)
        np.testing.assert_array_equal(
            kind.host(Y), widen(narrow(want, BFLOAT16), BFLOAT16) if format == BFLOAT16 else want
        )
        dense = np.tensordot(T.exponential(N).W.toarray(), X, 1)[net.lo : net.hi]
        np.testing.assert_allclose(
            kind.host(Y), dense, rtol=0, atol=2e-2 if format in ("<f2", BFLOAT16) else 1e-5
        )


@pytest.mark.parametrize("size", [1, 1000, 3_000_001])
def test_there_and_back(kind, size):
    X = np.random.default_rng(0).standard_normal(size)  # 24 MB: more pieces than buffers
    host, format, restore = arrays.to_host(kind.array(X, "<f8"))
    np.testing.assert_array_equal(host, X)
    back = restore(host, format)
    host[...] = 0
    np.testing.assert_array_equal(kind.host(back), X)


def test_another_stream_is_the_current_one(kind, aware):
    X = stack(shape=(1000,))
    with mpidec.Network(N) as net:
        W, rows = net.mixer(T.exponential(N)), X[net.lo : net.hi]
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
        W, rows = net.mixer(T.ring(1030)), X[net.lo : net.hi]
        np.testing.assert_array_equal(kind.host(W(kind.array(rows, "<f8"))), W(rows))


@pytest.mark.parametrize("format", ["<f4", "<c16", "<f2"])
def test_every_local_call(kind, format):
    with mpidec.Network() as net:
        r, n = net.rank, net.size
        X = stack(n, (4, 2), format)
        net.set_topology(T.ring(n))
        net.set_machine_topology(T.ring(len(net.machines())))
        calls = [
            lambda x: net.neighbor_allreduce(x),
            lambda x: net.neighbor_allgather(x),
            lambda x: net.allreduce(x),
            lambda x: net.broadcast(x, 0),
            lambda x: net.hierarchical_neighbor_allreduce(x),
            lambda x: net.neighbor_allreduce(
                x, 0.5, {(r - 1) % n: 0.5} if n > 1 else {}, [(r + 1) % n] if n > 1 else []
            ),
            lambda x: net.exchange({(r + 1) % n: x}, [(r - 1) % n])[(r - 1) % n] if n > 1 else x,
            lambda x: net.pair_gossip(x, r ^ 1) if r < n - n % 2 else x,
        ]
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


def test_gradients_are_mixed_on_the_way_back():
    kind = Torch()
    with mpidec.Network(N) as net:
        W, X = net.mixer(T.ring(N)), stack()
        parameter = kind.library.nn.Parameter(kind.array(X[net.lo : net.hi], "<f8"))
        Y = W(parameter)
        np.testing.assert_array_equal(kind.host(Y.detach()), W(X[net.lo : net.hi]))
        (Y * kind.array(X[net.lo : net.hi], "<f8")).sum().backward()
        np.testing.assert_allclose(
            kind.host(parameter.grad), W(X[net.lo : net.hi]), rtol=1e-14
        )  # W is symmetric


# ---------------------------------------------------------------------------------------------------------------------
# Training: any number of ranks, which share the devices that there are


@pytest.fixture
def cuda():
    """The device of this rank."""
    torch = Torch().library
    return torch.device("cuda", MPI.COMM_WORLD.rank % torch.cuda.device_count())


def network(torch, device, dtype):
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(6, 40),
        torch.nn.Tanh(),
        torch.nn.BatchNorm1d(40),
        torch.nn.Linear(40, 2),
    )
    return torch.nn.Sequential(*layers).to(device, dtype)


def loss_of(torch, model, worker, k):
    """The loss of a worker in step k: the same numbers on every device."""
    draw, where = torch.Generator().manual_seed(1000 * worker + k), next(model.parameters())
    x, y = (
        torch.randn(16, 6, generator=draw).to(where),
        torch.randn(16, 2, generator=draw).to(where),
    )
    return (model(x) - y).square().mean()


def train(torch, model, optimizer, worker, steps):
    for k in steps:
        optimizer.zero_grad()
        loss_of(torch, model, worker, k).backward()
        optimizer.step()


def everything(torch, model):
    """All parameters and floating-point buffers, in the host's memory."""
    tensors = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    return torch.cat([tensor.detach().flatten().cpu().double() for tensor in tensors])


@pytest.mark.parametrize("side_stream", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize(
    "algorithm", ["atc", "awc", "allreduce", "relay", "gradient_tracking", "local"]
)
def test_training_on_a_device_is_that_on_the_host(cuda, algorithm, side_stream):
    torch = Torch().library
    from mpidec import optim

    more = {"every": 3} if algorithm == "local" else {}

    def run(device):
        with mpidec.Network() as net:
            model = network(torch, device, torch.float64)
            base = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
            optimizer = optim.Decentralized(
                base, model, None, algorithm, net, buffers="average", **more
            )
            train(torch, model, optimizer, net.rank, range(9))
            mine = everything(torch, model)
            with optimizer.consensus() as distance:
                average = everything(torch, model)
            assert torch.equal(everything(torch, model), mine)
            assert all(p.device == torch.device(device) for p in model.parameters())
            optimizer.close()
        return mine, average, distance

    expected = run("cpu")
    with torch.cuda.stream(torch.cuda.Stream(cuda)) if side_stream else torch.cuda.device(cuda):
        found = run(cuda)
    for a, b in zip(found[:2], expected):
        assert (a - b).norm() <= 1e-9 * b.norm()
    assert found[2] == pytest.approx(expected[2], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("place", ["cpu", None], ids=["loaded on the host", "loaded on the device"])
@pytest.mark.parametrize("algorithm", ["atc", "awc", "relay", "qg"])
def test_training_on_a_device_resumes_with_the_same_bits(cuda, algorithm, place, shared_tmp):
    torch = Torch().library
    from mpidec import optim

    with mpidec.Network() as net:

        def start():
            model = network(torch, cuda, torch.float32)
            base = (
                torch.optim.SGD(model.parameters(), 0.05)
                if algorithm == "qg"
                else torch.optim.Adam(model.parameters(), 0.01)
            )
            return model, optim.Decentralized(base, model, None, algorithm, net)

        model, optimizer = start()
        train(torch, model, optimizer, net.rank, range(6))
        path = shared_tmp / f"{net.rank}.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        train(torch, model, optimizer, net.rank, range(6, 12))
        optimizer.close()
        again, resumed = start()
        saved = torch.load(path, weights_only=True, map_location=place)
        again.load_state_dict(saved["model"])
        resumed.load_state_dict(saved["optimizer"])
        train(torch, again, resumed, net.rank, range(6, 12))
        resumed.close()
    assert torch.equal(everything(torch, model), everything(torch, again))


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce"])
def test_an_overflow_on_a_device_skips_the_update_of_that_worker(cuda, algorithm):
    torch = Torch().library
    from mpidec import optim

    with mpidec.Network() as net:
        model = network(torch, cuda, torch.float32)
        optimizer = optim.Decentralized(
            torch.optim.SGD(model.parameters(), 0.1), model, algorithm=algorithm, net=net
        )
        scaler = torch.amp.GradScaler(cuda.type, init_scale=4.0)
        for k in range(6):
            optimizer.zero_grad()
            with torch.autocast(cuda.type, torch.float16):
                loss = loss_of(torch, model, net.rank, k)
            scaler.scale(loss).backward()
            if k == 2 and net.rank == 0:
                model[0].weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        optimizer.close()
        assert scaler.get_scale() == (2.0 if net.rank == 0 else 4.0)
    assert torch.isfinite(everything(torch, model)).all()


def test_a_model_may_lie_on_the_host_and_on_a_device(cuda):
    torch = Torch().library
    from mpidec import optim

    class Halves(torch.nn.Module):
        def __init__(self, device):
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Linear(6, 40, dtype=torch.float64)
            self.second = torch.nn.Linear(40, 2, dtype=torch.float64).to(device)

        def forward(self, x):
            return self.second(self.first(x).tanh().to(self.second.weight.device)).to(x.device)

    def run(device):
        with mpidec.Network() as net:
            model = Halves(device)
            optimizer = optim.Decentralized(
                torch.optim.SGD(model.parameters(), 0.1), model, "ring", net=net
            )
            train(torch, model, optimizer, net.rank, range(5))
            optimizer.close()
        return everything(torch, model)

    expected = run("cpu")
    assert (run(cuda) - expected).norm() <= 1e-9 * expected.norm()


def test_stacked_workers_on_a_device(cuda):
    torch = Torch().library
    from mpidec import optim
    from mpidec.nn import Stacked

    def run(device):
        with mpidec.Network(2 * MPI.COMM_WORLD.size) as net:
            torch.manual_seed(0)
            stacked = Stacked(torch.nn.Linear(6, 2, dtype=torch.float64), 2).to(device)
            optimizer = optim.Decentralized(
                torch.optim.SGD(stacked.parameters(), 0.1), stacked, "ring", net=net
            )
            for k in range(5):
                draws = [torch.Generator().manual_seed(1000 * (net.lo + i) + k) for i in range(2)]
                x = torch.stack(
                    [torch.randn(16, 6, generator=draw, dtype=torch.float64) for draw in draws]
                ).to(device)
                optimizer.zero_grad()
                (stacked(x) - 1).square().mean(dim=(1, 2)).sum().backward()
                optimizer.step()
            optimizer.close()
        return everything(torch, stacked)

    expected = run("cpu")
    assert (run(cuda) - expected).norm() <= 1e-9 * expected.norm()


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce"])
def test_a_worker_whose_numbers_on_a_device_are_not_finite_is_named(cuda, algorithm):
    torch = Torch().library
    from mpidec import optim
    from mpidec.nn import Stacked

    bad, said = 2 * MPI.COMM_WORLD.size - 1, ""
    with mpidec.Network(bad + 1) as net:
        stacked = Stacked(torch.nn.Linear(6, 2), 2).to(cuda)
        base = torch.optim.SGD(stacked.parameters(), 0.1)
        optimizer = optim.Decentralized(base, stacked, algorithm=algorithm, net=net, equal=False)
        for k in range(10):
            optimizer.zero_grad()
            stacked(torch.ones(2, 4, 6, device=cuda)).square().mean(dim=(1, 2)).sum().backward()
            if k == 3 and net.hi > bad:
                stacked.weight.grad[1, 1, 2] = float("nan")
            try:
                optimizer.step()
            except ValueError as error:
                said = str(error)
                break
        if net.hi > bad:
            assert said.startswith(
                f"worker {bad}, step 3: {'gradient' if algorithm == 'allreduce' else 'parameter'} weight is nan"
            )
        else:
            assert said and not said.startswith("worker ")


def test_broadcasts_reach_a_device(cuda):
    torch = Torch().library
    from mpidec import optim

    with mpidec.Network() as net:
        model = network(torch, cuda, torch.float32)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(net.rank)
        optimizer = torch.optim.Adam(model.parameters(), 0.01 * (net.rank + 1))
        if net.rank == 0:
            train(torch, model, optimizer, 0, range(1))
        optim.broadcast_parameters(model, net)
        optim.broadcast_optimizer_state(optimizer, net)
        moment = optimizer.state[model[0].weight]["exp_avg"]
        assert moment.device == cuda and optimizer.param_groups[0]["lr"] == 0.01
        sums = net.comm.allgather((everything(torch, model).sum().item(), moment.sum().item()))
    assert len({*sums}) == 1
