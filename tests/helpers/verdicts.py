"""Lines of published experiments that are measured in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpidec.reproduce import EXPERIMENTS
from mpidec.reproduce.verdict import Line


def lines_of(name: str, **settings: object) -> Sequence[Line]:
    experiment = EXPERIMENTS[name](**settings)
    results = {
        cell: {key: np.asarray(x, float) for key, x in experiment.measure(cell).items()}
        for cell in experiment.cells()
    }
    return list(experiment.judge(results))


def failures(name: str, **settings: object) -> list[str]:
    return [
        f"{line.what}: {line.here}, {line.verdict}"
        for line in lines_of(name, **settings)
        if line.failed
    ]
