"""One-peer schedules over machines: one agent of each machine exchanges with another machine,
the others within.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.schedule import Periodic, Schedule
from ..base.source import Computed
from ..base.topology import Topology

KINDS = ("exponential", "ring")


@with_known_options
def inner_outer(n: int, machine_size: int | None = None, kind: str = "exponential") -> Schedule:
    r"""Inner-outer graph: in each step one agent of each machine sends to another machine, the
    others send within.

    With M machines of L consecutive agents each, in step k the agent of place :math:`o = k \bmod L`
    on a machine sends to the agent of the same place h machines further on, and the other L - 1
    agents form a ring, in which each sends to the agent g places further on:

    .. math:: W^{(k)} &= \tfrac12 (I + P), \\
              h &= 2^{\lfloor k / L \rfloor \bmod E(M)}, \quad g = 2^{k \bmod E(L - 1)}, \quad
              E(x) = \max(1, \lceil \log_2 x \rceil)

    for "exponential", and h = g = 1 for "ring".  P is a permutation; an agent without a partner
    keeps its row.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    machine_size : int, optional
        Number L of agents per machine, a divisor of n except 2, with which the agents of a machine
        would never meet; by default the smallest that is at least sqrt(n).
    kind : str
        "exponential" or "ring".

    Returns
    -------
    Schedule
        Doubly stochastic and directed, with one peer per step; its period is L for "ring", and the
        least common multiple of L E(M) and E(L - 1) for "exponential".

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or `machine_size` is 2 or no divisor of
        n.

    Notes
    -----
    Each agent sends one vector and receives one in each step, and a machine sends one and receives
    one over the network.  In BlueFog h is :math:`2^{k \bmod E(M)}`, so that if L and E(M) have a
    common factor, an agent meets some machines only; here each agent uses all distances.

    Examples
    --------
    >>> W = inner_outer(8, machine_size=4)
    >>> W.period, [int(W.at(0).out_neighbors(i)[0]) for i in range(8)]
    (4, [4, 2, 3, 1, 0, 6, 7, 5])

    References
    ----------
    Ying, Yuan, Hu, Chen, Yin: BlueFog: make decentralized algorithms practical for optimization and
    deep learning, arXiv:2111.04287, 2021.
    """
    name = "inner_outer"
    n = check.integer(n, f"{name}: n")
    kind = check.choice(kind, f"{name}: kind", KINDS)
    if machine_size is None:
        sizes = (size for size in range(math.isqrt(n - 1) + 1, n + 1) if n % size == 0)
        L = next((size for size in sizes if size != 2), 1)
    else:
        L = check.integer(machine_size, f"{name}: machine_size")
        if n % L:
            raise ValueError(
                f"{name}: machine_size is {L}, expected a divisor of the number of agents, n = {n}"
            )
        if L == 2:
            raise ValueError(
                f"{name}: machine_size is 2, expected 1 or at least 3: while one agent of a "
                "machine sends to another "
                f"machine, the other one is alone (hypercuboid({n}, factors=[2, {n // 2}]) suits "
                "pairs)"
            )
    M = n // L
    outer, inner = (_hops(M), _hops(L - 1)) if kind == "exponential" else ([1], [1])
    phases = (
        Exchange(n, L, k % L, outer[k // L % len(outer)] % M, inner[k % len(inner)] % max(L - 1, 1))
        for k in range(math.lcm(L * len(outer), len(inner)))
    )
    return Periodic(name, tuple(Topology(name, phase) for phase in phases))


def _hops(size: int) -> list[int]:
    """Return the powers of two below the size of a ring, at least 1."""
    return [1 << r for r in range(max(1, (size - 1).bit_length()))]


@dataclass(frozen=True)
class Exchange(Computed):
    """One step: (I + P) / 2, with P as in `inner_outer`.

    Parameters
    ----------
    n, machine_size : int
    out : int
        Place of the agents that send to another machine.
    outer, inner : int
        How far they send, in machines, and how far the other agents send in the ring of a machine.
    """

    n: int
    machine_size: int
    out: int
    outer: int
    inner: int

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        rest = max(self.machine_size - 1, 1)
        return 2 * self.outer % (self.n // self.machine_size) == 0 and 2 * self.inner % rest == 0

    @property
    def directed(self) -> bool:  # type: ignore[override]
        return not self.symmetric

    @property
    def connected(self) -> bool:  # type: ignore[override]
        return self.n == 1 or (self.machine_size == 1 and math.gcd(self.outer, self.n) == 1)

    @property
    def arcs(self) -> int:
        machines = self.n // self.machine_size
        return machines * ((self.outer > 0) + (self.inner > 0) * (self.machine_size - 1))

    def senders(self, agents: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        return self._table(agents, -1)

    def receivers(self, agents: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        return self._table(agents, 1)

    def _table(self, agents: NDArray[Any], sign: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
        L = self.machine_size
        # Place L - 1 sends to another machine.
        machine, place = (
            agents // L,
            (agents - self.out - 1) % L,
        )
        inside = (place + sign * self.inner) % max(L - 1, 1)
        partner = np.where(
            place == L - 1,
            (agents + sign * self.outer * L) % self.n,
            machine * L + (inside + self.out + 1) % L,
        )
        weights = np.full((len(agents), 2), 0.5)
        alone = partner == agents
        weights[alone] = 1, 0
        return np.c_[agents, partner], weights
