"""Operators that move rows between agents: the network, mixers, and exchanges over edges."""

from .mixer import Mixer as Mixer
from .mixer import Pending as Pending
from .mixer import Phase as Phase
from .network import Network as Network
