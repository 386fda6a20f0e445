"""The command line: in this process, and launched for real."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import launch
from helpers.commands import prepared
from helpers.sets import first
from mpi4py import MPI

from mpidec import record, topology
from mpidec.cli import progress as report
from mpidec.driver import provenance as _attributes
from mpidec.experiment import command as run
from mpidec.experiment.settings import FLAGS

pytestmark = pytest.mark.serial
SMALL = [
    "--problem=least_squares",
    "--data=synthetic_least_squares",
    "--set=problem.p=4",
    "--set=problem.d=3",
]
RING = ["--solver=dgd", "--topology=ring", "--step-size=0.01"]
LONG = [*SMALL, "--agents=8", "--steps=100000000", "--every=200", "--step-size=0.01"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(text: str) -> dict[str, str]:
    """Return the summary table as name -> value."""
    found = (re.match(r"(\w+(?: \w+)?)\s{2,}(.+)", line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match}


def same(one: str, other: str) -> bool:
    """Whether two files hold the same trajectory, result and metrics, bit for bit, but for the clock."""
    with h5py.File(one) as a, h5py.File(other) as b:
        names = [
            "trajectory/x",
            "trajectory/step",
            "result/x",
            *(f"metrics/{name}" for name in a["metrics"] if name != "time"),
        ]
        return all(np.array_equal(a[name][...], b[name][...]) for name in names)


def started(path: Path, process: subprocess.Popen) -> None:
    """Wait until the run that `process` makes has flushed some records to `path`."""

    def recorded() -> bool:
        return path.exists() and len(record.read(path).metrics["step"]) > 2

    launch.until(lambda: recorded() or process.poll() is not None, 60)
    assert recorded(), f"nothing was recorded: {launch.finish(process, 1)}"


def launched(n: int, args: list[str]) -> subprocess.Popen:
    command = [*launch.mpirun_command(n), sys.executable, "-m", "mpidec.run", *args]
    return launch.start(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# -- in this process --------------------------------------------------------------------------------------------------


def test_the_default_experiment_reaches_its_goal(capsys):
    pytest.importorskip("sklearn")
    assert run.main([]) == 0
    table = rows(capsys.readouterr().out)
    assert (
        table["outcome"].startswith("stopped")
        and float(table["error"]) <= 1e-8
        and table["file"] == "run.h5"
    )
    assert {
        "problem",
        "data",
        "agents",
        "topology",
        "solver",
        "steps",
        "objective",
        "gradient norm",
        "consensus",
        "time",
        "sent",
    } <= table.keys()
    with h5py.File("run.h5") as file:
        assert file["result/x"].shape == (16, 30) and file["metrics/error"][-1] <= 1e-8
        assert file["result/x"].attrs["outcome"] == "stopped"


def test_the_text_in_a_file_reruns_it(capsys):
    assert (
        run.main(
            [
                *SMALL,
                "--steps=30",
                "--solver=dgd",
                "--seed=3",
                "--set=problem.noise=0.1",
                "--agents=5",
            ]
        )
        == 0
    )
    Path("again.toml").write_text(record.read("run.h5").config)
    assert run.main(["again.toml", "--out", "again.h5"]) == 0
    assert same("run.h5", "again.h5")
    assert (
        record.read("again.h5").config.replace("again.h5", "run.h5")
        == Path("again.toml").read_text()
    )


@pytest.mark.parametrize(
    "solver",
    [
        "gradient_tracking",
        "dgd",
        "diffusion",
        "extra",
        "exact_diffusion",
        "push_sum",
        "osgp",
        "push_diging",
        "relaysgd",
        "dsgd_ceca",
        "consensus",
        "decentralized_momentum",
        "quasi_global_momentum",
        "decentlam",
        "local_dgd",
        "slowmo",
        "diloco",
        "gasloc",
        "noloco",
        "kgt",
        "led",
    ],
)
def test_every_solver_runs_safely_by_its_name_alone(solver, capsys):
    assert run.main([*SMALL, "--solver", solver, "--steps=200", "--agents=6"]) == 0
    values = record.read("run.h5").metrics
    goal = "consensus" if solver == "consensus" else "objective"
    assert values[goal][-1] < values[goal][0]


def test_problems_without_a_known_solution_run(capsys):
    np.savez("separable.npz", A=[[1.0], [2.0], [-1.0], [-2.0]], y=[1, 1, -1, -1])
    assert run.main(["--data=separable.npz", "--set=problem.l2=0", "--agents=2", "--steps=20"]) == 0
    table = rows(capsys.readouterr().out)
    assert "error" not in table and "no finite minimizer" in table["note"]


def test_batches_and_noise(capsys):
    assert (
        run.main(
            [
                *SMALL,
                "--steps=10",
                "--set=problem.batch_size=2",
                "--set=problem.noise=0.1",
                "--agents=4",
            ]
        )
        == 0
    )


def test_divergence_is_an_outcome(capsys):
    assert run.main([*SMALL, "--steps=2000", "--step-size=100"]) == 3
    said = capsys.readouterr()
    assert (
        rows(said.out)["outcome"].startswith("diverged at step")
        and "step size smaller than" in said.err
    )
    assert record.read("run.h5").outcome == "diverged"


def test_a_graph_that_no_step_size_can_cure_is_said_once(capsys):
    args = [
        *SMALL[:2],
        "--set=problem.p=2",
        "--set=problem.d=9",
        "--solver=extra",
        "--topology=exponential",
        "--steps=2000",
    ]
    assert run.main(args) == 2
    said = capsys.readouterr().err
    assert (
        said.count("\n") == said.count("unstable on the exponential topology") == 1
        and "undirected graph" in said
    )
    assert run.main([*args, "--step-size=0.001"]) == 3
    said = capsys.readouterr().err
    assert re.search(
        r"\nmpidec.run: diverged at step .* the likely cause is the graph, on which EXTRA is unstable.*\n$",
        said,
    )
    assert "smaller" not in said


@pytest.mark.parametrize(
    "argv, text",
    [
        (["--step-size=0.1"], "--step-size 0.1: a search finds the step size: omit it"),
        (["--step-size=safe"], "omit it"),
        (["--set=solver.step_size=inverse(0.1)"], "such as inverse(auto)"),
        (["--set=run.out=a.h5"], "run.out a.h5: a search writes no run"),
        (["--out=a.h5"], "-o a.h5: expected a name that ends in one of"),
        (["--resume=a.h5"], "omit one of them"),
        (["--topology=rings"], "did you mean ring?"),
    ],
)
def test_a_search_refuses_what_it_would_ignore(capsys, argv, text):
    assert run.TUNE.main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("mpidec.tune: error: ") and text in said and said.count("\n") == 1


def test_a_search_takes_schedules_that_start_at_auto(capsys):
    assert (
        run.main(
            [
                *SMALL,
                "--tune",
                "--solver=dgd",
                "--step-size=inverse(delay=20)",
                "--agents=4",
                "--steps=50",
            ]
        )
        == 0
    )
    assert "<- chosen" in capsys.readouterr().out


def test_a_missed_target_has_its_own_status_and_says_the_cause(capsys):
    assert (
        run.main([*SMALL, "--agents=4", "--steps=30", "--step-size=0.01", "--stop-error=1e-12"])
        == 4
    )
    said = capsys.readouterr()
    assert rows(said.out)["outcome"] == "missed: error > 1e-12 after 30 steps"
    assert re.fullmatch(
        r"mpidec.run: error \S+ after 30 steps, target 1e-12 missed: .*more steps.*\n", said.err
    )
    assert record.read("run.h5").outcome == "missed"


def test_a_run_stops_at_limits_of_any_metrics(capsys):
    """An accuracy is to be at least its limit; all limits are reached at one record."""
    held = ["--agents=4", "--every=1", "--set=problem.test=0.25", "--stop=accuracy=0.95"]
    quiet = ["--set=run.progress=none", "--force"]
    assert run.main([*held, *quiet, "--stop=consensus=0.02"]) == 0
    said = "accuracy >= 0.95 and consensus <= 0.02"
    assert rows(capsys.readouterr().out)["outcome"].endswith(said)
    metrics = record.read("run.h5").metrics
    reached = (metrics["accuracy"] >= 0.95) & (metrics["consensus"] <= 0.02)
    assert reached[-1] and not reached[:-1].any() and len(reached) > 2
    assert run.main([*held, *quiet, "--stop=accuracy_worst=1"]) == 2
    assert "metric 'accuracy_worst', expected one of accuracy, " in capsys.readouterr().err
    assert run.main(["--steps=5", *held[:-1], *quiet, "--stop=accuracy=1.5"]) == 4
    assert rows(capsys.readouterr().out)["outcome"] == "missed: accuracy < 1.5 after 5 steps"
    more = ["--resume=run.h5", "--steps=400", "--stop=accuracy=0.97", quiet[0]]
    assert run.main(more) == 0 and record.read("run.h5").outcome == "stopped"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--stop=accuracy"], "--stop: expected METRIC=VALUE, got 'accuracy'"),
        (["--stop=error=1e-3", "--stop=error=1"], "--stop: the metric error is given twice"),
        (["--set=run.stop=error=small"], "--set run.stop: expected METRIC=VALUE"),
    ],
)
def test_what_is_no_limit_is_refused(capsys, flags, says):
    assert run.main([*flags, "--agents=4"]) == 2
    assert says in capsys.readouterr().err


def test_a_completed_run_says_what_has_become_of_its_error(capsys):
    assert run.main([*SMALL, "--agents=4", "--steps=400", "--solver=dgd", "--step-size=0.05"]) == 0
    table = rows(capsys.readouterr().out)
    said = r"completed: error_rms has plateaued at (\S+) since step (\d+)"
    found = re.fullmatch(said, table["outcome"])
    assert found, table
    errors = record.read("run.h5").metrics["error_rms"]
    np.testing.assert_allclose(errors[int(found[2]) // 10 :], float(found[1]), rtol=0.03)
    assert errors[int(found[2]) // 20] > 1.01 * errors[-1]


def test_an_explosion_is_divergence(capsys):
    assert run.main([*SMALL, "--agents=4", "--steps=40", "--step-size=100"]) == 3
    said = capsys.readouterr()
    assert (
        said.err.startswith("mpidec.run: diverged at step 40: the objective grew from")
        and said.err.count("\n") == 1
    )


def test_no_file_is_replaced_silently(capsys):
    small = [*SMALL, "--agents=4", "--quiet"]
    for name, steps in (
        ("run.h5", 3),
        ("run-2.h5", 4),
        ("run-3.h5", 5),
    ):  # the default name counts up
        assert run.main([*small, f"--steps={steps}"]) == 0
        assert record.read(name).steps == steps
    before = Path("run.h5").read_bytes()
    assert capsys.readouterr().err == "".join(
        f"mpidec.run: run.h5 exists, the file is run-{k}.h5\n" for k in (2, 3)
    )
    assert run.main([*small, "--steps=9", "--out=run.h5"]) == 2
    assert capsys.readouterr().err == (
        "mpidec.run: error: --out run.h5 exists: choose another name, replace it with --force, or "
        "continue its run with --resume run.h5\n"
    )
    assert Path("run.h5").read_bytes() == before
    assert run.main([*small, "--steps=9", "--out=run.h5", "--force"]) == 0
    assert record.read("run.h5").steps == 9
    Path("again.toml").write_text(record.read("run-2.h5").config)
    assert run.main(["again.toml", "--quiet"]) == 0
    assert record.read("run-4.h5").steps == 4
    assert (
        run.main(["--resume", "run.h5", "--force"]) == 2
        and "omit one of them" in capsys.readouterr().err
    )


def test_a_resume_of_a_run_at_its_target_takes_no_further_steps(capsys):
    stopped = [*SMALL, "--agents=4", "--step-size=0.05", "--steps=3000"]
    assert run.main([*stopped, "--stop-error=1e-6"]) == 0
    first = record.read("run.h5")
    assert run.main(["--resume", "run.h5"]) == 0
    assert record.read("run.h5").steps == first.steps and record.read("run.h5").outcome == "stopped"
    assert (
        rows(capsys.readouterr().out)["outcome"] == f"stopped at step {first.steps}: error <= 1e-06"
    )
    assert run.main(["--resume", "run.h5", "--stop-error=1e-9"]) == 0
    assert record.read("run.h5").steps > first.steps


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch):
    from mpidec import problems

    whole, calls = problems.LeastSquares.grad, []

    def broken(self, X):
        calls.append(X)
        if len(calls) > 8:
            raise RuntimeError("a fault")
        return whole(self, X)

    monkeypatch.setattr(problems.LeastSquares, "grad", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        run.main([*SMALL, "--agents=4", "--steps=30", "--step-size=0.01"])
    assert record.read("run.h5").outcome == "failed"


def test_too_many_open_files_are_one_line(capsys, monkeypatch):
    def exhausted(*args):
        raise ImportError(
            "/lib/_sparsetools.so: cannot open shared object file: Too many open files"
        )

    monkeypatch.setattr(run.build, "solve", lambda *args, **options: exhausted())
    assert run.main([*SMALL, "--agents=4", "--steps=30"]) == 1
    assert re.fullmatch(
        r"mpidec.run: error: .*Too many open files: raise the limit of open files \(ulimit -n 1024\)\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupt_before_the_first_step_is_one_line(capsys, monkeypatch, number):
    monkeypatch.setattr(run.build, "build", lambda *args: os.kill(os.getpid(), number))
    assert run.main([*SMALL, "--agents=4", "--steps=30"]) == 130
    assert capsys.readouterr().err == "mpidec.run: interrupted\n"


def test_resume_is_as_if_never_interrupted(capsys):
    args = [
        *SMALL,
        "--agents=5",
        "--set=problem.batch_size=2",
        "--every=7",
        "--step-size=0.05",
    ]  # auto depends on the steps
    assert run.main([*args, "--steps=100", "--out=whole.h5"]) == 0
    assert run.main([*args, "--steps=56", "--out=parts.h5"]) == 0
    with h5py.File("parts.h5", "r+") as file:
        file.attrs["mark"] = 1  # gone if the file were begun anew
    assert run.main(["--resume", "parts.h5", "--steps=100"]) == 0
    with h5py.File("whole.h5") as a, h5py.File("parts.h5") as b:
        assert np.array_equal(a["result/x"][...], b["result/x"][...])
        assert np.array_equal(a["trajectory/x"][...], b["trajectory/x"][...])
        assert (
            np.array_equal(a["metrics/objective"][...], b["metrics/objective"][...])
            and "mark" in b.attrs
        )


MIXINGS = {
    "qsgd": ["codec=qsgd", "seed=3"],
    "direct": ["codec=blockwise8", "feedback=false"],
    "top_k": ["codec=top_k", "k=1"],
    "accelerated": ["accelerate=3"],
    "both": ["codec=blockwise8", "feedback=true", "accelerate=2"],
    "robust": ["attack=2:sign_flip,4:0.5", "noise=0.01", "robust=clip", "delta=0.4"],
}


def mixed(name: str) -> list[str]:
    """The command line of a run over a compressed or accelerated mixer."""
    return [
        *SMALL,
        "--agents=5",
        "--topology=ring",
        "--step-size=0.01",
        "--every=7",
        "--set=problem.noise=0.1",
        *(f"--set=mixing.{setting}" for setting in MIXINGS[name]),
    ]


def reduced(name: str) -> list[str]:
    """The command line of a run with variance reduction."""
    common = ["--agents=5", "--topology=ring", "--step-size=0.01", "--every=7"]
    sizes = ["--set=problem.batch_size=2", f"--set=problem.variance_reduction={name}"]
    return [*SMALL, *common, *sizes]


def test_variance_reduction_on_the_command_line(capsys):
    line = [*reduced("svrg"), "--set=problem.snapshot_period=3", "--step-size=auto"]
    assert run.main([*line, "--stop-error=1e-10", "--steps=3000"]) == 0
    assert run.main([*reduced("saga"), "--set=problem.snapshot_period=3"]) == 2
    assert "SAGA takes no exact gradients" in capsys.readouterr().err
    assert run.main([*SMALL, "--set=problem.variance_reduction=saga"]) == 2
    assert "has no effect without problem.batch_size" in capsys.readouterr().err
    assert run.main([*SMALL, "--solver=admm", "--set=problem.batch_size=4"]) == 2
    assert "ADMM minimizes each agent's own function" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.launch
def test_the_memory_of_variance_reduction_moves_to_another_number_of_ranks():
    assert run.main([*reduced("saga"), "--steps=63", "--out=saga.h5", "--quiet"]) == 0
    first = ["-m", "mpidec.run", *reduced("saga"), "--steps=28", "--out=parts.h5"]
    launch.mpirun(2, first, check=True)
    launch.mpirun(3, ["-m", "mpidec.run", "--resume", "parts.h5", "--steps=63"], check=True)
    assert same("saga.h5", "parts.h5")


def test_a_random_codec_draws_with_the_seed_of_the_run():
    for settings, out in (
        ([], "run.h5"),
        (["--set=mixing.seed=1"], "one.h5"),
        (["--set=mixing.seed=0"], "zero.h5"),
    ):
        assert (
            run.main([*mixed("qsgd")[:-1], "--steps=20", "--seed=1", *settings, f"--out={out}"])
            == 0
        )
    assert same("run.h5", "one.h5") and not same("run.h5", "zero.h5")


@pytest.mark.parametrize("solver", ["extra", "gradient_tracking", "exact_diffusion"])
def test_a_schedule_of_one_phase_is_static(solver):
    assert (
        run.main(
            [
                *SMALL,
                "--topology=one_peer_exponential",
                "--agents=2",
                "--steps=3",
                f"--solver={solver}",
            ]
        )
        == 0
    )


@pytest.mark.parametrize("name", MIXINGS)
def test_resume_over_a_compressed_or_accelerated_mixer(name, capsys):
    assert run.main([*mixed(name), "--steps=63", "--out=whole.h5"]) == 0
    assert run.main([*mixed(name), "--steps=28", "--out=parts.h5"]) == 0
    assert run.main(["--resume", "parts.h5", "--steps=63"]) == 0
    assert same("whole.h5", "parts.h5")
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.count("\nmixing  ") == shown.out.count("\nsolver  ")


def test_a_run_is_resumed_with_the_data_and_the_code_of_its_beginning(tmp_path, capsys):
    lines = [f"{i % 7},{i % 5},{(3 * i) % 11}" for i in range(40)]
    mine, code = tmp_path / "mine.csv", tmp_path / "my.py"
    mine.write_text("\n".join(lines))
    code.write_text("from mpidec.solvers import DGD\nclass Mine(DGD):\n    pass\n")
    assert (
        run.main(
            [
                "--problem=least_squares",
                "--data=mine.csv",
                "--solver=my.py:Mine",
                "--step-size=1e-4",
                "--topology=ring",
                "--set=problem.standardize=true",
                "--agents=4",
                "--steps=10",
                "--quiet",
            ]
        )
        == 0
    )
    before, attributes = Path("run.h5").read_bytes(), record.read("run.h5").attributes
    files = json.loads(attributes["files"])
    assert {key: file["name"] for key, file in files.items()} == {
        "problem.data": "mine.csv",
        "solver.name": "my.py",
    }
    assert files["problem.data"]["sha256"] == hashlib.sha256(mine.read_bytes()).hexdigest()
    assert {"command", "host", "versions"} < set(
        attributes
    ) and f"numpy {np.__version__}" in attributes["versions"]
    for file, text, why in (
        (
            mine,
            "\n".join(lines[1:]),
            "mine.csv has changed since the run began: 40 samples then, 39 now",
        ),
        (
            mine,
            "\n".join([*lines[:-1], "1,2,3"]),
            "mine.csv has changed since the run began: 40 samples with",
        ),
        (code, code.read_text() + "# ", "my.py has changed since the run began"),
    ):
        kept = file.read_text()
        file.write_text(text)
        capsys.readouterr()
        assert run.main(["--resume", "run.h5", "--steps=20"]) == 2
        said = capsys.readouterr().err.splitlines()
        assert said[-1].startswith(f"mpidec.run: error: run.h5: {why}") and said[-1].endswith(
            "with --out another file"
        )
        assert Path("run.h5").read_bytes() == before
        file.write_text(kept)
    mine.write_text("\n".join(lines) + "\n")  # other bytes, the same numbers
    assert run.main(["--resume", "run.h5", "--steps=20", "--quiet"]) == 0
    with h5py.File("run.h5", "r+") as file:  # as before these attributes
        for name in (
            "curve",
            "data_hash",
            "data_samples",
            "files",
            "resumed",
            "command",
            "host",
            "versions",
        ):
            del file.attrs[name]
    mine.write_text("\n".join(lines[1:]))
    assert run.main(["--resume", "run.h5", "--steps=30", "--quiet"]) == 0


def test_git_never_fails_a_run(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    git = tmp_path / "bin" / "git"
    (tmp_path / ".git").mkdir()
    found = [_attributes.provenance().get("git")]  # there is no git
    for body, patience in (
        ("echo 1234-dirty", 60),
        ("echo 1234; exit 128", 60),
        ("exec /bin/sleep 60", 0.02),
    ):
        monkeypatch.setattr(_attributes, "PATIENCE", patience)
        git.write_text(f"#!/bin/sh\n{body}\n")
        git.chmod(0o755)
        found.append(_attributes.provenance().get("git"))
    assert found == [None, "1234-dirty", None, None]
    (tmp_path / ".git").rmdir()
    git.write_text("#!/bin/sh\necho 1234\n")
    assert _attributes.provenance().get("git") is None  # no repository: git is not called


def test_what_resume_refuses(capsys):
    assert run.main([*SMALL, "--steps=10"]) == 0
    for argv, word in (
        (["--resume", "run.h5"], "already taken 10 steps"),
        (["--resume", "run.h5", "--out=run.h5"], "already taken 10 steps"),
        (["--resume", "run.h5", "--seed=1"], "--seed: run.seed is 0 in run.h5, not 1"),
        (["--resume", "run.h5", "--step-size=1"], "solver.step_size is 0."),
        (["--resume", "run.h5", "--solver=dgd"], "solver.name is "),
        (["--resume", "run.h5", "--topology=star"], "topology.name is "),
        (["--resume", "run.h5", "--problem=huber"], "problem.name is "),
        (["--resume", "run.h5", "--set=problem.l2=1"], "problem.l2 is "),
        (["--resume", "run.h5", "--set=problem.batch_size=1"], "batch_size is not set in run.h5"),
        (["--resume", "run.h5", "--set=mixing.accelerate=2"], "mixing.accelerate is not set"),
        (["--resume", "run.h5", "--agents=5"], "run.agents is "),
        (["--resume", "nowhere.h5"], "nowhere.h5"),
        (["a.toml", "--resume", "run.h5"], "a.toml"),
    ):
        assert run.main(argv) == 2
        assert word in capsys.readouterr().err


def test_help_list_and_version(capsys):
    assert run.main(["--help"]) == 0
    text = capsys.readouterr().out
    for flag in (
        *(entry.flag[2:] for entry in FLAGS if entry.flag),
        "set",
        "resume",
        "list",
        "version",
        "quiet",
    ):
        assert f"--{flag}" in text
    assert "examples:" in text and "exit status" in text
    assert run.main(["--list"]) == 0
    text = capsys.readouterr().out
    for name in ("logistic", "breast_cancer", "gradient_tracking", "one_peer_exponential"):
        assert re.search(rf"^  {name} +\S", text, re.MULTILINE)
    assert run.main(["--version"]) == 0
    assert re.match(r"mpidec \d.*MPI", capsys.readouterr().out)


def test_the_summary_names_the_column_of_the_label(capsys):
    Path("mine.csv").write_text(
        "kind,u,v\n" + "".join(f"{k % 2},{k},{k * k % 7}\n" for k in range(20))
    )
    for label in ("kind", "0"):
        assert (
            run.main(
                [
                    "--data=mine.csv",
                    f"--set=problem.label={label}",
                    "--agents=2",
                    "--steps=2",
                    "--problem=logistic",
                ]
            )
            == 0
        )
        assert "mine.csv, 20 samples x 2 unknowns, label kind, partition" in capsys.readouterr().out


def test_the_examples_of_the_help_are_accepted(tmp_path):
    Path("experiment.toml").write_text("")
    Path("mine.csv").write_text("1,2\n")
    lines = [
        line.partition("mpidec.run")[2]
        for line in run.EPILOG.splitlines()
        if "python -m mpidec.run" in line
    ]
    assert len(lines) >= 5
    for line in lines:
        argv = line.partition("    ")[0].split()
        if "--resume" not in argv:
            assert prepared(argv, 1)[0] is not None


def test_quiet_is_quiet(capsys):
    assert run.main([*SMALL, "--steps=5", "--quiet"]) == 0
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_warnings_are_said_once_in_a_line(capsys):
    unstable = ["--solver=exact_diffusion", "--topology=exponential", "--step-size=0.1"]
    assert run.main([*SMALL, "--steps=3", "--agents=16", *unstable]) == 0
    assert capsys.readouterr().err.count("\n") == 1


def test_progress_in_lines(monkeypatch, capsys):
    clock = iter(range(0, 10**6, 1))
    monkeypatch.setattr(report.time, "monotonic", lambda: float(next(clock)))
    lines = report.Lines()
    for step in range(1001):
        lines(step, 1000, {"objective": 1.0, "error": 0.5})
    said = capsys.readouterr().out.splitlines()
    assert 10 <= len(said) <= 45 and said[-1].startswith("step ") and "error 5.00e-01" in said[0]


@pytest.mark.parametrize("first", [0, 600, 990])
def test_progress_has_as_many_lines_for_what_is_left_of_a_run(monkeypatch, capsys, first):
    steps = np.linspace(first, 1000, 1 + min(1000 - first, 400)).astype(int)
    clock = iter(np.linspace(0.0, 25.0, len(steps) + 1).tolist())
    monkeypatch.setattr(report.time, "monotonic", lambda: next(clock))
    lines = report.Lines()
    for step in steps:
        lines(step, 1000, {"objective": 1.0})
    assert 9 <= len(capsys.readouterr().out.splitlines()) <= 12


def test_progress_in_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with open("bar.txt", "w+", encoding="utf-8") as file:
        bar = report.Bar(file=file, width=70)
        for step in range(0, 11, 5):
            bar(step, 10, {"error": 10.0**-step})
        bar.close()
        file.seek(0)
        assert "10/10" in file.read()


# -- launched ---------------------------------------------------------------------------------------------------------


UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


def said_of(table: dict[str, str], path: str) -> None:
    """Compare the numbers in the sentences of a summary with the metrics of the file."""
    found = record.read(path).metrics
    agents = int(table["agents"].split()[0])
    value, unit = re.fullmatch(r"([\d.]+) (\w?)B per agent", table["sent"]).groups()
    assert float(value) * UNITS[unit] == pytest.approx(found["bytes"][-1] / agents, rel=1e-3)
    steps, all_steps = map(int, table["steps"].split(" of "))
    assert steps == found["step"][-1] <= all_steps
    seconds, pace = map(float, re.fullmatch(r"(\S+) s, (\S+) steps/s", table["time"]).groups())
    assert seconds == pytest.approx(found["time"][-1], rel=0.01)
    assert pace == pytest.approx(steps / found["time"][-1], rel=0.01)
    for name in "objective", "consensus", "gradient norm", "error", "error max":
        assert float(table[name]) == pytest.approx(found[name.replace(" ", "_")][-1], rel=1e-4)


@pytest.mark.parametrize("agents", [1, 2, 5])
def test_numbers_in_the_summary_are_those_of_the_file(capsys, agents):
    """On a ring, a row of 3 float64 goes to each neighbour in each step."""
    steps = 40
    assert run.main([*SMALL, *RING, f"--agents={agents}", f"--steps={steps}"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["agents"] == f"{agents} on 1 rank"
    said_of(table, "run.h5")
    sent = steps * 3 * 8 * min(agents - 1, 2)
    assert (
        table["sent"]
        == f"{sent / 1000 if sent >= 1000 else sent:g} {'k' * (sent >= 1000)}B per agent"
    )
    assert run.main(["--resume=run.h5", "--steps=50"]) == 0
    said_of(rows(capsys.readouterr().out), "run.h5")


@pytest.mark.launch
def test_files_are_the_same_on_any_number_of_ranks():
    assert run.main([*SMALL, "--steps=40", "--agents=5", "--out=1.h5", "--quiet"]) == 0
    done = launch.mpirun(
        3, ["-m", "mpidec.run", *SMALL, "--steps=40", "--agents=5", "--out=3.h5"], check=True
    )
    table, cores = rows(done.stdout), len(os.sched_getaffinity(0))
    assert table["agents"] == "5 on 3 ranks" and done.stdout.count("outcome") == 1
    said_of(table, "3.h5")
    assert (f"the 3 ranks of a node share {cores} core" in table.get("pace", "")) == (cores < 3)
    with h5py.File("1.h5") as a, h5py.File("3.h5") as b:
        assert np.array_equal(a["trajectory/x"][...], b["trajectory/x"][...])
        assert np.array_equal(a["metrics/objective"][...], b["metrics/objective"][...])


@pytest.mark.launch
def test_the_main_job_on_three_ranks():
    pytest.importorskip("sklearn")
    done = launch.mpirun(3, ["-m", "mpidec.run"], check=True, timeout=100)
    table = rows(done.stdout)
    assert table["agents"] == "3 on 3 ranks" and float(table["error"]) <= 1e-8


@pytest.mark.launch
def test_bad_input_is_said_once_with_status_2():
    done = launch.mpirun(3, ["-m", "mpidec.run", "--solver", "gradient_traking"])
    said = [line for line in done.stderr.splitlines() if "mpidec.run: error:" in line]
    assert (
        done.returncode == 2
        and len(said) == 1
        and "gradient_tracking" in said[0]
        and "Traceback" not in done.stderr
    )


@pytest.mark.launch
def test_a_terminal_gets_a_bar_through_mpirun_and_then_the_table(monkeypatch):
    import pty

    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    command = [*launch.mpirun_command(2), sys.executable, "-m", "mpidec.run", *SMALL, "--steps=20"]
    process = launch.start(command, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # what a terminal says when the last writer has gone
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert launch.finish(process, 60).returncode == 0
    assert (
        0 <= shown.find(b"20/20") < shown.find(b"outcome")
        and b"\x1b" not in shown[shown.find(b"problem") :]
    )


@pytest.mark.launch
def test_ranks_that_believe_to_be_alone_are_told():
    done = launch.mpirun(0, ["-m", "mpidec.run", *SMALL], env={"PMI_SIZE": "4"})
    assert done.returncode == 2 and "PMI_SIZE=4" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.launch
@pytest.mark.parametrize("typed", ["mpidec.run", "mpidec run"])
def test_an_interrupt_while_loading_is_one_line(typed, tmp_path):
    """With a stand-in for mpi4py that is interrupted while it is imported."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(
        "import os, time\nos.kill(os.getpid(), 2)\ntime.sleep(9)\n"
    )
    path = f"{tmp_path}:{launch.ROOT}"
    done = launch.mpirun(0, ["-m", *typed.split()], env={"PYTHONPATH": path})
    assert (done.returncode, done.stderr, done.stdout) == (130, "mpidec.run: interrupted\n", "")


EARLY = """
import os, signal, sys
from mpi4py import MPI
from mpidec.experiment import build as assemble; from mpidec.experiment import command as run
load = assemble._prepared
def interrupted(*args):
    os.kill(os.getpid(), signal.SIGINT)
    return load(*args)
assemble._prepared = interrupted
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.launch
def test_an_interrupt_before_the_first_step_of_several_ranks_is_one_line():
    done = launch.mpirun(2, ["-c", EARLY, *LONG, "--quiet"], timeout=60)
    assert done.returncode != 0
    assert [
        line for line in done.stderr.splitlines() if "mpidec" in line or "Traceback" in line
    ] == [
        "mpidec.run: interrupted after step 1: continue with mpirun -n 2 python -m mpidec.run --resume run.h5"
    ], done.stderr
    assert record.read("run.h5").outcome == "interrupted"


SHARED = """
import sys
from mpi4py import MPI
from mpidec.experiment import command as run; from mpidec import solvers
plain, count = solvers.GradientTracking.step, [0]
def step(self, s, G, W):
    count[0] += 1
    if count[0] == 500 and MPI.COMM_WORLD.rank >= int(sys.argv[1]):
        raise ZeroDivisionError(f"a fault of rank {MPI.COMM_WORLD.rank}")
    return plain(self, s, G, W)
solvers.GradientTracking.step = step
sys.exit(run.main(sys.argv[2:]))
"""


@pytest.mark.launch
def test_one_traceback_for_one_error_that_all_ranks_share():
    done = launch.mpirun(3, ["-c", SHARED, "0", *LONG], timeout=60)
    assert done.returncode not in (0, 2) and done.stderr.count("Traceback") == 1
    assert "[rank 0] ZeroDivisionError: a fault of rank 0" in done.stderr
    assert (record.read("run.h5").outcome, record.read("run.h5").steps) == ("failed", 400)


@pytest.mark.launch
def test_the_traceback_of_one_rank_is_not_lost():
    done = launch.mpirun(3, ["-c", SHARED, "2", *LONG], timeout=60)
    assert (
        done.returncode not in (0, 2)
        and "[rank 2] ZeroDivisionError: a fault of rank 2" in done.stderr
    )


@pytest.mark.launch
def test_few_open_files_are_enough_or_said_in_one_line():
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"ulimit -n 32; exec {shlex.quote(sys.executable)} -m mpidec.run {' '.join(SMALL)} --steps=20 --quiet",
        ],
        env=launch.environment(),
        capture_output=True,
        text=True,
        timeout=launch.patient(60),
    )
    assert done.returncode == 0 or (
        done.stderr.count("mpidec.run: error:") == 1 and "ulimit -n" in done.stderr
    )
    assert "Traceback" not in done.stderr


FAULT = """
import sys
from mpi4py import MPI
from mpidec.experiment import command as run; from mpidec import problems
plain, count = problems.LeastSquares.grad, [0]
def grad(self, X):
    count[0] += 1
    if count[0] > 40 and MPI.COMM_WORLD.rank == 1:
        raise ZeroDivisionError("a fault of rank 1")
    return plain(self, X)
problems.LeastSquares.grad = grad
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.launch
def test_an_exception_on_one_rank_ends_the_job():
    begun = time.monotonic()
    done = launch.mpirun(3, ["-c", FAULT, *LONG], timeout=60)
    assert done.returncode not in (0, 2) and "ZeroDivisionError: a fault of rank 1" in done.stderr
    assert (
        done.stderr.count("Traceback") == 1
        and "[rank 1] Traceback" in done.stderr
        and time.monotonic() - begun < launch.patient(50)
    )
    assert record.read("run.h5").outcome == "failed"


@pytest.mark.launch
def test_interrupted_runs_are_complete_and_go_on():
    process = launched(3, [*LONG, "--out=run.h5", "--set=run.checkpoint=0.1"])
    started(Path("run.h5"), process)
    process.send_signal(signal.SIGINT)
    done = launch.finish(process, 30)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    stopped = record.read("run.h5")
    killed = (
        "Open MPI" in MPI.Get_library_version()
    )  # its mpirun kills the ranks while they write and print
    if stopped.outcome == "running" and killed:
        return
    assert stopped.outcome == "interrupted" and (
        killed or rows(done.stdout)["outcome"] == "interrupted"
    )
    again = f"mpidec.run: interrupted after step {stopped.steps}: continue with mpirun -n 3 python -m mpidec.run --resume run.h5"
    assert killed or again in done.stderr
    goal = stopped.steps + 300
    assert run.main(["--resume", "run.h5", f"--steps={goal}", "--quiet"]) == 0
    assert run.main([*LONG, f"--steps={goal}", "--out=whole.h5", "--quiet"]) == 0
    assert np.array_equal(record.read("run.h5").x, record.read("whole.h5").x)


@pytest.mark.launch
@pytest.mark.parametrize(
    "name, before, after", first([("both", 2, 3), ("top_k", 2, 3), ("both", 3, 2), ("top_k", 3, 2)])
)
def test_the_memory_of_a_mixer_moves_to_another_number_of_ranks(name, before, after):
    assert run.main([*mixed(name), "--steps=63", "--out=whole.h5", "--quiet"]) == 0
    launch.mpirun(
        before, ["-m", "mpidec.run", *mixed(name), "--steps=28", "--out=parts.h5"], check=True
    )
    done = launch.mpirun(
        after, ["-m", "mpidec.run", "--resume", "parts.h5", "--steps=63"], check=True
    )
    assert rows(done.stdout)["outcome"].startswith("completed") and "warning" not in done.stderr
    assert same("whole.h5", "parts.h5")


LIMITED = """
import resource, sys
from mpi4py import MPI                                      # before the limit: it needs large files of its own
from mpidec.experiment import command as run
resource.setrlimit(resource.RLIMIT_FSIZE, (800_000, 800_000))
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.launch
def test_a_full_disk_is_told_and_the_file_reads():
    done = launch.mpirun(2, ["-c", LIMITED, *LONG, "--every=1"], timeout=60)
    said = [line for line in done.stderr.splitlines() if "mpidec.run: error:" in line]
    assert (
        done.returncode == 1
        and len(said) == 1
        and "run.h5" in said[0]
        and "Traceback" not in done.stderr
    )
    assert said[0].endswith("; then continue with mpirun -n 2 python -m mpidec.run --resume run.h5")
    assert len(record.read("run.h5").metrics["step"]) > 0


def ranks_of(process: subprocess.Popen) -> list[int]:
    """Return the processes of the ranks that `process` launched."""
    found = []
    for pid in launch.family(process.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"mpidec.run" in words and Path(os.fsdecode(words[0])).name.startswith("python"):
            found.append(pid)
    return sorted(set(found))


@pytest.mark.launch
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc")
@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(0, id="rank 0"),
        pytest.param(-1, id="another rank"),
        pytest.param(None, id="the job", marks=pytest.mark.slow),
    ],
)
def test_killed_runs_leave_a_file_that_reads_and_resumes(victim):
    process = launched(3, [*LONG, "--out=run.h5", "--set=run.checkpoint=0.1"])
    started(Path("run.h5"), process)
    ranks = ranks_of(process)
    assert len(ranks) == 3
    for pid in ranks if victim is None else [ranks[victim]]:
        os.kill(pid, signal.SIGKILL)
    assert launch.finish(process, 30).returncode != 0
    killed = record.read("run.h5")
    length = {len(values) for values in killed.metrics.values()}
    assert killed.outcome == "running" and len(length) == 1 and length.pop() > 2
    assert killed.trajectory()[1].shape[0] == len(killed.metrics["step"])
    goal = killed.steps - killed.steps % 200 + 400
    assert run.main(["--resume", "run.h5", f"--steps={goal}", "--quiet"]) == 0
    assert run.main([*LONG, f"--steps={goal}", "--out=whole.h5", "--quiet"]) == 0
    with h5py.File("run.h5") as a, h5py.File("whole.h5") as b:
        assert np.array_equal(a["trajectory/x"][...], b["trajectory/x"][...])
        assert np.array_equal(a["result/x"][...], b["result/x"][...])


@pytest.mark.launch
@pytest.mark.slow
def test_the_main_job_on_sixteen_ranks():
    pytest.importorskip("sklearn")
    done = launch.mpirun(16, ["-m", "mpidec.run", "--out=16.h5"], check=True, timeout=110)
    assert float(rows(done.stdout)["error"]) <= 1e-8
    assert run.main(["--out=1.h5", "--quiet"]) == 0
    assert np.array_equal(record.read("1.h5").x, record.read("16.h5").x)


def test_a_file_of_a_python_program_is_continued_there(capsys):
    import mpidec

    problem = mpidec.problems.LeastSquares(np.ones((4, 2, 3)), np.ones((4, 2)))
    mpidec.solve(problem, "extra", "ring", steps=5, record="mine.h5")
    assert run.main(["--resume", "mine.h5", "--steps=9"]) == 2
    assert (
        "written by a Python program: continue it there, with mpidec.solve("
        in capsys.readouterr().err
    )
    assert record.read("mine.h5").steps == 5


def test_the_file_of_a_run_is_no_experiment(capsys):
    assert run.main([*SMALL, "--agents=4", "--steps=3", "--quiet"]) == 0
    assert run.main(["run.h5"]) == 2
    said = capsys.readouterr().err
    assert (
        "run.h5 is the file of a run, expected an experiment in TOML: the command that wrote it "
        "continues the run with --resume run.h5" in said
    )


@pytest.mark.parametrize("step", ["auto", "0.02"])
def test_the_step_size_is_printed_once(capsys, step):
    flags = [*SMALL, "--agents=4", "--steps=3", f"--step-size={step}", "--set=run.progress=lines"]
    assert run.main(flags) == 0
    assert capsys.readouterr().out.count("step size") == 1


def test_the_spectral_gap_is_that_of_the_weights_chosen(capsys):
    flags = [*SMALL, "--agents=9", "--topology=grid", "--solver=nids", "--steps=200"]
    assert run.main([*flags, "--set=topology.weights=auto"]) == 0
    table = rows(capsys.readouterr().out)
    chosen = re.search(r"weights (\S+)$", table["step size"])[1]
    gap = topology.grid(9, weights=chosen).spectral_gap()
    assert chosen != "metropolis" and f"spectral gap {gap:.4g}" in table["topology"]


def test_a_wrong_gradient_of_ones_own_problem_is_refused_in_one_line(capsys):
    Path("own.py").write_text(
        "from mpidec.problems import Custom\n"
        "def wrong(A, y):\n"
        "    return Custom(lambda X: (X**2).sum(axis=1), lambda X: 3 * X, m=len(A), d=3)\n"
    )
    line = ["--problem=own.py:wrong", "--data=synthetic_least_squares", "--set=problem.d=3"]
    assert run.main([*line, "--agents=4", "--steps=3"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "grad(X) is not the gradient of value(X)" in error


OWN = """\
import numpy as np
from mpidec.problems import Stream

def x_star(k):
    return np.array([np.cos(0.1 * k), 2.0])

def moving(agents, n):
    def draw(rng, agent, k):
        u = rng.standard_normal(2)
        return u, u @ x_star(k) + 0.1 * rng.standard_normal()
    return Stream(draw, len(agents), 2, lo=agents.start, x_star=x_star, held_out=5)

def msd(X, agents, k):
    return ((X - x_star(k)) ** 2).sum(axis=1)

number = 3
"""


def test_streams_and_metrics_of_ones_own(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    argv = ["--problem=own.py:moving", "--solver=dgd", "--step-size=0.2", "--topology=ring"]
    argv += ["--agents=4", "--steps=20", "--metric=msd=own.py:msd", "--metric=again=own.py:msd"]
    assert run.main(argv) == 0
    found = record.read("run.h5")
    scale = np.array([np.cos(0.1 * k) ** 2 + 4 for k in found.metrics["step"]])
    np.testing.assert_allclose(found.metrics["msd"], scale * found.metrics["error_rms"] ** 2)
    assert rows(capsys.readouterr().out)["again"] == f"{found.metrics['msd'][-1]:.6g}"
    assert json.loads(found.attributes["files"])["run.metrics.msd"]["name"] == "own.py"
    assert run.main(["--resume=run.h5", "--steps=40"]) == 0
    assert run.main([*argv, "--steps=40", "--out=whole.h5"]) == 0
    assert same("run.h5", "whole.h5")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("msd", "--metric: expected NAME=FILE.py:F, got 'msd'"),
        ("msd=own.py:number", "own.py:number cannot be used as a metric: it is an object of type"),
        ("error=own.py:msd", "metrics: 'error' is a metric of every run, expected another name"),
        ("a=own.py:msd,a=own.py:msd", "--metric: the metric a is given twice"),
    ],
)
def test_what_is_no_metric_is_refused(tmp_path, capsys, given, says):
    (tmp_path / "own.py").write_text(OWN)
    assert run.main([*SMALL, "--steps=1", f"--metric={given}"]) == 2
    assert says in capsys.readouterr().err
