"""Experiments differ with broken steps, with broken weights, and with other breaks where they have
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest

from mpidec import reproduce, topology
from mpidec.comm.mixing.mixers import Mixers
from mpidec.driver.answers import Answers
from mpidec.reproduce.verdict import CLOSED, PRINTED
from mpidec.solvers import A2CiD2, PairwiseGossip
from mpidec.solvers.asynchronous import Asynchronous
from mpidec.theory.linear import Quadratics
from mpidec.topology import Schedule, Topology
from tests.helpers.verdicts import lines_of

pytestmark = pytest.mark.serial
Break = Callable[[pytest.MonkeyPatch], None]


def larger_steps(patch: pytest.MonkeyPatch) -> None:
    """Gradients, or the step sizes of asynchronous solvers, are 5 % larger."""
    for kind, name in ((Answers, "grad"), (Quadratics, "grad"), (Asynchronous, "size")):
        right = getattr(kind, name)
        patch.setattr(kind, name, lambda *given, right=right: 1.05 * right(*given))


class LazierSchedule(Schedule):
    def __init__(self, schedule: Schedule):
        self.schedule, self.name, self.n = schedule, schedule.name, schedule.n
        self.kind, self.directed, self.period = schedule.kind, schedule.directed, schedule.period

    def at(self, k: int) -> Topology:
        return lazier(self.schedule.at(k))


def lazier(graph: Topology | Schedule) -> Topology | Schedule:
    """A tenth of each row stays where it is."""
    if not isinstance(graph, Topology):
        return LazierSchedule(graph)
    if graph.kind == "pair":
        return topology.push_pull(lazier(graph.R), lazier(graph.C))
    W = 0.9 * graph.W.toarray() + 0.1 * np.eye(graph.n)
    return topology.from_weights(W, signed=bool(W.min() < 0), connected=False)


def other_weights(patch: pytest.MonkeyPatch) -> None:
    """Mixings, and averagings of pairs, are by .9 W + .1 I."""
    right = Mixers.make
    patch.setattr(Mixers, "make", lambda self, graph, *more: right(self, lazier(graph), *more))
    for solver in (A2CiD2, PairwiseGossip):

        def average(self, s, mine, theirs, t, right=solver.average):
            return right(self, s, mine, 0.1 * mine + 0.9 * theirs, t)

        patch.setattr(solver, "average", average)


STEP, WEIGHTS = "larger steps", "other weights"
BREAKS: Mapping[str, Break] = {STEP: larger_steps, WEIGHTS: other_weights}
BOTH = (STEP, WEIGHTS)
EXPERIMENTS: Mapping[str, tuple[str, ...]] = {  # what each sees; the reason, if not both
    "extra-exact": BOTH,
    "push-pull-linear": BOTH,
    "kgt-drift": BOTH,
    "scaffold-quadratics": BOTH,
    "lead-bits": BOTH,
    "proxskip-communications": BOTH,
}
SETTINGS: Mapping[str, Mapping[str, object]] = {}  # where the quick ones are too short


def differing(name: str) -> set[str]:
    """The lines that differ, of those judged by something written apart from what is measured."""
    settings = SETTINGS.get(name, reproduce.EXPERIMENTS[name].about.quick)
    lines = lines_of(name, **settings)
    return {line.what for line in lines if line.failed and line.judge in (CLOSED, PRINTED)}


unbroken = cache(differing)


@pytest.mark.parametrize(
    "name, kind", [(name, kind) for name, kinds in EXPERIMENTS.items() for kind in kinds]
)
def test_broken_experiments_differ(name, kind, monkeypatch):
    before = unbroken(name)
    assert not [what for what in before if "equations" in what]
    BREAKS[kind](monkeypatch)
    assert differing(name) - before
