"""What the rest of the package uses of mpidec.theory beside its public names."""

from .linear import LinearSteps as LinearSteps
from .moments import rest as rest
