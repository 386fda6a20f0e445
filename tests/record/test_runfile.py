"""Run files: what is written is what is read, checkpoints, resuming, full disks."""

from __future__ import annotations

import errno
import os
import time

import h5py
import numpy as np
import pytest
from helpers.counting import calls
from helpers.runs import META, FullDisk, check, error_of, fill, iterate, metrics, new, spares
from scipy.sparse import csr_array

from mpidec.record import RunFile, atomic, last_checkpoint, read

pytestmark = pytest.mark.serial


NAMES = ("time", "rounds", "bytes", "consensus", "objective")


def test_the_layout_is_the_contract(tmp_path):
    path = tmp_path / "run.h5"
    W = csr_array(np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]))
    with new(path, topology=[W]) as file:
        fill(file, range(4))
        file.finish(iterate(9, 3, 2), "completed", steps=3)
    assert check(path) == 4 and not spares(tmp_path)
    with h5py.File(path) as file:
        assert set(file) == {"metrics", "trajectory", "result", "topology"}
        assert {file["metrics"][name].dtype.kind for name in ("step", "rounds", "bytes")} == {"i"}
        assert np.array_equal(file["result/x"][:], iterate(9, 3, 2))
        assert dict(file["result/x"].attrs) == {"outcome": "completed", "steps": 3}
        assert all(
            np.array_equal(file["topology"][name], getattr(W, name))
            for name in ("indptr", "indices", "data")
        )
        root = dict(file.attrs)
    assert root.pop("created").endswith("+00:00")
    assert root == {**META, "schema": 1, "agents": 3}


def test_without_trajectory_the_group_is_empty(tmp_path):
    path = tmp_path / "run.h5"
    with new(path, trajectory=False) as file:
        for k in range(3):
            file.append(k, metrics(k))
        file.checkpoint(2, {"X": np.ones((3, 2))})
    assert check(path, trajectory=False) == 3
    with h5py.File(path) as plain:
        assert plain["trajectory/x"].shape == (0, 3, 2) and plain["trajectory/step"].shape == (0,)
    with RunFile.resume(path) as file:
        file.append(3, metrics(3))
    assert check(path, trajectory=False) == 4


@pytest.mark.parametrize(
    ("n", "d", "dtype"), [(1, 1, "f8"), (3, 1, "f4"), (5000, 50, "f8"), (2, 300_000, "f8")]
)
def test_rows_of_any_size(tmp_path, n, d, dtype):
    with new(tmp_path / "run.h5", n, d, dtype=dtype) as file:
        for k in range(3):
            file.append(k, metrics(k), iterate(k, n, d).astype(dtype))
    with h5py.File(tmp_path / "run.h5") as plain:
        assert plain["trajectory/x"].dtype == dtype
        assert np.array_equal(plain["trajectory/x"][2], iterate(2, n, d).astype(dtype))


def test_the_first_record_is_flushed_at_once_the_next_when_due(tmp_path):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=0.2) as file:
        fill(file, [0])
        assert check(path) == 1
        fill(file, [1, 2])
        assert check(path) == 1
        time.sleep(0.25)
        fill(file, [3])
        assert check(path) == 4
        fill(file, [4])
    assert check(path) == 5


def test_the_buffer_is_bounded(tmp_path):
    path = tmp_path / "run.h5"
    n, d = 100, 10_000  # 8 MB a record: two fill the buffer
    with new(path, n, d, flush_seconds=60) as file:
        fill(file, range(4), n, d)
        assert check(path, n, d) == 3


def test_a_record_is_a_copy(tmp_path):
    with new(tmp_path / "run.h5", flush_seconds=60) as file:
        X = np.empty((3, 2))
        for k in range(3):
            X[:] = iterate(k, 3, 2)
            file.append(k, metrics(k), X)
            X[:] = np.nan
    assert check(tmp_path / "run.h5") == 3


def test_appending_costs_a_few_calls_and_no_access_to_the_disk(tmp_path):
    path = tmp_path / "run.h5"
    with new(path, 16, 30, flush_seconds=1e9) as file:
        X, row = iterate(0, 16, 30), metrics(0)
        file.append(0, row, X)  # flushed at once
        before = path.stat().st_mtime_ns, sorted(tmp_path.iterdir())
        assert calls(lambda: [file.append(k, row, X) for k in range(1, 1001)]) < 20 * 1000
        assert (path.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == before and check(
            path, 16, 30
        ) == 1


def test_the_last_checkpoint_is_what_was_stored(tmp_path):
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(3))
        file.checkpoint(
            2, {"X": np.arange(6.0).reshape(3, 2), "Z": np.zeros((0, 2)), "k": 5, "p": 0.25}
        )
        file.checkpoint(2, {"X": np.arange(9, dtype=np.int32), "k": 6, "on": True})
    step, state = last_checkpoint(path)
    assert step == 2 and set(state) == {"X", "k", "on"} and state["X"].dtype == np.int32
    assert (
        np.array_equal(state["X"], np.arange(9)) and type(state["k"]) is int and state["on"] is True
    )


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(5))
        file.checkpoint(4, {"X": iterate(4, 3, 2)})
        fill(file, range(5, 9))
        file.finish(iterate(8, 3, 2), "interrupted", 8)
    with RunFile.resume(path, meta={"ranks": 4}, flush_seconds=0) as file:
        file.append(4, {**metrics(4), "time": 99.0}, iterate(0, 3, 2))  # is there already
        fill(file, range(5, 8))
        file.checkpoint(7, {"X": iterate(7, 3, 2)})
        assert (check(path), read(path).outcome, last_checkpoint(path)[0]) == (
            9,
            "interrupted",
            4,
        )  # it holds more than this
        fill(file, [8])
        run = read(path)
        assert (check(path), run.outcome, run.steps, run.x, run.attributes["ranks"]) == (
            9,
            "running",
            8,
            None,
            4,
        )
    with RunFile.resume(path) as file:
        fill(file, range(5, 7))
        file.finish(iterate(6, 3, 2), "completed", 6)
    assert check(path) == 7 and read(path).outcome == "completed" and not spares(tmp_path)


def test_resuming_needs_a_checkpoint(tmp_path):
    with new(tmp_path / "run.h5") as file:
        fill(file, range(3))
    with pytest.raises(ValueError, match=r"run.h5: holds no checkpoint"):
        RunFile.resume(tmp_path / "run.h5")
    with RunFile.resume(tmp_path / "run.h5", 1) as file:
        fill(file, [2])
    assert check(tmp_path / "run.h5") == 3


def test_a_run_that_fails_on_a_full_disk_says_so_where_it_can(tmp_path, monkeypatch):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=60) as file:
        file.fail("no record yet")
        assert not path.exists()  # an older run would still be there
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", FullDisk(0))
            assert "nothing was written" in str(error_of(lambda: fill(file, range(3))))
            assert error_of(lambda: file.fail("disk")) and not path.exists()
    path.unlink(missing_ok=True)
    with new(path, flush_seconds=60, d=20_000) as file:
        file.checkpoint(0, {"k": 0})

        class Small(FullDisk):
            def pwrite(self, descriptor, data, offset):
                return (
                    super().pwrite(descriptor, data, offset)
                    if offset > 100_000
                    else os.pwrite(descriptor, data, offset)
                )

        monkeypatch.setattr(atomic, "os", Small(0))
        error = error_of(lambda: fill(file, range(3), d=20_000))
        assert str(path) in str(error) and "it holds no records" in str(error)
        file.fail(f"OSError: {error}")
    run = read(path)
    assert (run.outcome, run.steps, run.reason) == ("failed", 0, f"OSError: {error}") and not len(
        run.metrics["step"]
    )


@pytest.mark.parametrize("room", [0, 1, 3, 8, 15, 30, 1000])
def test_a_resume_on_a_full_disk_keeps_what_the_file_had(tmp_path, monkeypatch, room):
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(5))
        file.checkpoint(4, {"X": iterate(4, 3, 2)})
        fill(file, range(5, 9))
        file.finish(iterate(8, 3, 2), "interrupted", 8)
    before = path.read_bytes()

    def resumed() -> None:
        with RunFile.resume(path, flush_seconds=0) as file:
            fill(file, range(5, 8))
            file.checkpoint(7, {"X": iterate(7, 3, 2)})
            if room == 1000:
                raise OSError(errno.EIO, "the process ends here")
            fill(file, [8])

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", FullDisk(room))
        error = error_of(resumed)
    assert error is not None and path.read_bytes() == before and not spares(tmp_path)
    assert room == 1000 or "the file is as it was" in str(error)


def test_a_checkpoint_on_a_full_disk_says_what_where_and_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(3))
        file.checkpoint(2, {"X": np.zeros((1000, 3))})
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", FullDisk(2))
            error = error_of(lambda: file.checkpoint(3, {"X": np.ones((1000, 3))}))
        assert error.strerror == (
            f"cannot write the checkpoint of step 3 (24,000 bytes) to {path}: No space left on device; its "
            "first 3 records are safe, and the checkpoint before; free some space (the file takes twice its "
            "size while it is written), or record less often (every=...)"
        )
        assert last_checkpoint(path)[0] == 2


def test_small_runs_make_small_files(tmp_path):
    """16 agents, 30 unknowns, 6 records: 23 kB of iterates, and as much again of checkpoint, result and metrics."""
    path = tmp_path / "run.h5"
    with new(path, 16, 30, records=6) as file:
        fill(file, range(6), 16, 30)
        file.checkpoint(5, {name: np.ones((16, 30)) for name in ("X", "Y", "G")})
        file.finish(iterate(5, 16, 30), "completed", steps=5)
    assert check(path, 16, 30) == 6
    assert path.stat().st_size < 70_000


def test_steps_and_agents_are_dimension_scales(tmp_path):
    """As netCDF-4 wants them: xarray.open_dataset("run.h5", engine="h5netcdf", group="metrics")."""
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(4))
        file.finish(iterate(3, 3, 2), "completed", steps=3)
    with RunFile.resume(path, 2) as file:
        fill(file, [3, 4])
    with h5py.File(path) as file:
        for name, dataset in file["metrics"].items():
            scales = [dataset] if name == "step" else list(dataset.dims[0].values())
            assert [scale.name for scale in scales] == ["/metrics/step"] and len(scales[0]) == 5, (
                name
            )
        assert file["metrics/step"].is_scale and file["trajectory/step"].is_scale
        dims = file["trajectory/x"].dims
        assert [[scale.name for scale in dim.values()] for dim in dims] == [
            ["/trajectory/step"],
            ["/trajectory/agent"],
            ["/trajectory/entry"],
        ]
        assert [dim[0].shape for dim in dims] == [(5,), (3,), (2,)]


def test_malformed_arguments(tmp_path):
    path = tmp_path / "run.h5"
    with pytest.raises(ValueError, match="different names"):
        new(path, metrics=["a", "a"])
    with pytest.raises(TypeError, match="model is of type object"):
        new(path, state={"model": ((3,), object)})
    with new(path) as file:
        with pytest.raises(ValueError, match=r"step 0: X has shape \(2, 2\), expected \(3, 2\)"):
            file.append(0, metrics(0), np.ones((2, 2)))
        with pytest.raises(ValueError, match="X has shape None"):
            file.append(0, metrics(0))
        with pytest.raises(ValueError, match="step 0 lacks the metric 'consensus'"):
            file.append(0, {"time": 0, "rounds": 0, "bytes": 0}, iterate(0, 3, 2))
        fill(file, [3])
        with pytest.raises(ValueError, match="step 3 after that of step 3"):
            fill(file, [3])
        with pytest.raises(ValueError, match="result x has shape"):
            file.finish(np.ones(2), "completed", 3)
        with pytest.raises(TypeError, match="name is of type"):
            file.checkpoint(3, {"name": "x"})
    with pytest.raises(ValueError, match="is closed"):
        file.finish(iterate(0, 3, 2), "completed", 3)


@pytest.mark.serial
def test_each_checkpoint_takes_the_place_of_the_one_before(tmp_path):
    """Its step, and its fields with their shapes and types, whatever those before had."""
    rng, path = np.random.default_rng(0), tmp_path / "run.h5"
    with new(path) as file:
        for step in range(12):
            fill(file, [step])
            made = {
                name: rng.standard_normal(rng.integers(0, 3, 2)).astype(rng.choice(["f4", "f8"]))
                for name in rng.permutation(["Y", "Z", "memory.X"])[: rng.integers(0, 4)].tolist()
            } | {"k": step}
            file.checkpoint(step, made)
            found, state = last_checkpoint(path)
            assert found == step and set(state) == set(made)
            for name, array in made.items():
                assert np.array_equal(state[name], array)
                assert np.asarray(state[name]).dtype == np.asarray(array).dtype


@pytest.mark.serial
def test_a_run_that_fails_on_a_disk_that_filled_up_keeps_its_steps(tmp_path, monkeypatch):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=60, d=20_000) as file:
        fill(file, range(3), d=20_000)
        file.flush()

        class Small(FullDisk):
            def pwrite(self, descriptor, data, offset):
                known = offset + len(data) <= size + 50_000  # of 480,000 bytes of new records
                return (os if known else super()).pwrite(descriptor, data, offset)

        size = path.stat().st_size
        monkeypatch.setattr(atomic, "os", Small(0))
        fill(file, range(3, 6), d=20_000)
        error = error_of(file.flush)
        assert "its first 3 records are safe" in str(error)
        file.fail(f"OSError: {error}")
    run = read(path)
    assert (run.outcome, run.steps, run.metrics["step"].tolist()) == ("failed", 2, [0, 1, 2])
