"""Runs of `mpidec.train.fit` for the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..comm.mixing import Network

OnLine = Callable[[str], None]


def trained(net: Network, **settings: Any) -> Any:
    """Result of `mpidec.train.fit` with these settings.

    Raises
    ------
    KeyboardInterrupt
        If Ctrl-C has ended the training.
    """
    from ..train import fit

    result = fit(net=net, **settings)
    if result.outcome == "interrupted":
        raise KeyboardInterrupt
    return result


def worst(accuracy: np.ndarray, last: int) -> float:
    """Accuracy in percent of the worst worker, each in the mean over its `last` evaluations.

    Parameters
    ----------
    accuracy : (evaluations, n) array
    last : int

    Examples
    --------
    >>> import numpy as np
    >>> float(worst(np.array([[0.1, 0.1], [0.75, 1.0], [1.0, 0.5]]), last=2))
    75.0
    """
    return 100 * float(accuracy[-last:].mean(axis=0).min())
