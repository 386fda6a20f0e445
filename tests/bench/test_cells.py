"""Arrays of the contenders."""

from __future__ import annotations

import numpy as np

from mpidec.bench import cells


def test_arrays_begin_where_a_page_begins():
    array = cells.aligned((3, 5))
    assert (
        array.shape == (3, 5)
        and array.dtype == np.float64
        and array.ctypes.data % 4096 == 0
        and array.flags.c_contiguous
    )
