"""Weighted sums of rows in C and in NumPy, bit-identical."""

from .descent import descend as descend
from .pairwise import (
    begun as begun,
    beyond as beyond,
    joined as joined,
    node_sums as node_sums,
    nodes as nodes,
    pairwise_sum as pairwise_sum,
)
from .weighted import (
    COLUMNS as COLUMNS,
    COMPILED as COMPILED,
    POSITIVE as POSITIVE,
    ROWS as ROWS,
    Entries as Entries,
    Room as Room,
    Runs as Runs,
    Weights as Weights,
    _kernel as _kernel,
    difference as difference,
    room_for as room_for,
    weighted_sum as weighted_sum,
)
