"""What BlueFog calls its basics."""

from __future__ import annotations

from ..session import logger
from ..torch import mpi_ops

__all__ = ["BlueFogBasics", "logger"]


class BlueFogBasics:
    """The calls that need no tensors, as methods.

    Parameters
    ----------
    pkg_path, *args : str
        Of no effect: where BlueFog's library lies.
    """

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        pass


for name in """
    in_neighbor_machine_ranks in_neighbor_ranks init is_homogeneous is_machine_topo_weighted
    is_topo_weighted load_machine_topology load_topology local_rank local_size machine_rank
    machine_size out_neighbor_machine_ranks out_neighbor_ranks rank set_machine_topology
    set_topology shutdown size mpi_threads_supported unified_mpi_window_model_supported
    nccl_built set_skip_negotiate_stage get_skip_negotiate_stage suspend resume timeline_context
    timeline_end_activity timeline_start_activity
""".split():
    setattr(BlueFogBasics, name, staticmethod(vars(mpi_ops)[name]))
