"""What the rest of the package uses of mpidec.driver beside its public names."""

from . import arguments as arguments
from .answers import gradients_for as gradients_for
from .arguments import (
    TopologyLike as TopologyLike,
    as_oracle as as_oracle,
    as_solver as as_solver,
    as_topology as as_topology,
)
from .asynchronous import AsyncResult as AsyncResult
from .asynchronous.draws import AVERAGING as AVERAGING, GRADIENT as GRADIENT, meetings as meetings
from .asynchronous.result import cannot_resume as cannot_resume
from .attempts import ANY_SIZE as ANY_SIZE
from .iterate import iterate as iterate
from .metrics import (
    BUILT_IN as BUILT_IN,
    SHARE as SHARE,
    Own as Own,
    checked as checked,
    counters_of as counters_of,
)
from .outcome import Target as Target, target_of as target_of
from .plan import Queue as Queue
from .provenance import provenance as provenance
from .result import Result as Result
from .runs import BAND as BAND
from .simulate import simulate as simulate
from .solve import Outcome as Outcome, Progress as Progress, solve as solve
from .stepsize import Choice as Choice, requested_rule as requested_rule
from .survivors import Beginning as Beginning, surviving as surviving
from .tune import tune as tune
