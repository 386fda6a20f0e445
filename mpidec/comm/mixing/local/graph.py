"""Graph of the local-view calls: the topology that was set, seen from one node."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ...runtime.partition import Partition
from ...transport.plan import Plan

if TYPE_CHECKING:
    from ....topology import Schedule, Topology
    from ..mixer import Mixer

_PLANS = 64  # that are kept of a schedule without a period


class Graph:
    """A topology or schedule of ranks or machines, seen from one of them; each call takes one step.

    Parameters
    ----------
    topology : Topology or Schedule
    node : int
        This rank, or its machine.
    mixer : Mixer, optional
        The operator of the topology.
    """

    def __init__(self, topology: Topology | Schedule, node: int, mixer: Mixer | None = None):
        self.topology, self.node, self.mixer, self.step = topology, node, mixer, 0
        self._plans: OrderedDict[int, Plan] = OrderedDict()

    def take(self) -> Plan:
        """The plan of the current step; the next call gets the next one."""
        self.step += 1
        return self.at(self.step - 1)

    @property
    def key(self) -> int:
        """The current step, within the period of the schedule."""
        return self._key(self.step)

    @property
    def signature(self) -> str:
        """The step that was taken last, in words."""
        return f"step {self._key(self.step - 1)}"

    def at(self, step: int) -> Plan:
        """The plan of a step."""
        key = self._key(step)
        if key not in self._plans:
            if len(self._plans) >= _PLANS and self.topology.period is None:
                self._plans.popitem(last=False)
            n = self.topology.n
            self._plans[key] = Plan(self.topology.at(key), Partition(n, n), self.node)
        return self._plans[key]

    def _key(self, step: int) -> int:
        return step if self.topology.period is None else step % self.topology.period
