"""A2CiD2: accelerating asynchronous communication (Nabli et al., NeurIPS 2023)."""

from .consensus import ConsensusTimes
from .constants import Constants
from .networks import AcidFigure4, AcidTable5, Figure3, Table4
from .pace import Counts, Neighbours, PaceTimeline, Rates

EXPERIMENTS = (
    ConsensusTimes,
    Constants,
    Rates,
    PaceTimeline,
    Figure3,
    AcidFigure4,
    Table4,
    AcidTable5,
    Counts,
    Neighbours,
)
