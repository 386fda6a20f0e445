"""Jobs that their time limit stops go on while they get nearer to their end."""

import math

import pytest

from mpidec.exceptions import ConfigError
from mpidec.record import RunFile
from mpidec.restart.progress import main, progress, verdict

pytestmark = pytest.mark.serial
RUN, TRAINING = "[run]\nsteps = 400\n", "[train]\nepochs = 8\n"


@pytest.mark.parametrize(
    "config, expected",
    [
        (RUN, (30, 400)),
        (RUN + "stop_error = 1e-8\n", (30, math.inf)),
        (RUN + '[solver]\nname = "dgd"\n', (30, 400)),
        (TRAINING + "every = 1\n", (1.5, 8)),
    ],
)
def test_progress_is_in_steps_or_epochs(tmp_path, config, expected):
    path = str(tmp_path / "run.h5")
    assert progress(path) == (0, math.inf)
    with RunFile(
        path, n=2, row_shape=(3,), metrics=("epoch",), meta={"config": config}, trajectory=False
    ) as file:
        file.append(30, {"epoch": 1.5})
    assert progress(path) == expected


@pytest.mark.parametrize(
    "text, before, restarts, allowed, goes_on, why",
    [
        ("40 120", 0, 0, 2, True, "is at 40 of 120, 40 more than"),  # 2 x 40 reach the end
        ("40 121", 0, 0, 2, False, "40 more than when this allocation began: 2 more of 40 reach"),
        ("81 100", 80, 2, 3, True, "1 more than"),  # one slow allocation of three
        ("81 109", 80, 2, 3, False, "1 more of 27 reach 108"),
        ("90 120", 60, 8, 9, True, "30 more than"),  # they have become faster
        ("3 inf", 2, 0, 1, True, "is at 3, 1 more than"),
        ("40 100", 40, 0, 99, False, "is at 40 of 100, no more than when this allocation began"),
        ("40 100", 41, 0, 99, False, "no more than when"),
        ("99 100", 0, 7, 7, False, "is at 99 of 100, and no restart is left"),
        (None, 0, 0, 99, False, "there is no "),
    ],
)
def test_a_job_goes_on_if_it_comes_to_its_end(
    tmp_path, capsys, text, before, restarts, allowed, goes_on, why
):
    path = tmp_path / "progress.txt"
    if text:
        path.write_text(text)
    assert verdict(str(path), before, restarts, allowed)[0] == goes_on
    assert main([str(path), str(before), str(restarts), str(allowed)]) == (not goes_on)
    (line,) = capsys.readouterr().out.splitlines()
    assert why in line and line.endswith("the job goes on" if goes_on else "the job ends")


@pytest.mark.parametrize("text", ["half", "nan 100", "5 nan", "inf inf"])
def test_progress_that_is_not_two_numbers_is_named(tmp_path, capsys, text):
    path = tmp_path / "progress.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"progress\.txt: expected two numbers, done and end"):
        progress(str(path))
    assert main([str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mpidec.restart: error: ")
