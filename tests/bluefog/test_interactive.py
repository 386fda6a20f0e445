"""`ibfrun`: its command lines, and engines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import launch

from mpidec.bluefog import interactive

pytestmark = pytest.mark.serial
pytest.importorskip("ipyparallel")
IBFRUN = [sys.executable, "-m", "mpidec.bluefog.interactive"]


@pytest.mark.parametrize(
    "words, told",
    [
        ("start", "the number of ranks is missing: -np 4"),
        ("start -np 0", "-np is 0, expected a positive integer"),
        ("", "expected start or stop: ibfrun start -np 4"),
        ("begin -np 3", "invalid choice: 'begin'"),
        ("start -np 3 --profile x", "unknown flag '--profile'"),
        ("stop", "no engines of the profile 'bluefog' run"),
    ],
)
def test_wrong_command_lines_are_one_line(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert interactive.main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("ibfrun: error: ") and told in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.library
def test_engines_are_ranks(tmp_path):
    """Engine id = rank, `bluefog` is importable, and no process survives `stop`."""
    pytest.importorskip("torch")
    (tmp_path / "client.py").write_text(
        "import ipyparallel\nclient = ipyparallel.Client(profile='bluefog')\n"
        "client[:].execute('import bluefog.torch as bf; bf.init(); r = bf.rank(), bf.size()').get()\n"
        "print(client.ids, client[:]['r'])\n"
    )
    env = launch.environment({"IPYTHONDIR": str(tmp_path / "ipython")})

    def run(*command: str) -> subprocess.CompletedProcess:
        process = launch.start([*command], env=env, cwd=tmp_path, text=True, stdout=-1, stderr=-1)
        return launch.finish(process, 100)

    process = launch.start(
        [*IBFRUN, "start", "-np", "3"], env=env, cwd=tmp_path, stdout=-1, text=True
    )
    try:
        assert "3 engines are ready" in process.stdout.readline()
        again = run(*IBFRUN, "start", "-np", "2")
        assert again.returncode == 2 and "already run: ibfrun stop" in again.stderr
        done = run(sys.executable, "client.py")
        assert done.stdout == "[0, 1, 2] [(0, 3), (1, 3), (2, 3)]\n", done.stderr
        (tmp_path / "hangs.py").write_text(
            "import time, ipyparallel\nfrom bluefog.run.interactive_run import interrupt_hanged_processes\n"
            "client = ipyparallel.Client(profile='bluefog')\n"
            "client[:].execute('import time', block=True)\n"
            "client[1].execute('time.sleep(1000)', block=False)\n"
            "interrupt_hanged_processes()\nprint(client[:].apply_sync(int))\n"
        )
        done = run(sys.executable, "-m", "mpidec.bluefog", "hangs.py")
        assert done.stdout == "interrupted the engines 1\n[0, 0, 0]\n", done.stderr
        everybody = launch.family(process.pid)
        assert run(*IBFRUN, "stop").returncode == 0
        assert process.wait(launch.patient(20)) == 0
        left = lambda: [pid for pid in everybody if "ipyparallel" in command_of(pid)]
        assert launch.until(lambda: not left(), 20), left()
    finally:
        launch.end(process)


def command_of(pid: int) -> str:
    """The command of a process; empty if it has ended."""
    try:
        return re.sub("\0", " ", Path(f"/proc/{pid}/cmdline").read_text())
    except OSError:
        return ""
