"""mpidec bench --calibrate: what settles, who exchanges with whom, and a file that mpidec predict reads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mpidec.bench import calibration, command as bench
from mpidec.bench.calibration import (
    Calibration,
    Figure,
    agreed,
    jump,
    lower_bounds,
    neighbors,
    write,
)
from mpidec.comm.runtime import MPI, library
from mpidec.exceptions import InputError
from mpidec.predict.cluster import cluster


@pytest.mark.serial
def test_the_two_smallest_times_settle_when_they_agree():
    assert agreed([1.0]) is None and agreed([1.0, 1.2, 1.12]) is None
    assert agreed([1.0, 1.2, 1.09]) == pytest.approx(1.045)
    assert agreed([1.2, 1.0, 2.0, 1.05]) == pytest.approx(1.025)
    assert agreed([1.0, 3.0, 2.0, 1.25, 1.3]) == pytest.approx(1.275)
    assert agreed([1.0, 3.0, 1.25]) is None


@pytest.mark.serial
def test_no_message_takes_longer_than_a_larger_one():
    times = np.random.default_rng(0).uniform(size=(3, 5))
    expected = [[times[k:, s:].min() for s in range(5)] for k in range(3)]
    np.testing.assert_array_equal(lower_bounds(times), expected)


@pytest.mark.serial
@pytest.mark.parametrize("nodes", range(2, 9))
def test_nodes_exchange_in_both_directions(nodes):
    for k in calibration.NEIGHBORS:
        others = [neighbors(node, nodes, k) for node in range(nodes)]
        rows = np.array([np.bincount(each, minlength=nodes) for each in others])
        assert (rows == rows.T).all() and not rows.trace()
        assert rows.sum(axis=0).tolist() == [
            k - (k == 1 and node ^ 1 == nodes) for node in range(nodes)
        ]
        assert (rows > 0).sum() >= min(k, nodes - 1) * (nodes - 1)


@pytest.mark.serial
def test_a_jump_is_located():
    def handshakes(size):
        return 5.0 + 6.0 * (size > 1000) + 0.01 * size

    low, high = jump(handshakes, 512, 4096, 0.01)
    assert low <= 1000 < high <= low + 1000 / 16
    assert jump(handshakes, 4096, 8192, 0.01) is None


@pytest.mark.serial
def test_times_that_do_not_settle_are_refused():
    measured = Calibration.__new__(Calibration)
    once = Figure("gradient", float, times=[1.0])
    measured.unsettled = [Figure("exchange, 8 B", float, times=[1e-3, 2e-3]), once]
    with pytest.raises(
        InputError, match=r"8 B and 1 other figure: 1, 2 ms, the smallest .* nothing is written"
    ) as e:
        measured.check()
    assert e.value.status == 1
    measured.unsettled = [once]
    with pytest.raises(InputError, match="gradient: not measured twice in the time"):
        measured.check()
    measured.unsettled = []
    measured.check()


@pytest.mark.mpi(min_size=2)
def test_a_calibration_ends():
    """Of times that never agree, when the rounds or the seconds are over."""
    measured = Calibration(MPI.COMM_WORLD, per_node=1)
    times = iter(2.0**-k for k in range(100))
    never, at_once = Figure("never", times.__next__), Figure("at once", lambda: 1.0)
    measured._settle([never, at_once], 60)
    assert len(never.times) == calibration.ROUNDS and at_once.times == [1.0, 1.0]
    assert measured.unsettled == [never]
    measured._settle([Figure("slow", lambda: 1.0)], -1)
    assert not measured.unsettled[0].times
    measured.close()


@pytest.mark.serial
@pytest.mark.parametrize(
    "argument, said",
    [
        ("--sizes=8", "at least 2"),
        ("--out=no/where.json", "cannot be written"),
        ("--seconds=0", "> 0"),
    ],
)
def test_a_bad_argument_is_said(argument, said, capsys):
    assert bench.main(["--calibrate", argument]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.serial
def test_one_rank_is_refused(capsys):
    assert bench.main(["--calibrate"]) == 2
    said = capsys.readouterr().err
    assert "several nodes: mpirun -n 4 " in said
    assert ("-ppn 1" in said) == ("Open MPI" not in library())


@pytest.mark.mpi(min_size=2)
def test_predict_reads_what_was_measured(tmp_path_factory, monkeypatch):
    comm = MPI.COMM_WORLD
    # The pace of this machine is not tested.
    for name, value in (("AGREEMENT", np.inf), ("ROUND_SECONDS", 0.0), ("FEWEST_BLOCKS", 1)):
        monkeypatch.setattr(calibration, name, value)
    measured = Calibration(comm, per_node=1)
    found = measured.measure([8, 1 << 20])
    measured.check()
    measured.close()
    assert found["nodes"] == comm.size and set(found["exchange_seconds"]) == {"1", "2", "4"}
    parts = {max(2, part * comm.size // 4) for part in (2, 3, 4)}
    assert found["allreduce_seconds"].keys() == {f"{nodes}x1" for nodes in parts}
    assert len(found["send_seconds"]) == len(found["bytes"])
    assert "shared_exchange_seconds" not in found and found["gradient_seconds"] > 0
    if comm.rank == 0:
        times = found["exchange_seconds"]
        times["1"] = [1e-3, 2e-3]
        path = tmp_path_factory.mktemp("calibration") / "network.json"
        write(str(path), found, {"mpi": "here"})
        expected = max(times["1"][0], times["2"][0])  # more neighbours take no less time
        assert np.isclose(cluster(str(path)).exchange(2, 8), expected)
        assert json.loads(path.read_text())["machine"] == {"mpi": "here"}


@pytest.mark.mpi(min_size=2)
def test_nodes_with_different_numbers_of_ranks_are_refused():
    comm = MPI.COMM_WORLD
    with pytest.raises(InputError, match="expected at least 2 nodes"):
        Calibration(comm, per_node=comm.size)
