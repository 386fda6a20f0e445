"""The mixers of a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ....topology import Striped
from ....topology.internals import as_graph
from ...runtime import start_minimum
from ..base.agreement import Agreement
from ..base.lifecycle import Closing
from .mixer import Mixer
from .striped import StripedMixer

if TYPE_CHECKING:
    from ....topology import Schedule, Topology
    from ....topology.internals import TopologyLike


class Mixers:
    """Makes mixers of topologies that are the same on all ranks.

    Parameters
    ----------
    agreement : Agreement
        Of the ranks.
    open_ : list of Mixer
        The mixers that are not closed, to which new ones are added.
    """

    def __init__(self, agreement: Agreement, open_: list[Closing]):
        self._agreement, self._open = agreement, open_

    def make(self, topology: Topology | Schedule, mixing: str = "W(X)") -> Mixer:
        """Return the mixer of a topology; `mixing` names it in messages and timelines."""
        context = replace(self._agreement.context, mixing=mixing)
        self._open[:] = [mixer for mixer in self._open if not mixer.closed]
        with context.engine:
            made = (
                StripedMixer(context, topology)
                if isinstance(topology, Striped)
                else Mixer(context, topology)
            )
        self._open.append(made)
        return made

    def agreed(self, op: str, given: TopologyLike, n: int, what: str = "") -> Topology | Schedule:
        """Return the topology that is given; one that is not for `n` agents, or differs between
        ranks, is refused; collective.
        """
        with self._agreement.agreeing(op):
            topology = as_graph(given, n)
            if topology.n != n:
                raise ValueError(
                    f"{topology.name} topology has {topology.n} agents, the network has {n}{what}"
                )
        if self._agreement.context.size > 1:
            self.same_everywhere(topology, op)
        return topology

    def same_everywhere(self, topology: Topology | Schedule, op: str) -> None:
        """Refuse a topology that differs between ranks; collective."""
        context, together = self._agreement.context, self._agreement.collectives
        fingerprint = topology.fingerprint() & 0x7FFFFFFFFFFFFFFF
        low, high = np.array([fingerprint, -fingerprint], np.int64), np.empty(2, np.int64)
        with together:
            self._agreement.operation(op)(partial(start_minimum, context.comm, low, high))
        if high[0] != -high[1]:
            raise ValueError(
                f"{op}: the ranks hand in different topologies ({topology.name} here, on rank "
                f"{context.rank}); every rank "
                "must build the same one: give random topologies the same seed everywhere"
            )
