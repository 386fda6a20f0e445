"""The scale of the data."""

import numpy as np
import pytest

import mpidec

pytestmark = pytest.mark.serial


@pytest.mark.filterwarnings("ignore:step_size")
@pytest.mark.parametrize("scale", [2.0**505, 2.0**-505])
def test_the_scale_of_data_that_float64_cannot_hold_is_named(scale):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((40, 3))
    y = A @ np.ones(3)
    for data, text in [
        ((A * scale, y), "largest entry of A is .*standardize"),
        ((A, y * scale), "largest entry of y is .*unit"),
    ]:
        with pytest.raises(ValueError, match=text):
            mpidec.problems.load_problem(data, 4, "least_squares")
    problem, same = (
        mpidec.problems.load_problem((a, y), 4, "least_squares", standardize=True)
        for a in (A * scale, A)
    )
    assert np.array_equal(problem.A, same.A)  # without a trace of the scale
    problem = mpidec.problems.LeastSquares(scale * A.reshape(4, 10, 3), y.reshape(4, 10))
    for step_size in ("auto", "safe"):
        with pytest.raises(
            ValueError, match=r"smoothness constant of the problem is .*scale of the data"
        ):
            mpidec.solve(problem, mpidec.solvers.EXTRA(step_size), "ring", steps=10)
