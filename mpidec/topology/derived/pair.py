"""Pairs of weightings of a graph: a row-stochastic R, by which rows are pulled, and a
column-stochastic C, which pushes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..._words import with_known_options
from ..base.schedule import Schedule
from ..base.source import Pair
from ..base.topology import Topology, fingerprint


class ColumnSchedule(Schedule):
    """Schedule of the column-stochastic matrices of another schedule's topologies."""

    kind = "column"

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.name, self.n = schedule, schedule.name, schedule.n
        self.directed, self.period = schedule.directed, schedule.period

    def at(self, k: int) -> Topology:
        """Return the topology of C at step k."""
        return self.schedule.at(k).C

    def spectral_gap(self) -> float:
        """Return the spectral gap of the schedule of pairs."""
        return self.schedule.spectral_gap()

    @property
    def parameters(self) -> Mapping[str, object]:
        """Parameters of the schedule of pairs."""
        return self.schedule.parameters

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """
        return fingerprint("C", self.schedule.fingerprint())


@with_known_options
def push_pull(R: Topology, C: Topology) -> Topology:
    r"""Pair of a row-stochastic and a column-stochastic matrix, for solvers that pull iterates and
    push gradients.

    A solver has both in one step, :math:`W.R(X)` and :math:`W.C(Y)`.  `weights="push-pull"` gives a
    graph both of its own: every agent computes its row of R from its in-degree, and its column of C
    from its out-degree.

    Parameters
    ----------
    R : Topology
        Row or doubly stochastic.
    C : Topology
        Column or doubly stochastic, of as many agents.

    Returns
    -------
    Topology
        Of kind "pair"; `W` is R.

    Raises
    ------
    TypeError, ValueError
        The arguments are no topologies of the same number of agents, or of other kinds.

    Examples
    --------
    >>> from mpidec.topology import star
    >>> push_pull(star(4, weights="uniform"), star(4, weights="push"))
    Topology('star', n=4, kind='pair', directed=False)
    >>> star(4, weights="push-pull") == _
    True

    References
    ----------
    S. Pu, W. Shi, J. Xu, A. Nedic, "Push-pull gradient methods for distributed optimization in
    networks", IEEE TAC 66 (2021).
    """
    for name, given, kind in (("R", R, "row"), ("C", C, "column")):
        if not isinstance(given, Topology):
            raise TypeError(
                f"push_pull: {name} is a {type(given).__name__}, expected a topology: from_weights "
                "takes a matrix, and "
                "cycle a list of pairs"
            )
        if given.kind not in ("doubly", kind):
            raise ValueError(
                f"push_pull: {name}, the {given.name} topology, is {given.kind} stochastic, "
                f"expected {kind} stochastic: "
                f'use weights="{"uniform" if kind == "row" else "push"}" on the same graph'
            )
    if R.n != C.n:
        raise ValueError(
            f"push_pull: R has {R.n} agents and C {C.n}, expected the same number in both"
        )
    return Topology(R.name, Pair(R.source, C.source))


def column_part(topology: Topology | Schedule) -> Topology | Schedule:
    """Topology, or schedule, of the column-stochastic matrices of pairs; see `Topology.C`."""
    return topology.C if isinstance(topology, Topology) else ColumnSchedule(topology)
