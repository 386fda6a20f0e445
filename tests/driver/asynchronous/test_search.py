"""The step size "auto" of asynchronous solvers: columns of the race against runs, the choice against scans, ranks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import Network, problems as P, solvers as S, topology as T
from mpidec.driver.asynchronous import search
from mpidec.driver.asynchronous.events import Events
from mpidec.driver.asynchronous.prepared import prepared
from mpidec.driver.stepsize import Task
from mpidec.driver.stepsize.linear import Linearization, linear_model
from mpidec.solvers.base import with_step_size

N, D = 6, 3
SOLVERS = [
    S.RunningSumTracking(),
    S.AsyncPushSum(),
    S.PairwiseGossip(momentum=0.5),
    S.A2CiD2(),
]
FAULTS = [{}, {"rates": np.r_[0.1, np.ones(N - 1)], "delay": (0, 1)}, {"drop": 0.3}]


def problem(rows=slice(None), n=N, scale=1.0):
    """Least squares, with columns of different scales and agents of different data."""
    rng = np.random.default_rng(n)
    A = rng.standard_normal((n, 8, D)) * np.array([1.0, 0.5, 2.0]) * scale
    b = A @ np.ones(D) + rng.standard_normal((n, 8)) * scale
    x = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return P.LeastSquares(A[rows], b[rows], x_star=x)


def events(solver, graph, rates=None, delay=None, drop=0.0):
    return Events.of_clocks(
        solver, graph, np.ones(graph.n) if rates is None else rates, delay, drop, seed=3
    )


@pytest.mark.serial
@pytest.mark.parametrize("faults", FAULTS, ids=["equal", "straggler", "drop"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.filterwarnings("ignore:AsyncPushSum loses mass")
def test_columns_of_the_race_are_runs(solver, faults):
    functions, graph, sizes = problem(), T.ring(N), np.array([0.004, 0.001])
    net, X0 = Network(N, comm=MPI.COMM_SELF), np.random.default_rng(1).standard_normal((N, D))
    model, x, _ = linear_model(Linearization(net, functions.grad, X0), functions.x_star)
    solver = prepared(solver, graph)
    stack = search.AsyncStack(
        solver, graph, events(solver, graph, **faults), model, sizes, model.start
    )
    stack.run(40)
    for j, size in enumerate(sizes):
        run = mpidec.simulate(
            functions, with_step_size(solver, size), graph, steps=41, every=40, x0=X0, seed=3,
            progress=lambda k, steps, row: rows.append(row["error_rms"]), **faults,
        ) if (rows := []) is not None else None  # fmt: skip
        error = np.sqrt((stack.E[:, :, j] ** 2).sum() / N) / np.linalg.norm(x)
        assert run.outcome == "completed"
        np.testing.assert_allclose(error, rows[1], rtol=1e-6)


@pytest.mark.serial
@pytest.mark.parametrize("faults", FAULTS, ids=["equal", "straggler", "drop"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.filterwarnings("ignore:AsyncPushSum loses mass")
def test_auto_is_near_the_best_of_a_scan(solver, faults):
    steps = 360 if solver.exact else 120

    def error(size):
        run = mpidec.simulate(
            problem(), with_step_size(solver, size), T.ring(N), steps=steps, every=steps, **faults
        )
        return run.metrics["error_rms"][-1], run

    mine, run = error("auto")
    scan = [error(run.step_size * factor)[0] for factor in (1 / 4, 1 / 2, 2, 4)]
    assert run.choice.rule == ("steps" if solver.exact else "error")
    if solver.exact:  # steps to an error are proportional to 1 / log(error)
        assert np.log(np.nanmin(scan)) / np.log(mine) <= 1.3
    else:
        assert mine <= 1.4 * np.nanmin(scan)


@pytest.mark.serial
def test_auto_follows_the_scale_of_the_problem():
    sizes = [
        mpidec.simulate(problem(scale=2.0**j), S.A2CiD2(), T.ring(N), steps=60).step_size
        for j in (0, 40)
    ]
    assert sizes[0] == sizes[1] * 2.0**80


@pytest.mark.serial
def test_where_the_bound_takes_the_place_of_a_search():
    rough = P.Subgradient(P.LeastSquares(np.ones((N, 2, D)), np.ones((N, 2)), term=P.l1(0.1)))
    with pytest.warns(RuntimeWarning, match="auto.*not smooth.*safe"):
        run = mpidec.simulate(rough, S.PairwiseGossip(), T.ring(N), steps=5)
    safe = mpidec.simulate(rough, S.PairwiseGossip("safe"), T.ring(N), steps=5)
    assert run.step_size == safe.step_size and run.choice.rule == safe.choice.rule == "safe"


@pytest.mark.parametrize(
    "solver, faults",
    [
        (S.RunningSumTracking(), {"drop": 0.3}),
        (S.A2CiD2(), {"straggler": {1: 1e-4}}),
        (S.AsyncPushSum("inverse_sqrt(auto)"), {"delay": 1e-4}),
    ],
    ids=["drop", "straggler", "delay"],
)
def test_the_choice_is_the_same_on_any_number_of_ranks(solver, faults):
    steps, graph = 40, T.ring(N)
    with mpidec.Network(N) as net, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "straggler")
        run = mpidec.solve(
            problem(slice(net.lo, net.hi)), solver, graph, steps=steps, net=net, **faults
        )
    ready = prepared(solver, graph)
    happening = Events.of_ranks(
        ready,
        graph,
        faults.get("straggler", {}),
        None,
        faults.get("delay"),
        faults.get("drop", 0.0),
        0,
    )
    net, X0 = Network(N, comm=MPI.COMM_SELF), np.zeros((N, D))
    task = Task(net, P.Full(problem()), ready, X0, steps=steps, seed=0, tol=1.0)
    alone = search.AsyncSearch(task, ready, graph, happening)()
    assert run.choice.step_size == alone.step_size and run.choice.rule == alone.rule


def wells(rows, n=N):
    """Functions x^2 / 2 + x^4 with curvature 1 near their minimizers, where a step size of 1 / 2 is good, and 1200 at x = 10."""
    C = np.linspace(-0.1, 0.1, n)[rows, None]
    return P.Custom(
        lambda X: ((X - C) ** 2 / 2 + (X - C) ** 4).sum(axis=1),
        lambda X: X - C + 4 * (X - C) ** 3,
        m=len(C),
        d=1,
        smoothness=1.0,
    )


@pytest.mark.parametrize("solver", [S.RunningSumTracking(), S.A2CiD2()], ids=["push", "pairwise"])
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_a_run_that_diverges_begins_again_with_a_smaller_step_size(solver, tmp_path):
    with mpidec.Network(N) as net:
        path = net.collectives.broadcast(str(tmp_path / "run.h5"), 0, "a test")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = mpidec.solve(
                wells(slice(net.lo, net.hi)), solver, T.complete(N), x0=[10.0], steps=100, net=net,
                record=path,
            )  # fmt: skip
        assert run.outcome == "completed" and "did not converge" in run.choice.note
        assert abs(run.x[0]) < 1 and run.step_size == run.choice.step_size < 0.1
        assert any("begins again" in str(each.message) for each in caught) == (net.rank == 0)
        assert float(mpidec.read(path).attributes["step_size"]) == run.step_size
    if net.size == 1:
        with pytest.warns(RuntimeWarning, match="begins again"):
            run = mpidec.simulate(
                wells(slice(N)), solver, T.complete(N), x0=[10.0], steps=100, record=tmp_path / "s"
            )
        assert run.outcome == "completed" and abs(run.x[0]) < 1


@pytest.mark.serial
def test_a_step_size_that_was_given_is_not_searched_for(tmp_path):
    def run(steps, size, resume):
        record = mpidec.Record(tmp_path / "run.h5", resume=resume)
        return mpidec.solve(problem(), S.A2CiD2(size), T.ring(N), steps=steps, record=record)

    run(10, 0.01, False)
    with pytest.raises(ValueError, match="given as a number: resume with the same"):
        run(20, "auto", True)


@pytest.mark.serial
@pytest.mark.parametrize("solver", SOLVERS[::2], ids=["push", "pairwise"])
def test_tune_finds_what_a_run_finds(solver):
    rates = np.r_[0.1, np.ones(N - 1)]
    run = mpidec.simulate(problem(), solver, T.ring(N), steps=40, delay=2.0, rates=rates)
    choice = mpidec.tune(problem(), solver, T.ring(N), steps=40, delay=2.0, rates=rates)
    assert (choice.step_size, choice.rule) == (run.step_size, run.choice.rule)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "straggler")
        run = mpidec.solve(problem(), solver, T.ring(N), steps=40, drop=0.3, straggler={1: 1e-4})
    choice = mpidec.tune(problem(), solver, T.ring(N), steps=40, drop=0.3, straggler={1: 1e-4})
    assert (choice.step_size, choice.rule) == (run.step_size, run.choice.rule)
    with pytest.raises(ValueError, match="EXTRA is synchronous: leave out delay"):
        mpidec.tune(problem(), S.EXTRA(), T.ring(N), delay=1.0)


@pytest.mark.serial
def test_tune_on_a_table_finds_what_its_run_finds():
    """The race has the length of the table; one without gradients, and other solvers, are refused."""
    event = [("time", float), ("kind", int), ("i", int), ("j", int)]
    rows = [
        (0.01 * k, k % 2, i := k // 2 % N, i if k % 2 == 0 else (i + 1) % N) for k in range(2400)
    ]
    table = np.array(rows, event)
    for solver in S.A2CiD2(), S.PairwiseGossip():
        choice = mpidec.tune(problem(), solver, T.ring(N), clock=mpidec.Queue(table))
        assert (
            choice.step_size
            == mpidec.simulate(problem(), solver, T.ring(N), events=table).step_size
        )
    for solver, clock, words in (
        (S.A2CiD2(), mpidec.Queue(table[:0]), "the table of events has no gradients"),
        (S.A2CiD2(), mpidec.Queue(table[1::2]), "the table of events has no gradients"),
        (S.EXTRA(), mpidec.Queue(), "EXTRA is synchronous"),
        (S.A2CiD2(), "queue", "clock is 'queue', expected mpidec.Queue"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            mpidec.tune(problem(), solver, T.ring(N), clock=clock)
