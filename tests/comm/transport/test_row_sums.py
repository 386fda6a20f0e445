"""Sums of rows over all ranks by messages."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

import mpidec
from mpidec.comm.arrays import BFLOAT16, narrow, widen
from mpidec.comm.runtime import wait_until

pytestmark = [pytest.mark.wide, pytest.mark.library]

LENGTHS = 1, 2, 5000, 300_001, 0  # whole, in slices, along a ring between nodes


def _total(terms, dtype):
    """The documented additions: short rows from rank 0 on, slice i of others from rank i on."""
    n, d = len(terms), len(terms[0])
    if (n - 2) * terms[0].nbytes <= 1 << 15:
        slices = [(0, slice(d))]
    else:
        ends = np.cumsum([d // n + (i < d % n) for i in range(n)]).tolist()
        slices = [(i, slice(a, b)) for i, (a, b) in enumerate(zip([0, *ends], ends))]
    wide = [widen(term, dtype) for term in terms]
    total = np.empty_like(wide[0])
    for first, columns in slices:
        total[columns] = reduce(np.add, [x[columns] for x in [*wide[first:], *wide[:first]]])
    return narrow(total, dtype)


def _row(rank: int, d: int, dtype: str) -> np.ndarray:
    row = np.random.default_rng(rank).standard_normal(d).astype(np.float32)
    return narrow(row, dtype) if dtype == BFLOAT16 else row.astype(dtype)


@pytest.fixture(params=["auto", "p2p"])
def net(request):
    with mpidec.Network(transport=request.param) as net:
        yield net


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", BFLOAT16])
def test_several_sums_under_way_have_the_bits_of_the_documented_additions(net, dtype):
    rows = [_row(net.rank, d, dtype) for d in LENGTHS]
    sums = [net.row_sums.start(row) for row in rows]
    wait = net.messages("sums", dtype)
    for each in reversed(sums):
        wait(each)
    for d, row in zip(LENGTHS, rows):
        terms = [_row(rank, d, dtype) for rank in range(net.size)]
        assert row.tobytes() == _total(terms, dtype).tobytes()


def test_progress_is_made_in_waits_for_something_else(net):
    row = np.full(100_000, float(net.rank))
    each = net.row_sums.start(row)
    wait_until(lambda: each.done, "something else")
    assert (row == net.size * (net.size - 1) / 2).all()
