"""What networks do after a refusal."""

from __future__ import annotations

import numpy as np

from mpidec import topology as T

TRANSPORTS = ["shared", "neighbor", "p2p"]


def works(net, value=0.0):
    """The network does what it should."""
    Y = net.mixer(T.complete(net.n))(value + np.arange(net.lo, net.hi)[:, None] * np.ones(3))
    np.testing.assert_allclose(Y, np.full((net.m, 3), value + (net.n - 1) / 2), rtol=1e-13)


def use(net):
    W = net.mixer(T.complete(net.n))
    W(np.full((1, 3), float(net.rank)))
    pending = W.start(np.ones((1, 5000)))
    net.mean(np.ones((1, 2)))
    return pending
