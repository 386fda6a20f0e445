"""Published experiments at the size of this machine: ``python -m mpidec.reproduce
relaysgd-table2``.

Each experiment trains a small network on digits in place of the published one, and returns a table
with the published figures beside the measured ones.  What compares is the order of the methods, not
the figures.

    >>> from mpidec import reproduce
    >>> sorted(reproduce.EXPERIMENTS)
    ['acid-table4', 'ceca-table2', 'relaysgd-table2']
"""

from .experiments import EXPERIMENTS as EXPERIMENTS, table as table
from .tables import Cell as Cell, Table as Table

__all__ = ["EXPERIMENTS", "Cell", "Table", "table"]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
