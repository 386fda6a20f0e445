"""Figure 2 of RelaySGD: published steps, other seeds and sizes, and what a difference looks like."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from mpidec.reproduce.relaysgd.scalability import Biased, Unbiased, published

pytestmark = pytest.mark.serial


def test_the_published_table_is_complete():
    cells = [cell for experiment in (Biased(), Unbiased()) for cell in experiment.cells()]
    missing = {cell for cell in cells if cell not in published()}
    assert len(published()) == 1532 and {(cell[3], cell[4]) for cell in missing} == {(0.01, 6)}
    ring = [published()["gradient tracking", "ring", 96, 1.0, seed].steps for seed in range(10)]
    assert round(np.mean(ring)) == 7787


def test_published_runs_take_the_published_steps():
    cells = [cell for cell in published() if cell[2] <= 8]
    for number in np.random.default_rng(5).choice(len(cells), 12, replace=False):
        cell = cells[number]
        experiment = Biased() if cell[0] in ("gossip", "RelaySGD/Grad") else Unbiased()
        assert experiment.measure(cell)["steps"] == published()[cell].steps, cell


@pytest.mark.parametrize(
    "experiment",
    [
        Biased(sizes=(5,), seeds=(11,), zeta2s=(0.0, 0.05)),
        Unbiased(sizes=(5, 10), seeds=(11,), zeta2s=(0.5, 2.0)),
    ],
    ids=["2a", "2b"],
)
def test_other_seeds_and_sizes_have_a_search_of_their_own(experiment):
    if isinstance(experiment, Unbiased):
        object.__setattr__(experiment, "pairs", (*experiment.pairs[:2], experiment.pairs[-1]))
    results = {
        cell: {name: np.asarray(x) for name, x in experiment.measure(cell).items()}
        for cell in experiment.cells()
    }
    lines = list(experiment.judge(results))
    assert all(np.isfinite(found["steps"]) for found in results.values())
    assert {line.published for line in lines} == {None}
    assert {line.agrees for line in lines} == {None, True}, lines


def test_slower_runs_are_reported():
    def verdicts(factor, search):
        experiment = Unbiased(sizes=(6, 12), powers=(), seeds=(0, 1), zeta2s=(0.01,), search=search)
        steps = {cell: factor * published()[cell].steps for cell in experiment.cells()}
        results = {cell: {"steps": np.asarray(found)} for cell, found in steps.items()}
        return [line.agrees for line in experiment.judge(results)][:7]

    assert verdicts(1.0, False) == verdicts(0.9, True) == verdicts(1.04, True) == [True] * 7
    assert verdicts(1.1, True) == [False] * 7 and not any(verdicts(1.3, False))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("experiment", [Biased(), Unbiased()], ids=["2a", "2b"])
def test_all_lines_agree(experiment):
    results = {
        cell: {name: np.asarray(x) for name, x in experiment.measure(cell).items()}
        for cell in experiment.cells()
    }
    assert [line for line in experiment.judge(results) if not line.agrees] == []
