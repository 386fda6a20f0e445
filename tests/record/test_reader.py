"""What is read of a run file, and what is refused."""

from __future__ import annotations

import os
import platform
import sys
import time
from enum import Enum
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.runs import META, fill, iterate, new, spares
from scipy.sparse import csr_array

from mpidec.record import Record, RunFile, last_checkpoint, read

pytestmark = pytest.mark.serial


NAMES = ("time", "rounds", "bytes", "consensus", "objective")


def test_read_returns_a_frozen_run(tmp_path):
    path = tmp_path / "run.h5"
    phases = [csr_array(np.eye(3)), csr_array(np.full((3, 3), 1 / 3))]
    with new(path, topology=phases) as file:
        fill(file, range(5))
        file.finish(iterate(4, 3, 2), Enum("Outcome", {"STOPPED": "stopped"}).STOPPED, steps=4)
    run = read(path)
    assert (run.outcome, run.steps, run.config, run.attributes["seed"]) == (
        "stopped",
        4,
        META["config"],
        7,
    )
    assert np.array_equal(run.metrics["consensus"], 1 / np.arange(1.0, 6)) and np.array_equal(
        run.x, iterate(4, 3, 2)
    )
    assert [
        np.array_equal(W.toarray(), V.toarray()) for W, V in zip(run.topology, phases, strict=True)
    ] == [True, True]
    step, x = run.trajectory(slice(-2, None))
    assert step.tolist() == [3, 4] and np.array_equal(x[0], iterate(3, 3, 2))
    with pytest.raises(AttributeError):
        run.steps = 5


def test_an_unfinished_run_says_so(tmp_path):
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(3))
        file.flush()
        run = read(path)
        assert (run.outcome, run.steps, run.x) == ("running", 2, None)
        with h5py.File(path) as plain:
            assert np.isnan(plain["result/x"]).all()


def test_files_that_are_no_run(tmp_path):
    (tmp_path / "text.h5").write_text("steps")
    (tmp_path / "empty.h5").touch()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with new(tmp_path / "future.h5") as file:
        fill(file, [0])
    with h5py.File(tmp_path / "future.h5", "r+") as file:
        file.attrs["schema"] = 2
    (tmp_path / "cut.h5").write_bytes((tmp_path / "future.h5").read_bytes()[:-1000])
    for name, kind, text in [
        ("cut.h5", ValueError, "damaged.*truncated file"),
        ("missing.h5", FileNotFoundError, "does not exist"),
        ("", IsADirectoryError, "is a folder"),
        ("text.h5", ValueError, "not an HDF5 file"),
        ("empty.h5", ValueError, "not an HDF5 file"),
        ("other.h5", ValueError, "not a run of mpidec"),
        ("future.h5", ValueError, "schema 2 of mpidec 0.1, expected at most 1: upgrade"),
    ]:
        for action in (read, last_checkpoint, RunFile.resume):
            with pytest.raises(kind, match=text) as error:
                action(tmp_path / name)
            assert str(tmp_path / name).rstrip("/") in str(error.value)


def external(file: h5py.File, name: str, other: Path) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, shape, dtype, external=[(str(other), 0, h5py.h5f.UNLIMITED)])


def virtual(file: h5py.File, name: str, other: Path) -> None:
    layout = h5py.VirtualLayout(file[name].shape, file[name].dtype)
    layout[:] = h5py.VirtualSource(str(other), name, file[name].shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def linked(file: h5py.File, name: str, other: Path) -> None:
    del file[name]
    file[name] = h5py.ExternalLink(str(other), name)


def linked_through(file: h5py.File, name: str, other: Path) -> None:
    del file[name]
    file["elsewhere"] = h5py.ExternalLink(str(other), "/")
    file[name] = h5py.SoftLink(f"/elsewhere/{name}")


@pytest.mark.parametrize(
    "refer, name",
    [
        *(
            (refer, name)
            for refer in (external, virtual)
            for name in ("checkpoint/X", "metrics/time", "trajectory/x", "result/x")
        ),
        *(
            (refer, name)
            for refer in (linked, linked_through)
            for name in ("checkpoint", "checkpoint/X", "metrics", "trajectory/x")
        ),
    ],
)
def test_a_file_that_refers_to_other_files_is_neither_read_nor_resumed(tmp_path, refer, name):
    path, other = tmp_path / "run.h5", tmp_path / "other.h5"
    with new(path) as file:
        fill(file, range(3))
        file.checkpoint(2, {"X": iterate(2, 3, 2)})
    other.write_bytes(path.read_bytes())
    with h5py.File(path, "r+") as file:
        refer(file, name, other)
    before = other.read_bytes()
    for action in (read, last_checkpoint, RunFile.resume):
        with pytest.raises(ValueError, match="can lead to other files") as error:
            action(path)
        assert str(error.value).startswith(f"{path}: /") and "\n" not in str(error.value)
    assert other.read_bytes() == before and not spares(tmp_path)


def replaced(file: h5py.File, name: str, *given, **options) -> None:
    del file[name]
    file.create_dataset(name, *given, **options)


@pytest.mark.parametrize(
    "damage, text",
    [
        (
            lambda file: file.attrs.__setitem__("schema", "one"),
            "schema is 'one', expected a number",
        ),
        (
            lambda file: file.attrs.__setitem__("agents", 10**12),
            "agents is 1000000000000, but /result/x has the shape",
        ),
        (lambda file: file.attrs.__setitem__("agents", "many"), "damaged: .*many"),
        (
            lambda file: replaced(file, "checkpoint/X", data="text"),
            "/checkpoint/X is of type object, expected numbers",
        ),
        (
            lambda file: replaced(file, "checkpoint/X", (200_000, 200_000), "f8"),
            "320,000,000,000 bytes, of which 0 are stored",
        ),
        (
            lambda file: replaced(file, "metrics/time", (40_000_000_000,), "f8"),
            "320,000,000,000 bytes, of which 0 are stored",
        ),
        (lambda file: replaced(file, "topology/indices", data=[0, 1, 10**9]), "damaged: .*ind"),
        (
            lambda file: replaced(
                file, "metrics/time", (10**9,), "f8", chunks=(1 << 20,), compression="gzip"
            ),
            "8,000,000,000 bytes, of which 0 are stored",
        ),
        (
            lambda file: replaced(file, "metrics/time", data=np.ones(2)),
            r"/metrics/time is \(2,\) float64, of fixed size, expected a real number for each of the 3",
        ),
        (
            lambda file: file["checkpoint"].attrs.__setitem__("step", -5),
            "damaged: its checkpoint is that of step -5",
        ),
        (
            lambda file: file["checkpoint"].create_dataset("counters", data=np.ones(1)),
            r"damaged: the counters of its checkpoint have the shape \(1,\)",
        ),
    ],
    ids=[
        "schema",
        "agents",
        "agents-text",
        "checkpoint-text",
        "checkpoint-size",
        "metrics-size",
        "topology",
        "metrics-compressed",
        "metrics-length",
        "checkpoint-step",
        "checkpoint-counters",
    ],
)
def test_a_damaged_file_ends_in_one_line_that_names_it(tmp_path, damage, text):
    path = tmp_path / "run.h5"
    with new(path, topology=[csr_array(np.eye(3))]) as file:
        fill(file, range(3))
        file.checkpoint(2, {"X": iterate(2, 3, 2)})
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(ValueError, match=text) as error:
        last_checkpoint(path), read(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_an_object_with_many_names_is_opened_once(tmp_path, monkeypatch):
    path, opened = tmp_path / "links.h5", []
    with RunFile(str(path), n=1, row_shape=(1,), metrics=["error"], meta={}) as file:
        file.append(0, {"error": 1.0}, np.zeros((1, 1)))
    with h5py.File(path, "a") as file:
        for i in range(100):
            file[f"more/{i}"] = file["metrics/error"]
    plain = h5py.h5o.open
    monkeypatch.setattr(
        h5py.h5o, "open", lambda *place, **how: opened.append(place) or plain(*place, **how)
    )
    assert read(path).metrics["error"].tolist() == [1.0] and len(opened) < 50


def test_metrics_as_a_table_of_pandas(tmp_path, monkeypatch):
    with RunFile(
        tmp_path / "a.h5", n=1, row_shape=(1,), metrics=["error"], meta={}, trajectory=False
    ) as file:
        file.append(0, {"error": 1.0})
        file.append(5, {"error": 0.5})
    run = read(tmp_path / "a.h5")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match=r"to_frame: .*: pip install pandas"):
            run.to_frame()
    pytest.importorskip("pandas")
    frame = run.to_frame()
    assert frame.index.tolist() == [0, 5] and frame["error"].tolist() == [1.0, 0.5]
    assert "step" not in frame and frame.index.name == "step"


def test_a_run_without_an_end_says_whether_it_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "run.h5"
    meta = {"host": platform.node()}
    file = RunFile(path, n=2, row_shape=(1,), metrics=["error"], meta=meta, trajectory=False)
    file.append(0, {"error": 1.0})
    file.append(7, {"error": 0.5})
    file.flush()
    os.utime(path, (0, 0))
    last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0))
    told = f"incomplete, 7 steps so far, last written {last}, "
    assert f"{told}a process is writing it, error 0.5" in repr(read(path))
    kept = Path(tmp_path, ".run.h5.lock").read_bytes()
    file.close()
    for remains in (False, True):  # after a kill, the lock file remains
        if remains:
            Path(tmp_path, ".run.h5.lock").write_bytes(kept)
        assert read(path).unfinished == f"{told}no process is writing it"
    monkeypatch.setattr(platform, "node", lambda: "here")
    where = f"no process of here is writing it, begun on {meta['host']}"
    assert read(path).unfinished == told + where
    with RunFile.resume(path, 7) as file:
        file.finish(np.zeros((2, 1)), "completed", steps=7)
    assert read(path).unfinished == "" and "completed after 7 steps" in repr(read(path))


@pytest.mark.parametrize("name", ["run.txt", "run.CSV", "a.b.npz"])
def test_a_name_of_another_format_is_refused(name, tmp_path):
    path = tmp_path / name
    with pytest.raises(ValueError, match=r"a run file is HDF5, not .*: choose .*[.]h5"):
        RunFile(path, n=1, row_shape=(1,), metrics=[], meta={})
    with pytest.raises(ValueError, match=r"a run file is HDF5, not .*: choose .*[.]h5"):
        Record(path).check()
    assert not [*tmp_path.iterdir()]
