"""`mpidec restart`: judged by files, on the hosts that are left; with stand-ins for launchers, and under real deaths."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import launch
from mpi4py import MPI
from programs import deaths

import mpidec
from mpidec.exceptions import ConfigError
from mpidec.record import RunFile
from mpidec.restart.command import main
from mpidec.restart.hosts import Launcher
from mpidec.restart.jobs import Ending, job_of
from mpidec.restart.watch import Watch

pytestmark = pytest.mark.serial

# Gets 40 further at each start, notes its arguments, and then does what TAIL says.
STEP = """
import os, pathlib, subprocess, sys, time
file = pathlib.Path("progress.txt")
done = int((file.read_text().split() or ["40"])[0]) if file.exists() else 0
open("starts", "a").write(" ".join(sys.argv[1:]) + chr(10))
file.write_text(f"{min(done + 40, LIMIT)} 100")
TAIL
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that runs `mpidec restart` with a program of one's own: its status, and the number of its starts."""
    monkeypatch.chdir(tmp_path)

    def run(tail: str, *flags: str, limit: int = 100, launcher: tuple[str, ...] = ()):
        Path("own.py").write_text(STEP.replace("LIMIT", str(limit)).replace("TAIL", tail))
        python = [sys.executable, "-S", "-E", "own.py"]
        status = main(["--file", "progress.txt", *flags, "--", *launcher, *python])
        return status, len(Path("starts").read_text().splitlines())

    return run


def test_a_status_is_not_believed(own, capsys):
    assert own("os._exit(0)") == (0, 3)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        "mpidec.restart: progress.txt is at 40: the launcher ended with status 0; it starts again"
    )
    assert said[-1] == "mpidec.restart: progress.txt: is at 100 of 100, after 2 restarts"


def test_a_file_whose_writer_was_killed_is_no_end(own, capsys):
    assert own("if not done: file.write_text('')") == (0, 3)
    said = capsys.readouterr().err
    assert "progress.txt is empty: the launcher ended with status 0; it starts again" in said
    assert said.endswith("progress.txt: is at 100 of 100, after 2 restarts\n")


def test_what_a_file_said_before_is_no_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("progress.txt").write_text("100 100")
    dies = [sys.executable, "-S", "-E", "-c", "import os; os.kill(os.getpid(), 9)"]
    assert main(["--file", "progress.txt", "--", *dies]) == 137
    said = capsys.readouterr().err
    assert "no further than when it started, as before: mend what ends it, or store checkp" in said


def test_the_file_of_another_job_is_not_believed(tmp_path, monkeypatch):
    """It has appeared after ours was asked for, which is refused therefore, with status 2."""
    monkeypatch.chdir(tmp_path)
    job, _ = job_of(["python", "-m", "mpidec.run", "--out", "run.h5"], None)
    job.begin(1, fewer=False)
    with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        problem = mpidec.problems.LeastSquares(np.ones((3, 2, 1)), np.ones((3, 2)))
        solver = mpidec.solvers.EXTRA(0.1)
        mpidec.solve(problem, solver, "ring", net=net, steps=3, record="run.h5")
    assert job.ending(0) == Ending(0, "completed after 3 steps") and job.reached() == 3
    assert job.ending(2) is None and job.reached() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "tail, flags, limit, expected, why",
    [
        ("os.kill(os.getpid(), 9)", (), 40, (137, 3), "no further than when it started"),
        ("sys.exit(7)", ("--times", "1"), 100, (7, 2), "no restart is left of 1"),
        ("sys.exit(7)", ("--times", "0"), 100, (7, 1), "no restart is left of 0"),
        ("sys.exit(130)", (), 100, (130, 1), ""),
        ("time.sleep(60 * (done == 0))", ("--silent", "2"), 100, (0, 3), "written nothing for"),
    ],
)
def test_a_job_ends_when_it_gets_no_further(own, capsys, tail, flags, limit, expected, why):
    assert own(tail, *flags, limit=limit) == expected
    assert why in capsys.readouterr().err


@pytest.mark.slow
def test_what_outlives_its_launcher_is_killed(own, capsys, monkeypatch):
    monkeypatch.setattr("mpidec.restart.processes.GRACE", 0.2)
    tail = "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\nopen('pid', 'w').write(str(child.pid))"
    assert own(tail)[0] == 0
    assert "the launcher has left processes of the job: 1 killed" in capsys.readouterr().err
    pid = Path("pid").read_text()
    assert launch.until(
        lambda: (
            not Path(f"/proc/{pid}/cmdline").exists()
            or not Path(f"/proc/{pid}/cmdline").read_bytes()
        ),
        5,
    )


def test_ranks_may_die_twice_before_the_first_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    third = "[ $(wc -l <starts) = 3 ] && echo done >reproduced/index.md"
    Path("mpirun").write_text(f"#!/bin/sh\nmkdir -p reproduced; echo >>starts\n{third}\nexit 0\n")
    Path("mpirun").chmod(0o755)
    assert main(["--", "./mpirun", "mpidec", "reproduce", "ceca-table3"]) == 0


RANKS = """
import os, subprocess, sys
first = not os.path.exists("ranks")
open("ranks", "a").write("x")
def rank(number, code):
    code = [sys.executable, "-S", "-E", "-c", "import os, time; " + code]
    return subprocess.Popen(code, env={**os.environ, "PMI_RANK": str(number)})
if first:
    for each in [rank(0, "time.sleep(600)"), rank(1, "time.sleep(1); os._exit(0)")]:
        each.wait()
else:
    from mpidec.record import RunFile
    with RunFile("run.h5", n=2, row_shape=(1,), metrics=["error"], meta={}, trajectory=False) as file:
        file.finish([[1.0], [2.0]], "completed", 10)
"""


@pytest.mark.slow
def test_a_job_that_waits_for_a_rank_starts_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mpidec.restart.jobs.PATIENCE", 1.0)
    Path("mpirun").write_text(f"#!{sys.executable}\n{RANKS}")
    Path("mpirun").chmod(0o755)
    assert main(["--", "./mpirun", "mpidec", "run"]) == 0
    said = capsys.readouterr().err
    assert (
        "run.h5 is not written yet: a rank has ended, for which the others have waited for 1 s"
        in said
    )
    assert "run.h5: completed after 10 steps, after 1 restart" in said


@pytest.mark.parametrize(
    "written, ended, patience, hangs",
    [
        (False, False, 30, True),  # the others wait in MPI_Init
        (True, False, 30, False),  # between two records: ranks end a wait by themselves
        (True, True, 30, True),  # the others wait in MPI_Finalize
        (False, False, 60, False),
    ],
)
def test_the_others_wait_for_a_rank_that_has_ended(monkeypatch, written, ended, patience, hangs):
    class Stand:
        path, any_ranks, changes = "run.h5", True, 0

        def __init__(self):
            self.patience = patience

        def touched(self):
            return self.changes

        def ending(self, status):
            return Ending(0, "completed") if ended else None

    clock, job, both, one = [0.0], Stand(), {b"PMI_RANK=0", b"PMI_RANK=1"}, {b"PMI_RANK=0"}
    monkeypatch.setattr("mpidec.restart.watch.time.monotonic", lambda: clock[0])
    watch = Watch(job, 500.0)
    job.changes += written

    def at(now: float, ranks: set[bytes]) -> str:
        clock[0] = now
        return watch.hangs(ranks)

    assert not at(1, both) and not at(400, both) and not at(410, one) and not at(429, one)
    assert bool(at(440, one)) == hangs and not at(440, set())
    assert "written nothing for 500 s" in at(520, both)


@pytest.mark.parametrize("started, hangs", [(2, True), (1, False), (0, False)])
def test_a_rank_that_ends_before_it_is_seen(monkeypatch, started, hangs):
    clock = [0.0]
    job = SimpleNamespace(patience=30.0, touched=int, ending=lambda status: None)
    monkeypatch.setattr("mpidec.restart.watch.time.monotonic", lambda: clock[0])
    watch = Watch(job, 500.0)
    for clock[0] in (1, 29, 32):
        why = watch.hangs({b"PMI_RANK=0"}, started)
    assert ("a rank has ended" in why) == hangs


def test_a_job_on_a_host_that_does_not_answer_twice_is_ended(monkeypatch):
    class Stand:
        path, any_ranks, patience, changes = "study", True, 30.0, 0

        def touched(self):
            return self.changes

        def ending(self, status):
            return None

    clock, job, silent = [0.0], Stand(), list[str]()
    monkeypatch.setattr("mpidec.restart.watch.time.monotonic", lambda: clock[0])
    watch = Watch(job, 500.0, lambda: [*silent])

    def at(now: float, *hosts: str, changes: int = 0) -> str:
        clock[0], silent[:], job.changes = now, hosts, changes
        return watch.hangs({b"PMI_RANK=0"})

    assert not at(29, "b") and not at(31, "b") and not at(40, "b")
    assert not at(62) and not at(93, "a") and not at(94, "a", changes=1)  # it goes on
    assert not at(125, "a", "b", changes=1)
    assert at(156, "b", changes=1) == "no answer from b, and it has written nothing meanwhile"


MPIRUN = (
    '#!/bin/sh\n[ "$1" = --version ] && echo HYDRA && exit\necho "$*" >>launched\ntouch dead-b\n'
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given, then",
    [
        ("-hosts a:2,b:2,c -n 5", "-hosts a:2,c:1 -n"),
        ("-f hosts -np 5", "-hosts a:2,c:1 -n"),
        ("-n 5", "-n"),
    ],
)
def test_hosts_that_do_not_answer_are_left_out(own, capsys, tmp_path, monkeypatch, given, then):
    """A program of one's own keeps its number of ranks."""
    (tmp_path / "mpirun").write_text(
        MPIRUN + 'while [ "${1#*python}" = "$1" ]; do shift; done\nexec "$@"\n'
    )
    (tmp_path / "mpirun").chmod(0o755)
    (tmp_path / "hosts").write_text("a:2\nb slots=2  # a comment\nc\n")
    probe = ("--probe", "test ! -e dead-{}")
    assert own("", *probe, launcher=(f"{tmp_path}/mpirun", *given.split())) == (0, 3)
    first, second, _ = Path("launched").read_text().splitlines()
    assert first.startswith(given)
    if "hosts" in given:
        assert second.startswith("-hosts a:4,c:2 -n 5")
        assert "no answer from b (test ! -e dead-{}): it continues on a, c, 5 of 5 ranks: " in (
            capsys.readouterr().err
        )
    else:
        assert second.startswith(given)


@pytest.mark.slow
def test_a_job_that_waits_for_a_lost_host_goes_on_without_it(own, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("mpidec.restart.watch.ASKED", 0.5)
    (tmp_path / "mpirun").write_text(MPIRUN + 'shift 4\nexec "$@"\n')
    (tmp_path / "mpirun").chmod(0o755)
    launcher = (f"{tmp_path}/mpirun", "-n", "2", "-hosts", "a:2,b:2")
    tail, probe = "time.sleep(60 * (done == 0))", ("--probe", "test ! -e dead-{}")
    assert own(tail, *probe, launcher=launcher) == (0, 3)
    said = capsys.readouterr().err
    assert (
        "no answer from b, and it has written nothing meanwhile; the supervisor has ended" in said
    )
    assert Path("launched").read_text().splitlines()[1].startswith("-hosts a:2 -n 2")


@pytest.mark.parametrize(
    "words, environ, left, ranks, expected",
    [
        ("mpirun -n 4 -hosts a:2,b:2", {}, "a", 2, "mpirun -hosts a:2 -n 2"),
        ("mpirun --host=a:2,b:2 --bind-to none", {}, "b", 2, "mpirun --host b:2 -n 2 --bind-to none"),
        ("nice -n 5 mpirun -n 4 --host a:2,b:2", {}, "a", 2, "nice -n 5 mpirun --host a:2 -n 2"),
        ("mpirun -n 16 --host a,b,c,d", {}, "a b c", 12, "mpirun --host a:4,b:4,c:4 -n 12"),
        ("srun -N 2 -n 8 --mpi=pmi2", {"PBS_NODEFILE": "nodes"}, "a", 4, "srun --exclude b --nodes 1 -n 4 --mpi=pmi2"),
    ],
)  # fmt: skip
def test_a_run_goes_on_on_fewer_ranks(tmp_path, monkeypatch, words, environ, left, ranks, expected):
    monkeypatch.chdir(tmp_path)
    Path("nodes").write_text("a\na\nb\nb\n")
    launcher = Launcher.of(words.split(), environ)
    fewer = launcher.fewer(left.split(), any_ranks=True)
    assert fewer == ranks
    assert " ".join(launcher.on(left.split(), fewer)) == expected
    assert launcher.fewer(left.split(), any_ranks=False) == launcher.ranks
    assert launcher.on([*launcher.slots], launcher.ranks) == [*launcher.words]


def written(path: str, outcome: str, checkpoint: bool = True) -> None:
    with RunFile(path, n=2, row_shape=(1,), metrics=["error"], meta={}, trajectory=False) as file:
        file.append(0, {"error": 1.0})
        if checkpoint:
            file.checkpoint(10, {"X": [[1.0], [2.0]]})
        if outcome != "running":
            file.finish([[1.0], [2.0]], outcome, 10)


def test_a_run_is_resumed_from_its_file_and_ends_with_its_outcome(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = "mpirun -n 3 python -m mpidec.run"
    written("run.h5", "completed")
    job, place = job_of(f"{begin} --steps 20 --quiet".split(), None)
    program = ["python", "-m", "mpidec.run"]
    assert place == 3 and job.path == "run-2.h5"  # of another run is run.h5
    first = [*program, "--steps", "20", "--quiet", "--out", "run-2.h5"]
    assert job.begin(3, fewer=False) == first and job.ending(0) is None
    assert job.begin(3, fewer=True) == [*first, "--agents", "3"]
    written("run-2.h5", "running", checkpoint=False)
    assert job.begin(3, fewer=False) == [*first, "--force"] and job.reached() is None
    written("run-2.h5", "running")
    assert job.begin(3, fewer=True) == [*program, "--resume", "run-2.h5", "--quiet"]
    assert job.reached() == 10 and job.ending(0) is None
    for outcome, status in {"completed": 0, "diverged": 3, "missed": 4, "interrupted": 130}.items():
        written("run-2.h5", outcome)
        assert job.ending(9) == (status, f"{outcome} after 10 steps")
        assert job.begin(3, fewer=False)[-3:] == ["--resume", "run-2.h5", "--quiet"]
        assert job.ending(0) is None  # nothing has been written since
    again, _ = job_of("mpidec train --resume run.h5 --epochs 9".split(), None)
    assert again.begin(2, fewer=False)[1:] == ["train", "--resume", "run.h5", "--epochs", "9"]
    assert again.reached() == 10 and again.ending(0) is None and not again.any_ranks
    kept, _ = job_of("mpirun mpidec run --survive --evict=5 --force --out run.h5".split(), None)
    written("run.h5", "running")
    words = ["mpidec", "run", "--resume", "run.h5", "--survive", "--evict", "5"]
    assert kept.begin(2, fewer=False) == words


@pytest.mark.parametrize(
    "words, file, why",
    [
        ("mpirun -n 2 ./mine", None, "expected a command of mpidec that resumes"),
        ("mpirun -wdir /scratch/mpidec -n 2 ./mine", None, "expected a command of mpidec that"),
        ("mpirun mpidec", None, "expected a command of mpidec that resumes"),
        ("mpirun mpidec bench", None, "mpidec bench does not resume: expected one of run, train"),
        ("mpirun mpidec tarin", None, "mpidec tarin does not resume: did you mean train?"),
        ("mpidec reproduce --all --force", None, "--force replaces the results in reproduced"),
        ("mpidec run --list", None, "mpidec run --list prints a text and ends"),
        ("mpidec sweep --seeds 2", "a.txt", "--file is for programs of your own"),
    ],
)
def test_commands_that_cannot_be_continued_are_refused(words, file, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        job_of(words.split(), file)


def test_a_launcher_that_changes_the_folder_is_refused():
    with pytest.raises(ConfigError, match=r"--wdir /scratch: .*cd /scratch"):
        Launcher.of("mpirun --wdir=/scratch -n 2".split(), {})


@pytest.mark.slow
def test_a_signal_is_passed_on_and_nothing_starts_again(tmp_path):
    ready = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); open('up', 'w'); time.sleep(60)"
    code = f"import signal, sys, time; {ready}"
    line = ["-m", "mpidec.restart", "--file", "progress.txt", "--", sys.executable, "-c", code]
    process = launch.start([sys.executable, *line], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert launch.until((tmp_path / "up").exists, 60)
    os.kill(process.pid, signal.SIGTERM)
    done = launch.finish(process, 30)
    assert (done.returncode, done.stderr) == (
        130,
        "mpidec.restart: progress.txt is not written yet: ended by SIGTERM\n",
    )


@pytest.mark.slow
def test_launchers_get_the_signal_that_they_pass_on_to_the_ranks(tmp_path):
    trap = "trap 'echo USR1 >got; exit 130' USR1; touch up; while :; do sleep 0.05; done"
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{trap}\n")
    (tmp_path / "mpirun").chmod(0o755)
    line = ["-m", "mpidec.restart", "--", "./mpirun", "mpidec", "run"]
    process = launch.start([sys.executable, *line], cwd=tmp_path)
    assert launch.until((tmp_path / "up").exists, 60)
    os.kill(process.pid, signal.SIGHUP)
    assert launch.finish(process, 30).returncode == 130 and (tmp_path / "got").exists()


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize("command", deaths.JOBS)
def test_a_job_whose_ranks_die_ends_with_the_bits_of_an_undisturbed_one(tmp_path, command, how):
    alone = 4 if command == "train" else 0
    expected, _ = deaths.undisturbed(command, tmp_path / "expected", alone)
    rng = random.Random(f"{command} {how}")
    moments = [deaths.Death(0, rng.uniform(0, 2)), deaths.Death(2, 0.1)]
    ended = deaths.case(command, launch.mpirun_command(4), moments, how, tmp_path / "case", rng)
    assert ended.status in (0, 4) and not deaths.differences(
        expected, deaths.contents(tmp_path / "case")
    ), ended.log
