"""What the rest of the package uses of mpidec.solvers beside its public names."""

from .asynchronous import (
    Asynchronous as Asynchronous,
    PairwiseSolver as PairwiseSolver,
    Place as Place,
    PushSolver as PushSolver,
    is_asynchronous as is_asynchronous,
)
from .base import (
    at_step as at_step,
    averages as averages,
    check_dataclass as check_dataclass,
    is_sample as is_sample,
    limits as limits,
    name_of as name_of,
    start_of as start_of,
    state as state,
    step_size_of as step_size_of,
    with_step_size as with_step_size,
)
from .step_schedules import SCHEDULES as SCHEDULES, WORDS as WORDS, parsed as parsed
from .steps import OfSteps as OfSteps, after as after, iterate as iterate
