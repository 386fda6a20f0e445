"""The console command: ``mpidec run ...`` does what ``python -m mpidec.run ...`` does."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings

import pytest
from helpers import launch

from mpidec import __main__ as console
from mpidec.cli.program import warnings_from_rank_0
from mpidec.cli.tables import quantity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.serial
ROOT = launch.ROOT
SMALL = [
    "--problem=least_squares",
    "--data=synthetic_least_squares",
    "--set=problem.p=4",
    "--set=problem.d=3",
    "--steps=5",
    "--quiet",
]


def test_the_installed_command_is_this_one():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, name = settings["project"]["scripts"]["mpidec"].partition(":")
    assert module == console.__name__ and getattr(console, name) is console.main


def test_help_lists_the_commands(capsys):
    assert console.main([]) == 0
    first = capsys.readouterr().out
    assert console.main(["--help"]) == 0 and capsys.readouterr().out == first
    lines = dict(line.split(None, 1) for line in first.splitlines() if line.startswith("  "))
    assert {"run", "plot", "sweep", "bench", "doctor"} <= lines.keys() and lines[
        "run"
    ].strip().startswith("run an experiment")
    assert all(
        (ROOT / "mpidec" / name).exists() or (ROOT / "mpidec" / f"{name}.py").exists()
        for name in lines
    )


def test_the_reader_of_a_help_text_may_leave():
    script = f"set -o pipefail; {shlex.quote(sys.executable)} -m mpidec.bench --help | true"
    done = launch.finish(launch.start(["bash", "-c", script], text=True, stderr=-1), 60)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_are_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")  # of mpidec plot
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mpidec"])
    assert console.main(["run", *SMALL, "--agents=4"]) == 0 and (tmp_path / "run.h5").exists()
    assert (
        console.main(["plot", "missing.h5"]) == 2
        and capsys.readouterr().err == "mpidec.plot: error: missing.h5 does not exist\n"
    )
    assert console.main(["sweep", "--seeds", "0"]) == 2
    assert (
        capsys.readouterr().err
        == "mpidec.sweep: error: --seeds: expected a positive integer, got 0\n"
    )


@pytest.mark.parametrize(
    "name, remedy",
    [("swep", "did you mean sweep?"), ("xyzzy", "expected one of run, plot, sweep,")],
)
def test_an_unknown_command_is_told_the_nearest(name, remedy, capsys):
    assert console.main([name]) == 2
    out, error = capsys.readouterr()
    assert (
        out == ""
        and error.startswith(f"mpidec: error: unknown command {name!r}: {remedy}")
        and error.count("\n") == 1
    )


@pytest.mark.parametrize(
    "value, said",
    [
        (0, "0 B"),
        (7.25, "7.25 B"),
        (999, "999 B"),
        (999.94, "999.9 B"),
        (999.96, "1 kB"),
        (1000, "1 kB"),
        (1010, "1.01 kB"),
        (12_345, "12.35 kB"),
        (999_940, "999.9 kB"),
        (999_960, "1 MB"),
        (1e6, "1 MB"),
        (4.5e9, "4.5 GB"),
        (2e12, "2 TB"),
        (3e15, "3 PB"),
        (4e18, "4000 PB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_sizes_in_words(value, said):
    assert quantity(value, "B") == said


@pytest.mark.launch
def test_on_several_ranks(mpirun, tmp_path):
    done = mpirun(2, ["-m", "mpidec", "run", *SMALL], cwd=tmp_path, check=True)
    assert (done.stdout, done.stderr) == ("", "") and (tmp_path / "run.h5").exists()
    done = mpirun(2, ["-m", "mpidec", "runn"], cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("did you mean run") == 1


def test_warnings_are_printed_once_by_rank_0(capsys):
    for rank in (0, 1):
        with warnings_from_rank_0(rank, "run"):
            warnings.warn("slow", RuntimeWarning, stacklevel=1)
            warnings.warn("slow", RuntimeWarning, stacklevel=1)
            warnings.warn("of another package", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "mpidec.run: warning: slow\n"


def test_warnings_of_other_packages_are_not_those_of_the_command(capsys, monkeypatch):
    others = []
    monkeypatch.setattr(
        warnings, "showwarning", lambda message, *_, **__: others.append(str(message))
    )
    with warnings_from_rank_0(0, "run"):
        for kind in (DeprecationWarning, UserWarning):
            warnings.warn_explicit("old", kind, argparse.__file__, 1)
            warnings.warn_explicit("mine", kind, "my.py", 1)
    assert others == ["old"] and capsys.readouterr().err == "mpidec.run: warning: mine\n"
