"""Windows in tests: the ways in which their rows travel."""

import numpy as np
import pytest

TRANSPORTS = {"auto": {}, "p2p": {"transport": "p2p"}, "rma": {"windows": "rma"}}


OVER_ALL = pytest.mark.parametrize("net", TRANSPORTS, indirect=True)  # the others: "rma" by --slow


def aligned(size):
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]
