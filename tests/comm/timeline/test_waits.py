"""Who waited for whom."""

from __future__ import annotations

import time

import numpy as np
import pytest
from helpers.timelines import _call, _event, texts

import mpidec
from mpidec.comm.timeline.merge import aligned, arrows
from mpidec.comm.timeline.waits import stragglers, waits

PAUSE = 0.05


def test_one_rank_sleeps_and_the_others_wait_for_it(traced, shared_tmp):
    net = traced
    W = net.mixer(mpidec.topology.complete(net.n))
    late = net.size - 1
    net.barrier()
    for _ in range(3):
        if net.rank == late:
            time.sleep(PAUSE)
        W(np.ones((1, 5)))
    events = aligned(texts(net, shared_tmp))
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["ts"] for event in spans] == sorted(event["ts"] for event in spans)
    assert spans[0]["ts"] == 0
    if net.size == 1:
        assert waits(events) == [] and arrows(events) == []
        return
    long = [wait for wait in waits(events) if wait.event["name"] == "W(X)" and wait.late == late]
    for rank in range(late):
        mine = [wait.until - wait.begin for wait in long if wait.rank == rank]
        assert sum(mine) > 3 * 0.5e6 * PAUSE
    told = {each.rank: each for each in stragglers(events)}
    assert all(next(iter(told[rank].whom)) == late for rank in range(late))
    assert max(told, key=lambda rank: told[rank].caused) == late
    drawn = arrows(events)
    assert {(a["pid"], b["pid"]) for a, b in zip(drawn[::2], drawn[1::2])} >= {
        (late, rank) for rank in range(late)
    }
    assert all(a["id"] == b["id"] and a["ts"] <= b["ts"] for a, b in zip(drawn[::2], drawn[1::2]))


@pytest.mark.serial
def test_no_rank_waits_longer_than_its_calls_last():
    """Calls at random, some of two threads at once: each wait is within its call, and both threads together wait once."""
    rng = np.random.default_rng(0)
    texts = [
        "".join(
            _event(rank, f"{name}{k}", b, d, number=k, net=0, waits=None)
            for k in range(20)
            for name, b, d in (("a", *(rng.random(2) * 90)), ("b", *(rng.random(2) * 90)))
        )
        for rank in range(3)
    ]
    events = aligned(texts)
    for wait in waits(events):
        assert wait.event["ts"] == wait.begin < wait.until <= wait.begin + wait.event["dur"]
    for each in stragglers(events):
        assert 0 < each.waited <= each.seconds and each.waited < sum(each.whom.values())


@pytest.mark.serial
def test_the_root_of_a_broadcast_does_not_wait_for_those_who_come_later():
    assert waits(aligned([_call(0, 0.0, 50.0), _call(1, 5000.0, 20.0)])) == []


@pytest.mark.serial
def test_a_mutex_is_waited_for_until_its_holder_releases_it():
    def mutex(rank, name, begin, length):
        return _event(rank, name, begin, length, role="mutex", mutexes=[2])

    texts = [
        mutex(0, "mutex", 10.0, 90.0),
        mutex(1, "mutex wait", 30.0, 72.0) + mutex(1, "mutex", 102.0, 5.0),
        mutex(2, "mutex wait", 0.0, 2.0),
    ]
    (wait,) = waits(aligned(texts))
    assert (wait.rank, wait.late, wait.until - wait.begin) == (1, 0, 70.0)


@pytest.mark.serial
def test_a_rank_does_not_wait_for_itself_in_a_mutex():
    """Of two threads of a rank one may hold a mutex that the other one asks for."""

    def mutex(rank, name, begin, length):
        return _event(rank, name, begin, length, role="mutex", mutexes=[2])

    own = mutex(1, "mutex", 10.0, 90.0) + mutex(1, "mutex wait", 30.0, 50.0)
    assert waits(aligned([own])) == []
    (wait,) = waits(aligned([mutex(0, "mutex", 5.0, 40.0), own]))
    assert (wait.rank, wait.late) == (1, 0)
