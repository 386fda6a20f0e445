"""Which transport the operator of a step has."""

import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.runtime import arena as memory
from mpidec.comm.transport.node_reader import NodeReader
from mpidec.comm.transport.sums import LocalSum, MessageSum, MixedSum

pytestmark = [pytest.mark.wide, pytest.mark.library]


@pytest.mark.parametrize(
    "transport, per, one, some, whole",
    [
        ("auto", 0, LocalSum, NodeReader, NodeReader),
        ("shared", 0, LocalSum, NodeReader, NodeReader),
        ("auto", 1, LocalSum, MessageSum, MessageSum),
        ("auto", 2, LocalSum, MixedSum, NodeReader),
        ("neighbor", 0, LocalSum, MessageSum, MessageSum),
        ("p2p", 0, LocalSum, MessageSum, MessageSum),
    ],
)
def test_the_transport_of_a_phase(monkeypatch, comm, transport, per, one, some, whole):
    """`some` ranks of several nodes, or the `whole` of a node of two."""
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(per))
    if memory.shared is None:
        pytest.skip("the kernel is not compiled")
    with mpidec.Network(transport=transport) as net:
        kind = type(net.mixer(T.ring(net.n)).at(0)._transport)
        assert kind is (one if comm.size == 1 else whole if comm.size == 2 else some)
