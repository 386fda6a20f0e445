"""Jobs whose ranks may die (`mpirun --with-ft ulfm` of Open MPI): what MPI is asked for before it
starts.

The failure detector finds ranks on other hosts, and those that are stopped; only with a thread of
its own does it tell a rank that computes from a dead one.  With that thread MPI_Finalize of Open
MPI 5 does not return, so that it is left out: the ranks meet, and end.  A rank that enters MPI_Init
seconds after others crashes there at their first sign of life, if that comes through Open MPI's
shared memory: messages within a node go over TCP.  Collectives in the order of the nodes (han) know
nothing of deaths, and wait for ever where a node has lost some of its ranks.  Addresses are looked
up at the start: PMIx does not answer for a rank of another node that has died, and who asks then
neither returns nor gives signs of life.
"""

from __future__ import annotations

import os
import sys

_ENABLED = "OMPI_MCA_mpi_ft_enable"
_DETECTOR, _THREAD = "OMPI_MCA_mpi_ft_detector", "OMPI_MCA_mpi_ft_detector_thread"
_PERIOD, _TIMEOUT = "OMPI_MCA_mpi_ft_detector_period", "OMPI_MCA_mpi_ft_detector_timeout"
_FINALIZE = "MPI4PY_RC_FINALIZE"
_TRANSFERS, _COLLECTIVES = "OMPI_MCA_btl", "OMPI_MCA_coll"
_AT_THE_START = "OMPI_MCA_mpi_add_procs_cutoff"
_TRUE = ("1", "t", "true", "y", "yes", "enabled")
# Seconds without a sign of life after which a rank counts as dead; a machine that swaps may be
# silent for several.
_SILENT = 30.0
_PREPARED: list[bool] = []


def prepare() -> None:
    """Ask for the failure detector and its thread, where the launcher lets ranks die and MPI has
    not started.
    """
    if _true(_ENABLED) and "mpi4py.MPI" not in sys.modules:
        os.environ.update({_DETECTOR: "true", _THREAD: "true", _FINALIZE: "0"})
        os.environ.setdefault(_TRANSFERS, "^sm")
        # The first two are those that --with-ft ulfm leaves out.
        os.environ.setdefault(_COLLECTIVES, "^hcoll,portals4,han")
        os.environ.setdefault(_AT_THE_START, str(2**31 - 1))
        if _TIMEOUT not in os.environ:
            evict_after(_SILENT)
        _PREPARED.append(True)


def evict_after(seconds: float) -> None:
    """Let a rank without a sign of life for so many seconds count as dead; before MPI starts."""
    os.environ[_TIMEOUT] = f"{seconds:g}"
    os.environ[_PERIOD] = f"{min(seconds / 4, 1.0):g}"  # MPI demands more than three periods


def tolerant() -> bool:
    """Return whether MPI has been asked for what a job needs to go on without a rank."""
    return bool(_PREPARED)


def obstacle(library: str) -> str:
    """Return why the other ranks of this job cannot go on when one dies; "" if they can."""
    if tolerant():
        return ""
    if _true(_ENABLED):
        return "MPI had started before mpidec was imported: import mpidec before mpi4py.MPI"
    if "Open MPI" in library:
        return "the launcher ends the job when a rank dies: start it with mpirun --with-ft ulfm"
    return (
        f"{library} ends the job when a rank dies: mpidec restart -- mpirun ... continues the run, "
        "or use Open MPI with mpirun --with-ft ulfm"
    )


def _true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in _TRUE


prepare()
