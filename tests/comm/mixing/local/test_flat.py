"""Local-view calls with arrays of a device, with a stand-in for devices."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import standin
from helpers.formats import some, stack

import mpidec
from mpidec import topology as T
from mpidec.comm.arrays.formats import BFLOAT16

pytestmark = pytest.mark.most(2)


@pytest.mark.parametrize("format", some(["<f4", "<c16", "<f2", BFLOAT16], ["<c16", BFLOAT16]))
def test_every_local_call_takes_device_arrays(device, format):
    net = mpidec.Network()
    r, n, X = net.rank, net.size, stack(net.size, (4, 2), format)
    plain = X if format != BFLOAT16 else X.astype(np.float32)
    once = 1e-6 if format not in ("<f2", BFLOAT16) else 2e-2
    own = lambda rank=r: device.array(X[rank], format, place=1)
    right, left = (r + 1) % n, (r - 1) % n

    def check(got, want):
        assert isinstance(got, standin.Array) and (got.format, got.place) == (format, 1)
        np.testing.assert_allclose(got.get().astype(complex), want, rtol=once, atol=once)

    net.set_topology(T.ring(n))
    net.set_machine_topology(T.ring(len(net.machines())))
    check(net.neighbor_allreduce(own()), np.tensordot(T.ring(n).W.toarray(), plain, 1)[r])
    check(
        net.neighbor_allgather(own()),
        np.concatenate([plain[:0].reshape(0, 2), *(plain[j] for j in T.ring(n).in_neighbors(r))]),
    )
    check(net.allreduce(own()), plain.astype(complex).mean(axis=0))
    check(net.broadcast(own(), root=n - 1), plain[n - 1])
    Wm, machines = T.ring(len(net.machines())).W.toarray(), net.machines()
    means = np.array([plain[ranks].astype(complex).mean(axis=0) for ranks in machines])
    check(
        net.hierarchical_neighbor_allreduce(own()),
        np.tensordot(Wm, means, 1)[next(i for i, m in enumerate(machines) if r in m)],
    )
    if n > 1:
        check(
            net.neighbor_allreduce(own(), 0.5, {left: 0.5}, [right]), plain[r] / 2 + plain[left] / 2
        )
        check(net.exchange({right: own()}, src_ranks=[left])[left], plain[left])
    if r < n - n % 2:
        check(net.pair_gossip(own(), r ^ 1), plain[r] / 2 + plain[r ^ 1] / 2)
    assert device.count("synchronize") >= 4
    net.close()
