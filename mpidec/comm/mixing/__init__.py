"""Communication between agents: the network, mixers, and exchanges over edges."""

from ..runtime import Pending as Pending
from . import codecs as codecs
from .mixers.mixer import Mixer as Mixer
from .network.network import Network as Network
from .phases.phase import Phase as Phase

__all__ = ["Mixer", "Network", "Pending", "Phase", "codecs"]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
