"""Rows in shards: the same run as in one file, for every reader, whatever the ranks and nodes are."""

import errno
import os

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec.record import RunFile, last_checkpoint, read, recorder, sharded, shards

N, D = 7, 3
A = np.random.default_rng(1).standard_normal((N, 5, D))


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")


def solved(comm, path, steps, mixing=None, **options):
    if comm == MPI.COMM_NULL:
        return
    with mpidec.Network(N, comm=comm) as net:
        problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], A[net.lo : net.hi, :, 0])
        x0 = np.arange(N)[:, None] * np.ones(D)
        record = mpidec.Record(path, **options)
        mpidec.solve(
            problem,
            mpidec.solvers.DGD(0.02) if mixing else mpidec.solvers.NIDS(0.05),
            mpidec.topology.ring(N),
            net=net,
            steps=steps,
            every=2,
            record=record,
            x0=x0,
            mixing=mixing and (lambda W: W.compress(mixing, fraction=0.4)),
        )


def beside(path):
    return {name.name for name in path.parent.iterdir() if ".rank" in name.name}


def same(path, whole):
    """Whether readers of the package and h5py find the same in both files."""
    one, other = read(path), read(whole)
    assert one.outcome == other.outcome and np.array_equal(one.x, other.x)
    for name in set(other.metrics) - {"time"}:
        assert np.array_equal(one.metrics[name], other.metrics[name]), name
    assert one.attributes["data_hash"] == other.attributes["data_hash"]
    _, X = other.trajectory()
    for chosen in (slice(None), slice(-3, None, 2), [3, 0, 2, 1], -1, np.arange(len(X)) % 2 == 0):
        assert np.array_equal(one.trajectory(chosen)[1], X[chosen])
    (step, state), (also, expected) = last_checkpoint(path), last_checkpoint(whole)
    assert step == also and state.keys() == expected.keys()
    with h5py.File(path) as plain:
        assert np.array_equal(plain["trajectory/x"][...], X)
        assert np.array_equal(plain["result/x"][...], one.x)
        for name in state.keys() - {"counters"}:
            assert np.array_equal(state[name], expected[name])
            assert np.array_equal(plain[f"checkpoint/{name}"][()], expected[name])


@pytest.mark.parametrize("mixing", [None, "top_k"])
def test_a_run_in_shards_is_that_in_one_file_also_resumed_on_other_ranks(
    comm, shared_tmp, pretended, mixing
):
    path, whole = shared_tmp / "run.h5", shared_tmp / "whole.h5"
    solved(comm, whole, 16, mixing)
    solved(comm, path, 9, mixing, sharded=True)
    nodes = -(-comm.size // 2)
    comm.Barrier()
    if comm.rank == 0:
        assert len(beside(path)) == 3 * nodes  # of trajectory, checkpoint and result
        (shared_tmp / "run.h5.00c0ffee.rank0").touch()  # of a job that was killed
        (shared_tmp / ".run.h5.00c0ffee.rank0.lock").touch()
        (shared_tmp / "run.h5.00c0ffee.rank0.mine").touch()
    few = comm.Split(comm.rank > 0, comm.rank)
    comm.Barrier()
    if comm.rank == 0:
        solved(few, path, 13, mixing, resume=True)
    few.Free()
    comm.Barrier()
    solved(comm, path, 16, mixing, resume=True)
    comm.Barrier()
    if comm.rank == 0:
        same(path, whole)
        left = {name for name in os.listdir(shared_tmp) if "00c0ffee" in name or "lock" in name}
        assert left == {"run.h5.00c0ffee.rank0.mine"}
        with h5py.File(path) as plain:
            used = {source.file_name for source in plain["trajectory/x"].virtual_sources()}
        assert used < beside(path) and len(used) == 2 * nodes + 1
    comm.Barrier()


def test_large_states_of_several_nodes_are_in_shards(comm, shared_tmp, pretended, monkeypatch):
    monkeypatch.setattr(recorder, "BUFFER_BYTES", 8 * N * D)
    several = comm.size > 2
    solved(comm, shared_tmp / "run.h5", 3)
    solved(comm, shared_tmp / "one.h5", 3, sharded=False)
    monkeypatch.setattr(shards.Shards, "in_reach", lambda self: False)
    solved(comm, shared_tmp / "local.h5", 3)
    with pytest.raises(ValueError, match="not all nodes see the folder"):
        solved(comm, shared_tmp / "none.h5", 3, sharded=True)
    monkeypatch.setattr(recorder, "BUFFER_BYTES", 16 * N * D + 1)
    solved(comm, shared_tmp / "small.h5", 3)
    comm.Barrier()
    if comm.rank == 0:
        assert bool(beside(shared_tmp / "run.h5")) == several
        for name in ("one", "local", "small"):
            assert not [file for file in beside(shared_tmp / "x") if file.startswith(name)]
    comm.Barrier()


@pytest.mark.parametrize("name", ["50%.h5", "a%b.h5", "x%%b.h5", "rün 1.h5"])
def test_names_with_signs_that_mean_something_to_hdf5(tmp_path, name):
    path, whole = tmp_path / name, tmp_path / "whole.h5"
    solved(MPI.COMM_SELF, whole, 9)
    solved(MPI.COMM_SELF, path, 6, sharded=True)
    solved(MPI.COMM_SELF, path, 9, resume=True)
    same(path, whole)


def test_shards_of_a_file_that_is_replaced_are_removed(tmp_path):
    path = tmp_path / "run.h5"
    for how in (True, True, False):
        solved(MPI.COMM_SELF, path, 4, sharded=how, replace=True)
        assert len(beside(path)) == 3 * how


def test_a_full_disk_of_a_node_leaves_the_run_as_it_was(comm, shared_tmp, pretended, monkeypatch):
    path, whole, last = shared_tmp / "run.h5", shared_tmp / "whole.h5", (comm.size - 1) // 2 * 2
    solved(comm, whole, 8)
    solved(comm, path, 6, sharded=True)
    comm.Barrier()
    before, there = path.read_bytes(), beside(path)
    comm.Barrier()

    def full(name, arrays):
        if comm.rank == last:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(name, arrays)

    written = shards.write_shard
    monkeypatch.setattr(shards, "write_shard", full)
    with pytest.raises(
        OSError, match=rf"cannot write .*rank{last}: No space left .*free some space"
    ):
        solved(comm, path, 8, resume=True)
    monkeypatch.undo()
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    comm.Barrier()
    if comm.rank == 0:
        assert there <= beside(path) and read(path).x is None
        assert before != path.read_bytes() and last_checkpoint(path)[0] == 6
    comm.Barrier()
    solved(comm, path, 8, resume=True)
    comm.Barrier()
    if comm.rank == 0:
        same(path, whole)
    comm.Barrier()


class Nodes:
    """A network of which this process is rank 0, with all rows; ranks on nodes in turn."""

    rank, collectives = 0, mpidec.comm.runtime.Collectives(MPI.COMM_SELF)

    def __init__(self, firsts):
        self.firsts = np.array(firsts)

    def node_firsts(self):
        return self.firsts

    def agree(self, error):
        if error is not None:
            raise error


def test_ranks_of_a_node_need_not_follow_each_other(tmp_path):
    firsts, counts = [0, 1, 0, 1, 4], np.array([2, 1, 3, 0, 2])
    X = np.arange(8 * 2.0).reshape(8, 2)
    ranks = np.repeat(np.arange(5), counts)
    written = shards.Shards(Nodes(firsts), tmp_path / "run.h5")
    description = written._described("x", 7, X, counts)
    for first in set(firsts):
        mine = X[np.array(firsts)[ranks] == first]
        shards.write_shard(shards.shard(str(tmp_path / "run.h5"), 7, first), {"x": mine})
    assert np.array_equal(description[()], X) and np.array_equal(description[[6, 2]], X[[6, 2]])
    column = written._described("w", 8, X[:, 0], counts)
    for first in set(firsts):
        mine = X[np.array(firsts)[ranks] == first, 0]
        shards.write_shard(shards.shard(str(tmp_path / "run.h5"), 8, first), {"w": mine})
    assert np.array_equal(column[()], X[:, 0]) and np.array_equal(column[[6, 2]], X[[6, 2], 0])
    places = [0, 1, 4, 5, 6, 8, 9, 11]
    spread = description.spread(places, 12)
    expected = sharded.spread(X, places, 12)
    assert np.array_equal(spread[()], expected, equal_nan=True)
    with h5py.File(tmp_path / "run.h5", "w") as file:
        spread.create(file, "x")
    with h5py.File(tmp_path / "run.h5") as file:
        assert np.array_equal(file["x"][...], expected, equal_nan=True)
        assert sharded.Sharded.of(file["x"], spread.path).files == spread.files


def of_one_node(path):
    solved(MPI.COMM_SELF, path, 4, sharded=True)
    with h5py.File(path) as plain:
        return path.parent / plain["result/x"].virtual_sources()[0].file_name


def test_a_missing_or_damaged_shard_is_named(tmp_path):
    path = tmp_path / "run.h5"
    one = of_one_node(path)
    place = one.read_bytes().find(np.ascontiguousarray(read(path).x).tobytes())
    content = bytearray(one.read_bytes())
    content[place] ^= 1
    one.write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"^{path}: some of its rows are in {one.name}.*check sum"
    ):
        read(path)
    one.unlink()
    with pytest.warns(
        RuntimeWarning, match=rf"^{path}: the final rows that are in {one.name} are NaN"
    ):
        run = read(path)
    assert np.isnan(run.x).all() and run.x.shape == (N, D) and run.metrics["step"][-1] == 4
    for name in beside(path):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"which cannot be read .*keep .* beside it"):
        run.trajectory()
    with h5py.File(path) as plain:
        assert np.isnan(plain["trajectory/x"][...]).all() and np.isnan(plain["result/x"][...]).all()


def test_a_shard_under_the_name_of_another_one_is_refused(tmp_path):
    path = tmp_path / "run.h5"
    one = of_one_node(path)
    other = of_one_node(tmp_path / "other.h5")
    one.write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match=rf"{one.name}.* it was written as {other.name}"):
        read(path)


def test_shards_of_the_file_that_is_resumed_stay_until_its_later_records_are_dropped(tmp_path):
    path = tmp_path / "run.h5"
    of_one_node(path)
    with RunFile.resume(path, 2) as file:
        assert file.later and file.shards == beside(path)


def test_shards_of_a_renamed_file_stay(tmp_path):
    path, renamed = tmp_path / "run.h5", tmp_path / "first.h5"
    of_one_node(path)
    path.rename(renamed)
    expected = read(renamed).x
    of_one_node(path)
    assert np.array_equal(read(renamed).x, expected) and read(renamed).trajectory()[1].any()


def test_a_copy_of_a_run_and_runs_of_like_names_keep_their_rows(tmp_path):
    path, copy, like = tmp_path / "run.h5", tmp_path / "b.h5", tmp_path / "run.h5.00c0ffee.rank0"
    solved(MPI.COMM_SELF, like, 4)
    of_one_node(path)
    copy.write_bytes(path.read_bytes())
    expected, first = read(path).x, beside(path)
    solved(MPI.COMM_SELF, copy, 6, resume=True)
    solved(MPI.COMM_SELF, path, 8, resume=True)
    solved(MPI.COMM_SELF, path, 8, sharded=True, replace=True)
    assert not np.array_equal(read(copy).x, expected) and len(read(copy).trajectory()[1]) == 4
    assert len(read(like).metrics["step"]) == 3
    copy.unlink()
    solved(MPI.COMM_SELF, path, 8, sharded=True, replace=True)
    assert first & beside(path) == {like.name} and len(read(path).trajectory()[1]) == 5


def test_a_full_disk_at_the_first_checkpoint_leaves_nothing(tmp_path, monkeypatch):
    def full(name, arrays):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shards, "write_shard", full)
    with pytest.raises(OSError, match="free some space"):
        solved(MPI.COMM_SELF, tmp_path / "run.h5", 4, sharded=True)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("options", [{"sharded": "yes"}, {"resume": None}])
def test_options_that_are_no_truth_values_are_refused(options):
    (name,) = options
    with pytest.raises(TypeError, match=rf"Record: {name} is .*expected True.* False"):
        mpidec.Record("run.h5", **options)


@pytest.mark.parametrize(
    "name, file, match",
    [
        ("result/x", "../run.h5.00000000.rank0", "can lead to other files"),
        ("metrics/time", "run.h5.00000000.rank0", "can lead to other files"),
        ("result/x", "other.h5", "can lead to other files"),
        ("result/x", "run.h5.00000000.rank0", "which cannot be read .*can lead to other files"),
    ],
)
def test_virtual_data_sets_lead_to_shards_only(tmp_path, name, file, match):
    path, other = tmp_path / "run.h5", tmp_path / "run.h5.00000000.rank0"
    of_one_node(path)
    with h5py.File(path, "r+") as run, h5py.File(other, "w") as shard:
        shard["inside"] = h5py.ExternalLink(str(path), name)
        data = run[name]
        layout, attributes = h5py.VirtualLayout(data.shape, data.dtype), dict(data.attrs)
        box = tuple(slice(0, length) for length in data.shape)
        layout[box] = h5py.VirtualSource(file, "inside", data.shape)[box]
        del run[name]
        run.create_virtual_dataset(name, layout).attrs.update(attributes)
    with pytest.raises(ValueError, match=match):
        read(path)


def test_a_claim_of_more_rows_than_there_are_is_refused(tmp_path):
    path = tmp_path / "run.h5"
    shard = of_one_node(path)
    with h5py.File(path, "r+") as run:
        attributes = dict(run["result/x"].attrs)
        del run["result/x"]
        layout = h5py.VirtualLayout((10**12, D), "f8")
        layout[:N, :D] = h5py.VirtualSource(shard.name, "X", (N, D))[:N, :D]
        run.create_virtual_dataset("result/x", layout).attrs.update(attributes)
        run.attrs["agents"] = 10**12
    with pytest.raises(ValueError, match="rows of the shape"):
        read(path)


def test_run_files_take_descriptions_or_arrays(tmp_path):
    with (
        RunFile(
            tmp_path / "a.h5", n=N, row_shape=(D,), metrics=["error"], meta={}, sharded=True
        ) as file,
        pytest.raises(ValueError, match=rf"X has shape .*expected \(1, {N}, {D}\)"),
    ):
        file.append(0, {"error": 1.0}, np.zeros((N, D)))


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*create it"):
        solved(MPI.COMM_SELF, tmp_path / "nowhere" / "run.h5", 4, sharded=True)


def test_an_asynchronous_run_writes_one_file(tmp_path):
    problem = mpidec.problems.LeastSquares(A, A[:, :, 0])
    record = mpidec.Record(tmp_path / "run.h5", sharded=True)
    gossip = mpidec.solvers.PairwiseGossip()
    with (
        mpidec.Network(N, comm=MPI.COMM_SELF) as net,
        pytest.raises(ValueError, match="an asynchronous run writes one file"),
    ):
        mpidec.solve(problem, gossip, mpidec.topology.ring(N), steps=3, net=net, record=record)
