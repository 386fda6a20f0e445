"""What the rest of the package uses of mpidec.problems beside its public names."""

from . import composite as composite, registry as registry
from .custom import MODULUS as MODULUS, REAL as REAL
from .differences import mismatch as mismatch
from .loading import (
    DataOptions as DataOptions,
    Prepared as Prepared,
    prepare as prepare,
    scattered as scattered,
    usual_partition as usual_partition,
)
from .members import (
    agents_of as agents_of,
    dtype_of as dtype_of,
    is_checked as is_checked,
    is_sampled as is_sampled,
    metrics_of as metrics_of,
    moves as moves,
    prox_of as prox_of,
    smoothness_of as smoothness_of,
    solution_of as solution_of,
    targets_of as targets_of,
    term_of as term_of,
    x_star_of as x_star_of,
)
from .oracles import (
    Bare as Bare,
    Gradient as Gradient,
    Gradients as Gradients,
    Measured as Measured,
    adapted as adapted,
    by_run as by_run,
    of_one as of_one,
)
from .real_view import real_view as real_view, seen as seen
from .registry import PROBLEM_TABLE as PROBLEM_TABLE
from .variance_reduction import REDUCTIONS as REDUCTIONS
