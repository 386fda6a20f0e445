"""Formats: bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.formats import pytorch

from mpidec.comm.arrays.formats import BFLOAT16, narrow, widen

pytestmark = pytest.mark.most(2)


def test_bfloat16_is_rounded_as_torch_rounds():
    torch = pytorch()
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    bits[:6000] = bits[:6000] & 0xFFFF0000 | 0x8000  # half way between two
    values = np.append(bits, np.uint32([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF])).view(
        np.float32
    )
    numbers = values[~np.isnan(values)]
    np.testing.assert_array_equal(
        narrow(numbers, BFLOAT16).view(np.int16),
        torch.from_numpy(numbers.copy()).to(torch.bfloat16).view(torch.int16).numpy(),
    )
    assert np.isnan(widen(narrow(values[np.isnan(values)], BFLOAT16), BFLOAT16)).all()
