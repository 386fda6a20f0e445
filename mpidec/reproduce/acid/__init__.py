"""A2CiD2: accelerating asynchronous communication (Nabli et al., NeurIPS 2023)."""

from .consensus import Consensus
from .constants import Constants
from .networks import Figure3, Figure4, Table4, Table5
from .pace import Counts, Neighbours, Rates, Timeline

EXPERIMENTS = (
    Consensus,
    Constants,
    Rates,
    Timeline,
    Figure3,
    Figure4,
    Table4,
    Table5,
    Counts,
    Neighbours,
)
