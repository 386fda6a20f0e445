"""The experiments by name, in the order of the papers."""

from __future__ import annotations

from typing import Any

from . import acid, ceca, relaysgd
from .experiment import Experiment

EXPERIMENTS: dict[str, type[Experiment[Any]]] = {
    experiment.name: experiment
    for paper in (relaysgd, ceca, acid)
    for experiment in paper.EXPERIMENTS
}
