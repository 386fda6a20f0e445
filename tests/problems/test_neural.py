"""Neural networks as problems: gradients, every kind of solver, on any number of ranks."""

from __future__ import annotations

import importlib.util
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpi4py import MPI  # noqa: E402
from torch import nn  # noqa: E402

import mpidec  # noqa: E402
from mpidec import solvers as S, topology as T  # noqa: E402
from mpidec.datasets.images import Images, images  # noqa: E402
from mpidec.nn import models  # noqa: E402
from mpidec.problems import MiniBatch, Neural  # noqa: E402

N = 16


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def samples(m, sizes=(5,), shape=(6,), classes=3):
    rng = np.random.default_rng(3)
    counts = [sizes[i % len(sizes)] for i in range(m)]
    return [rng.standard_normal((p, *shape)) for p in counts], [
        rng.integers(0, classes, p) for p in counts
    ]


def small(m=3, sizes=(5,), **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    return Neural(model, samples(m, sizes), dtype="float64", **options)


def rows(problem, seed=1):
    return problem.initial() + 0.3 * np.random.default_rng(seed).standard_normal(
        (problem.m, problem.d)
    )


@pytest.fixture(scope="module")
def digits():
    """The digits (without scikit-learn, noisy patterns like them), and all agents' samples: sorted by class, 89 or 90 for each."""
    if importlib.util.find_spec("sklearn"):
        data = images("digits")
    else:
        rng = np.random.default_rng(0)
        y, patterns = rng.integers(0, 10, 1797), rng.standard_normal((10, 1, 8, 8))
        x = (patterns[y] + 0.5 * rng.standard_normal((1797, 1, 8, 8))).astype(np.float32)
        data = Images(x[:1437], y[:1437], x[1437:], y[1437:], "patterns")
    parts = mpidec.problems.partition(data.train_y, N, "sorted")
    return data, ([data.train_x[part] for part in parts], [data.train_y[part] for part in parts])


def of_agents(digits, lo, hi, **options):
    data, (x, y) = digits
    model = models.make("mlp", data.shape, 10, hidden=[16])
    return Neural(model, (x[lo:hi], y[lo:hi]), dtype="float64", **options)


# ---------------------------------------------------------------------------------------------------------------------
# Values and gradients


@pytest.mark.serial
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l2": 0.1},
        {"chunk": 2},
        {"loop": True},
        {"sizes": (5, 3, 4)},
        {"sizes": (5, 3, 4), "chunk": 2, "l2": 0.1},
    ],
    ids=str,
)
def test_gradients_are_those_of_the_values(options):
    """By differences in float64, and by torch for one agent after the other."""
    problem, plain = small(**options), small(sizes=options.get("sizes", (5,)))
    X, G, h = rows(problem), problem.grad(rows(problem)), 1e-6
    for j in range(problem.d):
        e = h * np.eye(problem.d)[j]
        np.testing.assert_allclose(
            (problem.value(X + e) - problem.value(X - e)) / (2 * h), G[:, j], rtol=1e-6, atol=1e-8
        )
    x, y = samples(3, options.get("sizes", (5,)))
    for i in range(3):
        model = plain.load(X[i])
        value = nn.functional.cross_entropy(model(torch.tensor(x[i])), torch.tensor(y[i]))
        value.backward()
        l2 = options.get("l2", 0.0)
        assert problem.value(X)[i] == pytest.approx(value.item() + l2 / 2 * X[i] @ X[i], rel=1e-12)
        g = np.concatenate([p.grad.numpy().ravel() for p in model.parameters()]) + l2 * X[i]
        np.testing.assert_allclose(G[i], g, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(
        problem.grad(X[[2, 0]], agents=[2, 0]), G[[2, 0]], rtol=1e-10, atol=1e-14
    )


@pytest.mark.serial
def test_mini_batches_are_means_over_drawn_samples():
    problem = small(sizes=(5, 3, 4), l2=0.1)
    X = rows(problem)
    every = np.tile(np.arange(3), (3, 1))
    G = problem.sample_grad(X, every, problem.counts / 3)
    x, y = samples(3, (5, 3, 4))
    np.testing.assert_allclose(
        G,
        Neural(problem.model, ([a[:3] for a in x], [b[:3] for b in y]), l2=0.1).grad(X),
        rtol=1e-10,
    )
    gradient = MiniBatch(problem, 2).start(range(3), seed=0)
    np.testing.assert_allclose(gradient(X[1:2], 4, agents=[1])[0], gradient(X, 4)[1], rtol=1e-10)
    mean = np.mean([gradient(X, k) for k in range(400)], axis=0)
    assert np.linalg.norm(mean - problem.grad(X)) < 0.1 * np.linalg.norm(problem.grad(X))


@pytest.mark.serial
def test_rows_hold_the_trainable_parameters_in_order():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    problem = Neural(model, (np.ones((2, 4, 2)), np.ones((2, 4, 1))), loss="mse")
    assert problem.d == 2 + 2 + 2 + 1 and problem.initial().dtype == np.float64
    assert problem.load(np.arange(7.0))[3].weight.tolist() == [[4.0, 5.0]]
    X = np.random.default_rng(0).standard_normal((2, 7)).astype(np.float32)
    assert problem.grad(X).dtype == np.float32 and np.array_equal(
        problem.grad(X), problem.grad(X)
    )  # no dropout
    assert model.training and model[1].running_mean is not None  # it is a copy
    assert problem.predict(X, np.ones((3, 2))).shape == (2, 3, 1)


@pytest.mark.serial
def test_predictions_are_those_of_each_row(digits):
    problem, (data, _) = of_agents(digits, 0, 2), digits
    X = rows(problem)
    expected = [
        problem.load(x)(torch.tensor(data.test_x, dtype=torch.float64)).argmax(dim=1).numpy()
        for x in X
    ]
    np.testing.assert_allclose(
        problem.accuracy(X, data.test_x, data.test_y, chunk=100),
        [(labels == data.test_y).mean() for labels in expected],
    )
    assert problem.accuracy(X[0], data.test_x, data.test_y).shape == (1,)


@pytest.mark.serial
def test_parts_of_several_ranks_make_one_problem(digits):
    whole = of_agents(digits, 0, 4)
    parts = [
        pickle.loads(pickle.dumps(of_agents(digits, lo, hi))) for lo, hi in ((0, 1), (1, 1), (1, 4))
    ]
    X = rows(whole)
    np.testing.assert_allclose(
        Neural.concatenate(parts).grad(X), whole.grad(X), rtol=1e-12, atol=1e-14
    )
    assert parts[1].grad(np.empty((0, whole.d))).shape == (0, whole.d) and parts[1].value(
        np.empty((0, whole.d))
    ).shape == (0,)


@pytest.mark.serial
@pytest.mark.parametrize(
    "call, error, said",
    [
        (
            lambda: Neural("mlp", samples(1)),
            TypeError,
            "model is a str, expected a torch.nn.Module",
        ),
        (
            lambda: Neural(nn.Linear(6, 3), samples(1), loss="hinge"),
            ValueError,
            "loss is 'hinge'",
        ),
        (
            lambda: Neural(nn.Linear(6, 3), samples(1), dtype="float16"),
            ValueError,
            "dtype is 'float16'",
        ),
        (lambda: Neural(nn.ReLU(), samples(1)), ValueError, "no parameters that require gradients"),
        (
            lambda: Neural(nn.Linear(6, 3), (samples(2)[0], samples(1)[1])),
            ValueError,
            "samples of 2 agents and targets of 1",
        ),
        (
            lambda: Neural(nn.Linear(6, 3), ([np.ones((2, 6))], [np.ones(3)])),
            ValueError,
            "local agent 0 has 2 samples and 3 targets",
        ),
        (
            lambda: Neural(nn.Linear(6, 3), ([np.full((2, 6), np.nan)], [np.ones(2)])),
            ValueError,
            "local agent 0 hold NaN",
        ),
        (
            lambda: small().grad(np.zeros((3, 4))),
            ValueError,
            r"X has shape \(3, 4\), expected \(3, 43\)",
        ),
        (
            lambda: small(loss=lambda outputs, y: outputs.mean()).value(rows(small())),
            ValueError,
            "one number for each sample",
        ),
        (
            lambda: Neural(
                nn.Linear(6, 3), (np.ones((1, 2, 6)), np.ones((1, 2, 1))), loss="mse"
            ).value(np.ones((1, 21))),
            ValueError,
            r"outputs of shape \(3,\) for each sample, expected that of the targets, \(1,\)",
        ),
    ],
)
def test_wrong_use(call, error, said):
    with pytest.raises(error, match=said):
        call()


# ---------------------------------------------------------------------------------------------------------------------
# Solvers

METHODS = [
    (S.DGD(0.2), T.ring(N)),
    (S.GradientTracking(0.2), T.exponential(N)),
    (S.ExactDiffusion(0.2), T.ring(N)),
    (S.PushSum(0.2), T.one_peer_exponential(N)),
    (S.RelaySGD(0.2), T.binary_tree(N)),
    (S.DSGDCECA(0.2), T.ceca(N)),
]


@pytest.mark.most(1)
@pytest.mark.parametrize("solver, topology", METHODS, ids=lambda part: type(part).__name__)
def test_solvers_train_networks(digits, solver, topology):
    """The loss falls; on several ranks the result is that of one process."""
    with mpidec.Network(N) as net:
        problem = of_agents(digits, net.lo, net.hi)
        x0 = problem.initial()
        result = mpidec.solve(
            MiniBatch(problem, 16), solver, topology, steps=30, x0=x0, net=net, every=30
        )
        objective = result.metrics["objective"]
        assert objective[-1] < 0.8 * objective[0], objective
        X = net.comm.bcast(net.gather(result.X))
        if net.size > 1:
            with mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
                whole = mpidec.solve(
                    MiniBatch(of_agents(digits, 0, N), 16),
                    solver,
                    topology,
                    steps=30,
                    x0=x0,
                    net=alone,
                    every=30,
                )
            np.testing.assert_allclose(X, whole.X, rtol=1e-6, atol=1e-9)


@pytest.mark.serial
def test_asynchronous_agents_train_networks(digits):
    problem = of_agents(digits, 0, N)
    result = mpidec.simulate(
        MiniBatch(problem, 16), S.A2CiD2(0.2), T.ring(N), steps=20, x0=problem.initial()
    )
    start, end = (
        problem.value(np.tile(x, (N, 1))).mean() for x in (problem.initial(), result.X.mean(axis=0))
    )
    assert end < 0.8 * start
