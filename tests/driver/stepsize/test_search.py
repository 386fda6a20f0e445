"""Searches for step sizes against scans and single runs, on ranks, with schedules, and what a file keeps of them."""

import math
import sys
import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.proximal import PEXTRA
from helpers.squares import D, data, squares
from mpi4py import MPI
from programs import stepsizes

import mpidec
from mpidec import problems as P, record, solvers as S, topology as T
from mpidec.driver.stepsize import Task, search as searching
from mpidec.experiment import command as run
from mpidec.solvers.base import at_step, with_step_size
from mpidec.solvers.step_schedules import parsed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALL = [
    (S.GradientTracking(), T.ring),
    (S.GradientTracking(variant="semi-atc"), T.exponential),
    (S.GradientTracking(variant="diging"), T.one_peer_exponential),
    (S.EXTRA(), T.ring),
    (S.ExactDiffusion(), T.grid),
    (S.D2(), T.star),
    (S.PushDIGing(), T.exponential),
    (S.RelaySGD(), T.chain),
    (S.RelaySGD(relay="gradient"), T.binary_tree),
    (S.DGD(order="atc"), T.ring),
    (S.DGD(order="cta"), T.one_peer_exponential),
    (S.DGD(order="awc"), T.ring),
    (S.Diffusion(), T.exponential),
    (S.PushSum(), T.exponential),
    (S.DSGDCECA(), T.ceca),
    (S.DecentralizedMomentum(), T.ring),
    (S.QuasiGlobalMomentum(), T.ring),
    (S.DecentLaM(), T.ring),
    (S.LocalDGD(local_steps=2), T.ring),
    (S.SlowMo(local_steps=2), T.complete),
    (S.DiLoCo(local_steps=3), T.ring),
    (S.GASLoC(local_steps=2), T.ring),
    (S.KGT(local_steps=2), T.ring),
    (S.LED(local_steps=2), T.ring),
]
EXACT = [case for case in ALL if case[0].exact]


def label(case):
    return repr(case) if isinstance(case, S.Solver) else getattr(case, "__name__", None)


@dataclass(frozen=True)
class Tracking(S.Solver):
    """Gradient tracking as the documentation writes it."""

    step_size: Any = "auto"

    class State(NamedTuple):
        X: np.ndarray
        WY: np.ndarray
        G: np.ndarray

    def init(self, X, W=None):
        return self.State(X, np.zeros_like(X), np.zeros_like(X))

    def step(self, s, G, W):
        Y = s.WY + G - s.G
        X, WY = W([s.X - self.step_size * Y, Y])
        return self.State(X, WY, G)


@pytest.mark.parametrize("solver, graph", [*ALL, (Tracking(), T.ring)], ids=label)
def test_columns_of_one_stack_are_single_runs(solver, graph):
    n, sizes = 6, np.array([0.03, 0.1, 0.2])
    rng = np.random.default_rng(1)
    X0, C, B = (rng.standard_normal((n, D)) for _ in range(3))
    with mpidec.Network(n) as net:
        W, own = net.mixer(graph(n)), slice(net.lo, net.hi)

        def final(solver, repeat):
            X, C_, B_ = (np.repeat(Z[own], repeat, axis=1) for Z in (X0, C**2, B))
            s = solver.init(X, W.at(0))
            for k in range(20):
                s = solver.step(s, C_ * (solver.point(s) - B_), W.at(k))
            return s.X.reshape(net.m, D, repeat)

        stack = final(with_step_size(solver, np.tile(sizes, D)), 3)
        for j, size in enumerate(sizes):
            np.testing.assert_allclose(
                stack[:, :, j],
                final(with_step_size(solver, size), 1)[:, :, 0],
                rtol=1e-12,
                atol=1e-12,
            )


@pytest.mark.parametrize(
    "solver, graph", [*ALL, (Tracking(), T.ring), (PEXTRA(), T.ring)], ids=label
)
@pytest.mark.filterwarnings("ignore:.*unstable")
def test_auto_has_the_same_bits_on_any_number_of_ranks(solver, graph):
    n = 6
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        ours, one = (
            mpidec.solve(squares(a), solver, graph(n), steps=300, net=a, every=300)
            for a in (net, alone)
        )
        assert ours.step_size == one.step_size == ours.choice.step_size > 0
        assert ours.choice.predicted.tolist() == one.choice.predicted.tolist()
        np.testing.assert_array_equal(ours.x, one.x)
        if solver.exact:
            np.testing.assert_allclose(ours.x, data(n)[2], rtol=1e-6)


@pytest.mark.parametrize("schedule, steps", [(S.Inverse(), 600), (S.InverseSqrt(), 800)])
def test_pilots_choose_the_same_on_any_number_of_ranks(schedule, steps):
    """The minimizer is far from the initial point, where the curvature is 20 times as large."""
    n = 6
    rng = np.random.default_rng(4)
    A = 3 * rng.standard_normal((n, 12, D))
    y = np.sign(A @ [1.0, -1.0, 0.5, 0.0])

    def problem(net):
        return P.LogisticRegression(A[net.lo : net.hi], y[net.lo : net.hi], l2=0.01)

    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        ours, one = (
            mpidec.tune(problem(a), S.Diffusion(schedule), T.ring(n), steps=steps, net=a)
            for a in (net, alone)
        )
        assert ours.step_size == one.step_size and ours.predicted.tolist() == one.predicted.tolist()
        assert steps / 4 < ours.gradients == one.gradients <= steps / 2
        assert ours.expected < np.inf


def test_trial_runs_allow_larger_steps_where_there_is_a_term():
    """Agents with labels of one kind: the linear model is unstable until the face is reached, the functions are not."""
    pytest.importorskip("sklearn")
    n, steps = 9, 800
    whole = P.load_problem("breast_cancer", n=n, l1=2.0, partition="sorted")

    def problem(net):
        mine = slice(net.lo, net.hi)
        mask = None if whole.mask is None else whole.mask[mine]
        return P.LogisticRegression(whole.A[mine], whole.y[mine], mask=mask, **whole.options)

    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        ours, one = (
            mpidec.tune(problem(a), S.PGEXTRA(), T.ring(n), steps=steps, net=a)
            for a in (net, alone)
        )
        assert ours.step_size == one.step_size and ours.predicted.tolist() == one.predicted.tolist()
        assert ours.note.endswith("in trial runs") and str(ours).count("<- chosen") == 1
        end = mpidec.solve(problem(net), S.PGEXTRA(ours.step_size), T.ring(n), steps=300, net=net)
        np.testing.assert_allclose(end.x, whole.solution(), atol=1e-6)  # 480 steps in the model


@pytest.mark.serial
@pytest.mark.parametrize("seed, l1, larger", [(0, 30.0, False), (2, 30.0, True)])
def test_trial_runs_are_bounded_by_the_predicted_run(seed, l1, larger):
    """However many steps the run may take; and a larger step size is taken where it is better, as the run shows."""
    rng = np.random.default_rng(seed)
    A, x = rng.standard_normal((200, 30)), np.zeros(30)
    x[:5] = 3 * rng.standard_normal(5)
    b = A @ x + 0.5 * rng.standard_normal(200)
    problem = P.load_problem((A, b), 10, problem="least_squares", partition="iid", l1_total=l1)
    x_star, problem.x_star = problem.solution(), None
    graph = T.symmetric_exponential(10)
    found = [mpidec.tune(problem, S.PGEXTRA(), graph, steps=steps) for steps in (3000, 30000)]
    problem.x_star = x_star
    assert found[0].gradients == found[1].gradients and found[0].step_size == found[1].step_size
    steps = [
        mpidec.solve(
            problem, S.PGEXTRA(size), graph, steps=300, every=1, stop={"error": 1e-6}
        ).steps
        for size in found[0].step_size * 2 ** (np.array([0, -1, 1]) / 4)
    ]
    assert steps[0] <= 1.05 * min(steps) and 34 < found[0].gradients <= 34 + 1.5 * steps[0]
    assert found[0].note.endswith("in trial runs") == larger


@pytest.mark.serial
@pytest.mark.parametrize(
    "case, n, graph, method",
    [
        ("wine", 6, "ring", "gt"),
        ("wine", 16, "one_peer", "gt"),
        ("wine", 6, "ring", "ed"),
        ("breast_cancer", 6, "exponential", "gt"),
        ("synthetic", 16, "ring", "extra"),
        ("synthetic", 6, "grid", "dgd"),
        ("synthetic", 6, "ring", "dgd_constant"),
        ("synthetic", 6, "exponential", "gt"),  # 40 steps
        ("dependent", 6, "ring", "ed"),  # directions that no run reaches are slow
        (
            "huber",
            6,
            "one_peer",
            "dgd_1/k",
        ),  # bounded slope: only the linear model explodes in the first steps
        pytest.param("separable", 6, "one_peer", "dgd_1/k", marks=pytest.mark.slow),
    ],
)  # pilots
def test_auto_is_as_good_as_the_best_of_a_scan(case, n, graph, method):
    pytest.importorskip("sklearn")
    most = {"dgd": 200, "dgd_constant": 1000, "dgd_1/k": 1000}.get(method, 20000)
    row = stepsizes.compare(case, n, graph, method, most)
    assert row["ratio"] <= 1.3 and row["cost"] <= 0.5, row


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(1800)
def test_auto_against_scans_in_a_table():
    pytest.importorskip("sklearn")
    small = [name for name in stepsizes.PROBLEMS if name != "digits"]
    methods = ["gt", "extra", "ed", "dgd", "dgd_1/k"]
    found = (
        stepsizes.table(small, [6], stepsizes.GRAPHS, methods)
        + stepsizes.table(small, [16], ["ring", "one_peer"], methods)
        + stepsizes.table(["digits"], [6], ["exponential"], ["gt"])
    )
    ratios = np.array([row["ratio"] for row in found])
    assert (
        np.median(ratios) <= 1.05 and np.quantile(ratios, 0.9) <= 1.3 and ratios.max() <= 2
    )  # a run that diverges: inf
    assert max(row["cost"] for row in found if row["steps"] > 50) <= 0.5


@pytest.mark.serial
@pytest.mark.parametrize("far", [10, 1000])
@pytest.mark.parametrize("solver", [S.GradientTracking(), S.EXTRA()], ids=label)
def test_auto_converges_from_far_away(solver, far):
    rng = np.random.default_rng(0)
    A, y = rng.standard_normal((6, 20, 3)), np.sign(rng.standard_normal((6, 20)))
    problem = P.LogisticRegression(A, y, l2=0.1)
    x = problem.solution()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = mpidec.solve(
            problem,
            solver,
            T.ring(6),
            steps=4000,
            x0=far * np.linalg.norm(x) * np.ones(3),
            every=4000,
        )
    assert result.outcome == "completed" and np.linalg.norm(result.x - x) < 1e-6


@pytest.mark.serial
@pytest.mark.parametrize("solver", [S.DGD(), S.Diffusion()], ids=label)
def test_the_error_of_biased_methods_is_predicted_where_the_first_gradients_are_small(solver):
    """Student's loss is nearly flat at large residuals, where a linear model is too optimistic."""
    n, x = 4, np.full(3, 3.0)
    rng = np.random.default_rng(1)
    A = rng.standard_normal((n, 20, 3))
    b = A @ x + 0.3 * rng.standard_normal((n, 20))

    def residuals(X):
        return (A @ X[:, :, None])[:, :, 0] - b

    def grad(X):
        r = residuals(X)
        return (A * (2 * r / (1 + r * r))[:, :, None]).mean(axis=1)

    problem = P.Custom(lambda X: np.log1p(residuals(X) ** 2).mean(axis=1), grad, m=n, d=3)
    minimizer = mpidec.solve(problem, S.ExactDiffusion(0.1), T.complete(n), steps=2000, every=2000)
    result = mpidec.solve(problem, solver, T.ring(n), steps=640, every=640)
    away = np.linalg.norm(result.X - minimizer.x) / (np.sqrt(n) * np.linalg.norm(minimizer.x))
    assert result.choice.expected == pytest.approx(away, rel=0.1) and away < 0.01


def test_a_step_size_that_is_unstable_in_the_model_is_reduced():
    n = 4
    with mpidec.Network(n) as net:
        problem, X0 = squares(net), np.zeros((net.m, D))
        task = Task(net, P.Full(problem), S.ExactDiffusion(), X0, steps=400, seed=0, tol=1e-6)
        search = searching.Search(task, T.ring(n), net.mixer(T.ring(n)))
        found = search()
        with np.errstate(all="ignore"):
            unstable = 4 * found.step_size
            reduced = search.smaller(replace(found, step_size=2 * unstable)).step_size
            for size, converges in ((unstable, False), (reduced, True)):
                W, s = net.mixer(T.ring(n)), S.ExactDiffusion(size).init(X0)
                for _ in range(400):
                    s = S.ExactDiffusion(size).step(s, problem.grad(s.X), W)
                assert bool(net.sum((s.X - data(n)[2]) ** 2).sum() < 0.1) == converges, size


def test_safe_is_a_bound():
    n = 6
    with mpidec.Network(n) as net:
        largest = max(net.comm.allgather(squares(net).smoothness.max(initial=0)))
        for solver, graph in EXACT[:4]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = mpidec.solve(
                    squares(net),
                    with_step_size(solver, "safe"),
                    graph(n),
                    steps=1000,
                    net=net,
                    every=1000,
                )
            assert 0.01 / largest < result.step_size <= 1.001 / largest, solver
            np.testing.assert_allclose(result.x, data(n)[2], atol=1e-2)


def test_safe_needs_the_smoothness():
    with mpidec.Network(3) as net:
        problem = P.Custom(lambda X: (X**2).sum(axis=1), lambda X: 2 * X, m=net.m, d=1)
        assert (
            mpidec.solve(problem, S.EXTRA(), T.ring(3), steps=30, x0=[1.0], net=net).step_size > 0
        )
        own = SimpleNamespace(m=net.m, d=1, value=problem.value, grad=problem.grad)
        for functions in (problem, own):
            with pytest.raises(ValueError, match=r"step_size=.safe.*smoothness"):
                mpidec.solve(functions, S.EXTRA("safe"), T.ring(3), steps=3, net=net)


def test_a_function_that_is_not_convex_gets_a_bound():
    with mpidec.Network(4) as net:
        problem = P.Custom(
            lambda X: np.cos(X).sum(axis=1),
            lambda X: -np.sin(X),
            m=net.m,
            d=1,
            smoothness=1.0,
            x_star=[0.0],
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = mpidec.solve(
                problem, S.GradientTracking(), T.ring(4), steps=500, x0=[0.1], net=net
            )
        assert result.choice.rule == "safe" and result.outcome == "completed"
        np.testing.assert_allclose(abs(result.x), np.pi, rtol=1e-6)
        assert net.rank or any("no step size converges" in str(one.message) for one in caught)


@pytest.mark.parametrize(
    "oracle", [lambda problem: P.MiniBatch(problem, 2), lambda problem: P.Noisy(problem, 0.5)]
)
def test_random_gradients_get_smaller_steps_for_longer_runs(oracle):
    with mpidec.Network(4) as net:
        short, long = (
            mpidec.tune(oracle(squares(net)), S.GradientTracking(), T.ring(4), steps=steps, net=net)
            for steps in (100, 3000)
        )
        assert (
            short.rule == long.rule == "error"
            and long.step_size < short.step_size
            and long.expected < short.expected
        )


@pytest.mark.serial
def test_the_step_size_with_variance_reduction_is_verified_by_trial_runs():
    """Few samples have most of the curvature, which the draws of the model may miss."""
    rng = np.random.default_rng(1)
    A = rng.standard_normal((160, 4))
    A[::10] *= 6
    y = np.sign(A @ np.ones(4) + rng.standard_normal(160))
    whole = P.load_problem((A, y), 4, problem="logistic", partition="sorted", l2_total=1.0)
    x_star, whole.x_star = whole.solution(), None
    oracle, steps = P.SAGA(whole, 1), 2000
    found = mpidec.tune(oracle, S.ExactDiffusion(), T.ring(4), steps=steps)
    assert found.note.endswith("in trial runs") and 1000 < found.expected < 2000
    for factor, least, most in ((1, 0, 1e-6), (2, 1e-3, np.inf)):
        solver = S.ExactDiffusion(factor * found.step_size)
        X = mpidec.solve(oracle, solver, T.ring(4), steps=steps, every=steps).X
        assert least <= np.linalg.norm(X - x_star) / (2 * np.linalg.norm(x_star)) < most


def test_a_class_derived_from_full_gradients_has_their_step_size():
    class Counted(P.Full):
        pass

    with mpidec.Network(4) as net:
        full, counted = (
            mpidec.tune(oracle(squares(net)), S.EXTRA(), T.ring(4), steps=100, net=net)
            for oracle in (P.Full, Counted)
        )
        assert full.rule == counted.rule == "steps" and full.step_size == counted.step_size


@pytest.mark.most(1)
@pytest.mark.parametrize(
    "mixing",
    [
        lambda W: W.accelerate(3),
        lambda W: W.compress("blockwise8", feedback=True),
        lambda W: W.compress("bfloat16").accelerate(2),
    ],
)
def test_auto_with_other_mixers(mixing):
    with mpidec.Network(6) as net:
        result = mpidec.solve(
            squares(net), S.ExactDiffusion(), T.ring(6), steps=300, net=net, mixing=mixing
        )
        assert result.choice.rule == "steps" and np.linalg.norm(result.x - data(6)[2]) < 0.1
        counts = mpidec.solve(
            squares(net),
            S.ExactDiffusion(result.step_size),
            T.ring(6),
            steps=300,
            net=net,
            mixing=mixing,
        )
        np.testing.assert_array_equal(result.x, counts.x)
        np.testing.assert_array_equal(
            result.metrics["bytes"], counts.metrics["bytes"]
        )  # the search is not counted


@pytest.mark.serial
def test_a_codec_that_no_step_size_helps_is_said():
    problem, _ = stepsizes.make("synthetic", 16)
    for options in ({"codec": "qsgd", "feedback": True}, {"codec": "top_k", "fraction": 0.25}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mpidec.tune(
                problem,
                S.ExactDiffusion(),
                T.ring(16),
                mixing=lambda W, options=options: W.compress(**options),
            )
        assert any("whatever the step size" in str(one.message) for one in caught) == (
            options["codec"] == "top_k"
        )


SCHEDULED = [
    S.Constant(0.1),
    S.Inverse(0.3, delay=5),
    S.InverseSqrt(0.3, delay=1),
    S.StepDecay(0.2, 0.5, every=7),
    S.Cosine(0.2, steps=15),
    S.WarmUp(0.2, steps=6, then=S.Cosine(steps=10)),
    S.WarmUp(0.2, steps=4),
]
FORMULAS = [
    lambda k: 0.1,
    lambda k: 0.3 / (1 + k / 5),
    lambda k: 0.3 / math.sqrt(1 + k),
    lambda k: 0.2 * 0.5 ** (k // 7),
    lambda k: 0.2 * (0.01 + 0.495 * (1 + math.cos(math.pi * min(k / 15, 1)))),
    lambda k: (
        0.2 * (k + 1) / 6
        if k < 6
        else 0.2 * (0.01 + 0.495 * (1 + math.cos(math.pi * min((k - 6) / 10, 1))))
    ),
    lambda k: 0.2 * min(k + 1, 4) / 4,
]


@pytest.mark.parametrize(
    "schedule, formula", list(zip(SCHEDULED, FORMULAS)), ids=lambda case: getattr(case, "name", "")
)
def test_schedules_are_loops_by_hand(schedule, formula):
    assert parsed(str(schedule)) == schedule
    n = 4
    for solver, graph in (
        (S.DGD(schedule), T.ring),
        (S.GradientTracking(schedule), T.grid),
        (PEXTRA(schedule), T.ring),
    ):
        with mpidec.Network(n) as net:
            problem, W = squares(net), net.mixer(graph(n))
            s = at_step(solver, 0).init(np.zeros((net.m, D)), W.at(0))
            for k in range(20):
                now = replace(solver, step_size=formula(k))
                functions = SimpleNamespace(
                    grad=problem.grad,
                    argmin=lambda V, t, problem=problem: problem.prox(V, t[:, 0]),
                )
                s = now.step(s, now.ask(functions, s), W.at(k))
            result = mpidec.solve(problem, solver, graph(n), steps=20, net=net)
            np.testing.assert_allclose(result.X, s.X, rtol=1e-11, atol=1e-14)


def test_functions_of_k_are_resumed_bit_for_bit(shared_tmp):
    n = 4
    for solver in (S.DGD(lambda k: 0.3 / (k + 1)), S.GradientTracking(S.Cosine("auto", steps=40))):
        whole, parts = (
            shared_tmp / f"{kind}-{type(solver).__name__}.h5" for kind in ("whole", "parts")
        )
        with mpidec.Network(n) as net:
            one = mpidec.solve(squares(net), solver, T.ring(n), steps=50, net=net, record=whole)
            mpidec.solve(
                squares(net),
                with_step_size(solver, one.step_size),
                T.ring(n),
                steps=20,
                net=net,
                record=parts,
            )
            again = mpidec.solve(
                squares(net),
                with_step_size(solver, one.step_size),
                T.ring(n),
                steps=50,
                net=net,
                record=mpidec.Record(parts, resume=True),
            )
            np.testing.assert_array_equal(one.X, again.X)


def test_a_resumed_run_keeps_the_number(shared_tmp):
    """The choice of a method with bias depends on the number of steps; a resumed run has more of them."""
    n, path, notes = 4, shared_tmp / "run.h5", []
    progress = lambda *args: None
    progress.note = notes.append
    with mpidec.Network(n) as net:
        first = mpidec.solve(squares(net), S.DGD(), T.ring(n), steps=50, net=net, record=path)
        again = mpidec.solve(
            squares(net),
            S.DGD(),
            T.ring(n),
            steps=500,
            net=net,
            record=mpidec.Record(path, resume=True),
            progress=progress,
        )
        assert net.rank or notes[0] == "resumed at step 50, that of the last checkpoint"
        assert again.step_size == first.step_size == again.choice.step_size
        assert (
            mpidec.tune(squares(net), S.DGD(), T.ring(n), steps=500, net=net).step_size
            < first.step_size
        )
        given = mpidec.solve(squares(net), S.DGD(first.step_size), T.ring(n), steps=500, net=net)
        np.testing.assert_array_equal(again.X, given.X)


@pytest.mark.serial
def test_the_command_line_prints_and_keeps_the_number(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = [
        "--problem=least_squares",
        "--data=synthetic_least_squares",
        "--set=problem.p=4",
        "--set=problem.d=3",
        "--agents=4",
    ]
    assert run.main([*small, "--steps=50", "--solver=extra"]) == 0
    said = capsys.readouterr().out
    config = tomllib.loads(record.read("run.h5").config)
    assert said.count(f"{config['solver']['step_size']:.4g} (auto") == 1
    assert run.main(["--resume", "run.h5", "--steps=80"]) == 0
    again = capsys.readouterr().out  # with what the file has of the search
    assert again.count(f"{config['solver']['step_size']:.4g} (auto") == 1
    assert tomllib.loads(record.read("run.h5").config)["solver"] == config["solver"]
    assert run.main([*small, "--steps=50", "--solver=dgd", "--step-size=inverse(delay=20)"]) == 0
    text = tomllib.loads(record.read("run-2.h5").config)["solver"]["step_size"]
    assert parsed(text).delay == 20 and parsed(text).start > 0
    capsys.readouterr()
    assert run.main([*small, "--tune", "--solver=extra"]) == 0
    assert f"{config['solver']['step_size']:.4g} (auto" in capsys.readouterr().out
    assert run.main([*small, "--steps=20", "--step-size=safe"]) == 0
    assert "(safe bound)" in capsys.readouterr().out


@pytest.mark.serial
def test_subgradients_take_the_safe_step_size():
    problem = P.load_problem("synthetic_least_squares", 4, p=6, d=3, l1=0.1)

    class Counted(P.Subgradient):
        pass

    for oracle in (Counted(problem), P.Noisy(P.Subgradient(problem), 0.1)):
        with pytest.warns(RuntimeWarning, match="not smooth"):
            found = mpidec.tune(oracle, S.DGD(), T.ring(4), steps=50)
        assert found.rule == "safe"


def test_the_search_chooses_the_weights_of_a_graph(shared_tmp):
    """Gradient tracking on a graph with negative eigenvalues: lazy weights, 1.5 times as fast; a resumed run keeps them."""
    n = 16
    rng = np.random.default_rng(1)
    A = rng.standard_normal((n, 20, 8)) * np.logspace(0, -0.7, 8)
    b = A.sum(axis=2) + rng.standard_normal((n, 20))
    x = np.linalg.lstsq(A.reshape(-1, 8), b.ravel(), rcond=None)[0]
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:

        def solved(net, weights, steps=4000, **options):
            graph = T.symmetric_exponential(n, weights=weights)
            return mpidec.solve(
                P.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi], x_star=x),
                S.GradientTracking(),
                graph,
                steps=steps,
                net=net,
                **options,
            )

        rules = {"every": 5, "stop": {"error": 1e-6}}
        usual, ours, one = (
            solved(net, "metropolis", **rules),
            solved(net, "auto", **rules),
            solved(alone, "auto", **rules),
        )
        assert ours.choice.weights.startswith("lazy") and "weights lazy" in str(ours.choice)
        assert ours.steps == one.steps < usual.steps / 1.5
        np.testing.assert_array_equal(ours.x, one.x)
        same = solved(net, ours.choice.weights, **rules)
        assert same.choice.step_size == ours.choice.step_size and same.choice.weights == ""
        np.testing.assert_array_equal(same.X, ours.X)
        path = shared_tmp / "auto.h5"
        solved(net, "auto", 20, record=path)
        again = solved(net, "auto", 40, record=mpidec.Record(path, resume=True))
        np.testing.assert_array_equal(again.X, solved(net, "auto", 40).X)


@pytest.mark.mpi(min_size=2)
def test_ranks_wait_without_a_limit_while_rank_0_searches(comm, monkeypatch):
    order, raced, meet, agree = [], searching.Search._raced, searching.meet, mpidec.Network.agree
    for owner, name, act in [
        (searching.Search, "_raced", raced),
        (searching, "meet", meet),
        (mpidec.Network, "agree", agree),
    ]:

        def noted(*arguments, name=name, act=act):
            order.append(name)
            return act(*arguments)

        monkeypatch.setattr(owner, name, noted)
    with mpidec.Network(2 * comm.size) as net:
        problem = P.LeastSquares(np.ones((net.m, 2, 1)), np.ones((net.m, 2)))
        mpidec.solve(problem, S.EXTRA(), T.ring(net.n), steps=2, net=net)
    end = order.index("meet")
    assert order[end + 1] == "agree" and order[:end].count("_raced") == (comm.rank == 0)


@pytest.mark.serial
@pytest.mark.parametrize("far", [1e20, 1e75])
def test_far_minimizers_have_the_step_size_of_near_ones(far):
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((5, 6, 3)), rng.standard_normal((5, 6))

    def size(unit):
        f = mpidec.problems.LeastSquares(A, b * unit)
        return mpidec.solve(f, mpidec.solvers.EXTRA(), mpidec.topology.ring(5), steps=40).step_size

    assert size(far) == size(1.0)
