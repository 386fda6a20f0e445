"""Figures 7, 8 and 10 of RelaySGD."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from mpidec.reproduce.relaysgd.heterogeneity import ModelOrGradient, NoisyGradients, StarGraphs

pytestmark = pytest.mark.serial


def judged(experiment, cells):
    results = {
        cell: {name: np.asarray(x) for name, x in experiment.measure(cell).items()}
        for cell in cells
    }
    return list(experiment.judge(results))


def test_steps_and_points_of_figure_8_are_the_published_ones():
    experiment = StarGraphs(zeta2s=(0.0,))
    lines = judged(experiment, experiment.cells())
    assert [line.agrees for line in lines] == [None, *[True] * 10]
    steps = {line.what.split(",")[0]: line.here for line in lines if "steps to" in line.what}
    assert steps.pop("gossip") < 20 and steps == {"D2": 65, "gradient tracking": 9, "RelaySGD": 8}
    points = {line.what.split(",")[0]: line.here for line in lines if "error at" in line.what}
    assert points["gradient tracking"] == pytest.approx(4.090303903591494e-07, rel=1e-7)
    assert points["D2"] == pytest.approx(4.819784528514719e-05, rel=1e-7)


def test_other_instances_are_judged_by_their_steps_alone():
    experiment = StarGraphs(sizes=(6,), seeds=(5,), zeta2s=(0.0, 0.002))
    lines = judged(experiment, experiment.cells())
    assert [line.agrees for line in lines] == [None] * 8 + [True] * 5
    assert all("n = 6, seed 5" in line.what and line.here < 20000 for line in lines[:8])


def test_steps_that_do_not_depend_on_zeta2():
    def agrees(n, most):
        experiment = ModelOrGradient(sizes=(n,), zeta2s=(0.0, 0.01))
        steps = {0.0: 40.0, 0.01: most}
        error = np.ones(501)
        results = {c: {"steps": steps[c[3]], "error": error} for c in experiment.cells()}
        return list(experiment.judge(results))[-1].agrees

    assert [agrees(32, most) for most in (45, 46)] == [True, False]
    assert [agrees(8, most) for most in (51, 52)] == [True, False]


def test_the_level_of_noise_is_the_derived_one():
    experiment = NoisyGradients(sizes=(5,), seeds=(3,), zeta2s=(0.01,), runs=40, steps=1500)
    lines = judged(experiment, experiment.cells())
    assert [line.agrees for line in lines] == [None, True] * 4 + [True] * 5, lines


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "experiment", [StarGraphs(), ModelOrGradient(), NoisyGradients()], ids="8 10 7".split()
)
def test_all_lines_agree(experiment):
    lines = judged(experiment, experiment.cells())
    assert len(lines) >= 13 and [line for line in lines if line.agrees is False] == []


@pytest.mark.slow
def test_the_search_finds_the_published_step_sizes():
    experiment = StarGraphs(zeta2s=(0.01,), search=True)
    for cell in experiment.cells():
        if (known := experiment.known(cell)) is not None:
            found = experiment.measure(cell)
            assert (found["steps"], found["step_size"]) == (known.steps, 2 * known.step_size)
