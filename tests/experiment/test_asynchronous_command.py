"""Asynchronous solvers on the command line: on ranks in wall time, simulated, their files and figures."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from helpers import launch
from helpers.commands import prepared
from helpers.sets import first

import mpidec
from mpidec import plot, record
from mpidec.experiment import command as run
from mpidec.experiment.summary import async_rows
from mpidec.plot.command import main as plotted
from mpidec.sweep.command import main as swept

pytestmark = pytest.mark.serial
SMALL = [
    "--problem=least_squares",
    "--data=synthetic_least_squares",
    "--set=problem.p=4",
    "--set=problem.d=3",
]
SOLVERS = ["async_push_sum", "pairwise_gossip", "a2cid2", "running_sum_tracking"]
PUSH = ("async_push_sum", "running_sum_tracking")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(capsys, argv: list[str], text: str) -> None:
    """Check that a command line is refused in one line."""
    assert run.main(argv) == 2, argv
    said = capsys.readouterr()
    assert said.out == "" and text in said.err and said.err.count("\n") == 1, said


@pytest.mark.parametrize("simulated", [False, True], ids=["on ranks", "simulated"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_runs_by_its_name_and_tells_what_its_agents_have_done(
    capsys, solver, simulated
):
    assert (
        run.main(
            [*SMALL, "--solver", solver, "--agents=4", "--steps=60", *["--simulate"] * simulated]
        )
        == 0
    )
    said = capsys.readouterr()
    assert (
        said.err == ""
        and "per agent " in said.out
        and "messages " in said.out
        and ("idle " in said.out) is not simulated
    )
    found = record.read("run.h5")
    assert found.attributes["clock"] == ("simulated" if simulated else "seconds")
    assert (
        found.metrics["objective"][-1] < found.metrics["objective"][0]
        and found.metrics["step"][-1] == found.steps >= 60
    )
    done, last = found.asynchronous, {name: values[-1] for name, values in found.metrics.items()}
    assert done.keys() == {
        "steps",
        *(["staleness"] if solver in PUSH else ["edges", "averagings"]),
        *["idle"] * (not simulated),
    }
    assert done["steps"].sum() == last["events" if not simulated or solver in PUSH else "gradients"]
    if solver not in PUSH:
        assert 2 * done["averagings"].sum() == last["messages"] and done["edges"].tolist() == [
            [0, 1],
            [0, 3],
            [1, 2],
            [2, 3],
        ]
    assert (np.diff(found.metrics["time"]) > 0).all() and (np.diff(found.metrics["step"]) > 0).all()


def test_the_text_in_the_file_repeats_a_simulated_run_exactly():
    assert (
        run.main(
            [
                *SMALL,
                "--solver=running_sum_tracking",
                "--simulate",
                "--delay=0,2",
                "--drop=0.3",
                "--straggler=0:3",
                "--straggler=2:1",
                "--agents=5",
                "--steps=200",
                "--seed=3",
                "--quiet",
            ]
        )
        == 0
    )
    Path("again.toml").write_text(record.read("run.h5").config)
    assert "straggler = " in Path("again.toml").read_text()
    assert run.main(["again.toml", "--out=again.h5", "--quiet"]) == 0
    one, other = record.read("run.h5"), record.read("again.h5")
    assert all(np.array_equal(one.metrics[name], other.metrics[name]) for name in one.metrics)
    assert np.array_equal(one.x, other.x) and np.array_equal(
        one.trajectory()[1], other.trajectory()[1]
    )
    steps = one.asynchronous["steps"]
    assert abs(steps[0] / steps[1] - 1 / 4) < 0.08 and abs(steps[2] / steps[1] - 1 / 2) < 0.15


def test_a_simulated_run_stops_at_its_target_and_one_on_ranks_is_judged_at_its_end(capsys):
    tracking = [*SMALL, "--solver=running_sum_tracking", "--agents=4", "--step-size=0.02"]
    assert (
        run.main([*tracking, "--simulate", "--steps=5000", "--stop-error=1e-3", "--out=s.h5"]) == 0
    )
    stopped = record.read("s.h5")
    assert (
        stopped.outcome == "stopped"
        and stopped.steps < 5000
        and stopped.metrics["error"][-1] <= 1e-3
    )
    assert run.main([*tracking, "--simulate", "--steps=20", "--stop-error=1e-3", "--out=m.h5"]) == 4
    assert (
        run.main([*tracking, f"--steps={2 * stopped.steps}", "--stop-error=1e-3", "--out=w.h5"])
        == 0
    )
    assert record.read("w.h5").outcome == "stopped"
    capsys.readouterr()
    assert run.main([*tracking, "--steps=20", "--stop-error=1e-3", "--out=v.h5"]) == 4
    said = capsys.readouterr()
    assert (
        record.read("v.h5").outcome == "missed"
        and "target 0.001 missed" in said.err
        and said.err.count("\n") == 1
    )


def test_a_resumed_run_goes_on_with_its_time_and_its_counts():
    gossip = [*SMALL, "--solver=a2cid2", "--agents=4", "--quiet", "--steps=100"]
    assert run.main(gossip) == 0
    first, (_, state) = record.read("run.h5"), record.last_checkpoint("run.h5")
    assert run.main(["--resume=run.h5", f"--steps={first.steps + 3}", "--quiet"]) == 0
    assert (
        record.last_checkpoint("run.h5")[1]["t"].max() < state["t"].min()
    )  # the clocks, and with them the mixing, begin anew
    assert run.main(["--resume=run.h5", "--steps=300", "--quiet"]) == 0
    whole = record.read("run.h5")
    assert whole.outcome == "completed" and whole.steps >= 300
    kept = len(first.metrics["step"])
    for name in ("time", "events", "messages", "bytes", "gradients"):
        assert np.array_equal(whole.metrics[name][:kept], first.metrics[name])
        assert (np.diff(whole.metrics[name]) >= 0).all(), name
    done = whole.asynchronous
    assert done["steps"].sum() == whole.metrics["events"][-1] >= 1200
    assert 2 * done["averagings"].sum() == whole.metrics["messages"][-1]


@pytest.mark.parametrize(
    "argv, text",
    [
        (
            ["--delay=-1"],
            "--delay: expected a number >= 0, or two: LOW,HIGH with 0 <= LOW <= HIGH, got '-1'",
        ),
        (
            ["--delay=2,1"],
            "--delay: expected a number >= 0, or two: LOW,HIGH with 0 <= LOW <= HIGH, got '2,1'",
        ),
        (["--drop=1"], "--drop: expected a probability >= 0 and < 1, got '1'"),
        (["--straggler=4:1"], "--straggler: agent 4 is unknown, expected 0 .. 3"),
        (["--straggler=half"], "--straggler: expected AGENT:SECONDS, such as 0:0.5"),
        (["--straggler=0:1,0:2"], "--straggler: agent 0 is given twice"),
        (
            ["--set=mixing.codec=qsgd"],
            "--set mixing.codec: a2cid2 has no mixings that this could change: omit it",
        ),
        (["--topology=one_peer_exponential"], "A2CiD2 needs a constant graph"),
        (
            ["--solver=dgd", "--delay=1"],
            "--delay: dgd is synchronous: omit it, or use an asynchronous solver: async_push_sum",
        ),
        (["--solver=dgd", "--simulate"], "--simulate: dgd is synchronous: omit it"),
    ],
)
def test_wrong_flags_are_one_line(capsys, argv, text):
    refused(capsys, [*SMALL, "--solver=a2cid2", "--agents=4", "--steps=5", *argv], text)


def test_tune_prints_the_step_sizes_of_a_run(capsys):
    faults = ["--solver=a2cid2", "--agents=4", "--steps=20", "--straggler=0:9", "--delay=1"]
    assert run.main([*SMALL, *faults, "--simulate", "--quiet", "--out=tuned.h5"]) in (0, 1)
    size = float(record.read("tuned.h5").attributes["step_size"])
    capsys.readouterr()
    assert run.TUNE.main([*SMALL, *faults, "--simulate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"step size {size:.4g} (auto: error" in lines[-1]


def test_another_solver_drops_what_a_file_sets_for_the_other_kind():
    Path("own.toml").write_text(
        '[solver]\nname = "a2cid2"\n[run]\ndelay = [0.0, 0.1]\nsimulate = true\nstraggler = "0:1"\n'
    )
    Path("common.toml").write_text('[solver]\nname = "dgd"\n[mixing]\ncodec = "qsgd"\nlevels = 4\n')
    common = prepared(["own.toml", "--solver=dgd"], 1)[0]
    assert common.run.delay is common.run.simulate is common.run.straggler is None
    own = prepared(["common.toml", "--solver=a2cid2"], 1)[0]
    assert own.mixing.codec is None and "[mixing]" not in own.to_toml()
    assert (
        prepared(["common.toml", "--solver=a2cid2", "--set=solver.rate=2"], 1)[0].solver.options[
            "rate"
        ]
        == 2.0
    )


def test_a_simulated_run_is_resumed():
    common = ["--agents=4", "--quiet", "--solver=a2cid2", "--step-size=0.01", "--simulate"]
    assert run.main([*SMALL, *common, "--steps=5", "--delay=2"]) == 0
    assert run.main(["--resume=run.h5", "--steps=40", "--quiet"]) == 0
    assert run.main([*SMALL, *common, "--steps=40", "--delay=2", "--out=whole.h5"]) == 0
    np.testing.assert_array_equal(record.read("run.h5").x, record.read("whole.h5").x)


@pytest.mark.parametrize(
    "solver, flags, text",
    [
        (
            "a2cid2",
            [],
            "interrupted after step {}: continue with python -m mpidec.run --resume run.h5",
        ),
        (
            "running_sum_tracking",
            [],
            "interrupted after step {}: continue with python -m mpidec.run --resume run.h5",
        ),
        (
            "a2cid2",
            ["--simulate"],
            "interrupted after step {}: continue with python -m mpidec.run --resume run.h5",
        ),
    ],
    ids=["pairwise", "push", "simulated"],
)
def test_an_interrupt_completes_the_file_and_says_how_to_go_on(
    capsys, monkeypatch, solver, flags, text
):
    calls = iter(range(10**9))
    plain = mpidec.problems.LeastSquares.grad

    def grad(self, X, agents=None):
        if next(calls) == 500:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, X) if agents is None else plain(self, X, agents)

    monkeypatch.setattr(mpidec.problems.LeastSquares, "grad", grad)
    assert (
        run.main([*SMALL, "--solver", solver, "--agents=4", "--steps=1000000", "--quiet", *flags])
        == 130
    )
    found = record.read("run.h5")
    assert capsys.readouterr().err == f"mpidec.run: {text.format(found.steps)}\n"
    assert (
        found.outcome == "interrupted"
        and 0 < found.steps < 1000000
        and found.asynchronous["steps"].sum() > 300
    )


def test_progress_is_told_during_a_run_on_ranks():
    told = []
    x0 = np.eye(4)
    mpidec.solve(
        None,
        "async_push_sum",
        "ring",
        steps=40,
        x0=x0,
        straggler=dict.fromkeys(range(4), 0.005),
        progress=lambda *args: told.append(args),
    )
    steps = [step for step, _, _ in told]
    assert (
        len(told) >= 3 and steps == sorted(set(steps)) and all(total == 40 for _, total, _ in told)
    )
    assert told[-1][2]["time"] > 0.1 and told[-1][2]["events"] > 40


def test_a_sweep_of_asynchronous_solvers(capsys):
    vary = [
        *SMALL,
        "--vary=solver.name=a2cid2,running_sum_tracking",
        "--vary=run.drop=0,0.2",
        "--simulate",
        "--agents=4",
        "--steps=50",
    ]
    assert swept(vary) == 0
    assert "4 runs" in (said := capsys.readouterr().out) and "units of their own time" in said
    assert "and simulated time until" in said and " seconds " not in said.split("4 runs")[-1]
    assert "simulated_time_mean" in Path("sweep/table.csv").read_text()
    assert record.read("sweep/a2cid2-drop=0.2.h5").outcome == "completed"


def test_figures(capsys):
    pytest.importorskip("matplotlib")
    for out, flags in (
        ("w.h5", ["--solver=a2cid2"]),
        ("p.h5", ["--solver=async_push_sum"]),
        ("s.h5", ["--solver=a2cid2", "--simulate"]),
        ("g.h5", ["--step-size=0.01"]),
    ):
        assert (
            run.main([*SMALL, *flags, "--agents=4", "--steps=40", "--quiet", f"--out={out}"]) == 0
        )
    labels = [axes.get_xlabel() for axes in plot.figure(["w.h5", "g.h5"], y="error").axes]
    assert labels == ["seconds"]
    assert [axes.get_xlabel() for axes in plot.figure("s.h5", y="error").axes] == [
        "simulated time, gradients of an agent"
    ]
    assert [axes.get_xlabel() for axes in plot.figure(["s.h5", "w.h5"], y="error").axes] == [
        "steps"
    ]
    gradients = plot.figure(["w.h5", "g.h5"], x="gradients", y="error").axes[0].get_lines()
    assert [40 <= line.get_xdata()[-1] < 80 for line in gradients] == [
        True,
        True,
    ]  # of an agent, not of all of them
    drawn = plot.agents(["w.h5", "p.h5", "s.h5"])
    found = "messages of a sender found at a reading"
    assert [axes.get_xlabel() for axes in drawn.axes] == [
        "agent",
        "edge",
        "rank",
        "agent",
        found,
        "rank",
        "agent",
        "edge",
    ]
    heights = [bar.get_height() for bar in drawn.axes[0].patches]
    assert heights == record.read("w.h5").asynchronous["steps"].tolist()
    assert (
        plotted(["w.h5", "p.h5", "--kind=agents", "-o", "a.pdf"]) == 0
        and Path("a.pdf").read_bytes()[:4] == b"%PDF"
    )
    capsys.readouterr()
    for argv, text in (
        (
            ["g.h5", "--kind=agents"],
            "g.h5 is synchronous: the figure of agents shows asynchronous runs",
        ),
        (["w.h5", "--kind=agents", "--x", "steps"], "--x has no effect with --kind agents"),
        (["s.h5", "--x", "seconds"], "s.h5 is a simulated run, whose time is not in seconds"),
        (["g.h5", "--x", "time"], "g.h5 is not a simulated run: use the x axis seconds or steps"),
    ):
        status = plotted(argv)
        said = capsys.readouterr()
        assert status == 2 and said.out == "" and text in said.err and said.err.count("\n") == 1


# -- launched ---------------------------------------------------------------------------------------------------------


@pytest.mark.launch
def test_a_straggler_on_three_ranks():
    done = launch.mpirun(
        3,
        [
            "-m",
            "mpidec.run",
            *SMALL,
            "--solver=a2cid2",
            "--topology=ring",
            "--steps=40",
            "--straggler=0:0.2",
        ],
        check=True,
    )
    found = record.read("run.h5")
    steps = found.asynchronous["steps"]
    assert (
        len(steps) == 3
        and steps.sum() >= 120
        and "stragglers " in done.stdout
        and found.attributes["ranks"] == 3
    )
    idle = found.asynchronous["idle"]
    assert (
        idle.shape == (3,)
        and (idle >= 0).all()
        and (idle <= 1).all()
        and (np.diff(found.metrics["time"]) > 0).all()
    )
    more = launch.mpirun(
        2, ["-m", "mpidec.run", "--resume=run.h5", "--steps=60", "--quiet"], check=True
    )
    assert record.read("run.h5").asynchronous["steps"].sum() >= 180
    assert (
        more.stderr.count("\n") == 1
        and "the 2 agents of rank 0 take turns, and agent 0 delays the others" in more.stderr
    )


@pytest.mark.launch
@pytest.mark.parametrize("solver", first(["a2cid2", "running_sum_tracking"]))
def test_ranks_without_agents_and_agents_of_different_degrees(solver):
    launch.mpirun(
        3,
        ["-m", "mpidec.run", *SMALL, "--solver", solver, "--agents=2", "--steps=20", "--quiet"],
        check=True,
    )
    assert record.read("run.h5").asynchronous["idle"].shape == (3,)
    launch.mpirun(
        2,
        [
            "-m",
            "mpidec.run",
            *SMALL,
            "--solver",
            solver,
            "--agents=4",
            "--topology=star",
            "--steps=20",
            "--quiet",
        ],
        check=True,
    )
    assert record.read("run-2.h5").outcome == "completed"


@pytest.mark.launch
def test_wrong_flags_on_two_ranks_are_one_line():
    for argv, text in (
        (["--drop=2"], "--drop: expected a probability"),
        (["--simulate"], "job has 2: start it without mpirun"),
    ):
        done = launch.mpirun(2, ["-m", "mpidec.run", "--solver=a2cid2", *argv])
        assert (
            done.returncode == 2
            and done.stderr.count("mpidec.run: error:") == done.stderr.count(text) == 1
        ), done.stderr


FAULT = """
import sys
from mpi4py import MPI
from mpidec.experiment import command as run; from mpidec import solvers
plain, count = solvers.A2CiD2.descend, [0]
def descend(self, s, g, t):
    count[0] += 1
    if count[0] == 50 and MPI.COMM_WORLD.rank == 2:
        raise ZeroDivisionError("a fault of rank 2")
    return plain(self, s, g, t)
solvers.A2CiD2.descend = descend
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.launch
def test_a_fault_of_one_rank_is_in_the_file():
    done = launch.mpirun(3, ["-c", FAULT, *SMALL, "--solver=a2cid2", "--steps=1000000"], timeout=60)
    assert (
        done.returncode not in (0, 2)
        and "[rank 2] ZeroDivisionError: a fault of rank 2" in done.stderr
    )
    found = record.read("run.h5")
    assert (found.outcome, found.reason) == ("failed", "ZeroDivisionError: a fault of rank 2")


KILLED = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import mpidec
plain, due = mpidec.problems.LeastSquares.grad, 0.0
def grad(self, X, agents=None):
    global due
    if MPI.COMM_WORLD.rank == 1 and time.monotonic() > due and os.path.exists("run.h5"):
        due = time.monotonic() + 0.1
        if len(mpidec.read("run.h5").metrics["step"]) >= 5:
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.001)
    return plain(self, X) if agents is None else plain(self, X, agents)
mpidec.problems.LeastSquares.grad = grad
rng = np.random.default_rng(MPI.COMM_WORLD.rank)
problem = mpidec.problems.LeastSquares(rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4)))
mpidec.solve(problem, sys.argv[1], "ring", steps=10**6, record=mpidec.Record("run.h5", flush_seconds=0.1))
"""


LIMITED = """
import os, resource, signal, sys
from mpi4py import MPI
from mpidec.experiment import command as run
from mpidec.driver.asynchronous.files import SnapshotRecords
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
plain = SnapshotRecords.finish
def written(*args):
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize("run.h5") // 2, resource.RLIM_INFINITY))
    return plain(*args)
SnapshotRecords.finish = written
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.launch
@pytest.mark.parametrize("solver", first(["a2cid2", "running_sum_tracking"]))
def test_a_killed_run_leaves_its_records(solver):
    launch.mpirun(2, ["-c", KILLED, solver], timeout=60)
    found = record.read("run.h5")
    assert found.outcome == "running" and len(found.metrics["step"]) >= 5
    assert (np.diff(found.metrics["step"]) > 0).all() and found.metrics[
        "consensus"
    ].shape == found.metrics["time"].shape


@pytest.mark.launch
@pytest.mark.parametrize("solver", first(["running_sum_tracking", "a2cid2"]))
def test_a_disk_that_is_full_at_the_end_is_told_in_one_line(solver):
    done = launch.mpirun(2, ["-c", LIMITED, *SMALL, "--solver", solver, "--steps=2000"], timeout=60)
    said = [line for line in done.stderr.splitlines() if "mpidec.run: error:" in line]
    assert done.returncode == 1 and len(said) == 1 and "Traceback" not in done.stderr, done.stderr
    assert said[0].endswith(
        "; then continue with mpirun -n 2 python -m mpidec.run --resume run.h5"
    ), said
    found = record.read("run.h5")
    assert found.metrics["step"][0] == 0 and found.outcome in ("failed", "running")


@pytest.mark.serial
def test_numbers_of_averagings_are_those_of_the_messages():
    """Each averaging is two messages, and one of each of its agents."""
    problem = mpidec.problems.LeastSquares(np.ones((6, 1, 1)), np.arange(6.0)[:, None])
    for rate in (0.5, 3.0):
        solver = mpidec.solvers.A2CiD2(0.01, rate=rate)
        made = mpidec.simulate(problem, solver, mpidec.topology.ring(6), steps=60)
        rows, counts = async_rows(made), made.counts.sum()
        messages = int(made.metrics["messages"][-1])
        assert rows["messages"].startswith(f"{messages} ({messages / counts:.3g} per")
        assert float(rows["averagings"].split()[0]) == pytest.approx(messages / counts, rel=1e-3)
