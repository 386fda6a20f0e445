"""How runs end: diverged, missed, failed, stopped, interrupted; what is said, what is in the file, and what a resume does."""

import itertools
import os
import re
import signal
import time
import warnings

import h5py
import numpy as np
import pytest
from helpers import launch

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.driver import outcome as endings
from mpidec.driver.outcome import Target, decide_outcome

pytestmark = pytest.mark.most(1)

N, D = 6, 3


@pytest.fixture
def net():
    with mpidec.Network(N) as net:
        yield net


def least_squares(net, scales=(1.0, 1.0, 1.0), term=None, dtype=np.float64):
    rng = np.random.default_rng(5)
    A, b = rng.standard_normal((N, 5, D)) * scales, rng.standard_normal((N, 5))
    x_star = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    mine = (part[net.lo : net.hi].astype(dtype) for part in (A, b))
    return mpidec.problems.LeastSquares(*mine, x_star=x_star, term=term)


def sparse(net):
    made = least_squares(net, term=mpidec.problems.l1(0.2))
    made.x_star = made.solution()
    return made


class Scripted:
    """A problem whose gradients, and values, are given by functions of the agent and the number of the evaluation."""

    check = False

    def __init__(self, net, grad=lambda agent, k: 0.0, value=lambda agent, x: 0.0):
        self.m, self.d, self.lo = net.m, 1, net.lo
        self._grad, self._value = grad, value

    def start(self, agents, seed):
        return lambda X, k: np.array([[self._grad(agent, k)] for agent in agents]).reshape(-1, 1)

    @property
    def problem(self):
        return self

    def value(self, X):
        return np.array([self._value(self.lo + i, x[0]) for i, x in enumerate(X)]).reshape(-1)

    def grad(self, X):
        return np.zeros_like(X)


# -- diverged ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent, step", [(0, 1), (4, 3), (5, 17)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_agent_and_the_step_of_the_first_iterate_that_is_not_finite(net, agent, step, bad):
    problem = Scripted(net, grad=lambda i, k: bad if (i, k) == (agent, step - 1) else 1.0)
    result = mpidec.solve(problem, S.DGD(0.1, order="cta"), T.ring(N), steps=50, net=net, every=50)
    assert (result.outcome, result.steps, result.agent) == ("diverged", step, agent)
    assert result.reason == f"the iterate of agent {agent} is not finite after step {step}"


def test_a_metric_that_is_not_finite_is_divergence(net, shared_tmp):
    problem = Scripted(
        net, grad=lambda i, k: -1.0, value=lambda i, x: np.nan if i == 4 and x > 0.95 else x
    )
    result = mpidec.solve(
        problem, S.DGD(0.1), T.ring(N), steps=40, net=net, every=4, record=shared_tmp / "run.h5"
    )
    assert (result.outcome, result.steps, result.agent) == ("diverged", 12, 4)
    assert result.reason == "objective is nan after 12 steps (first at agent 4)"
    net.comm.Barrier()
    assert mpidec.read(shared_tmp / "run.h5").outcome == "diverged"


def test_an_infinite_objective_counts_at_the_end(net):
    """A mean outside the domain may enter it later."""
    for until, outcome in ((1.95, "completed"), (100.0, "diverged")):
        problem = Scripted(
            net,
            grad=lambda i, k: -1.0,
            value=lambda i, x, until=until: np.inf if 0.5 < x < until else x,
        )
        result = mpidec.solve(problem, S.DGD(0.1), T.ring(N), steps=20, net=net, every=2)
        assert (result.outcome, result.steps) == (outcome, 20)


def test_an_explosion_is_divergence_at_the_end(net):
    result = mpidec.solve(least_squares(net), S.DGD(3.0), T.ring(N), steps=100, net=net)
    assert np.isfinite(result.X).all() and result.metrics["objective"][-1] > 1e100
    assert (result.outcome, result.steps) == (
        "diverged",
        100,
    ) and "the objective grew from" in result.reason
    norms = np.linalg.norm(net.comm.bcast(net.gather(result.X)), axis=1)
    assert result.agent == int(norms.argmax())


def test_an_iterate_that_comes_back_has_not_exploded(net):
    """Step sizes c / k that start 200 times too large: the iterate grows by 1e57 and still converges."""

    class Decreasing(S.DGD):
        def step(self, s, G, W):
            X = W(s.X - 200.0 / next(count) * G)
            return s._replace(X=X, Phi=X)

    count = itertools.count(1)
    problem = mpidec.problems.Custom(
        lambda X: ((X - 1) ** 2).sum(axis=1) / 2, lambda X: X - 1, net.m, D, x_star=np.ones(D)
    )
    result = mpidec.solve(
        problem, Decreasing(1.0), T.complete(N), steps=400, net=net, x0=np.full(D, 3.0)
    )
    assert result.metrics["objective"].max() > 1e50 and result.metrics["error"][-1] < 1e-6
    assert result.outcome == "completed"


def test_noise_around_a_start_at_the_solution_is_no_explosion():
    start, end = {"objective": 1e-22}, {"objective": 1e-6}
    assert not endings.exploded([start, start, end, end], [1.0, 1.0, 1.0, 1.0])
    assert endings.exploded([{"objective": 2.0}, {"objective": 1e207}], [0.0, 1e103])


@pytest.mark.serial
@pytest.mark.parametrize(
    "values, error, sizes, said",
    [
        ([1.0, 1.0, 1e5, 2e6], None, (1.0, 2e3), "the objective grew from 1 to 2e+06"),
        ([1.0, 3e5, 1e6, 2e6], None, (1.0, 2e3), ""),  # it had grown by the first half of the run
        ([1.0, 1.0, 1e5, 2e6], None, (1.0, 5e2), ""),
        (
            [-1.0, -1.0, -1e5, -2e6],
            None,
            (1.0, 2e3),
            "the objective seems unbounded below: it fell from -1 to -2e+06",
        ),
        ([1.0] * 4, (0.5, 2e3), (1.0, 1.0), "the error grew from 0.5 to 2e+03"),
        ([1.0] * 4, (1e-9, 1e-3), (1.0, 1.0), ""),  # from a start at the solution
        ([1.0] * 4, (5.0, 3e3), (1.0, 1.0), ""),
        ([1.0] * 4, None, (1.0, 2e30), "the rows grew from 1 to 2e+30"),
        (None, None, (1.0, 2e6), "the rows grew from 1 to 2e+06"),
        (None, None, (1.0, 5e5), ""),
    ],
)
def test_what_counts_as_an_explosion(values, error, sizes, said):
    records = [
        {"step": k, "gradient_norm": 1.0} | ({"objective": values[k]} if values else {})
        for k in range(4)
    ]
    if error:
        records[0]["error"], records[-1]["error"] = error
    assert endings.exploded(records, [sizes[0], sizes[0], sizes[1], sizes[1]]) == said


@pytest.mark.serial
@pytest.mark.parametrize(
    "stop, how, last, outcome",
    [
        ({"error": 1.0}, "stopped", {"error": 0.5, "objective": np.nan}, "stopped"),
        ({"rounds": 9}, "stopped", {"error": 1e9}, "diverged"),
        (lambda metrics: True, "stopped", {"error": 1e9}, "diverged"),
        ({"rounds": 9}, "stopped", {}, "stopped"),
        ({"error": 0.1}, "interrupted", {}, "interrupted"),
        ({"error": 0.1}, "interrupted", {"error": np.nan}, "diverged"),
        ({"error": 0.1, "rounds": 9}, "", {}, "missed"),
        ({"rounds": 9}, "", {}, "completed"),
        (None, "", {}, "completed"),
    ],
)
def test_the_outcome_of_the_last_record(stop, how, last, outcome):
    """A target that is reached comes first, then divergence, then budgets, functions and Ctrl-C, then a target that is missed."""
    records = [{"step": 9 * k, "rounds": 9 * k, "error": 1.0, "objective": 1.0} for k in (0, 1)]
    records[1] |= last
    target = endings.Target(stop) if isinstance(stop, dict) else stop
    ways = dict(stopped=how == "stopped", interrupted=how == "interrupted")
    end = endings.decide_outcome(records, [1, 1], "at last", lambda: 3, target=target, **ways)
    assert end.outcome == outcome and (end.agent == 3) == (outcome == "diverged")


class Exponential:
    """f_i(x) = sum(exp(x)) - c_i sum(x): far to the right the gradients explode, far to the left they are constant."""

    def __init__(self, net, known):
        self.m, self.d, self._c = net.m, D, 1.0 + np.arange(net.lo, net.hi)[:, None]
        if known:
            self.x_star = np.full(D, np.log((N + 1) / 2))

    def value(self, X):
        return (np.exp(X) - self._c * X).sum(axis=1)

    def grad(self, X):
        return np.exp(X) - self._c


@pytest.mark.parametrize(
    "known, step_size, text",
    [
        (True, "auto", "the error grew from .* to .*e.12"),
        (False, 1e-3, "the rows grew from .* to .*e.12"),
    ],
)
@pytest.mark.filterwarnings("ignore:EXTRA")
def test_a_run_that_one_step_has_thrown_far_away_has_diverged(net, known, step_size, text):
    """The objective is smaller than at the start, and the gradient, too."""
    result = mpidec.solve(
        Exponential(net, known),
        S.EXTRA(step_size),
        T.ring(N),
        steps=200,
        x0=np.full(D, 300.0),
        net=net,
    )
    assert result.outcome == "diverged" and re.search(text, result.reason)
    assert result.metrics["objective"][-1] < result.metrics["objective"][0]


@pytest.mark.filterwarnings("ignore:EXTRA")
def test_the_last_attempt_that_ends_farther_away_than_it_began_has_diverged(net):
    problem = mpidec.problems.Custom(
        lambda X: np.exp(X**2).sum(axis=1), lambda X: 2 * X * np.exp(X**2), net.m, D
    )
    result = mpidec.solve(
        problem, S.EXTRA("auto"), T.ring(N), steps=200, x0=np.full(D, 5.0), net=net
    )
    assert result.outcome == "diverged"
    assert re.search(
        "from the point of the linear model, .* at the start, .*as it was with the 6 larger step sizes tried before: start",
        result.reason,
    )


def test_a_missed_target_far_away_does_not_blame_the_bias_of_an_exact_method(net):
    result = mpidec.solve(
        Exponential(net, False),
        S.EXTRA(1e-30),
        T.ring(N),
        steps=100,
        x0=np.full(D, 30.0),
        net=net,
        stop={"gradient_norm": 1e-6},
    )
    assert (
        result.outcome == "missed"
        and "as at the start: take more steps, or a step size larger than 1e-30" in result.reason
        and "bias" not in result.reason
    )


# -- codecs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver, codec, options, text",
    [
        (
            S.ExactDiffusion(0.02),
            "top_k",
            {"k": 1, "feedback": False},
            "without error feedback: leave out feedback=False",
        ),
        (S.EXTRA(0.02), "rand_k", {"k": 1}, "delta of 0.333 for rows of 3; expected >= 0.6"),
        (S.PushDIGing(0.02), "qsgd", {"feedback": True}, "expected >= 0.9999"),
        (S.PushDIGing(0.02), "qsgd", {"feedback": False}, "without error feedback: leave out"),
        (S.ExactDiffusion(0.02), "blockwise8", {"feedback": True}, ""),
        (S.EXTRA(0.02), "bfloat16", {}, ""),
        (S.EXTRA(0.02), "identity", {"feedback": False}, ""),
        (S.DGD(0.02), "top_k", {"k": 1, "feedback": False}, ""),
        (S.GradientTracking(0.02), "top_k", {"k": 1}, ""),
        (S.PushDIGing(0.02), "bfloat16", {}, ""),
    ],
    ids=str,
)
def test_a_codec_that_does_not_fit_the_method_is_named(net, solver, codec, options, text):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mpidec.solve(
            least_squares(net),
            solver,
            T.ring(N),
            steps=3,
            net=net,
            mixing=lambda W: W.compress(codec, **options),
        )
    told = [str(one.message) for one in caught]
    assert len(told) == (net.rank == 0 and bool(text)) and all(text in one for one in told)


@pytest.mark.serial
def test_a_codec_that_limits_the_accuracy_is_the_cause_of_a_missed_target(net):
    run = lambda feedback: mpidec.solve(
        least_squares(net),
        S.EXTRA(0.05),
        T.ring(N),
        steps=1500,
        net=net,
        stop={"error": 1e-8},
        mixing=lambda W: W.compress("bfloat16", feedback=feedback),
    )
    missed = run(False)
    assert missed.outcome == "missed"
    assert (
        "BFloat16() without error feedback limits the accuracy: leave out feedback=False"
        in missed.reason
    )
    assert run(True).outcome == "stopped"


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_the_errors_of_agents(net):
    problem = least_squares(net)
    result = mpidec.solve(problem, S.DGD(0.02), T.ring(N), steps=7, net=net, every=7)
    away = np.linalg.norm(
        net.comm.bcast(net.gather(result.X)) - problem.x_star, axis=1
    ) / np.linalg.norm(problem.x_star)
    np.testing.assert_allclose(
        result.metrics["error_rms"][-1], np.sqrt((away**2).mean()), rtol=1e-13
    )
    np.testing.assert_allclose(result.metrics["error_max"][-1], away.max(), rtol=1e-13)


@pytest.mark.parametrize(
    "solver, gradients",
    [(S.DGD(0.02), 1), (S.GradientTracking(0.02), 1), (S.Consensus(), 0)],
    ids=repr,
)
def test_what_a_method_needs_is_counted(net, solver, gradients):
    problem = least_squares(net)
    result = mpidec.solve(problem, solver, T.ring(N), steps=20, net=net)
    assert result.metrics["step"].tolist() == [0, 10, 20]  # every 10 steps by default
    assert (
        result.metrics["gradients"].tolist() == [0, 10 * gradients, 20 * gradients]
        and not result.metrics["prox"].any()
    )
    assert (
        np.array_equal(result.metrics["bytes"], 8 * D * result.metrics["rows"])
        and result.metrics["rows"][-1] >= 20 * N * 2
    )
    assert result.metrics["bytes"].dtype == result.metrics["rows"].dtype == np.int64


@pytest.mark.parametrize("name", ["error_rms", "error_max", "gradient_norm"])
def test_a_target_for_each_metric(net, name):
    result = mpidec.solve(
        least_squares(net),
        S.GradientTracking(0.05),
        T.complete(N),
        steps=5000,
        net=net,
        stop={name: 1e-6},
    )
    assert (
        result.outcome == "stopped" and result.metrics[name][-1] <= 1e-6 < result.metrics[name][-2]
    )


def test_a_budget_is_no_target(net):
    problem = least_squares(net)
    assert (
        mpidec.solve(
            problem, S.DGD(0.02), T.ring(N), steps=20, net=net, stop={"bytes": 10**9}
        ).outcome
        == "completed"
    )
    result = mpidec.solve(
        problem, S.DGD(0.02), T.ring(N), steps=200, net=net, stop={"gradients": 30}
    )
    assert (result.outcome, result.steps) == ("stopped", 30)


# -- missed -----------------------------------------------------------------------------------------------------------

CAUSES = {
    "columns": (
        lambda net: least_squares(net, (1, 1, 1e-3)),
        S.GradientTracking(0.02),
        300,
        r"\(column [01] the largest, column 2 the smallest.*standardize",
    ),
    "bias": (least_squares, S.DGD(0.02), 3000, "a method with a bias"),
    "steps": (
        least_squares,
        S.GradientTracking(0.01),
        100,
        r"about [\d,]+ more steps at this rate",
    ),
    "step size": (
        least_squares,
        S.Diffusion(0.4),
        10,
        "the objective grew from .*: use a step size smaller than 0.4",
    ),
    "not smooth": (
        lambda net: mpidec.problems.Subgradient(sparse(net)),
        S.GradientTracking(0.02),
        500,
        "not smooth, .* proximal steps, such as nids",
    ),
    "float32, by few batches": (
        lambda net: mpidec.problems.SARAH(least_squares(net, dtype=np.float32), 2),
        S.GradientTracking(0.02),
        3000,
        "the accuracy of float32",
    ),
    "noise": (
        lambda net: mpidec.problems.Noisy(least_squares(net), 1.0),
        S.DGD(0.02),
        2000,
        "the gradients are random",
    ),
}


@pytest.mark.parametrize(
    "case",
    ["columns", *(pytest.param(case, marks=pytest.mark.serial) for case in list(CAUSES)[1:])],
)
def test_a_missed_target_is_said_with_its_cause(net, shared_tmp, case):
    make, solver, steps, words = CAUSES[case]
    result = mpidec.solve(
        make(net),
        solver,
        T.ring(N),
        steps=steps,
        net=net,
        stop={"error": 1e-8},
        record=shared_tmp / "run.h5",
    )
    assert result.outcome == "missed"
    assert result.reason.startswith(
        f"error {result.metrics['error'][-1]:.3g} after {steps} steps, target 1e-8 missed: "
    )
    assert re.search(words, result.reason), result.reason
    net.comm.Barrier()
    assert mpidec.read(shared_tmp / "run.h5").outcome == "missed"


@pytest.mark.serial
@pytest.mark.parametrize(
    "words, steps, limit, dtype, mixing",
    [
        (
            "about [0-9]+ more steps at this rate: take more steps, or a graph",
            20,
            1e-12,
            "f8",
            None,
        ),
        ("accuracy of float64, the dtype of x0", 900, 1e-17, "f8", None),
        ("accuracy of float32, the dtype of x0", 900, 1e-12, "f4", None),
        (
            "channel noise of 0.01 .* not reach the average",
            300,
            1e-8,
            "f8",
            lambda W: W.noisy(0.01),
        ),
    ],
)
def test_averaging_is_told_neither_step_sizes_nor_minimizers(words, steps, limit, dtype, mixing):
    rows = np.random.default_rng(1).standard_normal((7, 3)).astype(dtype)
    solved = lambda problem, stop: mpidec.solve(
        problem, "consensus", T.ring(7), x0=rows, steps=steps, stop=stop, mixing=mixing
    )
    missed = solved(None, {"consensus": limit})
    assert missed.outcome == "missed" and re.search(words, missed.reason), missed.reason
    assert not re.search("step size|minimizer|larger ones", missed.reason)
    problem = mpidec.problems.load_problem("synthetic_least_squares", 7, p=4, d=3)
    assert "averages the rows of x0" in solved(problem, {"error": 1e-8}).reason


@pytest.mark.serial
def test_the_estimate_of_the_steps_is_right(net):
    problem = least_squares(net)
    solver, stop = S.GradientTracking(0.02), {"error": 1e-8}
    run = lambda steps, every=1: mpidec.solve(
        problem, solver, T.complete(N), steps=steps, every=every, net=net, stop=stop
    )
    reached = run(5000)
    for every in (1, 5, 20):
        missed = run(200, every)
        more = int(missed.reason.partition("about ")[2].partition(" more")[0].replace(",", ""))
        assert 0.5 < more / (reached.steps - 200) < 2


# -- failed -----------------------------------------------------------------------------------------------------------


class Fails:
    """An oracle that raises at one step, on all ranks or on that of one agent."""

    def __init__(self, problem, step, agent=None):
        self.problem, self.step, self.agent = problem, step, agent

    def start(self, agents, seed):
        def gradient(X, k):
            if k == self.step and (self.agent is None or self.agent in agents):
                raise ArithmeticError(f"no gradient of agents {agents.start} to {agents.stop - 1}")
            return self.problem.grad(X)

        return gradient


@pytest.mark.parametrize("agent", [None, 0, N - 1])
def test_an_exception_of_a_gradient_is_raised_everywhere_and_written(net, shared_tmp, agent):
    record = mpidec.Record(shared_tmp / "run.h5", flush_seconds=1000)
    with pytest.raises(ArithmeticError, match="no gradient of agents"):
        mpidec.solve(
            Fails(least_squares(net), 57, agent),
            S.GradientTracking(0.02),
            T.ring(N),
            steps=1000,
            net=net,
            record=record,
        )
    run = mpidec.read(
        shared_tmp / "run.h5"
    )  # on every rank: all of it was written before any of them raised
    assert (run.outcome, run.x) == ("failed", None)
    assert run.metrics["step"].tolist() == [0, 10, 20, 30, 40, 50]
    assert run.steps == 50
    net.comm.Barrier()
    result = mpidec.solve(least_squares(net), S.DGD(0.02), T.ring(N), steps=10, net=net)
    assert result.outcome == "completed"  # the network is still in step


def test_an_exception_of_a_step_is_written(net, shared_tmp):
    class Broken(S.DGD):
        def step(self, s, G, W):
            s = super().step(s, G, W)
            if W.rounds > 33 if hasattr(W, "rounds") else next(steps) == 33:
                raise ArithmeticError("broken")
            return s

    steps = iter(range(1000))
    with pytest.raises(ArithmeticError, match="broken"):
        mpidec.solve(
            least_squares(net),
            Broken(0.02),
            T.ring(N),
            steps=100,
            net=net,
            record=shared_tmp / "run.h5",
        )
    net.comm.Barrier()
    run = mpidec.read(shared_tmp / "run.h5")
    taken = run.metrics[
        "step"
    ].tolist()  # a rank without agents may be ahead, and end the others' record of 30
    assert run.outcome == "failed" and taken in ([0, 10, 20, 30], [0, 10, 20])


class Leaves(S.DGD):
    """A solver that goes wrong on one rank: in `init`, or in one step before or after its mixing."""

    keeps_rows = True

    def __init__(self, where, here):
        super().__init__(0.02)
        object.__setattr__(self, "where", where if here else "")
        object.__setattr__(self, "steps", itertools.count())

    def __repr__(self):
        return "Leaves()"  # the same on all ranks

    def _maybe(self, where):
        if self.where == where:
            raise ArithmeticError(f"broken {where}")

    def init(self, X, W=None):
        self._maybe("init")
        return super().init(X, W)

    def step(self, s, G, W):
        if next(self.steps) != 33:
            return super().step(s, G, W)
        self._maybe("before")
        if self.where == "shape":
            s, G = s._replace(X=np.zeros((len(G), D + 1))), np.zeros((len(G), D + 1))
        if self.where == "dtype":
            s, G = s._replace(X=s.X.astype(np.float32)), G.astype(np.float32)
        s = super().step(s, G, W)
        self._maybe("after")
        return s


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("transport", ["auto", "p2p"])
@pytest.mark.parametrize("rank", [0, -1])
@pytest.mark.parametrize("where", ["init", "before", "after", "shape", "dtype"])
def test_what_a_solver_raises_on_one_rank_is_raised_on_all_and_written(
    comm, shared_tmp, transport, rank, where
):
    path, error, text = shared_tmp / "run.h5", ArithmeticError, f"broken {where}"
    if where in ("shape", "dtype"):
        error, text = (
            ValueError,
            "rank .* and rank .* mix different things|rank .* has rows .* rank",
        )
    began = time.monotonic()
    with mpidec.Network(N, transport=transport) as net:
        solver = Leaves(where, net.rank == rank % min(net.size, N))  # a rank with agents
        with pytest.raises(error, match=text):
            mpidec.solve(
                least_squares(net),
                solver,
                T.complete(N),
                steps=100,
                net=net,
                record=mpidec.Record(path, flush_seconds=1000),
            )
        if where != "init":
            run = mpidec.read(path)  # on every rank: written before any of them raised
            assert run.outcome == "failed" and run.metrics["step"].tolist() == [0, 10, 20, 30]
            assert re.search(
                f"{error.__name__ if error is ArithmeticError else 'RankMismatchError'}: ({text})",
                run.reason,
            )
        assert time.monotonic() - began < launch.patient(10)
        with pytest.raises(RuntimeError, match="out of step"):
            net.mean(np.zeros((net.m, 1)))
    with mpidec.Network(N) as net:
        result = mpidec.solve(least_squares(net), S.DGD(0.02), T.ring(N), steps=10, net=net)
    assert result.outcome == "completed"


# -- resumed ----------------------------------------------------------------------------------------------------------


def test_a_resume_of_a_run_at_its_target_takes_no_further_steps(net, shared_tmp):
    path, problem = shared_tmp / "run.h5", least_squares(net)
    run = lambda stop, **options: mpidec.solve(
        problem,
        S.GradientTracking(0.05),
        T.complete(N),
        steps=5000,
        net=net,
        stop=stop,
        record=mpidec.Record(path, **options),
    )
    first = run({"error": 1e-6})
    again = run({"error": 1e-6}, resume=True)
    assert (again.outcome, again.steps, again.metrics["step"].tolist()) == (
        "stopped",
        first.steps,
        [first.steps],
    )
    np.testing.assert_array_equal(again.X, first.X)
    net.comm.Barrier()
    stored = mpidec.read(path)
    assert (stored.outcome, stored.steps) == ("stopped", first.steps)
    np.testing.assert_array_equal(stored.metrics["step"], first.metrics["step"])
    net.comm.Barrier()
    further = run({"error": 1e-9}, resume=True)
    assert further.outcome == "stopped" and further.steps > first.steps
    for name in ("rows", "gradients", "bytes", "rounds"):
        assert further.metrics[name][-1] > first.metrics[name][-1]
    np.testing.assert_array_equal(further.X, run({"error": 1e-9}, replace=True).X)


def test_an_interrupt_before_the_first_step_ends_the_run_with_a_file(net, shared_tmp):
    from mpidec.comm.runtime.interruption import interrupts

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts():
            if net.rank == net.size - 1:
                os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(mpidec.Interrupted) as caught:
                mpidec.solve(
                    least_squares(net),
                    S.DGD(0.02),
                    T.ring(N),
                    steps=10**6,
                    net=net,
                    record=shared_tmp / "run.h5",
                )
    finally:
        signal.signal(signal.SIGINT, former)
    result = caught.value.result
    assert (result.outcome, result.steps) == ("interrupted", 1)
    net.comm.Barrier()
    with h5py.File(shared_tmp / "run.h5") as file:
        assert (
            file["metrics/step"][...].tolist() == [0, 1] and file["checkpoint"].attrs["step"] == 1
        )


@pytest.mark.serial
def test_the_file_holds_the_objective_at_the_solution(tmp_path):
    problem = mpidec.problems.load_problem("synthetic_least_squares", 4, p=6, d=3)
    mpidec.solve(problem, "extra", "ring", steps=400, record=tmp_path / "run.h5")
    run = mpidec.read(tmp_path / "run.h5")
    assert run.attributes["f_star"] == pytest.approx(run.metrics["objective"][-1], rel=1e-12)
    assert run.attributes["f_star"] == pytest.approx(
        problem.value(np.tile(problem.x_star, (4, 1))).mean(), rel=1e-14
    )


@pytest.mark.serial
def test_a_target_beside_a_budget_is_one_of_quality():
    """A run that reaches it has stopped, whatever its objective has done; one at a budget has not."""
    records = [
        {"step": k, "error": 1e-9, "rounds": k, "objective": f, "gradient_norm": f}
        for k, f in ((0, 1.0), (1, 1e3), (2, 1e9))
    ]
    for limits, quality in (
        ({"error": 1e-8}, True),
        ({"error": 1e-8, "rounds": 2}, True),
        ({"rounds": 2, "bytes": 1}, False),
    ):
        target = Target(limits)
        assert target.is_quality == quality
        end = decide_outcome(
            records, [1.0, 1e4, 1e9], "then", lambda: 0, target=target, stopped=True
        )
        assert end.outcome == ("stopped" if quality else "diverged")
