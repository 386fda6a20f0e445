"""Transposed topologies: every edge is reversed and keeps its weight, so that W becomes its
transpose.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base.schedule import Schedule
from ..base.source import EdgeBlock, Source
from ..base.topology import Topology, fingerprint

KINDS = {"doubly": "doubly", "row": "column", "column": "row", "any": "any"}


class Transposed(Source):
    """Transpose of a mixing matrix; blocks are read from that matrix."""

    def __init__(self, source: Source) -> None:
        self.source, self.n, self.kind = source, source.n, KINDS[source.kind]
        self.directed, self.symmetric, self.group = source.directed, source.symmetric, source.group

    @property
    def connected(self) -> bool:  # type: ignore[override]
        return self.source.connected

    @property
    def arcs(self) -> int:
        return self.source.arcs

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return self.source.columns(lo, hi)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return self.source.rows(lo, hi)

    def token(self) -> bytes:
        return b"transposed " + self.source.token()


class TransposedSchedule(Schedule):
    """Schedule of the transposes of another schedule's topologies."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.name, self.n, self.kind = (
            schedule,
            f"{schedule.name}.T",
            schedule.n,
            KINDS[schedule.kind],
        )
        self.directed, self.period = schedule.directed, schedule.period

    def at(self, k: int) -> Topology:
        """Return the transpose of the topology of step k."""
        return _transpose(self.schedule.at(k))

    def spectral_gap(self) -> float:
        """Return the spectral gap, which is that of the original schedule."""
        return self.schedule.spectral_gap()

    @property
    def parameters(self) -> Mapping[str, object]:
        """Parameters of the original schedule."""
        return self.schedule.parameters

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """
        return fingerprint(self.name, self.schedule.fingerprint())


def transpose(topology: Topology | Schedule) -> Topology | Schedule:
    """Topology, or schedule, of the transposed mixing matrices: the columns of W become rows.

    Parameters
    ----------
    topology : Topology or Schedule

    Returns
    -------
    Topology or Schedule
        Column stochastic if the given one is row stochastic, and the reverse.

    Examples
    --------
    >>> from mpidec.topology import star
    >>> W = star(4, weights="uniform")
    >>> W.kind, transpose(W).kind, bool((transpose(W).W.toarray() == W.W.toarray().T).all())
    ('row', 'column', True)
    """
    return _transpose(topology) if isinstance(topology, Topology) else TransposedSchedule(topology)


def _transpose(topology: Topology) -> Topology:
    return Topology(f"{topology.name}.T", Transposed(topology.source))
