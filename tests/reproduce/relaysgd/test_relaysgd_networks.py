"""RelaySGD's tables of trainings: what is published, learning rates, and the orders."""

from __future__ import annotations

import numpy as np
import pytest

from mpidec.reproduce import measure, publish
from mpidec.reproduce.relaysgd.networks import (
    GOSSIP,
    METHODS,
    RELAY,
    RELAY_M,
    SGP_M,
    Table2,
    Table5,
)

pytestmark = pytest.mark.serial
ROWS = (RELAY, RELAY_M, SGP_M, GOSSIP)


def test_every_method_has_its_published_accuracies_and_learning_rates():
    assert [len(row.published) for row in METHODS.values()] == [
        len(r.rates) for r in METHODS.values()
    ]
    assert METHODS[GOSSIP].published == (87.4, 79.9, 53.9)
    rates = [Table2().settings(GOSSIP, alpha)["lr"] for alpha in (10.0, 1.0, 0.2, 0.1, 0.003)]
    assert rates == [1.2, 1.2, 0.8, 0.8, 0.4]
    lost = Table5(losses=(0.0, 0.3)).settings(RELAY_M, 0.3)
    assert lost["lose"] == 0.3 and lost["algorithm_options"] == {"missing": "current"}


def test_judged_from_what_is_measured():
    """Gossip that loses 10 points and RelaySGD that loses none; other alphas than the published."""
    few = Table2(rows=ROWS, alphas=(2.0, 0.02), seeds=(4,))

    def curve(label, alpha):
        return np.full((6, 16), 0.8 if label == GOSSIP and alpha < 1 else 0.9)

    results = {cell: {"accuracy": curve(*cell[:2])} for cell in few.cells()}
    lines = {line.what: line for line in few.losses(results)}
    assert [line.verdict for line in lines.values()] == ["agrees"] * 4
    assert lines[f"{GOSSIP}: points lost from alpha = 2 to 0.02"].here == 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_relaysgd_and_sgp_keep_their_accuracy_where_gossip_loses_it(tmp_path):
    pytest.importorskip("torch")
    few, path = Table2(rows=ROWS, alphas=(1.0, 0.01), seeds=(1, 2)), str(tmp_path / "few.h5")
    measure(few, path)
    lines = [line for line in publish(few, path).lines if "points lost" in line.what]
    assert len(lines) == 4 and all(line.agrees for line in lines), lines
