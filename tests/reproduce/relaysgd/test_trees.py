"""Figures 1, 3, 5, 6 and 9 of RelaySGD: closed forms on random trees and sizes."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

pytest.importorskip("torch")

from mpidec import topology
from mpidec.reproduce.relaysgd.correction import CorrectionFactor, distances, responses
from mpidec.reproduce.relaysgd.influence import Influence
from mpidec.reproduce.relaysgd.mean_estimation import METHODS, MeanEstimation
from mpidec.reproduce.relaysgd.rate import RateConstants, delayed, rate
from mpidec.reproduce.relaysgd.social import SocialNetwork, network
from mpidec.solvers import RelaySGD

pytestmark = pytest.mark.serial


def judged(experiment):
    results = {
        cell: {name: np.asarray(x) for name, x in experiment.measure(cell).items()}
        for cell in experiment.cells()
    }
    return list(experiment.judge(results))


def random_tree(n, seed):
    return topology.spanning_tree(topology.erdos_renyi(n, p=0.5, seed=seed), seed % n)


def test_influence_on_any_chain():
    lines = judged(Influence(sizes=(7, 5), workers=(4, 1, 6), steps=9))
    assert len(lines) == 10 and all(line.agrees for line in lines), lines


def test_correction_factors_of_figure_6():
    lines = judged(CorrectionFactor(sizes=(3, 16)))
    assert all(line.agrees for line in lines)
    factors = {line.what: line.here for line in lines}
    assert factors["chain, n = 16"] == pytest.approx(5.375, abs=1e-9)
    assert factors["binary tree, n = 16"] == pytest.approx(3.3203125, abs=1e-9)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_delayed_matrix_is_the_step_of_the_overlapping_solver(seed):
    tree = random_tree(7, seed)
    U = np.random.default_rng(seed).standard_normal((7, 2))
    What = delayed(tree)
    z = np.zeros((len(What), 2))
    z[:7] = U
    for X in islice(responses(RelaySGD(1.0, overlap=True), tree, U), 30):
        z = What @ z
        np.testing.assert_allclose(z[:7], X, atol=1e-14)


def test_rate_constants_are_those_of_the_published_program():
    lines = judged(RateConstants(sizes=(2, 3, 4, 6)))
    assert len(lines) == 12 and all(line.agrees for line in lines), lines
    m, p = rate(random_tree(6, 4))
    assert m >= 2 and 0 < p < 1


@pytest.mark.parametrize("method", METHODS)
def test_expected_errors_are_sums_of_squared_weights(method):
    n, T = 5, 12
    estimates, expected, _ = METHODS[method]
    weights = np.eye(n * T).reshape(T, n, n * T)  # each sample in a column of its own
    variance = [np.square(Z).sum(axis=1).mean() for Z in estimates(n, iter(weights))]
    np.testing.assert_allclose(expected(n, np.arange(1.0, T + 1)), variance, rtol=1e-12)


def test_mean_estimation_agrees_for_other_sizes_and_seeds():
    lines = judged(MeanEstimation(sizes=(6, 33), seeds=(4,), steps=120))
    assert len(lines) == 9 and all(line.agrees for line in lines), lines


def test_the_network_and_a_few_of_its_trees():
    graph = network()
    assert graph.n == 32 and (distances(graph) == 1).sum() == 178 and distances(graph).max() == 4
    lines = judged(SocialNetwork(roots=(9, 0, 1), runs=4, steps=300))
    assert [line.agrees for line in lines] == [True, True, None, None] + [True] * 5, lines
    assert lines[5].here == "5, 6, 7"


def test_a_tree_that_does_not_reach_the_level_of_gossip_is_not_the_fastest():
    experiment = SocialNetwork(roots=(0,), steps=180)
    falling, flat = np.geomspace(1, 1e-6, 181), np.ones(181)
    results = {
        (solver, root, 1): {"error": error, "vectors": np.array(62.0), "diameter": np.array(5.0)}
        for solver, root, error in (
            ("gossip", -1, falling),
            ("exact diffusion", -1, falling),
            ("RelaySGD", 0, flat),
        )
    }
    steps, vectors, *_ = experiment.judge(results)
    assert steps.here == np.inf and not steps.agrees and not vectors.agrees


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "experiment", [SocialNetwork(), RateConstants(), MeanEstimation()], ids="3 5 9".split()
)
def test_no_line_differs(experiment):
    lines = judged(experiment)
    assert len(lines) >= 6 and not [line for line in lines if line.agrees is False]
