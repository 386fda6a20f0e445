"""What a choice shows: its table, its line, its figure."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.squares import data

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.driver.stepsize import Choice


@pytest.mark.serial
def test_tune_shows_what_it_tried():
    pytest.importorskip("matplotlib")
    choice = mpidec.tune(P.LeastSquares(*data(4)[:2]), S.EXTRA(0.7), T.ring(4))
    text = str(choice)
    assert (
        "<- chosen" in text
        and "does not converge" in text
        and len(text.splitlines()) == len(choice.tried) + 2
    )
    assert choice.plot().axes[0].get_xlabel() == "step size"
    with pytest.raises(ValueError, match="Consensus has no step size"):
        mpidec.tune(P.LeastSquares(*data(4)[:2]), S.Consensus(), T.ring(4))


@pytest.mark.serial
def test_a_step_size_that_dropped_out_has_no_prediction():
    """A smaller step with fewer steps than the choice stood in the table, and on the line of the figure."""
    pytest.importorskip("matplotlib")
    choice = Choice(
        0.2,
        "steps",
        np.array([0.4, 0.2, 0.1, 0.05]),
        np.array([np.inf, 300, 500, 120]),
        1000,
        1e-6,
        1.0,
        9,
        0.1,
        early=np.array([True, False, False, True]),
    )
    rows = str(choice).splitlines()
    assert (
        "does not converge" in rows[1]
        and "300  <- chosen" in rows[2]
        and rows[4].split(maxsplit=1)[1].startswith("dropped out")
    )
    assert "120" not in str(choice)
    assert (
        str(replace(choice, step_size=2e-11, tried=np.array([8e-11, 4e-11, 2e-11, 1e-11]))).count(
            "<- chosen"
        )
        == 1
    )
    shown = choice.plot()
    assert (
        np.array_equal(shown.axes[0].lines[0].get_xdata(), [0.2, 0.1])
        and not shown.axes[0].get_legend()
        and shown.legends
    )
    assert (
        replace(choice, step_size=0.05).expected == np.inf
        and "no prediction" in replace(choice, step_size=0.05).line()
    )


@pytest.mark.serial
@pytest.mark.parametrize("solver", [S.FedOpt(), S.Adam(S.DGD())], ids=repr)
def test_there_is_no_prediction_where_steps_are_scaled_by_gradients(solver):
    choice = mpidec.tune(P.load_problem("breast_cancer", n=4), solver, "complete", steps=100)
    assert choice.expected == np.inf and not len(choice.predicted)
    assert "no prediction" in choice.line() and "scales its steps by its gradients" in str(choice)
