"""What a process knows of itself before MPI: its launcher, and Ctrl-C while the package loads."""

from . import startup as startup
from .fault_tolerance import (
    evict_after as evict_after,
    obstacle as obstacle,
    tolerant as tolerant,
)
from .launcher import (
    LOCAL_SIZES as LOCAL_SIZES,
    RANKS as RANKS,
    child as child,
    detach as detach,
    hide as hide,
    launched as launched,
    outside as outside,
    rank as rank,
)
