"""Published experiments, repeated with a verdict for each published figure: ``python -m
mpidec.reproduce --list``.

    >>> from mpidec import reproduce
    >>> "ceca-fig5" in reproduce.EXPERIMENTS
    True
"""

from .catalogue import EXPERIMENTS as EXPERIMENTS
from .experiment import Experiment as Experiment
from .measuring import measure as measure, publish as publish
from .verdict import About as About, Line as Line, Report as Report

__all__ = ["EXPERIMENTS", "About", "Experiment", "Line", "Report", "measure", "publish"]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
