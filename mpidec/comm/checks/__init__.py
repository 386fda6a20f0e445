"""Matching of calls between ranks: message headers, operations in progress, and reports of
mismatches.
"""

from .header import (
    CONFIRMATION as CONFIRMATION,
    DOWN as DOWN,
    EDGE as EDGE,
    FROM_LEADER as FROM_LEADER,
    TO_LEADER as TO_LEADER,
    UP as UP,
    Subject as Subject,
)
from .history import PastOperation as PastOperation
from .matching import Matching as Matching
from .mismatch import (
    gave_up as gave_up,
    is_told as is_told,
    lists_disagree as lists_disagree,
    not_expected as not_expected,
    not_sent as not_sent,
)
from .operation import ARRIVED as ARRIVED, Operation as Operation, Steps as Steps
