"""Cycles, and schedules in general.  No MPI."""

import math

import numpy as np
import pytest
from helpers.graphs import product

import mpidec.topology as T

pytestmark = pytest.mark.serial


def test_cycle_goes_round():
    phases = [T.ring(5), T.exponential(5), T.star(5)]
    schedule = T.cycle(iter(phases))
    assert [schedule.at(k).name for k in range(5)] == [
        "ring",
        "exponential",
        "star",
        "ring",
        "exponential",
    ]
    assert (schedule.n, schedule.period, schedule.kind, schedule.directed) == (5, 3, "doubly", True)
    sigma = np.linalg.svd(product(schedule), compute_uv=False)[1]
    assert schedule.spectral_gap() == pytest.approx(1 - sigma ** (1 / 3), abs=1e-12)
    assert T.cycle([T.one_peer_exponential(8), T.ring(8)]).period == 4
    assert T.cycle([T.ring(4)]).spectral_gap() == pytest.approx(T.ring(4).spectral_gap())


def test_kind_of_a_cycle_is_the_weakest():
    row, column = T.star(4, weights="uniform"), T.star(4, weights="push")
    assert (
        T.cycle([T.ring(4), row]).kind == "row"
        and T.cycle([column, T.ring(4), column]).kind == "column"
    )
    mixed = T.cycle([T.ring(4), row])
    values = np.sort(np.abs(np.linalg.eigvals(product(mixed))))
    assert mixed.spectral_gap() == pytest.approx(1 - math.sqrt(values[-2]), abs=1e-7)


def test_gap_of_large_schedules():
    large = T.cycle([T.chain(650), T.star(650)])
    sigma = np.linalg.svd(product(large), compute_uv=False)[1]
    assert large.spectral_gap() == pytest.approx(1 - math.sqrt(sigma), rel=1e-6)
    assert T.ceca(700, ports=1).at(2).spectral_gap() == 0


def test_a_static_topology_is_its_own_schedule():
    assert T.ring(4).at(9) == T.ring(4) and T.ring(4).period == 1


def test_schedules_are_frozen_and_equal_by_content():
    with pytest.raises(AttributeError):
        T.one_peer_exponential(4).phases = ()
    assert (
        T.ceca(6) == T.ceca(6, ports=2) and T.ceca(6) != T.ceca(6, ports=1) and T.ceca(6) != "ceca"
    )
    assert T.one_peer_exponential(2).at(0) != T.ceca(2).at(0)
    assert repr(T.ceca(6)) == "Schedule('ceca', n=6, kind='doubly', directed=True, period=3)"


WRONG = [
    (lambda: T.cycle([]), ValueError, "expected at least one"),
    (lambda: T.cycle([T.ring(5), T.double_binary_trees(5)]), ValueError, "take one of them"),
    (lambda: T.cycle(T.ring(4)), TypeError, "expected a list of topologies"),
    (lambda: T.cycle(3), TypeError, "expected a list of topologies, got 3 (int)"),
    (lambda: T.cycle([T.ring(4), np.eye(4)]), TypeError, "cycle: element 1"),
    (
        lambda: T.cycle([T.ring(4), T.ring(5)]),
        ValueError,
        "topology 1 (ring) has 5 agents and topology 0 (ring) 4",
    ),
    (
        lambda: T.cycle([T.star(4, weights="push"), T.ring(4), T.star(4, weights="uniform")]),
        ValueError,
        "topology 2 (star) is row stochastic and topology 0 (star) column stochastic",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
