"""Sparse samples: the values of the dense problem, without a dense array, on any number of ranks."""

from __future__ import annotations

import tracemalloc
import warnings
from functools import cache

import numpy as np
import pytest
from mpi4py import MPI
from scipy.sparse import csr_array, random_array

import mpidec
from mpidec import problems as P
from mpidec._sparse import SparseSamples
from mpidec.problems import load_problem

serial = pytest.mark.serial
RNG = np.random.default_rng(3)
N, D, SAMPLES = 5, 11, 48


def thinned(A, share=0.3):
    return np.where(RNG.random(A.shape) < share, A, 0.0)


A = thinned(RNG.normal(size=(SAMPLES, D)))
A[:D] += np.diag(1 + RNG.random(D))
REALS = A @ RNG.normal(size=D) + RNG.normal(size=SAMPLES)
SIGNS = np.where(REALS > 0, 1, -1)
CLASSES = np.digitize(REALS, [-0.5, 0.5])
COMPLEX = A + 1j * thinned(RNG.normal(size=A.shape))
CASES = {
    "least_squares": (A, REALS, {}),
    "least_squares, ridge and intercept": (
        *(A, REALS),
        {"problem": "least_squares", "l2": 0.3, "intercept": True, "scale": "mean"},
    ),
    "complex least_squares": (COMPLEX, COMPLEX @ RNG.normal(size=D) + 1j * REALS, {"l2": 0.2}),
    "complex lasso": (COMPLEX, REALS + 1j, {"l1": 0.2, "problem": "least_squares"}),
    "logistic": (A, SIGNS, {"l2": 0.3}),
    "logistic, l1 and intercept": (A, SIGNS, {"l1": 0.2, "intercept": True, "l2": 0.1}),
    "huber": (A, REALS, {"problem": "huber", "delta": 0.4, "l2": 0.1}),
    "softmax": (A, CLASSES, {"l2": 0.3, "intercept": True}),
    "float32": (A.astype(np.float32), REALS, {"l2": 0.3}),
}


@cache
def both(name):
    """Return the dense problem and the sparse one; agents have 9 or 10 samples."""
    A, y, options = CASES[name]
    dense, sparse = (load_problem((S, y), N, **options) for S in (A, csr_array(A)))
    assert isinstance(sparse.A, SparseSamples) and isinstance(dense.A, np.ndarray)
    assert sparse.dtype == dense.dtype
    return dense, sparse


def close(name, got, wanted):
    scale = 1e-6 if name == "float32" else 1e-12
    np.testing.assert_allclose(got, wanted, rtol=scale, atol=scale * max(1, np.abs(wanted).max()))


def points(problem, k=0):
    X = np.random.default_rng(k).normal(size=(problem.m, problem.d))
    return (X + 1j * X[:, ::-1] if problem.dtype.kind == "c" else X).astype(problem.dtype)


@serial
@pytest.mark.parametrize("name", CASES)
def test_values_gradients_and_constants(name):
    dense, sparse = both(name)
    X, rows = points(dense), np.tile([3, 0, 8], (N, 1))
    weight, agents = np.arange(1.0, N + 1), [3, 1]
    for call in (
        lambda p: p.value(X),
        lambda p: p.grad(X),
        lambda p: p.grad(X[agents], agents),
        lambda p: p.grad(X[:1], [4]),
        lambda p: p.sample_grad(X, rows, weight),
        lambda p: p.sample_grad(X[agents], rows[agents], weight[agents], agents),
        lambda p: p.from_slopes(p.slopes(X)),
        lambda p: p.from_slopes(p.slopes(X, rows), rows),
        lambda p: p.smoothness,
        lambda p: p.strong_convexity,
        lambda p: p.x_star,
        lambda p: p.prox(X, 0.3),
        lambda p: type(p).concatenate([p, p]).grad(np.vstack([X, X])),
    ):
        close(name, call(sparse), call(dense))
    assert sparse.grad(X).dtype == dense.grad(X).dtype
    alone = np.vstack([sparse.grad(X[[i]], [i]) for i in range(N)])
    np.testing.assert_array_equal(alone, sparse.grad(X))


@serial
@pytest.mark.parametrize("kind", ["MiniBatch", "SVRG", "LSVRG", "SARAH", "SAGA"])
@pytest.mark.parametrize("name", ["logistic, l1 and intercept", "softmax"])
def test_gradients_of_oracles(kind, name):
    problems = both(name)
    dense, sparse = (getattr(P, kind)(p, 3).start(range(N), seed=1) for p in problems)
    for k in range(5):
        X = points(problems[0], k)
        close(name, sparse(X, k), dense(X, k))


@serial
def test_large_problems_are_solved_by_products_alone(monkeypatch):
    """The limits of what is formed densely lowered, minimizers and proximal points are the same."""
    for name in ("logistic, l1 and intercept", "least_squares", "softmax", "complex least_squares"):
        dense = both(name)[0]
        X = points(dense)
        with monkeypatch.context() as lowered:
            lowered.setattr("mpidec.problems.base.SMALL", 0)
            lowered.setattr("mpidec.problems.base.DENSE", 0)
            lowered.setattr("mpidec.problems.composite.DENSE", 0)
            lowered.setattr("mpidec.problems.terms.ENTRIES", 0)
            lowered.setattr("mpidec._sparse.GRAM", 3)
            S, y, options = CASES[name]
            sparse = load_problem((csr_array(S), y), N, **options)
            np.testing.assert_allclose(sparse.x_star, dense.x_star, atol=1e-11)
            np.testing.assert_allclose(sparse.prox(X, 0.3), dense.prox(X, 0.3), atol=1e-10)
            np.testing.assert_allclose(sparse.smoothness, dense.smoothness, rtol=1e-12)


@serial
def test_the_minimizer_of_least_norm_of_many_features(monkeypatch):
    wide, y = A.T[:, :30], REALS[:D]
    monkeypatch.setattr("mpidec.problems.base.SMALL", 0)
    found = load_problem((csr_array(wide), y), 2, problem="least_squares").x_star
    np.testing.assert_allclose(found, np.linalg.lstsq(wide, y, rcond=None)[0], atol=1e-11)


@serial
def test_no_dense_array_of_a_large_set(tmp_path, monkeypatch):
    """4,000 x 30,000 numbers would take 960 MB, the rows of 4 agents take 1 MB."""
    monkeypatch.setattr("mpidec.problems.terms.ENTRIES", 2**16)
    S = csr_array(random_array((4000, 30000), density=1e-3, rng=RNG, format="csr"))
    y = np.where(S @ RNG.normal(size=30000) > 0, 1, -1)
    tracemalloc.start()
    problem = load_problem((S, y), 4, test=0.1, intercept=True)
    with mpidec.Network(4, MPI.COMM_SELF) as net:
        file = tmp_path / "run.h5"
        result = mpidec.solve(
            *(problem, "gradient_tracking", "ring"), steps=30, record=file, every=10, net=net
        )
        lasso = load_problem((S, y), 4, l1=0.02, l2_total=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the face of the minimizer has 11,000 dimensions
            mpidec.solve(lasso, "nids", "ring", steps=10, net=net)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120e6, peak
    assert result.step_size > 0 and result.metrics["error"][-1] < 0.5
    read = mpidec.record.read(file)
    assert read.score() == result.score() > 0.5
    np.testing.assert_array_equal(read.predict(S[:50]), result.predict(S[:50].toarray()))


@pytest.mark.parametrize("name", ["logistic", "softmax", "complex least_squares"])
def test_runs_have_the_same_bits_on_any_number_of_ranks(name):
    S, y, options = CASES[name]
    sparse = load_problem((csr_array(S), y), N, test=0.2, **options)
    with mpidec.Network(N) as net, mpidec.Network(N, MPI.COMM_SELF) as alone:
        own = load_problem((csr_array(S), y), net=net, test=0.2, **options)
        assert isinstance(own.A, SparseSamples) and own.m == net.m
        oracles = (P.SAGA(own, 2), P.SAGA(sparse, 2))
        some, every = (
            mpidec.solve(oracle, "exact_diffusion", "ring", steps=20, every=5, net=each)
            for oracle, each in zip(oracles, (net, alone))
        )
        np.testing.assert_array_equal(some.X, every.X[net.lo : net.hi])
        for metric in ("objective", "error", "test_loss"):
            np.testing.assert_array_equal(some.metrics[metric], every.metrics[metric])


@serial
def test_scaling_keeps_zeros_and_shifting_is_refused():
    with pytest.raises(ValueError, match=r'subtracts the mean.*standardize="scale"'):
        load_problem((csr_array(A), SIGNS), N, standardize=True)
    dense, sparse = (
        load_problem((each, SIGNS), N, standardize="scale") for each in (A, csr_array(A))
    )
    sizes = np.abs(A).max(axis=0)
    np.testing.assert_allclose(sparse.samples(A), A / sizes, rtol=1e-13)
    for problem in (dense, sparse):
        np.testing.assert_allclose(
            problem.samples(csr_array(A)).toarray(), problem.samples(A), rtol=1e-14
        )
    close("logistic", sparse.grad(points(sparse)), dense.grad(points(dense)))
    shifted = load_problem((A, SIGNS), N, standardize=True)
    x = shifted.x_star
    np.testing.assert_array_equal(shifted.predict(x, csr_array(A)), shifted.predict(x, A))
    with pytest.raises(ValueError, match="standardize is 'scal', expected one of scale"):
        load_problem((A, SIGNS), N, standardize="scal")


@serial
def test_libsvm_files_are_sparse_if_they_are_mostly_zeros(tmp_path):
    (tmp_path / "a.svm").write_text("".join(f"{i % 2} {i + 1}:{i + 1} 40:1\n" for i in range(20)))
    (tmp_path / "t.svm").write_text("1 3:1 41:2\n0 1:1 2:1 3:1 4:1 5:1\n")
    (tmp_path / "dense.svm").write_text("1 1:2 2:3\n0 1:4\n")
    with pytest.warns(UserWarning, match="padded with zeros to 41"):
        problem = load_problem(tmp_path / "a.svm", 4, test=tmp_path / "t.svm")
    assert isinstance(problem.A, SparseSamples) and problem.test.A.shape == (1, 2, 41)
    sizes = np.abs(problem.A.rows.toarray()).max(axis=0)
    assert sizes.tolist() == [*range(1, 21), *[0.0] * 19, 1.0, 0.0]
    assert isinstance(load_problem(tmp_path / "dense.svm", 2).A, np.ndarray)


@serial
def test_a_matrix_of_each_agent():
    parts = [csr_array(A[:20]), csr_array(A[20:40])]
    y = SIGNS[:40].reshape(2, 20)
    mask = np.ones((2, 20), bool)
    mask[1, 4:] = False
    problem = P.LogisticRegression(parts, y, l2=0.1, mask=mask)
    dense = P.LogisticRegression(A[:40].reshape(2, 20, D), y, l2=0.1, mask=mask)
    close("logistic", problem.grad(points(problem)), dense.grad(points(dense)))
    np.testing.assert_array_equal(np.asarray(problem.A), dense.A)
    bad = parts[1].copy()
    bad.data[bad.indptr[3]] = np.nan
    for given, message in {
        "one": (parts[0], "one \\(p, d\\) of each local agent"),
        "shapes": ([parts[0], csr_array(A[:3])], "shapes \\(3, 11\\), \\(20, 11\\)"),
        "nan": (
            [parts[0], bad],
            f"A is nan at local agent 1, row 3, column {bad.indices[bad.indptr[3]]}",
        ),
        "complex": ([csr_array(COMPLEX[:20])], "LeastSquares takes complex"),
    }.values():
        with pytest.raises((TypeError, ValueError), match=message):
            P.LogisticRegression(given, y)


@serial
def test_functions_of_arrays_get_arrays():
    def custom(A, y, mask):
        assert isinstance(A, np.ndarray)
        assert not A[~mask].any()
        inner = P.LeastSquares(A, y)
        return P.Custom(inner.value, inner.grad, *A.shape[::2])

    made = load_problem((csr_array(A), REALS), N, custom)
    close("least_squares", made.x_star, both("least_squares")[0].x_star)


@serial
def test_samples_of_agents_are_chosen_as_those_of_an_array():
    samples, dense = both("logistic")[1].A, both("logistic")[1].A.toarray()
    np.testing.assert_array_equal(samples[-1].toarray(), dense[-1])
    np.testing.assert_array_equal(samples[::2].toarray(), dense[::2])
    np.testing.assert_array_equal(samples[1:3].toarray(), dense[1:3])
    with pytest.raises(IndexError):
        samples[N]


@serial
def test_columns_that_do_not_exist_are_refused():
    for column in (-1, D):
        S = csr_array(A)
        S.indices[0] = column
        with pytest.raises(ValueError, match=rf"columns .*{column}.*, expected 0 to {D - 1}"):
            load_problem((S, SIGNS), N)


@serial
@pytest.mark.parametrize("name, y", [("logistic_regression", SIGNS), ("huber", REALS)])
def test_complex_samples_of_real_losses_are_refused(name, y):
    with pytest.raises(TypeError, match=r"A has dtype complex128, .*LeastSquares takes complex"):
        load_problem((csr_array(COMPLEX), y), N, name)
