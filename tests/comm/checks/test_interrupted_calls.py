"""Ctrl-C on one rank within a call, wherever it comes: the others are told, and none waits for the time-out."""

from __future__ import annotations

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.checks.matching import Matching
from mpidec.comm.checks.operation import Operation
from mpidec.comm.mixing.base.agreement import Agreement
from mpidec.comm.mixing.local import operations
from mpidec.comm.mixing.local.flat import FlatArray
from mpidec.comm.mixing.network import reductions
from mpidec.comm.rma.carriers.shared_memory import SharedMemory
from mpidec.comm.rma.claims import RankLocks
from mpidec.comm.runtime.collectives import Collectives

pytestmark = [pytest.mark.most(1), pytest.mark.mpi(min_size=2), pytest.mark.timeout(100)]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The test's own limit is shorter, and shows where the ranks are."""
    monkeypatch.setenv("MPIDEC_TIMEOUT", "600")


def interrupt(monkeypatch, owner, name, call, after=0):
    """Call `call()` while the function `owner.name` raises KeyboardInterrupt, as a signal handler does, when it has been called
    `after` times."""
    real, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(name)
        if len(calls) == after + 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        call()
    raise KeyboardInterrupt  # it has not been called so often


def rows(net):
    return np.full((net.m, 3), 1.0 + net.rank)


def told(monkeypatch, call, *where, prepare=lambda net: None):
    """Rank 0 is interrupted in `call(net)`, and leaves; each other rank returns from it, or is told in it or in the next one."""

    def work(net):
        with net:
            prepare(net)
            net.barrier()
            if net.rank == 0:
                interrupt(monkeypatch, *where[:2], lambda: call(net), *where[2:])
            else:
                call(net)
                net.barrier()

    net = mpidec.Network()
    with pytest.raises(KeyboardInterrupt if net.rank == 0 else (ValueError, RuntimeError)):
        work(net)
    with mpidec.Network() as net:
        np.testing.assert_allclose(net.mean(rows(net)), (net.n + 1) / 2)


SUMS = {
    "sum": lambda net: net.sum(rows(net)),
    "gather": lambda net: net.gather(rows(net)),
    "gather_rows": lambda net: net.gather_rows(rows(net)),
    "scatter": lambda net: net.scatter(np.ones((net.n, 2)) if net.rank == 0 else None),
    "agree": lambda net: net.agree(),
    "mixer": lambda net: net.mixer(T.ring(net.n)),
}


STEPS = {
    "numbering": (Agreement, "_asking"),
    "comparison": (Agreement, "_compare"),
    "agreement": (Matching, "wait"),
    "first wait": (Collectives, "wait"),
    "second wait": (Collectives, "wait", 1),
    "arithmetic": (reductions, "joined"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("call", SUMS)
def test_between_the_steps_of_a_reduction(monkeypatch, call, step):
    told(monkeypatch, SUMS[call], *STEPS[step])


LONG = {  # calls of many waits, with the number of these
    "window": (lambda net: net.window(rows(net)[0], T.ring(net.n)).close(), 9),
    "slots": (lambda net: net.slots(T.ring(net.n), rows(net)), 6),
    "gather_rows": (SUMS["gather_rows"], 4),
    "scatter": (SUMS["scatter"], 5),
    "machines": (lambda net: net.machines(), 2),
}


@pytest.mark.parametrize(
    "call, wait", [(call, k) for call in LONG for k in range(1, LONG[call][1])]
)
def test_in_any_wait_of_a_call(monkeypatch, call, wait):
    told(monkeypatch, LONG[call][0], Collectives, "wait", wait)


def test_between_the_waits_of_a_window(monkeypatch):
    told(monkeypatch, lambda net: net.window(rows(net)[0], T.ring(net.n)), SharedMemory, "__init__")
    told(monkeypatch, lambda net: net.window(rows(net)[0], T.ring(net.n)), RankLocks, "__init__")


@pytest.mark.parametrize("call", ["sum", "gather"])
def test_in_a_reduction_of_a_kind_that_is_known(monkeypatch, call):
    told(monkeypatch, SUMS[call], *STEPS["second wait"], prepare=SUMS[call])


def test_a_rank_that_was_interrupted_in_a_sum_makes_no_more_calls(comm, monkeypatch):
    """It may be one collective apart: another sum would meet the rest of this one."""
    net = mpidec.Network()
    net.sum(rows(net))
    if net.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            interrupt(monkeypatch, reductions, "joined", lambda: net.sum(rows(net)))
        with pytest.raises(RuntimeError, match="out of step"):
            net.sum(rows(net))
    else:
        with pytest.raises(ValueError, match="rank 0 closes the network"):
            net.sum(rows(net))
    net.close()
    comm.Barrier()


def test_an_error_of_any_kind_that_ranks_have_agreed_on_interrupts_nothing():
    with mpidec.Network() as net:
        with pytest.raises(ArithmeticError, match="of rank 1"):
            net.agree(ArithmeticError("of rank 1") if net.rank == 1 else None)
        np.testing.assert_allclose(net.mean(rows(net)), (net.n + 1) / 2)


CALLS = {
    "neighbor_allreduce": lambda net: net.neighbor_allreduce(rows(net)),
    "neighbor_allreduce of lists": lambda net: net.neighbor_allreduce(
        rows(net), 0.5, dict.fromkeys(others(net), 0.5), others(net)
    ),
    "neighbor_allgather": lambda net: net.neighbor_allgather(rows(net)),
    "exchange": lambda net: net.exchange(dict.fromkeys(others(net), rows(net))),
    "hierarchical": lambda net: net.hierarchical_neighbor_allreduce(rows(net)),
    "allreduce": lambda net: net.allreduce(rows(net)),
    "broadcast": lambda net: net.broadcast(rows(net), 0),
}


def others(net):
    return [rank for rank in range(net.size) if rank != net.rank]


def prepared(net):
    """The topologies of local-view calls, and all that is made at the first of them."""
    net.set_topology(T.complete(net.n))
    net.set_machine_topology(T.complete(len(net.machines())))


@pytest.mark.parametrize(
    "where",
    [(FlatArray, "of"), (operations, "combine"), (Operation, "send"), (Operation, "expect")],
    ids=lambda where: where[1],
)
@pytest.mark.parametrize("call", CALLS)
def test_within_a_local_view_call(monkeypatch, call, where):
    monkeypatch.setenv("MPIDEC_TRANSPORT", "p2p")
    told(monkeypatch, CALLS[call], *where, prepare=prepared)


def test_a_call_that_was_interrupted_while_another_one_is_waited_for_has_no_result(
    comm, monkeypatch
):
    net = mpidec.Network()
    pending = net.start_allreduce(rows(net))
    if net.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            interrupt(monkeypatch, Operation, "take", net.barrier)
        with pytest.raises(RuntimeError, match=r"rank 0 gave up allreduce .*: KeyboardInterrupt"):
            pending.wait()
    else:
        with pytest.raises(ValueError, match=r"rank 0 gave up allreduce .*: KeyboardInterrupt"):
            pending.wait()
    net.close()
    comm.Barrier()
