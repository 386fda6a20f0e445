"""The job scripts save a run before the time limit and continue it: with stand-ins for the batch system, and under a real Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import launch

from mpidec import record

pytestmark = pytest.mark.launch
SCRIPTS = launch.ROOT / "jobscripts"
STARTED: list[subprocess.Popen] = []
LONG = (
    "--problem=least_squares --data=synthetic_least_squares --set=problem.p=4 --set=problem.d=3 --agents=8 --every=20 "
    "--step-size=0.01 --set=run.trajectory=false --set=run.checkpoint=0.1 --stop-error=1e-300 --steps="
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an environment, and commands of batch systems that note their arguments in the file `called`."""
    monkeypatch.chdir(tmp_path)
    tools = tmp_path / "venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "activate").write_text(
        f'PATH="{tools}:{Path(sys.executable).parent}:$PATH"\nexport PYTHONPATH="{launch.ROOT}"\n'
    )
    for name in ("scontrol", "qsub"):
        write(tools / name, f'#!/bin/sh\necho "{name}|$*" >>"{tmp_path}/called"\n')
    yield tmp_path
    while STARTED:
        launch.end(STARTED.pop())


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def script(name: str, **env: str) -> subprocess.Popen:
    STARTED.append(
        launch.start(
            ["bash", str(SCRIPTS / name)],
            env={"VENV": "venv", **env},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    )
    return STARTED[-1]


def steps_in(path: str, process: subprocess.Popen, more_than: int = 20) -> None:
    def recorded() -> bool:
        return Path(path).exists() and record.read(path).metrics["step"].max(initial=0) > more_than

    launch.until(lambda: recorded() or process.poll() is not None, 60)
    assert recorded(), f"no steps in {path}: {launch.finish(process, 1)}"


def test_a_slurm_job_saves_requeues_itself_and_goes_on(folder):
    env = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "RESTARTS": "1"}
    steps = 0
    for turn in range(2):
        process = script("slurm.sh", ARGS=LONG + "100000000", SLURM_RESTART_COUNT=str(turn), **env)
        steps_in("run-7.h5", process, steps + 20)
        os.kill(process.pid, signal.SIGUSR1)  # to the script alone, as --signal=B:USR1@90 does
        done = launch.finish(process, 60)
        run = record.read("run-7.h5")
        assert run.outcome == "interrupted" and run.steps > steps, done
        steps = run.steps
        assert (done.returncode == 0) == (turn == 0)  # one restart is allowed
        assert (folder / "called").read_text().splitlines() == ["scontrol|requeue 7"]


OWN = """
import pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
progress = pathlib.Path("progress.txt")
done = int(progress.read_text().split()[0]) if progress.exists() else 0
pathlib.Path("up").touch()
signal.sigwait([signal.SIGUSR1])
progress.write_text(f"{min(done + 40, 80)} 100")
sys.exit(130)
"""


@pytest.mark.slow
def test_a_slurm_job_of_an_own_program_ends_when_it_gets_no_further(folder):
    write(folder / "own.py", OWN)
    write(folder / "venv" / "bin" / "alone", '#!/bin/sh\nshift 2\nexec "$@"\n')
    said = []
    for turn in range(3):
        Path("up").unlink(missing_ok=True)
        env = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_RESTART_COUNT": str(turn)}
        process = script("slurm.sh", PROGRAM="own.py", LAUNCH="alone", **env)
        assert launch.until(Path("up").exists, 60)
        os.kill(process.pid, signal.SIGUSR1)
        done = launch.finish(process, 60)
        said.append((done.returncode, done.stdout))
    assert [status for status, _ in said] == [0, 0, 130]
    parts = ["is at 40 of 100, 40 more", "is at 80 of 100, 40 more", "is at 80 of 100, no more"]
    assert all(part in text for part, (_, text) in zip(parts, said)), said
    assert (folder / "called").read_text().splitlines() == ["scontrol|requeue 7"] * 2


@pytest.mark.slow
def test_a_slurm_job_that_ends_says_how(folder):
    env = {"SLURM_JOB_ID": "8", "SLURM_NTASKS": "2"}
    done = launch.finish(script("slurm.sh", ARGS=LONG + "4000", **env), 60)
    assert (
        done.returncode == 4 and Path("run-8.png").exists() and not (folder / "called").exists()
    ), done


TIMEOUT = """#!/usr/bin/env python3
import os, pathlib, signal, subprocess, sys, time
assert sys.argv[1:4] == ["--signal=USR1", "--kill-after=80", "510"], sys.argv
process = subprocess.Popen(sys.argv[4:])
while process.poll() is None and not pathlib.Path("now").exists():
    time.sleep(0.05)
process.send_signal(signal.SIGUSR1)
process.wait()
sys.exit(124)
"""


@pytest.mark.slow
def test_a_pbs_job_saves_submits_itself_and_goes_on(folder):
    """With a stand-in for timeout(1), which sends the signal when the test says so."""
    write(folder / "venv" / "bin" / "timeout", TIMEOUT)
    (folder / "nodes").write_text("localhost\nlocalhost\n")
    env = {"PBS_O_WORKDIR": str(folder), "PBS_NODEFILE": str(folder / "nodes")}
    steps = 0
    for turn in range(2):
        (folder / "now").unlink(missing_ok=True)
        more = {"OUT": "run-9.h5", "RESTARTED": "1"} if turn else {"ARGS": LONG + "100000000"}
        process = script("pbs.sh", PBS_JOBID=f"{9 + turn}.server", **more, **env)
        steps_in("run-9.h5", process, steps + 20)
        (folder / "now").touch()
        done = launch.finish(process, 60)
        run = record.read("run-9.h5")
        assert (done.returncode, run.outcome) == (0, "interrupted") and run.steps > steps, done
        steps = run.steps
        called = (folder / "called").read_text().splitlines()[-1]
        assert called == (
            "qsub|-l walltime=600 -v VENV=venv,WALLTIME=600,SCRIPT=job.sh,"
            f"RESTARTED={turn + 1},RESTARTS=100,PROGRAM=-m mpidec.run,OUT=run-9.h5 job.sh"
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("sbatch") is None or shutil.which("scontrol") is None, reason="needs Slurm"
)
def test_a_job_of_a_real_slurm_requeues_itself_until_it_is_done(folder):
    """The signal comes at once: Slurm may send it up to 60 s too early, and the limit is two minutes."""
    if subprocess.run(["sinfo", "-h"], capture_output=True).returncode:
        pytest.skip("no Slurm is running")
    env = {**os.environ, "VENV": str(folder / "venv"), "ARGS": LONG + "100000000"}
    (folder / "venv" / "bin" / "scontrol").unlink()
    answer = subprocess.run(
        [
            "sbatch",
            "--parsable",
            "--nodes=2",
            "--ntasks-per-node=1",
            "--time=2",
            str(SCRIPTS / "slurm.sh"),
        ],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    job = answer.stdout.strip()
    out = folder / f"run-{job}.h5"
    control = lambda *args: subprocess.run(["scontrol", *args], capture_output=True, text=True)
    steps = []
    try:
        for turn in range(2):
            restarted = f"Restarts={turn + 1}"
            launch.until(lambda text=restarted: text in control("show", "job", job).stdout, 240)
            run = record.read(out)
            steps.append(run.steps)
            assert run.outcome == "interrupted", (folder / f"mpidec-{job}.out").read_text()
            if turn == 0:  # Slurm lets a requeued job wait for two minutes
                launch.until(lambda: "Reason=BeginTime" in control("show", "job", job).stdout, 60)
                control("update", f"jobid={job}", "starttime=now")
        assert steps[1] > steps[0] > 0
    finally:
        subprocess.run(["scancel", job], check=False)
