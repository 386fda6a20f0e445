"""A figure or a statement of each of twelve other papers."""

from .compression import Gossip, QuantizedRows, VanishingGradients
from .consensus import FiniteTime, RateOfAnySize
from .exact import DirectedGraphs, ExactAndBiased
from .local_steps import ClientDrift, LocalSteps, SkippedCommunications
from .step_sizes import StabilityRange, StepOfAnyNetwork

EXPERIMENTS = (
    ExactAndBiased,
    StepOfAnyNetwork,
    StabilityRange,
    DirectedGraphs,
    Gossip,
    VanishingGradients,
    QuantizedRows,
    LocalSteps,
    ClientDrift,
    FiniteTime,
    RateOfAnySize,
    SkippedCommunications,
)
