"""16-bit floats are summed in float32 and rounded once."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.formats import expected, network, stack

from mpidec import topology as T

pytestmark = pytest.mark.most(2)


@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_float16_is_summed_in_float32_and_rounded_once(transport):
    X = stack(40, (50,), "<f2")
    with network(40, T.complete(40), transport) as (W, mine):
        Y, out = W(X[mine]), np.empty_like(X[mine])
        assert Y.dtype == np.float16 and W(X[mine], out=out) is out
        np.testing.assert_array_equal(Y, expected(W, X[mine], "<f2"))
        np.testing.assert_array_equal(out, Y)
        exact = (T.complete(40).W @ X.astype(float))[mine]
        assert (np.abs(Y - exact) <= 0.501 * np.spacing(np.abs(Y)) + 1e-6).all()
