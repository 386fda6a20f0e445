"""Communication schedule of CECA, the communication-optimal exact consensus algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from ... import _validation as check
from ..._words import with_known_options
from ..base.rules import Pairs
from ..base.schedule import Periodic, Schedule
from ..base.source import Source
from ..base.topology import Topology
from ..base.weights import EdgeWeights, Weighted
from ..graphs.circulant import circulant


@dataclass(frozen=True, eq=False, repr=False)
class CecaRound(Topology):
    r"""One round of CECA: W = (I + P) / 2 with a permutation P of the agents.

    Parameters
    ----------
    name, source
        As of `Topology`.
    digit : int
        Binary digit of n - 1 that belongs to the round, most significant first: 1 if x is sent, 0
        if y is.
    count : int
        Number of other agents' values that an agent's x contains before the round.
    next_digit : int
        Digit of the next round; after the last round, that of the first, which is 1.
    """

    digit: int
    count: int
    next_digit: int


@with_known_options
def ceca(n: int, ports: int = 2, parity: str = "paper") -> Schedule:
    r"""CECA: exact averaging over any number of agents in ceil(log2 n) rounds.

    With :math:`\delta_0 \delta_1 \dots \delta_{\tau-1}` the binary digits of n - 1, :math:`n_0 = 0`
    and :math:`n_{r+1} = 2 n_r + \delta_r`, in round :math:`r = k \bmod \tau` agent i receives from
    s(i),

    .. math:: W^{(k)} = \tfrac12 (I + P), \quad P_{i,s(i)} = 1, \qquad s(i) = i - n_r - \delta_r \pmod n

    with two ports; with one port, i and s(i) are a pair of agents :math:`2 n_r + 1` positions from
    each other.

    Parameters
    ----------
    n : int
        Number of agents, at least 1; even (or 1) with one port.
    ports : int
        2: an agent sends to one agent and receives from another.  1: it sends to and receives from
        the same agent.
    parity : str
        With one port, the agents i that pair with agent :math:`i + 2 n_r + 1`: those with even i
        ("paper") or with odd i ("repository").  The two choices differ only by a relabelling of the
        agents.

    Returns
    -------
    Schedule
        Doubly stochastic, with period ceil(log2 n) (1 for n = 1).  Each round is a `CecaRound`: a
        `Topology` with `digit`, `count` (n_r) and `next_digit`, from which the solver computes its
        weights.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or n > 1 is odd with one port.

    Notes
    -----
    The average is exact with CECA's two vectors x and y per agent.  If n is a power of two, x alone
    suffices: the product of the matrices W over a period is then the exact average.  Each agent
    sends one vector and receives one in each round.

    Examples
    --------
    >>> W = ceca(6)
    >>> [(W.at(k).digit, W.at(k).count, int(W.at(k).out_neighbors(0)[0])) for k in range(3)]
    [(1, 0, 1), (0, 1, 1), (1, 2, 3)]

    References
    ----------
    Ding, Jin, Ying, Yuan, Yin: DSGD-CECA: decentralized SGD with communication-optimal exact
    consensus algorithm, ICML 2023.
    """
    n = check.integer(n, "ceca: n")
    ports = check.choice(ports, "ceca: ports", (1, 2))
    parity = check.choice(parity, "ceca: parity", ("paper", "repository"))
    if ports == 1 and n % 2 and n > 1:
        raise ValueError(
            f"ceca: n = {n} agents cannot be paired, expected an even n with ports=1 "
            f"(ceca({n}, ports=2) takes any n)"
        )
    digits = [int(bit) for bit in f"{n - 1:b}"] if n > 1 else [1]
    rounds, count = [], 0
    for r, digit in enumerate(digits):
        if ports == 1 and n > 1:
            pairs = Pairs(n, 2 * count + 1, 0 if parity == "paper" else 1)
            source: Source = Weighted(pairs, EdgeWeights("regular", 0.5))
        else:
            source = circulant("ceca", n, [count + digit], "uniform").source
        rounds.append(CecaRound("ceca", source, digit, count, digits[(r + 1) % len(digits)]))
        count = 2 * count + digit
    return Periodic("ceca", tuple(rounds))
