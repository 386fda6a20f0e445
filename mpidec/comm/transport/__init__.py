"""Geometry of a halo, and the ways to fetch it."""

from .base import Counters as Counters, Transport as Transport, words as words
from .device import DeviceSums as DeviceSums
from .half import HalfSum as HalfSum
from .halo import Ending as Ending, HaloExchange as HaloExchange, Kinds as Kinds
from .messages import HaloMessages as HaloMessages, neighbor_collectives as neighbor_collectives
from .moved import start_moved as start_moved
from .node_calls import NodeCalls as NodeCalls, WeightedSum as WeightedSum
from .node_reader import NodeReader as NodeReader
from .plan import Routes as Routes
from .row_sums import RowSum as RowSum, RowSums as RowSums
from .sums import (
    LocalSum as LocalSum,
    MessageSum as MessageSum,
    MixedSum as MixedSum,
)
