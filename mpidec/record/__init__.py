"""Recording of trajectories, checkpoints and results in HDF5 files that are readable at any
time, even after a kill.
"""

from .reader import Run as Run, last_checkpoint as last_checkpoint, read as read
from .recorder import Record as Record
from .runfile import RunFile as RunFile

__all__ = ["Record", "Run", "RunFile", "last_checkpoint", "read"]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
