"""Trainings that go on when ranks die: those that are left train on without the workers there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from .._words import warn
from ..comm.mixing import Network
from ..comm.mixing.internals import lost_networks
from ..comm.runtime import MPI, GroupComm, Survivors, cannot_survive
from ..nn.internals import epochs_of

T = TypeVar("T")


class Renewed(Protocol):
    """What works on a network that loses ranks."""

    def interrupt(self) -> None:
        """End the update that has begun, and begin nothing more on the network as it was."""

    def renew(self, workers: Sequence[int]) -> str:
        """Go on with these of the first workers; return what begins anew.  Collective."""


class TrainingSurvivors:
    """The ranks of a network, of which some may die, and what works on it.

    The network is made anew in place, so that whoever holds it sees the workers that are left.

    Parameters
    ----------
    net : Network

    Attributes
    ----------
    lost : list of str
        Who has died, when, and how long the others have needed to go on.

    Raises
    ------
    ValueError
        The job ends when a rank dies.
    """

    def __init__(self, net: Network):
        if isinstance(net.comm, GroupComm):
            raise ValueError(
                'on_failure="drop": a process group ends with any of its processes: start the '
                "program with mpirun --with-ft ulfm of Open MPI, without process_group"
            )
        if why := cannot_survive():
            raise ValueError(f'on_failure="drop": {why}')
        self._own, self._ranks = net.agents, Survivors(net.comm)
        self.lost = self._ranks.lost
        self._ranks.watch()
        self._renew, self._epochs = net.renewal(), epochs_of(net)
        self._workers: Sequence[int] = range(net.n)
        # With the workers that there were when they began.
        self._users: list[tuple[weakref.ref[Renewed], Sequence[int]]] = []

    def add(self, user: Renewed) -> None:
        """Let `user` be renewed with the network."""
        self._users.append((weakref.ref(user), self._workers))

    def remove(self, user: Renewed) -> None:
        """Let `user` be, which is closed."""
        self._users = [each for each in self._users if each[0]() is not user]

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

    def leave_out(self, error: Exception | None, last: bool = False) -> None:
        """Go on without the dead if they are the reason of `error`, or all ranks know of them
        (None), else raise it; `last`: use the network no longer.
        """
        if error is not None and not self._ranks.found(error):
            raise error
        users = [(user, first) for of, first in self._users if (user := of()) is not None]
        for user, _ in users:
            user.interrupt()
        while True:
            try:
                with lost_networks():
                    self._ranks.revoke()
                    if error is not None:
                        self._agreed(False)
                    self._ranks.shrink()
                self._ranks.settle()
                if not last:
                    self._go_on(users)
                return
            except Exception as caught:
                if not self._ranks.found(caught):
                    raise
                error = caught

    def _go_on(self, users: Sequence[tuple[Renewed, Sequence[int]]]) -> None:
        comm = self._ranks.comm
        self._workers = workers = [i for own in comm.allgather(self._own) for i in own]
        self._epochs.divided_before = comm.allreduce(self._epochs.begun, MPI.MAX)
        self._renew(len(workers), comm)
        anew = [user.renew([first.index(i) for i in workers]) for user, first in users]
        self._ranks.going_on()
        if comm.rank == 0:
            warn(". ".join([self.lost[-1], *filter(None, dict.fromkeys(anew))]))


# By the `id` of their networks.
_OF: weakref.WeakValueDictionary[int, TrainingSurvivors] = weakref.WeakValueDictionary()


def survivors_of(net: Network) -> TrainingSurvivors | None:
    """Return those of a network, which all that work on it share; None with one rank.
    Collective.
    """
    known = _OF.get(id(net))
    if known is None and net.size > 1:
        _OF[id(net)] = known = TrainingSurvivors(net)
    return known
