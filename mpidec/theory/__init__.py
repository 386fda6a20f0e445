"""Theory beside a run: rate, bias, stability limit and steady state of any solver, from the linear
map that its own `step` is.
"""

from .noise import Noise
from .quadratic import Quadratic
from .stability import StableSteps, largest_step
from .steady import SteadyState, rate, steady_state

__all__ = [
    "Noise",
    "Quadratic",
    "StableSteps",
    "SteadyState",
    "largest_step",
    "rate",
    "steady_state",
]
