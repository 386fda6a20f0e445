"""The figures of other papers: they agree with seeds and sizes other than the default ones, and not
with another method in the place of theirs.
"""

from __future__ import annotations

import pytest

from mpidec.reproduce import dense
from mpidec.reproduce.others import EXPERIMENTS, compression, exact, local_steps
from mpidec.solvers import CHOCO, DGD, LocalDGD, ProxSkip
from tests.helpers.verdicts import failures

pytestmark = pytest.mark.serial

SMALL: dict[str, dict[str, object]] = {
    "extra-exact": {"n": 7, "d": 3, "seeds": (5,), "steps": 900},
    "nids-steps": {"graphs": ("ring", "star"), "sizes": (6,), "condition": 20.0},
    "exact-diffusion-range": {"n": 6, "least": (-0.7, 0.3)},
    "push-pull-linear": {"n": 5, "d": 2, "seeds": (6,), "steps": 1500},
    "choco-gossip": {"n": 9, "d": 96, "steps": 400, "seeds": (7,)},
    "lead-bits": {"n": 7, "d": 40, "steps": 250, "heterogeneity": (4.0,)},
    "kgt-drift": {"n": 5, "d": 2, "local": (1, 3), "heterogeneity": (8.0,), "steps": 900},
    "scaffold-quadratics": {"local": (1, 3), "heterogeneity": (5.0, 20.0), "step": 0.1},
    "base-k-consensus": {"largest": 30, "shown": 23, "peers": (1, 3)},
    "equitopo-rate": {"sizes": (10, 40), "draws": 150, "seeds": tuple(range(20, 30))},
    "proxskip-communications": {"n": 6, "d": 3, "conditions": (5.0, 20.0, 80.0), "seeds": (8,)},
}


@pytest.mark.parametrize("name", SMALL)
def test_other_settings_agree(name):
    assert not failures(name, **SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [experiment.about.name for experiment in EXPERIMENTS])
def test_default_settings_agree(name):
    assert not failures(name)


@pytest.mark.parametrize(
    "name, table, method, other",
    [
        ("extra-exact", exact.UNDIRECTED, "EXTRA", DGD),
        ("lead-bits", compression.QUANTIZED, "LEAD, 5 bits", (CHOCO, 15, dense.lead)),
        ("kgt-drift", local_steps.TRACKING, "K-GT", LocalDGD),
        ("scaffold-quadratics", local_steps.FEDERATED, "SCAFFOLD", LocalDGD),
    ],
)
def test_another_method_does_not_agree(name, table, method, other, monkeypatch):
    monkeypatch.setitem(table, method, other)
    assert any(method in text for text in failures(name, **SMALL[name]))


def test_proxskip_that_always_communicates_does_not_save(monkeypatch):
    monkeypatch.setattr(local_steps, "ProxSkip", lambda step, p, seed: ProxSkip(step, 1.0))
    texts = failures("proxskip-communications", **SMALL["proxskip-communications"])
    assert any(text.startswith("ProxSkip: power of kappa") for text in texts)
