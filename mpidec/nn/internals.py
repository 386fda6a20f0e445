"""What the rest of the package uses of mpidec.nn beside its public names."""

from .sampling import epochs_of as epochs_of
from .schedules import SCHEDULES as SCHEDULES, factor as factor
from .stacked import BATCHED as BATCHED, evaluate as evaluate, loops as loops
