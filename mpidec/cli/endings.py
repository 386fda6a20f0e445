"""Texts of a command that are printed once in a job, and how its ranks end."""

from __future__ import annotations

import os
import sys
import time

from .._process import launched, outside, rank
from ..comm.runtime import MPI, died, living
from ..exceptions import InputError

_TASK = "SLURM_PROCID"
# Seconds that rank 0 has for the one line of an error, where MPI does not run.
_FIRST = 2.0


class CommandRanks:
    """The ranks that run a command; MPI is used where it runs already, or once `start` is called.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        The ranks; by default those of the job that this process belongs to.
    """

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self._given, self._alone = comm, 0

    @property
    def comm(self) -> MPI.Intracomm | None:
        """The ranks that are left; None before MPI is used."""
        if self._given is not None or "mpi4py.MPI" not in sys.modules:
            return self._given
        return living()

    @property
    def rank(self) -> int:
        """This rank; of several processes that are each alone another number than 0 in all but
        one.
        """
        comm = self.comm
        return rank() if comm is None else comm.rank or self._alone

    def start(self) -> MPI.Intracomm:
        """Return the communicator of the ranks.

        Raises
        ------
        InputError
            If this process has variables of a launcher, but is no rank of its job.
        """
        if self.comm is None:
            if (why := outside()) is not None:
                raise InputError(why)
            # Of several processes that srun started, and of which each believes it is alone, one
            # prints why.
            task = "0" if os.environ.get("MPIDEC_ALONE") == "1" else os.environ.get(_TASK, "0")
            self._alone = 0 if living().size > 1 else int(task)
        return self._given or living()

    def end(self) -> None:
        """Return when rank 0 has printed what all ranks end with: a launcher may kill it when
        another rank has ended.
        """
        if self.comm is not None:
            try:
                self.comm.Barrier()
            except Exception as error:
                if not died(error):
                    raise
        elif self.rank and launched() and "PMI_FD" not in os.environ:  # Hydra waits for all
            time.sleep(_FIRST)


def printed(text: str, status: int = 0, job: CommandRanks | None = None) -> int:
    """Print a text once in a job of several ranks, before any rank exits with an error; return the
    exit status.
    """
    job = job or CommandRanks()
    if job.rank == 0:
        if status:
            print(text, file=sys.stderr, flush=True)
        else:
            show(text)
    if status:
        job.end()
    return status


def show(text: str) -> None:
    """Print a text to stdout, or what of it is read (``--help | head``)."""
    try:
        print(f"{text}\n", end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
