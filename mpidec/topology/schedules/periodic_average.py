"""Periodic global averaging: a topology that is replaced by the complete graph in every H-th
step.
"""

from __future__ import annotations

import math

from ... import _validation as check
from ..._words import with_known_options
from ..base.schedule import Periodic, Schedule, refuse_filter, refuse_striped
from ..base.topology import Topology
from ..graphs.circulant import complete


@with_known_options
def periodic_average(topology: Topology | Schedule, H: int = 8) -> Schedule:
    r"""Schedule of Gossip-PGA: the given topology, and in every H-th step the exact average over
    all agents.

    .. math:: \bar W^{(k)} = \tfrac1n 1 1^T \text{ if } (k + 1) \bmod H = 0, \text{ otherwise } W^{(k)}

    Parameters
    ----------
    topology : Topology or Schedule
        A periodic schedule keeps its phase: step k uses its topology of step k.
    H : int
        Steps from one global average to the next, at least 1; 1 for the complete graph in every
        step.

    Returns
    -------
    Schedule
        Of the kind of `topology`, with the least common multiple of H and its period as the period.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or the schedule has no period.

    Examples
    --------
    >>> from mpidec.topology import one_peer_exponential, ring
    >>> W = periodic_average(ring(6), 3)
    >>> [W.at(k).name for k in range(4)]
    ['ring', 'ring', 'complete', 'ring']
    >>> periodic_average(one_peer_exponential(8), 4).period
    12

    References
    ----------
    Chen, Yuan, Zhang, Pan, Xu, Yin: Accelerating gossip SGD with periodic global averaging, ICML
    2021.
    """
    name = "periodic_average"
    if not isinstance(topology, (Topology, Schedule)):
        raise TypeError(
            f"{name}: expected a topology or a schedule, got {topology!r} "
            f"({type(topology).__name__})"
        )
    refuse_striped(name, topology)
    refuse_filter(name, topology)
    H = check.integer(H, f"{name}: H")
    if topology.period is None:
        raise ValueError(
            f"{name}: {topology.name} has no period, expected a topology or a periodic schedule"
        )
    average = complete(topology.n)
    return Periodic(
        name,
        tuple(
            average if (k + 1) % H == 0 else topology.at(k)
            for k in range(math.lcm(H, topology.period))
        ),
    )
