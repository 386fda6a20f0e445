"""DSGD-CECA's and BlueFog's tables of trainings: what is published and sent."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from mpidec import _style
from mpidec.reproduce.bluefog.networks import Table3
from mpidec.reproduce.ceca.networks import CECA, CENTRAL, METHODS, ONE_PEER, RING, CecaTable2

pytestmark = pytest.mark.serial


def test_one_partner_is_half_of_a_ring_and_one_of_log2_n():
    assert METHODS[CECA].published == 98.5
    few = CecaTable2(seeds=(5,), epochs=1, workers=6)
    results = {(row, "iid", 5): few.measure((row, "iid", 5)) for row in (RING, ONE_PEER, CECA)}
    ring, one, ceca = (few.sent(results, row)[-1] for row in (RING, ONE_PEER, CECA))
    assert one == ceca == ring / 2 > 0
    table = Table3(seeds=(5,), epochs=1, workers=5)
    results = {cell: table.measure(cell) for cell in table.cells()}
    lines = [line for line in table.judge(results) if "bytes" in line.what]
    assert [line.here for line in lines] == [1 / 3] * 3 and all(line.agrees for line in lines)


def test_all_reduce_is_not_judged_by_itself_nor_an_order_by_words():
    few = CecaTable2(rows=(CENTRAL, RING, ONE_PEER, CECA), seeds=(5, 6))
    curve = {"bytes": np.array([2.0])}
    results = {
        cell: curve | {"accuracy_consensus": np.array([0.9 + 0.02 * (cell[0] == CECA)])}
        for cell in few.cells()
    }
    found = {line.what: line.verdict for line in few.judge(results)}
    assert found[f"{CENTRAL}: accuracy (%)"] == "not judged"
    assert found[f"{RING}: accuracy (%)"] == "agrees"
    assert found[f"{CECA}: accuracy (%)"] == "differs: expected within 1 of all-reduce"
    assert "noise" not in "".join(found.values())


def test_the_legend_of_all_rows_lies_within_the_picture():
    table = CecaTable2(seeds=(5,))
    names = ("epoch", "loss_mean", "accuracy_consensus")
    results = {cell: dict.fromkeys(names, np.arange(3.0)) for cell in table.cells()}
    figure = _style.figure(figsize=(6.4, 3.6), layout="constrained")
    table.draw(results, figure)
    figure.canvas.draw()
    (legend,) = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 8 and box.x0 >= 0 and box.x1 <= figure.bbox.x1
