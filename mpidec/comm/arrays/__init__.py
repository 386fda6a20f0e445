"""Arrays of NumPy, PyTorch and CuPy behind one small protocol."""

from .devices import (
    Array as Array,
    Device as Device,
    Given as Given,
    Place as Place,
    Torch as Torch,
    device_of as device_of,
)
from .formats import (
    BFLOAT16 as BFLOAT16,
    flat_dtype as flat_dtype,
    narrow as narrow,
    widen as widen,
    working as working,
)
from .host import (
    ArrayT as ArrayT,
    Restore as Restore,
    as_rows as as_rows,
    as_target as as_target,
    check_out as check_out,
    check_rows as check_rows,
    empty_like as empty_like,
    native as native,
    plain_tensor as plain_tensor,
    row_bytes as row_bytes,
    to_host as to_host,
)
