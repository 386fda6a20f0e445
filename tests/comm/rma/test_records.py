"""Records: shares that sum up, locks that cannot be had."""

import mmap
import os
import time

import numpy as np
import pytest
from helpers.windows import aligned
from mpi4py import MPI

import mpidec
from mpidec.comm.rma import records, records_in_python

pytestmark = pytest.mark.library


def made(make, nin, nout, me=0, count=8):
    """A port of so many slots, and its records: the value, the slots, the outboxes."""
    value, scratch, *rest = (aligned(64 + 8 * count) for _ in range(2 + nin + nout))
    ins, outs = rest[:nin], rest[nin:]
    return make(me, count, False, 0.05, value, scratch, ins, outs, [None] * nin), value, ins, outs


def row(record):
    return record[64:].view(float)


def field(record, k):
    """lock, transfers, p, replaced, filled"""
    return record[:64].view(float if k == 2 else np.uint64)[k]


def test_the_value_becomes_the_rest():
    """48 shares of 1/49, rounded, and what is kept: value - sum of what was sent, to the last bit."""
    with (
        mpidec.Network(2, comm=MPI.COMM_SELF) as net,
        pytest.raises(ValueError, match="expected one on each"),
    ):
        net.window(np.ones(1))
    for make in {records.native.AgentRecords, records_in_python.AgentRecords}:
        port, value, _, outs = made(make, 0, 48)
        x = np.random.default_rng(1).random(8)
        port.set(x)
        port.p = p = 0.3
        port.send(None, [1 / 49] * 48, 1 / 49, True)
        sent, gone = np.zeros(8), 0.0
        for out in outs:
            sent += row(out)
            gone += field(out, 2)
        assert np.array_equal(row(value), x - sent) and port.p == p - gone
        assert not np.array_equal(row(value), x / 49)


@pytest.mark.skipif(
    not records.COMPILED, reason="without the compiled extension no other process locks records"
)
@pytest.mark.parametrize("own", [0.5, 0.25])
def test_a_transfer_that_fails_at_a_lock_keeps_the_mass(own):
    for whole in (True, False):
        port, value, _, outs = made(records.native.AgentRecords, 0, 3)
        x = np.random.default_rng(2).random(8)
        port.set(x)
        port.p = 1.0
        outs[1][:8].view(np.uint64)[0] = 8  # rank 7 has stopped there
        with pytest.raises(RuntimeError, match="locked by rank 7"):
            port.send(None if whole else x.copy(), [0.25, 0.125, 0.125], own, True)
        assert np.array_equal(row(outs[0]), 0.25 * x) and field(outs[0], 2) == 0.25
        if own == 0.5:  # shares that sum to one: the value has lost what was sent
            assert (
                np.array_equal(row(value) + row(outs[0]), x)
                and port.p == 0.75
                and not row(outs[2]).any()
            )
        else:
            assert np.array_equal(row(value), x) and port.p == 1
        assert field(value, 0) == field(outs[0], 0) == 0
        value[:8].view(np.uint64)[0] = 8  # the value is locked first: nothing leaves
        with pytest.raises(RuntimeError, match="locked by rank 7"):
            port.send(None, [None, None, 0.5], 0.5, True)
        assert field(outs[2], 1) == 0


@pytest.mark.skipif(
    not records.COMPILED, reason="without the compiled extension no other process locks records"
)
def test_an_update_takes_all_slots_or_none():
    port, value, ins, _ = made(records.native.AgentRecords, 3, 0)
    port.set(np.ones(8))
    port.p = 1.0
    for k in range(3):
        port.deliver(k, np.full(8, 2.0), 1.0, 0.5, 3, False)
    before = [one.copy() for one in (value, *ins)]
    ins[1][:8].view(np.uint64)[0] = 8
    for reset in (False, True):
        with pytest.raises(RuntimeError, match="locked by rank 7"):
            port.update(0.25, [0.25] * 3, reset)
        ins[1][:8] = 0
        for now, then in zip((value, *ins), before):
            assert np.array_equal(now, then)  # locks, too
        ins[1][:8].view(np.uint64)[0] = 8
    ins[1][:8] = 0
    port.update(0.25, [0.25] * 3, True)
    assert row(value).tolist() == [1.75] * 8 and port.p == 0.625 and port.versions() == [0, 0, 0]


@pytest.mark.skipif(
    not records.COMPILED, reason="without the compiled extension one process uses a record"
)
def test_a_lock_has_one_holder():
    """Two processes add to one slot until they have often done so at the same time, or half a second is over: nothing is lost."""
    memory = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
    slot, ready, over, sent = memory[:128], memory[1024:1026], memory[2048:2049], memory[3072:3088]
    child = os.fork()
    me, x, together, until = int(child == 0), np.ones(8), 0, time.monotonic() + 0.5
    port = records.native.AgentRecords(
        me, 8, False, 10.0, aligned(128), aligned(64), [], [slot], []
    )
    ready[me], sent = 1, sent.view(np.int64)
    while not ready.all():
        os.sched_yield()
    while not over[0]:
        others = sent[1 - me]
        for _ in range(100):
            port.send(x, [1.0], None, True)
        sent[me] += 100
        together += int(sent[1 - me] > others)
        over[0] |= together == 400 or time.monotonic() > until
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert row(slot).tolist() == [sent.sum()] * 8 and field(slot, 1) == sent.sum()
