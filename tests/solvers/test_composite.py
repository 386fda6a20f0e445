"""Solvers for functions with a term: against the papers' formulas and the minimizers of whole problems."""

import numpy as np
import pytest
from helpers.solvers import label

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N, D = 7, 5


def problem(net, term, loss=P.LeastSquares, n=N):
    """Agents that disagree, with a term; row i is the same on any number of ranks."""
    rng = np.random.default_rng(n)
    A, b = rng.standard_normal((n, 6, D)), rng.standard_normal((n, 6))
    b = np.sign(b) if loss is P.LogisticRegression else b + A.sum(axis=2)
    mine = slice(0, n) if isinstance(net, range) else slice(net.lo, net.hi)
    options = {"l2": 0.1} if loss is P.LogisticRegression else {}
    return loss(A[mine], b[mine], term=term, **options)


TERMS = {
    "l1": (P.LogisticRegression, P.l1(0.4)),
    "elastic net": (P.LeastSquares, P.elastic_net(8.0, 0.5)),
    "box": (P.LeastSquares, P.box(-0.2, 0.9)),
    "simplex": (P.LeastSquares, P.simplex(2.0)),
}
COMPOSITE = [
    (S.NIDS(), T.grid),
    (S.PGEXTRA(), T.ring),
    (S.ProximalGradientTracking(), T.one_peer_exponential),
]


@pytest.mark.serial
@pytest.mark.parametrize("solver, graph", COMPOSITE, ids=label)
@pytest.mark.parametrize("name", TERMS)
def test_they_reach_the_minimizer_with_the_term(name, solver, graph):
    loss, term = TERMS[name]
    with mpidec.Network(N) as net:
        functions = problem(net, term, loss)
        x = functions.solution()
        functions.x_star = x
        result = mpidec.solve(
            functions, solver, graph(N), steps=4000, every=20, stop={"error": 1e-12}, net=net
        )
        assert term.face(x).basis.shape[1] < D
        np.testing.assert_allclose(result.X, np.tile(x, (N, 1)), atol=1e-10)


@pytest.mark.serial
@pytest.mark.parametrize("steps", [60, 100])
def test_short_runs_begin_with_a_step_size_that_converges(steps):
    """The search has gradients for few dimensions: the steepest ones of single agents must be among them."""
    rng = np.random.default_rng(5)
    A, x = rng.standard_normal((8, 20, 60)), np.zeros(60)
    x[:6] = 3 * rng.standard_normal(6)
    b = A @ x + 0.3 * rng.standard_normal((8, 20))
    functions = P.LeastSquares(A, b, term=P.l1(1.0))
    result = mpidec.solve(functions, S.NIDS(), T.symmetric_exponential(8), steps=steps)
    assert result.choice.note == ""  # no "did not converge"


def recursion(solver, W, grad, prox, X, steps):
    """The papers' recursions in the iterates, with dense matrices and all history."""
    a, lazy = solver.step_size, (np.eye(len(W)) + W) / 2
    Xs, Gs, Z, Y = [X], [grad(X)], X, grad(X)
    for k in range(steps):
        X, G = Xs[-1], Gs[-1]
        match solver:
            case S.NIDS():
                Z = X - a * G if k == 0 else Z - X + lazy @ (2 * X - Xs[-2] - a * (G - Gs[-2]))
                X = prox(Z, a)
            case S.PGEXTRA():  # (3a)-(3c)
                Z = W @ X - a * G if k == 0 else W @ X + Z - lazy @ Xs[-2] - a * (G - Gs[-2])
                X = prox(Z, a)
            case S.ProximalGradientTracking():
                Y = W @ (Y + G - Gs[-2]) if k else Y
                X = W @ prox(X - a * Y, a)
        Xs.append(X)
        Gs.append(grad(X))
    return X


@pytest.mark.parametrize(
    "make, graph", [(type(solver), T.grid) for solver, _ in COMPOSITE], ids=label
)
def test_the_recursions_of_the_papers(make, graph):
    x0, term, graph = (
        np.random.default_rng(3).standard_normal((N, D)),
        P.elastic_net(2.0, 0.5),
        graph(N),
    )
    everyone = problem(range(N), term)
    with mpidec.Network(N) as net:
        X = mpidec.solve(problem(net, term), make(0.02), graph, steps=25, x0=x0, net=net).X
        expected = recursion(make(0.02), graph.W.toarray(), everyone.grad, term.prox, x0, 25)
        np.testing.assert_allclose(X, expected[net.lo : net.hi], rtol=1e-12, atol=1e-12)


def test_terms_are_refused_by_solvers_that_would_ignore_them():
    class Ignoring(S.NIDS):
        needs = S.Needs(functions=("grad",))

    with mpidec.Network(N) as net, pytest.raises(ValueError, match="would ignore"):
        mpidec.solve(problem(net, P.l1(1.0)), Ignoring(0.1), T.ring(N), steps=1, net=net)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("method", ["grad", "prox"])
def test_an_exception_of_one_rank_is_raised_on_all(method):
    class Failing(P.Separable):
        def prox(self, V, t):
            raise ArithmeticError("on rank 1")

    with mpidec.Network(N) as net:
        functions = problem(net, P.l1(1.0) if method == "grad" or net.rank != 1 else Failing(1.0))
        if method == "grad" and net.rank == 1:

            def grad(X):
                raise ArithmeticError("on rank 1")

            functions.grad = grad
        with pytest.raises(ArithmeticError, match="on rank 1"):
            mpidec.solve(functions, S.NIDS(0.1), T.ring(N), steps=200, every=50, net=net)
