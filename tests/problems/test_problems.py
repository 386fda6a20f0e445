"""Losses and oracles: derivatives, constants, minimizers, bits, refusals.  One process, no MPI."""

import pickle

import numpy as np
import pytest
import scipy.optimize

from mpidec.problems import (
    Custom,
    Full,
    Huber,
    LeastSquares,
    LogisticRegression,
    MiniBatch,
    Noisy,
    Softmax,
    Streams,
    base,
)

pytestmark = pytest.mark.serial

LOSSES = ("least_squares", "logistic", "softmax", "huber")
VARIANTS = [(loss, l2, masked) for loss in LOSSES for l2 in (0.0, 0.3) for masked in (False, True)]


def make(loss, m=3, p=7, d=4, l2=0.0, masked=False, seed=0, agents=None):
    """Agents `agents` (all by default) of a random problem."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, p, d))
    T = rng.standard_normal((m, p))
    mask = None
    if masked:
        mask = np.arange(p) < rng.integers(2, p, size=m, endpoint=True)[:, None]
        mask[0, -1] = False
    pick = slice(None) if agents is None else agents
    kwargs = {"l2": l2, "mask": None if mask is None else mask[pick]}
    if loss == "least_squares":
        return LeastSquares(A[pick], T[pick], **kwargs)
    if loss == "logistic":
        return LogisticRegression(A[pick], np.where(T > 0, 1, -1)[pick], **kwargs)
    if loss == "softmax":
        return Softmax(A[pick], rng.integers(0, 3, (m, p))[pick], classes=3, **kwargs)
    return Huber(A[pick], 3 * T[pick], delta=0.8, **kwargs)


def points(problem, seed=1):
    return np.random.default_rng(seed).standard_normal((problem.m, problem.d))


def slow_value(loss, problem, i, x):
    """f_i(x), sample by sample, from the formula."""
    total = 0.5 * problem.l2 * x @ x
    for s in range(problem.p):
        if problem.mask is not None and not problem.mask[i, s]:
            continue
        a, y = problem.A[i, s], problem.y[i, s]
        if loss == "least_squares":
            total += 0.5 * (a @ x - y) ** 2
        elif loss == "logistic":
            total += np.log(1 + np.exp(-y * (a @ x)))
        elif loss == "softmax":
            scores = a @ x.reshape(len(a), 3)
            total += np.log(np.exp(scores).sum()) - scores[int(y)]
        else:
            r = abs(a @ x - y)
            total += 0.5 * r * r if r <= 0.8 else 0.8 * (r - 0.4)
    return total


# -- values, gradients, curvature ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss, l2, masked", VARIANTS)
def test_value_is_the_formula(loss, l2, masked):
    problem = make(loss, l2=l2, masked=masked)
    X = points(problem)
    expected = [slow_value(loss, problem, i, X[i]) for i in range(problem.m)]
    np.testing.assert_allclose(problem.value(X), expected, rtol=1e-13)


@pytest.mark.parametrize("loss, l2, masked", VARIANTS)
def test_gradient_is_the_central_difference(loss, l2, masked):
    problem = make(loss, l2=l2, masked=masked)
    X, h = points(problem), 1e-5
    G = problem.grad(X)
    for j in range(problem.d):
        E = np.zeros_like(X)
        E[:, j] = h
        difference = (problem.value(X + E) - problem.value(X - E)) / (2 * h)
        np.testing.assert_allclose(G[:, j], difference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("loss, l2, masked", VARIANTS)
def test_smoothness_and_strong_convexity_bound_the_curvature(loss, l2, masked):
    problem = make(loss, l2=l2, masked=masked)
    X = points(problem)
    for seed in range(20):
        D = np.random.default_rng(seed).standard_normal(X.shape)
        inner = ((problem.grad(X + D) - problem.grad(X)) * D).sum(axis=1) / (D * D).sum(axis=1)
        assert (inner <= problem.smoothness * (1 + 1e-12)).all()
        assert (inner >= problem.strong_convexity * (1 - 1e-12) - 1e-12).all()


@pytest.mark.parametrize("loss", [LeastSquares, LogisticRegression, Huber])
def test_what_has_no_penalty_does_not_add_to_the_convexity(loss):
    """An intercept of small samples: along it there is next to no curvature, whatever l2 is."""
    rng = np.random.default_rng(0)
    A, y = rng.standard_normal((3, 9, 4)), np.sign(rng.standard_normal((3, 9)))
    A[..., -1] = 1e-3
    for weight in (1.0, 0.5):
        for intercept in (True, False):
            problem = loss(A, y, l2=0.7, weight=weight, intercept=intercept)
            X, least = rng.standard_normal((3, 4)), np.full(3, np.inf)
            for D in (*np.eye(4), *rng.standard_normal((20, 4))):
                D = np.tile(D, (3, 1))
                change = problem.grad(X + D) - problem.grad(X)
                inner = (change * D).sum(axis=1) / (D * D).sum(axis=1)
                assert (inner <= problem.smoothness * (1 + 1e-12)).all()
                least = np.minimum(least, inner)
            assert (problem.strong_convexity <= least * (1 + 1e-12) + 1e-12).all()
            assert (problem.strong_convexity >= 0.7).all() == (not intercept)


def test_smoothness_is_exact():
    for p, d in ((7, 4), (3, 6)):
        A = np.random.default_rng(0).standard_normal((2, p, d))
        top = np.array([np.linalg.norm(a, 2) ** 2 for a in A])
        y = np.ones((2, p))
        np.testing.assert_allclose(LeastSquares(A, y, l2=0.1).smoothness, top + 0.1, rtol=1e-13)
        np.testing.assert_allclose(
            LogisticRegression(A, y, l2=0.1).smoothness, top / 4 + 0.1, rtol=1e-13
        )
        np.testing.assert_allclose(Softmax(A, y, 2, l2=0.1).smoothness, top / 2 + 0.1, rtol=1e-13)
        np.testing.assert_allclose(Huber(A, y, l2=0.1).smoothness, top + 0.1, rtol=1e-13)


def test_least_squares_strong_convexity():
    A = np.random.default_rng(0).standard_normal((2, 7, 4))
    least = [np.linalg.eigvalsh(a.T @ a)[0] for a in A]
    np.testing.assert_allclose(
        LeastSquares(A, np.ones((2, 7)), l2=0.5).strong_convexity, np.array(least) + 0.5
    )
    assert (LeastSquares(A[:, :3], np.ones((2, 3)), l2=0.5).strong_convexity == 0.5).all()


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e300])
def test_extreme_scores_do_not_overflow(scale):
    A = np.array([[[scale], [-scale]]])
    with np.errstate(all="raise", under="ignore"):
        for problem in (
            LogisticRegression(A, [[1, 1]]),
            Softmax(A, [[0, 1]], 2),
            Huber(A, [[0, 0]]),
        ):
            X = np.linspace(0.5, 1, problem.d)[None]
            assert np.isfinite(problem.value(X)).all()
            assert np.isfinite(problem.grad(X)).all()


def test_least_squares_has_the_reference_gradient():
    rng = np.random.default_rng(0)
    A, b, X = (
        rng.standard_normal((4, 6, 5)),
        rng.standard_normal((4, 6)),
        rng.standard_normal((4, 5)),
    )
    expected = [a.T @ (a @ x - c) for a, c, x in zip(A, b, X)]
    np.testing.assert_allclose(LeastSquares(A, b).grad(X), expected, rtol=1e-13)


def test_padding_is_nothing_whatever_it_holds():
    A, b, mask = np.ones((1, 3, 2)), np.array([[1.0, 2.0, np.nan]]), [[1, 1, 0]]
    A[0, 2] = np.inf
    padded, exact = LeastSquares(A, b, mask=mask), LeastSquares(A[:, :2], b[:, :2])
    X = np.array([[0.3, -1.0]])
    assert (padded.value(X) == exact.value(X)).all()
    assert (padded.grad(X) == exact.grad(X)).all()
    assert padded.counts.tolist() == [2]


def test_data_are_not_copied_and_points_not_changed():
    A, b = np.ones((2, 3, 4)), np.ones((2, 3))
    problem = LeastSquares(A, b)
    assert np.shares_memory(problem.A, A)
    X = np.ones((2, 4))
    (
        problem.grad(X),
        problem.value(X),
        problem.prox(X, 1.0),
        problem.sample_grad(X, np.zeros((2, 1), int), np.ones(2)),
    )
    assert (X == 1).all()
    assert (A == 1).all()
    assert (b == 1).all()


# -- bits, emptiness, concatenation --------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("p, d", [(1, 1), (2, 3), (7, 4), (36, 30), (130, 17), (3, 40)])
def test_bits_do_not_depend_on_the_other_agents(loss, p, d):
    whole = make(loss, 6, p, d, l2=0.1, masked=p > 1)
    X = points(whole)
    noise = Noisy(MiniBatch(whole, 1), 0.5).start(range(6), 3)
    everything = (whole.value(X), whole.grad(X), whole.smoothness, whole.prox(X, 0.7), noise(X, 11))
    for lo, hi in [(i, i + 1) for i in range(6)] + [(0, 2), (2, 4), (4, 6), (1, 6)]:
        part = make(loss, 6, p, d, l2=0.1, masked=p > 1, agents=slice(lo, hi))
        x = X[lo:hi].copy()
        noise = Noisy(MiniBatch(part, 1), 0.5).start(range(lo, hi), 3)
        for got, all_ in zip(
            (part.value(x), part.grad(x), part.smoothness, part.prox(x, 0.7), noise(x, 11)),
            everything,
        ):
            assert np.array_equal(got, all_[lo:hi])


@pytest.mark.parametrize("loss, l2, masked", VARIANTS)
def test_no_agents(loss, l2, masked):
    problem = make(loss, l2=l2, masked=masked, agents=slice(0, 0))
    X = np.zeros((0, problem.d))
    assert problem.m == 0
    assert problem.d == make(loss).d
    assert (
        problem.value(X).shape == problem.smoothness.shape == problem.strong_convexity.shape == (0,)
    )
    assert problem.grad(X).shape == problem.prox(X, 1.0).shape == (0, problem.d)
    for oracle in (Full(problem), MiniBatch(problem, 3), Noisy(problem, 1.0)):
        assert oracle.start(range(0), 0)(X, 5).shape == (0, problem.d)
    with pytest.raises(ValueError, match="no local agents"):
        problem.solution()


@pytest.mark.parametrize("loss, l2, masked", VARIANTS)
def test_concatenated_and_pickled_parts_are_the_whole(loss, l2, masked):
    whole = make(loss, 5, l2=l2, masked=masked)
    parts = [
        make(loss, 5, l2=l2, masked=masked, agents=slice(lo, hi))
        for lo, hi in ((0, 2), (2, 2), (2, 5))
    ]
    joined = type(whole).concatenate(pickle.loads(pickle.dumps(parts)))
    X = points(whole)
    assert np.array_equal(joined.value(X), whole.value(X))
    assert np.array_equal(joined.grad(X), whole.grad(X))
    assert np.array_equal(joined.counts, whole.counts)


def test_concatenate_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="at least one"):
        LeastSquares.concatenate([])
    with pytest.raises(ValueError, match=r"part 1 .*l2.*0.5.*expected.*as in part 0"):
        LeastSquares.concatenate([make("least_squares"), make("least_squares", l2=0.5)])
    with pytest.raises(
        ValueError, match=r"part 1 has samples and features \(5, 4\).*expected \(7, 4\)"
    ):
        Huber.concatenate([make("huber"), make("huber", p=5)])


# -- minimizers ----------------------------------------------------------------------------------------------------


def relative_gradient(problem, x):
    G = problem.grad(np.tile(x, (problem.m, 1)))
    return np.linalg.norm(G.sum(axis=0)) / np.linalg.norm(G, axis=1).sum()


@pytest.mark.parametrize("loss, l2, masked", VARIANTS)
@pytest.mark.parametrize("dense", [True, False])
def test_solution_has_no_gradient(loss, l2, masked, dense, monkeypatch):
    monkeypatch.setattr(base, "DENSE", 2000 if dense else 0)
    problem = make(loss, m=6, p=12, l2=l2, masked=masked)
    assert relative_gradient(problem, problem.solution()) <= 1e-13


def test_solutions_are_those_of_sklearn_and_scipy():
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression as SkLogistic, Ridge

    l2, n = 0.2, 6
    problem = make("least_squares", n, 12, l2=l2)
    A, y = problem.A.reshape(-1, 4), problem.b.ravel()
    np.testing.assert_allclose(
        problem.solution(), Ridge(alpha=n * l2, fit_intercept=False).fit(A, y).coef_, rtol=1e-10
    )
    np.testing.assert_allclose(
        make("least_squares", n, 12).solution(), np.linalg.lstsq(A, y)[0], rtol=1e-10
    )

    exact = {"C": 1 / (n * l2), "fit_intercept": False, "tol": 1e-12, "max_iter": 10_000}
    problem = make("logistic", n, 12, l2=l2)
    fit = SkLogistic(solver="newton-cholesky", **exact).fit(
        problem.A.reshape(-1, 4), problem.y.ravel()
    )
    np.testing.assert_allclose(problem.solution(), fit.coef_[0], rtol=1e-8)

    problem = make("softmax", n, 12, l2=l2)
    fit = SkLogistic(solver="newton-cg", **exact).fit(problem.A.reshape(-1, 4), problem.y.ravel())
    np.testing.assert_allclose(problem.solution().reshape(4, 3), fit.coef_.T, rtol=1e-6, atol=1e-8)

    problem = make("huber", n, 12, l2=l2)
    fit = scipy.optimize.least_squares(  # its huber loss is 2 h(r) at delta = 0.8; the ridge as residuals
        lambda x: problem.A.reshape(-1, 4) @ x - problem.b.ravel(),
        np.zeros(4),
        loss="huber",
        f_scale=0.8,
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-12,
    )
    np.testing.assert_allclose(make("huber", n, 12).solution(), fit.x, rtol=1e-6)


def test_no_finite_minimizer_is_said():
    with pytest.raises(ValueError, match=r"separable.*l2 > 0"):
        LogisticRegression([[[1.0], [-1.0]]], [[1, -1]]).solution()
    with pytest.raises(ValueError, match=r"separable.*l2 > 0"):
        Softmax([[[1.0], [-1.0]]], [[1, 0]], 2).solution()


def test_rank_deficient_least_squares_has_the_solution_of_least_norm():
    problem = LeastSquares([[[1.0, 1.0]]], [[2.0]])
    np.testing.assert_allclose(problem.solution(), [1.0, 1.0])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("case", ["twice", "sum", "zero", "one-hot"])
def test_solution_of_dependent_columns_has_the_least_norm(loss, dense, case, monkeypatch):
    monkeypatch.setattr(base, "DENSE", 2000 if dense else 0)
    problem = make(loss, 8, 16, 5)
    A = np.concatenate(
        {
            "twice": [problem.A, 3 * problem.A[..., ::-1]],
            "sum": [problem.A, problem.A[..., :1] + problem.A[..., 1:2]],
            "zero": [problem.A, 0 * problem.A[..., :2]],
            "one-hot": [np.ones((8, 16, 1)), np.eye(3)[np.arange(8 * 16).reshape(8, 16) % 3]],
        }[case],
        axis=2,
    )
    wide = type(problem)(A, problem.y, **problem.options)
    x = wide.solution()
    assert relative_gradient(wide, x) <= 1e-11
    B, Z = A.reshape(-1, A.shape[2]), x.reshape(A.shape[2], -1)
    np.testing.assert_allclose(
        np.linalg.pinv(B, rcond=1e-10) @ (B @ Z), Z, atol=1e-9 * np.abs(Z).max()
    )
    if loss == "softmax":
        assert np.abs(Z.sum(axis=1)).max() <= 1e-9 * np.abs(Z).max()


@pytest.mark.parametrize("loss, l2, masked", VARIANTS)
@pytest.mark.parametrize("p, d", [(7, 4), (3, 6)])
def test_prox_solves_its_equation(loss, l2, masked, p, d):
    problem = make(loss, 3, p, d, l2=l2, masked=masked)
    V = points(problem)
    for t in (1e-4, 0.7, np.array([0.1, 1.0, 1e4])):
        X = problem.prox(V, t)
        residual = problem.grad(X) + (X - V) / np.reshape(t, (-1, 1))
        assert np.abs(residual).max() <= 1e-11 * (np.abs(V) / np.reshape(t, (-1, 1))).max()
    with pytest.raises(ValueError, match=r"t = "):
        problem.prox(V, 0.0)


# -- oracles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("masked", [False, True])
def test_every_batch_weighs_the_same_and_their_mean_is_the_gradient(loss, masked):
    from itertools import combinations

    problem = make(loss, 1, 6, l2=0.3, masked=masked)
    X, count = points(problem), int(problem.counts[0])
    weight = problem.counts / 2
    batches = [np.array([pair]) for pair in combinations(range(count), 2)]
    mean = np.mean([problem.sample_grad(X, rows, weight) for rows in batches], axis=0)
    np.testing.assert_allclose(mean, problem.grad(X), rtol=1e-12)
    gradient = MiniBatch(problem, 2).start(range(1), 0)
    table = np.array([problem.sample_grad(X, rows, weight)[0] for rows in batches])
    drawn = np.array([gradient(X, k)[0] for k in range(3000)])
    nearest = np.abs(drawn[:, None] - table).max(axis=2).argmin(axis=1)
    np.testing.assert_allclose(drawn, table[nearest], rtol=1e-11, atol=1e-11)
    share = np.bincount(nearest, minlength=len(batches)) / 3000
    assert np.abs(share - 1 / len(batches)).max() <= 5 * np.sqrt(1 / len(batches) / 3000)


@pytest.mark.parametrize("p", [5, 1500])
def test_full_batch_is_the_gradient_and_batches_do_not_repeat_samples(p):
    problem = make("logistic", 2, p, l2=0.1)
    X = points(problem)
    np.testing.assert_allclose(
        MiniBatch(problem, p).start(range(2), 0)(X, 3), problem.grad(X), rtol=1e-11
    )


def test_mask_in_the_middle_is_never_drawn():
    A = np.array([[[1.0], [100.0], [1.0], [1.0]]])
    problem = LeastSquares(A, [[-1.0, 0, -1, -1]], mask=[[1, 0, 1, 1]])
    gradient = MiniBatch(problem, 2).start([0], 0)
    assert {float(gradient(np.zeros((1, 1)), k)[0, 0]) for k in range(50)} == {3.0}


def test_noise_has_the_stated_mean_and_variance():
    problem, sigma, steps = make("least_squares", 2, d=5), 0.7, 4000
    X, gradient = points(problem), Noisy(problem, sigma).start(range(2), 1)
    noise = np.array([gradient(X, k) for k in range(steps)]) - problem.grad(X)
    assert np.abs(noise.mean(axis=0)).max() <= 5 * sigma / np.sqrt(5 * steps)
    np.testing.assert_allclose((noise**2).sum(axis=2).mean(axis=0), sigma**2, rtol=0.05)
    flat = noise[:, 0] / noise[:, 0].std()
    assert np.abs(flat[1:].T @ flat[:-1] / steps).max() <= 5 / np.sqrt(
        steps
    )  # steps, and shifts, uncorrelated
    assert np.abs(noise[:, 0].T @ noise[:, 1] / steps).max() <= 5 / np.sqrt(steps)  # agents too


@pytest.mark.parametrize(
    "make_oracle",
    [lambda p: MiniBatch(p, 3), lambda p: Noisy(p, 1.0), lambda p: Noisy(MiniBatch(p, 3), 1)],
)
def test_draws_belong_to_seed_agent_and_step(make_oracle):
    problem = make("least_squares")
    X = points(problem)
    run = make_oracle(problem).start(range(5, 8), 1)
    forward = [run(X, k) for k in range(6)]
    resumed = make_oracle(problem).start(range(5, 8), 1)
    for k in (5, 0, 3):
        assert np.array_equal(resumed(X, k), forward[k])
    assert len({G.tobytes() for G in forward}) == 6
    assert not np.array_equal(make_oracle(problem).start(range(5, 8), 2)(X, 0), forward[0])
    assert not np.array_equal(make_oracle(problem).start(range(6, 9), 1)(X, 0), forward[0])


def test_streams_are_philox_with_the_step_in_the_second_word():
    for agent in (3, 2**40):
        draw = Streams(7, "noise").at(agent, 11)
        other = np.random.Generator(np.random.Philox(key=[7, agent], counter=[0, 11, 2, 0]))
        assert np.array_equal(draw.standard_normal(9), other.standard_normal(9))


def generator(agent, k, purpose):
    """The random numbers of seed 7, drawn without `Streams`."""
    return np.random.Generator(np.random.Philox(key=[7, agent], counter=[0, k, purpose, 0]))


def test_samples_and_noise_have_a_stream_each():
    problem, B, sigma, k = make("least_squares", m=1, p=7, d=4), 3, 0.5, 11
    X, agents = points(problem), [2]
    batch = generator(2, k, 1).permutation(7)[:B]
    noise = generator(2, k, 2).standard_normal((1, 4)) * sigma / 2
    picked = LeastSquares(problem.A[:, batch], problem.y[:, batch])
    samples = MiniBatch(problem, B)
    np.testing.assert_allclose(samples.start(agents, 7)(X, k), picked.grad(X) * 7 / B, rtol=1e-12)
    np.testing.assert_allclose(
        Noisy(problem, sigma).start(agents, 7)(X, k), problem.grad(X) + noise, rtol=1e-12
    )
    np.testing.assert_allclose(
        Noisy(samples, sigma).start(agents, 7)(X, k), picked.grad(X) * 7 / B + noise, rtol=1e-12
    )


def test_oracles_refuse():
    problem = make("least_squares", masked=True)
    with pytest.raises(
        ValueError, match=r"batch_size = 7, but local agent \d has \d samples, expected at most \d"
    ):
        MiniBatch(problem, 7)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=r"batch_size is .*expected an integer >= 1"):
            MiniBatch(problem, wrong)
    for wrong in (1.5, True, "3", None):
        with pytest.raises(TypeError, match=r"batch_size is .*expected an integer >= 1"):
            MiniBatch(problem, wrong)
    for wrong in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"sigma is .*expected a finite number >= 0"):
            Noisy(problem, wrong)
    with pytest.raises(ValueError, match="2 agents, expected 3"):
        Full(problem).start(range(2), 0)
    with pytest.raises(ValueError, match=r"seed is -1"):
        Noisy(problem, 1).start(range(3), -1)
    with pytest.raises(TypeError, match=r"Custom.*Noisy works"):
        MiniBatch(Custom(len, len, 1, 1), 2)


# -- custom and refusals -------------------------------------------------------------------------------------------


def test_custom_hands_through_and_checks_shapes():
    C = np.arange(6.0).reshape(3, 2)
    problem = Custom(
        lambda X: ((X - C) ** 2).sum(axis=1) / 2,
        lambda X: X - C,
        3,
        2,
        x_star=C.mean(axis=0),
        smoothness=1,
    )
    X = np.zeros((3, 2))
    assert np.array_equal(problem.grad(X), -C)
    assert problem.smoothness.tolist() == [1, 1, 1]
    assert not hasattr(problem, "prox")
    with pytest.raises(ValueError, match=r"grad\(X\) returns float64 of shape \(3,\), .* \(3, 2\)"):
        Custom(lambda X: X, lambda X: X[:, 0], 3, 2).grad(X)
    with pytest.raises(
        ValueError, match=r"value\(X\) returns float64 of shape \(3, 2\), .* \(3,\)"
    ):
        Custom(lambda X: X, lambda X: X[:, 0], 3, 2).value(X)
    with pytest.raises(ValueError, match=r"smoothness of a Custom problem is unknown.*step_size"):
        _ = Custom(len, len, 3, 2).smoothness


A3, Y3 = np.ones((2, 3, 4)), np.ones((2, 3))
BAD = np.array(A3)
BAD[1, 2, 3] = np.nan


@pytest.mark.parametrize(
    "error, call, message",
    [
        (
            ValueError,
            lambda: LeastSquares(A3[0], Y3[0]),
            r"A has shape \(3, 4\), expected \(m, p, d\).*problems.stack",
        ),
        (
            ValueError,
            lambda: LeastSquares(A3[:, :0], Y3[:, :0]),
            "at least one sample.*no more agents than there are samples",
        ),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3[:, :2]),
            r"b has shape \(2, 2\), expected \(2, 3\)",
        ),
        (
            ValueError,
            lambda: LogisticRegression(A3, Y3[0]),
            r"y has shape \(3,\), expected \(2, 3\)",
        ),
        (ValueError, lambda: LeastSquares([[[1.0], [2.0]], [[1.0]]], Y3), "A is ragged.*mask"),
        (
            TypeError,
            lambda: Softmax(A3 * 1j, Y3),
            "A has dtype complex128, expected real numbers: LeastSquares takes complex ones",
        ),
        (
            TypeError,
            lambda: LeastSquares(A3.astype(str), Y3),
            "A has dtype <U.*expected real numbers",
        ),
        (ValueError, lambda: LeastSquares(BAD, Y3), "A is nan at local agent 1, row 2, column 3"),
        (ValueError, lambda: Huber(A3, BAD[:, :, 3]), "b is nan at local agent 1, row 2"),
        (ValueError, lambda: Huber(A3, Y3 / 0.0), "b is inf at local agent 0, row 0"),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3, l2=-1),
            "l2 is -1, expected a finite number >= 0",
        ),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3, l2=np.nan),
            "l2 is nan, expected a finite number >= 0",
        ),
        (
            TypeError,
            lambda: LeastSquares(A3, Y3, l2="0.1"),
            "l2 is '0.1', expected a finite number",
        ),
        (
            TypeError,
            lambda: LeastSquares(A3, Y3, l2=True),
            "l2 is True, expected a finite number",
        ),
        (ValueError, lambda: Huber(A3, Y3, delta=0), "delta is 0, expected a finite number > 0"),
        (
            ValueError,
            lambda: Huber(A3, Y3, delta=-2.0),
            "delta is -2.0, expected a finite number > 0",
        ),
        (
            ValueError,
            lambda: LogisticRegression(A3, Y3 * 0),
            r"label 0 at local agent 0, row 0, expected -1 and \+1.*problems.signs",
        ),
        (
            ValueError,
            lambda: LogisticRegression(A3, [[1, -1, 1], [1, 2, -1]]),
            "label 2 at local agent 1, row 1.*labels are -1, 1, 2",
        ),
        (
            ValueError,
            lambda: Softmax(A3, Y3 * 0.5),
            "label 0.5 at local agent 0, row 0, expected integers 0 .. .*class_numbers",
        ),
        (
            ValueError,
            lambda: Softmax(A3, -Y3, 3),
            "label -1 at local agent 0, row 0, expected integers 0 .. 2",
        ),
        (
            ValueError,
            lambda: Softmax(A3, 3 * Y3, 3),
            "label 3 at local agent 0, row 0, expected integers 0 .. 2",
        ),
        (ValueError, lambda: Softmax(A3, Y3, 1), "classes is 1, expected an integer >= 2"),
        (ValueError, lambda: Softmax(A3[:0], Y3[:0]), "classes is unknown.*classes=C"),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3, mask=Y3[:, :2]),
            r"mask has shape \(2, 2\), expected \(2, 3\)",
        ),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3, mask=2 * Y3),
            "mask holds values other than 0 and 1",
        ),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3, mask=[[1, 1, 1], [0, 0, 0]]),
            "local agent 1 has no samples",
        ),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3, x_star=[1, 2]),
            r"x_star has shape \(2,\), expected \(4,\)",
        ),
        (
            ValueError,
            lambda: LeastSquares(A3, Y3).grad(np.ones((4, 2))),
            r"X has shape \(4, 2\), expected \(2, 4\)",
        ),
        (
            ValueError,
            lambda: Softmax(A3, Y3, 3).value(np.ones((2, 4))),
            r"X has shape \(2, 4\), expected \(2, 12\)",
        ),
        (TypeError, lambda: Custom(1, len, 1, 1), r"value is 1, expected a function of \(X\)"),
        (ValueError, lambda: Custom(len, len, -1, 1), "m is -1, expected an integer >= 0"),
        (
            ValueError,
            lambda: Custom(len, len, 1, 1, smoothness=0),
            "smoothness = 0, expected a number > 0",
        ),
    ],
)
def test_refusals_name_what_where_and_remedy(error, call, message):
    with np.errstate(all="ignore"), pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_views_of_one_agent_follow_samples_that_are_replaced():
    draw = np.random.default_rng(0)
    A, b, X = draw.standard_normal((3, 5, 2)), draw.standard_normal((3, 5)), np.ones((3, 2))
    problem = LeastSquares(A, b)
    problem.grad(X[1:2], agents=[1])
    problem.A = 2 * A
    np.testing.assert_array_equal(problem.grad(X[1:2], agents=[1]), problem.grad(X)[1:2])
    problem.A *= 3
    np.testing.assert_array_equal(problem.grad(X[1:2], agents=[1]), problem.grad(X)[1:2])
