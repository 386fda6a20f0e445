"""Experiments differ with a broken step, and with broken weights."""

from __future__ import annotations

import numpy as np
import pytest

from mpidec import reproduce
from mpidec.comm.mixing import Network
from mpidec.driver.answers import Answers
from mpidec.topology import from_weights
from tests.helpers.verdicts import failures

pytestmark = pytest.mark.serial
BLIND = (
    "extra-exact",
    "push-pull-linear",
    "kgt-drift",
    "scaffold-quadratics",
    "lead-bits",
    "proxskip-communications",
)
CHEAP = {name: reproduce.EXPERIMENTS[name].about.quick for name in BLIND}


def judged_apart(name):
    return [text for text in failures(name, **CHEAP[name]) if "equations with dense" in text]


@pytest.mark.parametrize("name", BLIND)
def test_larger_gradients_differ_from_the_equations(name, monkeypatch):
    assert not judged_apart(name)
    right = Answers.grad
    monkeypatch.setattr(Answers, "grad", lambda self, X: 1.05 * right(self, X))
    assert judged_apart(name)


@pytest.mark.parametrize("name", [name for name in BLIND if name != "push-pull-linear"])
def test_other_weights_differ_from_the_equations(name, monkeypatch):
    right = Network.mixer

    def lazier(self, graph):
        W = 0.9 * graph.W.toarray() + 0.1 * np.eye(graph.n)
        return right(self, from_weights(W, signed=bool(W.min() < 0)))

    monkeypatch.setattr(Network, "mixer", lazier)
    assert judged_apart(name)
