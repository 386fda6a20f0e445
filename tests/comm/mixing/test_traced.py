"""Networks, mixings and windows that write down what they do."""

from __future__ import annotations

import numpy as np
from helpers.timelines import texts

import mpidec
from mpidec.comm.timeline.merge import read


def test_events_of_all_calls_on_all_ranks(traced, shared_tmp):
    net = traced
    net.set_topology(mpidec.topology.ring(net.n))
    W = net.mixer(mpidec.topology.ring(net.n))
    X = np.arange(6.0).reshape(1, 6) + net.rank
    W(X)
    W({"a": X, "b": X.astype(np.float32)})
    W.start(X).wait()
    x = X[0]
    assert np.allclose(net.allreduce(x), np.arange(6.0) + (net.size - 1) / 2)
    net.neighbor_allreduce(x)
    net.neighbor_allreduce(x.astype(np.float16))
    net.neighbor_allgather(x)
    net.broadcast(x, 0)
    net.allgather(x)
    net.exchange({})
    net.sum(X)
    with net.window(x) as win:
        win.put(x)
        win.accumulate(x)
        win.get()
        win.update()
        win.collect()
        with win.mutex():
            pass
    expected = (
        ["W(X)"] * 2
        + ["start W(X)", "wait W(X)", "allreduce", "neighbor_allreduce", "neighbor_allreduce"]
        + ["neighbor_allgather", "broadcast", "allgather", "exchange", "sum"]
        + ["win put", "win accumulate", "win get", "win update", "win collect"]
        + ["mutex wait", "mutex", "barrier"]
    )
    for rank, text in enumerate(texts(net, shared_tmp)):
        spans = [event for event in read(text) if event["ph"] == "X"]
        assert [event["name"] for event in spans if event["name"] != "gather"] == expected
        assert {event["pid"] for event in spans} == {rank} and {e["tid"] for e in spans} == {0}
        assert all(event["dur"] >= 0 for event in spans)


def test_without_a_timeline_nothing_is_in_the_way(comm):
    with mpidec.Network() as net:
        assert type(net) is mpidec.Network and net.context.timeline is None
        phase = net.mixer(mpidec.topology.ring(net.n)).at(0)
        assert type(phase).__module__ == "mpidec.comm.mixing.phases.phase"
        assert "_timeline" not in vars(phase)


def test_waits_name_the_ranks_of_the_job(comm, shared_tmp):
    """Also those of a network of some of its ranks, in another order."""
    part = comm.Split(comm.rank > 0 or comm.size == 1, -comm.rank)
    with mpidec.Network(comm=part, timeline=f"{shared_tmp}/sub") as net:
        net.mixer(mpidec.topology.complete(net.n))(np.ones((1, 2)))
        net.context.timeline.file.flush()
    named = set(part.allgather(comm.rank)) - {comm.rank}
    part.Free()
    text = (shared_tmp / f"sub{comm.rank}.json").read_text()
    near = [event["args"]["waits"] for event in read(text) if event["name"] == "W(X)"]
    assert near or not named
    assert all(set(ranks) == named for ranks in near)
