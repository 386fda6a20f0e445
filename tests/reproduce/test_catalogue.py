"""Every published experiment in its short form: file, lines, figure."""

from __future__ import annotations

import pytest

from mpidec.reproduce import EXPERIMENTS, measure, publish
from mpidec.reproduce.acid.networks import AsynchronousTraining
from mpidec.reproduce.command import configured
from mpidec.reproduce.training import TrainingExperiment

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_short_form(name, tmp_path):
    if issubclass(EXPERIMENTS[name], (TrainingExperiment, AsynchronousTraining)):
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    experiment = configured(EXPERIMENTS[name](), [], quick=True)
    path = str(tmp_path / f"{name}.h5")
    measure(experiment, path)
    report = publish(experiment, path)
    assert report.lines and len(report.lines) <= 60, name
    assert all((line.what and line.expected) or line.agrees is not False for line in report.lines)
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
