"""Ranks that die, and those that are left: what MPI's fault tolerance (ULFM) says of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar, cast

import numpy as np

from ..._process import obstacle, tolerant
from ...exceptions import RanksLost
from .launch import library
from .mpi import MPI, finalized
from .waiting import abandon

# Seconds in which a death that others have found first is known here, too.
_SPREADS = 1.0
# Seconds without news of further deaths after which those that are left make a communicator: Open
# MPI 5.0.10 and 5.0.11 crash where they learn of one while they make it, and a host's ranks do not
# die at once.
_QUIET = 0.2
# Seconds for which the ranks wait for one another at the end.
_PATIENCE = 5.0
# The flag of a process that is ending (Linux, PF_EXITING): its connections may be closed already.
_EXITING = 0x4
_COLORS = 2**31 - 1  # the largest one that Split takes
_MADE: list[weakref.ref[MPI.Comm]] = []
_LEFT: list[MPI.Intracomm] = []
_LOST: list[str] = []  # of the whole job
_TOLD: list[str] = []  # of these, what has been told
T = TypeVar("T")
CommT = TypeVar("CommT", bound="MPI.Comm")


def registered(comm: CommT) -> CommT:
    """Let `comm`, in whose calls ranks may wait for one another, be revoked when a rank dies."""
    if tolerant():
        _MADE[:] = [made for made in _MADE if made() is not None]
        _MADE.append(weakref.ref(comm))
    return comm


def made(comm: MPI.Comm, make: Callable[[], CommT]) -> CommT:
    """Return the communicator that `make()` returns, of ranks of `comm`, to be revoked when a rank
    dies; collective.

    Notes
    -----
    Where ranks may die, they wait for one another before it and after it: Open MPI 5.0.10 and
    5.0.11 crash where a rank learns of a death while it is in such a call.
    """
    if not tolerant():
        return make()
    comm.Barrier()
    found = registered(make())
    comm.Barrier()
    return found


def node_of(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return the ranks of `comm` on the node of this one; collective.

    Notes
    -----
    Where ranks may die, nodes are told by their names.  Split_type of Open MPI 5 makes a
    communicator of the node within the call, which cannot be revoked: when a rank of another node
    dies, some leave the call with an error, and others wait in it for them, for ever.
    """
    if not tolerant():
        return cast("MPI.Intracomm", comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank))
    name = MPI.Get_processor_name().encode()
    node = made(comm, lambda: comm.Split(zlib.crc32(name) & _COLORS, comm.rank))
    padded = name.ljust(MPI.MAX_PROCESSOR_NAME)
    names = [row.tobytes() for row in _of_all(node, np.frombuffer(padded, np.uint8), comm)]
    if names.count(padded) < node.size:  # names with the same checksum
        alike = node
        node = made(alike, lambda: alike.Split(names.index(padded), alike.rank))
        alike.Free()
    return cast("MPI.Intracomm", node)


def _of_all(node: MPI.Comm, mine: np.ndarray, comm: MPI.Comm) -> np.ndarray:
    """Return the arrays of all ranks of a part of `comm` that has just been made; collective.

    Raises
    ------
    RanksLost
        A rank has died, so that some of them may not have made the part, and never come.
    """
    found = np.empty((node.size, *mine.shape), mine.dtype)
    request = node.Iallgather(mine, found)
    while not request.Test():
        if comm.Is_revoked() or comm.Get_failed().size:
            abandon((request, mine, found))
            raise RanksLost("a rank has died while the ranks of a node were told")
        time.sleep(1e-4)
    return found


def reduced(comm: MPI.Intracomm, number: float, op: MPI.Op) -> float:
    """Return what `op` makes of a number of each rank; collective.

    Notes
    -----
    Unlike ``comm.allreduce`` of mpi4py, whose messages are in a duplicate of its own, which nobody
    can revoke when a rank dies.
    """
    found = np.array(number)
    comm.Allreduce(MPI.IN_PLACE, found, op)
    return cast(float, found.item())


def living() -> MPI.Intracomm:
    """Return all ranks of the job that are left."""
    return _LEFT[-1] if _LEFT else MPI.COMM_WORLD


def losses() -> str:
    """Return who of the whole job has died, a line for each time."""
    return "\n".join(_LOST)


def died(error: BaseException) -> bool:
    """Return whether MPI has raised `error` because a rank has died, or another rank has found
    that out.
    """
    if not tolerant() or not isinstance(error, MPI.Exception):
        return False
    known = MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED
    # Nonblocking collectives of Open MPI may end with MPI_ERR_OTHER.
    return error.Get_error_class() in known or MPI.COMM_WORLD.Get_failed().size > 0


def without_the_dead(what: str) -> RanksLost:
    """Return the error of a call that cannot be completed since ranks have died."""
    dead = MPI.COMM_WORLD.Get_failed()
    theirs = dead.Translate_ranks(group=MPI.COMM_WORLD.group)
    named = f"rank{'s' * (len(theirs) != 1)} {', '.join(map(str, theirs))}" if theirs else "a rank"
    return RanksLost(f"{what}: {named} died, make a new network and its windows", theirs)


def cannot_survive() -> str:
    """Return why the other ranks of this job cannot go on when one dies; "" if they can."""
    return obstacle(" ".join(library().replace("Version:", "").split()))


class Survivors:
    """The ranks of a communicator, also after some of them have died.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
        Those that are left, in their order.
    lost : list of str
        Who has died, when, and how long it took to go on; of all ranks of the job also what
        former calls have found.

    Raises
    ------
    ValueError
        The MPI library, or the way in which the job was started, ends the job when a rank dies.

    Notes
    -----
    Only one side of a network that has come apart goes on: that with more than half of the ranks
    that are not known to have ended, or half of them with rank 0.  Each rank knows this of those on
    its own host, and ends there those that MPI counts as dead although they only do not respond.
    """

    def __init__(self, comm: MPI.Intracomm):
        if why := cannot_survive():
            raise ValueError(why)
        self.comm = comm
        whole = comm is living()
        self.lost, self._told = (_LOST, _TOLD) if whole else (list[str](), list[str]())
        self._before = comm.group
        self._pids = dict[int, int]()
        self._noticed, self._behind, self._waiting = 0.0, False, False

    @property
    def behind(self) -> bool:
        """Whether there was a death after which the ranks have not settled."""
        return self._behind

    def watch(self) -> None:
        """Learn which ranks are on this host; collective, once, and again if a death has kept some
        from it.
        """
        if not self._pids:
            node = node_of(self.comm)
            mine = np.array([MPI.COMM_WORLD.rank, os.getpid()])
            self._pids = dict(_of_all(node, mine, self.comm).tolist())
            node.Free()

    def found(self, error: Exception) -> bool:
        """Return whether a death is the reason of `error`: others may have found it first, and
        have left the calls for which this rank was waiting.
        """
        until = time.monotonic() + _SPREADS
        while not died(error):
            try:
                self.comm.Iprobe(MPI.ANY_SOURCE, 0)  # makes progress
            except MPI.Exception as caught:
                return died(caught)
            if self.comm.Is_revoked() or self.comm.Get_failed().size:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def revoke(self) -> None:
        """End the waits of all ranks, which come to `shrink`."""
        if not self._behind:
            self._noticed, self._behind = time.monotonic(), True
        for comm in [*(made() for made in _MADE), self.comm]:
            if comm is not None and comm != MPI.COMM_NULL:
                comm.Revoke()

    def shrink(self) -> None:
        """Leave out the dead, when no more are found; collective over the living."""
        _quiet()
        whole = MPI.Group.Compare(self.comm.group, living().group) == MPI.IDENT
        self.comm = cast("MPI.Intracomm", registered(self.comm.Shrink()))
        if whole:
            _LEFT.append(self.comm)

    def settle(self) -> None:
        """Go on if this side may; collective.

        Raises
        ------
        RanksLost
            This side has too few ranks.
        """
        before, left = self._before, self.comm.group
        dead = MPI.Group.Difference(before, left)
        theirs = dead.Translate_ranks(group=MPI.COMM_WORLD.group)
        here = [rank for rank in theirs if rank in self._pids]
        ended = [rank for rank in here if _ended(self._pids[rank], ending=True)]
        mine = ended, time.strftime("%Y-%m-%dT%H:%M:%S"), bool(self._pids)
        told = self.comm.allgather(mine)
        self.agree()  # else some would count those who die meanwhile as of this death
        known = {rank for some, *_ in told for rank in some}
        half = 2 * left.size - (before.size - len(known))
        first = before.Translate_ranks([0], left)[0] != MPI.UNDEFINED
        if half < 0 or (half == 0 and not first):
            raise RanksLost(
                f"{before.size - left.size} of {before.size} ranks do not respond any more: those "
                f"on this side, {left.size}, end, as the others may go on without them",
                theirs,
            )
        _end([self._pids[rank] for rank in here])
        if not all(watching for *_, watching in told):
            self._pids = {}
        if theirs:
            some = ", ".join(map(str, sorted(theirs)))
            who = f"rank{'s' * (len(theirs) > 1)} {some} of {MPI.COMM_WORLD.size}"
            self.lost.append(f"{who}, found at {told[0][1]}")
        self._before, self._behind, self._waiting = left, False, bool(theirs)

    def going_on(self) -> str:
        """Return who has died, a line for each time; the first call after a death enters the
        seconds for which the run has stood still.
        """
        if self._waiting:
            self._waiting = False
            seconds = time.monotonic() - self._noticed
            self.lost[-1] += f", {self.comm.size} went on after {seconds:.1f} s"
        return "\n".join(self.lost)

    def news(self) -> list[str]:
        """Return who has died since the last call, also that of other survivors of the job."""
        new = self.lost[len(self._told) :]
        self._told[:] = self.lost
        return new

    def agree(self) -> None:
        """Return when all ranks have come here; raise on all of them if one has died."""
        self.comm.Agree(1)


def surviving(
    attempt: Callable[[Survivors], T],
    ranks: Survivors,
    leaving: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> T:
    """Return what `attempt(ranks)` returns, which is made again by the ranks that are left when
    some have died, until all that are left have come to its end; collective.

    Parameters
    ----------
    attempt : callable (ranks)
        Uses `ranks.comm`.
    ranks : Survivors
    leaving : callable
        Returns the context in which the living leave out the dead.

    Raises
    ------
    RanksLost
        Too few are left.
    Exception
        That of an attempt; also one of MPI if nobody has died twice in a row: the attempt calls a
        communicator with those who died before.
    """
    vain = 0
    while True:
        try:
            if ranks.behind:
                ranks.settle()
            ranks.watch()
            result = attempt(ranks)
            ranks.agree()
            return result
        except Exception as error:
            if not ranks.found(error):
                raise
            size = ranks.comm.size
            with leaving():
                ranks.revoke()
                ranks.shrink()
            vain = vain + 1 if ranks.comm.size == size else 0
            if vain == 2:
                raise


def on_those_left(
    act: Callable[[MPI.Intracomm, Callable[[], str]], T],
    comm: MPI.Intracomm,
    survive: bool,
    leaving: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> tuple[T, MPI.Intracomm]:
    """Return what `act(comm, lost)` returns, and its ranks: with `survive` those that are left if
    some die; collective.  `lost()` is who has died; the other parameters are those of `surviving`.
    """
    if not survive or comm.size == 1:
        return act(comm, losses), comm
    ranks = Survivors(comm)
    result = surviving(lambda left: act(left.comm, left.going_on), ranks, leaving)
    ranks.going_on()
    return result, ranks.comm


def _quiet() -> None:
    """Wait until no further death has been found for a while."""
    known, until = 0, time.monotonic() + _QUIET
    while time.monotonic() < until:
        MPI.COMM_SELF.Iprobe()  # makes progress
        if (dead := MPI.COMM_WORLD.Get_failed().size) > known:
            known, until = dead, time.monotonic() + _QUIET
        time.sleep(0.005)


def _end(pids: Sequence[int]) -> None:
    """End processes of this host that do not end already; locks of files are free then."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if not _ended(pid, ending=True):
                os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + _PATIENCE
    while not all(map(_ended, pids)) and time.monotonic() < until:
        time.sleep(1e-3)


def _ended(pid: int, ending: bool = False) -> bool:
    """Return whether a process of this host has ended, or is `ending`."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, *_, flags = file.read().rpartition(")")[2].split()[:7]
    except OSError:
        return True
    return state in "ZX" or (ending and bool(int(flags) & _EXITING))


def _meet_at_the_end() -> None:
    """Wait for the other ranks, which would take a rank that ends before them for a dead one."""
    if finalized() or not MPI.Is_initialized():
        return
    with contextlib.suppress(MPI.Exception):
        done, until = living().Ibarrier(), time.monotonic() + _PATIENCE
        while not done.Test() and time.monotonic() < until:
            time.sleep(1e-3)


if tolerant():
    atexit.register(_meet_at_the_end)
