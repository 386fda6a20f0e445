"""Mixings of PyTorch tensors: gradients against dense products, and what has none."""

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import topology as T

pytestmark = pytest.mark.library


def random_weights(seed):
    """A directed, row-stochastic matrix of three agents."""
    W = np.random.default_rng(seed).random((3, 3)) * [[1, 1, 0], [0, 1, 1], [1, 1, 1]]
    return W / W.sum(axis=1, keepdims=True)


@pytest.mark.most(1)
@pytest.mark.parametrize("transport", ["auto", "neighbor", "p2p"])
def test_gradients_through_unrolled_steps(transport):
    """Step sizes learned through two steps, over directed matrices that change, against the autograd of dense products."""
    torch = pytest.importorskip("torch")
    n, dense = 3, [random_weights(seed) for seed in (3, 4)]
    X, target = (
        torch.from_numpy(np.random.default_rng(seed).standard_normal((n, 2))) for seed in (0, 1)
    )

    def loss(mix, rows):
        sizes = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
        Y = X[rows].clone().requires_grad_()
        Z = Y
        for k, size in enumerate(sizes):
            Z, extra = mix(k, [Z - size * (Z - target[rows]) ** 2, Z])
            Z = Z * extra
        return (Z**2).sum(), [Y, sizes]

    value, inputs = loss(
        lambda k, Xs: [torch.from_numpy(dense[k]) @ some for some in Xs], slice(None)
    )
    expected = torch.autograd.grad(value, inputs)
    with mpidec.Network(n, transport=transport) as net:
        W, rows = net.mixer(T.cycle(map(T.from_weights, dense))), slice(net.lo, net.hi)
        mixings = [
            lambda k, Xs: W(Xs),
            lambda k, Xs: list(W.at(k)(dict(enumerate(Xs))).values()),
            lambda k, Xs: [W.at(k)(some) for some in Xs],
        ]
        for mix in mixings:
            value, inputs = loss(mix, rows)
            of_rows, of_sizes = torch.autograd.grad(value, inputs)
            torch.testing.assert_close(of_rows, expected[0][rows], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(
                net.comm.allreduce(of_sizes.numpy()), expected[1], rtol=1e-12
            )
        assert W.T is W.T and W.T.T is W and W.at(0).T is W.T.at(0)
    if transport == "auto":
        with mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
            W = alone.mixer(T.from_weights(dense[0]))
            inputs = X.clone().requires_grad_()
            torch.autograd.gradcheck(W, inputs)
            torch.autograd.gradgradcheck(lambda X: W(X**2), inputs)


def test_what_has_no_gradient_is_refused():
    torch = pytest.importorskip("torch")
    with mpidec.Network() as net:
        net.set_topology(T.ring(net.n))
        W = net.mixer(T.ring(net.n))
        X = torch.ones((1, 2), dtype=torch.float64, requires_grad=True)
        calls = [
            W.start,
            lambda X: W(X, out=torch.empty_like(X)),
            lambda X: W(X.detach(), out=X),
            W.at(0).sum_edges,
            lambda X: W.at(0).exchange(W.at(0).to_edges(X)),
            W.compress("float16"),
            W.compress("float16").start,
            W.accelerate(2),
            lambda X: W.accelerate(2)([X, X]),
            net.neighbor_allreduce,
            net.neighbor_allgather,
            net.allreduce,
            lambda X: net.broadcast(X, 0),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=r"requires grad.*X\.detach\(\)"):
                call(X)
            net.comm.Barrier()
        with torch.no_grad():
            assert not W(X).requires_grad and not W.compress("float16")(X).requires_grad


def test_torch_tensors_come_back_as_torch_tensors():
    torch = pytest.importorskip("torch")
    with mpidec.Network(4) as net:
        X = torch.arange(8.0, dtype=torch.float64).reshape(4, 2)[net.lo : net.hi]
        Y = net.mixer(T.complete(4))(X)
        assert isinstance(Y, torch.Tensor)
        assert Y.tolist() == [[3.0, 4.0]] * net.m
