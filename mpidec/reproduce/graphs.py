"""Topologies of the published experiments that are not in `mpidec.topology`."""

from __future__ import annotations

from math import gcd

from ..topology import Schedule, cycle, from_weights, one_peer_exponential


def two_half_rounds(n: int) -> Schedule:
    r"""One-peer exponential graph with two rounds in each step, as SGP in RelaySGD's experiments.

    .. math:: W^{(k)} = W_1^{(2k+1)} W_1^{(2k)}

    with the matrices :math:`W_1` of `one_peer_exponential`.

    Examples
    --------
    >>> W = two_half_rounds(16)
    >>> W.period, W.at(0).in_neighbors(5).tolist(), W.at(1).in_neighbors(5).tolist()
    (2, [2, 3, 4], [1, 9, 13])
    """
    single = one_peer_exponential(n)
    tau = single.period or 1
    W = [single.at(k).W for k in range(tau)]
    return cycle(
        [
            from_weights(W[(2 * k + 1) % tau] @ W[2 * k % tau], connected=False)
            for k in range(tau // gcd(tau, 2))
        ]
    )
