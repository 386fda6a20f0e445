"""Message headers."""

import numpy as np
import pytest

from mpidec.comm.checks import header as h

pytestmark = [pytest.mark.wide, pytest.mark.library]


def test_a_header_survives_its_packing():
    rng = np.random.default_rng(1)
    texts = ["", "neighbor_allreduce", "W(X) über ring, step 3", "x" * 3000, "\udcff"]
    for _ in range(300):
        op, mode, signature, dtype, text = (texts[t] for t in rng.integers(0, len(texts) - 1, 5))
        subject = h.Subject(
            op, mode, signature, dtype, tuple(rng.integers(0, 2**62, rng.integers(0, 9)).tolist())
        )
        header = h.Header(
            int(rng.integers(6)),
            bool(rng.integers(2)),
            int(rng.integers(2**62)),
            subject,
            int(rng.integers(6)),
            bool(rng.integers(2)),
            float(rng.standard_normal()),
            int(rng.integers(2**62)),
            int(rng.integers(2**30)),
            text,
            int(rng.integers(-1, 2**62)),
            bool(rng.integers(2)),
        )
        raw = h.pack(2**48 - 1, header)
        assert h.unpack(np.frombuffer(raw + b"array", np.uint8)) == (2**48 - 1, header, len(raw))
        assert len(raw) % 16 == 0  # the array behind it is aligned
    odd = h.Header(h.FAILED, False, 1, h.Subject(texts[-1]), text=texts[-1])
    assert h.unpack(np.frombuffer(h.pack(0, odd), np.uint8))[1].text == "\\udcff"
