"""What the rest of the package uses of mpidec.comm.mixing beside its public names."""

from ..checks import is_told as is_told
from .base.lifecycle import TRANSPORTS as TRANSPORTS, lost_networks as lost_networks
from .codecs.base import Codec as Codec
from .faults.faults import (
    Fault as Fault,
    LinkNoise as LinkNoise,
    Round as Round,
    clipped as clipped,
)
from .local.edges import repeatable as repeatable
from .mixers.operator import (
    EXCLUDED as EXCLUDED,
    FAULTS as FAULTS,
    ORDER as ORDER,
    Channel as Channel,
    Compressed as Compressed,
    Kept as Kept,
    Operator as Operator,
    StepOperator as StepOperator,
    Triggered as Triggered,
    Wrapped as Wrapped,
)
from .phases.compressed import with_feedback as with_feedback
