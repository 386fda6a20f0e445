"""`bfrun`: its command lines, and what runs below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from helpers import launch

from mpidec.bluefog import launch as bfrun, variables

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.serial
BFRUN = [sys.executable, "-m", "mpidec.bluefog.launch"]
LIBRARIES = {"open": "mpirun (Open MPI) 5.0.11", "hydra": "HYDRA build details:"}


@pytest.fixture
def fake_mpirun(tmp_path):
    """Return a function that puts an `mpirun` of some library into a folder, and returns this folder."""

    def made(library: str) -> str:
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/sh\necho '{LIBRARIES[library]}'\n")
        path.chmod(0o755)
        return str(tmp_path)

    return made


def run(*words: str, folder=None, **env: str) -> subprocess.CompletedProcess:
    """Run `bfrun` with some arguments."""
    process = launch.start([*BFRUN, *words], env=env, cwd=folder, text=True, stdout=-1, stderr=-1)
    return launch.finish(process, 100)


def test_the_commands_are_installed():
    settings = tomllib.loads((launch.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    scripts = settings["project"]["scripts"]
    assert scripts["bfrun"] == f"{bfrun.__name__}:main" and callable(bfrun.main)
    assert scripts["ibfrun"] == "mpidec.bluefog.interactive:main"


@pytest.mark.parametrize(
    "words, told",
    [
        ("python program.py", "the number of ranks is missing: -np 4"),
        ("-np four python", "argument -np/--num-proc: invalid int value: 'four'"),
        ("-np 0 python", "-np is 0, expected a positive integer"),
        ("-np 3", "the command is missing: bfrun -np 4 python program.py"),
        ("-np 3 no-such-program", "'no-such-program' was not found, or is not executable"),
        ("-np 3 my.py", "'my.py' was not found, or is not executable: bfrun ... python my.py"),
        ("-np 3 --timelin x python", "unknown flag '--timelin': did you mean --timeline-filename"),
        ("--hots a:3 -np 3 python", "unknown flag '--hots': did you mean --hosts"),
        ("-np 3 -x A=1 python", "unknown flag '-x': see --help; flags of mpirun go to --extra-mpi"),
        ("-np 3 --prefix /none python", "not executable, in the folder that --prefix names"),
        ("-np 3 --timeline-filename /none/a python", "/none/a: expected a prefix in a folder"),
        ("-np 3 -H a -hostfile b python", "-hostfile/--hostfile: not allowed with argument -H"),
        ("-np 3 -H a:2,,b python", "-H a:2,,b: '', expected 'host' or 'host:N'"),
        ("-np 3 -H a:0 python", "'a:0', expected 'host' or 'host:N'"),
        ("-np 3 -hostfile /dev/null python", "/dev/null names no host"),
        ("-np 3 -hostfile missing python", "missing: No such file or directory"),
        ("-np 3 --extra-mpi-flags 'a python", "--extra-mpi-flags 'a: No closing quotation"),
    ],
)
def test_wrong_command_lines_are_one_line(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bfrun.main(words.split(" ")) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    assert error.startswith("bfrun: error: ") and told in error


@pytest.mark.parametrize("library", LIBRARIES)
def test_hosts_are_told_in_the_way_of_the_library(library, fake_mpirun, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# two machines\nfirst slots=3\n\nsecond   slots=2  # small\nthird\n")
    flags = {
        "open": [
            "--host",
            "first:3,second:2,third:1",
            "-x",
            "PATH",
            "-x",
            "MINE",
            "-x",
            "PYTHONPATH",
        ],
        "hydra": ["-hosts", "first:3,second:2,third:1"],
    }[library]
    env = {
        "PATH": os.environ["PATH"],
        "MINE": "1",
        "OLDPWD": "/",
        "PMIX_RANK": "0",
        "BASH_FUNC_f%%": "",
    }
    folder = fake_mpirun(library)
    words = [
        "-np",
        "6",
        "-hostfile",
        str(hosts),
        "--prefix",
        folder,
        "--extra-mpi-flags",
        "-a 'b c'",
    ]
    command = bfrun.command_line([*words, "train", "--np", "2"], env)
    assert command == [f"{folder}/mpirun", "-n", "6", *flags, "-a", "b c", "train", "--np", "2"]
    words[2:4] = ["-H", "first:3,second:2,third:1"]
    assert bfrun.command_line([*words, "train", "--np", "2"], env) == command


def test_a_wrong_line_of_hosts_is_named(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("first slots=3\nsecond slot=2\n")
    with pytest.raises(ValueError, match=r"line 2: 'second slot=2', expected 'host slots=N'"):
        bfrun.command_line(["-np", "5", "-hostfile", str(hosts), "x"], {"PATH": os.environ["PATH"]})


def test_bluefogs_flags_are_taken(fake_mpirun, capsys):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": "mine"}
    words = ["-np", "3", "-p", "22", "--use-infiniband", "--timeline-filename", "run"]
    command = bfrun.command_line(
        [
            *words,
            "--verbose",
            "--prefix",
            fake_mpirun("hydra"),
            "--extra-mpi-flags",
            "-l",
            "echo",
            "-p",
        ],
        env,
    )
    assert command[1:] == ["-n", "3", "-l", "echo", "-p"]
    assert env["BLUEFOG_TIMELINE"] == "run" and env["BLUEFOG_LOG_LEVEL"] == "debug"
    assert env["PYTHONPATH"].split(os.pathsep) == [variables.IMPORTABLE, "mine"]
    assert env["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
    first, second = capsys.readouterr().err.splitlines()
    assert (
        first.startswith("bfrun: no effect: -p, --use-infiniband (") and "-n 3 -l echo -p" in second
    )


@pytest.mark.parametrize(
    "command, told",
    [
        ("python sub/program.py", True),
        ("python -u sub/program.py --data x.py", True),
        ("python -m mpidec.bluefog sub/program.py", False),
        ("python program.py sub/data.py", False),
        ("python -m pytest program.py", False),
        ("hostname", False),
    ],
)
def test_another_bluefog_beside_the_program_is_named(command, told, tmp_path, capsys, monkeypatch):
    """Python would find it before this one; with ``-m`` one in the folder where it is started."""
    other = tmp_path / "sub" / "bluefog"
    other.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    env = {"PATH": os.environ["PATH"]}
    bfrun.command_line(["-np", "3", *command.split()], env)
    assert capsys.readouterr().err == ""  # a folder without modules is no package
    (other / "__init__.py").touch()
    bfrun.command_line(["-np", "3", *command.split()], env)
    error = capsys.readouterr().err
    assert error.count("\n") == told and ("python -m mpidec.bluefog" in error) == told
    monkeypatch.chdir(tmp_path / "sub")
    bfrun.command_line(["-np", "3", "python", "-m", "pytest"], env)
    assert "finds ./bluefog/__init__.py, not mpidec" in capsys.readouterr().err


def test_variables_of_bluefog():
    env = {"BLUEFOG_NODES_PER_MACHINE": "3", "BLUEFOG_TIMELINE": "a", "MPIDEC_TIMELINE": "b"}
    variables.translate(env)
    assert env["MPIDEC_RANKS_PER_MACHINE"] == "3" and env["MPIDEC_TIMELINE"] == "b"
    for name, value, expected in (
        ("BLUEFOG_NODES_PER_MACHINE", "4", "4"),
        ("MPIDEC_RANKS_PER_MACHINE", "5", "5"),
    ):
        env[name] = value
        variables.translate(env)
        assert env["MPIDEC_RANKS_PER_MACHINE"] == expected
    assert variables.ignored({**env, "BLUEFOG_OPS_ON_CPU": "1"}) == ["BLUEFOG_OPS_ON_CPU"]
    assert (
        variables.level({"BLUEFOG_LOG_LEVEL": "Trace"}) == "DEBUG" and variables.level({}) is None
    )
    with pytest.raises(
        ValueError, match="BLUEFOG_LOG_LEVEL is 'loud', expected one of trace, debug"
    ):
        variables.level({"BLUEFOG_LOG_LEVEL": "loud"})


@pytest.mark.launch
@pytest.mark.library
def test_any_python_below_finds_bluefog_and_its_status_is_passed_on(tmp_path):
    (tmp_path / "outer.py").write_text(
        "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'inner.py']))\n"
    )
    (tmp_path / "inner.py").write_text(
        "import sys\nfrom importlib.util import find_spec\nsys.stdout.write(find_spec('bluefog').origin + '\\n')\nsys.exit(7)\n"
    )
    done = run("-np", "3", "python", "outer.py", folder=tmp_path)
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == [f"{variables.IMPORTABLE}/bluefog/__init__.py"] * 3


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.library
def test_a_program_runs_unchanged(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(
        "import bluefog.torch as bf, torch\n"
        "from bluefog.common import topology_util\nbf.init()\n"
        "bf.set_topology(topology_util.RingGraph(bf.size()))\n"
        "mean = bf.neighbor_allreduce(torch.ones(2) * bf.rank()).tolist()\n"
        "import sys; sys.stdout.write(f'{bf.local_size()} {mean}\\n')\n"
    )
    env = {
        "BLUEFOG_FUSION_THRESHOLD": "5",
        "BLUEFOG_NODES_PER_MACHINE": "1",
        "BLUEFOG_LOG_LEVEL": "info",
    }
    done = run("-np", "3", "python", "program.py", folder=tmp_path, **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 [1.0, 1.0]"] * 3
    assert done.stderr.splitlines() == ["bf.init: no effect: BLUEFOG_FUSION_THRESHOLD"]


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.library
def test_ctrl_c_ends_all_ranks(tmp_path):
    (tmp_path / "wait.py").write_text(
        "import time\nfrom mpi4py import MPI\nprint('waits', flush=True)\ntime.sleep(100)\n"
    )
    command = [*BFRUN, "-np", "3", "python", "wait.py"]
    process = launch.start(command, cwd=tmp_path, text=True, stdout=-1, stderr=-1)
    try:
        assert [process.stdout.readline().strip() for _ in range(3)] == ["waits"] * 3
        ranks = launch.family(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=launch.patient(20))
    finally:
        launch.end(process)
    assert process.returncode != 0
    left = lambda: [pid for pid in ranks if os.path.exists(f"/proc/{pid}")]
    assert launch.until(lambda: not left(), 5), f"ranks {left()} have survived"
