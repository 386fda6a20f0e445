"""FROST: exactness on a random digraph, what is sent, resumption, and matrices that it refuses."""

import numpy as np
import pytest
from helpers.solvers import digraph

import mpidec
from mpidec import solvers as S, topology as T


@pytest.mark.parametrize("n", [5])
def test_frost_minimizes_with_row_sums_alone_and_resumes(n, shared_tmp):
    rng = np.random.default_rng(n)
    A, b = rng.standard_normal((n, 6, 3)), rng.standard_normal((n, 6))
    x = np.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]
    topology, path = digraph(n).R, shared_tmp / "frost.h5"
    arcs = topology.W.nnz - n
    with mpidec.Network(n) as net:
        problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
        go = {"net": net, "every": 100}
        whole = mpidec.solve(problem, S.FROST(), topology, steps=1500, **go)
        np.testing.assert_allclose(whole.X, np.tile(x, (net.m, 1)), rtol=0, atol=1e-10)
        assert whole.metrics["bytes"][-1] == 1500 * arcs * 8 * (3 + 3 + n)
        solver = S.FROST(whole.step_size)
        whole = mpidec.solve(problem, solver, topology, steps=150, **go)
        for steps in (70, 150):
            resumed = mpidec.solve(
                problem,
                solver,
                topology,
                steps=steps,
                record=mpidec.Record(path, resume=steps == 150),
                **go,
            )
        assert np.array_equal(resumed.X, whole.X)


@pytest.mark.serial
def test_refusals():
    with pytest.raises(ValueError, match=r'FROST needs a doubly or row stochastic W.*"uniform"'):
        S.FROST().check(T.star(4, weights="push"))
    no_loop = T.from_weights([[0, 0.5, 0.5], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    for graph in (no_loop, T.cycle([T.ring(3), no_loop])):
        with pytest.raises(ValueError, match=r'without a weight for itself; use weights="uniform"'):
            S.FROST(0.1).check(graph)
    with pytest.raises(ValueError, match="FROST numbers the agents"):
        S.FROST(0.1).init(np.ones((3, 1)))
