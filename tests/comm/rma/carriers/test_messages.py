"""Rows in messages: one of an edge is under way, and the others are joined."""

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.rma.messenger import Kind

pytestmark = pytest.mark.library


class Watched:
    """A port, which another thread looks at before and after each call."""

    def __init__(self, port, look):
        self._port, self._look = port, look

    def __getattr__(self, name):
        def call(*args):
            self._look(name, False)
            done = getattr(self._port, name)(*args)
            self._look(name, True)
            return done

        return call


def test_a_row_is_waiting_or_under_way_at_every_moment(comm):
    """A helper ships rows at any moment of the main thread, which looks at any moment of the helper."""
    with (
        mpidec.Network(transport="p2p", windows="messages") as net,
        net.window(np.ones(4), T.ring(net.n), progress=False) as win,
    ):
        slots, seen = win._slots, []
        (port,) = slots.agents
        if net.n > 1:
            k = dict.fromkeys(win.out_neighbors, 1.0)
            slots.agents[0] = Watched(
                port,
                lambda name, done: (
                    name == "pop_outbox"
                    and seen.append(
                        (slots.empty, [slots.unread(0, k) for k in range(len(slots.receivers[0]))])
                    )
                ),
            )
            win.accumulate(win.value, dst_weights=k)
            assert seen and not any(empty or 0 in waiting for empty, waiting in seen)
            win.flush()
            assert not any(
                way.under_way for way in slots._connections.edges.values()
            )  # they have arrived
            slots.agents[0] = port
            port.send(None, [1.0, *[None] * (len(k) - 1)], None, True)
            slots.agents[0] = Watched(
                port, lambda name, done: name == "unread" and not done and shipped(slots, port)
            )
            assert not slots.empty
            slots.agents[0] = port
        net.barrier()


def shipped(slots, port):
    now, slots.agents[0] = slots.agents[0], port
    slots.send_outboxes()
    slots.agents[0] = now


def test_rows_that_wait_for_one_under_way_are_joined(comm):
    with (
        mpidec.Network(transport="p2p") as net,
        net.window(np.ones(2), T.ring(net.n), progress=False) as win,
    ):
        weights, send = [1.0] * len(win.out_neighbors), win._records.send
        win.accumulate(np.full(2, 100.0))  # leaves at once
        send(
            np.full(2, 10.0), weights, None, False
        )  # the outbox: a put and three more, before anybody looks
        for _ in range(3):
            send(np.ones(2), weights, None, True)
        net.barrier()
        assert win.versions == dict.fromkeys(win.in_neighbors, 5)
        assert all(win.slot(j).tolist() == [13, 13] for j in win.in_neighbors)
        net.barrier()


def test_a_value_that_is_not_waited_for(net):
    with net.window(np.ones(4), T.ring(net.n)) as win:
        lost = win.transport == "messages"
        if lost:  # it never arrives
            hand = win._messenger._receivers[win._slots.number]
            win._messenger._receivers[win._slots.number] = lambda rank, message: (
                message.kind == Kind.VALUE or hand(rank, message)
            )
        net.barrier()
        under_way = win.start_get()
        net.barrier()
    if not lost:
        under_way.wait()
    else:
        with pytest.raises(
            RuntimeError, match="the window is closed, and the values that were asked for before"
        ):
            under_way.wait()
