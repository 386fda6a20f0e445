"""Runs that go on when ranks die: those that are left host the agents of the dead, too, and take
the steps since the last checkpoint again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from numpy.typing import ArrayLike

from .._words import warn
from ..comm.mixing import Network
from ..comm.mixing.internals import lost_networks
from ..comm.runtime import (
    Communicator,
    Survivors,
    on_all_ranks,
    over_mpi,
    surviving as retried,
    world,
)
from ..record import Record
from ..record.internals import stamp
from ..topology.internals import TopologyLike
from .arguments import infer_agents
from .result import Result

if TYPE_CHECKING:
    from ..problems import OracleLike, Problem

T = TypeVar("T")
Loader = Callable[[range], "Problem | OracleLike"]
# Attempts begin with the ranks that are left, whether the file has been begun, and who has died.
Attempt = Callable[[Communicator, bool, Callable[[], str]], T]


def surviving(
    attempt: Attempt[T],
    comm: Communicator,
    path: str | os.PathLike[str] | None,
    say: Callable[[str], None],
) -> T:
    """Return what `attempt` returns, which is made again by the ranks that are left when some have
    died; collective.

    Parameters
    ----------
    attempt : callable (comm, resume, lost)
        Makes its networks on `comm`, closes them, and continues the run in the file if `resume`;
        `lost()` is the attribute `lost` of the file.
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
    A run in a file goes on from its last checkpoint; without one it begins again.  Its bits do not
    depend on the number of ranks.
    """
    if comm.size == 1:
        return attempt(comm, False, str)
    ranks = Survivors(over_mpi(comm, 'on_failure="continue"'))
    file, told = path or "", list[str]()
    first: list[tuple[int, int] | None] = []  # the stamp of the file before the run

    def again(ranks: Survivors) -> T:
        first[:] = ranks.comm.bcast(first or [stamp(file)])
        begun = ranks.comm.bcast(stamp(file)) not in (None, *first)
        if ranks.lost != told:
            told[:] = ranks.lost
            if ranks.comm.rank == 0:
                origin = "the last checkpoint" if begun else "the beginning"
                say(f"{ranks.lost[-1]}: {ranks.comm.size} go on from {origin}")
        return attempt(ranks.comm, begun, ranks.going_on)

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

    def attempt(ranks: Communicator, begun: bool, lost: Callable[[], str]) -> Result:
        with Network(n, ranks) as own:
            with on_all_ranks(own):
                problem = load(own.agents)
            saved = record
            if saved is not None:
                resume = saved.resume or begun
                saved = replace(
                    saved, resume=resume, replace=not resume and saved.replace, lost=lost
                )
            return run(problem, net=own, record=saved)

    return surviving(attempt, comm, None if record is None else record.path, warn)
