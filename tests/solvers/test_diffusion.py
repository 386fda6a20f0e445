"""DGD and diffusion: what they refuse, and what they minimize."""

import re

import numpy as np
import pytest

import mpidec
from mpidec import solvers as S, topology as T


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: S.DGD(0.1, order="act"), "order is 'act', expected one of awc, atc, cta"),
        (lambda: S.Diffusion(0.1, order="awc"), "expected one of atc, cta"),
    ],
)
def test_a_wrong_word(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.serial
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
@pytest.mark.parametrize("rule", [T.hastings, T.relative_variance])
def test_on_a_row_stochastic_w_small_steps_lead_to_the_minimizer_of_a_weighted_sum(rule, order):
    n, rng = 5, np.random.default_rng(4)
    h, v = rng.uniform(0.5, 2, n), rng.uniform(0.5, 3, n)
    c = v + 0.3 * rng.standard_normal(n)
    graph = T.ring(n, weights=rule(v))
    # detailed balance: p_i W_ij = p_j W_ji
    p = 1 / v * (1 if rule is T.hastings else (graph.W.toarray() > 0) @ (1 / v))
    rest = (p * h * c).sum() / (p * h).sum()
    away = []
    for mu in (0.02, 0.01):
        with mpidec.Network(n) as net:
            mine = slice(net.lo, net.hi)
            A, b = np.sqrt(h)[mine, None, None], (np.sqrt(h) * c)[mine, None]
            problem, solver = mpidec.problems.LeastSquares(A, b), S.DGD(mu, order=order)
            weights = f"from {min(p) / sum(p):.3g} to {max(p) / sum(p):.3g} (1/n is 0.2)"
            with pytest.warns(RuntimeWarning, match=re.escape(weights)):
                X = mpidec.solve(problem, solver, graph, steps=3000, net=net).X
        away.append(abs(X - rest).max())
    assert away[0] / away[1] == pytest.approx(2, abs=0.2)
    assert away[1] < abs(rest - (h * c).sum() / h.sum()) / 4


def test_on_a_row_stochastic_w_the_bias_stays_and_a_column_stochastic_one_is_refused():
    assert S.DGD(0.1).bias_on(T.star(4, weights="uniform")) is S.base.Bias.OTHER
    with pytest.raises(ValueError, match=r"DGD needs a row or doubly .*column.*metropolis"):
        S.DGD(0.1).check(T.star(4, weights="push"))
