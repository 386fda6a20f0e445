"""Variance reduction: the recursions, sample by sample; memories; linear convergence with mini-batches."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.exceptions import ResumeError
from mpidec.problems.oracles import adapted

N, P_, D, B = 7, 9, 3, 2
ORACLES = {
    "SVRG": lambda problem: P.SVRG(problem, B, 4),
    "LSVRG": lambda problem: P.LSVRG(problem, B, 4),
    "SARAH": lambda problem: P.SARAH(problem, B, 4),
    "SAGA": lambda problem: P.SAGA(problem, B),
}


def made(loss="LeastSquares", lo=0, hi=N, dtype=float):
    rng = np.random.default_rng(5)
    A, b = rng.standard_normal((N, P_, D)).astype(dtype), rng.standard_normal((N, P_))
    mask = np.arange(P_) < rng.integers(4, P_ + 1, N)[:, None]
    y = {"LeastSquares": b, "LogisticRegression": np.where(b > 0, 1, -1), "Softmax": b > 0}[loss]
    make = getattr(P, loss)
    whole = make(A, y.astype(dtype), mask=mask, l2=0.3, weight=0.7)
    part = make(A[lo:hi], y[lo:hi].astype(dtype), mask=mask[lo:hi], l2=0.3, weight=0.7)
    part.x_star = whole.solution()
    return part


def rows(problem, steps=13):
    return np.random.default_rng(6).standard_normal((steps, N, problem.d))


def sample_gradients(problem, i, x):
    """The gradients of all samples of agent i at x, (p, d), without the ridge."""
    zero = type(problem)(problem.A, problem.y, mask=problem.mask, weight=problem.weight)
    X = np.tile(x, (N, 1))
    return np.array(
        [zero.sample_grad(X, np.full((N, 1), s), np.ones(N))[i] for s in range(problem.p)]
    )


def densely(name, problem, X, batches, coins, periods, calls=1):
    """The gradients at the points X (K, n, d), of several calls in each step, from the gradients of single samples."""
    G = np.empty_like(X)
    for i in range(N):
        valid, lam = problem.mask[i], problem.l2
        t, found = None, []
        for k, x in ((number // calls, x) for number, x in enumerate(X[:, i])):
            S, scale = batches[k][i], valid.sum() / B
            now = sample_gradients(problem, i, x)
            full = now[valid].sum(0) + lam * x
            if name == "SAGA":
                table = now.copy() if k == 0 else t
                g = scale * (now - table)[S].sum(0) + table[valid].sum(0) + lam * x
                table[S] = now[S]
                t = table
            elif k == 0 or (name in ("SVRG", "SARAH") and k % periods[i] == 0):
                g, t = full, (now, x, full)
            else:
                old, z, base = t
                g = scale * (now - old)[S].sum(0) + lam * (x - z) + base
                if name == "SARAH":
                    t = now, x, g
                elif name == "LSVRG" and coins[k][i]:
                    t = now, x, full
            found.append(g)
        G[:, i] = found
    return G


@pytest.mark.serial
@pytest.mark.parametrize(
    "loss, calls", [("LeastSquares", 1), ("LogisticRegression", 2), ("Softmax", 1)]
)
@pytest.mark.parametrize("name", ORACLES)
def test_the_recursions_of_the_papers(name, loss, calls):
    """Several gradients of one step are of the same batch, and each is remembered; a period is one pass by default."""
    problem = made(loss)
    X, oracle = rows(problem), ORACLES[name](problem)
    draws = P.oracles.Draws(problem, B, range(N), 3)
    batches, coin = [draws(k) for k in range(len(X))], P.oracles.Streams(3, "snapshots")
    passes = np.ceil(problem.mask.sum(axis=1) / B).astype(int)
    for made_of, periods in ((oracle, [4] * N), (type(oracle)(problem, B), passes)):
        gradient, kept = made_of.start(range(N), 3), X.copy()
        coins = [[coin.at(i, k).random() < 1 / periods[i] for i in range(N)] for k in range(len(X))]
        expected = densely(name, problem, X, batches, coins, periods, calls)
        found = [gradient(x, k // calls) for k, x in enumerate(X)]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert np.array_equal(X, kept)
        assert 0 < np.sum(coins) < np.size(coins)


@pytest.mark.serial
@pytest.mark.parametrize("name", ORACLES)
def test_bits_and_memory_do_not_depend_on_who_holds_an_agent(name):
    problem = made()
    X, whole = rows(problem), ORACLES[name](problem).start(range(N), 3)
    G = [whole(x, k) for k, x in enumerate(X)]
    alone, parts = ORACLES[name](problem).start(range(N), 3), [(0, 3), (3, N)]
    started = [ORACLES[name](made(lo=lo, hi=hi)).start(range(lo, hi), 3) for lo, hi in parts]
    for k, x in enumerate(X):
        for i in (4, 1, 0, 6, 5, 2, 3):  # one after the other, as in asynchronous runs
            assert np.array_equal(alone(x[i : i + 1], k, agents=[i]), G[k][i : i + 1])
        if k in (5, 6, 9):  # three other ranks go on
            memory = [part.memory() for part in started]
            joined = {key: np.concatenate([one[key] for one in memory]) for key in memory[0]}
            parts = [(0, 2), (2, 4), (4, N)] if k == 5 else [(0, 4), (4, N)]
            started = [
                ORACLES[name](made(lo=lo, hi=hi)).start(range(lo, hi), 3) for lo, hi in parts
            ]
            for (lo, hi), part in zip(parts, started):
                part.recall({key: rows[lo:hi] for key, rows in joined.items()})
        for (lo, hi), part in zip(parts, started):
            assert np.array_equal(part(x[lo:hi], k), G[k][lo:hi])


@dataclass(frozen=True)
class Extragradient(S.GradientTracking):
    """Gradient tracking that descends along the gradients half a step ahead: two gradients a step."""

    def ask(self, F, s):
        return F

    def step(self, s, F, W):
        G = F.grad(s.X)
        Y = s.Y + G - s.G
        ahead = F.grad(s.X - self.step_size * Y) - G
        return self.State(W(s.X - self.step_size * (Y + ahead)), W(Y), G, s.k + 1)


@pytest.mark.parametrize(
    "name, solver",
    [
        *[
            (name, solver)
            for name in ORACLES
            for solver in (S.GradientTracking(), S.ExactDiffusion(), Extragradient(0.02))
        ],
        ("SAGA", S.LTADMM(0.04)),
    ],
)
def test_linear_convergence_with_mini_batches(name, solver):
    with mpidec.Network(N) as net:
        problem = made(lo=net.lo, hi=net.hi)
        result = mpidec.solve(
            ORACLES[name](problem),
            solver,
            T.ring(N),
            steps=4000,
            net=net,
            stop={"error_rms": 1e-10},
        )
        X = net.gather(result.X)
    assert result.outcome == "stopped"
    if net.rank == 0:
        whole = ORACLES[name](made())
        alone = mpidec.solve(
            whole,
            type(solver)(result.step_size),
            T.ring(N),
            steps=result.steps,
            every=result.steps,
            net=mpidec.Network(N, comm=mpidec_self()),
        )
        assert np.array_equal(alone.X, X)  # the same bits as in one process


@pytest.mark.parametrize("name", ["SARAH", "SAGA"])
def test_all_gradients_of_a_step_are_of_one_batch(name):
    solver, ring, dense = Extragradient(0.02), T.ring(N), T.ring(N).W.toarray()
    gradient = ORACLES[name](made()).start(range(N), 0)
    s = solver.init(np.zeros((N, D)))
    for k in range(9):
        F = SimpleNamespace(grad=partial(gradient, k=k))
        s = solver.step(s, F, lambda X: dense @ X)
    with mpidec.Network(N) as net:
        problem = ORACLES[name](made(lo=net.lo, hi=net.hi))
        X = mpidec.solve(problem, solver, ring, steps=9, net=net).X
        np.testing.assert_allclose(X, s.X[net.lo : net.hi], rtol=1e-12, atol=1e-12)


def mpidec_self():
    from mpi4py import MPI

    return MPI.COMM_SELF


@pytest.mark.parametrize("name", ORACLES)
def test_a_resumed_run_has_the_bits_of_one_without_a_break(name, shared_tmp):
    results = {}
    for path, parts in (("whole.h5", (45,)), ("parts.h5", (22, 45))):
        for steps in parts:
            with mpidec.Network(N) as net:
                problem = P.Subgradient(P.Noisy(ORACLES[name](with_l1(net)), 0.01))
                results[path] = mpidec.solve(
                    problem,
                    S.GradientTracking(0.01),
                    T.ring(N),
                    steps=steps,
                    net=net,
                    record=mpidec.Record(shared_tmp / path, resume=steps != parts[0]),
                )
    assert np.array_equal(results["whole.h5"].X, results["parts.h5"].X)
    with mpidec.Network(N) as net, pytest.raises(ResumeError, match=r"memory|the arrays"):
        mpidec.solve(
            P.Subgradient(P.MiniBatch(with_l1(net), B)),
            S.GradientTracking(0.01),
            T.ring(N),
            steps=60,
            net=net,
            record=mpidec.Record(shared_tmp / "whole.h5", resume=True, changed=True),
        )


def with_l1(net):
    part = made(lo=net.lo, hi=net.hi)
    return P.LeastSquares(part.A, part.y, mask=part.mask, l2=0.3, term=P.l1(0.01))


SOURCES = {
    "problem": lambda problem: problem,
    "Full": P.Full,
    "MiniBatch": lambda problem: P.MiniBatch(problem, B),
    "Noisy": lambda problem: P.Noisy(problem, 0.3),
    "Subgradient": P.Subgradient,
    "Subgradient of batches": lambda problem: P.Subgradient(P.MiniBatch(problem, B)),
    **ORACLES,
}


@pytest.mark.serial
@pytest.mark.parametrize("name", SOURCES)
def test_a_wrapped_oracle_is_that_oracle_and_what_is_added(name):
    """Its problem, what it says of its gradients, these and their memory; the term is added once."""
    problem, X = with_l1(SimpleNamespace(lo=0, hi=N)), rows(made(), 3)
    source = SOURCES[name](problem)
    own = adapted(source)
    noisy = P.Noisy(source, 0.0)
    assert noisy.problem is problem and noisy.random
    assert (noisy.smooth, noisy.term) == (own.smooth, own.term)
    if own.term is None:
        with pytest.raises(ValueError, match="Subgradient includes its term, so its gradient is"):
            P.Subgradient(source)
        return
    sub = P.Subgradient(source)
    assert sub.problem is problem and (sub.smooth, sub.term) == (False, None)
    assert (sub.random, sub.batches) == (own.random, own.batches)
    one, same, more = (oracle.gradients(range(N), 5) for oracle in (own, noisy, sub))
    for k, x in enumerate(X):
        g = one(x, k)
        np.testing.assert_array_equal(same(x, k), g)
        np.testing.assert_array_equal(more(x, k), g + problem.term.subgradient(x))
    assert bool(one.memory()) == (name in ORACLES)
    for other in (same, more):
        memory = other.memory()
        assert {*memory} == {*one.memory()}
        other.recall(one.memory())
        np.testing.assert_array_equal(same(X[0], 7), one(X[0], 7))


@pytest.mark.serial
def test_float32_stays():
    for name, oracle in ORACLES.items():
        gradient = oracle(made(dtype=np.float32)).start(range(N), 0)
        X = rows(made())[:3].astype(np.float32)
        assert [gradient(x, k).dtype for k, x in enumerate(X)] == [np.float32] * 3, name
        assert {rows.dtype for rows in gradient.memory().values()} == {np.dtype(np.float32)}


@pytest.mark.serial
def test_a_short_run_finds_a_step_size_from_few_batches():
    rng = np.random.default_rng(5)
    A, x = rng.standard_normal((8, 20, 60)), np.arange(60) % 7 == 0
    problem = P.LeastSquares(A, A @ x + 0.3 * rng.standard_normal((8, 20)), l2=0.1)
    with mpidec.Network(8) as net:
        oracle = P.SVRG(problem, 4)
        choice = mpidec.tune(oracle, S.GradientTracking(), T.exponential(8), steps=600, net=net)
    assert 0.003 < choice.step_size < 0.03 and choice.expected < 600  # 2 / L of an agent: 0.02


@pytest.mark.serial
def test_refusals():
    problem = made()
    for oracle in (P.MiniBatch(problem, 2), P.SAGA(problem, 2)):
        with pytest.raises(ValueError, match="and takes no random gradients, got"):
            mpidec.solve(oracle, S.ADMM(0.1), T.ring(N), steps=1)
    with pytest.raises(ValueError, match="batch_size"):
        P.SAGA(problem, 10)
    with pytest.raises(ValueError, match="period"):
        P.SVRG(problem, 2, 0)
    with pytest.raises(
        TypeError, match="SVRG: problem is the class LeastSquares, expected an object"
    ):
        P.SVRG(P.LeastSquares)
    with pytest.raises(TypeError, match="SARAH cannot draw"):
        P.SARAH(P.Custom(len, len, 1, 1), 1)
    gradient = P.SAGA(problem, 2).start(range(N), 0)
    with pytest.raises(ValueError, match="has the arrays none, expected slopes, sum"):
        gradient.recall({})
    with pytest.raises(ValueError, match=r"memory slopes has shape \(3, 1\), expected"):
        gradient.recall({"slopes": np.ones((3, 1)), "sum": np.ones((N, D))})


@pytest.mark.serial
def test_asynchronous_runs_take_them_but_are_not_resumed_on_ranks(tmp_path):
    problem = made()
    result = mpidec.simulate(
        P.SAGA(problem, 2), S.RunningSumTracking(0.01), T.ring(N), steps=900, seed=1
    )
    assert result.metrics["error"][-1] < 1e-3
    with pytest.raises(ResumeError, match="no memory of variance-reduced gradients"):
        mpidec.solve(
            P.SAGA(problem, 2),
            S.RunningSumTracking(0.003),
            T.ring(N),
            steps=10,
            record=mpidec.Record(tmp_path / "run.h5", resume=True),
        )


@pytest.mark.serial
def test_a_memory_of_all_agents_is_not_overwritten_by_those_of_one():
    class Momentum:
        def __init__(self, problem):
            self.problem, self.b = problem, np.zeros((problem.m, problem.d))

        def __call__(self, X, k):
            self.b = 0.5 * self.b + self.problem.grad(X)
            return self.b.copy()

        def memory(self):
            return {"b": self.b}

        def recall(self, memory):
            self.b = memory["b"]

        def start(self, agents, seed):
            return self

    oracle = Momentum(made())
    assert mpidec.solve(oracle, S.DGD(0.01), T.ring(N), steps=3).steps == 3
    with pytest.raises(TypeError, match=r"Momentum remember .* agents=None"):
        mpidec.simulate(oracle, S.RunningSumTracking(0.01), T.ring(N), steps=3)
    alone = P.oracles.Gradients(Momentum(P.LeastSquares(np.ones((1, 1, 1)), [[1.0]])), m=1)
    assert alone(np.zeros((1, 1)), 0, agents=[0]) == -1
