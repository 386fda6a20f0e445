"""Sweeps: an experiment with every combination of varied settings and seeds, its table and its
figure.

python -m mpidec.sweep --vary solver.name=extra,gradient_tracking --vary
topology.name=ring,exponential --seeds 5
"""

from .study import sweep as sweep
from .tables import Row as Row, Table as Table

__all__ = ["Row", "Table", "sweep"]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
