"""Theory beside a run: rate, bias, stability limit and steady state of any solver, from the linear
map that its own `step` is; privacy of noisy messages.
"""

from .accounting import Privacy, privacy
from .noise import Noise
from .quadratic import Quadratic
from .stability import StableSteps, largest_step
from .steady import SteadyState, Transient, rate, steady_state, transient

__all__ = [
    "Noise",
    "Privacy",
    "Quadratic",
    "StableSteps",
    "SteadyState",
    "Transient",
    "largest_step",
    "privacy",
    "rate",
    "steady_state",
    "transient",
]
