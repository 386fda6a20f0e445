"""Methods: communication before and after the base optimizer's update, by which workers agree on
one model.
"""

from .allreduce import AllReduce as AllReduce
from .base import Method as Method, Mixer as Mixer, Rows as Rows, divided as divided, mean as mean
from .combine import (
    AdaptiveAverage as AdaptiveAverage,
    AdaptThenCombine as AdaptThenCombine,
    AdaptWhileCombine as AdaptWhileCombine,
    Hierarchical as Hierarchical,
)
from .push import OverlapPush as OverlapPush
from .solver import (
    ByRate as ByRate,
    MomentumUpdate as MomentumUpdate,
    SolverUpdate as SolverUpdate,
)
from .streaming import StreamingUpdate as StreamingUpdate
