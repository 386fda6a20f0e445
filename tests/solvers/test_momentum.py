"""Momentum: against the papers' formulas and each other."""

import numpy as np
import pytest
from helpers.options import crossed
from helpers.recursions import W1, W2, X0, grad, local_dgd, steps_of
from mpi4py import MPI

import mpidec
from mpidec import solvers as S, topology as T

N, D = 5, 3


def momentum(s, W, steps):
    X, m = X0, 0 * X0
    for _ in range(steps):
        m = s.momentum * m + grad(X)
        X = W @ (X - s.step_size * (grad(X) + s.momentum * m if s.nesterov else m))
        m = W @ m if s.mix_momentum else m
    return X


def quasi_global(s, W, steps):
    X, m, a, b = X0, 0 * X0, s.step_size, s.momentum
    for _ in range(steps):
        g = grad(X)
        u = g + b * (b * m + g) if s.nesterov else (b * m + g) / (1 + b if s.normalized else 1)
        new = W @ (X - a * u)
        X, m = new, b * m + (1 - b) * (X - new) / a
    return X


def decentlam(s, W, steps):
    X, m, a = X0, 0 * X0, s.step_size
    for _ in range(steps):
        m = s.momentum * m + (X - W @ (X - a * grad(X))) / a
        X = X - a * m
    return X


FORMULAS = [
    *[(momentum, solver) for solver in crossed(S.DecentralizedMomentum, 0.05)],
    *[(quasi_global, solver) for solver in crossed(S.QuasiGlobalMomentum, 0.05)],
    *[(decentlam, solver) for solver in crossed(S.DecentLaM, 0.05)],
]


@pytest.mark.parametrize(
    "formula, solver", FORMULAS, ids=lambda case: repr(case) if isinstance(case, S.Solver) else ""
)
def test_the_papers_formulas(formula, solver):
    topology = (
        T.cycle(map(T.from_weights, (W1, W2))) if formula is local_dgd else T.from_weights(W1)
    )
    with mpidec.Network(N) as net:
        s = steps_of(solver, net.mixer(topology), net, 20)
        rounds = 20 // getattr(solver, "local_steps", 1)
        np.testing.assert_allclose(
            s.X, formula(solver, W1, rounds)[net.lo : net.hi], rtol=1e-12, atol=1e-12
        )


@pytest.mark.serial
def test_decentlam_is_warned_of_graphs_that_change():
    """Its momentum of a mixing with one W is no momentum of the next one."""
    n, X = 8, np.random.default_rng(0).standard_normal((8, 50))
    graphs = [T.one_peer_exponential(n), T.random_matchings(T.ring(n)), T.failing_links(T.ring(n))]
    with mpidec.Network(n, comm=MPI.COMM_SELF) as net:
        for solver in (S.DecentLaM(1.0), S.DecentLaM(1.0, 0.3)):
            for graph in graphs:
                W = net.mixer(graph)
                s = solver.init(X - X.mean(0), W.at(0))
                for k in range(100):
                    s = solver.step(s, 0 * X, W.at(k))
                grows = np.linalg.norm(s.X) > 10 * np.linalg.norm(X)
                assert bool(solver.unstable(graph)) == grows, (solver, graph.name)
    problem = mpidec.problems.LeastSquares(np.ones((n, 1, 1)), X[:, :1])
    with pytest.raises(ValueError, match="DecentLaM is unstable on the one_peer_exponential"):
        mpidec.solve(problem, S.DecentLaM(), graphs[0], steps=300, every=300)


@pytest.mark.serial
@pytest.mark.parametrize(
    "make", [lambda: S.RelaySGD(overlap="yes"), lambda: S.Momentum(S.DGD(), nesterov=3)]
)
def test_flags_are_true_or_false(make):
    with pytest.raises(TypeError, match=r"(overlap|nesterov) is .*, expected True or False"):
        make()


def test_relations_between_the_methods():
    with mpidec.Network(N) as net:
        W = net.mixer(T.from_weights(W1))
        for one, other in [
            (S.SlowMo(0.05, momentum=0.9, local_steps=1), S.DecentLaM(0.05)),
            (S.SlowMo(0.05, momentum=0, local_steps=1), S.Diffusion(0.05)),
            (S.LocalDGD(0.05, 1), S.Diffusion(0.05)),
            (S.LED(0.05, 1), S.ExactDiffusion(0.05)),
            (S.DecentLaM(0.05, 0), S.Diffusion(0.05)),
            (S.DecentralizedMomentum(0.05, 0), S.Diffusion(0.05)),
            (S.QuasiGlobalMomentum(0.05, 0), S.Diffusion(0.05)),
            (S.DGD(0.05), S.DGD(0.05, "awc")),
        ]:
            np.testing.assert_allclose(
                steps_of(one, W, net, 20).X, steps_of(other, W, net, 20).X, rtol=1e-12, atol=1e-12
            )
        means = []  # of gradients of equal curvature
        for solver, graph in [
            (S.GASLoC(0.05, 0.6, 0.5, 1), T.from_weights(W1)),
            (S.DiLoCo(0.05, 0.6, 0.5, 1), T.complete(N)),
        ]:
            W, s = net.mixer(graph), solver.init(X0[net.lo : net.hi])
            for k in range(20):
                s = solver.step(s, s.X - X0[::-1][net.lo : net.hi], W.at(k))
            means.append(net.mean(s.X))
        np.testing.assert_allclose(*means, rtol=1e-12, atol=1e-12)


@pytest.mark.serial
def test_decentlam_has_the_bias_of_dgd():
    n, d, a = 16, 10, 0.002
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((n, 12, d)), 3 * rng.standard_normal((n, 12))
    H, h, W = np.einsum("npd,npe->nde", A, A), np.einsum("npd,np->nd", A, b), T.ring(n).W.toarray()

    def fixed_point(step):
        """X = W (X - step (H X - h)), as one linear system."""
        Id = np.eye(n * d)
        block = np.zeros((n, d, n, d))
        block[range(n), :, range(n)] = H
        M = np.kron(W, np.eye(d))
        return np.linalg.solve(
            Id - M @ (Id - step * block.reshape(n * d, n * d)), step * M @ h.ravel()
        ).reshape(n, d)

    x = np.linalg.solve(H.sum(axis=0), h.sum(axis=0))
    with mpidec.Network(n) as net:
        problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
        for solver, step in [
            (S.Diffusion(a), a),
            (S.DecentLaM(a), a),
            (S.DecentralizedMomentum(a), a / (1 - 0.9)),
        ]:
            X = mpidec.solve(problem, solver, T.ring(n), steps=4000, net=net, every=4000).X
            np.testing.assert_allclose(
                X, fixed_point(step)[net.lo : net.hi], atol=1e-9, err_msg=repr(solver)
            )
    bias = [np.linalg.norm(fixed_point(step) - x) / np.sqrt(n) for step in (a, 10 * a)]
    assert bias[1] > 3 * bias[0], bias  # 0.91 and 0.29


@pytest.mark.parametrize(
    "solver",
    [
        S.QuasiGlobalMomentum(0.1),
        S.DecentLaM(0.1),
    ],
    ids=repr,
)
def test_steps_of_size_zero(solver):
    """A warm-up begins with one: nothing is divided by zero, and the agents still mix."""
    with mpidec.Network(N) as net, np.errstate(all="raise"):
        W = net.mixer(T.from_weights(W1))
        s = steps_of(solver, W, net, 2, lambda k: 0.0)
        before, after = (
            net.sum((rows - X0.mean(axis=0)) ** 2).sum() for rows in (X0[net.lo : net.hi], s.X)
        )
        assert 0 < after < before
        columns = steps_of(solver, W, net, 2, lambda k: np.array([0.0, 0.05, 0.1]))
        np.testing.assert_array_equal(columns.X[:, 0], s.X[:, 0])
        assert np.isfinite(columns.X).all()


@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda: S.DecentLaM(0.1, 1.0),
            r"DecentLaM: momentum is 1.0, expected a finite number >= 0 and < 1",
        ),
        (lambda: S.DecentralizedMomentum(0.1, -0.1), "momentum is -0.1"),
        (lambda: S.QuasiGlobalMomentum(0.1, "0.9"), "momentum is '0.9'"),
        (lambda: S.QuasiGlobalMomentum(0.1, normalized=True), "give nesterov=False"),
    ],
)
def test_wrong_arguments(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()
