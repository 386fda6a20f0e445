"""RelaySum for decentralized deep learning on heterogeneous data (Vogels et al., NeurIPS 2021)."""

from .correction import CorrectionFactor
from .scalability import Biased, Unbiased

EXPERIMENTS = (Biased, Unbiased, CorrectionFactor)
