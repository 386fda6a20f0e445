"""Runs of `mpidec.bench` and of `benchmarks`, and what they have written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from . import launch

TINY = ["--sizes=8,1K", "--seconds=0.2"]


def measured(
    mpirun, tmp_path, ranks: int, *arguments: str, module: str = "mpidec.bench"
) -> tuple[dict, dict[tuple[str, int], dict[str, dict]], str]:
    """What was written, its results by graph and size and then by contender, and what was printed."""
    path = tmp_path / "bench.json"
    done = mpirun(
        ranks,
        ["-m", module, *TINY, f"--json={path}", *arguments],
        timeout=240,
        cwd=tmp_path if module.startswith("mpidec") else launch.ROOT,
        check=True,
    )
    written = json.loads(path.read_text())
    cells: dict[tuple[str, int], dict[str, dict]] = {}
    for row in written["results"]:
        cells.setdefault((row["graph"], row["bytes"]), {})[row["contender"]] = row
        assert (
            len(row["blocks_us"]) >= (5 if row["group"] == "train" else 9)
            and min(row["blocks_us"]) > 0
        )
        assert row["median_us"] == pytest.approx(np.median(row["blocks_us"]))
        assert row["contender"] in done.stdout and row["graph"] in done.stdout
    return written, cells, done.stdout


def fastest(rows: dict[str, dict], *names: str) -> float:
    return min(rows[name]["median_us"] for name in names)
