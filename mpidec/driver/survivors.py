"""Runs that go on when ranks die: those that are left host the agents of the dead, too, and take
the steps since the last copy again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from numpy.typing import ArrayLike

from .._words import warn
from ..comm.mixing import Network
from ..comm.mixing.internals import lost_networks
from ..comm.runtime import (
    Communicator,
    Survivors,
    losses,
    on_all_ranks,
    over_mpi,
    surviving as retried,
    world,
)
from ..record import Record
from ..record.internals import stamp
from ..topology.internals import TopologyLike
from .arguments import infer_agents
from .backup import Backup
from .result import Result

if TYPE_CHECKING:
    from ..problems import OracleLike, Problem

T = TypeVar("T")
Loader = Callable[[range], "Problem | OracleLike"]


@dataclass(frozen=True)
class Beginning:
    """What an attempt begins with.

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks that are left.
    begun : bool
        Whether the run has made its file.
    lost : callable
        Returns the attribute `lost` of the file.
    backup : Backup or None
        The copies of the run in memory.
    """

    comm: Communicator
    begun: bool = False
    lost: Callable[[], str] = str
    backup: Backup | None = None

    @property
    def resume(self) -> bool:
        """Whether to continue the run in its file, as there is no copy in memory."""
        return self.begun and (self.backup is None or self.backup.key is None)

    @contextmanager
    def network(self, n: int, timeline: str | None = None) -> Iterator[Network]:
        """The network of the run, of `n` agents; collective."""
        with Network(n, self.comm, timeline=timeline) as net:
            if self.backup is not None:
                self.backup.serve(net)
            yield net


def surviving(
    attempt: Callable[[Beginning], T],
    comm: Communicator,
    path: str | os.PathLike[str] | None,
    say: Callable[[str], None],
) -> T:
    """Return what `attempt` returns, which is made again by the ranks that are left when some have
    died; collective.

    Parameters
    ----------
    attempt : callable (Beginning)
        Makes its network, and closes it.
    comm : mpi4py.MPI.Intracomm
    path : path or None
        The file of the run.
    say : callable (line)
        Called on the first rank that is left.

    Raises
    ------
    ValueError
        The job ends when a rank dies.
    RanksLost
        Too few are left.

    Notes
    -----
    A run goes on from the last copy in memory of which all parts are left, otherwise from the last
    checkpoint in its file, otherwise from the beginning.  Its bits do not depend on the number of
    ranks.
    """
    if comm.size == 1:
        return attempt(Beginning(comm, lost=losses))
    ranks, backup = Survivors(over_mpi(comm, 'on_failure="continue"')), Backup()
    file = path or ""
    first: list[tuple[int, int] | None] = []  # the stamp of the file before the run

    def again(ranks: Survivors) -> T:
        first[:] = ranks.comm.bcast(first or [stamp(file)])
        begun = ranks.comm.bcast(stamp(file)) not in (None, *first)
        backup.meet(ranks.comm)
        origin = "the last checkpoint" if begun else "the beginning"
        if backup.key is not None:
            origin = f"step {backup.key.step}"
        if (new := ranks.news()) and ranks.comm.rank == 0:
            say(f"{'; '.join(new)}: {ranks.comm.size} go on from {origin}")
        return attempt(Beginning(ranks.comm, begun, ranks.going_on, backup))

    return retried(again, ranks, lost_networks)


def continued(
    run: Callable[..., Result],
    load: object,
    net: Network | None,
    topology: TopologyLike,
    x0: ArrayLike | None,
    record: Record | None,
) -> Result:
    """Return the result of `run(problem, net=, record=)` with the problem that `load` makes of the
    agents of a rank; see `mpidec.solve`.
    """
    if not callable(load):
        raise TypeError(
            f'on_failure="continue": problem is {load!r:.60}, expected a function of the agents, a '
            "range, that returns their problem, as those that are left load the agents of the dead"
        )
    comm = world() if net is None else net.comm
    n = infer_agents(None, topology, x0) if net is None else net.n

    def attempt(now: Beginning) -> Result:
        with now.network(n) as own:
            with on_all_ranks(own):
                problem = load(own.agents)
            saved = record
            if saved is not None:
                resume = saved.resume or now.resume
                saved = replace(
                    saved,
                    resume=resume,
                    replace=not resume and (saved.replace or now.begun),
                    lost=now.lost,
                )
            return run(problem, net=own, record=saved)

    return surviving(attempt, comm, None if record is None else record.path, warn)
