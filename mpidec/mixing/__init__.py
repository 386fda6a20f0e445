"""Communication between agents: the network, mixers, and exchanges over edges."""

from .mixer import Mixer as Mixer
from .network import Network as Network
from .pending import Pending as Pending
from .phase import Phase as Phase
