"""Figures of finished, running, killed and diverged runs; labels, bands and axes; errors of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers import launch

import mpidec
from mpidec import registry as catalogue
from mpidec.driver.provenance import settings
from mpidec.experiment.settings import Problem, Run
from mpidec.plot import figure
from mpidec.plot.command import main
from mpidec.plot.drawing import Curve, band
from mpidec.plot.labels import labels
from mpidec.plot.quantities import x_values, y_values
from mpidec.record import RunFile, read

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.serial

ROOT = launch.ROOT
SAMPLING = ("batch_size", "variance_reduction", "snapshot_period")  # of gradients, not of f
NAMES = ["time", "rounds", "bytes", "consensus", "gradient_norm", "objective", "error"]


def make(
    path: Path,
    solver="exact_diffusion",
    agents=16,
    rate=0.9,
    steps=100,
    outcome="completed",
    names=NAMES,
    **settings,
) -> Path:
    """Write a run whose quantities decay like ``rate**k``; with outcome None it has no end."""
    more = "".join(f"{key} = {value!r}\n" for key, value in settings.items())
    config = f'[solver]\nname = "{solver}"\n{more}[topology]\nname = "exponential"\n[run]\nagents = {agents}\n'
    with RunFile(
        path,
        n=agents,
        row_shape=(3,),
        metrics=names,
        meta={"mpidec": "0.1", "config": config if solver else "# none"},
        trajectory=False,
    ) as file:
        for k in range(steps + 1):
            row = {
                "time": k / 1000,
                "rounds": k,
                "bytes": 4096 * k,
                "consensus": k * rate**k,
                "objective": 0.1 + rate**k,
                "gradient_norm": 3 * rate**k,
                "error": rate**k,
                "gradients": 16 * k,
            }
            file.append(k, row)
        if outcome:
            file.finish(np.zeros((agents, 3)), outcome, steps)
    return path


def legend(shown) -> list[str]:
    return [text.get_text() for text in shown.legends[0].get_texts()]


def test_a_grid_of_quantities_and_axes(tmp_path):
    paths = [make(tmp_path / "a.h5"), make(tmp_path / "b.h5", "gradient_tracking", rate=0.8)]
    shown = figure(paths)
    panels = np.array(shown.axes).reshape(3, 3)
    assert [panel.get_xlabel() for panel in panels[-1]] == [
        "steps",
        "data sent by all agents",
        "seconds",
    ]
    assert "smallest recorded" in panels[0, 0].get_ylabel()
    assert [panel.get_ylabel().split()[0] for panel in panels[1:, 0]] == ["consensus", "error"]
    assert {panel.get_yscale() for panel in panels.flat} == {"log"}
    assert legend(shown) == ["Exact Diffusion", "Gradient Tracking"]
    assert shown.legends[0].get_title().get_text() == "Exponential, 16 agents"
    x, y = panels[2, 1].lines[1].get_data()
    assert np.array_equal(x, 4096 * np.arange(101)) and np.allclose(y, 0.8 ** np.arange(101))


@pytest.mark.parametrize("clock, each", [(None, 16), ("simulated", 1), ("seconds", 1)])
def test_gradients_are_those_of_one_agent(tmp_path, clock, each):
    """Where agents take steps of their own, those of all are recorded."""
    run = read(make(tmp_path / "a.h5", names=[*NAMES, "gradients"], agents=16))
    run = replace(run, attributes={**run.attributes, **({"clock": clock} if clock else {})})
    assert np.array_equal(x_values(run, "gradients"), each * np.arange(101))


def test_zeros_are_marked_below_logarithmic_axes(tmp_path):
    paths = [make(tmp_path / "a.h5"), make(tmp_path / "b.h5", "dgd")]
    assert legend(figure(paths)) == ["Exact Diffusion", "DGD"]
    with h5py.File(paths[0], "r+") as file:
        file["metrics/error"][90:] = 0.0
        file["metrics/consensus"][0] = 0.0  # agents begin at one point
    shown = figure(paths, x="steps", y=["error", "consensus"])
    error, consensus = shown.axes[:2]
    assert legend(shown) == ["Exact Diffusion", "DGD", "exactly 0"] and len(consensus.lines) == 2
    marks = error.lines[2]
    assert marks.get_color() == error.lines[0].get_color() != error.lines[1].get_color()
    assert marks.get_xdata()[[0, -1]].tolist() == [90, 100] and marks.get_marker() == "v"
    assert error.get_yscale() == "log"


def test_lines_that_coincide_are_both_visible(tmp_path):
    lines = (
        figure([make(tmp_path / "a.h5"), make(tmp_path / "b.h5", "dgd")], x="steps", y="error")
        .axes[0]
        .lines
    )
    for look in ("color", "linestyle", "marker", "linewidth", "markevery"):
        first, second = (str(getattr(line, f"get_{look}")()) for line in lines)
        assert first != second, look
    assert lines[0].get_linewidth() > 1.5 * lines[1].get_linewidth()  # drawn below the other one


def test_the_objective_is_the_distance_to_its_minimum(tmp_path):
    paths = [
        make(tmp_path / "a.h5", rate=0.5, steps=20),
        make(tmp_path / "b.h5", "dgd", rate=0.9, steps=20),
    ]
    axes = figure(paths, x="steps", y="objective").axes[0]
    assert np.allclose(
        axes.lines[1].get_ydata(), 0.9 ** np.arange(21) - 0.5**20
    )  # 0.1 + 0.5**20 is the smallest
    for path in paths:  # runs of a program's own problem begin with the same objective
        with h5py.File(path, "r+") as file:
            file.attrs["config"] = ""
    axes = figure(paths, x="steps", y="objective").axes[0]
    assert np.allclose(axes.lines[1].get_ydata(), 0.9 ** np.arange(21) - 0.5**20)
    for path in paths:
        with h5py.File(path, "r+") as file:
            file.attrs["f_star"] = 0.1
    axes = figure(paths, x="steps", y="objective").axes[0]
    assert (
        np.allclose(axes.lines[0].get_ydata(), 0.5 ** np.arange(21))
        and axes.get_ylabel() == r"$f(\bar{x}) - f^{\ast}$"
    )
    assert axes.get_yscale() == "log"


def test_a_legend_of_many_lines_fits_into_the_figure(tmp_path):
    paths = [make(tmp_path / f"{k}.h5", step_size=k / 7) for k in range(8)]
    for shown in (figure(paths), figure(paths, x="steps", y="error", style="paper")):
        shown.draw_without_rendering()
        box = shown.legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= shown.bbox.width


def test_a_notebook_shows_it(tmp_path):
    formatter = pytest.importorskip("IPython.core.formatters").PNGFormatter()
    assert formatter(figure(make(tmp_path / "a.h5")))[:4] == b"\x89PNG"


def test_axes_and_labels_can_be_chosen(tmp_path):
    path = make(tmp_path / "a.h5", names=[*NAMES, "gradients"])
    shown = figure(
        str(path), x=["seconds", "gradients"], y=["consensus", "gradient_norm"], label=["mine"]
    )
    assert [panel.get_xlabel() for panel in shown.axes] == ["", "", "seconds", "gradients"]
    assert legend(shown) == ["mine"]
    assert shown.axes[1].lines[0].get_xdata()[1] == 16
    assert len(figure([path], x=["steps", "bytes"]).axes) == 6


def test_labels_say_what_differs(tmp_path):
    gt, ed = "gradient_tracking", "exact_diffusion"
    paths = [
        make(tmp_path / "a.h5", gt, step_size=0.1),
        make(tmp_path / "b.h5", gt, step_size=0.2),
        make(tmp_path / "c.h5", ed),
    ]
    assert legend(figure(paths)) == [
        "Gradient Tracking, step size 0.1",
        "Gradient Tracking, step size 0.2",
        "Exact Diffusion",
    ]
    assert legend(figure([paths[0], paths[2]])) == ["Gradient Tracking", "Exact Diffusion"]
    assert legend(figure([paths[0], make(tmp_path / "d.h5", gt, agents=4)])) == [
        "16 agents",
        "4 agents",
    ]


def test_what_a_run_has_chosen_is_no_difference_unless_nothing_else_differs(tmp_path):
    """Labels were `step size 0.05` where the weights had been varied, and `auto` had found other step sizes for them."""

    def auto(name, weights="metropolis", size=0.05, seed=0, head=""):
        config = (
            f'{head}[solver]\nname = "extra"\nstep_size = {size}\n[topology]\nname = "ring"\nweights = "{weights}"\n'
            f"[run]\nseed = {seed}\n"
        )
        with RunFile(
            tmp_path / name,
            n=4,
            row_shape=(1,),
            metrics=NAMES,
            trajectory=False,
            meta={"config": config, **({} if head else {"step_size": size})},
        ) as file:
            file.append(0, dict.fromkeys(NAMES, 1.0))
            file.finish(np.zeros((4, 1)), "completed", 0)
        return tmp_path / name

    first, of_sweep = auto("a.h5"), "# chosen by the run: solver.step_size\n"
    assert legend(figure([first, auto("b.h5", "uniform", 0.06)])) == [
        "weights metropolis",
        "weights uniform",
    ]
    assert legend(figure([first, auto("c.h5", "uniform", 0.06, head=of_sweep)])) == [
        "weights metropolis",
        "weights uniform",
    ]
    assert legend(figure([first, auto("d.h5", size=0.06, seed=1)])) == ["EXTRA, Ring (2 seeds)"]
    assert legend(figure([first, auto("e.h5", size=0.06)])) == ["step size 0.05", "step size 0.06"]


def test_different_problems_are_in_the_legend_beside_the_solvers(tmp_path):
    texts = [
        '[problem]\nname = "logistic"\ndata = "digits"\n[solver]\nname = "dgd"\n',
        '[problem]\nname = "softmax"\ndata = "digits"\n[solver]\nname = "extra"\n',
    ]
    runs = [
        SimpleNamespace(config=text, attributes={}, path="", outcome="completed", steps=1)
        for text in texts
    ]
    assert labels([[run] for run in runs]) == ["DGD, logistic", "EXTRA, softmax"]


def test_runs_from_python_are_labelled_by_solver_and_topology(tmp_path):
    def recorded(file, graph="", **solver):
        given = {f"solver.{key}": value for key, value in solver.items()}
        given |= {"topology.name": graph, "run.agents": 4} if graph else {}
        return make_python(tmp_path / file, given)

    tracking = {"name": "gradient_tracking", "step_size": 0.1, "variant": "atc"}
    first = recorded("python.h5", "ring", **tracking)
    assert legend(figure(first)) == ["Gradient Tracking, Ring, 4 agents"]
    other = recorded("b.h5", "star", name="HeavyBall", step_size=0.1)
    assert legend(figure([first, other])) == ["Gradient Tracking", "HeavyBall"]
    other = recorded("c.h5", "star", **tracking | {"step_size": 0.2})
    assert legend(figure([first, other])) == ["Ring", "Star"]
    other = make(tmp_path / "d.h5", "dgd")
    assert legend(figure([first, other])) == ["Gradient Tracking", "DGD"]
    assert legend(figure([first, recorded("e.h5")]))[1] == "e"


def test_solvers_of_runs_from_python_have_the_names_of_the_catalogue(tmp_path):
    """A2CiD2 was "a2 ci d2", and a run with a function as its step size had no label."""
    ring = mpidec.topology.ring(4)
    for name, kind in catalogue.SOLVERS.own.items():
        solver = kind() if name == "consensus" else kind(0.1)
        found = settings(solver, ring)
        assert found["solver.name"] == name
    for solver in (mpidec.solvers.A2CiD2(), mpidec.solvers.PairwiseGossip(lambda k: 0.1)):
        mpidec.simulate(
            None,
            solver,
            ring,
            steps=1,
            x0=np.eye(4),
            record=tmp_path / f"{type(solver).__name__}.h5",
        )
    shown = figure([tmp_path / "A2CiD2.h5", tmp_path / "PairwiseGossip.h5"])
    assert legend(shown) == ["A$^2$CiD$^2$", "Asynchronous Gossip"]


def make_python(path: Path, given: dict[str, object]) -> Path:
    meta = {"config": "# from mpidec.solve\n", "settings": json.dumps(given)}
    with RunFile(path, n=4, row_shape=(1,), metrics=NAMES, meta=meta, trajectory=False) as file:
        file.append(0, dict.fromkeys(NAMES, 1.0))
        file.finish(np.zeros((4, 1)), "completed", 0)
    return path


def test_runs_of_one_kind_are_told_apart_by_their_files(tmp_path):
    (tmp_path / "sub").mkdir()
    a, b, c = make(tmp_path / "a.h5"), make(tmp_path / "b.h5"), make(tmp_path / "sub" / "a.h5")
    common = "Exact Diffusion, Exponential, 16 agents"
    assert legend(figure([a, b])) == [f"{common} (a)", f"{common} (b)"]
    assert legend(figure([a, c])) == [f"{common} ({a})", f"{common} ({c})"]
    assert legend(figure(make(tmp_path / "none.h5", solver=""))) == ["none"]


def test_unfinished_and_diverged_runs_say_so(tmp_path):
    killed, diverged = (
        make(tmp_path / "a.h5", outcome=None),
        make(tmp_path / "b.h5", "dgd", rate=1.5, outcome="diverged"),
    )
    assert legend(figure([killed, diverged])) == [
        "Exact Diffusion, unfinished after 100 steps",
        "DGD, diverged after 100 steps",
    ]


@pytest.mark.parametrize("steps", [0, 1, 20_000])
def test_runs_of_any_length(tmp_path, steps):
    shown = figure(make(tmp_path / "a.h5", steps=steps), x="steps")
    assert 0 < len(shown.axes[0].lines[0].get_xdata()) <= 4000
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a layout that is not found
        shown.savefig(tmp_path / "a.png")


def test_infinite_huge_and_missing_values_break_no_figure(tmp_path):
    """A value of 1e308 was an OverflowError of matplotlib's logarithmic axis."""
    names = [name for name in NAMES if name != "error"]
    columns = [
        [0.0, 1.0, 1e9, np.inf, np.nan, -1.0],
        [1.0, 1e308],
        [5e-324, 1e308],
        [1e-300, 1e207, np.inf],
        [-1e308, 1e308],
        [np.nan, np.nan],
        [np.inf],
        [0.0, 0.0],
    ]
    for number, values in enumerate(columns):
        path = tmp_path / f"{number}.h5"
        with RunFile(path, n=1, row_shape=(1,), metrics=names, meta={}, trajectory=False) as file:
            for k, value in enumerate(values):
                file.append(
                    k,
                    dict.fromkeys(names, value)
                    | {"time": k, "rounds": k, "bytes": k, "consensus": abs(value)},
                )
            file.finish(np.zeros((1, 1)), "diverged", len(values) - 1)
        shown = figure(path, x="steps")
        shown.savefig(tmp_path / f"{number}.pdf")
        assert shown.axes[2].get_ylabel().startswith("gradient")
    figure(sorted(tmp_path.glob("*.h5")), x="steps").savefig(tmp_path / "all.png")


def test_a_diverging_run_does_not_hide_the_others(tmp_path):
    good, bad = (
        make(tmp_path / "a.h5"),
        make(tmp_path / "b.h5", "dgd", rate=5.0, outcome="diverged"),
    )
    low, high = figure([good, bad], x="steps", y="error").axes[0].get_ylim()
    assert 1 < high < 1e4 and low < 1e-4


def test_bands_of_seeds(tmp_path):
    files = [
        make(tmp_path / f"{k}.h5", rate=rate, steps=10 + k)
        for k, rate in enumerate((0.5, 0.6, 0.7))
    ]
    shown = figure(
        {"ring": {"extra": files}, "grid": {"extra": files[:1], "dgd": files[1:]}}, y="error"
    )
    assert [axes.get_title() for axes in shown.axes] == ["ring", "grid"] and legend(shown) == [
        "extra",
        "dgd",
    ]
    axes = shown.axes[0]
    assert (
        len(axes.lines) == 3 and len(axes.collections) == 1
    )  # the median, and the ends of the longer runs
    assert np.allclose(
        axes.lines[0].get_ydata(), 0.6 ** np.arange(11)
    )  # the median, until the first run ends
    low, high = axes.collections[0].get_paths()[0].get_extents().get_points()[:, 1]
    assert (low, high) == (0.5**10, 1.0)
    assert shown.axes[1].lines[0].get_color() == axes.lines[0].get_color()


def test_runs_that_differ_in_the_seed_alone_make_one_line(tmp_path):
    """The command drew a line per seed of `study/*.h5`."""
    seeded = {"extra": [0, 1, 2], "dgd": [0, 1], "diffusion": [0]}
    files = [seed_run(tmp_path, solver, seed) for solver, seeds in seeded.items() for seed in seeds]
    shown = figure(files, x="steps", y="error")
    assert legend(shown) == ["EXTRA (3 seeds)", "DGD (2 seeds, 1 diverged)", "Diffusion"]
    axes = shown.axes[0]
    assert (
        np.allclose(axes.lines[0].get_ydata(), 0.6 ** np.arange(11)) and len(axes.collections) == 1
    )  # of two runs a band
    low, high = axes.collections[0].get_paths()[0].get_extents().get_points()[:, 1]
    assert np.allclose((low, high), (0.5**10, 1.0))
    assert legend(figure(files, label=list("abcdef"))) == list("abcdef")
    assert legend(figure(files, label=list("abc"))) == list("abc")
    with pytest.raises(
        ValueError, match="6 runs, 3 lines, 2 labels: expected one label per run or per line"
    ):
        figure(files, label=list("ab"))
    again = make(
        tmp_path / "again.h5", "extra", rate=0.5, steps=10
    )  # the same seed twice is no sample
    assert (
        len(legend(figure([make(tmp_path / "once.h5", "extra", rate=0.5, steps=10), again]))) == 2
    )


def seed_run(folder: Path, solver: str, seed: int) -> Path:
    path = make(
        folder / f"{solver}-{seed}.h5",
        solver,
        rate=0.5 + 0.1 * seed,
        steps=10,
        outcome="diverged" if (solver, seed) == ("dgd", 1) else "completed",
    )
    with h5py.File(path, "a") as file:
        file.attrs["config"] += f"seed = {seed}\n[problem]\nseed = {seed}\n"
    return path


def test_a_band_interpolates_between_the_records_of_its_runs():
    one, two = (
        Curve(np.array([0.0, 4.0]), np.array([1.0, 1e-4])),
        Curve(np.array([0.0, 2.0, 8.0]), np.array([1.0, 1.0, 1.0])),
    )
    x, low, middle, high = band([one, two])
    assert (
        np.array_equal(x, [0, 2, 4]) and np.allclose(low, [1, 1e-2, 1e-4]) and np.allclose(high, 1)
    )
    assert np.allclose(middle, (low + high) / 2)


def test_a_run_that_is_going_on(tmp_path):
    with RunFile(
        tmp_path / "a.h5", n=1, row_shape=(1,), metrics=NAMES, meta={}, flush_seconds=0
    ) as file:
        for k in range(5):
            file.append(k, dict.fromkeys(NAMES, 1.0), np.ones((1, 1)))
            assert len(figure(tmp_path / "a.h5", "steps").axes[0].lines[0].get_xdata()) == k + 1


def test_the_command_writes_the_figure(tmp_path, capsys):
    a, b = make(tmp_path / "a.h5"), make(tmp_path / "b.h5", "dgd")
    assert main([str(a), str(b)]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'a.png'}\n", "")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    paper = [
        "--x",
        "steps",
        "--y",
        "error",
        "--label",
        "one",
        "other",
        "--style",
        "paper",
        "-o",
        str(tmp_path / "b.pdf"),
    ]
    assert main([str(a), str(b), *paper]) == 0
    assert (tmp_path / "b.pdf").read_bytes()[:4] == b"%PDF"


def test_the_command_as_users_type_it(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    environment.pop("DISPLAY", None)
    command = [sys.executable, "-m", "mpidec.plot"]
    done = subprocess.run(
        [*command, str(make(tmp_path / "a.h5"))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=launch.patient(60),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "a.png").exists()
    done = subprocess.run(
        [*command, "no.h5"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=launch.patient(60),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "mpidec.plot: error: no.h5 does not exist\n",
    )


@pytest.mark.launch
def test_several_ranks_plot_once(tmp_path):
    run = str(make(tmp_path / "a.h5"))
    done = launch.mpirun(2, ["-m", "mpidec.plot", run], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'a.png'}\n"), done.stderr
    done = launch.mpirun(2, ["-m", "mpidec.plot", run, "-o", "a.xyz"], cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("a.xyz: expected a name") == 1


def test_the_picture_of_a_search_is_checked_before_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    from mpidec.experiment.command import RUN, TUNE

    for picture, text in [
        ("a.xyz", "-o a.xyz: expected a name that ends in one of"),
        ("no/a.png", "the folder no does not exist"),
    ]:
        for name, command in (("tune", TUNE), ("run", RUN)):
            assert command.main(["--tune", "--data=nothing", "-o", picture]) == 2
            out, error = capsys.readouterr()
            assert (
                out == ""
                and error.startswith(f"mpidec.{name}: error: ")
                and text in error
                and error.count("\n") == 1
            )


def test_malformed_commands_answer_in_one_line(tmp_path, capsys):
    run = str(make(tmp_path / "a.h5"))
    (tmp_path / "text.h5").write_text("steps")
    for arguments, text in [
        ([], "required: run.h5"),
        (["missing.h5"], "missing.h5 does not exist"),
        ([str(tmp_path / "text.h5")], "text.h5: not an HDF5 file"),
        ([str(tmp_path)], f"is a folder: give its run files, {tmp_path / '*.h5'}"),
        ([run, "-o", "figure.xyz"], "figure.xyz: expected a name that ends in one of"),
        ([run, "-o", "figure"], "figure: expected a name that ends in one of"),
        (
            [run, "-o", str(tmp_path / "none" / "a.png")],
            f"the folder {tmp_path / 'none'} does not exist",
        ),
        ([run, "--x", "hours"], "invalid choice: 'hours'"),
        (
            [run, "--x", "gradients"],
            "a.h5: 'gradients' is not recorded, expected one of steps, bytes, seconds, rounds",
        ),
        (
            [run, "--y", "errors"],
            "a.h5: 'errors' is not recorded, expected one of consensus, error, gradient_norm, objective",
        ),
        ([run, "--label", "a", "b"], "1 runs, 2 labels"),
        ([run, "--hue"], "unknown flag '--hue'"),
    ]:
        status = main(arguments)
        out, error = capsys.readouterr()
        assert status == 2 and out == "" and text in error and error.count("\n") == 1, (
            arguments,
            error,
        )


def test_malformed_calls(tmp_path):
    run = make(tmp_path / "a.h5")
    for call, text in [
        (
            lambda: figure(run, x=["hours"]),
            "x axis 'hours' is unknown, expected one of steps, bytes, seconds",
        ),
        (lambda: figure(run, label=["a", "b"]), "1 runs, 2 labels"),
        (lambda: figure([run, run], label=["a", "a"]), "expected different ones"),
        (lambda: figure([]), "0 runs"),
        (lambda: figure({}), "0 runs"),
        (
            lambda: figure(run, style="pink"),
            "style 'pink' is unknown, expected one of screen, paper",
        ),
    ]:
        with pytest.raises(ValueError, match=text):
            call()


# ---------------------------------------------------------------------------------------------------------------------
# Figures of papers


def study(
    folder: Path, solvers=("dgd", "extra", "d2"), graphs=("ring", "grid", "star"), **more
) -> list[Path]:
    """Write a run for each solver and graph; the first ones are the slowest."""
    files = []
    for i, solver in enumerate(solvers):
        for j, graph in enumerate(graphs):
            files.append(
                make(
                    folder / f"{solver}-{graph}.h5", solver, rate=0.9 - 0.1 * i - 0.02 * j, steps=50
                )
            )
            with h5py.File(files[-1], "a") as file:
                text = file.attrs["config"].replace("exponential", graph)
                file.attrs["config"] = text + "".join(
                    f"{key} = {value}\n" for key, value in more.items()
                )
    return files


def test_colours_are_solvers_and_dashes_graphs(tmp_path):
    files = study(tmp_path)
    shown = figure(files, "steps", "error")
    assert legend(shown) == [
        "DGD",
        "EXTRA",
        "D$^2$",
        "Ring",
        "Grid",
        "Star",
    ]  # 6 entries for 9 lines
    colours = np.array([line.get_color() for line in shown.axes[0].lines]).reshape(3, 3)
    dashes = np.array([line._unscaled_dash_pattern[1] is None for line in shown.axes[0].lines])
    assert (colours == colours[:, :1]).all() and len(set(colours[:, 0])) == 3
    assert dashes.reshape(3, 3).all(axis=0).tolist() == [True, False, False]
    few = figure(files[:2] + files[3:5], "steps", "error")
    assert legend(few) == ["DGD, Ring", "DGD, Grid", "EXTRA, Ring", "EXTRA, Grid"]
    turned = figure(files, "steps", "error", colour="topology", dash="solver.name").axes[0].lines
    assert len({line.get_color() for line in turned[::3]}) == 1


def test_panels_by_a_setting(tmp_path):
    files = study(tmp_path)
    names = {"dgd": "DSGD", "star": "hub", "ring": "Cycle"}
    shown = figure(files, "steps", "error", panels="topology", label=names)
    assert [axes.get_title() for axes in shown.axes] == ["Cycle", "Grid", "hub"]
    assert legend(shown) == ["DSGD", "EXTRA", "D$^2$"]
    assert np.allclose(shown.axes[1].lines[0].get_ydata(), 0.88 ** np.arange(51))
    assert len({axes.get_xlim() + axes.get_ylim() for axes in shown.axes}) == 1
    assert shown.axes[0].get_shared_y_axes().joined(*shown.axes[:2])
    assert [axes.get_ylabel() == "" for axes in shown.axes] == [False, True, True]
    both = figure(files[:2], "steps", "error", panels=["solver", "topology"])
    assert len(both.axes) == 2 and both.axes[0].get_title() == "DGD, Ring"


def test_limits_logarithmic_steps_and_the_target(tmp_path):
    files = study(tmp_path, graphs=("ring",), stop_error=1e-3)
    axes = figure(files, "steps", "error", log_x=True, xlim=(2, 40), ylim=(1e-4, 2)).axes[0]
    assert (
        axes.get_xscale() == "log" and axes.get_xlim() == (2, 40) and axes.get_ylim() == (1e-4, 2)
    )
    marks = [axes.lines[0].get_xdata()[k] for k in axes.lines[0].get_markevery()]
    assert marks[0] < 4 and 25 < marks[-1] <= 40 and np.median(marks) < 12
    assert axes.lines[-1].get_ydata()[0] == 1e-3
    assert (
        len(figure(files, "steps", "consensus").axes[0].lines) == 3
    )  # the error alone has a target
    assert len(figure(files, "steps", "error", ylim=(1e-2, 1)).axes[0].lines) == 3


def with_settings(path: Path, more: str = "", **attributes: object) -> Path:
    """Write a run, with more lines of settings and attributes in its file."""
    make(path, rate=0.5, steps=20)
    with h5py.File(path, "a") as file:
        file.attrs["config"] += more
        file.attrs.update(attributes)
    return path


@pytest.mark.parametrize(
    "limits, drawn",
    [((1e-3, 1e-3), [1e-3]), ((1e-3, 1e-2), []), ((1e-3, None), []), ((None, None), [])],
)
def test_the_target_is_drawn_if_all_runs_share_it(tmp_path, limits, drawn):
    files = [
        with_settings(tmp_path / f"{i}.h5", "" if limit is None else f"stop_error = {limit}\n")
        for i, limit in enumerate(limits)
    ]
    axes = figure(files, "steps", "error").axes[0]
    assert [line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2] == drawn


CHANGES_F = [  # of the problem, of the run, of the data
    *(
        f'[problem]\n{field.name} = "x"\n'
        for field in fields(Problem)
        if field.name not in SAMPLING
    ),
    "[problem]\nnoise = 0.5\n",
    "seed = 1\n",
    {"data_hash": "ab"},
    {"agents": 4},
]
CHANGES_NO_F = [
    *(f"[problem]\n{name} = 4\n" for name in SAMPLING),
    *(f"{field.name} = 4\n" for field in fields(Run) if field.name not in ("agents", "seed")),
    "[mixing]\ncodec = 'qsgd'\n",
    {"ranks": 2},
]


@pytest.mark.parametrize("program", [False, True])
def test_runs_share_the_smallest_objective_if_nothing_differs_that_changes_it(program):
    """The objective of the second run stays 0.01 above that of the first one."""

    def run(more: str = "", shift: float = 0.0, **given: object) -> SimpleNamespace:
        objective = 0.1 + 0.5 ** np.arange(21)
        objective[1:] += shift
        text = "" if program else f"[run]\nagents = 16\n{more}"
        attributes = {"agents": 16, "data_hash": "cd", "ranks": 1, **given}
        return SimpleNamespace(config=text, attributes=attributes, metrics={"objective": objective})

    for change in [*CHANGES_F, *CHANGES_NO_F]:
        text, given = ("", change) if isinstance(change, dict) else (change, {})
        if program and text:
            continue  # a program has no settings, but attributes
        gap = y_values([run(), run(text, 0.01, **given)], "objective")[0][1]
        lowest = 0.01 if change in CHANGES_NO_F else 0.5**19 - 0.5**20
        assert np.nanmin(gap) == pytest.approx(lowest), change


def test_what_theory_expects(tmp_path):
    (path,) = study(tmp_path, solvers=("dgd",), graphs=("ring",))
    with h5py.File(path, "a") as file:
        file["metrics"].move("error", "error_rms")
        file.attrs["expected"] = json.dumps({"rate": 0.5, "msd": 0.04, "error_rms": 0.1})
    shown = figure(path, theory=True)
    line = shown.axes[0].lines[-1]
    assert np.allclose(line.get_ydata(), np.sqrt(0.25 ** np.arange(51) + 0.01))
    assert legend(shown) == ["DGD, Ring, 16 agents", "theory"]
    with pytest.raises(ValueError, match="theory tells error_rms, not consensus: add --y"):
        figure(path, y="consensus", theory=True)
    with pytest.raises(ValueError, match="theory: no file states what theory expects"):
        figure(make(tmp_path / "b.h5", names=[*NAMES, "error_rms"][:6]), theory=True)


def test_own_names_on_the_command_line(tmp_path, capsys):
    files = list(map(str, study(tmp_path, graphs=("ring",))))
    out = ["-o", str(tmp_path / "a.svg"), "--x", "steps", "--y", "error"]
    for given, status, text in [
        (["dgd=DSGD"], 0, ""),
        (["a=1", "b=2", "c=3"], 0, ""),  # a label for each run
        (
            ["dg=DSGD"],
            2,
            "label dg=DSGD: dg is no value of a setting of these runs: did you mean dgd?",
        ),
        (["dgd=A", "dgd=B"], 2, "--label dgd=B: dgd is named twice"),
        (["dgd=A", "ring"], 2, "3 runs, 2 labels"),
    ]:
        assert main([*files, *out, "--label", *given]) == status
        assert text in capsys.readouterr().err


def test_malformed_figures_of_papers(tmp_path):
    files = study(tmp_path)
    for options, text in [
        (
            {"panels": "graph"},
            "panels graph: no such setting of these runs, expected one of solver.name, topology.name",
        ),
        ({"panels": "topology", "dash": "topology"}, "dash topology.name: it has the panels"),
        ({"panels": "topology", "label": ["a", "b", "c"]}, "a list of labels has no effect"),
        ({"xlim": (2, 1)}, "xlim 2 1: expected two numbers, the smaller one first"),
        ({"xlim": (0, 1), "log_x": True}, "xlim 0 with log_x: expected a positive number"),
        ({"x": ["steps", "bytes"], "xlim": (0, 1)}, "xlim is one range for steps and bytes"),
        ({"ylim": (0, 1)}, "ylim 0: expected a positive number on a logarithmic axis"),
    ]:
        with pytest.raises(ValueError, match=text):
            figure(files, **{"x": "steps", "y": "error", **options})


# ---------------------------------------------------------------------------------------------------------------------
# Trainings

CURVES = [
    "time",
    "bytes",
    "consensus",
    "accuracy_worst",
    "accuracy_mean",
    "accuracy_consensus",
    "loss_mean",
    "epoch",
]


def training(
    path: Path,
    best=0.98,
    names=CURVES,
    algorithm="atc",
    topology="ring",
    data="digits",
    alpha=0.1,
    lr=0.1,
) -> Path:
    """Write a training of 10 epochs, whose accuracies grow from 0.1 to `best`."""
    config = (
        f'[data]\nname = "{data}"\nalpha = {alpha}\n[model]\nname = "mlp"\n[algorithm]\nname = "{algorithm}"\n'
        f'[topology]\nname = "{topology}"\n[optimizer]\nname = "sgd"\nlr = {lr}\n[train]\nworkers = 8\nseed = 0\n'
    )
    with RunFile(
        path, n=8, row_shape=(3,), metrics=names, meta={"config": config}, trajectory=False
    ) as file:
        for k in range(11):
            reached = best - (best - 0.1) * 0.2**k
            file.append(
                k,
                {
                    "time": k,
                    "bytes": k,
                    "consensus": 0.5**k,
                    "loss_mean": 2.3 * 0.5**k,
                    "epoch": k,
                    **{name: reached for name in names if name.startswith("accuracy")},
                },
            )
        file.finish(np.zeros((8, 3)), "completed", 10)
    return path


def test_labels_of_trainings_name_all_that_differs(tmp_path):
    paths = [
        training(tmp_path / "a.h5"),
        training(tmp_path / "b.h5", algorithm="relay", topology="binary_tree", alpha=0.5),
        training(tmp_path / "c.h5", lr=0.02),
    ]
    assert legend(figure(paths)) == [
        "atc, Ring, alpha 0.1, lr 0.1",
        "relay, Binary tree, alpha 0.5, lr 0.1",
        "atc, Ring, alpha 0.1, lr 0.02",
    ]
    assert figure(paths).legends[0].get_title().get_text() == "mlp, digits, 8 workers"
    assert legend(figure([paths[0], paths[2]])) == ["lr 0.1", "lr 0.02"]
    assert legend(figure([paths[0], training(tmp_path / "d.h5", data="/somewhere/mine.npz")])) == [
        "digits",
        "mine.npz",
    ]


def test_panels_of_trainings(tmp_path):
    shown = [panel for panel in figure(training(tmp_path / "a.h5")).axes if panel.get_visible()]
    told = [panel.get_ylabel().split("  ")[0] for panel in shown]
    assert told == [
        "accuracy, worst",
        "accuracy, mean",
        "accuracy, average model",
        "consensus",
        "test loss, mean",
    ]
    older = figure(
        training(
            tmp_path / "b.h5",
            names=[name for name in CURVES if name not in ("consensus", "accuracy_consensus")],
        )
    )
    assert [panel.get_ylabel() for panel in older.axes] == [
        "accuracy, worst",
        "accuracy, mean",
        "test loss, mean",
    ]


@pytest.mark.parametrize("best, low", [(0.98, 0.9), (0.93, 0.8), (0.6, 0.5), (0.3, 0.0)])
def test_axes_of_accuracies_begin_where_the_curves_are(tmp_path, best, low):
    panel = figure(
        [training(tmp_path / "a.h5", best), training(tmp_path / "b.h5", 0.99, lr=0.2)],
        y="accuracy_worst",
    ).axes[0]
    assert (
        panel.get_yscale() == "linear"
        and panel.get_ylim()[0] == pytest.approx(low)
        and 0.99 < panel.get_ylim()[1] <= 1.01
    )


def test_runs_share_their_least_objective_where_they_minimize_the_same(tmp_path):
    from types import SimpleNamespace

    from mpidec.plot.quantities import y_values

    def run(least, **other):
        tables = {"problem": {"l2": 0.1}, "run": {"agents": 4, "seed": 0, "steps": 9}}
        tables["solver"] = {"step_size": 0.1}
        for name, value in other.items():
            tables[name.partition("_")[0]][name.partition("_")[2]] = value
        lines = [
            line
            for table, values in tables.items()
            for line in (f"[{table}]", *(f"{key} = {value}" for key, value in values.items()))
        ]
        metrics = {"step": np.arange(2), "objective": np.array([9.0, least])}
        return SimpleNamespace(
            path="run.h5", config="\n".join(lines), attributes={}, metrics=metrics
        )

    for other, same in (
        ({"solver_step_size": 0.2}, True),
        ({"run_steps": 50}, True),
        ({"run_agents": 5}, False),
        ({"run_seed": 1}, False),
        ({"problem_l2": 0.2}, False),
    ):
        gaps, _ = y_values([run(2.0), run(5.0, **other)], "objective")
        assert gaps[0][0] == 7 and gaps[1][0] == (7 if same else 4), other


def test_a_file_without_records_is_refused(tmp_path):
    path = tmp_path / "empty.h5"
    with RunFile(path, n=2, row_shape=(1,), metrics=NAMES, meta={}, trajectory=False) as file:
        file.finish(np.zeros((2, 1)), "completed", steps=0)
    for paths in (path, [make(tmp_path / "run.h5"), path]):
        with pytest.raises(ValueError, match=r"empty.h5 has no records: there is nothing to plot"):
            figure(paths)
