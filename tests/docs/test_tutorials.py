"""Every tutorial runs from top to bottom, with no MPI and on engines under mpirun, and is stored as it runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import matplotlib
import nbclient
import nbformat
import pytest
from helpers import launch
from helpers.sets import first
from matplotlib import pyplot

pytestmark = [pytest.mark.serial, pytest.mark.launch]

FOLDER = launch.ROOT / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


SHORTENED = [
    path for path in NOTEBOOKS if any("short" in cell.metadata for cell in code_cells(path))
]
NEEDS = {
    "02_regression": ("sklearn",),
    "06_training": ("torch", "sklearn"),
    "11_sparse_signals": ("sklearn",),
    "15_bluefog": ("torch",),
}
ON_ENGINES = {"15_bluefog"}


def execute(path: Path, folder: Path, monkeypatch, only: str = "", **env: str) -> str:
    """Run a copy of the notebook in `folder`, or those of its cells that say `only`; return what they printed."""
    for module in NEEDS.get(path.stem, ()):
        pytest.importorskip(module)
    for key, value in {
        **launch.environment(),
        "IPYTHONDIR": str(folder / "ipython"),
        **env,
    }.items():
        monkeypatch.setenv(key, value)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [
        cell for cell in notebook.cells if cell.cell_type == "code" and only in cell.source
    ]
    shutil.copy(FOLDER / "style.mplstyle", folder)
    where = {"metadata": {"path": folder}}
    nbclient.NotebookClient(
        notebook, timeout=round(launch.patient(90)), kernel_name="python3", resources=where
    ).execute()
    return "".join(
        output.text
        for cell in notebook.cells
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


@pytest.mark.parametrize(
    "path",
    first([path for path in NOTEBOOKS if path.stem not in ON_ENGINES]),
    ids=lambda path: path.stem,
)
def test_runs_without_mpi(path, tmp_path, monkeypatch):
    said = execute(path, tmp_path, monkeypatch, MPIDEC_ENGINES="0")
    assert path in SHORTENED or "1 process:" in said


@pytest.mark.parametrize("path", SHORTENED, ids=lambda path: path.stem)
def test_a_few_steps_run(path, tmp_path, monkeypatch):
    """With the values that the cell of parameters has for it, and without assertions on results."""
    for module in NEEDS.get(path.stem, ()):
        pytest.importorskip(module)
    shutil.copy(FOLDER / "style.mplstyle", tmp_path)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict[str, object] = {}
    with matplotlib.rc_context():
        for cell in code_cells(path):
            source = f"{cell.source}\n{cell.metadata.get('short', '')}"
            exec(compile(source, path.name, "exec", optimize=1), names)
        pyplot.close("all")


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [FOLDER / "01_average_consensus.ipynb"], ids=lambda path: path.stem
)
def test_runs_on_engines(path, tmp_path, monkeypatch):
    said = execute(path, tmp_path, monkeypatch, only="MPIDEC_ENGINES", MPIDEC_ENGINES="4")
    assert "4 processes:" in said


@pytest.mark.slow
@pytest.mark.library
def test_bluefogs_calls_on_engines(tmp_path, monkeypatch):
    said = execute(FOLDER / "15_bluefog.ipynb", tmp_path, monkeypatch, MPIDEC_ENGINES="4")
    assert "4 processes: engines [0, 1, 2, 3]" in said
    assert "engine 3 is rank 3 and hears the ranks [1, 2]" in said
    assert "the ranks hold 1.5 1.5 1.5 1.5" in said


@pytest.mark.slow
def test_a_straggler_on_engines_delays_only_itself(tmp_path, monkeypatch):
    said = execute(FOLDER / "05_asynchronous.ipynb", tmp_path, monkeypatch, MPIDEC_ENGINES="4")
    straggler, *others = map(
        float, re.search(r"^ +asynchronous +(.+)$", said, re.MULTILINE)[1].split()
    )
    assert straggler > 10 and max(others) < 5, said
    assert "push-sum:       the ranks hold 1.500000, 1.500000, 1.500000, 1.500000" in said


@pytest.mark.slow
def test_relaysgd_keeps_its_accuracy_on_heterogeneous_data(tmp_path, monkeypatch):
    said = execute(FOLDER / "06_training.ipynb", tmp_path, monkeypatch, MPIDEC_ENGINES="4")
    assert "4 processes: one worker each, 1 thread for PyTorch" in said
    gossip, relay, dense = (
        float(re.search(rf"^{name}.* worst worker ([0-9.]+)", said, re.MULTILINE)[1])
        for name in ("atc, ring", "relay, chain", "allreduce")
    )
    assert min(relay, dense) > max(gossip, 0.9), said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_executed_and_small(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), (
        "not run from top to bottom"
    )
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    for part in "**Question.**", "**Answer.**", "*Runtime:", "## Exercises", "## Reading":
        assert part in text
    assert any("hide-input" in cell.metadata.get("tags", ()) for cell in cells), "no solution"
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture is stored"
    assert not any(
        output.output_type == "error" or output.get("name") == "stderr" for output in outputs
    )
    texts = [output.get("text", "") for output in outputs if output.output_type == "stream"]
    assert not re.search(r"Warning|site-packages|/home/|/tmp/", "".join(texts))
    assert path.stat().st_size < 400_000, f"{path.stat().st_size} bytes, expected less than 400,000"
