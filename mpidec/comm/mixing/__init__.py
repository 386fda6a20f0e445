"""Communication between agents: the network, mixers, and exchanges over edges."""

from ..runtime.pending import Pending as Pending
from .mixer import Mixer as Mixer
from .network import Network as Network
from .phase import Phase as Phase
