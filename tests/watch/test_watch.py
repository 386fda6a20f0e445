"""``mpidec watch``: files that do not exist yet, that are written, that have ended, and that are no runs."""

from __future__ import annotations

import numpy as np
import pytest

from mpidec.record import RunFile
from mpidec.watch import views
from mpidec.watch.command import main
from mpidec.watch.watched import WatchedFile

pytestmark = pytest.mark.serial
METRICS = ["error", "time", "bytes"]


def begun(path):
    return RunFile(path, n=2, row_shape=(1,), metrics=METRICS, meta={}, trajectory=False)


def record(file, step, error):
    file.append(step, {"error": error, "time": 0.1 * step, "bytes": step})
    file.flush()


def test_a_run_is_followed_from_before_its_file_to_its_end(tmp_path, monkeypatch, capsys):
    path, acts = str(tmp_path / "run.h5"), []
    file = begun(path)
    acts += [
        lambda: record(file, 0, 1.0),
        lambda: [record(file, 10, 0.5), record(file, 20, 0.25)],
        lambda: None,
        lambda: file.finish(np.zeros((2, 1)), "completed", 20),
    ]
    monkeypatch.setattr(views.time, "sleep", lambda seconds: acts.pop(0)())
    assert main([path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: waiting for its first record",
        f"{path}: step 0  error 1",
        f"{path}: step 10  error 0.5",
        f"{path}: step 20  error 0.25",
        f"{path}: completed after 20 steps",
    ]
    assert not acts


def test_a_killed_run_ends_the_command(tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "run.h5")
    with begun(path) as file:
        record(file, 3, 1.0)
    monkeypatch.setattr(views.time, "sleep", lambda seconds: None)
    assert main([path]) == 0
    assert "no outcome after 3 steps: no process is writing it" in capsys.readouterr().out


def test_a_terminal_shows_curves_and_the_last_records(tmp_path, capsys):
    path = str(tmp_path / "run.h5")
    with begun(path) as file:
        for k in range(4):
            record(file, k, 10.0**-k)
        file.finish(np.zeros((2, 1)), "diverged", 3)
    watched = WatchedFile(path)
    assert watched.look()
    name, state, curve, *table = views.described(watched, 60, 2)
    assert (name, state) == (path, "  diverged after 3 steps")
    assert curve.split()[:2] == ["error", "0.001"]
    assert [line.split() for line in table if line] == [
        ["step", "error"],
        ["2", "0.01"],
        ["3", "0.001"],
    ]
    screen = views.Screen(60, 2)
    screen.show([watched], [watched])
    screen.close()
    assert "diverged after 3 steps" in capsys.readouterr().out


def test_ctrl_c_leaves_quietly(tmp_path, monkeypatch, capsys):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(views.time, "sleep", interrupted)
    assert main([str(tmp_path / "run.h5")]) == 0
    assert capsys.readouterr().err == ""


def test_wrong_files_and_flags(tmp_path, capsys):
    wrong = tmp_path / "wrong.h5"
    wrong.write_text("no HDF5")
    for arguments, text in [
        ([str(wrong)], "not an HDF5 file, expected a run file"),
        ([str(tmp_path)], "is a folder"),
        ([str(tmp_path / "no" / "run.h5")], "there is no folder"),
        ([str(wrong), "--every", "0"], "--every is 0, expected a number of seconds > 0"),
        ([str(wrong), "--records", "0"], "--records is 0, expected at least 1"),
    ]:
        assert main(arguments) == 2
        assert text in capsys.readouterr().err
