"""A2CiD2: accelerating asynchronous communication (Nabli et al., NeurIPS 2023)."""

from .consensus import Consensus
from .constants import Constants
from .pace import Counts, Neighbours, Rates, Timeline, Times

EXPERIMENTS = (Consensus, Constants, Rates, Timeline, Times, Counts, Neighbours)
