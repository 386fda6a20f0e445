"""Tables 1 and 3, Figure 7 and the lemmas of DSGD-CECA."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.published import lines

from mpidec.reproduce import ceca
from mpidec.reproduce.ceca import claims
from mpidec.reproduce.ceca.least_squares import PUBLISHED, NoisyLeastSquares
from mpidec.reproduce.ceca.table1 import Transients
from mpidec.reproduce.ceca.worked import WorkedExample

pytestmark = pytest.mark.serial


def test_worked_example():
    found = lines(WorkedExample())
    assert len(found) == 8 and all(line.here == 0 for line in found.values())


def test_least_squares_is_the_papers():
    experiment = NoisyLeastSquares(steps=100)
    x = experiment.problem.solution()
    assert x[:3] == pytest.approx([0.244386520135, -0.270618368575, 0.412435048903], abs=1e-11)
    for name in ("CECA-1P", "OD-EquiDyn"):
        error = experiment.measure((name, 7))["error"]
        here = np.array(error)[[10, 50, 100]]
        assert here == pytest.approx(PUBLISHED[name][:3], rel=0.08), name
    other = lines(NoisyLeastSquares(n=6, steps=50)).values()
    assert {line.verdict for line in other if "step 10" in line.what} == {"not judged"}


def test_products_leave_the_family_if_a_weight_is_wrong():
    M = list(claims.products(6, 2, 0, 4))
    assert max(map(claims.outside, M)) < 1e-15 and claims.apart(M[3]) < 1e-15 < claims.apart(M[2])
    for i, j in ((0, 0), (2, 8), (9, 1)):
        wrong = M[1].copy()
        wrong[i, j] += 1e-3
        assert claims.outside(wrong) > 1e-4, (i, j)


def test_lemmas_and_speed_up():
    found = lines(claims.CecaClaims(sizes=(2, 3, 13, 20), agents=(4, 16), seeds=(5,), steps=800))
    assert {line.verdict for line in found.values()} == {"agrees"}


def test_messages_and_transients():
    found = lines(Transients(exact=(6, 7, 8), sizes=(16,), seeds=(3,), columns=32))
    assert {line.verdict for line in found.values()} == {"agrees", "not judged"}
    assert found["CECA-2P, directed: messages, exact n"].here == "1 .. 1; 6, 7, 8"
    assert found["one-peer exponential, directed: messages, exact n"].here == "1 .. 1; 8"


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ceca.EXPERIMENTS)
def test_all_lines_agree_or_differ_for_a_known_reason(experiment):
    assert not [line for line in lines(experiment()).values() if line.failed]
