"""DSGD-CECA: decentralized SGD with communication-optimal exact consensus (Ding et al., ICML
2023).
"""

from .consensus import ExactConsensus

EXPERIMENTS = (ExactConsensus,)
