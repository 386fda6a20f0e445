"""Asynchronous methods, simulated: against dense oracles, conserved sums, and the refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from mpi4py import MPI
from scipy.linalg import expm

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.driver.asynchronous import draws
from mpidec.driver.asynchronous.pushing import PushRunner
from mpidec.driver.asynchronous.result import LocalAgents
from mpidec.driver.asynchronous.runner import MessageFaults, Termination
from mpidec.driver.asynchronous.simulator import PushSimulator
from mpidec.problems import (
    Custom,
    Huber,
    LeastSquares,
    LogisticRegression,
    MiniBatch,
    Noisy,
    Softmax,
    Subgradient,
    l1,
)
from mpidec.problems.oracles import adapted, of_one
from mpidec.solvers.asynchronous import Place
from mpidec.topology import pairwise

pytestmark = pytest.mark.serial

EVENT = [("time", float), ("kind", int), ("i", int), ("j", int)]
D = 3


def table(*rows) -> np.ndarray:
    return np.array([(*row, -1)[:4] for row in rows], EVENT)


def random_events(graph, count: int, seed: int = 0) -> np.ndarray:
    """Events in the order of time: gradients of random agents and averagings on random edges, in equal parts."""
    rng = np.random.default_rng(seed)
    when = np.sort(rng.random(count) * 6)
    rows = []
    for t in when:
        i = int(rng.integers(graph.n))
        rows.append(
            (t, 0, i, i) if rng.random() < 0.5 else (t, 1, i, int(rng.choice(graph.neighbors(i))))
        )
    return table(*rows)


def least_squares(n: int, seed: int = 0, p: int = 6) -> LeastSquares:
    rng = np.random.default_rng([seed, n])
    A, b = rng.standard_normal((n, p, D)) / np.sqrt(p), rng.standard_normal((n, p))
    return LeastSquares(
        A, b, x_star=np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    )


def start(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, n, 7]).standard_normal((n, D))


def consensus(X: np.ndarray) -> float:
    return float(np.sqrt(((X - X.mean(axis=0)) ** 2).sum()))


# ---------------------------------------------------------------------------------------------------------------------
# A2CiD2 and its baseline


def oracle(problem, solver, events, X0):
    """All agents integrated by matrix exponentials: in "sde" together, to the time of each event; else as the event says."""
    X, Xt, B, last = X0.copy(), X0.copy(), np.zeros_like(X0), np.zeros(len(X0))

    def mix(i, t):
        E = expm((t - last[i]) * solver.eta * np.array([[-1, 1], [1, -1]]))
        X[i], Xt[i] = E @ [X[i], Xt[i]]
        last[i] = t

    for t, kind, i, j in events:
        agents = (i,) if kind == 0 else (i, j)
        if solver.order == "sde":
            for k in range(len(X)):
                mix(k, t)
        before = X.copy()
        for k in agents:
            mix(k, t)
        if kind == 0:
            at = X.copy()
            at[i] = before[i]
            B[i] = solver.momentum * B[i] + problem.grad(at)[i]
            X[i] -= solver.step_size * B[i]
            Xt[i] -= solver.step_size * B[i]
            continue
        mixed = X.copy()
        for a, b in ((i, j), (j, i)):
            m = (mixed if solver.order == "code" else before)[a] - before[b]
            X[a] -= solver.alpha * m
            Xt[a] -= solver.alpha_tilde * m
    return X, Xt, last


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("order", ["sde", "algorithm", "code"])
def test_a2cid2_follows_its_equations(order, momentum):
    graph, n = T.star(5), 5
    problem, events, X0 = least_squares(n), random_events(graph, 150), start(n)
    solver = S.A2CiD2(0.05, momentum=momentum, order=order, alpha=0.4)
    result = mpidec.simulate(problem, solver, graph, events=events, x0=X0)
    assert result.solver.eta == pytest.approx(
        0.5 / np.sqrt(np.prod(T.mixing_constants(graph))), rel=1e-14
    )
    X, Xt, last = oracle(problem, result.solver, events, X0)
    got, tilde = result.X.copy(), result.state.X_tilde.copy()
    for i, until in enumerate(
        last
    ):  # the oracle of "sde" has integrated all agents to the last event
        E = expm((until - result.state.t[i]) * result.solver.eta * np.array([[-1, 1], [1, -1]]))
        got[i], tilde[i] = E @ [got[i], tilde[i]]
    np.testing.assert_allclose(got, X, rtol=0, atol=1e-12)
    np.testing.assert_allclose(tilde, Xt, rtol=0, atol=1e-12)
    assert result.metrics["gradients"][-1] == (events["kind"] == 0).sum() == result.counts.sum()
    assert sum(result.averagings.values()) == (events["kind"] == 1).sum()


@pytest.mark.parametrize("order", ["sde", "algorithm"])
def test_averaging_and_mixing_conserve_the_sum(order):
    X0 = start(16)
    result = mpidec.simulate(
        None, S.A2CiD2(0.0, order=order), T.ring(16), steps=200, x0=X0, delay=(0, 0.4)
    )
    assert abs((result.X + result.state.X_tilde).sum(axis=0) - 2 * X0.sum(axis=0)).max() <= 1e-12
    code = mpidec.simulate(None, S.A2CiD2(0.0, order="code"), T.ring(16), steps=20, x0=X0)
    assert abs((code.X + code.state.X_tilde).sum(axis=0) - 2 * X0.sum(axis=0)).max() > 1e-3


@pytest.mark.parametrize("order", ["sde", "algorithm", "code"])
def test_the_baseline_is_pairwise_gossip_bit_for_bit(order):
    problem, graph = least_squares(6), T.torus(6)
    plain = mpidec.simulate(
        problem, S.PairwiseGossip(0.1, momentum=0.5, rate=2.0), graph, steps=30, x0=start(6)
    )
    base = mpidec.simulate(
        problem,
        S.A2CiD2(0.1, eta=0.0, momentum=0.5, rate=2.0, order=order),
        graph,
        steps=30,
        x0=start(6),
    )
    assert np.array_equal(base.X, plain.X) and base.solver.alpha_tilde == 0.5
    assert not np.array_equal(
        plain.X,
        mpidec.simulate(
            problem, S.A2CiD2(0.1, momentum=0.5, rate=2.0), graph, steps=30, x0=start(6)
        ).X,
    )


def test_a2cid2_accelerates_on_a_ring():
    """Root mean square over seeds: a single run varies by a factor of three either way."""

    def left(solver):
        return np.sqrt(
            np.mean(
                [
                    consensus(
                        mpidec.simulate(
                            None, solver, T.ring(16), steps=60, x0=start(16, seed), seed=seed
                        ).X
                    )
                    ** 2
                    for seed in range(8)
                ]
            )
        )

    assert left(S.PairwiseGossip()) >= 15 * left(S.A2CiD2())


def test_agents_average_at_the_rate_asked_for_and_edges_at_theirs():
    from scipy.stats import chisquare

    graph = T.star(5)
    result = mpidec.simulate(None, S.PairwiseGossip(rate=2.0), graph, steps=4000, x0=start(5))
    edges = pairwise.edge_rates(graph, 2.0)
    found = np.array([result.averagings[0, j] for j in range(1, 5)])
    assert found.sum() == pytest.approx(5 * 2 / 2 * 4000, rel=0.03)
    assert chisquare(found).pvalue > 0.001 and edges[0, 1] * 4000 == pytest.approx(
        found.mean(), rel=0.03
    )
    given = {(0, 1): 3.0, (1, 2): 0.5, (2, 3): 1.0}
    result = mpidec.simulate(None, S.PairwiseGossip(rate=given), T.ring(4), steps=2000, x0=start(4))
    assert set(result.averagings) == set(given)
    assert all(
        result.averagings[edge] == pytest.approx(2000 * rate, rel=0.1)
        for edge, rate in given.items()
    )


def test_busy_agents_do_not_average():
    events = table((0.0, 1, 0, 1), (0.5, 1, 1, 2), (1.5, 1, 1, 2))
    X0 = np.array([[0.0], [4.0], [8.0], [0.0]])
    result = mpidec.simulate(None, S.PairwiseGossip(), T.ring(4), events=events, x0=X0, delay=1.0)
    assert result.X.ravel().tolist() == [2, 5, 5, 0] and result.averagings == {(0, 1): 1, (1, 2): 1}


# ---------------------------------------------------------------------------------------------------------------------
# Push methods


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_push_sum_conserves_mass_with_delays_and_stragglers(n):
    X0, rates = start(n), np.r_[0.05, np.ones(n - 1)]
    result = mpidec.simulate(
        None,
        S.AsyncPushSum(),
        T.exponential(n),
        steps=600,
        x0=X0,
        rates=rates,
        delay=lambda rng, i, j: rng.exponential(1.0) * (1 + 4 * (i == 0)),
    )
    assert (
        abs(result.state.U.sum(axis=0) - X0.sum(axis=0)).max() <= 1e-12
        and abs(result.state.w.sum() - n) <= 1e-12
    )
    assert abs(result.X - X0.mean(axis=0)).max() <= 1e-10


def test_push_sum_agents_that_are_fast_keep_their_weight():
    """A rank that spins while its neighbour sleeps would halve its weight each time, to 0 / 0."""
    result = mpidec.simulate(
        None, S.AsyncPushSum(), T.ring(3), steps=2000, x0=start(3), rates=[1000.0, 0.1, 0.1]
    )
    assert result.counts[0] > 1000 and np.isfinite(result.X).all() and result.state.w.min() > 1e-3


def test_push_sum_with_gradients_is_what_it_says():
    """Without delays, on a directed ring 0 -> 1 -> 2 -> 0: a few wake-ups by hand."""
    C = np.array([[3.0], [0.0], [6.0]])
    problem = Custom(lambda X: ((X - C) ** 2).sum(axis=1) / 2, lambda X: X - C, m=3, d=1)
    graph = T.from_weights(np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]]))
    wakes = [0, 0, 1, 1, 2, 0, 1]
    result = mpidec.simulate(
        problem,
        S.AsyncPushSum(lambda k: 0.1 / (k + 1)),
        graph,
        events=table(*((float(t), 0, i) for t, i in enumerate(wakes))),
        x0=[1.0],
    )
    u, w, box, news, k = np.ones(3), np.ones(3), np.zeros((3, 2)), [True] * 3, np.zeros(3)
    for i in wakes:
        u[i], w[i], news[i] = u[i] + box[i, 0], w[i] + box[i, 1], news[i] or box[i, 1] > 0
        box[i] = 0
        u[i] -= 0.1 / (k[i] + 1) * (u[i] / w[i] - C[i, 0])
        k[i] += 1
        if news[i]:
            u[i], w[i], news[i] = u[i] / 2, w[i] / 2, False
            box[(i + 1) % 3] += u[i], w[i]
    u, w = u + box[:, 0], w + box[:, 1]
    np.testing.assert_allclose(result.X.ravel(), u / w, rtol=1e-14)
    assert result.counts.tolist() == k.tolist() and result.metrics["messages"][-1] == 5


@pytest.mark.parametrize("w, share", [(0.01, 0.1), (0.05, 0.5), (0.1, 1.0), (0.7, 1.0)])
def test_push_sum_agents_of_little_weight_take_small_steps(w, share):
    solver = S.AsyncPushSum(0.5)
    s = solver.init(np.array([3.0]))
    s.u[:], s.w, s.news = 3.0 * w, w, False
    solver.wake(s, None, lambda x: np.array([4.0]))
    assert s.u[0] == pytest.approx(3.0 * w - share * 0.5 * 4.0, rel=1e-14)


def test_push_sum_approaches_the_minimizer():
    problem = least_squares(8)
    result = mpidec.simulate(
        problem,
        S.AsyncPushSum(S.InverseSqrt(0.1)),
        T.exponential(8),
        steps=3000,
        delay=(0, 1),
        every=1000,
    )
    assert result.metrics["error_rms"][-1] < 0.1 < result.metrics["error_rms"][0]


@pytest.mark.parametrize("graph", [T.exponential(8), T.star(8)], ids=lambda graph: graph.name)
def test_running_sum_tracking_is_exact_though_messages_are_lost_and_late(graph):
    problem = least_squares(8)
    result = mpidec.simulate(
        problem,
        S.RunningSumTracking("auto"),
        graph,
        steps=4000,
        drop=0.3,
        delay=(0, 3),
        rates=np.r_[0.2, np.ones(7)],
        stop={"error_rms": 1e-8},
    )
    assert result.outcome == "stopped" and result.metrics["error_rms"][-1] <= 1e-8
    in_flight = sum(
        result.state.Rho[graph.in_neighbors(i)].sum(axis=0) - read
        for i, read in enumerate(result.state.Rho_read)
    )
    assert abs(result.state.Z.sum(axis=0) + in_flight - result.state.G.sum(axis=0)).max() <= 1e-12
    assert (
        np.diff(np.log(result.metrics["error_rms"][::10])).mean() < -0.5
    )  # linear, not slower and slower


def test_running_sum_tracking_reads_a_message_once_however_often_it_arrives():
    solver = S.RunningSumTracking(0.5)
    s = solver.init(np.full(1, 4.0), Place(0, 2, (1,), (1,)))
    message = np.array([[2.0, 5.0, 1.0]])  # v, rho, id
    solver.wake(s, np.zeros((1, 3)), lambda x: np.zeros(1))
    assert s.x == 4  # nothing has arrived: its own v
    solver.wake(s, message, lambda x: np.zeros(1))
    assert (s.x, s.z, s.rho) == (3, 2.5, 2.5)
    out = solver.wake(s, message, lambda x: np.zeros(1))
    assert (s.z, s.rho) == (1.25, 3.75) and out.tolist() == [1.75, 3.75, 3.0]


@dataclass(frozen=True)
class Echo(S.RunningSumTracking):
    """Sends its count; keeps in x what it has last read."""

    def width(self, d):
        return 1

    def wake(self, s, received, gradient):
        s.x[:] = received.sum()
        s.k += 1
        return np.array([float(s.k)])


def test_a_late_message_does_not_replace_a_newer_one():
    solver, late = Echo(), iter([5.0, 1.0, 0.0, 0.0])
    places = [Place(0, 2, (1,), (1,)), Place(1, 2, (0,), (0,))]
    states = [solver.init(np.zeros(1), place) for place in places]
    events = draws.replayed(table((0.0, 0, 0), (1.0, 0, 0), (3.0, 0, 1), (6.0, 0, 1)))
    simulator = PushSimulator(
        solver, states, events, None, places, 1, lambda i, j: next(late), None
    )
    simulator.run(4.0)
    assert states[1].x == 2
    simulator.run(7.0)
    assert states[1].x == 2
    assert simulator.staleness == {
        2: 1,
        5: 1,
    }  # the second message of agent 0, sent at 1, is read at 3 and at 6


def test_a_late_message_does_not_replace_a_newer_one_on_ranks():
    late = iter([5.0, 1.0, 0.0])
    with mpidec.Network(2, comm=MPI.COMM_SELF) as net:
        slots = net.slots(T.complete(2), np.zeros((2, 1)))
        local = LocalAgents.of(Echo(), T.complete(2), np.zeros((2, 1)), range(2))
        faults = MessageFaults(lambda i, j: next(late), None, [0.0, 0.0], [0.0, 0.0])
        agents = PushRunner(Echo(), local, slots, None, Termination(slots, 0, 1, 9), faults, 0)
        for _ in range(2):
            agents._wake(0)
        agents._release(np.inf)
        agents._wake(1)
        assert local.states[1].x == 2
        slots.close()


def test_staleness_of_a_constant_delay():
    result = mpidec.simulate(None, S.AsyncPushSum(), T.ring(8), steps=50, x0=start(8), delay=2.5)
    assert result.staleness[:2].sum() == 0 < result.staleness[2]


# ---------------------------------------------------------------------------------------------------------------------
# Runs


@pytest.mark.parametrize(
    "solver",
    [S.A2CiD2(0.05), S.PairwiseGossip("safe"), S.AsyncPushSum(0.02), S.RunningSumTracking("safe")],
    ids=lambda solver: type(solver).__name__,
)
def test_a_run_is_a_function_of_its_arguments(solver):
    def run(steps=20, seed=3, source=None):
        return mpidec.simulate(
            source or MiniBatch(least_squares(8), 2),
            solver,
            T.ring(8),
            steps=steps,
            seed=seed,
            delay=(0, 0.5),
            every=4,
        )

    first, again, other, longer = run(), run(), run(seed=4), run(steps=40)
    assert np.array_equal(first.X, again.X) and not np.array_equal(first.X, other.X)
    for name, values in first.metrics.items():
        assert np.array_equal(values, again.metrics[name])
        if (
            name != "bytes"
            and name not in ("consensus", "objective", "gradient_norm")
            and not name.startswith("error")
        ):
            assert np.array_equal(
                values, longer.metrics[name][: len(values)]
            )  # the last record is after the last messages
    assert np.array_equal(first.metrics["consensus"][:-1], longer.metrics["consensus"][:5])
    assert first.metrics["step"].tolist() == [0, 4, 8, 12, 16, 20] and first.steps == 20


def test_random_numbers_belong_to_agents():
    """Another pace of one agent leaves the times of the others as they are."""

    def times(rates):
        events = draws.meetings(5, np.array(rates))
        return [t for t, _, i, _ in (next(events) for _ in range(60)) if i == 1][:8]

    assert times([1.0, 1.0, 1.0]) == times([0.1, 1.0, 3.0])


def test_random_numbers_of_different_purposes_are_different():
    """What is lost has nothing to do with who is chosen, or how late a message is."""
    purposes = range(draws.DROP + 1)
    first = {
        draws.generator(seed, agent, purpose).random()
        for seed in (0, 5)
        for agent in (0, 5)
        for purpose in purposes
    }
    assert len(first) == 2 * 2 * 5


@pytest.mark.parametrize(
    "solver", [S.A2CiD2(0.1), S.AsyncPushSum(0.1)], ids=lambda solver: type(solver).__name__
)
def test_oracles_are_told_the_agents_own_count(solver):
    class Told:
        problem, asked = least_squares(4), [[], [], [], []]

        def start(self, agents, seed):
            def gradient(X, k, agents):
                self.asked[agents[0]].append(k)
                return np.zeros_like(X)

            return gradient

    source = Told()
    result = mpidec.simulate(source, solver, T.ring(4), steps=10)
    assert source.asked == [list(range(count)) for count in result.counts]


def test_stragglers_and_budgets():
    result = mpidec.simulate(
        least_squares(4),
        S.A2CiD2(0.1),
        T.ring(4),
        steps=200,
        rates=[0.1, 1, 1, 1],
        every=5,
        stop={"messages": 300},
    )
    assert result.outcome == "stopped" and 300 <= result.metrics["messages"][-1] < 400
    assert result.counts[0] < result.counts[1:].min() / 3
    assert result.metrics["bytes"][-1] == 8 * D * result.metrics["messages"][-1]


def test_outcomes():
    problem = least_squares(4)
    with np.errstate(all="raise"):
        assert (
            mpidec.simulate(problem, S.PairwiseGossip(50.0), T.ring(4), steps=500).outcome
            == "diverged"
        )
    missed = mpidec.simulate(
        problem, S.PairwiseGossip(0.01), T.ring(4), steps=20, stop={"error": 1e-8}
    )
    assert missed.outcome == "missed" and "target 1e-8 missed" in missed.reason
    empty = mpidec.simulate(problem, "a2cid2", "ring", steps=0, x0=start(4))
    assert (
        empty.outcome == "completed"
        and len(empty.metrics["time"]) == 1
        and np.array_equal(empty.X, start(4))
    )
    assert mpidec.simulate(None, S.A2CiD2(), T.ring(1), steps=5, x0=[[1.0]]).X.tolist() == [[1.0]]


def test_lost_mass_is_said():
    with pytest.warns(
        RuntimeWarning, match=r"AsyncPushSum loses mass .*drop=0.1.*RunningSumTracking"
    ):
        result = mpidec.simulate(None, S.AsyncPushSum(), T.ring(4), steps=20, x0=start(4), drop=0.1)
    assert result.state.w.sum() < 3.9


# ---------------------------------------------------------------------------------------------------------------------
# Constants of graphs


def by_definition(L):
    """The constants from the Laplacian, with all its edges."""
    P = np.linalg.pinv(L)
    i, j = np.nonzero(np.triu(-L, 1) > 0)
    return 1 / np.sort(np.linalg.eigvalsh(L))[1], max(0.5 * (P[i, i] + P[j, j] - 2 * P[i, j]))


GRAPHS = [
    T.ring(2),
    T.ring(7),
    T.complete(6),
    T.torus(12),
    T.hypercube(8),
    T.symmetric_exponential(16),
    T.chain(9),
    T.star(6),
    T.grid(12),
    T.binary_tree(7),
    T.erdos_renyi(20),
]


@pytest.mark.parametrize("large", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: f"{graph.name}{graph.n}")
def test_mixing_constants_of(graph, large, monkeypatch):
    monkeypatch.setattr(pairwise, "DENSE", 0 if large and graph.n > 3 else 600)
    A = (graph.W.toarray() > 0) & ~np.eye(graph.n, dtype=bool)
    degree = A.sum(axis=1)
    rates = A * 1.7 * (1 / degree[:, None] + 1 / degree) / 2
    expected = by_definition(np.diag(rates.sum(axis=1)) - rates)
    np.testing.assert_allclose(T.mixing_constants(graph, 1.7), expected, rtol=1e-12)
    np.testing.assert_allclose(T.mixing_constants(graph, rates), expected, rtol=1e-12)


def test_mixing_constants_of_large_rings_and_given_rates():
    n = 10**6
    chi1, chi2 = T.mixing_constants(T.ring(n), rate=2.0)
    assert chi1 == pytest.approx(1 / (4 * np.sin(np.pi / n) ** 2), rel=1e-12)
    assert chi2 == pytest.approx((n - 1) / (2 * n), rel=1e-12)
    assert T.mixing_constants(T.complete(10**4)) == pytest.approx((1 - 1e-4, 1 - 1e-4), rel=1e-12)
    assert T.mixing_constants(T.ring(1)) == (0.0, 0.0) == T.mixing_constants(T.chain(1))
    L = np.array([[2, -2, 0, 0], [-2, 5, -3, 0], [0, -3, 4, -1], [0, 0, -1, 1.0]])
    np.testing.assert_allclose(
        T.mixing_constants(T.ring(4), {(0, 1): 2, (2, 1): 3, (2, 3): 1}),
        by_definition(L),
        rtol=1e-12,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Gradients of some agents


def problems():
    rng = np.random.default_rng(1)
    A, b, m = rng.standard_normal((5, 7, D)), rng.standard_normal((5, 7)), 5
    mask = rng.random((5, 7)) < 0.7
    mask[:, 0] = True
    yield LeastSquares(A, b, l2=0.1, mask=mask, weight=0.3)
    yield LogisticRegression(A, np.sign(b), l2=0.1, intercept=True)
    yield Huber(A, b, delta=0.5)
    yield Softmax(A, rng.integers(0, 4, (5, 7)), classes=4)
    C = rng.standard_normal((m, D))
    yield Custom(lambda X: ((X - C) ** 2).sum(axis=1), lambda X: 2 * (X - C), m, D)
    yield Custom(
        lambda X: ((X - C) ** 2).sum(axis=1),
        lambda X, agents=range(m): 2 * (X - C[list(agents)]),
        m,
        D,
    )
    yield MiniBatch(LeastSquares(A, b, mask=mask), 1)
    yield Noisy(LeastSquares(A, b), 0.5)
    yield Noisy(MiniBatch(Softmax(A, rng.integers(0, 4, (5, 7)), classes=4), 3), 0.5)
    yield Subgradient(MiniBatch(LeastSquares(A, b, term=l1(0.2)), 3))


@pytest.mark.parametrize("source", list(problems()), ids=lambda source: type(source).__name__)
def test_gradients_of_some_agents_are_rows_of_all(source):
    oracle, numbers = adapted(source), [3, 8, 9, 20, 21]
    problem = oracle.problem
    X = np.random.default_rng(2).standard_normal((problem.m, problem.d))
    whole = oracle.start(numbers, 4)(X, 6)
    gradients = oracle.gradients(numbers, 4)
    one = of_one(gradients)
    assert all(np.array_equal(one(i, X[i], 6), whole[i]) for i in range(problem.m))
    assert np.array_equal(gradients(X[[3, 0]], 6, agents=(3, 0)), whole[[3, 0]])
    if source is problem:
        assert np.array_equal(source.grad(X[[3, 0]], (3, 0)), whole[[3, 0]])


def test_problems_of_the_users_own_without_it():
    class Plain:
        m, d, x_star = 3, 2, None

        def value(self, X):
            return (X * X).sum(axis=1) / 2 * np.arange(1.0, 4.0)

        def grad(self, X):
            return X * np.arange(1.0, 4.0)[:, None]

    assert of_one(adapted(Plain()).gradients(range(3), 0))(2, np.ones(2), 0).tolist() == [3, 3]
    mpidec.simulate(Plain(), S.PairwiseGossip(0.1), T.ring(3), steps=2, x0=[1.0, 2.0])


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


def simulated(problem=None, solver=None, graph=None, **options):
    options = {"x0": start(4), "steps": 5, **options}
    return mpidec.simulate(
        problem, solver or S.PairwiseGossip(0.1), T.ring(4) if graph is None else graph, **options
    )


class Bare:
    m, d, x_star = 4, D, None

    def value(self, X):
        return X.sum(axis=1)

    def grad(self, X):
        return np.ones_like(X)


REFUSED = [
    (lambda: simulated(steps=None), "neither steps nor events is given"),
    (lambda: simulated(events=table((0.0, 1, 0, 1))), "both steps and events are given"),
    (lambda: simulated(steps=-1), "steps is -1, expected an integer >= 0"),
    (lambda: simulated(seed=0.5), "seed is 0.5"),
    (lambda: simulated(x0=None), "neither problem nor x0"),
    (lambda: simulated(x0=np.ones((5, 2))), r"x0 has shape \(5, 2\)"),
    (lambda: simulated(least_squares(5)), "5 agents"),
    (lambda: simulated(solver=S.DGD(0.1)), "DGD is synchronous: run it with mpidec.solve"),
    (lambda: simulated(solver="a2cid"), "a2cid2"),
    (
        lambda: simulated(graph=T.exponential(4)),
        "PairwiseGossip needs an undirected graph, the exponential topology is directed",
    ),
    (
        lambda: simulated(graph=T.one_peer_exponential(4)),
        "needs a constant graph, one_peer_exponential varies",
    ),
    (
        lambda: simulated(graph=T.from_weights(np.eye(4), connected=False)),
        "needs a connected graph",
    ),
    (
        lambda: simulated(solver=S.RunningSumTracking(0.1)),
        "needs the gradients of a problem, but problem is None",
    ),
    (lambda: simulated(every=0), "every is 0"),
    (lambda: simulated(stop={"errors": 1}), "unknown metric 'errors'"),
    (lambda: simulated(stop={"rounds": 1}), "unknown metric 'rounds'"),
    (lambda: simulated(delay=-1), "delay is -1, expected a number >= 0"),
    (lambda: simulated(delay=(2, 1)), r"delay is \(2, 1\)"),
    (lambda: simulated(delay="slow"), "delay is 'slow'"),
    (lambda: simulated(delay=lambda rng, i, j: np.nan), r"delay\(rng, \d, \d\) returned nan"),
    (lambda: simulated(drop=1.0), "drop is 1.0, expected a finite number >= 0 and < 1"),
    (lambda: simulated(rates=2.0), "rates is of gradients, but problem is None"),
    (
        lambda: simulated(least_squares(4), rates=[1, 2]),
        r"rates is \[1, 2\], expected a number > 0, or 4 numbers",
    ),
    (lambda: simulated(least_squares(4), rates=0), "rates is 0"),
    (
        lambda: simulated(steps=None, events=table((0.0, 1, 0, 1)), rates=1.0),
        "rates and a table of events are given",
    ),
    (
        lambda: simulated(steps=None, events=[(0, 1)]),
        "events is a list, expected a structured array",
    ),
    (
        lambda: simulated(steps=None, events=np.zeros(2, [("time", float)])),
        "events is a ndarray with the fields time, expected",
    ),
    (
        lambda: simulated(steps=None, events=table((np.nan, 1, 0, 1))),
        r"events\[0\] has the time nan",
    ),
    (
        lambda: simulated(steps=None, events=table((1.0, 1, 0, 1), (0.5, 1, 0, 1))),
        r"events\[1\] has the time 0.5, less than",
    ),
    (
        lambda: simulated(steps=None, events=table((1.0, 0, 0))),
        r"events\[0\] has the kind 0, .*PairwiseGossip without a problem",
    ),
    (
        lambda: simulated(steps=None, events=table((1.0, 1, 0, 1)), solver=S.AsyncPushSum()),
        r"events\[0\] has the kind 1",
    ),
    (
        lambda: simulated(steps=None, events=table((1.0, 1, 0, 4))),
        r"events\[0\] has j = 4, expected an agent in 0 .. 3",
    ),
    (
        lambda: simulated(steps=None, events=table((1.0, 1, 0, 2))),
        r"events\[0\] averages the agents 0 and 2, .*ring",
    ),
    (
        lambda: simulated(steps=None, events=table((1.0, 1, 1, 1))),
        r"events\[0\] averages the agents 1 and 1",
    ),
    (lambda: simulated(Bare(), S.A2CiD2("safe")), "Bare has no smoothness.*step_size"),
    (
        lambda: mpidec.solve(
            least_squares(4), S.A2CiD2(0.1), T.ring(4), steps=5, mixing=lambda W: W
        ),
        "mixing is given, but A2CiD2 is asynchronous",
    ),
    (lambda: S.A2CiD2(0.1, eta=-1), "A2CiD2: eta is -1, expected a finite number >= 0"),
    (lambda: S.A2CiD2(0.1, alpha=0), "A2CiD2: alpha is 0, expected a finite number > 0"),
    (lambda: S.A2CiD2(0.1, alpha_tilde="x"), "A2CiD2: alpha_tilde is 'x'"),
    (
        lambda: S.A2CiD2(0.1, momentum=1.0),
        "A2CiD2: momentum is 1.0, expected a finite number >= 0 and < 1",
    ),
    (lambda: S.A2CiD2(0.1, rate=0), "A2CiD2: rate is 0, expected a finite number > 0"),
    (
        lambda: S.A2CiD2(0.1, order="paper"),
        "A2CiD2: order is 'paper', expected one of sde, algorithm, code",
    ),
    (lambda: S.A2CiD2(-0.1), "A2CiD2: step_size is -0.1"),
    (lambda: S.PairwiseGossip(rate="fast"), "PairwiseGossip: rate is 'fast'"),
    (lambda: S.AsyncPushSum(np.nan), "AsyncPushSum: step_size is nan"),
    (lambda: T.mixing_constants(T.exponential(8)), "exponential is directed"),
    (lambda: T.mixing_constants(T.one_peer_exponential(8)), "expected a constant topology"),
    (lambda: T.mixing_constants(T.ring(4), rate=-1), "rate is -1, expected a finite number > 0"),
    (lambda: T.mixing_constants(T.ring(4), rate={(0, 2): 1.0}), r"\(0, 2\) is no edge of ring"),
    (lambda: T.mixing_constants(T.ring(4), rate={(0, 1): -1.0}), "finite numbers >= 0"),
    (
        lambda: T.mixing_constants(T.ring(4), rate=np.triu(np.ones((4, 4)))),
        "expected a symmetric matrix",
    ),
    (
        lambda: T.mixing_constants(T.ring(4), rate={(0, 1): 1.0}),
        "not connected by edges of positive rate",
    ),
    (
        lambda: T.mixing_constants(T.from_weights(np.eye(3), connected=False)),
        "not connected by edges",
    ),
]


@pytest.mark.parametrize("call, words", REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_refused_in_one_line(call, words):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_solvers_know_their_facts():
    assert replace(S.A2CiD2(0.1), eta=0.2).eta == 0.2
    with pytest.raises(
        NotImplementedError, match=r"A2CiD2 has no synchronous steps.*mpidec.simulate"
    ):
        S.A2CiD2(0.1).step(None, None, None)


def test_own_solvers_that_break_the_protocol():
    class Short(S.AsyncPushSum):
        def _share(self, s):
            return super()._share(s)[:-1]

    class Rebinds(S.PairwiseGossip):
        def descend(self, s, g, t):
            s.x = s.x - 0.1 * g

    with pytest.raises(
        ValueError,
        match=r"Short.wake returned an array of shape \(3,\), expected rows of width\(d\) = 4",
    ):
        simulated(solver=Short(0.1))
    with pytest.raises(ValueError, match=r"an event has assigned s.x, expected changes in place"):
        simulated(least_squares(4), Rebinds(0.1))


def test_the_last_record_is_the_end():
    """Also where the distance of records, times their number, is one rounding error below the end."""
    rates = np.random.default_rng(5).uniform(0.2, 2, 3)
    result = mpidec.simulate(
        least_squares(3), S.AsyncPushSum(0.02), "ring", steps=50, every=10, rates=rates
    )
    assert result.metrics["step"].tolist() == [0, 10, 20, 30, 40, 50]
