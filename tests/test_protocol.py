"""The sketches of docs/protocol.md, run as they stand: alone, and under mpirun."""

import importlib.util
import re
from pathlib import Path

import pytest
from mpi4py import MPI

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
SETUP, *SKETCHES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="as on 3 ranks, and slow")
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda text: re.search(r"class (\w+)|import (\w+)", text).group(0).split()[-1])
def test_a_sketch_runs(sketch):
    if "import torch" in sketch and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    scope = {"__name__": "sketch"}
    exec(compile(SETUP, PAGE.name, "exec"), scope)
    exec(compile(sketch, PAGE.name, "exec"), scope)


def test_there_is_a_sketch_of_each_kind():
    assert len(SKETCHES) == 5
