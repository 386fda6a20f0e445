"""Complex least squares against numpy.linalg.lstsq and the same problems of real and imaginary parts."""

from __future__ import annotations

import numpy as np
import pytest

from mpidec import problems as P
from mpidec.problems.differences import mismatch

pytestmark = pytest.mark.serial
M, N, D = 3, 5, 4
rng = np.random.default_rng(0)


def numbers(*shape):
    return rng.standard_normal((*shape, 2)) @ [1, 1j]


A, B = numbers(M, N, D), numbers(M, N)


def real_twin(A, b, **options):
    """The problem of rows (Re x, Im x), with blocks of real and imaginary parts."""
    return P.LeastSquares(np.block([[A.real, -A.imag], [A.imag, A.real]]), split(b), **options)


def split(X):
    return np.concatenate([X.real, X.imag], axis=-1)


def test_values_gradients_constants_and_minimizer_are_those_of_the_conjugate_transpose():
    problem, twin = P.LeastSquares(A, B, l2=0.3, weight=0.7), real_twin(A, B, l2=0.3, weight=0.7)
    X, V, t = numbers(M, D), numbers(M, D), np.array([0.1, 0.5, 2.0])
    rows = rng.integers(0, N, (M, 2))
    both = [(problem.value(X), twin.value(split(X))), (problem.smoothness, twin.smoothness)]
    both += [(problem.strong_convexity, twin.strong_convexity)]
    both += [(split(problem.grad(X)), twin.grad(split(X)))]
    both += [(split(problem.prox(V, t)), twin.prox(split(V), t))]
    both += [(split(problem.solution()), twin.solution())]
    sampled = problem.sample_grad(X, rows, np.ones(M))
    twins = twin.sample_grad(split(X), np.hstack([rows, rows + N]), np.ones(M))
    for one, other in [*both, (split(sampled), twins)]:
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    least = np.linalg.lstsq(A.reshape(-1, D), B.ravel(), rcond=None)[0]
    np.testing.assert_allclose(P.LeastSquares(A, B).solution(), least, rtol=1e-13)
    few = P.LeastSquares(A[:, :1], B[:, :1])  # of least norm
    least = np.linalg.lstsq(A[:, 0], B[:, 0], rcond=None)[0]
    np.testing.assert_allclose(few.solution(), least, rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"l2": 0.3, "intercept": True},
        {"term": P.l1(2.0)},
        {"term": P.elastic_net(2.0, 0.5), "l2": 0.1, "weight": 0.7},
        {"term": P.l1(2.0), "intercept": True},
    ],
)
@pytest.mark.parametrize("p", [N, 3])  # with more, and with fewer samples than unknowns
def test_minimizers_and_proximal_points_solve_their_optimality_conditions(options, p):
    problem = P.LeastSquares(A[:, :p], B[:, :p], **options)
    X, V, t = problem.solution(), numbers(M, D), np.array([0.1, 0.5, 2.0])
    Z = problem.prox(V, t)
    one = np.tile(X, (M, 1))

    def moved(X, G, s=0.01):
        Y = X - s * G
        return (Y if problem.term is None else problem.term.prox(Y, s)) - X

    assert abs(moved(X[None], problem.grad(one).mean(axis=0)[None])).max() < 1e-15
    assert abs(moved(Z, problem.grad(Z) + (Z - V) / t[:, None])).max() < 1e-14
    free = D - problem.intercept
    assert (X[:free] == 0).any() == (problem.term is not None)


def test_the_l1_norm_is_that_of_the_moduli():
    X = np.array([[3 + 4j, 0.1j, 0.0]])
    np.testing.assert_allclose(P.l1(1.0).prox(X, 1.0), [[2.4 + 3.2j, 0, 0]])
    np.testing.assert_allclose(P.elastic_net(1.0, 1.0).value(X), [5.1 + 25.01 / 2])
    np.testing.assert_allclose(P.l1(2.0).subgradient(X), [[1.2 + 1.6j, 2j, 0]])
    assert P.l1(1.0).prox(X.astype(np.complex64), 1.0).dtype == np.complex64


@pytest.mark.parametrize("term", [None, P.l1(0.5)])
def test_the_view_of_real_and_imaginary_parts_has_their_gradients(term):
    view = P.RealView(P.LeastSquares(A, B, l2=0.2, term=term))
    value = lambda X: view.value(X) - (0 if term is None else view.term.value(X))
    assert mismatch(value, view.grad, np.zeros((M, 2 * D)), range(M)) is None
    wrong = lambda X: view.grad(X).reshape(M, D, 2)[..., ::-1].reshape(M, -1)
    assert mismatch(value, wrong, np.zeros((M, 2 * D)), range(M)) is not None
    X = numbers(M, D)
    np.testing.assert_array_equal(
        view.grad(X[1:2].view(float), agents=[1]), view.grad(X.view(float))[1:2]
    )


def test_noise_is_circular():
    gradient = P.Noisy(P.LeastSquares(A, B), 2.0).start(range(M), seed=0)
    X = numbers(M, D)
    v = np.array([gradient(X, k) for k in range(3000)]) - P.LeastSquares(A, B).grad(X)
    assert abs((abs(v) ** 2).sum(axis=2).mean() - 4) < 0.1
    assert abs((v**2).mean()) < 0.03


def test_the_dtype_follows_samples_and_targets(tmp_path):
    kinds = [(A, B.real), (A.real, B), (A.astype(np.complex64), B), (A.real.astype(np.float32), B)]
    dtypes = [P.LeastSquares(*data).dtype.name for data in kinds]
    assert dtypes == ["complex128", "complex128", "complex64", "complex64"]
    flat = A.reshape(-1, D), B.ravel()
    np.savez(tmp_path / "data.npz", A=flat[0], y=flat[1])
    least = np.linalg.lstsq(*flat, rcond=None)[0]
    for data in (flat, str(tmp_path / "data.npz")):
        np.testing.assert_allclose(P.load_problem(data, n=M).x_star, least, rtol=1e-12)
    standard = P.standardized(flat[0])
    np.testing.assert_allclose(standard.mean(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose((abs(standard) ** 2).mean(axis=0), 1)
    with_intercept = P.load_problem(flat, n=M, intercept=True)
    ones = np.hstack([flat[0], np.ones((M * N, 1))])
    least = np.linalg.lstsq(ones, flat[1], rcond=None)[0]
    np.testing.assert_allclose(with_intercept.x_star, least, rtol=1e-12)


def test_a_minimizer_from_gradients_alone():
    exact = P.LeastSquares(A, B)
    problem = P.Custom(exact.value, exact.grad, M, D, dtype=complex)
    np.testing.assert_allclose(P.minimizer(problem), exact.solution(), rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: P.LogisticRegression(A, B.real), "A has dtype complex128, .*LeastSquares takes"),
        (lambda: P.Huber(A.real, B), "b has dtype complex128, expected real numbers"),
        (lambda: P.LeastSquares(A.real, B.real, x_star=B[0, :D]), "x_star has dtype complex128"),
        (lambda: P.LeastSquares(A, B, term=P.box(0.0, 1.0)), "bounds real numbers.*RealView"),
        (lambda: P.LeastSquares(A, B, term=P.simplex()), "bounds real numbers.*RealView"),
        (lambda: P.load_problem((A[0], B[0]), n=1, problem="huber"), "A has dtype complex128"),
        (lambda: P.Custom(abs, abs, 1, 1, dtype=int), "dtype is .*, expected float32"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(TypeError, match=message):
        call()
