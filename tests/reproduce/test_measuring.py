"""Measuring of cells: in one process, on ranks, after a kill; and what is refused."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from mpi4py import MPI

from mpidec.exceptions import InputError
from mpidec.reproduce import About, Experiment, measure, publish
from mpidec.reproduce.command import main
from mpidec.reproduce.drawing import curves
from mpidec.reproduce.store import key, read
from mpidec.reproduce.verdict import ITSELF, ORDER, PRINTED, Line, Report, derived, holds, within

WORLD = MPI.COMM_WORLD


@dataclass(frozen=True)
class Squares(Experiment[tuple[str, int]]):
    """Squares of numbers, of which one is not as published."""

    about: ClassVar = About("squares", "Nobody, Table 1", "squares grow")

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5)
    power: int = 2
    fails_at: int = 0

    def cells(self):
        return (("a/b", n) for n in self.sizes)

    def measure(self, cell):
        _, n = cell
        if n == self.fails_at:
            raise ZeroDivisionError("as asked")
        return {"square": n**self.power, "random": np.random.default_rng(n).random(3)}

    def judge(self, results):
        for (_, n), found in results.items():
            yield within(f"n = {n}", n * n + (n == 3), float(found["square"]), 0.05)
        yield holds("grow", True, "yes", "each larger than the one before")
        yield Line("known", 1.0, 2.0, False, "equal", "the paper says so", explains=True)

    def draw(self, results, figure):
        squares = [found["square"] for found in results.values()]
        curves(figure.add_subplot(), {"here": (self.sizes, squares)}, "n", "square")


def no_space(line: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def folder(tmp_path):
    return WORLD.bcast(str(tmp_path))


def test_cells_are_the_same_on_ranks_and_after_an_error(folder):
    whole, broken = f"{folder}/whole.h5", f"{folder}/broken.h5"
    measure(Squares(), whole)
    with pytest.raises(ZeroDivisionError):
        measure(Squares(fails_at=5, sizes=(1, 2, 5)), broken)
    lines: list[str] = []
    if WORLD.rank == 0:
        done = read(broken)[0]
        assert 0 < len(done) <= 2 and key(("a/b", 5)) not in done
    WORLD.Barrier()
    with pytest.raises(InputError, match="made with other settings"):
        measure(Squares(), broken)
    with pytest.raises(InputError, match=r"full\.h5: No space left on device: with free space"):
        measure(Squares(), f"{folder}/full.h5", on_cell=no_space)
    measure(Squares(fails_at=6), f"{folder}/other.h5", on_cell=lines.append)
    if WORLD.rank == 0:
        assert len(lines) == 5
        one, two = read(whole)[0], read(f"{folder}/other.h5")[0]
        assert list(one) == list(two) == [f"a|b, {n}" for n in range(1, 6)]
        for name in one:
            assert all((one[name][x] == two[name][x]).all() for x in ("square", "random"))
    WORLD.Barrier()


def test_the_command_on_ranks(folder):
    assert main(["ceca-fig5", "--quick", "--quiet", "--out", folder]) == 0
    if WORLD.rank == 0:
        with open(f"{folder}/index.md", encoding="utf-8") as page:
            assert "lines agree" in page.read()
    WORLD.Barrier()


@pytest.mark.serial
def test_a_package_that_is_missing_is_named_with_a_remedy(tmp_path, monkeypatch):
    def measured(self, cell):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(Squares, "measure", measured)
    with pytest.raises(InputError, match=r"'torch': pip install .*\[torch,data,plot\]'"):
        measure(Squares(), str(tmp_path / "squares.h5"))


@pytest.mark.serial
def test_what_is_there_is_not_measured_again_and_the_report_counts_verdicts(tmp_path):
    path, lines = str(tmp_path / "squares.h5"), []
    measure(Squares(sizes=(1, 2)), path, on_cell=lines.append)
    measure(Squares(), path, on_cell=lines.append)
    assert [line.split(":")[1] for line in lines] == [f" a/b, {n}" for n in range(1, 6)]
    report = publish(Squares(), path)
    assert report.failed and report.summary == (
        "5 of 7 lines agree, 1 differs for a known reason, 1 differs (6 printed numbers, 1 order)"
    )
    unjudged = [
        Line("steps", None, 3.0),
        Line("no bound", 1.0, 2.0, True, "equal", "of smaller data"),
        Line("itself", None, 2.0, True, "equal", by=ITSELF),
    ]
    more = replace(report, lines=[*report.lines, *unjudged])
    assert more.summary == report.summary.replace(" (", ", 3 not judged (")
    beyond = Line("known", 1.0, 20.0, False, "equal", "the paper says so", explains=False)
    assert beyond.failed and beyond.verdict == "differs: expected equal"
    assert "differs: expected within 5 %" in str(report)
    assert "differs, because the paper says so" in (tmp_path / "squares.csv").read_text()
    assert "| n = 3 | 10 | 9 | 0.9 |" in (tmp_path / "squares.md").read_text()
    assert (tmp_path / "squares.png").stat().st_size > 5000
    assert not publish(Squares(sizes=(1, 2)), path).failed
    measure(Squares(sizes=(2,)), path, force=True, on_cell=lines.append)
    assert len(lines) == 6 and list(read(path)[0]) == ["a|b, 2"]


@pytest.mark.serial
def test_a_damaged_file_is_named_with_a_remedy(tmp_path):
    path = tmp_path / "squares.h5"
    measure(Squares(), str(path), comm=MPI.COMM_SELF)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"squares\.h5: damaged.*: --force replaces it"):
        measure(Squares(), str(path), comm=MPI.COMM_SELF)
    measure(Squares(), str(path), comm=MPI.COMM_SELF, force=True)
    assert len(read(str(path))[0]) == 5


@pytest.mark.serial
def test_each_line_of_a_report_is_counted_once():
    """Whatever its verdict, and whether a reason is known beside it."""
    rng, about = np.random.default_rng(0), Squares().about
    whys = (("", None), ("of the data", None), ("of the data", True))
    kinds = [(agrees, *why) for agrees in (None, True, False) for why in whys]
    for _ in range(40):
        lines = [
            Line("x", 1.0, 2.0, agrees, "1", why, explains)
            for agrees, why, explains in (kinds[i] for i in rng.integers(0, 9, 9))
        ]
        report = Report(about, lines)
        counts = dict.fromkeys(("agree", "known reason", "differ", "not judged"), 0)
        for text in report.summary.split(" (")[0].split(", "):
            end = text if text.endswith(("known reason", "not judged")) else text.rstrip("s")
            counts[next(word for word in counts if end.endswith(word))] += int(text.split()[0])
        told = [line.verdict.partition(":")[0].partition(",")[0] for line in lines]
        assert sum(counts.values()) == len(lines), report.summary
        assert counts["agree"] == told.count("agrees")
        assert counts["known reason"] + counts["differ"] == told.count("differs")
        assert (counts["differ"] > 0) == report.failed


def test_a_statement_about_a_published_figure_is_no_comparison_with_it():
    assert holds("ratio", True, 3.2, "over 2", published=3.1).judge == ORDER
    assert within("ratio", 3.1, 3.2, 0.1).judge == PRINTED


@pytest.mark.serial
@pytest.mark.parametrize("line", [within, derived])
def test_a_line_agrees_up_to_a_part_of_the_size_whatever_its_sign(line):
    for value in (3.0, -3.0, 1e-9, -1e9):
        for error, agrees in ((0.0, True), (0.04, True), (0.06, False)):
            for here in (value * (1 + error), value * (1 - error)):
                assert line("x", value, here, 0.05).agrees == agrees, (value, here)
