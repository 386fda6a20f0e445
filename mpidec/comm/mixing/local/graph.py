"""Graph of the local-view calls: the current topology, seen from one node."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ...runtime import Partition
from ...transport import Routes

if TYPE_CHECKING:
    from ....topology import Schedule, Topology
    from ..mixers.mixer import Mixer

_PLANS = 64  # that are kept of a schedule without a period


class LocalGraph:
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
        self._name = f"{topology.name} {topology.fingerprint() & 0xFFFFFFFF:08x}"
        self._plan = lru_cache(_PLANS if topology.period is None else None)(self._make_plan)

    def take(self) -> Routes:
        """Return the plan of the current step; the next call gets the next one."""
        self.step += 1
        return self.at(self.step - 1)

    @property
    def key(self) -> int:
        """The current step, within the period of the schedule."""
        return self._key(self.step)

    @property
    def signature(self) -> str:
        """Describe the step that was taken last, for messages."""
        return f"step {self._key(self.step - 1)} of {self._name}"

    def close(self) -> None:
        """Free what the operator holds; collective."""
        if self.mixer is not None:
            self.mixer.close()

    def at(self, step: int) -> Routes:
        """Return the plan of a step."""
        return self._plan(self._key(step))

    def _make_plan(self, key: int) -> Routes:
        n = self.topology.n
        return Routes(self.topology.at(key), Partition(n, n), self.node)

    def _key(self, step: int) -> int:
        return step if self.topology.period is None else step % self.topology.period
