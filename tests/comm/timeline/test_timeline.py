"""Timelines: events of all ranks, their order after a merge, who waited for whom, files of jobs that were killed."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import time

import numpy as np
import pytest
from helpers import launch

import mpidec
from mpidec.comm.timeline import events_in_python, file as files_of_ranks
from mpidec.comm.timeline.merge import SHORT, aligned, arrows, files, merge, read, table
from mpidec.comm.timeline.timeline import Timeline
from mpidec.comm.timeline.waits import stragglers, waits
from mpidec.exceptions import InputError

PAUSE = 0.05


@pytest.fixture
def traced(comm, shared_tmp):
    with mpidec.Network(timeline=str(shared_tmp / "t.")) as net:
        yield net


def texts(net, folder):
    """The texts of all ranks, when all of them have come here."""
    net.barrier()
    net.comm.Barrier()  # each has written its events at the first one
    return [(folder / f"t.{rank}.json").read_text() for rank in range(net.size)]


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


def test_without_a_timeline_nothing_is_in_the_way(comm):
    with mpidec.Network() as net:
        assert type(net) is mpidec.Network and net.context.timeline is None
        phase = net.mixer(mpidec.topology.ring(net.n)).at(0)
        assert type(phase).__module__ == "mpidec.comm.mixing.phase"
        assert "_timeline" not in vars(phase)


def test_bluefog_names(comm, shared_tmp, monkeypatch):
    monkeypatch.setenv("BLUEFOG_TIMELINE", str(shared_tmp / "t."))
    with mpidec.Network() as net:
        monkeypatch.delenv("BLUEFOG_TIMELINE")
        net.allreduce(np.ones(2))
        net.start_allgather(np.ones(2)).wait()
        names = [e["name"] for e in read(texts(net, shared_tmp)[net.rank]) if e["ph"] == "X"]
    assert names == [
        f"{stage}_{op}"
        for op in ("ALLREDUCE", "ALLGATHER", "BARRIER")
        for stage in ("ENQUEUE", "MPI")
    ]


def test_steps_and_gradients_of_solve_and_the_command(comm, shared_tmp, monkeypatch, capfd):
    from mpidec.experiment.command import main

    monkeypatch.chdir(shared_tmp)
    words = ["--steps", "4", "--agents", "5", "--out", "a.h5", "--trace", "a.json"]
    assert main([*words, "--set", "solver.step_size=0.1", "--topology", "ring"]) == 0
    if comm.rank == 0:
        events = json.loads((shared_tmp / "a.json").read_text())["traceEvents"]
        for name in ("gradient", "step", "W(X)"):
            for rank in range(comm.size):
                found = [e for e in events if (e["name"], e["pid"]) == (name, rank)]
                assert len(found) >= 4, name
        assert "others waited for it" in capfd.readouterr().out
        assert [path.name for path in shared_tmp.glob("*.json")] == ["a.json"]


def _note(native, path, events=3):
    """What a log writes of calls of one function."""
    log = native.Log(os.open(path, os.O_WRONLY | os.O_CREAT), 7)
    results = iter([None, *[1] * events, ZeroDivisionError])

    def function():
        result = next(results)
        if result is ZeroDivisionError:
            raise result
        return result

    busy = bytearray(1)
    timed = log.timed(function, b', "start": {"n": ', b', "kind": {"n": ', itertools.count(5), busy)
    assert timed() is None and timed() == 1  # the first one has done nothing
    busy[0] = 1
    assert timed() == 1  # a part of another call
    busy[0] = 0
    for _ in range(events - 2):
        timed()
    with pytest.raises(ZeroDivisionError):
        timed()
    log.add(b', "long": {"' + b"x" * 40000 + b'": 1', 1_999, 4_001, -1)
    log.write(b"end\n")
    log.stop()
    log.add(b"late", 0, 0, 0)
    log.write(b"late")
    return [line.rstrip(",") for line in path.read_text().splitlines()]


@pytest.mark.serial
def test_a_log_in_c_and_without_a_compiler(tmp_path):
    for native in (files_of_ranks.native, events_in_python):
        path = tmp_path / native.__name__
        *calls, alone, end = _note(native, path, events=5000)  # more than a ring holds
        calls = [json.loads(line) for line in calls]
        assert len(calls) == 2 * 4999 and end == "end"
        assert [call["start"]["n"] for call in calls[::2]] == list(range(5, 5 + 4999))
        assert [call["kind"]["n"] for call in calls[1::2]] == list(range(5, 5 + 4999))
        assert all(a["ts"] == b["ts"] and a["dur"] == 0 for a, b in zip(calls[::2], calls[1::2]))
        alone = json.loads(alone)
        assert (alone["tid"], alone["ts"], alone["dur"], len(alone["long"])) == (0, 1, 3, 1)


@pytest.mark.serial
def test_a_disk_that_is_full_is_told_once(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)  # the link stands for the disk
    (tmp_path / "t.0.json").symlink_to("/dev/full")
    with mpidec.Network(4, timeline=str(tmp_path / "t.")) as net:
        W = net.mixer(mpidec.topology.ring(4))
        for _ in range(3):
            W(np.ones((4, 2)))
            net.context.timeline.file.flush()
        thread = net.context.timeline.file.writer
        thread.join(launch.patient(10))
        assert not thread.is_alive()
    (line,) = capfd.readouterr().err.splitlines()
    reason = os.strerror(errno.ENOSPC)
    assert line == f"mpidec: the timeline {tmp_path / 't.0.json'} ends here: {reason}"


@pytest.mark.serial
def test_a_process_that_is_killed_leaves_its_events(tmp_path):
    path, child = tmp_path / "t.0.json", os.fork()
    if not child:
        made = files_of_ranks.TimelineFile(str(path), 0)
        made.add(made.kind("a", "b"), 1000, 3000)
        time.sleep(60)
    launch.until(lambda: path.exists() and '"dur":2' in path.read_text(), 10)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    merge([path.read_text()], tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert "a" in {event["name"] for event in events}


@pytest.mark.parametrize("solver", [mpidec.solvers.AsyncPushSum(0.1), mpidec.solvers.A2CiD2(0.1)])
def test_gradients_of_asynchronous_agents(traced, shared_tmp, solver):
    net = traced
    rows = np.eye(net.n)[net.lo : net.hi, None]
    problem = mpidec.problems.LeastSquares(rows, np.ones((net.m, 1)))
    result = mpidec.solve(problem, solver, mpidec.topology.complete(net.n), steps=5, net=net)
    mine = read(texts(net, shared_tmp)[net.rank])
    found = [event for event in mine if event["name"] == "gradient"]
    assert len(found) == result.counts[net.lo : net.hi].sum() and result.counts.sum() >= 5


def test_a_timeline_for_which_there_is_no_space_on_rank_0(comm, shared_tmp):
    from mpidec.experiment.timeline import traced as write

    if comm.rank == 0:
        (shared_tmp / "a.json").symlink_to("/dev/full")
    with mpidec.Network(timeline=str(shared_tmp / "a.")) as net:
        net.barrier()
        with pytest.raises(InputError, match=r"a\.json: No space left .*trace merge \S+/a\."):
            write(net, str(shared_tmp / "a.json"))
    assert "barrier" in (shared_tmp / f"a.{comm.rank}.json").read_text()


def test_a_folder_that_does_not_exist(comm, tmp_path):
    with pytest.raises(OSError, match=r"timeline .*none/t\.: No such file"):
        mpidec.Network(timeline=str(tmp_path / "none" / "t."))


@pytest.mark.mpi(min_size=2)
def test_a_timeline_is_for_all_ranks_or_for_none(comm, shared_tmp):
    with pytest.raises(ValueError, match="timeline is asked for on rank 0 and not asked for on"):
        mpidec.Network(timeline=str(shared_tmp / "t.") if comm.rank == 0 else None)


def _event(rank, name, begin, length, **args):
    about = {"ph": "X", "name": name, "cat": "c", "pid": rank, "tid": 0, "ts": begin, "dur": length}
    return json.dumps({**about, "args": {"net": 1, **args}}) + ",\n"


def _call(rank, begin, length, waits=None):
    return _event(rank, "sum", begin, length, number=1, role="call", key="sum", waits=waits)


def _clock(rank, offset):
    args = {"offset": offset}
    return json.dumps({"ph": "M", "name": "clock", "pid": rank, "tid": 0, "args": args}) + ",\n"


@pytest.mark.serial
def test_clocks_are_aligned_and_a_line_that_was_cut_is_left_out(tmp_path):
    (tmp_path / "t.0.json").write_text(
        "[\n" + _clock(0, 0.0) + _call(0, 1000.0, 300.0) + '{"ph": "X", "na'
    )
    (tmp_path / "t.1.json").write_text("[\n" + _clock(1, -7000.0) + _call(1, 8200.0, 110.0))
    (tmp_path / "t.x.json").write_text("")
    paths = files(str(tmp_path / "t."))
    assert [path[-8:] for path in paths] == ["t.0.json", "t.1.json"]
    waited = merge([open(path).read() for path in paths], tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert [(e["ph"], e["pid"], e["ts"]) for e in events] == [
        ("X", 0, 0.0),
        ("X", 1, 200.0),
        ("s", 1, 200.0),
        ("f", 0, 200.0),
    ]
    assert [row[:3] for row in table(waited)[1:]] == [
        ["0", "66.7%", "rank 1 (100%)"],
        ["1", "0.0%", ""],
    ]


@pytest.mark.serial
def test_arrows_begin_and_end_within_their_events():
    def ends(*texts):
        return [arrow["ts"] for arrow in arrows(aligned(texts))]

    late = _call(1, 100.0, 50.0, [])
    assert ends(_call(0, 0.0, 120.0, [1]), late) == [100.0, 100.0]
    assert ends(_call(0, 0.0, 99.0, [1]), late) == []  # backwards: the clocks are apart
    held = _event(0, "mutex", 0.0, 90.0, role="mutex", mutexes=[2])
    wait = _event(1, "mutex wait", 30.0, 60.0, role="mutex", mutexes=[2])
    assert ends(held, wait) == [89.999, 89.999]  # at 90 another event may begin


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


@pytest.mark.serial
def test_parts_of_a_call_are_no_calls_and_numbers_go_on_after_an_error(tmp_path):
    """Calls within calls, started, waited for, and with an exception: what is written is what the caller began."""
    file = files_of_ranks.TimelineFile(str(tmp_path / "t0.json"), 0)
    line = Timeline(file, 3, [4, 2, 7])

    def fails():
        line.call("inner", None, "", int)
        raise ZeroDivisionError

    def nested():
        assert line.start("inner", None, "", int) == (0, None)
        return line.call("inner", [0], "", line.call, "inner", None, "", int)

    assert line.call("outer", [1, 2], "", nested) == 0
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            line.call("outer", [1], "", fails)
        with pytest.raises(ZeroDivisionError):
            line.start("outer", [1], "", fails)
    _, ended = line.start("outer", None, "", nested)
    _, later = line.start("outer", [2], " 0 1", nested)
    later(files_of_ranks.clock())
    ended(files_of_ranks.clock())
    line.call("other", [0], "", int)
    assert line.names([2, 0]) == (7, 4)
    file.flush()
    written = [
        (e["name"], e["args"].get("key", e["name"]), e["args"]["number"], e["args"]["waits"])
        for e in read((tmp_path / "t0.json").read_text())
        if e["ph"] == "X"
    ]
    assert written == [
        ("outer", "outer", 1, [2, 7]),
        ("outer", "outer", 2, [2]),
        ("start outer", "outer", 3, [2]),
        ("outer", "outer", 4, [2]),
        ("start outer", "outer", 5, [2]),
        ("start outer", "outer", 6, None),
        ("start outer", "outer 0 1", 1, [7]),
        ("wait outer", "outer 0 1", 1, [7]),
        ("wait outer", "outer", 6, None),
        ("other", "other", 1, [4]),
    ]


@pytest.mark.serial
def test_a_timeline_follows_no_link(tmp_path):
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "t0.json").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="symbolic links"):
        files_of_ranks.TimelineFile(str(tmp_path / "t0.json"), 0)
    assert (tmp_path / "kept").read_text() == "mine"


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
def test_arrows_are_for_waits_that_can_be_seen():
    for waited, drawn in (SHORT / 2, 0), (SHORT, 0), (SHORT + 1, 2):
        events = aligned([_call(0, 0.0, 500.0), _call(1, waited, 500.0)])
        assert len(arrows(events)) == drawn and len(waits(events)) == 1
