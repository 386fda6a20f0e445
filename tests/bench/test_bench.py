"""python -m mpidec.bench: what it measures is right, complete, and written as documented.  Speeds are not tested."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mpidec.bench import cells, command as bench, mixing, report as report

pytestmark = pytest.mark.launch
TINY = ["--sizes=8,1K", "--seconds=0.2"]
SOLVERS = ["DGD", "ExactDiffusion", "EXTRA", "GradientTracking"]
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
BROKEN_STEP = """
import sys
from mpidec.bench import command as bench, steps
right = steps.extra

def extra(bind, X, G, a):
    for k, X in enumerate(right(bind, X, G, a)):
        X[0, 0] += 1e-9 * (k == 2)
        yield X

steps.extra = extra
sys.exit(bench.main(["--rows=steps", "--sizes=64", "--seconds=0.1"]))
"""
BROKEN_TRANSFER = """
import sys
from mpidec.bench import command as bench, windows
right = windows.Window.accumulate
windows.Window.accumulate = lambda self, x, *others: right(self, x + 1e-9, *others)
sys.exit(bench.main(["--rows=windows", "--sizes=64", "--seconds=0.1"]))
"""
BROKEN_TRAINING = """
import sys
from mpidec.bench import command as bench; from mpidec import optim
right = optim.Decentralized.step

def step(self, closure=None):
    right(self)
    if self.averager.algorithm.name == "awc" and self.averager.net.rank == 1:
        self.param_groups[0]["params"][0].data[0, 0] += 1e-2

optim.Decentralized.step = step
sys.exit(bench.main(["--rows=train", "--sizes=64", "--seconds=0.1"]))
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def measured(
    mpirun, tmp_path, ranks: int, *arguments: str
) -> tuple[dict, dict[tuple[str, int], dict[str, dict]], str]:
    """What was written, its results by graph and size and then by contender, and what was printed."""
    done = mpirun(
        ranks,
        ["-m", "mpidec.bench", *TINY, "--json=bench.json", *arguments],
        timeout=240,
        cwd=tmp_path,
        check=True,
    )
    written = json.loads((tmp_path / "bench.json").read_text())
    cells: dict[tuple[str, int], dict[str, dict]] = {}
    for row in written["results"]:
        cells.setdefault((row["graph"], row["bytes"]), {})[row["contender"]] = row
        assert len(row["blocks_us"]) >= 9 and min(row["blocks_us"]) > 0
        assert row["median_us"] == pytest.approx(np.median(row["blocks_us"]))
        assert row["contender"] in done.stdout and row["graph"] in done.stdout
    return written, cells, done.stdout


def fastest(rows: dict[str, dict], *names: str) -> float:
    return min(rows[name]["median_us"] for name in names)


def test_all_mixings_are_measured_on_several_ranks(mpirun, tmp_path):
    graphs = ["exponential", "one_peer_exponential"]
    written, cells, _ = measured(
        mpirun, tmp_path, 3, "--rows=mixing", f"--graphs={','.join(graphs)}"
    )
    assert written["schema"] == "mpidec.bench/2"
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
def test_solver_steps_are_measured_against_the_same_by_hand(mpirun, tmp_path):
    _, cells, printed = measured(
        mpirun, tmp_path, 2, "--rows=steps", "--graphs=exponential,one_peer_exponential"
    )
    assert len(cells) == 4 and "/hand" in printed and "/local" not in printed
    for rows in cells.values():
        both = {f"{name}, {how}" for name in SOLVERS for how in ("solver.step", "by hand")}
        assert set(rows) == both | {"DGD, Allreduce by hand"}
        for name, row in rows.items():
            solver = name.partition(", ")[0]
            assert row["group"] == "steps" and row["times_local_limit"] is None
            assert row["times_hand"] == pytest.approx(
                row["median_us"] / rows[f"{solver}, by hand"]["median_us"]
            )
            assert row["faster_than_allreduce"] == (
                None
                if solver != "DGD"
                else pytest.approx(rows["DGD, Allreduce by hand"]["median_us"] / row["median_us"])
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


@pytest.mark.slow
def test_a_wrong_step_by_hand_is_caught_before_it_is_timed(mpirun, tmp_path):
    done = mpirun(2, ["-c", BROKEN_STEP], cwd=tmp_path)
    assert done.returncode != 0 and "solver.step  " not in done.stdout
    assert (
        "EXTRA, by hand, exponential, 64 B, phase 0: the result on rank" in done.stderr
        and "by 1e-09" in done.stderr
    )


def test_one_process_measures_what_it_can(capsys):
    pytest.importorskip("matplotlib")
    assert (
        bench.main([*TINY, "--graphs=one_peer_exponential", "--json=one.json", "--plot=one.png"])
        == 0
    )
    out = capsys.readouterr().out
    assert "One process" in out and "\nlocal limit" in out and f"\n{report.ALLREDUCE}" not in out
    with open("one.json") as file:
        rows = json.load(file)["results"]
    assert "Left out: nodes, local, windows." in out
    assert [row["group"] for row in rows] == ["mixing"] * 2 * 4 + ["steps"] * 2 * 4
    assert all(row["faster_than_allreduce"] is row["times_hand"] is None for row in rows)
    with open("one.png", "rb") as picture:
        assert picture.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "argument, said",
    [
        ("--sizes=9", "multiples of 8"),
        ("--sizes=1T", "multiples of 8"),
        ("--graphs=rung", "did you mean ring?"),
        ("--transports=neighbour", "did you mean neighbor?"),
        ("--rows=step", "did you mean steps?"),
        ("--rows=local,nodes", "needs several ranks"),
        ("--seconds=0", "time > 0"),
        ("--json=no/where.json", "cannot be written"),
        ("--wrong", "unknown flag"),
        ("--sizes=4096G", "take smaller rows"),
    ],
)
def test_a_bad_argument_is_said(argument, said, capsys):
    assert bench.main([argument]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mpidec.bench: error: ") and said in error and error.count("\n") == 1


def test_help_has_examples(capsys):
    assert bench.main(["--help"]) == 0
    assert "mpirun -n 4 python -m mpidec.bench" in capsys.readouterr().out


def test_sizes_have_names():
    assert [report.size_of(text) for text in ("8", "64K", "1m", "16MB", "1G")] == [
        8,
        1 << 16,
        1 << 20,
        1 << 24,
        1 << 30,
    ]
    assert [report.size_name(size) for size in (8, 1000, 1536, 1 << 16, 1 << 30)] == [
        "8 B",
        "1000 B",
        "1536 B",
        "64 KB",
        "1 GB",
    ]


def test_arrays_begin_where_a_page_begins():
    array = cells.aligned((3, 5))
    assert (
        array.shape == (3, 5)
        and array.dtype == np.float64
        and array.ctypes.data % 4096 == 0
        and array.flags.c_contiguous
    )


@pytest.mark.slow
def test_windows_are_measured_against_allocated_ones(mpirun, tmp_path):
    _, cells, printed = measured(mpirun, tmp_path, 3, "--rows=windows", "--graphs=star")
    for rows in cells.values():
        for task, by_hand in (
            *((name, "Win.Allocate") for name in ("put", "accumulate", "get")),
            *((name, "Win.Lock") for name in ("mutex", "mutex, contended")),
        ):
            own, raw = (rows[f"{task}, {name}"] for name in ("Window", by_hand))
            assert own["times_hand"] == pytest.approx(own["median_us"] / raw["median_us"])
        assert rows["push-sum, Window"]["times_hand"] is None and "/hand" in printed


@pytest.mark.slow
def test_a_wrong_transfer_is_caught_before_it_is_timed(mpirun, tmp_path):
    done = mpirun(2, ["-c", BROKEN_TRANSFER], cwd=tmp_path)
    assert (
        done.returncode != 0
        and done.stderr.count("accumulate, Window, exponential, 64 B, phase 0: the result on rank")
        == 1
    )


@pytest.mark.slow
def test_training_is_measured_against_no_communication_and_ddp(mpirun, tmp_path):
    pytest.importorskip("torch")
    _, cells, printed = measured(mpirun, tmp_path, 2, "--rows=train", "--plot=bench.png")
    parallel, own = (
        f"{report.DDP}, gloo",
        {f"Decentralized, {name}" for name in ("atc", "awc", "allreduce")},
    )
    for rows in cells.values():
        assert rows.keys() >= {report.NO_COMMUNICATION, parallel, *own}
        for name, row in rows.items():
            assert row["times_alone"] == pytest.approx(
                row["median_us"] / rows[report.NO_COMMUNICATION]["median_us"]
            )
            assert row["faster_than_ddp"] == pytest.approx(
                rows[parallel]["median_us"] / row["median_us"]
            )
            assert (row["extra_memory"] is not None) == name.startswith("Decentralized")
    assert "/alone" in printed and "/hand" not in printed


@pytest.mark.slow
def test_a_wrong_training_step_is_caught_before_it_is_timed(mpirun, tmp_path):
    pytest.importorskip("torch")
    done = mpirun(2, ["-c", BROKEN_TRAINING], timeout=240, cwd=tmp_path)
    assert done.returncode != 0
    assert (
        done.stderr.count(
            "Decentralized, awc, one_peer_exponential, 64 B: the first update differs"
        )
        == 1
    )
