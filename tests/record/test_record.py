"""Files that are complete at every moment: round trips, kills, full disks, live readers, resuming."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
import traceback
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers import launch
from helpers.counting import calls
from scipy.sparse import csr_array

from mpidec.record import RunFile, atomic, last_checkpoint, read

pytestmark = pytest.mark.serial

NAMES = ("time", "rounds", "bytes", "consensus", "objective")
META = {"mpidec": "0.1", "config": "[run]\nsteps = 3\n", "seed": 7, "ranks": 2, "mpi": "MPICH"}


def iterate(step: int, n: int, d: int) -> np.ndarray:
    return step + np.arange(n * d).reshape(n, d) / 7


def metrics(step: int) -> dict[str, float]:
    return {
        "time": step / 8,
        "rounds": 2 * step,
        "bytes": 2**53 + step,
        "consensus": 1 / (1 + step),
        "objective": -step,
    }


def new(path, n=3, d=2, **options) -> RunFile:
    return RunFile(path, **{"n": n, "row_shape": (d,), "metrics": NAMES, "meta": META, **options})


def fill(file: RunFile, steps, n=3, d=2) -> None:
    for step in steps:
        file.append(step, metrics(step), iterate(step, n, d))


def check(path, n=3, d=2, trajectory=True) -> int:
    """Read `path` with plain h5py, compare every record with what was recorded, and return how many there are."""
    with h5py.File(path, "r") as file:
        step = file["metrics/step"][:]
        assert np.array_equal(step, np.arange(len(step)))
        expected = [metrics(int(k)) for k in step]
        assert set(file["metrics"]) == {"step", *NAMES}
        for name in NAMES:
            assert np.array_equal(file["metrics"][name][:], [row[name] for row in expected]), name
        if trajectory:
            assert np.array_equal(file["trajectory/step"][:], step)
            assert file["trajectory/x"].shape == (len(step), n, d)
            assert np.array_equal(file["trajectory/x"][:], [iterate(int(k), n, d) for k in step])
        return len(step)


def spares(folder: Path) -> list[Path]:
    return list(folder.glob(".*"))


# ---------------------------------------------------------------------------------------------------------------------
# What is written is what is read


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


# ---------------------------------------------------------------------------------------------------------------------
# Buffering


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


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


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


# ---------------------------------------------------------------------------------------------------------------------
# Kills


class Recording:
    """Stands in for `os` in the module under test: photographs the file before and after every system call."""

    def __init__(self, path: Path):
        self.target, self.photographs, self.calls = path, [], 0

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in {"pwrite", "ftruncate", "link", "replace", "unlink", "open", "close"}:
            return real

        def call(*args, **kwargs):
            self.calls += 1
            self.photographs.append(self.target.read_bytes())
            result = real(*args, **kwargs)
            self.photographs.append(self.target.read_bytes())
            return result

        return call


def test_between_any_two_system_calls_the_file_is_the_old_or_the_new(tmp_path, monkeypatch):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=60) as file:
        fill(file, [0])
        for step in range(1, 6):  # the second update copies, the others repeat writes
            before = path.read_bytes()
            fill(file, [step])
            with monkeypatch.context() as patch:
                patch.setattr(atomic, "os", recording := Recording(path))
                file.checkpoint(step, {"X": iterate(step, 3, 2)})
            assert recording.calls > 10
            after = path.read_bytes()
            assert set(recording.photographs) == {before, after} and before != after
            assert check(path) == step + 1


def kill_and_check(path: Path, rng: random.Random, rounds: int) -> None:
    """Kill writers of `path` at random moments; run in a process of its own, which has not started MPI."""
    n, d = rng.choice([(3, 2), (64, 500)])
    for _ in range(rounds):
        resuming = path.exists() and rng.random() < 0.4
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                write_forever(path, rng, writer, resuming, n, d)
            except BaseException:
                traceback.print_exc()
            os._exit(1)  # not reached: it is killed
        os.close(writer)
        deadline, checks = time.monotonic() + rng.choice([0.02, 0.1, 0.3]) * rng.random() + 0.01, 0
        while time.monotonic() < deadline:  # a live reader
            if path.exists():
                checks += bool(check(path, n, d))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        with open(reader, "rb") as pipe:
            reported = pipe.read()
        flushed = max(struct.unpack(f"{len(reported) // 8}q", reported), default=-1)
        assert flushed < 0 or check(path, n, d) > flushed
        print(f"{n=} {d=} {resuming=} flushed {flushed} live reads {checks}")
        if path.exists():
            run = read(path)
            assert run.outcome == "running" and run.x is None
            with contextlib.suppress(ValueError):
                step, state = last_checkpoint(path)
                assert np.array_equal(state["X"], iterate(step, n, d))


def write_forever(
    path: Path, rng: random.Random, report: int, resuming: bool, n: int, d: int
) -> None:
    step = 0
    if resuming:
        with contextlib.suppress(ValueError):
            step = last_checkpoint(path)[0] + 1
    with (
        RunFile.resume(path, step - 1, flush_seconds=60)
        if step
        else new(path, n, d, flush_seconds=60) as file
    ):
        while True:
            records = rng.randint(1, 20)
            fill(file, range(step, step + records), n, d)
            step += records
            if rng.random() < 0.2:
                file.checkpoint(step - 1, {"X": iterate(step - 1, n, d), "k": step})
            file.flush()
            os.write(report, struct.pack("q", step - 1))


def run_script(*args: object, **options) -> subprocess.CompletedProcess:
    root = str(launch.ROOT)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [root, os.path.join(root, "tests"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    return subprocess.run(
        [sys.executable, __file__, *map(str, args)],
        env=environment,
        text=True,
        timeout=launch.patient(110),
        capture_output=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize("seed", [1, 5])  # of small rows and of large ones
def test_a_killed_writer_leaves_every_flushed_record(tmp_path, seed):
    done = run_script("kill", tmp_path / "run.h5", seed, 5)
    assert done.returncode == 0, done.stdout + done.stderr
    new(tmp_path / "run.h5").close()
    assert not spares(tmp_path)  # what the dead left


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_two_hundred_kills(tmp_path, seed):
    done = run_script("kill", tmp_path / "run.h5", seed, 20)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("grace", [0, atomic.GRACE])
def test_a_reader_may_keep_the_file_open(tmp_path, monkeypatch, grace):
    monkeypatch.setattr(atomic, "GRACE", grace)
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, [0, 1])
        file.flush()
        with h5py.File(path) as plain:
            for step in range(2, 8):
                fill(file, [step])
                file.flush()
                assert check(path) == step + 1
            assert plain["metrics/step"][:].tolist() == [0, 1] and plain["trajectory/x"].shape == (
                2,
                3,
                2,
            )
    assert check(path) == 8 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("small", [True, False])
def test_a_reader_between_open_and_lock_reads_the_file_that_it_opened(tmp_path, monkeypatch, small):
    """A small file gets a new spare; with a large one the writer waits, and the reader's lock keeps what it has opened."""
    path, waits = tmp_path / "run.h5", []
    monkeypatch.setattr(atomic, "GRACE", 1000.0)  # however busy the machine is
    with new(path) as file:
        fill(file, range(2))
        file.flush()
        fill(file, [2])
        opened = os.open(path, os.O_RDONLY)
        before = os.pread(opened, 1 << 20, 0)
        file.flush()  # what is open is the spare now
        if not small:
            monkeypatch.setattr(atomic, "SMALL", 1000)
            monkeypatch.setattr(
                atomic.time,
                "sleep",
                lambda seconds: waits.append((seconds, fcntl.flock(opened, fcntl.LOCK_SH))),
            )
        fill(file, [3])
        file.flush()
        assert os.pread(opened, 1 << 20, 0) == before
        os.close(opened)
    assert [0 < seconds <= 1000 for seconds, _ in waits] == ([] if small else [True])


def test_the_first_update_waits_for_no_reader(tmp_path, monkeypatch):
    """Nobody can have opened its spare, also on a machine that was started a moment ago, whose clock is near 0."""
    waits = []
    monkeypatch.setattr(atomic, "SMALL", 1)
    monkeypatch.setattr(atomic, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=waits.append))
    for existing in (False, True):
        file = atomic.AtomicFile(tmp_path / "run.h5", existing)
        with file.update():
            pass
        file.close()
    assert not waits


# ---------------------------------------------------------------------------------------------------------------------
# Errors: of the disk, of the name, of the arguments


class FullDisk:
    """Stands in for `os` in the module under test: from the `room`-th write on there is no space."""

    def __init__(self, room: int):
        self.room = room

    def __getattr__(self, name):
        return getattr(os, name)

    def pwrite(self, *args):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(*args)


def error_of(action) -> OSError | None:
    try:
        action()
    except OSError as error:
        return error
    return None


def test_a_full_disk_costs_no_record(tmp_path, monkeypatch, capfd):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=60) as file:
        fill(file, range(3))
        file.flush()
        for room in range(100):
            before = path.read_bytes()
            fill(file, [room + 3])
            with monkeypatch.context() as patch:
                patch.setattr(atomic, "os", FullDisk(room))
                error = error_of(file.flush)
            if error is None:  # room for all writes of an update
                break
            assert (
                error.errno == errno.ENOSPC
                and str(path) in str(error)
                and "record less often" in str(error)
            )
            assert path.read_bytes() == before
            file.flush()  # space again: what was buffered is written
            assert check(path) == room + 4
    assert room > 10
    assert "".join(capfd.readouterr()) == "" and len(list(tmp_path.iterdir())) == 1


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


class Synced:
    """Stands in for `os` in the module under test: notes which files are synchronized, and when one is renamed."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return getattr(os, name)

    def fsync(self, descriptor):
        self.calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        os.fsync(descriptor)

    def replace(self, *names):
        self.calls.append("rename")
        os.replace(*names)


def test_checkpoints_are_on_the_disk(tmp_path, monkeypatch):
    with new(tmp_path / "run.h5") as file:
        monkeypatch.setattr(atomic, "os", synced := Synced())
        file.append(0, metrics(0), iterate(0, 3, 2))
        assert "file" not in synced.calls  # records alone are not worth the wait
        synced.calls.clear()
        file.checkpoint(0, {"X": iterate(0, 3, 2)})
        assert synced.calls[:2] == ["file", "rename"] and synced.calls[-1] == "folder"


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


def fill_the_disk(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    try:
        with new(path, 16, 30, flush_seconds=0) as file:
            fill(file, range(10_000), 16, 30)
    except OSError as error:
        print(error)


def test_a_real_limit_ends_in_one_line(tmp_path):
    path = tmp_path / "run.h5"
    done = run_script("fill", path)
    assert done.returncode == 0 and done.stderr == ""
    assert (
        f"cannot write {path}: File too large; its first" in done.stdout
        and done.stdout.count("\n") == 1
    )
    records = check(path, 16, 30)
    assert records > 20 and f"first {records} records are safe" in done.stdout
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_flushing_costs_no_record(tmp_path, monkeypatch):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=60) as file:
        fill(file, range(2))
        for room in range(12):
            fill(file, [room + 2])
            disk = FullDisk(room)
            monkeypatch.setattr(atomic, "os", disk)
            monkeypatch.setattr(
                disk, "pwrite", lambda *args, disk=disk: interrupt(disk, *args), raising=False
            )
            with pytest.raises(KeyboardInterrupt):
                file.flush()
            monkeypatch.undo()
            file.flush()
    assert check(path) == 14


def interrupt(disk: FullDisk, *args: object) -> int:
    disk.room -= 1
    if disk.room < 0:
        raise KeyboardInterrupt
    return os.pwrite(*args)


def test_a_failed_start_leaves_the_older_run(tmp_path):
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(3))
    before = path.read_bytes()
    with pytest.raises(RuntimeError), new(path):
        raise RuntimeError("before any step")
    with pytest.raises(ValueError), new(path) as file:
        file.append(0, {}, iterate(0, 3, 2))
    assert path.read_bytes() == before and not spares(tmp_path)


def test_names_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, kind, text in [
        ("folder", IsADirectoryError, "folder: it is a folder"),
        ("missing/run.h5", FileNotFoundError, "missing: create it"),
        ("pipe", OSError, "pipe: it is not a regular file"),
        ("x" * 250, OSError, "File name too long"),
    ]:
        with pytest.raises(kind, match=text) as error:
            new(tmp_path / name)
        assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "pipe"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="no permission"):
        new(tmp_path / "run.h5")
    tmp_path.chmod(0o700)


def test_two_writers_of_one_file(tmp_path):
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(2))
        with pytest.raises(BlockingIOError, match="another process is writing"):
            new(path)
        (tmp_path / "other.h5").write_bytes(b"")
        (tmp_path / "other.h5").replace(path)
        fill(file, [2])
        with pytest.raises(FileExistsError, match="was replaced"):
            file.flush()
    assert path.read_bytes() == b""


def test_a_lock_on_a_removed_lock_file_is_none(tmp_path, monkeypatch):
    path, lock, end = tmp_path / "run.h5", atomic._lock, [new(tmp_path / "run.h5").close]

    def after_the_end_of_another_writer(descriptor: int, kind: int) -> bool:
        while end:
            end.pop()()  # between open and lock of the new writer
        return lock(descriptor, kind)

    monkeypatch.setattr(atomic, "_lock", after_the_end_of_another_writer)
    with new(path), pytest.raises(BlockingIOError, match="another process is writing"):
        new(path)


def test_a_lock_file_is_not_looked_up_elsewhere(tmp_path):
    (tmp_path / ".run.h5.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock file is a symbolic link: remove that"):
        new(tmp_path / "run.h5")
    assert [p.name for p in tmp_path.iterdir()] == [".run.h5.lock"]


def test_a_file_removed_in_mid_run_comes_back(tmp_path):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=0) as file:
        fill(file, range(3))
        path.unlink()
        fill(file, range(3, 6))
    assert check(path) == 6 and len(list(tmp_path.iterdir())) == 1


def test_a_spare_removed_in_mid_run_costs_no_record(tmp_path):
    path = tmp_path / "run.h5"
    with new(path, flush_seconds=60) as file:
        fill(file, range(2))
        file.flush()
        time.sleep(2 * atomic.GRACE)
        for spare in spares(tmp_path):
            spare.unlink()
        fill(file, [2])
        file.flush()
        assert check(path) == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_a_forked_child_does_not_tidy_up(tmp_path):
    with new(tmp_path / "run.h5", flush_seconds=60) as file:
        fill(file, range(2))
        present = sorted(tmp_path.iterdir())
        child = os.fork()
        if not child:
            file._file.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert sorted(tmp_path.iterdir()) == present and len(present) == 3
    assert check(tmp_path / "run.h5") == 2


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "link.h5").symlink_to(tmp_path / "run.h5")
    with new(tmp_path / "link.h5") as file:
        fill(file, range(3))
    assert (tmp_path / "link.h5").is_symlink() and check(tmp_path / "run.h5") == 3


def test_without_hard_links_the_file_is_copied(tmp_path, monkeypatch):
    def link(*args: object) -> None:
        raise PermissionError(errno.EPERM, "not here")

    monkeypatch.setattr(atomic.os, "link", link)
    with new(tmp_path / "run.h5", flush_seconds=0) as file:
        fill(file, range(6))
    assert check(tmp_path / "run.h5") == 6 and len(list(tmp_path.iterdir())) == 1


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


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill_and_check(Path(sys.argv[2]), random.Random(int(sys.argv[3])), int(sys.argv[4]))
    else:
        fill_the_disk(Path(sys.argv[2]))


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
