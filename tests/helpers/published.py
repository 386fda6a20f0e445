"""Lines of experiments, without a file."""

from __future__ import annotations

import numpy as np

from mpidec.reproduce import Experiment, Line


def lines(experiment: Experiment) -> dict[str, Line]:
    """The lines of an experiment that is measured in this process, by what they are."""
    results = {
        cell: {name: np.asarray(values, float) for name, values in experiment.measure(cell).items()}
        for cell in experiment.cells()
    }
    return {line.what: line for line in experiment.judge(results)}
