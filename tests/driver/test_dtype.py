"""float32 problems: iterates, messages, bytes and files in float32; metrics, minimizers and step sizes in float64."""

import warnings

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.solvers.asynchronous import Place

N, P_, D = 6, 7, 3


def made(loss, dtype, lo=0, hi=N, **options):
    rng = np.random.default_rng(2)
    A, b = rng.standard_normal((N, P_, D)).astype(np.float32), rng.standard_normal((N, P_))
    y = np.where(b > 0, 1, -1)
    target = {"LeastSquares": b, "Huber": b, "LogisticRegression": y, "Softmax": y > 0}[loss]
    make = getattr(P, loss)
    target = np.asarray(target, np.float32)
    whole = make(A.astype(dtype), target.astype(dtype), l2=0.3, **options)
    problem = make(A[lo:hi].astype(dtype), target[lo:hi].astype(dtype), l2=0.3, **options)
    problem.x_star = whole.solution()
    return problem


@pytest.mark.parametrize("loss", ["LeastSquares", "LogisticRegression", "Softmax", "Huber"])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_float32_problem_keeps_its_dtype(loss, intercept):
    problem, exact = (made(loss, dtype, intercept=intercept) for dtype in (np.float32, np.float64))
    X = np.random.default_rng(3).standard_normal((N, problem.d)).astype(np.float32)
    assert problem.dtype == problem.A.dtype == problem.grad(X).dtype == np.float32
    assert problem.value(X).dtype == problem.x_star.dtype == problem.smoothness.dtype == np.float64
    np.testing.assert_allclose(problem.grad(X), exact.grad(X.astype(float)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(problem.value(X), exact.value(X.astype(float)), rtol=1e-6)
    np.testing.assert_allclose(problem.x_star, exact.x_star, rtol=1e-9)
    np.testing.assert_allclose(problem.smoothness, exact.smoothness, rtol=1e-12)
    V = problem.prox(X, 0.5)
    assert V.dtype == np.float32
    np.testing.assert_allclose(V, exact.prox(X.astype(float), 0.5), rtol=1e-4, atol=1e-5)


@pytest.mark.serial
def test_a_prediction_ends_at_the_accuracy_of_float32():
    for dtype, tol, note in ((np.float32, 1e-6, "float32 does not reach 1e-09"), (float, 1e-9, "")):
        stop = {"error": 1e-9}
        result = mpidec.solve(
            made("LeastSquares", dtype), S.EXTRA(), T.ring(N), steps=300, stop=stop
        )
        assert (result.choice.tol, result.choice.note) == (tol, note)
        result = mpidec.simulate(
            made("LeastSquares", dtype), S.RunningSumTracking(), T.ring(N), steps=200, stop=stop
        )
        assert (result.choice.tol, result.choice.note) == (tol, note)
        assert result.X.dtype == dtype and result.metrics["error_rms"][-1] < 1.2e-6


ASYNCHRONOUS = [S.AsyncPushSum(0.02), S.RunningSumTracking(0.1), S.A2CiD2(0.05, momentum=0.3)]


@pytest.mark.parametrize("solver", ASYNCHRONOUS, ids=repr)
def test_an_asynchronous_run_of_a_float32_problem_is_one_in_float32(solver, shared_tmp):
    path = shared_tmp / "run.h5"
    with mpidec.Network(N) as net:
        problem = made("LeastSquares", np.float32, net.lo, net.hi)
        for steps, resume in ((20, False), (60, True)):
            record = mpidec.Record(path, resume=resume, trajectory=True)
            result = mpidec.solve(problem, solver, T.ring(N), steps=steps, net=net, record=record)
            states = vars(result.state).values() if net.m else [result.X]
            assert {x.dtype for x in (result.X, result.x, *states) if x.ndim == 2} == {
                np.dtype(np.float32)
            }
            run = mpidec.read(path)
            np.testing.assert_array_equal(run.x[net.lo : net.hi], result.X)
            assert run.x.dtype == run.trajectory()[1].dtype == np.float32
            numbers = {"AsyncPushSum": D + 1, "RunningSumTracking": 2 * D + 1, "A2CiD2": D}
            bytes_ = 4 * numbers[type(solver).__name__] * result.metrics["messages"]
            np.testing.assert_array_equal(result.metrics["bytes"], bytes_)
            net.agree()
        assert np.isfinite(result.metrics["error"]).all()


@pytest.mark.serial
@pytest.mark.parametrize("solver", ASYNCHRONOUS, ids=repr)
def test_a_simulation_of_a_float32_problem_follows_that_in_float64(solver):
    single, double = (
        mpidec.simulate(
            made("LeastSquares", dtype), solver, T.ring(N), steps=100, drop=0, delay=(0, 2)
        )
        for dtype in (np.float32, np.float64)
    )
    assert single.X.dtype == np.float32
    np.testing.assert_allclose(single.X, double.X, rtol=1e-3, atol=2e-6)
    np.testing.assert_array_equal(2 * single.metrics["bytes"], double.metrics["bytes"])


@pytest.mark.serial
def test_no_mass_is_lost_to_the_rounding_of_float32():
    x0 = np.random.default_rng(4).random((7, D)).astype(np.float32)
    s = S.AsyncPushSum().init(x0[0], Place(0, 3, (1, 2), (1, 2)))
    message = S.AsyncPushSum().wake(s, None, None)
    assert message.dtype == np.float32 and s.w + 2 * float(message[-1]) == 1
    np.testing.assert_array_equal(s.u + 2 * message[:-1], x0[0])
    result = mpidec.simulate(None, S.AsyncPushSum(), T.ring(7), steps=1000, x0=x0, delay=(0, 2))
    assert abs(result.state.w.sum() / 7 - 1) < 1e-6
    np.testing.assert_allclose(result.X, np.tile(x0.mean(axis=0), (7, 1)), atol=1e-6)
    # what a tracking agent holds, or will read, is the sum of the gradients, although its running sums are large
    offset = made("LeastSquares", np.float32)
    result = mpidec.simulate(offset, S.RunningSumTracking(1e-4), T.ring(N), steps=1000)
    s = result.state
    rest = (s.Z.astype(float) + 2 * s.Rho - s.Rho_read - s.G).sum(axis=0)
    assert np.abs(rest).max() < 2e-7 * np.abs(s.Rho).max()


@pytest.mark.parametrize("solver", [S.ExactDiffusion(), S.DGD(0.02), S.KGT(0.02)], ids=repr)
@pytest.mark.parametrize("oracle", ["full", "mini-batch", "noisy"])
def test_a_run_of_a_float32_problem_is_one_in_float32(solver, oracle, shared_tmp):
    results = {}
    for dtype in (np.float32, np.float64):
        with mpidec.Network(N) as net, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = made("LeastSquares", dtype, net.lo, net.hi)
            wrapped = {
                "full": problem,
                "mini-batch": P.MiniBatch(problem, 3),
                "noisy": P.Noisy(problem, 0.1),
            }
            result = mpidec.solve(
                wrapped[oracle],
                solver,
                T.ring(N),
                steps=80,
                net=net,
                record=shared_tmp / f"{np.dtype(dtype)}.h5",
            )
            net.comm.Barrier()
        assert result.X.dtype == result.x.dtype == dtype
        assert mpidec.read(shared_tmp / f"{np.dtype(dtype)}.h5").x.dtype == dtype
        results[dtype] = result
    single, double = results[np.float32], results[np.float64]
    np.testing.assert_array_equal(2 * single.metrics["bytes"], double.metrics["bytes"])
    np.testing.assert_allclose(single.X, double.X, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(single.step_size, double.step_size, rtol=1e-6)


@pytest.mark.parametrize("name", ["least_squares", "logistic", "softmax"])
@pytest.mark.parametrize("scaled", [False, True])
def test_data_of_float32_make_a_run_in_float32(name, scaled, shared_tmp):
    rng = np.random.default_rng(1)
    A, y = (5 * scaled + rng.standard_normal((50, D))).astype(np.float32), np.arange(50) % 2
    np.savez(shared_tmp / "mine.npz", A=A, y=y)
    options = {"standardize": scaled, "intercept": scaled, "l2": 0.5, "n": N, "problem": name}
    exact = P.load_problem((A.astype(float), y), **options)
    with mpidec.Network(N) as net:
        for data in ((A, y), shared_tmp / "mine.npz"):
            problem = P.load_problem(data, net=net, **options)
            assert problem.dtype == problem.y.dtype == np.float32
            np.testing.assert_allclose(problem.x_star, exact.x_star, rtol=1e-5, atol=1e-7)
        result = mpidec.solve(
            problem, S.GradientTracking(), T.ring(N), steps=300, net=net, stop={"error_rms": 1e-12}
        )
    assert (
        result.X.dtype == np.float32 and result.metrics["error_rms"][-1] < 5e-5
    )  # on 2 ranks: 2.2e-5, of rounding
    assert "the accuracy of float32" in result.reason


def test_columns_of_float32_are_scaled_by_sums_in_float64():
    A = np.full((200_000, 2), 4097.0, np.float32)
    A[::2, 0] += 0.25
    scaled = P.standardized(A)
    assert scaled.dtype == np.float32 and not scaled[:, 1].any()
    np.testing.assert_allclose(scaled[:2, 0], [1, -1], rtol=1e-6)


def test_squares_of_float32_data_must_fit():
    A = np.full((8, 1), 1e20, np.float32)
    with pytest.raises(ValueError, match="products of two entries must fit into float32"):
        P.load_problem((A, np.arange(8)), 2, "least_squares")
    P.load_problem((A.astype(float), np.arange(8)), 2, "least_squares")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_x0_decides_where_the_problem_does_not(dtype):
    with mpidec.Network(N) as net:
        problem = P.Custom(lambda X: (X * X).sum(axis=1), lambda X: 2 * X, net.m, D)
        result = mpidec.solve(
            problem, S.GradientTracking(0.1), T.ring(N), steps=5, net=net, x0=np.ones(D, dtype)
        )
        assert result.X.dtype == dtype
        mixed = mpidec.solve(
            None, S.Consensus(), T.ring(N), steps=5, net=net, x0=np.ones((N, D), dtype)
        )
        assert mixed.X.dtype == dtype
