"""Sweeps: cases, files that are recognized, work shared out over ranks, tables against numbers by hand, kills and restarts."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import launch
from mpi4py import MPI

from mpidec import InputError, record, solvers
from mpidec.experiment import settings as config
from mpidec.plot.labels import flat
from mpidec.record import RunFile
from mpidec.record.internals import AtomicFile
from mpidec.sweep import sweep
from mpidec.sweep.cases import (
    Case,
    CaseStatus,
    Variation,
    _changes,
    cases,
    common_graph,
    config_text,
    parse_vary,
    status,
)
from mpidec.sweep.command import main
from mpidec.sweep.sharing import WorkQueue
from mpidec.sweep.tables import Row, Spread, Table, table

WORLD = MPI.COMM_WORLD
SMALL = {
    "problem.name": "least_squares",
    "problem.data": "synthetic_least_squares",
    "problem.p": 4,
    "problem.d": 3,
    "run.agents": 4,
    "run.steps": 40,
    "run.every": 10,
    "solver.step_size": 0.01,
}
FLAGS = [f"--set={key}={value}" for key, value in SMALL.items()]
VARY = ["--vary", "solver.name=extra,dgd", "--vary", "topology.name=ring,star"]


@pytest.fixture
def folder(tmp_path):
    """A folder that all ranks know."""
    return WORLD.bcast(str(tmp_path / "sweep"))


def same(one: Path, other: Path) -> bool:
    """Whether two files hold the same metrics and result, bit for bit, except for the time."""
    with h5py.File(one) as a, h5py.File(other) as b:
        names = ["result/x", *(f"metrics/{name}" for name in a["metrics"] if name != "time")]
        return all(np.array_equal(a[name][...], b[name][...]) for name in names)


# -- on any number of ranks -------------------------------------------------------------------------------------------


def test_a_sweep_runs_every_combination(folder):
    told = []
    vary = {"solver.name": ["extra", "dgd"], "topology.name": ["ring", "star"]}
    result = sweep(
        SMALL, vary=vary, seeds=2, out=folder, target=("error", 0.9), on_line=told.append
    )
    assert [tuple(row.varied.values()) for row in result.rows] == [
        ("extra", "ring"),
        ("extra", "star"),
        ("dgd", "ring"),
        ("dgd", "star"),
    ]
    assert all(
        row.runs == 2 and row.outcomes == {"completed": 2} and len(row.files) == 2
        for row in result.rows
    )
    assert len(told) == (8 if WORLD.rank == 0 else 0)
    if WORLD.rank == 0:
        assert sorted(path.name for path in Path(folder).glob("*.h5"))[:2] == [
            "dgd-ring-seed=0.h5",
            "dgd-ring-seed=1.h5",
        ]
        alone = sweep(
            SMALL,
            vary={"solver.name": ["extra"]},
            seeds=1,
            out=f"{folder}.alone",
            comm=MPI.COMM_SELF,
        )
        assert same(
            alone.rows[0].files[0], result.rows[0].files[0]
        )  # as in one process, on any number of ranks
    WORLD.Barrier()
    told.clear()
    again = sweep(SMALL, vary=vary, seeds=2, out=folder, target=("error", 0.9), on_line=told.append)
    assert not told and again == result  # nothing is repeated
    if WORLD.rank == 0:
        (Path(folder) / "dgd-ring-seed=1.h5").unlink()
    WORLD.Barrier()
    sweep(SMALL, vary=vary, seeds=2, out=folder, on_line=told.append)
    assert len(told) == (1 if WORLD.rank == 0 else 0)


def test_a_sweep_over_pairs_of_matrices(folder):
    vary = {
        "solver.name": ["push_pull", "gradient_tracking"],
        "topology.weights": ["push-pull", "metropolis"],
    }
    star = SMALL | {"topology.name": "star", "run.steps": 300, "solver.step_size": 0.05}
    result = sweep(star, vary=vary, seeds=1, out=folder)
    found = {tuple(row.varied.values()): row for row in result.rows}
    refused = found.pop(("gradient_tracking", "push-pull"))  # it takes no pair
    assert refused.outcomes == {"failed": 1} and not refused.files
    for (_, weights), row in found.items():
        assert row.outcomes == {"completed": 1} and row.last < 2e-4
        assert len(record.read(row.files[0]).columns or ()) == (weights == "push-pull")


def test_a_run_that_fails_or_diverges_does_not_end_the_sweep(folder):
    result = sweep(
        {**SMALL, "run.steps": 3000, "solver.step_size": 50.0},
        out=folder,
        target=("error", 1e-3),
        vary={"solver.name": ["relaysgd", "dgd"], "topology.name": ["ring"]},
    )
    failed, diverged = result.rows
    assert failed.outcomes == {"failed": 1} and not failed.files and math.isnan(failed.last)
    assert diverged.outcomes == {"diverged": 1} and diverged.reached == 0 and diverged.steps is None
    assert any("tree" in note and "relaysgd" in note for note in result.notes), result.notes


@pytest.mark.serial
def test_a_spoilt_file_does_not_end_the_sweep(folder):
    settings, varied = {**SMALL, "run.steps": 20}, {"solver.name": ["extra", "dgd"]}
    files = [Path(row.files[0]) for row in sweep(settings, vary=varied, out=str(folder)).rows]
    raw = files[0].read_bytes()
    for spoilt in (raw[:3000], b"", bytes(len(raw)), raw[:9000] + bytes(512) + raw[9512:]):
        files[0].write_bytes(spoilt)
        files[1].unlink()
        table = sweep(settings, vary=varied, out=str(folder))
        assert [dict(row.outcomes) for row in table.rows] == [{"failed": 1}, {"completed": 1}]
        assert f"{files[0]}: " in table.notes[0] and "remove it" in table.notes[0]
        assert files[0].read_bytes() == spoilt and files[1].exists()
    files[0].unlink()
    table = sweep(settings, vary=varied, out=str(folder))
    assert [dict(row.outcomes) for row in table.rows] == [{"completed": 1}] * 2


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["step", "data", "problem"])
def test_an_error_on_one_rank_of_a_run_does_not_end_the_sweep(folder, monkeypatch, capfd, what):
    """In a run of two ranks: on the second one, or on the one that reads the data."""
    from mpidec.experiment import build as assemble

    calls = {}

    def broken(name, function, here, call):
        def breaking(*arguments, **options):
            calls[name] = calls.get(name, 0) + 1
            if here and calls[name] == call:
                raise ZeroDivisionError("broke")
            return function(*arguments, **options)

        return breaking

    second, first = WORLD.rank % 2 == 1, WORLD.rank == 0
    monkeypatch.setattr(
        solvers.DGD, "step", broken("step", solvers.DGD.step, second and what == "step", 25)
    )
    monkeypatch.setattr(
        assemble, "prepare", broken("data", assemble.prepare, first and what == "data", 1)
    )
    monkeypatch.setattr(
        assemble, "_oracle", broken("problem", assemble._oracle, second and what == "problem", 1)
    )
    status = main(
        [
            *FLAGS,
            "--vary",
            "solver.name=dgd,extra",
            "--seeds",
            "2",
            "--ranks-per-run",
            "2",
            "--out",
            folder,
        ]
    )
    assert status == 1
    out = capfd.readouterr().out
    if WORLD.rank == 0:
        with open(Path(folder) / "runs.csv") as file:
            outcomes = [row["outcome"] for row in csv.DictReader(file)]
        failed = outcomes.count("failed")
        assert 1 <= failed <= max(2, WORLD.size // 2) and outcomes.count("completed") == 4 - failed
        assert "ZeroDivisionError: broke (" in out


def test_errors_are_raised_on_all_ranks(folder):
    for options, text in [
        ({"vary": {"solver.name": ["extr"]}}, "unknown solver 'extr': did you mean extra"),
        ({"vary": {"solver.name": "extra"}}, "expected a list of values"),
        ({"vary": {}}, "nothing is varied"),
        (
            {"vary": {"solver.name": ["dgd"]}, "ranks_per_run": WORLD.size + 1},
            "the ranks of the job",
        ),
    ]:
        with pytest.raises(InputError, match=text):
            sweep(SMALL, out=folder, **options)


@pytest.mark.parametrize("size", [1, 2])
def test_each_number_is_taken_once(size):
    if size > WORLD.size:
        size = WORLD.size
    heard, mine = [], []
    with WorkQueue(WORLD, size, heard.append) as groups:

        def act(number):
            time.sleep(0.002 * (number % 3))
            groups.poll()
            mine.append(number)
            return number

        groups.map(range(20), act, lambda number: False)
    taken = WORLD.allgather(mine)
    assert sorted(
        number for numbers in taken[::size][: WORLD.size // size] for number in numbers
    ) == list(range(20))
    assert all(
        taken[rank] == taken[rank - rank % size] for rank in range(WORLD.size // size * size)
    )
    assert sorted(heard) == (list(range(20)) if WORLD.rank == 0 else [])


def test_an_end_is_heard_by_all_groups():
    done = []
    with WorkQueue(WORLD, 1, lambda number: None) as groups:
        groups.map(
            range(1000),
            lambda number: done.append(number) or time.sleep(0.001) or number,
            lambda number: number >= 5,
        )
    assert WORLD.allreduce(len(done)) < 100


def test_rank_0_names_once_those_for_which_it_waits(monkeypatch, capfd):
    monkeypatch.setenv("MPIDEC_TIMEOUT", "0.2")
    with WorkQueue(WORLD, 1, lambda number: None) as groups:
        groups.map([0], lambda number: number, lambda number: False)
        if WORLD.rank == 0:
            assert not groups._late()  # all have been told the end
            groups._heard[1] = 0.0
            assert groups._late() and groups._late()
            (line,) = capfd.readouterr().err.splitlines()
            assert line.startswith("[rank 0] mpidec: waits for rank 1, not heard of since ")
            assert "mpidec restart" in line


# -- in one process ---------------------------------------------------------------------------------------------------


def load(*arguments: str, **settings) -> list[config.Setting]:
    return [
        config.Setting(key, value, key, text=False)
        for key, value in {**SMALL, **settings}.items()
        if key not in arguments
    ]


@pytest.mark.serial
def test_cases_and_their_files():
    found = cases(
        load(), [parse_vary("solver.name=extra,dgd"), parse_vary("problem.noise=0.5,1")], 2, "out"
    )
    assert [case.file for case in found][:3] == [
        "out/extra-noise=0.5-seed=0.h5",
        "out/extra-noise=0.5-seed=1.h5",
        "out/extra-noise=1.0-seed=0.h5",
    ]
    assert [case.experiment.problem.options["seed"] for case in found] == [
        0,
        1,
    ] * 4  # data and graphs follow the seed of the run
    assert str(found[0]) == "extra, noise 0.5, seed 0"
    assert [
        case.file for case in cases(load(), [parse_vary("topology.name=ring")], None, "out")
    ] == ["out/ring.h5"]
    first = cases(load(**{"run.seed": 3}), [], 2, "out")
    assert [case.seed for case in first] == [3, 4]
    (kept,) = cases(load(**{"run.trajectory": True}), [], None, "out")
    assert kept.experiment.run.trajectory and kept.experiment.run.checkpoint == 5.0
    file = config.Setting("solver.name", "atc", "file.toml:solver.name", text=False, level=0)
    (case,) = cases([*load(), file], [parse_vary("solver.name=dgd")], None, "out")
    assert case.experiment.solver.name == "dgd"  # instead of what a file says
    both = Variation("problem.standardize", (False, True), "vary", text=False)
    assert [case.experiment.problem.standardize for case in cases(load(), [both], None, "out")] == [
        False,
        True,
    ]
    long = Variation("problem.label", ("x" * 300 + "1", "x" * 300 + "2"), "vary", text=False)
    with pytest.raises(config.ConfigError, match="two runs of the sweep have the same file"):
        cases(load(), [long], None, "out")


@pytest.mark.serial
@pytest.mark.parametrize(
    "argument, values",
    [
        ("solver.step_size=0.1,0.2", ("0.1", "0.2")),
        ("mixing.sizes=[1, 2],[3]", ("[1, 2]", "[3]")),
        ("problem.data='a,b.csv'", ("'a,b.csv'",)),
        (
            "solver.name=dgd,lead{mixing.codec=top_k, mixing.k=2}",
            ("dgd", "lead{mixing.codec=top_k, mixing.k=2}"),
        ),
    ],
)
def test_values_of_vary(argument, values):
    assert parse_vary(argument).values == values


@pytest.mark.serial
def test_settings_of_one_solver_alone(tmp_path):
    vary = parse_vary(
        "solver.name=extra,lead{mixing.codec=top_k,mixing.fraction=0.3},lead{solver.step_size=0.02}"
    )
    found = cases(load(**{"solver.step_size": 0.01, "topology.name": "ring"}), [vary], 1, "out")
    made = [case.experiment for case in found]
    assert [one.mixing.codec for one in made] == [None, "top_k", None]
    assert [one.solver.options["step_size"] for one in made] == [0.01, 0.01, 0.02]
    assert made[1].mixing.options == {
        "fraction": 0.3,
        **{k: v for k, v in made[1].mixing.options.items() if k != "fraction"},
    }
    assert [Path(case.file).name for case in found] == [
        "extra-seed=0.h5",
        "lead_mixing.codec=top_k_mixing.fraction=0.3-seed=0.h5",
        "lead_solver.step_size=0.02-seed=0.h5",
    ]
    assert str(found[1]) == "lead, top k, fraction 0.3, seed 0"
    vary = {"solver.name": ["extra", "lead{mixing.codec=top_k,mixing.fraction=0.3}"]}
    result = sweep(
        SMALL | {"topology.name": "ring"}, vary=vary, out=str(tmp_path / "a"), comm=MPI.COMM_SELF
    )
    extra, lead = (record.read(row.files[0]) for row in result.rows)
    assert lead.metrics["bytes"][-1] < extra.metrics["bytes"][-1]
    assert not [note for note in result.notes if "not varied" in note]
    assert "LEAD, top k, fraction 0.3 & " in result.latex() and "LEAD & " in result.latex(
        label={"lead": "LEAD"}
    )
    for argument, text in [
        ("solver.name=lead{mixing.codec", "expected table.key=value"),
        ("solver.name=lead{}", "expected settings in braces after the value"),
        ("solver.name=lead{codec=top_k}", "solver.name lead{codec=top_k}: "),
        ("solver.name=lead{run.seed=1}", "run.seed cannot come with a value"),
        (
            "solver.name=lead{topology.name=ring}",
            "topology.name is varied by --vary topology.name: omit one",
        ),
    ]:
        with pytest.raises(config.ConfigError, match=re.escape(text)):
            cases(load(), [parse_vary(argument), parse_vary("topology.name=grid")], 1, "out")


@pytest.mark.serial
def test_malformed_commands_answer_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*FLAGS, "--vary", "solver.name=dgd", "--quiet"]) == 0
    capsys.readouterr()
    for arguments, text in [
        ([], "nothing is varied: add --vary table.key=value,value or --seeds N"),
        (
            ["--vary", "solver.name=extr"],
            "--vary solver.name: unknown solver 'extr': did you mean extra",
        ),
        (
            ["--vary", "solvr.name=extra"],
            "--vary solvr.name: unknown table 'solvr': did you mean solver?",
        ),
        (
            ["--vary", "solver.stepsize=1"],
            "--vary solver.stepsize: unknown parameter of gradient_tracking 'stepsize'",
        ),
        (["--vary", "solver=extra"], "--vary solver: expected table.key, such as solver.name"),
        (
            ["--vary", "solver.name=a,,b"],
            "--vary 'solver.name=a,,b': expected table.key=value,value",
        ),
        (["--vary", "problem.l2=1,x"], "--vary problem.l2: expected a finite number, got 'x'"),
        (["--vary", "solver.name=dgd,dgd"], "the value dgd is given twice"),
        (
            ["--vary", "solver.name=dgd", "--vary", "solver.name=extra"],
            "--vary solver.name is given twice",
        ),
        (
            ["--vary", "solver.name=dgd", "--solver", "dgd"],
            "--solver: varied by --vary solver.name: omit one of the two",
        ),
        (["--vary", "run.out=a,b"], "--vary run.out: cannot be varied"),
        (
            ["--vary", "run.seed=1,2", "--seeds", "2"],
            "--vary run.seed: the seeds come from --seeds",
        ),
        (
            ["--vary", "solver.name=dgd", "--set", "run.out=a.h5"],
            "--set run.out: has no effect in a sweep: use --out",
        ),
        (["--seeds", "0"], "--seeds: expected a positive integer, got 0"),
        (["--seeds", "2", "--target", "low"], "--target low: expected a number, or metric=number"),
        (
            ["--seeds", "2", "--ranks-per-run", "2"],
            "--ranks-per-run 2: expected a number from 1 to 1",
        ),
        (["--seed", "2", "--varry", "a"], "unknown flag '--varry': did you mean --vary"),
        (["--vary", "solver.name=dgd", "--steps", "7"], "sweep/dgd.h5 holds another experiment ("),
        (["--seeds", "1", "--out", __file__], "is a file, expected a folder"),
    ]:
        status = main(arguments)
        out, error = capsys.readouterr()
        assert (status, out) == (2, "") and text in error and error.count("\n") == 1, (
            arguments,
            out,
            error,
        )


@pytest.mark.serial
def test_the_command_writes_tables_and_a_figure(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert (
        main([*FLAGS, *VARY, "--seeds", "2", "--target", "gradient_norm=1", "--out", "found"]) == 0
    )
    out, error = capsys.readouterr()
    assert (
        error == ""
        and "8 runs, 0 of them finished before" in out
        and "[8/8] dgd, star, seed 1: completed after 40 steps" in out
    )
    assert sorted(path.name for path in (tmp_path / "found").iterdir() if path.suffix != ".h5") == [
        "figure.png",
        "runs.csv",
        "table.csv",
        "table.tex",
    ]
    rows = list(csv.DictReader((tmp_path / "found" / "runs.csv").open()))
    assert [row["file"] for row in rows][:2] == ["extra-ring-seed=0.h5", "extra-ring-seed=1.h5"]
    assert float(rows[0]["error"]) == record.read("found/extra-ring-seed=0.h5").metrics["error"][-1]
    assert (
        main([*FLAGS, *VARY, "--seeds", "2", "--target", "gradient_norm=1", "--out", "found"]) == 0
    )
    assert "8 runs, 8 of them finished before" in capsys.readouterr().out
    assert main([*FLAGS, *VARY, "--seeds", "2", "--figure", "f.pdf", "--out", "found"]) == 0
    assert (
        capsys.readouterr().out.endswith("runs.csv, f.pdf\n")
        and (tmp_path / "found" / "f.pdf").read_bytes()[:4] == b"%PDF"
    )
    for figure, text in (
        ("f.xyz", "--figure f.xyz: expected a name that ends in one of"),
        ("a/f.pdf", "without a folder"),
    ):
        assert main([*FLAGS, *VARY, "--figure", figure, "--out", "other"]) == 2
        assert text in capsys.readouterr().err and not Path("other").exists()
    for flags, text in (
        (["--label", "dg=DGD"], "label dg=DGD: dg is no value"),
        (["--panels", "graph"], "--panels graph: no such setting"),
        (["--across", "l2"], "--across l2: no such setting of these runs"),
        (["--xlim", "2", "1"], "xlim 2 1: expected two numbers"),
    ):  # before the runs
        assert main([*FLAGS, *VARY, *flags, "--out", "other"]) == 2
        assert text in capsys.readouterr().err and not list(Path("other").glob("*.h5"))


@pytest.mark.serial
def test_a_sweep_notices_changed_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{i % 7},{i % 5},{(3 * i) % 11}" for i in range(40)]
    Path("mine.csv").write_text("\n".join(lines))
    small = {
        "problem.name": "least_squares",
        "problem.data": "mine.csv",
        "run.agents": 4,
        "run.steps": 9,
        "solver.step_size": 1e-4,
    }
    sweep(small, vary={"solver.name": ["dgd"]})
    Path("mine.csv").write_text("\n".join(lines[1:]))
    with pytest.raises(
        InputError,
        match=r"sweep/dgd.h5 holds another experiment \(mine.csv has changed since the run began\): choose another --out",
    ):
        sweep(small, vary={"solver.name": ["dgd"]})


@pytest.mark.serial
def test_tables_of_another_study_are_not_replaced(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*FLAGS, *VARY, "--quiet"]) == 0
    before = Path("sweep/table.csv").read_bytes()
    for study, why in (
        (["--vary", "topology.name=ring,star"], "extra-ring.h5, which is not among these runs"),
        (
            ["--vary", "solver.name=extra", "--vary", "topology.name=ring,star"],
            "has dgd-ring.h5, which is not",
        ),
        ([*VARY, "--seeds", "1"], "has extra-ring.h5"),
    ):
        capsys.readouterr()
        assert main([*FLAGS, *study]) == 2
        error = capsys.readouterr().err
        assert (
            "sweep/table.csv, sweep/table.tex, sweep/runs.csv" in error
            and why in error
            and "--force" in error
        )
        assert error.count("\n") == 1 and Path("sweep/table.csv").read_bytes() == before
        assert len(list(Path("sweep").glob("*.h5"))) == 4  # nothing was run
    assert (
        main([*FLAGS, "--vary", "solver.name=extra,dgd,diffusion", *VARY[2:], "--quiet"]) == 0
    )  # the same, extended
    Path("mine").mkdir()
    Path("mine/figure.png").write_bytes(b"my own")
    assert main([*FLAGS, "--vary", "solver.name=dgd", "--out", "mine"]) == 2
    assert (
        "mine/figure.png would be replaced" in capsys.readouterr().err
        and Path("mine/figure.png").read_bytes() == b"my own"
    )
    assert main([*FLAGS, "--vary", "solver.name=dgd", "--out", "mine", "--quiet", "--force"]) == 0
    assert Path("mine/table.csv").exists()


@pytest.mark.serial
def test_an_experiment_file_and_flags_describe_the_same_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(
        '[problem]\nname = "least_squares"\ndata = "synthetic_least_squares"\np = 4\nd = 3\n'
        "[solver]\nstep_size = 0.01\n[run]\nagents = 4\nsteps = 40\nevery = 10\n"
    )
    assert main(["experiment.toml", "--vary", "solver.name=extra,dgd", "--quiet"]) == 0
    assert main([*FLAGS, "--vary", "solver.name=extra,dgd"]) == 0
    assert "2 runs, 2 of them finished before" in capsys.readouterr().out


@pytest.mark.serial
def test_figures_have_a_panel_per_graph(tmp_path):
    pytest.importorskip("matplotlib")
    vary = {"solver.name": ["extra", "dgd"], "topology.name": ["ring", "star"]}
    shown = sweep(SMALL, vary=vary, seeds=2, out=str(tmp_path / "found")).figure(
        x=["steps", "bytes"]
    )
    assert [axes.get_title() for axes in shown.axes] == ["Ring", "Star", "", ""]
    assert [len(axes.lines) for axes in shown.axes] == [
        2
    ] * 4  # all runs have the same steps and bytes
    assert [len(axes.collections) for axes in shown.axes] == [2] * 4
    assert [text.get_text() for text in shown.legends[0].get_texts()] == ["EXTRA", "DGD"]


def written(path: Path, errors: list[float], outcome: str, metric: str = "error") -> None:
    names = ["time", "bytes", metric]
    with RunFile(path, n=4, row_shape=(1,), metrics=names, meta={}, trajectory=False) as file:
        for k, error in enumerate(errors):
            file.append(10 * k, {"time": k / 2, "bytes": 1000 * k, metric: error})
        file.finish(np.zeros((4, 1)), outcome, 10 * (len(errors) - 1))


@pytest.mark.serial
def test_a_table_by_hand(tmp_path):
    settings = load(**{"topology.name": "ring"})
    found = cases(
        settings, [parse_vary("solver.name=extra,gradient_tracking,dgd")], 3, str(tmp_path)
    )
    for case, errors in zip(
        found,
        [
            [1, 0.1],
            [1, 0.5, 0.3, 0.2, 0.1],
            [1, 0.5, 0.05],
            [1, 1, 1],
            [1, 0.1, 1],
            [1, 0.05, math.inf],
        ],
    ):
        written(case.file, errors, "diverged" if errors[-1] == math.inf else "completed")
    result = table(found, ("error", 0.1), {found[6].file: "out of order"})
    extra, tracking, dgd = result.rows
    # extra: steps 10, 40, and 10 + 10 log 5 / log 10 = 16.99, so 17: mean 67/3, sum of squares 1989
    deviation = math.sqrt((1989 - 67**2 / 3) / 2)
    assert (extra.runs, extra.reached) == (3, 3)
    assert np.allclose(extra.steps, [67 / 3, deviation]) and np.allclose(
        extra.bytes, [6700 / 3, 100 * deviation]
    )
    assert np.allclose(extra.seconds, [3.35 / 3, deviation / 20]) and extra.last == 0.1
    assert (tracking.reached, tracking.steps.mean, tracking.last) == (
        1,
        10,
        math.inf,
    ) and math.isnan(tracking.steps.deviation)
    assert tracking.outcomes == {"completed": 2, "diverged": 1} and dgd.outcomes == {
        "failed": 1,
        "missing": 2,
    }
    assert str(result).splitlines() == [
        "steps, data sent (by all agents) and seconds until error <= 0.1 "
        "(interpolated: records every 10 steps): mean ± standard deviation",
        "solver             reached    steps     data sent      seconds  largest final error  outcome",
        "extra                  3/3  22 ± 16  2.2 ± 1.6 kB  1.12 ± 0.78                  0.1  3 completed",
        "gradient tracking      1/3       10          1 kB          0.5                  inf  2 completed, 1 diverged",
        "dgd                    0/3        -             -            -                    -  1 failed, 2 missing",
        "note: out of order (dgd, seed 0)",
    ]
    assert (
        r"EXTRA & 3/3 & \textbf{\boldmath $22 \pm 16$} & \textbf{\boldmath $2.2 \pm 1.6$\,kB} & "
        r"\textbf{\boldmath $1.12 \pm 0.78$} & \textbf{\boldmath $0.1$} & 3 completed \\"
        in result.latex()
    )
    assert (
        "& largest final error &" in result.latex()
        and "mean and standard deviation" in result.latex().splitlines()[0]
    )
    assert result.csv().splitlines()[0].endswith(",largest_final_error,outcome")
    line = result.csv().splitlines()[2].split(",")
    assert line[:5] == ["gradient_tracking", "3", "1", "10.0", ""] and line[-1] == ' 1 diverged"'


@pytest.mark.serial
def test_of_an_accuracy_more_is_better(tmp_path):
    """The cost is that of the first record at the limit or above; the smallest final value counts."""
    settings = load(**{"topology.name": "ring"})
    found = cases(settings, [parse_vary("solver.name=extra,dgd")], 2, str(tmp_path))
    for case, values in zip(found, [[0.1, 0.5, 0.95], [0.1, 0.9], [0.1, 0.8, 0.7], [0.1, 0.85]]):
        written(case.file, values, "completed", "accuracy")
    result = table(found, ("accuracy", 0.9), {})
    extra, dgd = result.rows
    # on a straight line between records: 10 + 10 * 0.4 / 0.45 = 18.9, so 19
    assert (extra.reached, extra.steps.mean, extra.last) == (2, 14.5, 0.9)
    assert (dgd.reached, dgd.steps, dgd.last) == (0, None, 0.7)
    lines = result.text(["final"], bold=True).splitlines()
    assert (
        lines[0].startswith("values until accuracy >= 0.9 ")
        and "smallest_final_acc" in result.csv()
    )
    assert lines[1].endswith("smallest final accuracy")
    assert "\033[1m0.9\033[0m" in lines[2] and "\033" not in lines[3]


def ended(solver, graph, steps, reached=2, last=1e-9):
    spread = [Spread(steps * unit, math.nan) for unit in (1, 1000, 0.1)] if reached else [None] * 3
    varied = {"solver.name": solver, "topology.name": graph}
    return Row(varied, 2, reached, *spread, last, {"completed": 2}, ())


@pytest.mark.serial
def test_a_table_of_solvers_across_graphs():
    """The best of each graph is bold, also if other graphs are faster, and only where all seeds reached the target."""
    result = Table(
        [
            ended("d2", "ring", 50),
            ended("d2", "erdos_renyi", 40, last=1e-12),
            ended("dgd", "ring", 20, reached=1, last=0.1),
            ended("dgd", "erdos_renyi", 30),
        ],
        "error",
        1e-6,
    )
    across = result.latex(across="topology", columns=["steps", "final"])
    assert across.splitlines()[1:9] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{Ring} & \multicolumn{2}{c}{Erdős–Rényi} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}",
        r"solver & steps & largest final error & steps & largest final error \\",
        r"\midrule",
        r"D$^2$ & \textbf{\boldmath $50$} & \textbf{\boldmath $1 \cdot 10^{-9}$} & $40$ & $1 \cdot 10^{-12}$ \\",
        r"DGD & $20$ & $0.1$ & \textbf{\boldmath $30$} & $1 \cdot 10^{-9}$ \\",
    ]
    assert result.text(across="topology", bold=True).splitlines() == [
        "steps until error <= 1e-06: mean ± standard deviation",
        "solver  ring  erdos renyi",
        "d2        \033[1m50\033[0m           40",
        "dgd       20           \033[1m30\033[0m",
    ]
    turned = result.text(["bytes"], rows="topology", across="solver").splitlines()
    assert turned[1:] == [
        "topology        d2    dgd",
        "ring         50 kB  20 kB",
        "erdos renyi  40 kB  30 kB",
    ]
    assert "DSGD & " in result.latex(label={"dgd": "DSGD"})
    for call, text in [
        (lambda: result.text(["step"]), "column step: expected some of reached, steps, bytes"),
        (lambda: result.text(across="graph"), "across graph: no such setting of these runs"),
        (lambda: result.text(rows="solver", across="solver"), "across solver: it has the rows"),
        (lambda: result.latex(label={"dg": "x"}), "label dg=x: .* did you mean dgd?"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.serial
def test_the_folder_of_a_plug_in_is_not_shown(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text("from mpidec.solvers import DGD\nclass HeavyBall(DGD):\n    pass\n")
    assert main([*FLAGS, "--vary", "solver.name=my.py:HeavyBall,dgd", "--out", "found"]) == 0
    out = capsys.readouterr().out
    texts = [
        out,
        *(path.read_text() for path in Path("found").iterdir() if path.suffix in (".csv", ".tex")),
    ]
    assert len(texts) == 4 and all(
        "my.py:HeavyBall" in text and str(tmp_path) not in text for text in texts
    ), texts
    assert Path("found/my.py_HeavyBall.h5").exists()


@pytest.mark.serial
def test_a_target_without_the_error_metric(tmp_path):
    found = cases(load(), [parse_vary("solver.name=extra")], None, str(tmp_path))
    written(Path(found[0].file), [1, 0.1], "completed")
    result = table(found, ("loss", 0.1), {})
    assert (
        result.rows[0].reached == 0 and "no run has recorded the metric 'loss'" in result.notes[0]
    )


@pytest.mark.serial
def test_settings_that_follow_from_varied_ones_are_said(tmp_path):
    result = sweep(SMALL, vary={"solver.name": ["dgd", "relaysgd"]}, out=str(tmp_path / "found"))
    assert result.notes == (
        "all solvers run on the binary_tree graph, which all of them accept (--topology takes another one)",
    )


@pytest.mark.serial
def test_seeds_without_effect_are_said_and_run_once(tmp_path):
    settings = {
        "run.agents": 4,
        "run.steps": 5,
        "problem.data": "breast_cancer",
        "solver.step_size": 0.01,
    }
    result = sweep(settings, vary={"solver.name": ["extra"]}, seeds=2, out=str(tmp_path / "sorted"))
    assert "the seeds make no difference" in result.notes[-1] and result.rows[0].runs == 1
    for random in (
        {"problem.partition": "iid"},
        {"problem.batch_size": 2},
        {"topology.name": "erdos_renyi"},
        {"mixing.codec": "rand_k", "solver.name": "lead"},
        {"mixing.lose": 0.1, "solver.name": "dgd"},
    ):
        given = [
            config.Setting(key, value, key, False) for key, value in (settings | random).items()
        ]
        assert len(cases(given, [], 2, str(tmp_path))) == 2, random


@pytest.mark.serial
def test_a_solver_for_codecs_without_one_is_said(tmp_path):
    vary = {"solver.name": ["lead", "exact_diffusion"]}
    result = sweep(SMALL, vary=vary, out=str(tmp_path / "found"))
    assert "lead without a codec is exact diffusion" in result.notes[-1]
    result = sweep(
        SMALL | {"mixing.codec": "top_k"}, vary={"solver.name": ["lead"]}, out=str(tmp_path / "two")
    )
    assert not any("without a codec" in note for note in result.notes)


@pytest.mark.serial
def test_an_unfinished_run_continues_with_what_it_had_chosen(tmp_path):
    """Without a step size in the request, the file says which one the run took, and that the run chose it."""
    settings = {key: value for key, value in SMALL.items() if key != "solver.step_size"}
    whole = (
        sweep(settings, vary={"solver.name": ["extra"]}, out=str(tmp_path / "whole"))
        .rows[0]
        .files[0]
    )
    text = record.read(whole).config
    assert (
        text.startswith("# chosen by the run: ") and "solver.step_size" in text.partition("\n")[0]
    )
    half = tmp_path / "half" / "extra.h5"
    found = cases(
        load("solver.step_size"), [parse_vary("solver.name=extra")], None, str(half.parent)
    )
    half.parent.mkdir()
    interrupted_at_30(found[0])
    assert record.read(half).outcome == "interrupted"
    assert same(
        Path(
            sweep(settings, vary={"solver.name": ["extra"]}, out=str(half.parent)).rows[0].files[0]
        ),
        Path(whole),
    )
    with pytest.raises(
        InputError,
        match=r"holds another experiment \(solver.step_size was chosen by the run, is now 0.5\)",
    ):
        sweep(
            {**settings, "solver.step_size": 0.5},
            vary={"solver.name": ["extra"]},
            out=str(half.parent),
        )


@pytest.mark.serial
@pytest.mark.parametrize("outcome", ["completed", None])
@pytest.mark.parametrize(
    "stored, wanted, known",
    [
        (("chosen", 0.02), None, True),
        (("chosen", 0.02), "auto", True),
        (("chosen", 0.02), 0.02, False),  # the number is the same, but another problem has another
        (("given", 0.02), 0.02, True),
        (("given", 0.02), 0.03, False),
        (("given", 0.02), "auto", False),
    ],
)
def test_a_step_size_that_was_found_is_not_one_that_was_given(
    tmp_path, stored, wanted, known, outcome
):
    origin, number = stored

    def case(step: object) -> Case:
        given = load(**{"solver.step_size": step}) if step else load("solver.step_size")
        return cases(given, [parse_vary("solver.name=extra")], None, str(tmp_path))[0]

    made = case(number).experiment
    asked = case("auto").experiment if origin == "chosen" else made
    meta = {"mpidec": "1", "config": config_text(asked, made)}
    with RunFile(
        made.run.out, n=4, row_shape=(3,), metrics=["time"], meta=meta, trajectory=False
    ) as file:
        file.append(0, {"time": 0.0})
        if outcome:
            file.finish(np.zeros((4, 3)), outcome, 1)
    if known:
        assert status(case(wanted)) is (CaseStatus.FINISHED if outcome else CaseStatus.NEW)
    else:
        with pytest.raises(config.ConfigError, match=r"another experiment \(solver.step_size was "):
            status(case(wanted))


def interrupted_at_30(case: Case) -> None:
    """Make the first 30 of the case's 40 steps, and then Ctrl-C."""
    from mpidec.sweep.study import Study, run_case

    records = []

    def serve() -> None:
        records.append(0)
        if len(records) == 3:
            signal.raise_signal(signal.SIGINT)

    report = run_case(0, Study([case], [CaseStatus.NEW], ("error", None), 1), MPI.COMM_SELF, serve)
    assert (report.outcome, report.steps) == ("interrupted", 30)


@pytest.mark.serial
def test_an_error_of_the_program_is_a_failure_of_its_run(tmp_path, monkeypatch):
    def broken(self, s, G, W):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(solvers.DGD, "step", broken)
    result = sweep(SMALL, vary={"solver.name": ["dgd", "extra"]}, out=str(tmp_path / "found"))
    assert [dict(row.outcomes) for row in result.rows] == [{"failed": 1}, {"completed": 1}]
    assert result.notes[0] == "ZeroDivisionError: by zero (dgd, seed 0)"


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_and_restarted_it_repeats_nothing(tmp_path, ranks):
    """Finished files are not touched again, unfinished ones are resumed, and the results are the same bits."""
    long = [
        *FLAGS,
        "--set=run.steps=3000",
        "--set=run.every=100",
        "--set=run.checkpoint=0.05",
        "--seeds",
        "2",
    ]
    command = [
        *(launch.mpirun_command(ranks) if ranks else []),
        sys.executable,
        "-m",
        "mpidec.sweep",
        *long,
    ]
    process = launch.start(
        [*command, "--out", "killed"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    for line in process.stdout:
        if line.startswith("[1/2]"):
            break
    time.sleep(0.1)
    launch.end(process)
    process.communicate(timeout=launch.patient(20))
    ends = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "killed").glob("*.h5")
        if record.read(path).outcome in ("completed", "stopped")
    }
    assert ends
    again = launch.mpirun(
        ranks, ["-m", "mpidec.sweep", *long, "--out", "killed"], cwd=tmp_path, check=True
    )
    assert f"2 runs, {len(ends)} of them finished before" in again.stdout
    assert all(path.stat().st_mtime_ns == written for path, written in ends.items())
    launch.mpirun(
        0, ["-m", "mpidec.sweep", *long, "--out", "whole", "--quiet"], cwd=tmp_path, check=True
    )
    for path in sorted((tmp_path / "whole").glob("*.h5")):
        assert same(path, tmp_path / "killed" / path.name), path.name


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [0, 2])
def test_an_interrupted_sweep_says_how_to_go_on(tmp_path, ranks):
    long = [*FLAGS, "--set=run.steps=100000000", "--set=run.every=100", "--seeds", "4"]
    command = [
        *(launch.mpirun_command(ranks) if ranks else []),
        sys.executable,
        "-m",
        "mpidec.sweep",
        *long,
    ]
    process = launch.start(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    assert launch.until(lambda: len(list((tmp_path / "sweep").glob("*.h5"))) >= max(ranks, 1), 30)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    done = launch.finish(process, 30)
    assert done.returncode == 130, (done.stdout, done.stderr)
    if not ranks:
        assert done.stderr == "mpidec.sweep: interrupted: the same command continues the sweep\n"
    assert record.read(tmp_path / "sweep" / "seed=0.h5").outcome in ("interrupted", "running")


def test_solvers_without_a_common_default_are_compared_on_one_graph():
    def graphs(names, *given):
        return [graph.value for graph in common_graph(given, [parse_vary(f"solver.name={names}")])]

    ring = config.Setting("topology.name", "ring", "--topology")
    assert graphs("gradient_tracking,exact_diffusion,extra") == ["symmetric_exponential"]
    assert graphs("gradient_tracking,relaysgd") == ["binary_tree"]
    assert graphs("gradient_tracking,extra", ring) == []
    assert graphs("gradient_tracking,dgd") == graphs("push_pull,frost") == []
    assert graphs("push_pull,exact_diffusion") == ["symmetric_exponential"]


@pytest.mark.serial
def test_a_run_with_any_other_setting_is_another_run():
    """But for those that do not change what a run is, or records."""
    one = config.load([config.Setting("run.steps", 50, "test", text=False)])
    text = one.to_toml()
    for key, value in flat(text).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        name, shown = key.partition(".")[2], str(value)
        other = re.sub(rf"(?m)^({name} = ){re.escape(shown)}$", rf"\g<1>{value + 1}", text)
        assert flat(other) != flat(text), key
        said = "; ".join(_changes(one, other, {}))
        assert (key in said) == (key != "run.checkpoint"), (key, said)
    assert _changes(one, text, {}) == []


@pytest.mark.serial
def test_parts_of_a_sweep_share_its_runs_and_the_last_one_writes_the_tables(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command = [*FLAGS, "--vary", "solver.name=extra,dgd,nids", "--vary", "topology.name=ring,star"]
    for name, value in {"ID": 7, "MIN": 3, "STEP": 4, "COUNT": 2}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    Path("sweep").mkdir()
    with AtomicFile("sweep/dgd-ring.h5"):  # as another process that writes it
        assert main([*command, "--part", "1/2"]) == 0
    said = capsys.readouterr().out
    assert "3 runs, part 1 of 2 (--part)" in said and "dgd, ring, seed 0: elsewhere" in said, said
    assert sorted(os.listdir("sweep")) == [
        "extra-ring.h5", "nids-ring.h5", "part-1-of-2.csv"
    ]  # fmt: skip
    made = Path("sweep/nids-ring.h5").stat().st_mtime_ns
    assert main(command) == 0  # the task of the array is part 2
    assert "part 2 of 2 (SLURM_ARRAY_TASK_ID=7)" in capsys.readouterr().out
    assert not Path("sweep/table.csv").exists()
    Path("sweep/part-1-of-2.csv").write_text("file,outcome\ndgd-ring.h5,failed\n")
    assert main(command) == 1  # all have ended
    assert "failed in part 1 of 2" in capsys.readouterr().out
    assert main([*command, "--part", "1/1", "--force"]) == 0
    assert Path("sweep/nids-ring.h5").stat().st_mtime_ns == made
    assert Path("sweep/runs.csv").read_text().count("completed") == 6
    for wrong in ("0/2", "3/2", "2", "a/b"):
        assert main([*command, "--part", wrong]) == 2
