"""Momentum and Adam in the place of gradients, in any solver."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.updates import X0, A, B, gradient, solved, updates

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.testing.contract import properties

N, D, STEPS = 6, 5, 20


@pytest.mark.serial
@pytest.mark.parametrize(
    "solver",
    [S.Momentum(S.DGD(0.05)), S.Momentum(S.DGD(0.05), 0.8, nesterov=True), S.Adam(S.DGD(0.05))],
    ids=str,
)
def test_one_agent_takes_the_steps_of_torch(solver):
    torch = pytest.importorskip("torch")
    x = torch.nn.Parameter(torch.from_numpy(X0[0].copy()))
    made = (
        torch.optim.Adam([x], 0.05)
        if isinstance(solver, S.Adam)
        else torch.optim.SGD([x], 0.05, momentum=solver.momentum, nesterov=solver.nesterov)
    )
    for _ in range(STEPS):
        residual = torch.from_numpy(A[0]) @ x - torch.from_numpy(B[0])
        made.zero_grad()
        (residual @ residual / 2).backward()
        made.step()
    problem = mpidec.problems.LeastSquares(A[:1], B[:1])
    X = mpidec.solve(problem, solver, T.ring(1), steps=STEPS, x0=X0[:1]).X
    np.testing.assert_allclose(X[0], x.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step_size", [0.02, lambda k: 0.1 / (k + 1)], ids=["constant", "varying"])
def test_updates_take_the_place_of_gradients_in_any_solver(step_size):
    W, a = T.ring(N).W.toarray(), step_size if callable(step_size) else lambda k: step_size
    update, X, C = (
        updates(solver := S.Momentum(S.DGD(step_size, order="awc"), nesterov=True)),
        X0,
        0,
    )
    for k in range(STEPS):
        X = W @ X - a(k) * update(gradient(X))
    with mpidec.Network(N) as net:
        here = slice(net.lo, net.hi)
        np.testing.assert_allclose(solved(net, solver, T.ring(N)), X[here], atol=1e-13)
        if not callable(
            step_size
        ):  # the constant one of D2, whose correction remembers the last update
            update, X = updates(solver), X0
            for _ in range(STEPS):
                U = -step_size * update(gradient(X))
                new = W @ (X + U + C)
                X, C = new, new - X - U
            got = solved(net, replace(solver, solver=S.D2(step_size)), T.ring(N))
            np.testing.assert_allclose(got, X[here], atol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize(
    "solver",
    [
        S.Momentum(S.RelaySGD(), 0.5, nesterov=True),
        S.Momentum(S.GradientTracking(), 0.5, dampening=0.5),
        S.Momentum(S.DGD()),
    ],
    ids=str,
)
def test_momentum_keeps_the_contract(solver):
    mpidec.testing.check_solver(solver)


@pytest.mark.serial
def test_adam_keeps_kinds_and_types_of_arrays():
    checks = properties(S.Adam(S.RelaySGD()))
    for name in (
        "dtype",
        "rows",
        "columns",
        "kinds",
        "few_agents",
    ):  # square roots of torch are others
        checks[name]()


def test_refusals():
    with pytest.raises(TypeError, match=r"expected a solver: Momentum\(solvers.DGD\(0.1\)\)"):
        S.Momentum(0.1)
    with pytest.raises(ValueError, match="Consensus does not take gradients alone"):
        S.Adam(S.Consensus())
    with pytest.raises(ValueError, match="momentum"):
        S.Momentum(S.DGD(0.1), 1.0)
    with pytest.raises(ValueError, match="needs a tree"):
        solved(mpidec.Network(N), S.Momentum(S.RelaySGD(0.1)), T.ring(N))
    with pytest.raises(ValueError, match="needs a tree"):
        S.RelaySGD(0.1).check(T.striped([T.chain(N), T.ring(N)]))
