"""The programs of examples/bluefog, which check their results themselves, and one notebook."""

from __future__ import annotations

import pytest
from helpers import launch

pytestmark = [pytest.mark.serial, pytest.mark.launch]
FOLDER = launch.ROOT / "examples" / "bluefog"
SLOW = pytest.mark.slow
PROGRAMS = [
    pytest.param("average.py", "--mode static --rounds 60", id="static"),
    pytest.param("average.py", "--mode dynamic", id="dynamic", marks=SLOW),
    pytest.param("average.py", "--mode push_sum", id="push_sum", marks=SLOW),
    pytest.param("average.py", "--mode dynamic_push_sum", id="dynamic_push_sum", marks=SLOW),
    pytest.param("least_squares.py", "--method exact_diffusion", id="exact_diffusion"),
    pytest.param(
        "least_squares.py", "--method gradient_tracking", id="gradient_tracking", marks=SLOW
    ),
    pytest.param("least_squares.py", "--method push_diging", id="push_diging", marks=SLOW),
    pytest.param("resource_allocation.py", "", id="resource_allocation", marks=SLOW),
    pytest.param("digits.py", "--optimizer atc", id="atc", marks=SLOW),
    pytest.param("digits.py", "--optimizer awc", id="awc", marks=SLOW),
    pytest.param("digits.py", "--optimizer gradient", id="gradient", marks=SLOW),
    pytest.param("digits.py", "--optimizer window", id="window", marks=SLOW),
    pytest.param("resnet.py", "", id="resnet", marks=SLOW),
    pytest.param("native.py", "--steps 5", id="native", marks=SLOW),
]


@pytest.mark.library
@pytest.mark.parametrize("program, arguments", PROGRAMS)
def test_programs_reach_their_bounds(program, arguments, mpirun):
    pytest.importorskip("torch")
    if program in ("digits.py", "native.py"):
        pytest.importorskip("sklearn")
    words = ["-m", "mpidec.bluefog", FOLDER / program, *arguments.split()]
    done = mpirun(3, words, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" and done.stdout.count("\n") >= 1


@SLOW
def test_programs_notice_wrong_results(mpirun):
    pytest.importorskip("torch")
    words = ["-m", "mpidec.bluefog", FOLDER / "least_squares.py", "--steps", "5"]
    done = mpirun(3, words)
    assert done.returncode == 1 and "expected less than 1e-9" in done.stderr


@SLOW
def test_the_native_form_finds_the_same_price(mpirun):
    pytest.importorskip("sklearn")
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"
        "from mpidec.bluefog import names; names.install()\n"
        "import native, resource_allocation as r, bluefog.torch as bf, numpy as np\n"
        "bf.init(native.topology_util.RingGraph)\n"
        "y = r.price(*r.demand(), 1500)\n"
        "x = native.allocated(native.mpidec.Network(), 1500)\n"
        "np.testing.assert_allclose(x, y, atol=1e-8)\n"
    )
    done = mpirun(3, ["-c", code], timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
