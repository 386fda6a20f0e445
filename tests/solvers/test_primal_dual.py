"""EXTRA, Exact Diffusion and D2: graphs on which they are unstable."""

from contextlib import nullcontext

import pytest
from helpers.solvers import least_squares, run

import mpidec
from mpidec import solvers as S, topology as T

D = 4


def test_a_spectral_condition_is_a_warning_on_rank_0():
    words = "D2 is unstable on the hypercube topology.*-0.5.*ExactDiffusion"
    with (
        mpidec.Network(8) as net,
        pytest.warns(RuntimeWarning, match=words) if net.rank == 0 else nullcontext(),
    ):
        run(net, least_squares(8), S.D2(0.1), T.hypercube(8), 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "solver, topology, words",
    [
        (
            S.EXTRA(),
            T.exponential,
            "EXTRA is unstable on the exponential topology.*undirected graph, such as topology.symmetric",
        ),
        (
            S.ExactDiffusion(),
            T.exponential,
            "ExactDiffusion is unstable on the exponential topology.*undirected graph",
        ),
        (S.D2(), T.hypercube, "D2 is unstable on the hypercube topology.*use ExactDiffusion"),
    ],
    ids=["EXTRA", "ExactDiffusion", "D2"],
)
def test_auto_refuses_a_graph_on_which_no_step_size_converges(solver, topology, words):
    with mpidec.Network(16) as net:
        problem = mpidec.problems.load_problem("synthetic_least_squares", net=net, p=2, d=9)
        with pytest.raises(ValueError, match=f'step_size="auto": no step size converges: {words}'):
            mpidec.solve(problem, solver, topology(16), steps=100, net=net)


@pytest.mark.serial
def test_the_remedies_of_unstable_graphs_are_stable():
    extra = S.EXTRA(0.1)
    assert extra.unstable(T.exponential(16)) and not extra.unstable(T.symmetric_exponential(16))
    assert "lazy" not in extra.unstable(T.exponential(16)) and not S.EXTRA().unstable(T.ring(16))
