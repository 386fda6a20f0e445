"""Records without a compiler: the same bits."""

import numpy as np
import pytest
from helpers.windows import aligned

from mpidec.comm.rma import records, records_in_python

pytestmark = pytest.mark.library


@pytest.mark.skipif(not records.COMPILED, reason="compares the compiled extension with NumPy")
@pytest.mark.parametrize("single", [False, True])
def test_records_without_a_compiler(single):
    rng, dtype = np.random.default_rng(0), np.float32 if single else np.float64
    blocks = [[aligned(64 + 64 if k != 1 else 64) for k in range(6)] for _ in range(2)]
    ports = [
        make(0, 8, single, 1.0, b[0], b[1], b[2:4], b[4:6], [b[4], None])
        for make, b in zip((records.native.AgentRecords, records_in_python.AgentRecords), blocks)
    ]
    for _ in range(300):
        kind = rng.choice(["send", "update", "get", "arrive", "leave", "set"])
        x = rng.normal(size=8).astype(dtype)
        weights = [float(w) if rng.random() < 0.8 else None for w in rng.normal(size=2)]
        own, add = [None, 0.0, 1.0, 0.3][rng.integers(4)], bool(rng.random() < 0.5)
        for port in ports:
            if kind == "send":
                port.send(x if add else None, weights, own, add)
            elif kind == "update":
                port.update(own or 0.5, weights, add)
            elif kind == "get":
                port.get(0, 0.7)
            elif kind == "arrive":
                port.deliver(1, x, 0.5, 0.25, 3, add)
            elif kind == "leave":
                port.pop_outbox(1, np.zeros(8, dtype))
            else:
                port.set(x)
        for ours, theirs in zip(*blocks):
            if ours is not blocks[0][1]:
                np.testing.assert_array_equal(ours, theirs)
