"""BlueFog's figures and tables: they agree with other seeds and sizes, and faults are found."""

from __future__ import annotations

import numpy as np
import pytest

from mpidec import topology
from mpidec.reproduce.bluefog import EXPERIMENTS, cost, imagenet, listings
from mpidec.solvers import DGD
from tests.helpers.verdicts import failures, lines_of

pytestmark = pytest.mark.serial

SMALL: dict[str, dict[str, object]] = {
    "bluefog-fig5-6": {"n": 15, "encircle": 240, "seeds": (6,)},
    "bluefog-listings": {"n": 9, "d": 2, "seeds": (4,), "steps": 1600},
    "bluefog-table1-fig11": {"sizes": (2, 3, 5, 12, 33)},
    "bluefog-table2-fig12-13": {"seeds": (5,), "steps": 60},
}


@pytest.mark.parametrize("name", SMALL)
def test_other_settings_agree(name):
    assert not failures(name, **SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [experiment.about.name for experiment in EXPERIMENTS])
def test_default_settings_agree(name):
    assert not failures(name)


def test_faults_are_found(monkeypatch):
    monkeypatch.setitem(cost.GRAPHS, "ring", topology.exponential)
    assert len(failures("bluefog-table1-fig11", **SMALL["bluefog-table1-fig11"])) == 1
    monkeypatch.setitem(listings.METHODS, "exact diffusion", DGD())
    found = failures("bluefog-listings", **SMALL["bluefog-listings"])
    assert len(found) == 2 and all("exact diffusion" in line for line in found)


def test_what_is_published_and_not_run_here_is_shown():
    lines = {line.what: line for line in lines_of("bluefog-table2-fig12-13", seeds=(0,), steps=2)}
    assert lines["H-AWC: accuracy (%)"].published == 75.9
    line = lines["ATC: seconds of the training"]
    assert line.published == 10437.62 and line.verdict.startswith("not judged: not run here")


@pytest.mark.parametrize("n", [4, 6, 7, 16])
def test_graphs_average(n):
    flat = imagenet.machines(n)
    W = flat.at(0).W.toarray()
    assert np.allclose(W.sum(axis=0), 1) and np.allclose(W.sum(axis=1), 1)
    for k in range(listings.one_peer_grid(n).period):
        W = listings.one_peer_grid(n).at(k).W.toarray()
        assert np.allclose(W.sum(axis=0), 1) and ((W > 0).sum(axis=0) == 2).all()
