"""Files that a disk has spoilt: what is read is what was written, or one line that names the file."""

from __future__ import annotations

import contextlib

import h5py
import numpy as np
import pytest
from helpers.runs import check, fill, iterate, new

import mpidec
from mpidec import problems, solvers
from mpidec.record import Record, RunFile, atomic, checked, last_checkpoint, read, sums
from mpidec.record.checked import open_checked
from mpidec.reproduce import store

pytestmark = pytest.mark.serial
RUNS = ("steps", "asynchronous", "stream")


def draw(rng, agent, k):
    u = rng.normal(size=3)
    return u, u.sum()


def make(kind: str, path, steps: int = 60, **options):
    rng = np.random.default_rng(1)
    given, solver = (
        problems.LeastSquares(rng.normal(size=(4, 9, 3)), rng.normal(size=(4, 9))),
        (solvers.A2CiD2(0.02) if kind == "asynchronous" else solvers.EXTRA(0.02)),
    )
    if kind == "stream":
        given, solver = problems.Stream(draw, 4, 3), solvers.Diffusion(0.02)
    return mpidec.solve(given, solver, "ring", steps=steps, every=1, record=Record(path, **options))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, bytes]:
    """The file of each kind of run."""
    folder = tmp_path_factory.mktemp("written")
    for kind in RUNS:
        make(kind, folder / kind)
    return {kind: (folder / kind).read_bytes() for kind in RUNS}


def content(path) -> list[object]:
    run, (step, state) = read(path), last_checkpoint(path)
    arrays = [run.metrics, run.asynchronous, run.agents, state]
    arrays += [{"x": run.x}, dict(enumerate(run.trajectory()))]
    arrays += [vars(W) for W in run.topology]
    numbers = [
        (name, np.asarray(value).tobytes())
        for group in arrays
        for name, value in sorted(group.items())
        if isinstance(value, (np.ndarray, int, float))
    ]
    return [run.config, run.outcome, run.steps, run.reason, str(run.attributes), step, numbers]


def spoilt(raw: bytes, rng: np.random.Generator, kind: int) -> bytes:
    """A block of zeros, 64 bytes of noise, or another bit, somewhere."""
    bad, at = bytearray(raw), int(rng.integers(len(raw)))
    if kind == 0:
        at -= at % 512
        bad[at : at + 512] = bytes(len(bad[at : at + 512]))
    elif kind == 1:
        bad[at : at + 64] = rng.bytes(len(bad[at : at + 64]))
    else:
        bad[at] ^= 1 << int(rng.integers(8))
    return bytes(bad)


@pytest.mark.parametrize("kind", RUNS)
def test_a_spoilt_file_is_read_as_it_was_written_or_refused(tmp_path, written, kind):
    path, bad, rng = tmp_path / "run.h5", tmp_path / "bad.h5", np.random.default_rng(len(kind))
    path.write_bytes(raw := written[kind])
    whole, refused = content(path), []
    for trial in range(20):
        bad.write_bytes(spoilt(raw, rng, trial % 3))
        try:
            assert content(bad) == whole
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert all(text.startswith(f"{bad}: ") and "\n" not in text for text in refused)


def test_each_object_of_a_file_is_covered(tmp_path, written):
    """Chunks, contiguous arrays, and attributes of all kinds: each is found in the bytes and changed in one bit."""
    path, bad = tmp_path / "run.h5", tmp_path / "bad.h5"
    path.write_bytes(raw := written["steps"])
    places = []
    with h5py.File(path) as file:
        for name in (
            "checkpoint/X",
            "result/x",
            "topology/data",
            "metrics/consensus",
            "trajectory/x",
        ):
            data = file[name]
            first = data.id.get_chunk_info(0).byte_offset if data.chunks else data.id.get_offset()
            places.append((name, first))
        for name in ("config", "curve", "created"):
            places.append((name, raw.index(str(file.attrs[name])[5:25].encode())))
    places += [
        (word, raw.index(word.encode())) for word in ("objective", "trajectory", "completed")
    ]
    for name, at in places:
        bad.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(ValueError, match=r"bad\.h5: damaged: the bytes from [0-9,]+ on"):
            content(bad), name


@pytest.mark.parametrize("kind", RUNS)
def test_a_spoilt_file_is_not_resumed(tmp_path, written, kind):
    path, bad = tmp_path / "run.h5", tmp_path / "bad.h5"
    path.write_bytes(raw := written[kind])
    intact = tmp_path / "intact.h5"
    with h5py.File(path) as file:
        name = "x" if "x" in file["checkpoint"] else "X"
        at, size = file["checkpoint"][name].id.get_offset(), file["checkpoint"][name].nbytes
    before = raw[:at] + bytes(size) + raw[at + size :]
    bad.write_bytes(before)
    with pytest.raises(mpidec.ResumeError, match=r"bad\.h5: damaged"):
        make(kind, bad, 80, resume=True)
    assert bad.read_bytes() == before  # for a rescue with plain h5py
    intact.write_bytes(raw)
    assert make(kind, intact, 80, resume=True).steps >= 80 and read(intact).steps >= 80


def test_what_a_resume_does_not_read_is_compared_before_it_gets_new_sums(tmp_path):
    path = tmp_path / "run.h5"
    with new(path, 30, 200) as file:
        fill(file, range(20), 30, 200)
        file.checkpoint(19, {"X": iterate(19, 30, 200)})
    raw = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        raw[file["trajectory/x"].id.get_chunk_info(0).byte_offset + 100_000] ^= 4
    path.write_bytes(raw)
    assert read(path).steps == 19  # iterates are read on demand
    for action in (read(path).trajectory, lambda: RunFile.resume(path)):
        with pytest.raises(ValueError, match=r"run\.h5: damaged: the bytes from [0-9,]+ on"):
            action()
    assert path.read_bytes() == raw and not list(tmp_path.glob(".*"))


def test_sums_follow_all_changes_of_a_file(tmp_path, monkeypatch):
    """Growing, shrinking, and blocks that are written in part, against sums of the whole file."""
    for module in (sums, checked):
        monkeypatch.setattr(module, "BLOCK", 512)
    path = tmp_path / "run.h5"
    with atomic.AtomicFile(path) as made:
        rng = np.random.default_rng(0)
        for k in range(12):
            with made.update() as file:
                for name in [*file][: k % 3]:
                    del file[name]
                file[f"a{k}"] = rng.normal(size=int(rng.integers(1, 400)))
                file.attrs[f"b{k % 2}"] = "x" * int(rng.integers(1, 2000))
            with open(path, "rb") as front:
                found = sums.Sums.of(front.fileno())
                again = sums.Sums().updated(front.fileno(), found.length, ())
            assert np.array_equal(found.table, again.table) and len(found.table) > 3
            with open_checked(path) as file, h5py.File(path) as plain:
                assert [*file] == [*plain] and f"a{k}" in file


def test_sums_of_what_has_changed_are_those_of_the_whole_file(tmp_path, monkeypatch):
    """Of any writes, that grow a block, cover it or a part of it, and of files that become shorter."""
    monkeypatch.setattr(sums, "BLOCK", 16)
    rng, path = np.random.default_rng(0), tmp_path / "any"
    path.write_bytes(b"")
    with path.open("r+b") as file:
        kept = sums.Sums()
        for _ in range(300):
            known, ranges = {}, []
            length = end = int(path.stat().st_size)
            for _ in range(rng.integers(1, 4)):
                at, size = int(rng.integers(0, length + 1)), int(rng.integers(1, 40))
                data = rng.bytes(size)
                file.seek(at)
                file.write(data)
                sums.note(known, memoryview(data), at)
                ranges.append((at, size))
                end = max(end, at + size)
            file.flush()
            if rng.random() < 0.3:
                end = int(rng.integers(max(at + size for at, size in ranges), end + 1))
                file.truncate(end)
            kept = kept.updated(file.fileno(), end, ranges, known if rng.random() < 0.7 else {})
            kept.check(file.fileno())


def test_files_without_sums_are_read_and_get_them_with_the_next_change(tmp_path):
    """Those that a program has changed with h5py."""
    path = tmp_path / "run.h5"
    with new(path) as file:
        fill(file, range(3))
        file.checkpoint(2, {"X": iterate(2, 3, 2)})
    with h5py.File(path, "r+") as file:
        file.attrs["config"] = "steps = 4"
    with open(path, "rb") as plain:
        assert sums.Sums.of(plain.fileno()) is None
    assert read(path).config == "steps = 4" and check(path) == 3
    with RunFile.resume(path) as file:
        fill(file, range(3, 5))
    with open(path, "rb") as plain:
        assert sums.Sums.of(plain.fileno()) is not None
    assert len(read(path).metrics["step"]) == check(path) == 5


def test_sums_that_are_cut_or_spoilt_are_no_file_without_sums(tmp_path, written):
    path = tmp_path / "run.h5"
    raw = written["steps"]
    for bad in (raw[:-1], raw[:-20], raw[:-8] + bytes(8), raw[:-30] + b"?" + raw[-29:]):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"run\.h5: damaged: its check sums are damaged"):
            read(path)


@pytest.mark.parametrize(
    "error",
    [SystemError, MemoryError, RecursionError, OSError, KeyError, IndexError, AssertionError],
)
def test_any_exception_of_hdf5_is_one_line_with_the_name(tmp_path, written, monkeypatch, error):
    path = tmp_path / "run.h5"
    path.write_bytes(written["steps"])

    def fail(*args: object, **options: object) -> None:
        raise error("first line\nsecond line")

    for name in ("h5o.open", "h5d.DatasetID.get_storage_size"):
        with monkeypatch.context() as patch:
            try:
                patch.setattr(f"h5py.{name}", fail)
            except TypeError:  # of a class in C
                patch.setattr(h5py.Dataset, "__getitem__", fail)
            with pytest.raises(ValueError, match=r"first line.{1,2}second line") as told:
                read(path)
        assert str(told.value).startswith(f"{path}: ") and "\n" not in str(told.value)


def test_a_locked_file_is_named(tmp_path, written, monkeypatch):
    monkeypatch.setattr("mpidec.record.checked.PAUSE", 0.0)
    path = tmp_path / "run.h5"
    path.write_bytes(written["steps"])
    with h5py.File(path, "r+"), pytest.raises(ValueError, match=r"run\.h5: .*locked by another"):
        read(path)


@pytest.mark.parametrize("text", ["[1, 2]", "{", "", "3", "[" * 100_000])
@pytest.mark.parametrize("name", ["curve", "files"])
def test_settings_that_are_no_table_are_not_taken_for_an_older_file(tmp_path, written, name, text):
    path = tmp_path / "run.h5"
    path.write_bytes(written["steps"])
    with h5py.File(path, "r+") as file:
        file.attrs[name] = text
    with pytest.raises(
        mpidec.ResumeError, match=rf"run\.h5: damaged: its attribute {name} is"
    ) as told:
        make("steps", path, 80, resume=True)
    assert "\n" not in str(told.value) and len(str(told.value)) < 300


def test_a_spoilt_file_of_an_experiment_is_refused(tmp_path):
    path = tmp_path / "cells.h5"
    with atomic.AtomicFile(path) as made, made.update() as file:
        file.create_group("cell").attrs["seconds"] = 1.0
        file["cell/values"] = np.arange(100.0)
    assert store.read(str(path))[1] == 1.0
    raw = bytearray(path.read_bytes())
    raw[raw.index(np.arange(40.0, 50.0).tobytes()) + 7] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"cells\.h5: damaged"):
        store.read(str(path))


@pytest.mark.parametrize("largest", [20, 600, 4000])
def test_sums_of_random_updates_of_which_some_fail(tmp_path, monkeypatch, largest):
    """Groups, arrays and attributes that come and go; HDF5 leaves gaps between them."""
    for module in (sums, checked):
        monkeypatch.setattr(module, "BLOCK", 512)
    monkeypatch.setattr(atomic, "SMALL", 4096)
    monkeypatch.setattr(atomic, "GRACE", 0.0)
    rng, path, model = np.random.default_rng(largest), tmp_path / "run.h5", {}
    with atomic.AtomicFile(path) as whole:
        for k in range(60):
            fails, wanted = rng.random() < 0.2, dict(model)
            with contextlib.suppress(InterruptedError), whole.update() as file:
                for i in range(rng.integers(1, 4)):
                    name = f"{k}/{i}"
                    wanted[name] = rng.random(int(rng.integers(largest)))
                    file[name] = wanted[name]
                    file[str(k)].attrs["seconds"] = float(k)
                if wanted and rng.random() < 0.3:
                    name = str(rng.choice(sorted(wanted)))
                    del file[name], wanted[name]
                file.attrs.update(k=k, text="x" * 40)
                if fails:
                    raise InterruptedError
            model = model if fails else wanted
            if model:
                with path.open("rb") as raw:
                    sums.Sums.of(raw.fileno()).check(raw.fileno())
                with open_checked(path) as file:
                    for name in rng.choice(sorted(model), min(5, len(model)), replace=False):
                        np.testing.assert_array_equal(file[name][()], model[name])


@pytest.mark.parametrize("length", [3, 26, 100])
def test_earlier_sums_leave_nothing_in_the_gaps_of_a_file_that_grows(tmp_path, monkeypatch, length):
    for module in (sums, checked):
        monkeypatch.setattr(module, "BLOCK", 512)
    monkeypatch.setattr(atomic, "GRACE", 0.0)
    path = tmp_path / "run.h5"
    with atomic.AtomicFile(path) as whole:
        for k in range(30):
            with whole.update() as file:
                file.attrs.update(settings="rounds = 25", mpidec="0.1.0")
                group = file.create_group(f"{k}, 1, 100")
                group.attrs["seconds"] = 0.1
                group["error"] = np.arange(length) + k / 7
            with path.open("rb") as raw:
                sums.Sums.of(raw.fileno()).check(raw.fileno())
