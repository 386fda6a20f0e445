"""Run-time services of one process: launch checks, waiting, memory of the node, agents on ranks."""

from .agreement import (
    REFUSALS as REFUSALS,
    agreed as agreed,
    meet as meet,
    message as message,
    on_all_ranks as on_all_ranks,
    on_root as on_root,
)
from .arena import GRAIN as GRAIN, empty as empty, memory as memory, shared as shared
from .clocks import offset as offset
from .collectives import (
    Collectives as Collectives,
    checksum as checksum,
    portable as portable,
)
from .communicator import (
    CommRequest as CommRequest,
    Communicator as Communicator,
    Together as Together,
    byte as byte,
    communicator as communicator,
    duplicated as duplicated,
    lost as lost,
    next_message as next_message,
    over_mpi as over_mpi,
    start_minimum as start_minimum,
    testall as testall,
    total as total,
    world as world,
)
from .context import Checked as Checked, Context as Context
from .cores import cores as cores
from .cuda import DeviceRows as DeviceRows, cuda_aware as cuda_aware, detect_cuda as detect_cuda
from .device_group import DeviceGroup as DeviceGroup
from .finite import COMPILED as COMPILED, watch as watch
from .group import ALONE as ALONE, GroupComm as GroupComm
from .installed import MODULES as MODULES, compiled_copy as compiled_copy, remedy as remedy
from .interruption import interrupt as interrupt, interrupts as interrupts
from .job import LaunchedJob as LaunchedJob, job as job
from .launch import (
    abort_when_uncaught as abort_when_uncaught,
    check_launcher as check_launcher,
    end_as_interrupted as end_as_interrupted,
    end_job as end_job,
    library as library,
    one_on_each as one_on_each,
    warn_if_not_compiled as warn_if_not_compiled,
)
from .mpi import MPI as MPI, available as available, finalized as finalized
from .node import (
    Counts as Counts,
    NodeMemory as NodeMemory,
    cores_of_node as cores_of_node,
    describe_tag as describe_tag,
    ranks_of_node as ranks_of_node,
)
from .partition import Partition as Partition
from .pending import Pending as Pending, Request as Request, Several as Several
from .row_types import RowTypes as RowTypes
from .survivors import (
    Survivors as Survivors,
    cannot_survive as cannot_survive,
    died as died,
    living as living,
    losses as losses,
    made as made,
    on_those_left as on_those_left,
    reduced as reduced,
    registered as registered,
    surviving as surviving,
    without_the_dead as without_the_dead,
)
from .tree import tree as tree
from .waiting import (
    CROWDED as CROWDED,
    ProgressEngine as ProgressEngine,
    WaitMonitor as WaitMonitor,
    abandon as abandon,
    progress as progress,
    ranks as ranks,
    refuse_in_child as refuse_in_child,
    timeout as timeout,
    wait_for_other_nodes as wait_for_other_nodes,
    wait_until as wait_until,
    wake_waits as wake_waits,
)
