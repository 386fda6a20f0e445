"""Graph filters: matrices without sums of one."""

import numpy as np
import pytest
from helpers.mixing import TRANSPORTS, stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.wide, pytest.mark.library]


def drawn(n):
    """A matrix with entries of both signs, without and with diagonal entries, and an empty row."""
    rng = np.random.default_rng(n)
    M = rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.4)
    M[range(0, n, 2), range(0, n, 2)] = 0
    M[n - 1] = 0
    return M


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [1, 2, 5, 13])
def test_the_dense_product_is_the_oracle(n, transport):
    M, X = drawn(n), stack(n, (2, 3))
    topology = T.from_weights(M, kind="any", connected=False)
    assert topology.kind == "any" and (topology.W.toarray() == M).all()
    with mpidec.Network(n, transport=transport) as net:
        W, local = net.mixer(topology), X[net.lo : net.hi]
        for dtype, tol in ((np.float64, 1e-14), (np.complex128, 1e-14), (np.float32, 1e-5)):
            for mixer, A in ((W, M), (W.T, M.T), (W.repeat(2), M @ M)):
                expected = np.tensordot(A, X.astype(dtype), 1)[net.lo : net.hi]
                np.testing.assert_allclose(
                    mixer(local.astype(dtype)), expected, rtol=tol, atol=20 * tol
                )
        sent = (M != 0) & ~np.eye(n, dtype=bool)  # by W and twice by W.repeat(2), and by W.T
        sent = 3 * sent[:, net.lo : net.hi].sum() + sent[net.lo : net.hi].sum()
        assert W.messages == 3 * sent
    with mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        Y = alone.mixer(topology)(X)
    with mpidec.Network(n, transport=transport) as net:
        np.testing.assert_array_equal(net.mixer(topology)(X[net.lo : net.hi]), Y[net.lo : net.hi])


def test_a_constant_is_in_the_kernel_of_a_laplacian():
    W = T.ring(6).W.toarray()
    with mpidec.Network(6) as net:
        Y = net.mixer(T.from_weights(np.eye(6) - W, kind="any"))(np.ones((net.m, 2)))
        assert abs(Y).max(initial=0) < 1e-15


def test_what_averages_refuses_filters():
    filter = T.from_weights(np.eye(5) - T.ring(5).W.toarray(), kind="any")
    with mpidec.Network(5) as net:
        A, b = np.eye(5)[:, None], np.ones((5, 1))
        problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
        W = net.mixer(filter)
        for call in (
            lambda: W.compress("float16"),
            lambda: W.lossy(0.1),
            lambda: W.noisy(0.1),
            lambda: W.attacked({0: 1.0}),
            lambda: W.robust("clip", tau=1.0),
            lambda: W.accelerate(2),
            lambda: W.with_weights(np.eye(5)),
            lambda: mpidec.solve(problem, "dgd", filter, steps=1),
            lambda: mpidec.solve(problem, "push_sum", filter, steps=1),
            lambda: mpidec.solve(problem, "dgd", T.cycle([filter, filter]), steps=1),
            lambda: filter.spectral_gap(),
            lambda: T.failing_links(filter),
            lambda: T.periodic_average(filter),
            lambda: T.striped([filter]),
        ):
            with pytest.raises(ValueError, match=r"graph filter|kind 'any'") as caught:
                call()
            assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match=r"is row stochastic and topology 1 .* a graph"):
            T.cycle([T.star(5, weights="uniform"), filter])
    with pytest.raises(ValueError, match="kind is 'all', expected one of"):
        T.from_weights(np.eye(5), kind="all")
    with pytest.raises(ValueError, match="expected a finite number"):
        T.from_weights([[np.inf]], kind="any")


@pytest.mark.serial
def test_a_filter_is_drawn():
    pytest.importorskip("matplotlib")
    filter = T.from_weights(np.eye(5) - T.ring(5).W.toarray(), kind="any")
    assert len(filter.plot().axes) == 2
