"""The ranks of a node."""

from __future__ import annotations

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.runtime import arena as arena_module

shared = arena_module.shared


pytestmark = [
    pytest.mark.library,
    pytest.mark.skipif(shared is None or arena_module.arena() is None, reason="there is no arena"),
    pytest.mark.timeout(200),
]


several = pytest.mark.mpi(min_size=2)


@several
def test_a_network_pretends_to_be_several_nodes(monkeypatch, comm):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    n = 3 * comm.size
    X = np.random.default_rng(0).standard_normal((n, 9))
    with mpidec.Network(n) as net:
        assert net.node is None or len(net.node.near) <= 2
        for make in (T.exponential, T.one_peer_exponential, lambda n: T.star(n, weights="push")):
            np.testing.assert_allclose(
                net.mixer(make(n))(X[net.lo : net.hi]),
                (make(n).at(0).W @ X)[net.lo : net.hi],
                atol=1e-14,
            )
