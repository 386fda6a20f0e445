"""The guard of a run: when it begins again, and when it does not."""

import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from helpers.squares import D, data, squares

import mpidec
from mpidec import problems as P, record, solvers as S, topology as T
from mpidec.comm.runtime import MPI
from mpidec.driver.stepsize import guard


@pytest.mark.serial
def test_a_run_is_not_begun_again_where_no_step_size_helps():
    rng = np.random.default_rng(0)
    problem = P.LeastSquares(rng.normal(size=(8, 5, 20)), rng.normal(size=(8, 5)), l2=0.01)
    mixings = {
        "after step 1, whatever the step size, as wrong rows": lambda W: W.attacked({2: np.nan}),
        "no step size makes progress with this codec": lambda W: W.compress("top_k", fraction=0.05),
    }
    for reason, mixing in mixings.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = mpidec.solve(problem, S.ExactDiffusion(), T.ring(8), steps=200, mixing=mixing)
        assert result.outcome == "diverged" and reason in result.reason
        assert not any("begins again" in str(one.message) for one in caught)


def test_a_run_that_does_not_converge_begins_again(shared_tmp):
    """Cubic curvature: the linear model at 0 does not see that of the start, where its step size explodes."""
    n, path = 4, shared_tmp / "run.h5"
    with mpidec.Network(n) as net:
        problem = P.Custom(
            lambda X: (X**2 / 2 + X**4).sum(axis=1),
            lambda X: X + 4 * X**3,
            m=net.m,
            d=1,
            x_star=[0.0],
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = mpidec.solve(
                problem,
                S.ExactDiffusion(),
                T.complete(n),
                steps=400,
                x0=[0.9],
                net=net,
                record=path,
            )
        assert result.outcome == "completed" and np.abs(result.X).max(initial=0) < 1e-6
        assert result.step_size < 0.7 * result.choice.tried[np.argmin(result.choice.predicted)]
        if net.rank == 0:
            assert any("begins again" in str(one.message) for one in caught)
            run = record.read(path)
            assert (
                run.metrics["step"].tolist() == list(range(0, 401, 10))
                and run.attributes["step_size"] == result.step_size
            )


def test_a_run_is_checked_at_half_of_the_expected_steps():
    with mpidec.Network(4) as net:
        found, X0 = mpidec.tune(squares(net), S.EXTRA(), T.chain(4), net=net), np.zeros((net.m, D))
        half, point = found.halfway(found.steps), data(4)[2]
        checks = guard.Guard(net, point, X0, found.steps, half)
        assert half > checks.next == 32
        checks.check(half, X0 + 0.9 * point)
        assert checks.next > half
        with pytest.raises(guard.Retry):
            checks.check(half, X0)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("agents_alike", [True, False])
def test_a_minimizer_that_is_zero_up_to_rounding_needs_no_smaller_step_size(known, agents_alike):
    n, p = 6, 20
    A = np.random.default_rng(3).standard_normal((n, p, D))
    A -= A.mean(axis=1 if agents_alike else (0, 1), keepdims=True)  # so is A^T 1
    y = np.full((n, p), 3.0)
    with mpidec.Network(n) as net, warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = P.LeastSquares(A[net.lo : net.hi], y[net.lo : net.hi])
        problem.x_star = P.LeastSquares(A, y).solution() if known else None
        result = mpidec.solve(problem, S.GradientTracking(), T.ring(n), steps=200, net=net)
    largest = np.linalg.norm(A.reshape(-1, D), 2) ** 2 / n
    assert str(result.outcome) == "completed" and result.step_size > 0.01 / largest
    assert np.abs(result.X).max(initial=0.0) < 1e-4
    assert not known or result.metrics["error"][-1] < 1e-4  # absolute, as x* = 0


STEEP = (  # diverges after a few steps
    lambda X: (X**2 / 2 + X**4).sum(axis=1),
    lambda X: X + 4 * X**3,
)
BUMPY = (  # jumps to and fro, far from the minimizer
    lambda X: (X**2 / 2 + 3 * np.log1p(X**2) + 3 / (1 + X**2)).sum(axis=1),
    lambda X: X + 6 * X**3 / (1 + X**2) ** 2,
)


@pytest.mark.parametrize(
    "functions, x0, calls, reason",
    [
        (
            STEEP,
            0.8,
            3,
            "objective is inf after 6 steps",
        ),  # the file has step 2 of the first attempt
        (STEEP, 0.8, 7, "objective is inf after 8 steps"),  # and here of the second one
        (BUMPY, 1.5, 10, "distance 3.9 from the point of the linear model after 32 steps"),
    ],
)
def test_a_resumed_run_begins_again_where_an_undisturbed_one_does(
    shared_tmp, functions, x0, calls, reason
):
    told = []

    def dies(*args):
        told.append(args)
        if len(told) == calls:
            raise RuntimeError("died")

    def run(net, name, progress=None, **more):
        problem = P.Custom(*functions, m=net.m, d=1, x_star=[0.0])
        file = mpidec.Record(shared_tmp / name, checkpoint_seconds=0, **more)
        given = {"every": 2, "net": net, "record": file, "progress": progress}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = mpidec.solve(
                problem, S.GradientTracking(), "complete", steps=60, x0=[x0], **given
            )
        return result, [str(one.message) for one in caught]

    with mpidec.Network(4) as net:
        whole, said = run(net, "whole.h5")
        with pytest.raises(RuntimeError, match="died"):
            run(net, "part.h5", dies)
        if net.rank == 0:
            shutil.copy(shared_tmp / "part.h5", shared_tmp / "alone.h5")
        again, said_again = run(net, "part.h5", resume=True)
        np.testing.assert_array_equal(again.X, whole.X)
        one, other = (replace(found.choice, seconds=0.0) for found in (again, whole))
        assert str(one) == str(other) and again.step_size == whole.step_size
        if net.rank > 0:
            return
    assert said_again == said[-len(said_again) :] and reason in said_again[0]
    with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        assert run(net, "alone.h5", resume=True)[1] == said_again
    files = [record.read(shared_tmp / f"{name}.h5") for name in ("whole", "part", "alone")]
    for file in files[1:]:
        np.testing.assert_array_equal(file.x, files[0].x)
        assert file.attributes["step_size"] == whole.step_size
        for name in file.metrics.keys() - {"time"}:
            np.testing.assert_array_equal(file.metrics[name], files[0].metrics[name], err_msg=name)
