"""The experiments by name, in the order of the papers."""

from __future__ import annotations

from typing import Any

from . import acid, bluefog, ceca, others, relaysgd
from .experiment import Experiment

EXPERIMENTS: dict[str, type[Experiment[Any]]] = {
    experiment.about.name: experiment
    for paper in (relaysgd, ceca, acid, bluefog, others)
    for experiment in paper.EXPERIMENTS
}
