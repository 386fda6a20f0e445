"""python -m mpidec.bench: what it measures is complete, and written as documented.  Speeds are not tested."""

from __future__ import annotations

import json

import pytest
from helpers.benchmark import TINY

from mpidec.bench import command as bench, report

pytestmark = pytest.mark.launch


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_one_process_measures_what_it_can(capsys):
    pytest.importorskip("matplotlib")
    assert (
        bench.main([*TINY, "--graphs=one_peer_exponential", "--json=one.json", "--plot=one.png"])
        == 0
    )
    out = capsys.readouterr().out
    assert "One process" in out and "\nlocal limit" in out and f"\n{report.ALLREDUCE}" not in out
    with open("one.json") as file:
        rows = json.load(file)["results"]
    assert "Left out: nodes, local, windows." in out
    assert [row["group"] for row in rows] == ["mixing"] * 2 * 4 + ["solve"] * 2 * 4
    assert all(row["faster_than_allreduce"] is row["times_hand"] is None for row in rows[:8])
    assert [row["times_hand"] for row in rows[11::4]] == [1.0, 1.0]
    with open("one.png", "rb") as picture:
        assert picture.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "argument, said",
    [
        ("--sizes=9", "multiples of 8"),
        ("--sizes=1T", "multiples of 8"),
        ("--graphs=rung", "did you mean ring?"),
        ("--transports=neighbour", "did you mean neighbor?"),
        ("--rows=mixin", "did you mean mixing?"),
        ("--rows=local,nodes", "needs several ranks"),
        ("--seconds=0", "time > 0"),
        ("--json=no/where.json", "cannot be written"),
        ("--compute=a,0", "milliseconds >= 0"),
        ("--wrong", "unknown flag"),
        ("--sizes=4096G", "take smaller rows"),
    ],
)
def test_a_bad_argument_is_said(argument, said, capsys):
    assert bench.main([argument]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mpidec.bench: error: ") and said in error and error.count("\n") == 1


def test_help_has_examples(capsys):
    assert bench.main(["--help"]) == 0
    assert "mpirun -n 4 python -m mpidec.bench" in capsys.readouterr().out
