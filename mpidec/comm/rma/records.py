"""Records: arrays with a push-sum weight that other ranks write to; compiled (`_records.c`), or
in Python.

Without the compiled extension no other process reads or writes the records of this one: all rows
arrive in messages.
"""

from __future__ import annotations

import numpy as np

__all__ = ["ALIGNED", "COMPILED", "HEADER", "native", "stride"]

try:
    import mpidec.comm.rma._records as native

    COMPILED = True
except ImportError:  # no compiler where the package was installed
    import mpidec.comm.rma.records_in_python as native  # type: ignore[no-redef]

    COMPILED = False

HEADER = native.HEADER  # bytes before the row of a record
# The size of a record is a multiple of a cache line: neighbours write to records side by side.
ALIGNED = 64


def stride(count: int, dtype: np.dtype) -> int:
    """Bytes of a record with a row of `count` numbers."""
    return HEADER + -(-count * dtype.itemsize // ALIGNED) * ALIGNED
