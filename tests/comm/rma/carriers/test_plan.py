"""How rows of a window travel: what "auto" takes, and what is refused."""

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.rma.carriers import offload

pytestmark = pytest.mark.library


@pytest.mark.parametrize("per_node", ["1", "2", "99"])
@pytest.mark.parametrize("lacking", [None, 0])
@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_what_auto_takes(comm, monkeypatch, per_node, lacking, transport):
    """One-sided calls, if there are several nodes and the adapters of all of them perform such calls; sums hold."""
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", per_node)
    found = offload.Interconnect(comm.rank != lacking, "pretended")
    monkeypatch.setattr(offload, "interconnect", lambda: found)
    with (
        mpidec.Network(transport=transport) as net,
        net.window(np.full(3, float(net.rank)), T.exponential(net.n)) as win,
    ):
        nodes = -(-net.n // int(per_node))
        if net.n > 1 and nodes > 1 and lacking is None:
            assert win.transport == "rma" and not win.node_neighbors
        elif net.n == 1 or (transport == "auto" and nodes == 1):
            assert win.transport == "shared"
        else:
            assert win.transport == "messages"
        share = 1 / (len(win.out_neighbors) + 1)
        for _ in range(20):
            win.accumulate(win.value, share, dict.fromkeys(win.out_neighbors, share))
            win.collect()
        net.barrier()
        win.collect()
        both = net.comm.allreduce(np.append(win.value, win.p))
        np.testing.assert_allclose(both, [net.n * (net.n - 1) / 2] * 3 + [net.n], rtol=1e-13)


def test_transports_that_are_not_possible(comm):
    with pytest.raises(ValueError, match="windows is 'tcp', expected one of auto, shared"):
        mpidec.Network(windows="tcp")
    with mpidec.Network(transport="p2p", windows="shared") as net:
        with pytest.raises(ValueError, match="transport is 'rdma', expected one of auto, shared"):
            net.window(np.ones(2), T.ring(net.n), transport="rdma")
        if net.n > 1:
            with pytest.raises(ValueError, match="not all ranks map the memory of each other"):
                net.window(np.ones(2), T.ring(net.n))
        for transport in ("messages", "rma"):
            with net.window(np.ones(2), T.ring(net.n), transport=transport) as win:
                assert win.transport == (transport if net.n > 1 else "shared")
                win.put(win.value)
                net.barrier()
                assert win.collect()[0] == 1 + len(win.in_neighbors)
