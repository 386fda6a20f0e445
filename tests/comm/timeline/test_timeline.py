"""Timelines: names, numbers of calls, and jobs that ask for one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.timelines import texts

import mpidec
from mpidec.comm.timeline import file as files_of_ranks
from mpidec.comm.timeline.merge import read
from mpidec.comm.timeline.timeline import Timeline
from mpidec.exceptions import InputError


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
