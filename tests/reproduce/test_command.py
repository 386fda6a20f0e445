"""Command line of ``mpidec reproduce``."""

from __future__ import annotations

import os

import pytest
from helpers import launch

from mpidec._words import command_of_extras
from mpidec.reproduce import EXPERIMENTS, command
from mpidec.reproduce.command import RECIPES, main
from mpidec.reproduce.store import read

pytestmark = pytest.mark.serial


def test_an_experiment_leaves_its_files_and_a_page(tmp_path, capsys):
    out = str(tmp_path / "folder")
    assert main(["ceca-fig5", "--seeds", "7", "--set", "sizes=5,6", "--out", out, "--quiet"]) == 0
    text, error = capsys.readouterr()
    assert "n = 5, 2P" in text and "3 of 3 lines agree" in text and not error
    page = (tmp_path / "folder" / "index.md").read_text()
    assert "## ceca-fig5" in page and "| n = 6, 1P" in page
    cells, _ = read(f"{out}/ceca-fig5.h5")
    assert set(cells) == {"5, 2, 7", "6, 1, 7", "6, 2, 7"}
    assert main(["ceca-fig5", "--set", "sizes=7", "--out", out]) == 0
    assert capsys.readouterr().err.count("ceca-fig5: 7, 2, ") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected names of experiments, or --all"),
        (["ceca-fig5", "--all"], "expected names of experiments, or --all"),
        (["ceca-fig55"], "unknown experiment 'ceca-fig55': did you mean ceca-fig5"),
        (["ceca-fig5", "--set", "size=3"], "unknown setting 'size': did you mean sizes"),
        (["ceca-fig5", "--set", "sizes=a"], "ceca-fig5: sizes: expected a list, each an integer"),
        (["ceca-fig5", "--seeds=7,7"], "ceca-fig5: seeds: a value is given twice"),
        (["ceca-fig5", "--fast"], "--fast"),
    ],
)
def test_wrong_use_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    text, error = capsys.readouterr()
    assert message in error and error.count("\n") == 1 and not text
    assert not list(tmp_path.iterdir())


def test_the_list_names_all(capsys):
    assert main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}  (" in text for name in EXPERIMENTS)
    assert "acid-table4.toml  (A2CiD2, Table 4: CIFAR-10" in text


EARLY = """
import os, signal, sys
from mpi4py import MPI
from mpidec.reproduce import command, measuring
on_root = measuring.on_root
def interrupted(comm, act, *args):
    measuring.on_root = on_root
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    return on_root(comm, act, *args)
measuring.on_root = interrupted
sys.exit(command.main(sys.argv[1:]))
"""


@pytest.mark.launch
def test_an_interrupt_of_one_rank_before_its_first_cell_ends_all(tmp_path):
    arguments = ["ceca-fig5", "--quick", "--quiet", "--out", str(tmp_path)]
    done = launch.mpirun(2, ["-c", EARLY, *arguments], timeout=60)
    assert done.returncode == 130, done.stderr
    assert "interrupted: the same command continues" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", RECIPES, ids=os.path.basename)
def test_files_of_the_originals_are_settings(path):
    pytest.importorskip("torch")
    from mpidec.train.settings import Settings, graph, read_toml

    settings = Settings.load(read_toml(path)).complete(16)
    assert graph(settings, 16)
    with open(path) as file:
        text = file.read()
    assert "Published" in text and "Not run here" in text


def test_matplotlib_is_looked_for_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert command.main(["ceca-fig5", "--quick", "-o", str(tmp_path / "out")]) == 2
    assert f"figures with matplotlib: {command_of_extras('plot')}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
