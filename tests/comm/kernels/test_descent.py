"""The gradient step, compiled: the bits of the formula."""

import numpy as np
import pytest

from mpidec.comm.kernels.descent import descend


@pytest.mark.parametrize(
    "columns", [1, 7, 200]
)  # 200: in one pass where there is a compiled kernel
def test_descend_has_the_bits_of_the_formula(columns):
    rng = np.random.default_rng(0)
    shape = (50, columns)
    X, G = (rng.standard_normal(shape) * 10.0 ** rng.integers(-12, 12, shape) for _ in range(2))
    X[:3], G[:3] = np.array([[0.0], [-0.0], [1e-320]]), np.array([[0.0], [-0.0], [-1e-320]])
    for a in (0.1, 0, 3e-300):
        assert descend(X, a, G).tobytes() == (X - a * G).tobytes()
        assert descend(X[:, ::-1], a, G).tobytes() == (X[:, ::-1] - a * G).tobytes()
        assert (
            descend(X.astype("f"), a, G.astype("f")).tobytes()
            == (X.astype("f") - a * G.astype("f")).tobytes()
        )
