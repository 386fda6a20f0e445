"""Files that are complete at every moment: kills, full disks, live readers, locks."""

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
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers import launch
from helpers.runs import FullDisk, check, error_of, fill, iterate, metrics, new, spares

from mpidec.record import RunFile, atomic, last_checkpoint, read

pytestmark = pytest.mark.serial


NAMES = ("time", "rounds", "bytes", "consensus", "objective")


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


def fill_the_disk(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    try:
        with new(path, 16, 120, flush_seconds=0) as file:
            fill(file, range(1000), 16, 120)
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
    records = check(path, 16, 120)
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
        ("x" * 256, OSError, "File name too long"),
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
    path, lock, end = tmp_path / "run.h5", atomic.lock, [new(tmp_path / "run.h5").close]

    def after_the_end_of_another_writer(descriptor: int, kind: int) -> bool:
        while end:
            end.pop()()  # between open and lock of the new writer
        return lock(descriptor, kind)

    monkeypatch.setattr(atomic, "lock", after_the_end_of_another_writer)
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


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill_and_check(Path(sys.argv[2]), random.Random(int(sys.argv[3])), int(sys.argv[4]))
    else:
        fill_the_disk(Path(sys.argv[2]))


@pytest.mark.parametrize("name", ["x" * 252 + ".h5", "\u00fc" * 126 + ".h5", "x" * 233 + ".h5"])
def test_names_as_long_as_they_may_be(tmp_path, name):
    """The names of the lock and the spare beside it are no longer, and are taken away."""
    for content in (1, 2):
        file = atomic.AtomicFile(tmp_path / name)
        with file.update() as h5:
            h5["a"] = content
        killed = Path(file._spare_path + ".old")
        killed.write_bytes(b"of a killed writer")
        file.close()
    assert killed.exists()
    file = atomic.AtomicFile(tmp_path / name)
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
