"""Experiments differ with broken steps, with broken weights, and with other breaks where they have
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from mpidec import reproduce, topology
from mpidec.comm.mixing.base.step import EdgeOperator
from mpidec.comm.mixing.mixers.factory import Mixers
from mpidec.driver.answers import Answers
from mpidec.driver.asynchronous import draws, events
from mpidec.reproduce.acid.networks import AsynchronousTraining
from mpidec.reproduce.relaysgd import rate
from mpidec.reproduce.training import TrainingExperiment
from mpidec.reproduce.verdict import CLOSED, PRINTED
from mpidec.solvers import (
    D2,
    DGD,
    DSGDCECA,
    A2CiD2,
    ExactDiffusion,
    GradientTracking,
    PairwiseGossip,
    RelaySGD,
)
from mpidec.solvers.asynchronous import Asynchronous as AsynchronousSolver
from mpidec.theory.linear import QuadraticColumns
from mpidec.topology import Schedule, Topology, pairwise
from mpidec.topology.derived.striped import Striped
from tests.helpers.verdicts import lines_of

pytestmark = pytest.mark.serial
Break = Callable[[pytest.MonkeyPatch], None]


def larger_steps(patch: pytest.MonkeyPatch) -> None:
    """Gradients, or the step sizes of asynchronous solvers, are 5 % larger."""
    for kind, name in ((Answers, "grad"), (QuadraticColumns, "grad"), (AsynchronousSolver, "size")):
        right = getattr(kind, name)
        patch.setattr(kind, name, lambda *given, right=right: 1.05 * right(*given))


def larger_given(patch: pytest.MonkeyPatch) -> None:
    """Gradients are 5 % larger in the steps that experiments take themselves, without `solve`."""
    for solver in (DGD, ExactDiffusion, D2, GradientTracking, RelaySGD, DSGDCECA):

        def step(self, s, G, W, right=solver.step):
            return right(self, s, 1.05 * G, W)

        patch.setattr(solver, "step", step)


def larger_rates(patch: pytest.MonkeyPatch) -> None:
    """The learning rates of trainings are 5 % larger."""
    from mpidec.train import components

    right = components.factor
    patch.setattr(components, "factor", lambda *given: 1.05 * right(*given))


class LazierSchedule(Schedule):
    def __init__(self, schedule: Schedule):
        self.schedule, self.name, self.n = schedule, schedule.name, schedule.n
        self.kind, self.directed, self.period = schedule.kind, schedule.directed, schedule.period

    def at(self, k: int) -> Topology:
        return lazier(self.schedule.at(k))

    def spectral_gap(self) -> float:
        return self.schedule.spectral_gap()

    def fingerprint(self) -> int:
        return self.schedule.fingerprint()


def lazier(graph: Topology | Schedule) -> Topology | Schedule:
    """A tenth of each row stays where it is; rounds of DSGD-CECA, whose weights the solver
    computes, are left as they are: see `exchange`.
    """
    if isinstance(graph, topology.CecaRound):
        return graph
    if isinstance(graph, Striped):
        return topology.striped(map(lazier, graph))
    if not isinstance(graph, Topology):
        return LazierSchedule(graph)
    if graph.kind == "pair":
        return topology.push_pull(lazier(graph.R), lazier(graph.C))
    W = 0.9 * graph.W.toarray() + 0.1 * np.eye(graph.n)
    return topology.from_weights(W, signed=bool(W.min() < 0), connected=False)


def other_weights(patch: pytest.MonkeyPatch) -> None:
    """Mixings, and averagings of pairs, are by .9 W + .1 I; rows sent alone lose a tenth."""
    right = Mixers.make
    patch.setattr(Mixers, "make", lambda self, graph, *more: right(self, lazier(graph), *more))
    send = EdgeOperator.exchange
    patch.setattr(EdgeOperator, "exchange", lambda self, M: 0.9 * send(self, M))
    for solver in (A2CiD2, PairwiseGossip):

        def average(self, s, mine, theirs, t, right=solver.average):
            return right(self, s, mine, 0.1 * mine + 0.9 * theirs, t)

        patch.setattr(solver, "average", average)


def more_averagings(patch: pytest.MonkeyPatch) -> None:
    """Edges have a rate that is a quarter larger."""
    for module in (events, pairwise):
        right = module.edge_rates
        patch.setattr(module, "edge_rates", lambda *given, right=right: 1.25 * right(*given))


def regular_clocks(patch: pytest.MonkeyPatch) -> None:
    """Intervals are means of two of a Poisson clock."""
    right = draws.intervals

    def intervals(*given: Any) -> Iterator[float]:
        of = right(*given)
        return (0.5 * (first + second) for first, second in zip(of, of))

    patch.setattr(draws, "intervals", intervals)


def equal_clocks(patch: pytest.MonkeyPatch) -> None:
    """All agents have the mean of their rates."""
    right = events.meetings
    patch.setattr(
        events,
        "meetings",
        lambda seed, rates, edges: right(seed, np.full_like(rates, rates.mean()), edges),
    )


def unequal_choices(patch: pytest.MonkeyPatch) -> None:
    """Agents prefer their first neighbours."""
    right = draws.uniforms
    patch.setattr(draws, "uniforms", lambda *given: (u**2 for u in right(*given)))


def complete_graphs(patch: pytest.MonkeyPatch) -> None:
    """Agents have links to all others."""
    right = Mixers.make

    def made(self, graph, *more):
        return right(self, topology.complete(graph.n), *more)

    patch.setattr(Mixers, "make", made)


def longer_ways(patch: pytest.MonkeyPatch) -> None:
    """Agents are a hop further from each other."""
    right = rate.distances
    patch.setattr(rate, "distances", lambda tree: right(tree) + (right(tree) > 0))


STEP, GIVEN, WEIGHTS = "larger steps", "larger gradients of steps without solve", "other weights"
RATE = "larger rates"
PACE, REGULAR, EQUAL, CHOICE = "averagings", "regular clocks", "equal clocks", "choices"
LINKS, WAYS = "complete graphs", "longer ways"
BREAKS: Mapping[str, Break] = {
    STEP: larger_steps,
    GIVEN: larger_given,
    WEIGHTS: other_weights,
    RATE: larger_rates,
    PACE: more_averagings,
    REGULAR: regular_clocks,
    EQUAL: equal_clocks,
    CHOICE: unequal_choices,
    LINKS: complete_graphs,
    WAYS: longer_ways,
}
BOTH, OWN, TRAINING = (STEP, WEIGHTS), (GIVEN, WEIGHTS), (RATE, WEIGHTS)
EXPERIMENTS: Mapping[str, tuple[str, ...]] = {  # what each sees; the reason, if not both
    "relaysgd-fig4": TRAINING,
    "relaysgd-table2": TRAINING,
    "relaysgd-table5": TRAINING,
    "ceca-table2": TRAINING,
    "ceca-fig8": TRAINING,
    "ceca-fig9": TRAINING,
    "ceca-fig10": TRAINING,
    "bluefog-table3": TRAINING,
    "acid-consensus": (WEIGHTS, PACE),  # no gradients
    "acid-constants": (PACE,),  # constants of graphs
    "acid-rates": (PACE,),  # counts of gradients and averagings
    "acid-fig2": (REGULAR,),  # durations of gradients
    "acid-fig3": BOTH,
    "acid-fig4": BOTH,
    "acid-table4": BOTH,
    "acid-table5": BOTH,
    "acid-table6": (EQUAL,),  # counts of gradients
    "acid-fig7": (CHOICE,),  # counts of averagings
    "nids-steps": BOTH,
    "exact-diffusion-range": BOTH,
    "choco-gossip": (WEIGHTS,),  # no gradients
    "beer-gradients": BOTH,
    "base-k-consensus": (WEIGHTS,),  # no gradients
    "equitopo-rate": (WEIGHTS,),  # no gradients
    "extra-exact": BOTH,
    "push-pull-linear": BOTH,
    "kgt-drift": BOTH,
    "scaffold-quadratics": BOTH,
    "lead-bits": BOTH,
    "proxskip-communications": BOTH,
    "relaysgd-fig1": OWN,
    "relaysgd-fig2a": OWN,
    "relaysgd-fig2b": OWN,
    "relaysgd-fig3": OWN,
    "relaysgd-fig5": (WAYS,),  # the matrix of RelaySum's delays: no steps, no weights
    "relaysgd-fig6": OWN,
    "relaysgd-fig7": OWN,
    "relaysgd-fig8": OWN,
    "relaysgd-fig9": OWN,
    "relaysgd-fig10": OWN,
    "ceca-table1": OWN,
    "ceca-table3": (WEIGHTS,),  # averages: the step size is zero
    "ceca-fig5": (WEIGHTS,),  # averages
    "ceca-fig6": (WEIGHTS,),  # averages
    "ceca-fig7": OWN,
    "ceca-claims": OWN,
    "bluefog-fig5-6": (WEIGHTS,),  # the steps are the experiment's formula, without a solver
    "bluefog-listings": BOTH,
    "bluefog-table1-fig11": (LINKS,),  # counts of messages alone
    "bluefog-table2-fig12-13": BOTH,
}
SETTINGS: Mapping[str, Mapping[str, object]] = {  # where the quick ones are too short
    "acid-table6": {"sizes": (16,), "slowest": 0.5, "steps": 200},
}


SLOW = ("relaysgd-fig4", "relaysgd-table5", "ceca-fig8", "ceca-fig9", "bluefog-table3")


def differing(name: str) -> set[str]:
    """The lines that differ, of those judged by something written apart from what is measured."""
    settings = SETTINGS.get(name, reproduce.EXPERIMENTS[name].about.quick)
    lines = lines_of(name, **settings)
    return {line.what for line in lines if line.failed and line.judge in (CLOSED, PRINTED)}


unbroken = cache(differing)


def test_all_experiments_are_broken():
    assert set(EXPERIMENTS) == set(reproduce.EXPERIMENTS)


@pytest.mark.parametrize(
    "name, kind",
    [
        pytest.param(name, kind, marks=pytest.mark.slow if name in SLOW else ())
        for name, kinds in EXPERIMENTS.items()
        for kind in kinds
    ],
)
def test_broken_experiments_differ(name, kind, monkeypatch):
    if issubclass(reproduce.EXPERIMENTS[name], (AsynchronousTraining, TrainingExperiment)):
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    before = unbroken(name)
    assert not [what for what in before if "dense" in what]
    BREAKS[kind](monkeypatch)
    assert differing(name) - before
