"""DSGD-CECA: decentralized SGD with communication-optimal exact consensus (Ding et al., ICML
2023).
"""

from .claims import Claims
from .consensus import ExactConsensus, OtherGraphs
from .least_squares import NoisyLeastSquares
from .table1 import Transients
from .worked import WorkedExample

EXPERIMENTS = (Transients, WorkedExample, ExactConsensus, OtherGraphs, NoisyLeastSquares, Claims)
