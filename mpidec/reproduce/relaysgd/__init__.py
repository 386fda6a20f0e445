"""RelaySum for decentralized deep learning on heterogeneous data (Vogels et al., NeurIPS 2021)."""

from .correction import CorrectionFactor
from .heterogeneity import ModelOrGradient, NoisyGradients, StarGraphs
from .influence import Influence
from .mean_estimation import MeanEstimation
from .networks import Figure4, Table2, Table5
from .rate import RateConstants
from .scalability import Biased, Unbiased
from .social import SocialNetwork

EXPERIMENTS = (
    Influence,
    Biased,
    Unbiased,
    SocialNetwork,
    Figure4,
    RateConstants,
    CorrectionFactor,
    NoisyGradients,
    StarGraphs,
    MeanEstimation,
    ModelOrGradient,
    Table2,
    Table5,
)
