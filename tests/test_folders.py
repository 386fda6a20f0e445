"""Tests neither read nor change the folder in which pytest is started, nor judge by the names of folders around the package."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import launch
from helpers.counting import calls

pytestmark = pytest.mark.serial
LEFT = ("run.h5", "run.png", "experiment.toml", "data.csv", "table.csv", "my.py", "own.py")
READERS = (
    "test_folders.py::test_each_has_a_folder_of_its_own",
    "experiment/test_settings.py::test_the_default_experiment",
    "experiment/test_settings.py::test_file_flags_and_set_agree",
)


@pytest.mark.parametrize("leave", [0, 1])
def test_each_has_a_folder_of_its_own(leave, pytestconfig):
    here = Path.cwd()
    assert not list(here.iterdir())
    assert not {here, *here.parents} & {pytestconfig.invocation_params.dir, launch.ROOT}
    Path("left").touch()


@pytest.mark.launch
def test_what_lies_where_pytest_is_started_changes_nothing(tmp_path):
    for name in LEFT:
        (tmp_path / name).write_text("not what its name promises\n")
    tests = [launch.ROOT / "tests" / reader for reader in READERS]
    done = launch.mpirun(0, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(LEFT)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"not what its name promises\n"}


def test_calls_are_counted_by_the_folder_not_by_its_name(tmp_path):
    """A clone of the name of the package may hold its environment, with all that is installed there."""
    clone = tmp_path / "mpidec"

    def act():
        for path in (clone / "mpidec" / "a.py", clone / ".venv" / "b.py", tmp_path / "mpidec2.py"):
            exec(compile("", path, "exec"))

    assert calls(act, clone / "mpidec") == 1
