"""What the rest of the package uses of mpidec.bench."""

from .calibration import allreduce as allreduce, gradient as gradient, timed as timed
