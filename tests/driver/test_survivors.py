"""Runs that go on when ranks die (Open MPI), or say that they cannot (MPICH)."""

import os
import re
import sys
import warnings
from collections import namedtuple
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers import launch
from helpers.solvers import least_squares

import mpidec
from mpidec.comm.runtime import MPI, library, survivors
from mpidec.driver.backup import Backup
from mpidec.driver.journal import Journal
from mpidec.driver.stepsize.guard import Guard, Retry
from mpidec.driver.stepsize.search import ModelSearch
from mpidec.driver.survivors import Beginning
from mpidec.exceptions import RanksLost
from mpidec.record.internals import Recorder

pytestmark = [pytest.mark.most(1), pytest.mark.library]

OPEN_MPI = "Open MPI" in library()
FLAGS = "--steps=150 --agents=8 --step-size=0.01 --set=run.checkpoint=0.1 --force".split()
WATCH = "driver.decisions.Control.watch"
CLOSE = "comm.mixing.network.network.Network.close"
MEET = "comm.runtime.agreement.meet"  # while rank 0 reads the arguments
SETTLE = "comm.runtime.survivors.Survivors.settle"
# Of copies in memory.
PAUSE, SHARE = "driver.backup._LEAST", "driver.backup._SHARE"


def command(n, deaths, *flags):
    """Run an experiment on `n` ranks, some of which die."""
    front = [
        launch.mpirun_command(n)[0],
        *(["--with-ft", "ulfm"] if OPEN_MPI else []),
        "-n",
        str(n),
    ]
    program = [sys.executable, os.path.join(launch.ROOT, "tests", "helpers", "dying.py")]
    process = launch.start(
        [*front, *program, *deaths, "--", "run", *FLAGS, *flags], text=True, stdout=-1, stderr=-1
    )
    return launch.finish(process, 120)


def content(path):
    """Return the arrays of a run that do not tell times."""
    arrays = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, it: arrays.update({name: it[()]} if isinstance(it, h5py.Dataset) else {})
        )
        return {
            k: v
            for k, v in arrays.items()
            if k.split("/")[-1] not in ("time", "counters", "seconds")
        }


@pytest.mark.parametrize(
    "solver, deaths",
    [
        ("gradient_tracking", [f"0:{WATCH}:70", f"2:{CLOSE}:1", f"{PAUSE}=0", f"{SHARE}=1"]),
        ("nids", [f"2:{MEET}:1", f"1:{SETTLE}:1"]),
    ],
)
def test_a_run_outlives_its_ranks_with_the_same_bits(solver, deaths):
    if MPI.COMM_WORLD.rank:
        return  # one job at a time
    done = command(3, deaths, "--survive", f"--solver={solver}", "--out=lost.h5")
    if not OPEN_MPI:
        assert "mpidec restart -- mpirun" in done.stderr and done.returncode == 2
        return
    assert done.returncode == 0, done.stderr
    alone = ["-m", "mpidec", "run", *FLAGS, f"--solver={solver}", "--out=whole.h5"]
    launch.mpirun(0, alone, check=True)
    lost, whole = content("lost.h5"), content("whole.h5")
    assert lost.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(lost[name], array, err_msg=name)
    with h5py.File("lost.h5") as file:
        named = " ".join(line.partition(" of ")[0] for line in file.attrs["lost"].splitlines())
        assert set(re.findall(r"\d+", named)) == {one[0] for one in deaths if "=" not in one}
    if solver == "gradient_tracking":
        assert done.stderr.count("go on from step ") == 2


def test_asynchronous_agents_go_on_from_their_last_pause():
    if MPI.COMM_WORLD.rank or not OPEN_MPI:
        return
    deaths = ["1:driver.asynchronous.pushing.PushRunner._event:2000"]
    flags = ["--survive", "--solver=async_push_sum", "--out=agents.h5", "--steps=1500"]
    done = command(2, deaths, *flags)
    assert done.returncode == 0, done.stderr
    with h5py.File("agents.h5") as file:
        assert file.attrs["lost"].startswith("rank 1 of 2")
        assert file["result/x"].attrs["outcome"] == "completed"
        assert file["metrics/step"][-1] >= 1500
        assert re.search(rf"^lost +{re.escape(file.attrs['lost'])}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("died", [40, 100])  # in the attempt that fails, and in that after it
def test_the_step_size_of_a_run_that_goes_on_from_its_file_is_judged_as_before(
    tmp_path, monkeypatch, died
):
    def failing(self, choice, former=ModelSearch.guard):
        guard = former(self, choice)

        def check(k, X):
            Guard.check(guard, k, X)
            if k == 64 and choice.failed == 0:
                raise Retry("told to")

        monkeypatch.setattr(guard, "check", check)
        return guard

    def dies(step, steps, metrics):
        if step == died:
            raise RuntimeError("died")

    def run(**more):
        problem, path = mpidec.problems.LeastSquares(*least_squares(4)[:2]), tmp_path / "run.h5"
        solver = mpidec.solvers.GradientTracking()
        options = {"steps": 200, "every": 20, "seed": 1, "progress": more.pop("progress", None)}
        record = mpidec.Record(path, checkpoint_seconds=0, **more)
        return mpidec.solve(problem, solver, "ring", net=net, record=record, **options)

    monkeypatch.setattr(ModelSearch, "guard", failing)
    with warnings.catch_warnings(), mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        warnings.simplefilter("ignore")
        whole, arrays = run(), content(tmp_path / "run.h5")
        with pytest.raises(RuntimeError, match="died"):
            run(replace=True, progress=dies)
        backup = Backup()
        backup.meet(MPI.COMM_SELF)
        with Beginning(MPI.COMM_SELF, True, str, backup).network(4) as net:
            result = run(resume=True)
    assert "did not converge" in whole.choice.note
    assert (result.step_size, result.choice.note) == (whole.step_size, whole.choice.note)
    np.testing.assert_array_equal(result.X, whole.X)
    for name, array in content(tmp_path / "run.h5").items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def test_asynchronous_agents_that_go_on_from_their_file_are_judged_as_before(tmp_path, monkeypatch):
    def failing(self, choice, former=ModelSearch.guard):
        guard = former(self, choice)
        if choice.failed == 0:
            monkeypatch.setattr(guard, "far", lambda X, strict: "told to")
        return guard

    def dies(step, steps, metrics):
        if step >= 40:
            raise RuntimeError("died")

    def run(net, progress=None, **more):
        problem, solver = (
            mpidec.problems.LeastSquares(*least_squares(4)[:2]),
            "running_sum_tracking",
        )
        record = mpidec.Record(tmp_path / "run.h5", checkpoint_seconds=0, **more)
        options = {"steps": 200, "record": record, "progress": progress}
        return mpidec.solve(problem, solver, "exponential", net=net, **options)

    monkeypatch.setattr(ModelSearch, "guard", failing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mpidec.Network(4, MPI.COMM_SELF) as net, pytest.raises(RuntimeError, match="died"):
            run(net, progress=dies)
        first = mpidec.read(tmp_path / "run.h5").attributes["step_size"]
        backup = Backup()
        backup.meet(MPI.COMM_SELF)
        with Beginning(MPI.COMM_SELF, True, str, backup).network(4) as net:
            result = run(net, resume=True)
    assert result.outcome == "completed" and "did not converge" in result.choice.note
    assert result.step_size == mpidec.read(tmp_path / "run.h5").attributes["step_size"] < first


def test_a_death_is_told_once_whichever_rank_writes_the_file(tmp_path):
    one = "rank 1 of 4, found at 2027-01-12T03:14:15, 3 went on after"
    more = "rank 0 of 4, found at 2027-01-12T03:14:19, 2 went on after 0.5 s"
    problem, path = mpidec.problems.LeastSquares(*least_squares(4)[:2]), tmp_path / "run.h5"
    with mpidec.Network(4, MPI.COMM_SELF) as net:
        for steps, lost in ((10, f"{one} 3.9 s"), (20, f"{one} 4.0 s\n{more}")):
            record = mpidec.Record(path, resume=steps > 10, lost=lost)
            solver = mpidec.solvers.EXTRA(0.01)
            mpidec.solve(problem, solver, "ring", steps=steps, net=net, record=record)
    assert mpidec.read(path).attributes["lost"] == f"{one} 3.9 s\n{more}"


def test_a_run_resumed_with_changes_keeps_no_records_of_the_one_before(tmp_path):
    """Where a rank dies before they are replaced."""
    path, now = tmp_path / "run.h5", namedtuple("State", "X")(np.ones((2, 3)))
    before = {"n": 2, "row_shape": (3,), "metrics": ["error"], "meta": {}, "state": {}}
    with mpidec.record.RunFile(path, **before) as file:
        for k in range(0, 50, 10):
            file.append(k, {"error": 0.0}, np.zeros((2, 3)))
    made = [{"step": k, "error": 1.0} for k in range(10, 60, 10)]
    spec = mpidec.Record(path, resume=True, changed=True)
    with mpidec.Network(2, MPI.COMM_SELF) as net:
        first, again = Recorder(net, spec, now, ()), Recorder(net, spec, now, ())
        first.resume(0, {"created": "today"})
        first.append(10, made[0], now.X)
        first.append(20, made[1], now.X)
        saved = first.saved()
        first.abandon()
        again.rejoin(25, {"created": "later"}, made[:2], {10: now.X, 20: now.X}, saved)
        for record in made[2:]:
            again.append(record["step"], record, now.X)
        again.finish(now.X, "completed", 50)
    run = mpidec.read(path)
    assert run.metrics["step"].tolist() == [*range(0, 60, 10)]
    np.testing.assert_array_equal(run.metrics["error"], [0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(content(path)["trajectory/x"][:, 0, 0], [0, 1, 1, 1, 1, 1])
    assert run.attributes["resumed"] == "step 0, created: today\nstep 25, created: later\n"


@pytest.mark.parametrize("others", [True, False])
def test_all_learn_again_who_is_on_their_hosts_if_some_have_not(monkeypatch, others):
    monkeypatch.setattr(survivors, "cannot_survive", str)
    ranks = survivors.Survivors(MPI.COMM_SELF)
    ranks._pids = {MPI.COMM_WORLD.rank: os.getpid()}
    told = lambda mine: [mine, (*mine[:-1], others)]
    ranks.comm = SimpleNamespace(group=MPI.COMM_SELF.group, size=1, allgather=told, Agree=int)
    ranks.settle()
    assert bool(ranks._pids) == others


def test_those_who_are_left_count_a_death_alike_or_not_at_all(monkeypatch):
    def dies(flag):
        raise RanksLost("a second rank has died, which some have not heard of")

    monkeypatch.setattr(survivors, "cannot_survive", str)
    ranks = survivors.Survivors(MPI.COMM_SELF)
    nobody = MPI.Group.Difference(ranks.comm.group, ranks.comm.group)
    ranks._behind, told = True, lambda mine: [mine]
    ranks.comm = SimpleNamespace(group=nobody, size=1, allgather=told, Agree=dies)
    with pytest.raises(RanksLost, match="a second"):
        ranks.settle()
    assert ranks.behind and ranks._before.size == 1


def test_a_death_is_told_once_in_a_program(monkeypatch):
    monkeypatch.setattr(survivors, "cannot_survive", str)
    monkeypatch.setattr(survivors, "_LOST", ["of the command line", "of the run"])
    monkeypatch.setattr(survivors, "_TOLD", [])
    ranks = survivors.Survivors(survivors.living())
    assert ranks.news() == ["of the command line", "of the run"] and ranks.news() == []
    ranks.lost.append("later")
    assert survivors.Survivors(survivors.living()).news() == ["later"]
    assert survivors.Survivors(MPI.COMM_SELF).news() == []


def test_an_error_that_no_death_explains_comes_through():
    """A loader, for example, that calls a communicator of those who died before."""
    left, tried = iter([2, 2, 2]), []

    def attempt(ranks):
        tried.append(ranks.comm.size)
        raise RanksLost("the communicator has been revoked")

    def shrink():
        ranks.comm.size = next(left)

    names = "watch", "revoke"
    nothing = {name: lambda: None for name in names}
    ranks = SimpleNamespace(
        behind=False, comm=SimpleNamespace(size=3), found=bool, shrink=shrink, **nothing
    )
    with pytest.raises(RanksLost, match="has been revoked"):
        survivors.surviving(attempt, ranks)
    assert tried == [3, 2, 2]


def test_a_run_that_fails_at_its_end_has_closed_its_file(tmp_path, monkeypatch):
    """Those that are left open it again, whatever still holds the exception."""
    problem = mpidec.problems.LeastSquares(*least_squares(4)[:2])
    options = {"steps": 5, "record": tmp_path / "run.h5"}

    def dies(*_):
        raise RanksLost("a rank has died")

    with mpidec.Network(4, MPI.COMM_SELF) as net:
        monkeypatch.setattr(Journal, "finish", dies)
        with pytest.raises(RanksLost) as kept:
            mpidec.solve(problem, "dgd", "ring", net=net, **options)
        monkeypatch.undo()
        assert kept.tb is not None
        options["record"] = mpidec.Record(options["record"], resume=True)
        assert mpidec.solve(problem, "dgd", "ring", net=net, **options).steps == 5


def test_agents_go_on_without_those_that_have_died():
    if MPI.COMM_WORLD.rank or not OPEN_MPI:
        return
    names = ["push_sum", "tracking", "gossip"]
    front = [launch.mpirun_command(4)[0], "--with-ft", "ulfm", "-n", "4", sys.executable]
    path = os.path.join(launch.ROOT, "tests", "programs", "agents_dropped.py")
    done = launch.finish(
        launch.start([*front, path, "3", *names], text=True, stdout=-1, stderr=-1), 120
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines() if "died" in line] == names


def test_a_loader_is_demanded():
    problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), [[1.0], [3.0], [0.0], [4.0]])
    with pytest.raises(TypeError, match="expected a function of the agents"):
        mpidec.solve(problem, "extra", "ring", steps=3, on_failure="continue")
    with (
        mpidec.Network(4, MPI.COMM_SELF) as net,
        pytest.raises(ValueError, match="EXTRA is synchronous, and its agents cannot go on"),
    ):
        mpidec.solve(problem, "extra", "ring", steps=3, net=net, on_failure="drop")
    assert RanksLost("text", [1]).ranks == (1,)
