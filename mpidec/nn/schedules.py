"""Learning-rate schedules of the literature: factors of the base learning rate, as functions of
the fractional epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def relaysgd(
    epoch: float, milestones: Sequence[float] = (150, 180), warmup: float = 5.0, decay: float = 0.1
) -> float:
    r"""Linear warm-up from 0, and a decay at milestones.

    .. math:: \min(e / e_w, 1) \cdot \delta^{\,|\{j : e \ge e_j\}|}

    Parameters
    ----------
    epoch : float
        Epochs so far, e.
    milestones : sequence of float
        Epochs :math:`e_j` of the decays.
    warmup : float
        Epochs :math:`e_w` of the warm-up; 0 for none.
    decay : float
        Factor :math:`\delta` of each decay.

    Examples
    --------
    >>> relaysgd(2.5), relaysgd(100), relaysgd(150)
    (0.5, 1.0, 0.1)

    References
    ----------
    T. Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data", NeurIPS
    2021; code epfml/relaysgd.
    """
    factor = min(epoch / warmup, 1.0) if warmup else 1.0
    return factor * _decayed(epoch, milestones, decay)


def goyal(
    epoch: float,
    epochs: float,
    scale: float,
    milestones: Sequence[float] = (0.5, 0.75),
    warmup: float = 5.0,
    decay: float = 0.1,
) -> float:
    r"""Linear warm-up from 1 to the linear scaling s of large batches, and a decay at fractions of
    the whole run.

    .. math:: 1 + \frac{e}{e_w} (s - 1) \quad (e < e_w), \qquad s\, \delta^{\,|\{j : e \ge q_j E\}|} \quad (e \ge e_w)

    Parameters
    ----------
    epoch : float
        Epochs so far, e, over all workers together.
    epochs : float
        Epochs of the whole run, E.
    scale : float
        Samples of a step of all workers over those that the base learning rate is meant for, s: B n
        / 256.
    milestones : sequence of float
        Fractions :math:`q_j` of the run at which the rate decays: (0.5, 0.75) for CIFAR-10, (0.3,
        0.6, 0.8) for ImageNet in A2CiD2.
    warmup : float
        Epochs :math:`e_w` of the warm-up; 0 for none.
    decay : float
        Factor :math:`\delta` of each decay.

    Examples
    --------
    >>> goyal(2.5, 300, scale=8), goyal(10, 300, scale=8), goyal(150, 300, scale=8)
    (4.5, 8.0, 0.8)

    References
    ----------
    P. Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, as A. Nabli
    et al., "A2CiD2: accelerating asynchronous communication in decentralized deep learning",
    NeurIPS 2023, use it.
    """
    if epoch < warmup:
        return 1.0 + epoch / warmup * (scale - 1.0)
    return scale * _decayed(epoch, [fraction * epochs for fraction in milestones], decay)


def cosine(epoch: float, epochs: float) -> float:
    r"""Half a period of the cosine, from 1 to 0 at the end of the run.

    .. math:: (1 + \cos(\pi e / E)) / 2

    Parameters
    ----------
    epoch : float
        Epochs so far, e.
    epochs : float
        Epochs of the whole run, E.

    Examples
    --------
    >>> cosine(0, 100), round(cosine(50, 100), 12)
    (1.0, 0.5)
    """
    return (1.0 + math.cos(math.pi * epoch / epochs)) / 2


SCHEDULES = {
    "constant": "the same learning rate in all steps",
    "relaysgd": "warm-up over 5 epochs, x 0.1 after 3/4 and 9/10 of the run",
    "goyal": "warm-up over 5 epochs to B n / 256 times the learning rate, x 0.1 after 1/2 and 3/4 "
    "of the run",
    "cosine": "half a period of the cosine, to 0 at the end",
}


def factor(name: str, epoch: float, epochs: float, scale: float = 1.0) -> float:
    """Factor of the base learning rate, by the name of the schedule.

    Parameters
    ----------
    name : {"constant", "relaysgd", "goyal", "cosine"}
    epoch, epochs : float
        Epochs so far, and of the whole run.
    scale : float
        See `goyal`.

    Examples
    --------
    >>> factor("relaysgd", 80, 100)
    0.1
    """
    if name == "relaysgd":
        return relaysgd(epoch, milestones=(0.75 * epochs, 0.9 * epochs))
    if name == "goyal":
        return goyal(epoch, epochs, scale)
    return cosine(epoch, epochs) if name == "cosine" else 1.0


def _decayed(epoch: float, milestones: Sequence[float], decay: float) -> float:
    factor = 1.0
    for milestone in milestones:
        if epoch >= milestone:
            factor *= decay
    return factor
