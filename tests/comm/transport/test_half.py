"""16-bit floats are summed in float32 and rounded once."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.formats import FORMATS, expected, network, stack

from mpidec import topology as T
from mpidec.comm.arrays.formats import BFLOAT16

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


CALLS = {  # and the arrays in a message
    lambda W, X: W(X): 1,
    lambda W, X: W(X, out=np.empty_like(X)): 1,
    lambda W, X: W([X, X]): 2,
    lambda W, X: W.start(X).wait(): 1,
}


@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_bytes_are_those_of_the_rows_that_travel(transport):
    """On each path: with and without `out`, of several arrays, and of one that is waited for."""
    for format in FORMATS:
        if format == BFLOAT16:  # of tensors alone
            continue
        X = stack(40, (50,), format)
        with network(40, T.ring(40), transport) as (W, mine):
            rows = np.array(X[mine])
            for call, parts in CALLS.items():
                before = W.messages, W.bytes
                call(W, rows)
                sent, size = W.messages - before[0], W.bytes - before[1]
                assert size == sent * parts * 50 * rows.itemsize, (format, parts)
