"""Consensus, constants and pace of A2CiD2."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.published import lines

from mpidec.reproduce import acid
from mpidec.reproduce.acid.consensus import ConsensusTimes
from mpidec.reproduce.acid.constants import Constants, circulant_rates, communications
from mpidec.reproduce.acid.pace import Counts, Neighbours, PaceTimeline, Rates
from mpidec.topology import CATALOGUE

pytestmark = pytest.mark.serial


def test_consensus_of_small_rings():
    found = lines(ConsensusTimes(sizes=(8, 16), seeds=(3, 4, 5, 6, 7)))
    assert not any(line.failed for line in found.values())
    assert found["n = 16: order"].here == "baseline > code > algorithm > sde"
    assert found["baseline: slower from n = 8 to 16"].agrees
    assert found["sde: slower from n = 8 to 16"].agrees


def test_constants_and_exponents():
    found = lines(Constants(sizes=(4, 16), growth=(8, 32, 128), graphs=10))
    assert {line.verdict for line in found.values()} == {"agrees"}
    assert found["chi1, chi2: cycle, n = 16"].here == "13.1371, 0.9375"
    assert found["chi1, chi2: exponential, n = 16"].here == "2, 1.00966"
    assert circulant_rates("exponential", 4).tolist()[0] == [0, 0.25, 0.5, 0.25]
    assert communications(CATALOGUE["complete"](8))[1] == pytest.approx(28)  # one round, all edges


def test_only_what_the_paper_prints_is_published():
    assert {line.published for line in lines(PaceTimeline(n=3, steps=200)).values()} == {"0", None}
    ratio, *others = lines(Counts(sizes=(8,), steps=300)).values()
    assert ratio.published == 13 / 14 and {line.published for line in others} == {None}


def test_averagings_per_gradient():
    found = lines(Rates(rates=(1.0, 3.0), gradients=100, seeds=(1,)))
    assert {line.verdict for line in found.values()} == {"agrees"}
    assert not any(
        line.agrees for line in lines(_Wrong(rates=(2.0,), gradients=100, seeds=(1,))).values()
    )


class _Wrong(Rates):
    """Averagings that are counted once."""

    def measure(self, cell):
        found = dict(super().measure(cell))
        return found | {"averagings": found["averagings"] / 2}


def test_neighbours_are_chosen_equally_often():
    experiment = Neighbours(seeds=(5, 6), n=9, steps=200)
    assert {line.verdict for line in lines(experiment).values()} == {"agrees"}
    counts = {(graph, seed): np.full((9, 9), 50.0) for graph, seed in experiment.cells()}
    for number in counts.values():
        number[3, [2, 4]] = 80, 20
    results = {cell: {"counts": number} for cell, number in counts.items()}
    assert not any(line.agrees for line in experiment.judge(results))


def test_slow_workers_are_not_waited_for():
    slow = lines(Counts(sizes=(16,), slowest=0.5, steps=200, seeds=(1,)))
    assert {line.verdict for line in slow.values()} == {"agrees"}
    assert {line.verdict for line in lines(PaceTimeline(n=3, steps=1500, seeds=(2,))).values()} == {
        "agrees"
    }


@pytest.mark.slow
@pytest.mark.parametrize("experiment", acid.EXPERIMENTS)
def test_all_lines_agree(experiment):
    assert not [line for line in lines(experiment()).values() if line.failed]
