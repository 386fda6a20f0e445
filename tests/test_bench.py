"""python -m mpidec.bench: what it measures is right, complete, and written as documented.  Speeds are not tested."""
from __future__ import annotations

import json

import numpy as np
import pytest

from mpidec import _bench_report as report
from mpidec import bench

pytestmark = pytest.mark.launch
TINY = ["--sizes=8,1K", "--seconds=0.2"]
BROKEN = """
import sys
from mpidec import bench
right = bench.Cell._by_numpy

def wrong(self, *args):
    weigh = right(self, *args)
    def call():
        weigh()
        self.y[0, -1] += 1e-9 * (self.comm.rank == 1)
    return call

bench.Cell._by_numpy = wrong
sys.exit(bench.main(["--sizes=64", "--seconds=0.1", "--graphs=ring"]))
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_everything_is_measured_on_several_ranks(mpirun, tmp_path):
    graphs = ["exponential", "one_peer_exponential"]
    done = mpirun(3, ["-m", "mpidec.bench", *TINY, f"--graphs={','.join(graphs)}", "--json=bench.json"], cwd=tmp_path, check=True)
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["schema"] == "mpidec.bench/1"
    assert {"cpu", "cores", "mpi", "mpi4py", "ranks", "hosts", "date", "load_average", "load_average_after",
            "kernel_compiled"} <= written["machine"].keys() and written["machine"]["ranks"] == 3
    cells: dict[tuple[str, int], dict[str, dict]] = {}
    for row in written["results"]:
        cells.setdefault((row["graph"], row["bytes"]), {})[row["contender"]] = row
    assert set(cells) == {(graph, size) for graph in graphs for size in (8, 1024)}
    own = {f"W(X) {name}, {rows}" for name in bench.TRANSPORTS if name != "auto"
           for rows in ("net.empty", "Y = W(X)", "any array")}
    for (graph, _), rows in cells.items():
        assert set(rows) == own | {bench.LOCAL, bench.ALLREDUCE, bench.NEIGHBORHOOD, bench.BY_HAND}
        for row in rows.values():
            assert len(row["blocks_us"]) >= 9 and min(row["blocks_us"]) > 0
            assert row["median_us"] == pytest.approx(np.median(row["blocks_us"]))
            assert row["times_local_limit"] == pytest.approx(row["median_us"] / rows[bench.LOCAL]["median_us"])
            assert row["faster_than_allreduce"] == pytest.approx(rows[bench.ALLREDUCE]["median_us"] / row["median_us"])
            assert row["contender"] in done.stdout and graph in done.stdout


def test_a_wrong_contender_is_caught_before_it_is_timed(mpirun, tmp_path):
    done = mpirun(2, ["-c", BROKEN], cwd=tmp_path)
    assert done.returncode == 1 and "local limit  " not in done.stdout
    assert f"{bench.NEIGHBORHOOD}, ring, 64 B, phase 0: the result on rank 1 differs from the dense product by 1e-09" in done.stderr
    assert done.stderr.count("differs") == 1


def test_one_process_measures_what_it_can(capsys):
    pytest.importorskip("matplotlib")
    assert bench.main([*TINY, "--graphs=one_peer_exponential", "--json=one.json", "--plot=one.png"]) == 0
    out = capsys.readouterr().out
    assert "One process" in out and "\nlocal limit" in out and f"\n{bench.ALLREDUCE}" not in out
    with open("one.json") as file:
        rows = json.load(file)["results"]
    assert len(rows) == 2 * 4 and all(row["faster_than_allreduce"] is None for row in rows)
    with open("one.png", "rb") as picture:
        assert picture.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("argument, said", [
    ("--sizes=9", "multiples of 8"), ("--sizes=1T", "multiples of 8"), ("--graphs=rung", "did you mean ring?"),
    ("--transports=neighbour", "did you mean neighbor?"), ("--seconds=0", "time > 0"),
    ("--json=no/where.json", "cannot be written"), ("--wrong", "unrecognized"), ("--sizes=4096G", "take smaller rows")])
def test_a_bad_argument_is_said(argument, said, capsys):
    assert bench.main([argument]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mpidec.bench: error: ") and said in error and error.count("\n") == 1


def test_help_has_examples(capsys):
    assert bench.main(["--help"]) == 0
    assert "mpirun -n 4 python -m mpidec.bench" in capsys.readouterr().out


def test_sizes_have_names():
    assert [report.size_of(text) for text in ("8", "64K", "1m", "16MB", "1G")] == [8, 1 << 16, 1 << 20, 1 << 24, 1 << 30]
    assert [report.size_name(size) for size in (8, 1000, 1536, 1 << 16, 1 << 30)] == ["8 B", "1000 B", "1536 B", "64 KB", "1 GB"]


def test_arrays_begin_where_a_page_begins():
    array = bench.aligned((3, 5))
    assert array.shape == (3, 5) and array.dtype == np.float64 and array.ctypes.data % 4096 == 0 and array.flags.c_contiguous
