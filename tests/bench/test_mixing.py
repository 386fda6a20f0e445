"""The groups mixing, nodes and local: all ways are measured, and wrong ones are found."""

from __future__ import annotations

import pytest
from helpers.benchmark import fastest, measured

from mpidec.bench import command as bench, mixing, report

pytestmark = pytest.mark.launch
BROKEN = """
import sys
from mpidec.bench import command as bench
right = bench.MixingCell._by_numpy

def wrong(self, *args):
    weigh = right(self, *args)
    def call():
        weigh()
        self.y[0, -1] += 1e-9 * (self.comm.rank == 1)
    return call

bench.MixingCell._by_numpy = wrong
sys.exit(bench.main(["--rows=mixing", "--sizes=64", "--seconds=0.1", "--graphs=ring"]))
"""


def test_all_mixings_are_measured_on_several_ranks(mpirun, tmp_path):
    graphs = ["exponential", "one_peer_exponential"]
    written, cells, _ = measured(
        mpirun, tmp_path, 3, "--rows=mixing", f"--graphs={','.join(graphs)}"
    )
    assert written["schema"] == "mpidec.bench/3"
    assert {
        "cpu",
        "cores",
        "mpi",
        "mpi4py",
        "ranks",
        "hosts",
        "date",
        "load_average",
        "load_average_after",
        "kernel_compiled",
    } <= written["machine"].keys() and written["machine"]["ranks"] == 3
    assert set(cells) == {(graph, size) for graph in graphs for size in (8, 1024)}
    own = {
        f"W(X) {name}, {rows}"
        for name in bench.TRANSPORTS
        if name != "auto"
        for rows in ("net.empty", "Y = W(X)", "any array")
    }
    for rows in cells.values():
        assert set(rows) == own | {
            report.LOCAL,
            report.ALLREDUCE,
            mixing.NEIGHBORHOOD,
            mixing.BY_HAND,
        }
        for row in rows.values():
            assert row["group"] == "mixing"
            assert row["times_local_limit"] == pytest.approx(
                row["median_us"] / rows[report.LOCAL]["median_us"]
            )
            assert row["times_hand"] == pytest.approx(
                row["median_us"] / fastest(rows, mixing.NEIGHBORHOOD, mixing.BY_HAND)
            )
            assert row["faster_than_allreduce"] == pytest.approx(
                rows[report.ALLREDUCE]["median_us"] / row["median_us"]
            )


@pytest.mark.slow
def test_mixing_between_nodes_and_local_calls_are_measured(mpirun, tmp_path):
    written, cells, _ = measured(
        mpirun,
        tmp_path,
        3,
        "--rows=local,nodes",
        "--graphs=one_peer_exponential",
        "--plot=bench.png",
    )
    assert list(dict.fromkeys(row["group"] for row in written["results"])) == ["nodes", "local"]
    hand = [
        f"{how} + kernel" for how in ("Isend/Irecv", "persistent requests", "Neighbor_alltoallv")
    ]
    nodes = {
        f"W(X) {where}, {rows}"
        for where in ("2 ranks a node", "p2p")
        for rows in ("net.empty", "Y = W(X)")
    }
    local = {f"neighbor_allreduce, {how}" for how in ("topology", "pull", "push", "push-pull")}
    for rows in cells.values():
        assert set(rows) == nodes | {*hand, report.ALLREDUCE} | local
        assert rows["W(X) p2p, net.empty"]["times_hand"] == pytest.approx(
            rows["W(X) p2p, net.empty"]["median_us"] / fastest(rows, *hand)
        )
        assert all(
            rows[name]["faster_than_allreduce"] > 0 and rows[name]["times_hand"] is None
            for name in local
        )
    assert (tmp_path / "bench.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_wrong_contender_is_caught_before_it_is_timed(mpirun, tmp_path):
    done = mpirun(2, ["-c", BROKEN], cwd=tmp_path)
    assert done.returncode != 0 and "local limit  " not in done.stdout
    assert (
        f"{mixing.NEIGHBORHOOD}, ring, 64 B, phase 0: the result on rank 1 differs from the dense product by 1e-09"
        in done.stderr
    )
    assert done.stderr.count("differs") == 1
