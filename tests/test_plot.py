"""Figures of finished, running, killed and diverged runs; errors of the command line."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpidec.plot import main, plot
from mpidec.record import RunFile

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.serial

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["time", "rounds", "bytes", "consensus", "gradient_norm", "objective", "error"]


def make(path: Path, solver="exact_diffusion", agents=16, rate=0.9, steps=100, outcome="completed", names=NAMES) -> Path:
    """Write a run whose quantities decay like ``rate**k``; with outcome None it has no end."""
    config = f'[solver]\nname = "{solver}"\n[topology]\nname = "exponential"\n' if solver else "# no experiment"
    with RunFile(path, n=agents, row_shape=(3,), metrics=names, meta={"mpidec": "0.1", "config": config},
                 trajectory=False) as file:
        for k in range(steps + 1):
            row = {"time": k / 1000, "rounds": k, "bytes": 4096 * k, "consensus": k * rate**k, "objective": 0.1 + rate**k,
                   "gradient_norm": 3 * rate**k, "error": rate**k}
            file.append(k, row)
        if outcome:
            file.finish(np.zeros((agents, 3)), outcome, steps)
    return path


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_grid_of_quantities_and_axes(tmp_path):
    paths = [make(tmp_path / "a.h5"), make(tmp_path / "b.h5", "gradient_tracking", rate=0.8)]
    figure = plot(paths)
    panels = np.array(figure.axes).reshape(3, 3)
    assert [panel.get_xlabel() for panel in panels[-1]] == ["steps", "data sent", "seconds"]
    assert [panel.get_ylabel().split()[0] for panel in panels[:, 0]] == ["objective", "consensus", "error"]
    assert [panel.get_yscale() for panel in panels[:, 0]] == ["linear", "log", "log"]
    assert legend(figure) == ["exact diffusion, exponential, 16 agents", "gradient tracking, exponential, 16 agents"]
    x, y = panels[2, 1].lines[1].get_data()
    assert np.array_equal(x, 4096 * np.arange(101)) and np.allclose(y, 0.8 ** np.arange(101))
    assert len({line.get_color() for line in panels[0, 0].lines}) == 2
    assert len({line.get_linestyle() for line in panels[0, 0].lines}) == 2      # told apart without colour, too


def test_a_notebook_shows_it(tmp_path):
    formatter = pytest.importorskip("IPython.core.formatters").PNGFormatter()
    assert formatter(plot(make(tmp_path / "a.h5")))[:4] == b"\x89PNG"


def test_axes_and_labels_can_be_chosen(tmp_path):
    path = make(tmp_path / "a.h5")
    figure = plot(str(path), x=["seconds"], labels=["mine"])
    assert [panel.get_xlabel() for panel in figure.axes] == ["seconds"] * 3 and legend(figure) == ["mine"]
    assert len(plot([path], x=["steps", "bytes"]).axes) == 6


def test_runs_of_one_kind_are_told_apart_by_their_files(tmp_path):
    (tmp_path / "sub").mkdir()
    a, b, c = make(tmp_path / "a.h5"), make(tmp_path / "b.h5"), make(tmp_path / "sub" / "a.h5")
    common = "exact diffusion, exponential, 16 agents"
    assert legend(plot([a, b])) == [f"{common} (a)", f"{common} (b)"]
    assert legend(plot([a, c])) == [f"{common} ({a})", f"{common} ({c})"]
    assert legend(plot(make(tmp_path / "none.h5", solver=""))) == ["none"]


def test_unfinished_and_diverged_runs_say_so(tmp_path):
    killed, diverged = make(tmp_path / "a.h5", outcome=None), make(tmp_path / "b.h5", "dgd", rate=1.5, outcome="diverged")
    assert [text.split("agents")[1] for text in legend(plot([killed, diverged]))] == [
        ", unfinished after 100 steps", ", diverged after 100 steps"]


@pytest.mark.parametrize("steps", [0, 1, 20_000])
def test_runs_of_any_length(tmp_path, steps):
    figure = plot(make(tmp_path / "a.h5", steps=steps))
    assert 0 < len(figure.axes[0].lines[0].get_xdata()) <= 4000
    figure.savefig(tmp_path / "a.png")


def test_values_that_no_axis_shows(tmp_path):
    names = [name for name in NAMES if name != "error"]
    with RunFile(tmp_path / "a.h5", n=1, row_shape=(1,), metrics=names, meta={}, trajectory=False) as file:
        for k, value in enumerate([0.0, 1.0, 1e9, np.inf, np.nan, -1.0]):
            file.append(k, dict.fromkeys(names, 0.0) | {"objective": value, "consensus": abs(value)})
    figure = plot(tmp_path / "a.h5")
    figure.savefig(tmp_path / "a.pdf")
    assert figure.axes[6].get_ylabel().startswith("gradient") and figure.axes[3].get_yscale() == "log"


def test_a_run_that_is_going_on(tmp_path):
    with RunFile(tmp_path / "a.h5", n=1, row_shape=(1,), metrics=NAMES, meta={}, flush_seconds=0) as file:
        for k in range(5):
            file.append(k, dict.fromkeys(NAMES, 1.0), np.ones((1, 1)))
            assert len(plot(tmp_path / "a.h5", "steps").axes[0].lines[0].get_xdata()) == k + 1


def test_the_command_writes_the_figure(tmp_path, capsys):
    a, b = make(tmp_path / "a.h5"), make(tmp_path / "b.h5", "dgd")
    assert main([str(a), str(b)]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'a.png'}\n", "")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert main([str(a), "--x", "steps", "-o", str(tmp_path / "b.pdf")]) == 0
    assert (tmp_path / "b.pdf").read_bytes()[:4] == b"%PDF"


def test_the_command_as_users_type_it(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.pop("DISPLAY", None)
    command = [sys.executable, "-m", "mpidec.plot"]
    done = subprocess.run([*command, str(make(tmp_path / "a.h5"))], env=environment, capture_output=True, text=True,
                          timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "a.png").exists()
    done = subprocess.run([*command, "no.h5"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "mpidec.plot: no.h5 does not exist\n")


def test_malformed_commands_answer_in_one_line(tmp_path, capsys):
    run = str(make(tmp_path / "a.h5"))
    (tmp_path / "text.h5").write_text("steps")
    for arguments, text in [
        ([], "required: run.h5"),
        (["missing.h5"], "missing.h5 does not exist"),
        ([str(tmp_path / "text.h5")], "text.h5: not an HDF5 file"),
        ([str(tmp_path)], "is a folder"),
        ([run, "-o", "figure.xyz"], "figure.xyz: expected a name that ends in one of"),
        ([run, "-o", "figure"], "figure: expected a name that ends in one of"),
        ([run, "-o", str(tmp_path / "none" / "a.png")], "none/a.png"),
        ([run, "--x", "hours"], "invalid choice: 'hours'"),
        ([run, "--colour"], "unrecognized arguments: --colour"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, error = capsys.readouterr()
        assert ended.value.code == 2 and out == "" and text in error and error.count("\n") == 1, (arguments, error)


def test_malformed_calls(tmp_path):
    run = make(tmp_path / "a.h5")
    with pytest.raises(ValueError, match="x axis 'hours' is unknown, expected one of steps, bytes, seconds"):
        plot(run, x=["hours"])
    with pytest.raises(ValueError, match="1 runs, 3 axes, 2 labels"):
        plot(run, labels=["a", "b"])
    with pytest.raises(ValueError, match="0 runs"):
        plot([])
