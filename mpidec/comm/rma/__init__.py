"""One-sided windows: arrays that neighbours write to without the owner's help, with push-sum
weights and mutexes.
"""

from .carriers import offload as offload
from .carriers.carrier import CARRIERS as CARRIERS
from .carriers.mpi_memory import Ended as Ended
from .claims import Claims as Claims
from .messenger import Kind as Kind, Message as Message, WindowMessenger as WindowMessenger
from .row_layout import Arrays as Arrays, RowLayout as RowLayout
from .slots import Slots as Slots
from .window import Window as Window
