"""One-peer schedules: in each step an agent sends to a single peer."""

from __future__ import annotations

from ... import _validation as check
from ..._words import with_known_options
from ..base.schedule import Periodic, Schedule
from ..graphs.circulant import circulant


@with_known_options
def one_peer_exponential(n: int) -> Schedule:
    r"""One-peer exponential graph: at step k, agent i sends to i + 2^(k mod tau) (modulo n).

    .. math:: W^{(k)}_{i,i} = W^{(k)}_{i,(i - 2^r) \bmod n} = \tfrac12, \qquad r = k \bmod \tau,
              \quad \tau = \lceil \log_2 n \rceil

    Parameters
    ----------
    n : int
        Number of agents, at least 1.

    Returns
    -------
    Schedule
        Doubly stochastic, with period tau (1 for n <= 2); its product over a period is the exact
        average if and only if n is a power of two.

    Raises
    ------
    TypeError, ValueError
        n is not an integer >= 1.

    Notes
    -----
    Each agent sends one vector and receives one in each step.

    Examples
    --------
    >>> W = one_peer_exponential(6)
    >>> W.period, [int(W.at(k).out_neighbors(0)[0]) for k in range(4)]
    (3, [1, 2, 4, 1])

    References
    ----------
    Assran, Loizou, Ballas, Rabbat: Stochastic gradient push for distributed deep learning, ICML
    2019.
    Ying, Yuan, Chen, Hu, Pan, Yin: Exponential graph is provably efficient for decentralized deep
    training,
    NeurIPS 2021.
    """
    name = "one_peer_exponential"
    n = check.integer(n, f"{name}: n")
    phases = max(1, (n - 1).bit_length())
    return Periodic(name, tuple(circulant(name, n, [1 << r], "uniform") for r in range(phases)))
