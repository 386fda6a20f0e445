"""RelaySum for decentralized deep learning on heterogeneous data (Vogels et al., NeurIPS 2021)."""

from .correction import CorrectionFactor
from .heterogeneity import ModelOrGradient, Noisy, Star
from .influence import Influence
from .mean_estimation import MeanEstimation
from .rate import RateConstants
from .scalability import Biased, Unbiased
from .social import SocialNetwork

EXPERIMENTS = (
    Influence,
    Biased,
    Unbiased,
    SocialNetwork,
    RateConstants,
    CorrectionFactor,
    Noisy,
    Star,
    MeanEstimation,
    ModelOrGradient,
)
