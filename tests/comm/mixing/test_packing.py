"""Several arrays in one row."""

import numpy as np
import pytest
from helpers.mixing import stack

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.wide, pytest.mark.library]


def test_many_arrays_travel_as_one():
    n, X, p = 7, stack(7, (3, 2)), stack(7, ())
    with mpidec.Network(n) as net:
        W = net.mixer(T.exponential(n))
        x, w = X[net.lo : net.hi], p[net.lo : net.hi]
        together, rounds = W([x, w]), W.rounds
        np.testing.assert_array_equal(together[0], W(x))
        np.testing.assert_array_equal(together[1], W(w))
        assert rounds == 1
        mixed = W([x, w.astype(np.float32)])
        assert [Y.dtype for Y in mixed] == [np.float64, np.float32]
        assert W([]) == []
