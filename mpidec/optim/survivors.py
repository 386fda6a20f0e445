"""Trainings that go on when ranks die: those that are left train on without the workers there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from .._words import warn
from ..comm.mixing import Network
from ..comm.mixing.internals import lost_networks
from ..comm.runtime import (
    MPI,
    GroupComm,
    Survivors,
    cannot_survive,
    over_mpi,
    reduced,
    registered,
    surviving,
)
from ..nn.internals import epochs_of

T = TypeVar("T")


class Renewed(Protocol):
    """What works on a network that loses ranks."""

    def interrupt(self) -> None:
        """End the update that has begun, and begin nothing more on the network as it was."""

    def renew(self, workers: Sequence[int]) -> str:
        """Go on with these of the first workers; return what begins anew.  Collective."""


class _Members:
    """A network that loses ranks, and is made anew in place, so that whoever holds it sees the
    workers that are left.
    """

    def __init__(self, net: Network):
        self.net, self._own = net, net.agents
        self._renew, self._epochs = net.renewal(), epochs_of(net)
        self.workers: Sequence[int] = range(net.n)

    def renew(self, comm: MPI.Intracomm) -> None:
        """Go on with the workers of these ranks; collective."""
        self.workers = workers = [i for own in comm.allgather(self._own) for i in own]
        self._epochs.divided_before = int(reduced(comm, self._epochs.begun, MPI.MAX))
        self._renew(len(workers), comm)


class _User(NamedTuple):
    works: weakref.ref[Renewed]
    members: _Members
    first: Sequence[int]  # the workers that there were when it began


class TrainingSurvivors:
    """Ranks of which some may die, their networks, and what works on these.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm

    Attributes
    ----------
    lost : list of str
        Who has died, when, and how long the others have needed to go on.

    Raises
    ------
    ValueError
        The job ends when a rank dies.
    """

    def __init__(self, comm: MPI.Intracomm):
        if why := cannot_survive():
            raise ValueError(f'on_failure="drop": {why}')
        self._ranks = Survivors(comm)
        self.lost = self._ranks.lost
        self._ranks.watch()
        self._users: list[_User] = []

    def are(self, comm: MPI.Intracomm) -> bool:
        """Return whether these are the ranks of a communicator."""
        mine = self._ranks.comm
        return mine != MPI.COMM_NULL and MPI.Group.Compare(mine.group, comm.group) == MPI.IDENT

    def add(self, user: Renewed, net: Network) -> None:
        """Let `user` be renewed with its network."""
        registered(over_mpi(net.comm, 'on_failure="drop"'))
        self._users = [each for each in self._users if each.works() is not None]
        known = [each.members for each in self._users if each.members.net is net]
        members = known[0] if known else _Members(net)
        self._users.append(_User(weakref.ref(user), members, members.workers))

    def remove(self, user: Renewed) -> None:
        """Let `user` be, which is closed."""
        self._users = [each for each in self._users if each.works() is not user]

    def look(self, error: Exception | None = None) -> None:
        """Raise an error that was found before, or what MPI knows of deaths."""
        if error is not None:
            raise error
        self._ranks.comm.Iprobe()

    def together(self, act: Callable[[], T]) -> T:
        """Return what `act()` does, a call of all ranks that may be repeated, once no rank has
        died in it.
        """
        while True:
            error: Exception | None = None
            try:
                result = act()
                if self._agreed(True):
                    return result
            except Exception as caught:
                error = caught
            self.leave_out(error)

    def _agreed(self, done: bool) -> bool:
        """Return whether all ranks have done what they were doing; also over a revoked
        communicator.
        """
        try:
            return bool(self._ranks.comm.Agree(int(done)))
        except MPI.Exception:
            return False

    def leave_out(self, error: Exception | None) -> None:
        """Go on without the dead if they are the reason of `error`, or all ranks know of them
        (None), else raise it.
        """
        if error is not None and not self._ranks.found(error):
            raise error
        users = [(user, each) for each in self._users if (user := each.works()) is not None]
        for user, _ in users:
            user.interrupt()
        with lost_networks():
            self._ranks.revoke()
            if error is not None:
                self._agreed(False)
            self._ranks.shrink()
        surviving(lambda ranks: self._go_on(users, ranks.comm), self._ranks, lost_networks)

    def _go_on(self, users: Sequence[tuple[Renewed, _User]], comm: MPI.Intracomm) -> None:
        for members in dict.fromkeys(each.members for _, each in users):
            members.renew(comm)
        anew = [
            user.renew([each.first.index(i) for i in each.members.workers]) for user, each in users
        ]
        self._ranks.going_on()
        if (new := self._ranks.news()) and comm.rank == 0:
            warn(". ".join(["; ".join(new), *filter(None, dict.fromkeys(anew))]))


# Of which trainings have been made: all that train on the same ranks lose them together.
_KNOWN: list[TrainingSurvivors] = []


def survivors_of(net: Network) -> TrainingSurvivors | None:
    """Return the ranks of a network, which all trainings on them share; None with one rank.
    Collective.
    """
    if net.size == 1:
        return None
    if isinstance(net.comm, GroupComm):
        raise ValueError(
            'on_failure="drop": a process group ends with any of its processes: start the '
            "program with mpirun --with-ft ulfm of Open MPI, without process_group"
        )
    for known in _KNOWN:
        if known.are(net.comm):
            return known
    _KNOWN.append(TrainingSurvivors(net.comm))
    return _KNOWN[-1]
