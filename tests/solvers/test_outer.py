"""Local steps and outer steps: against the papers' formulas, over pairs, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.options import crossed
from helpers.recursions import W1, W2, X0, A, B, grad, local, local_dgd, steps_of

import mpidec
from mpidec import solvers as S, topology as T

N, D = 5, 3


def slowmo(s, W, rounds):
    X, u, a = X0, 0 * X0, s.step_size
    for _ in range(rounds):
        u = s.momentum * u + (X - W @ local(s, X)) / a
        X = X - s.slow_step * a * u
    return X


def diloco(s, W, rounds):
    """As torch.optim.SGD(nesterov=True) on the outer gradient."""
    X, buffer = X0, None
    for _ in range(rounds):
        g = X - W @ local(s, X)
        buffer = g if buffer is None else s.momentum * buffer + g
        X = X - s.outer_step * (g + s.momentum * buffer)
    return X


def gasloc(s, W, rounds):
    """With the Laplacian of the paper."""
    X, Lambda, before = X0, np.eye(N) - W, X0
    for _ in range(rounds):
        g = local(s, X) - X
        z = X + s.outer_step * g
        X, before = z - Lambda @ z + s.momentum * (z - before), z
    return X


def noloco(s, W, rounds):
    """With the movement and the distance from the average of the partners apart."""
    X, delta = X0, 0 * X0
    for _ in range(rounds):
        moved = local(s, X) - X
        delta = s.momentum * delta + s.outer_step * W @ moved
        delta = delta - (s.consensus_step or s.outer_step) * (X - W @ X)
        X = X + delta
    return X


def kgt(s, W, rounds):
    X, c = X0, 0 * X0
    for _ in range(rounds):
        d = (X - local(s, X, c)) / (s.local_steps * s.step_size)
        X = W @ (X - s.local_steps * s.outer_step * s.step_size * d)
        c = c - d + W @ d
    return X


def led(s, W, rounds):
    X, y, beta = X0, 0 * X0, s.dual_step or 1 / s.local_steps
    for _ in range(rounds):
        phi = local(s, X, beta / s.step_size * y)
        X = (phi + W @ phi) / 2
        y = y + phi - X
    return X


FORMULAS = [
    *[
        (formula, make(H))
        for H in (1, 4)
        for formula, make in [
            (noloco, lambda H: S.NoLoCo(0.05, local_steps=H)),
            (led, lambda H: S.LED(0.05, H)),
        ]
    ],
    *[
        (formula, solver)
        for H in (1, 4)
        for formula, made, fixed in [
            (local_dgd, S.LocalDGD, {}),
            (slowmo, S.SlowMo, {"gossip": False}),
            (diloco, S.DiLoCo, {}),
            (gasloc, S.GASLoC, {}),
            (noloco, S.NoLoCo, {}),
            (kgt, S.KGT, {}),
            (led, S.LED, {}),
        ]
        for solver in crossed(made, 0.05, seed=H, local_steps=H, **fixed)
    ],
]


@pytest.mark.parametrize(
    "formula, solver", FORMULAS, ids=lambda case: repr(case) if isinstance(case, S.Solver) else ""
)
def test_the_papers_formulas(formula, solver):
    topology = (
        T.cycle(map(T.from_weights, (W1, W2))) if formula is local_dgd else T.from_weights(W1)
    )
    with mpidec.Network(N) as net:
        s = steps_of(solver, net.mixer(topology), net, 20)
        rounds = 20 // getattr(solver, "local_steps", 1)
        np.testing.assert_allclose(
            s.X, formula(solver, W1, rounds)[net.lo : net.hi], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(
    "solver",
    [
        S.LocalDGD(0.05, 3),
        S.SlowMo(0.05, local_steps=3),
        S.DiLoCo(0.05, local_steps=3),
        S.GASLoC(0.05, local_steps=3),
        S.NoLoCo(0.05, local_steps=3),
    ],
    ids=repr,
)
def test_an_outer_step_takes_the_pseudo_gradient_in_place_of_local_steps(solver):
    one = replace(solver, local_steps=1)
    with mpidec.Network(N) as net:
        W, own = net.mixer(T.from_weights(W1)), slice(net.lo, net.hi)
        s, t = (each.init(X0[own], W.at(0)) for each in (solver, one))
        for k in range(12):
            s = solver.step(s, grad(s.X, A[own], B[own]), W.at(k))
        for k in range(4):
            Y = t.X
            for _ in range(3):
                Y = Y - 0.05 * grad(Y, A[own], B[own])
            t = one.step(t, (t.X - Y) / 0.05, W.at(k))
        np.testing.assert_allclose(t.X, s.X, rtol=1e-12, atol=1e-12)


def test_slowmo_as_published_gossips_in_every_step_and_averages_exactly():
    """SlowMo with gossip as its base optimizer: an exact average of every H-th step."""
    H, a, alpha, beta = 3, 0.8, 0.05, 0.5
    X, U = X0, 0 * X0
    for _ in range(4):
        Y = X
        for _ in range(H):
            Y = W1 @ (Y - alpha * grad(Y, A, B))
        U = beta * U + (X - Y.mean(axis=0)) / alpha
        X = X - a * alpha * U
    with mpidec.Network(N) as net:
        W = net.mixer(T.periodic_average(T.from_weights(W1), H))
        s = steps_of(S.SlowMo(alpha, a, beta, H, gossip=True), W, net, 4 * H)
        np.testing.assert_allclose(s.X, X[net.lo : net.hi], rtol=1e-12, atol=1e-12)


@pytest.mark.serial
def test_the_defaults_of_local_steps_are_local_and_those_of_training():
    optim = pytest.importorskip("mpidec.optim")
    for name, solver in [
        ("local", S.LocalDGD),
        ("slowmo", S.SlowMo),
        ("diloco", S.DiLoCo),
        ("gasloc", S.GASLoC),
        ("noloco", S.NoLoCo),
    ]:
        assert optim.algorithms.algorithm(name).every == solver().local_steps > 1
    assert S.KGT().local_steps > 1 and S.LED().local_steps > 1
    problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.ones((2, 1)))
    with pytest.warns(RuntimeWarning, match="DiLoCo mixes every 50 steps, the run takes 20"):
        mpidec.solve(problem, S.DiLoCo(0.1), T.complete(2), steps=20)


@pytest.mark.parametrize("n", [3, N])
def test_noloco_on_pairs_is_its_formula_for_each_pair(n):
    """Agents without a partner move alone; the mean takes heavy-ball steps along the mean movement."""
    s, pairs = S.NoLoCo(0.05, 0.6, 0.4, 2, 0.9), T.random_matchings(T.complete(n), seed=4)
    X, delta, center, speed = X0[:n], np.zeros((n, D)), X0[:n].mean(0), 0.0
    for t in range(8):
        partner = [int(next(iter(set(pairs.at(t).neighbors(i)) - {i}), i)) for i in range(n)]
        Y = X
        for _ in range(2):
            Y = Y - 0.05 * grad(Y, A[:n], B[:n])
        moved = Y - X
        speed = 0.4 * speed + 0.6 * moved.mean(0)
        new = [
            0.4 * delta[i] + 0.6 * (moved[i] + moved[j]) / 2 - 0.9 * (X[i] - (X[i] + X[j]) / 2)
            for i, j in enumerate(partner)
        ]
        delta, center = np.array(new), center + speed
        X = X + delta
    with mpidec.Network(n) as net:
        own, W = slice(net.lo, net.hi), net.mixer(pairs)
        state = s.init(X0[own], W.at(0))
        for k in range(16):
            state = s.step(state, grad(state.X, A[own], B[own]), W.at(k))
        np.testing.assert_allclose(state.X, X[own], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(net.mean(state.X), center, rtol=1e-12, atol=1e-12)


@pytest.mark.serial
def test_noloco_agrees_over_random_pairs_up_to_the_bound_of_its_consensus_step():
    """The growth of the mean square of the disagreement, without gradients, against moments of a random pair."""
    n, mu = 6, 0.5
    rho, rng = (n / (n - 1)) / 2, np.random.default_rng(0)  # E (X - W X)^2 = rho E X^2
    bound = 2 * (1 - mu**2) / (1 + mu - mu * n / (n - 1))
    for gamma, agrees in [(0.7, True), (0.97 * bound, True), (1.03 * bound, False)]:
        U2 = np.array([gamma**2 * rho, -2 * mu * gamma * rho, mu**2])  # of X^2, X U, U^2
        XU = np.array([-gamma * rho, mu, 0]) + U2
        X2 = np.array([1 - 2 * gamma * rho, 2 * mu, 0]) + U2
        X, s = rng.standard_normal((n, 4000)), S.NoLoCo(1.0, 0.7, mu, 1, gamma)
        assert (max(abs(np.linalg.eigvals([X2, XU, U2]))) < 1) == agrees
        assert agrees == (not s.unstable(T.random_matchings(T.complete(n))))
        X -= X.mean(0)
        moments = np.array([(X**2).mean(), 0, 0])
        U = 0 * X
        for _ in range(5):
            moments = np.array([X2, XU, U2]) @ moments
            order = rng.permuted(np.tile(np.arange(n)[:, None], 4000), axis=0)
            partner = np.empty_like(order)
            np.put_along_axis(partner, order[::2], order[1::2], 0)
            np.put_along_axis(partner, order[1::2], order[::2], 0)

            def W(Y, partner=partner):
                return (Y + np.take_along_axis(Y, partner, 0)) / 2

            state = s.step(s.State(X, X, U, 0), 0 * X, W)
            X, U = state.X, state.U
        assert abs((X**2).mean() / moments[0] - 1) < 0.05


@pytest.mark.serial
def test_gasloc_is_warned_of_random_pairs_over_which_its_momentum_is_unstable():
    n, rng = 16, np.random.default_rng(0)
    pairs, X = T.random_matchings(T.complete(n)), rng.standard_normal((n, 50))
    with mpidec.Network(n) as net:
        W = net.mixer(pairs)
        for mu in (0.5, 0.9):
            solver = S.GASLoC(1.0, 0.7, mu, 1)
            s = solver.init(X - X.mean(0), W.at(0))
            for k in range(100):
                s = solver.step(s, 0 * X, W.at(k))
            grows = np.linalg.norm(s.X) > 10 * np.linalg.norm(X)
            assert bool(solver.unstable(pairs)) == grows == (mu == 0.9)
            assert not solver.unstable(T.failing_links(T.ring(n), 0.1))


@pytest.mark.parametrize(
    "solver",
    [
        S.SlowMo(0.1, local_steps=1),
        S.KGT(0.1, local_steps=2),
    ],
    ids=repr,
)
def test_steps_of_size_zero(solver):
    """A warm-up begins with one: nothing is divided by zero, and the agents still mix."""
    with mpidec.Network(N) as net, np.errstate(all="raise"):
        W = net.mixer(T.from_weights(W1))
        s = steps_of(solver, W, net, 2, lambda k: 0.0)
        before, after = (
            net.sum((rows - X0.mean(axis=0)) ** 2).sum() for rows in (X0[net.lo : net.hi], s.X)
        )
        assert 0 < after < before
        columns = steps_of(solver, W, net, 2, lambda k: np.array([0.0, 0.05, 0.1]))
        np.testing.assert_array_equal(columns.X[:, 0], s.X[:, 0])
        assert np.isfinite(columns.X).all()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: S.SlowMo(0.1, momentum=np.nan), "momentum is nan"),
        (lambda: S.DiLoCo(0.1, momentum=True), "momentum is True"),
        (lambda: S.SlowMo(0.1, slow_step=0), "slow_step is 0, expected a finite number > 0"),
        (lambda: S.LED(0.1, dual_step=np.inf), "dual_step is inf"),
        (lambda: S.LocalDGD(0.1, 0), "local_steps is 0, expected an integer >= 1"),
        (lambda: S.KGT(0.1, local_steps=2.5), "is 2.5"),
        (lambda: S.GASLoC(0.1, local_steps=True), "local_steps is True"),
    ],
)
def test_wrong_arguments(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()
