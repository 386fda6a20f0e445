"""RelaySum for decentralized deep learning on heterogeneous data (Vogels et al., NeurIPS 2021)."""

from .correction import CorrectionFactor

EXPERIMENTS = (CorrectionFactor,)
