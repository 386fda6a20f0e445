"""Runs on complex rows: the same as those on their real and imaginary parts, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.solvers import ALL

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.problems.real_view import real_view

N, SAMPLES, D = 6, 5, 3


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal((*shape, 2)) @ [1, 1j]


A, B = numbers(N, SAMPLES, D), numbers(N, SAMPLES, seed=1)
LEAST = np.linalg.lstsq(A.reshape(-1, D), B.ravel(), rcond=None)[0]


def made(net=None, dtype=complex, **options):
    local = slice(None) if net is None else slice(net.lo, net.hi)
    return P.LeastSquares(A[local].astype(dtype), B[local], x_star=LEAST, **options)


def residual(X):
    return np.einsum("npd,nd->np", A, X) - B


def value(X):
    return (abs(residual(X)) ** 2).sum(axis=1) / 2


def grad(X):
    return np.einsum("npd,np->nd", A.conj(), residual(X))


def same_run(problem, solver, steps=100, **options):
    """The run, after a comparison with that of real and imaginary parts."""
    run = lambda f: mpidec.solve(f, solver, T.ring(N), steps=steps, **options)
    one, other = run(problem), run(real_view(problem))
    np.testing.assert_allclose(one.X.view(float), other.X, rtol=0, atol=1e-14)
    np.testing.assert_allclose(one.x.view(float), other.x, rtol=0, atol=1e-14)
    assert one.step_size == other.step_size and str(one.outcome) == str(other.outcome)
    for name in set(one.metrics) - {"time"}:
        np.testing.assert_allclose(one.metrics[name], other.metrics[name], rtol=1e-9, atol=1e-14)
    return one


@pytest.mark.serial
@pytest.mark.parametrize(
    "solver",
    [S.ExactDiffusion(), S.GradientTracking("safe"), S.NIDS(), S.ADMM(), S.Diffusion(0.01)],
    ids=lambda solver: type(solver).__name__,
)
def test_runs_and_step_sizes_are_those_of_real_and_imaginary_parts(solver):
    result = same_run(made(), solver, steps=300)
    assert result.X.dtype == np.complex128
    if solver.exact:
        np.testing.assert_allclose(result.X, np.tile(LEAST, (N, 1)), atol=1e-8)


@pytest.mark.serial
def test_all_solvers_with_codec_and_losses_are_those_of_real_and_imaginary_parts():
    several = lambda W: W.compress("blockwise8", feedback=False).lossy(0.2, seed=1)
    for solver, graph in ALL:
        if not solver.by_parts:
            continue  # it works with moduli, and is tested against dense complex equations
        ends = [
            mpidec.solve(f, solver, graph(N), steps=4, every=4, mixing=several).X
            for f in (made(), real_view(made()))
        ]
        np.testing.assert_allclose(ends[0].view(float), ends[1], rtol=0, atol=1e-13)


@pytest.mark.serial
def test_metrics_are_those_of_moduli():
    X = numbers(N, D, seed=2)
    result = mpidec.solve(made(), S.Diffusion(0.01), T.ring(N), steps=0, x0=X)
    mean, size = X.mean(axis=0), np.linalg.norm(LEAST)
    expected = {
        "consensus": np.sqrt((abs(X - mean) ** 2).sum() / N),
        "objective": value(np.tile(mean, (N, 1))).mean(),
        "gradient_norm": np.linalg.norm(grad(np.tile(mean, (N, 1))).mean(axis=0)),
        "error": np.linalg.norm(mean - LEAST) / size,
        "error_rms": np.sqrt((abs(X - LEAST) ** 2).sum() / N) / size,
        "error_max": np.linalg.norm(X - LEAST, axis=1).max() / size,
    }
    for name, number in expected.items():
        np.testing.assert_allclose(result.metrics[name], [number], rtol=1e-12)


CODECS = {
    "feedback": lambda W: W.compress("top_k", fraction=0.5),
    "none": lambda W: W.compress("blockwise8"),
    "unbiased": lambda W: W.compress("qsgd", feedback=False),
    "accelerated": lambda W: W.compress("qsgd", feedback=True).accelerate(2),
}


@pytest.mark.serial
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_take_pairs_of_real_numbers(codec):
    same_run(made(), S.LEAD(0.02, dual=0.3), mixing=CODECS[codec])
    if codec == "feedback":  # whose default depends on the length of a row
        same_run(made(), S.LEAD(0.02), mixing=CODECS[codec])
        same_run(made(), S.Diffusion(), mixing=CODECS[codec])


@pytest.mark.serial
@pytest.mark.parametrize(
    "oracle", [lambda f: P.MiniBatch(f, 2), lambda f: P.SAGA(f), lambda f: P.SARAH(f, 2)]
)
def test_random_gradients(oracle):
    same_run(oracle(made()), S.ExactDiffusion(), steps=200)


@pytest.mark.serial
@pytest.mark.parametrize("solver", [S.NIDS(), S.ADMM(), S.PGEXTRA()], ids=repr)
def test_terms(solver):
    problem = made(term=P.l1(2.0))
    problem.x_star = problem.solution()
    result = mpidec.solve(problem, solver, T.ring(N), steps=300)
    assert (problem.x_star == 0).any() and result.metrics["error_max"][-1] < 1e-9


def test_the_same_bits_on_any_number_of_ranks_and_in_files(tmp_path, comm):
    path = comm.bcast(str(tmp_path / "run.h5"))
    mixing, X0 = CODECS["feedback"], numbers(N, D, seed=3)

    def run(net, steps, record=None):
        solver = S.ExactDiffusion(0.02)
        options = {"mixing": mixing, "record": record, "x0": X0, "net": net}
        return mpidec.solve(made(net), solver, T.ring(N), steps=steps, **options)

    with (
        mpidec.Network(N) as net,
        mpidec.Network(N, comm=mpidec.comm.runtime.mpi.MPI.COMM_SELF) as alone,
    ):
        whole = run(alone, 60)
        run(net, 30, mpidec.Record(path, trajectory=True))
        resumed = run(net, 60, mpidec.Record(path, resume=True))
        np.testing.assert_array_equal(resumed.X, whole.X[net.lo : net.hi])
        np.testing.assert_array_equal(resumed.x, whole.x)
        if net.rank == 0:
            found = mpidec.read(path)
            np.testing.assert_array_equal(found.x, whole.X)
            steps, rows = found.trajectory()
            np.testing.assert_array_equal(rows[0], X0)
            assert rows.dtype == np.complex128 and steps[-1] == 60
            np.testing.assert_array_equal(found.metrics["error"], whole.metrics["error"])


@pytest.mark.serial
def test_data_of_complex64_make_a_run_in_complex64(tmp_path):
    path = tmp_path / "run.h5"
    result = mpidec.solve(
        made(dtype=np.complex64), S.ExactDiffusion(), T.ring(N), steps=200, record=path
    )
    assert result.X.dtype == mpidec.read(path).x.dtype == np.complex64
    assert result.metrics["error_max"][-1] < 1e-5


@pytest.mark.serial
def test_what_makes_rows_complex():
    own = {"x_star": {"x_star": LEAST}, "dtype": {"dtype": complex}, "x0": {}}
    for name, options in own.items():
        x0 = np.zeros(D, complex) if name == "x0" else None
        problem = P.Custom(value, grad, N, D, **options)
        result = mpidec.solve(problem, S.EXTRA(0.05), T.ring(N), steps=300, x0=x0)
        np.testing.assert_allclose(result.x, LEAST, atol=1e-9)
    result = mpidec.solve(None, "consensus", T.ring(N), steps=200, x0=numbers(N, D))
    np.testing.assert_allclose(result.X, np.tile(numbers(N, D).mean(axis=0), (N, 1)), atol=1e-12)
    view = P.RealView(made())
    found = mpidec.simulate(view, S.RunningSumTracking(0.02), T.ring(N), steps=1000)
    np.testing.assert_allclose(found.x.view(complex), LEAST, atol=1e-4)


class Given:
    """An oracle of a user's own, with complex gradients of real functions."""

    problem = P.LeastSquares(A.real, B.real)

    def start(self, agents, seed):
        return lambda X, k: self.problem.grad(X) + 1j


def moving(until):
    """A problem whose minimizer has the wrong shape from a step on."""
    return P.Custom(
        value, grad, N, D, dtype=complex, x_star=lambda k: np.ones(D + (k >= until), complex)
    )


CUSTOM = {"m": N, "d": D, "dtype": complex}
REFUSED = {
    "of real rows": (
        lambda: mpidec.solve(P.Custom(value, grad, N, D), S.EXTRA(0.1), "ring", steps=3),
        r"grad\(X\) is complex, expected real numbers: Custom\(..., dtype=complex\)",
    ),
    "of an oracle": (
        lambda: mpidec.solve(Given(), S.EXTRA(0.1), T.ring(N), steps=3),
        "of the oracle returned complex128 .*, expected real numbers",
    ),
    "x0": (
        lambda: mpidec.solve(Given.problem, S.EXTRA(0.1), T.ring(N), steps=3, x0=LEAST),
        "x0 is complex, expected real numbers, as the problem is float64: give it complex data",
    ),
    "value": (
        lambda: mpidec.solve(
            P.Custom(lambda X: (residual(X) ** 2).sum(axis=1) / 2, grad, **CUSTOM),
            S.EXTRA(0.1),
            T.ring(N),
            steps=3,
        ),
        r"value\(X\) is complex, expected real numbers: take squares of moduli",
    ),
    "conjugate": (
        lambda: mpidec.solve(
            P.Custom(value, lambda X: grad(X).conj(), **CUSTOM), S.EXTRA(0.1), T.ring(N), steps=3
        ),
        "not the gradient of value",
    ),
    "metric": (
        lambda: mpidec.solve(
            made(), S.EXTRA(0.1), T.ring(N), steps=3, metrics={"own": lambda X, agents, k: X[0, 0]}
        ),
        rf"for X of shape \({N}, {D}\), expected real",
    ),
    "x_star": (
        lambda: mpidec.solve(moving(3), S.EXTRA(0.1), T.ring(N), steps=3),
        rf"x_star\(3\) is of shape \({D + 1},\), expected finite numbers of shape \({D},\)",
    ),
}


@pytest.mark.serial
@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_silently_real(case):
    call, message = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.serial
def test_tune_finds_the_step_size_of_solve():
    result = mpidec.solve(made(), S.EXTRA(), T.ring(N), steps=300)
    assert mpidec.tune(made(), S.EXTRA(), T.ring(N), steps=300).step_size == result.step_size
