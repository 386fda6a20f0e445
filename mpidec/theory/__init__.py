"""Theory beside a run: rate, bias, stability limit and steady state of any solver, from the linear
map that its own `step` is.
"""

from .noise import Noise
from .quadratic import Quadratic
from .steady import SteadyState, largest_step, rate, steady_state

__all__ = ["Noise", "Quadratic", "SteadyState", "largest_step", "rate", "steady_state"]
