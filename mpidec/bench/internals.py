"""What the rest of the package uses of mpidec.bench."""

from .calibration import (
    allreduce as allreduce,
    computed as computed,
    gradient as gradient,
    repeated as repeated,
)
