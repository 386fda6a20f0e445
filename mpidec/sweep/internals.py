"""What the rest of the package uses of mpidec.sweep beside its public names."""

from .sharing import WorkQueue as WorkQueue
