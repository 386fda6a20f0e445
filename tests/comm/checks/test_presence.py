"""Time-outs of calls of all ranks name those that have not come."""

from types import SimpleNamespace

import pytest

from mpidec.comm.checks import presence
from mpidec.comm.runtime import waiting as progress

pytestmark = pytest.mark.serial


class Post:
    """Messengers of ranks of one process."""

    def __init__(self, size):
        self.sent, self.ranks = [], []
        for rank in range(size):
            comm = SimpleNamespace(rank=rank, size=size)
            send = lambda dest, header, rank=rank: self.sent.append((rank, dest, header.text))
            self.ranks.append(presence.Presence(SimpleNamespace(comm=comm, send=send)))

    def deliver(self):
        while self.sent:
            source, dest, text = self.sent.pop(0)
            self.ranks[dest].receive(source, text)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_only_those_that_have_not_come_are_named(missing, monkeypatch):
    monkeypatch.setenv("MPIDEC_TIMEOUT", "10")
    clock = [0.0]
    monkeypatch.setattr(presence, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    post, asked = Post(4), []
    waits = {
        r: post.ranks[r].waiting("net.agree", "to come", lambda: asked.append(1))
        for r in range(4)
        if r != missing
    }
    for _, ask in waits.values():
        ask()
    assert not post.sent and len(asked) == 3  # a short wait sends nothing
    clock[0] = 2.1
    waits[max(waits)][1]()  # one is late enough to tell all: the others answer
    post.deliver()
    assert waits[max(waits)][0]() == f"rank {missing} to come"
    clock[0] = 9.0
    for _, ask in waits.values():
        ask()
        post.deliver()
    assert {words() for words, _ in waits.values()} == {f"rank {missing} to come"}


def test_a_time_out_that_is_changed_counts_at_the_next_poll(monkeypatch):
    monkeypatch.setenv("MPIDEC_TIMEOUT", "1000")
    clock, expired = [0.0], []
    stopped = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr(presence, "time", stopped)
    monkeypatch.setattr(progress, "time", stopped)
    monkeypatch.setattr(progress, "expire", lambda what, waited: expired.append(waited))
    post = Post(2)
    words, ask = post.ranks[0].waiting("net.agree", "to come", None)
    monitor = progress.WaitMonitor(words, ask)
    clock[0] = 11.0
    monitor.poll()
    assert not post.sent and not expired
    monkeypatch.setenv("MPIDEC_TIMEOUT", "20")
    for clock[0] in (19.0, 21.0, 31.0):
        monitor.poll()
    assert post.sent and expired


def test_an_earlier_call_is_another_one(monkeypatch):
    monkeypatch.setenv("MPIDEC_TIMEOUT", "10")
    post = Post(2)
    monkeypatch.setattr(presence, "_PART", -1)
    post.ranks[0].waiting("a", "to come", None)[1]()
    post.deliver()
    words, _ = post.ranks[1].waiting("a", "to come", None)
    assert words() == "all ranks to come"
    words, _ = post.ranks[1].waiting("a", "to come", None)
    assert words() == "rank 0 to come"
