"""DSGD-CECA: decentralized SGD with communication-optimal exact consensus (Ding et al., ICML
2023).
"""

from .claims import CecaClaims
from .consensus import ExactConsensus, OtherGraphs
from .least_squares import NoisyLeastSquares
from .networks import CecaTable2, Figure8, Figure9, Figure10
from .table1 import Transients
from .worked import WorkedExample

EXPERIMENTS = (
    Transients,
    CecaTable2,
    WorkedExample,
    ExactConsensus,
    OtherGraphs,
    NoisyLeastSquares,
    Figure8,
    Figure9,
    Figure10,
    CecaClaims,
)
