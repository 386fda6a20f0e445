"""Each feature of a run with each clock: there, or refused in one line that says why."""

from __future__ import annotations

import shutil
import signal
import time

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec._complex import as_reals
from mpidec.driver.asynchronous.events import Events
from mpidec.driver.asynchronous.result import LocalAgents

N, D, STEPS = 4, 3, 30
draw = np.random.default_rng(0)
A, B = draw.standard_normal((N, 20, D)), draw.standard_normal((N, 20))
Z = A + 1j * A[:, ::-1]

SOLVER = {
    "steps": S.GradientTracking(0.005),
    "ranks": S.RunningSumTracking(0.005),
    "queue": S.RunningSumTracking(0.005),
}
REFUSED = {  # the rest is there
    ("steps", "delay"): "synchronous",
    ("steps", "rates"): "at the pace of the slowest",
    ("ranks", "mixing"): "without W",
    ("queue", "mixing"): "without W",
}
FEATURES = {
    "complex rows": lambda run: run(problem=P.LeastSquares(Z, B + 0j)).X.dtype == complex,
    "budget": lambda run: run(stop={"bytes": 200.0}).metrics["bytes"][-1] >= 200,
    "stop function": lambda run: (
        run(stop=lambda metrics: metrics["step"] >= 5).outcome == "stopped"
    ),
    "target": lambda run: run(stop={"consensus": 1e9}).outcome == "stopped",
    "mixing": lambda run: run(mixing=lambda W: W.compress("bfloat16")),
    "delay": lambda run: run(delay=1e-5),
    "drop": lambda run: run(drop=0.1),
    "straggler": lambda run: run(straggler={0: 1e-4}),
    "rates": lambda run: run(rates=[0.5, 1, 1, 1]),
    "metrics": lambda run: len(run(metrics={"own": lambda X, agents, k: X[:, 0]}).metrics["own"]),
    "progress": lambda run: run(progress=lambda step, steps, metrics: None),
    "net": lambda run: run(net=True),
}


@pytest.mark.serial
@pytest.mark.filterwarnings("ignore:straggler")
@pytest.mark.parametrize("clock", SOLVER)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_there_or_refused_by_a_reason(feature, clock):
    def run(problem=None, net=False, **options):
        problem = problem or P.LeastSquares(A, B)
        if clock == "queue":
            options["clock"] = mpidec.Queue()
        with mpidec.Network(N) as own:
            given = options | ({"net": own} if net else {})
            return mpidec.solve(problem, SOLVER[clock], T.ring(N), steps=STEPS, **given)

    if (clock, feature) in REFUSED:
        with pytest.raises(
            ValueError, match=f"^{feature} is given, but .*{REFUSED[clock, feature]}"
        ):
            FEATURES[feature](run)
    else:
        assert FEATURES[feature](run)


@pytest.mark.serial
def test_simulate_is_solve_with_a_queue():
    events = np.array(
        [(0.5, 0, 1, 1), (0.7, 1, 0, 1)], [("time", float), ("kind", int), ("i", int), ("j", int)]
    )
    for solver, given in (SOLVER["queue"], {"steps": 20}), (S.A2CiD2(0.01), {"events": events}):
        one = mpidec.simulate(P.LeastSquares(A, B), solver, T.ring(N), **given)
        queue = mpidec.Queue(given.pop("events", None))
        other = mpidec.solve(P.LeastSquares(A, B), solver, T.ring(N), clock=queue, **given)
        np.testing.assert_array_equal(one.X, other.X)


@pytest.mark.serial
@pytest.mark.parametrize(
    "solver",
    [S.A2CiD2(0.01), S.PairwiseGossip(0.01, momentum=0.5), SOLVER["queue"], S.AsyncPushSum(0.01)],
    ids=lambda solver: type(solver).__name__,
)
@pytest.mark.filterwarnings("ignore:AsyncPushSum loses mass")
@pytest.mark.parametrize(
    "faults",
    [
        {"delay": (0, 2), "drop": 0.2},
        {"delay": lambda rng, i, j: rng.exponential(), "rates": [0.2, 1, 1, 2]},
        {},
    ],
    ids=["lossy", "uneven", "none"],
)
@pytest.mark.parametrize("data", [A, Z], ids=["real", "complex"])
def test_a_resumed_queue_is_an_uninterrupted_one(tmp_path, solver, faults, data):
    """Messages under way, clocks, draws and counters continue, also where rows are ragged."""
    problem, graph = P.LeastSquares(data, B + 0 * data[:, :, 0]), T.star(N)

    def run(steps, record=None):
        given = {"seed": 5, "every": 7.5, "record": record, **faults}
        return mpidec.simulate(problem, solver, graph, steps=steps, **given)

    whole, path = run(70), tmp_path / "run.h5"
    run(31, path)
    for steps in 44, 70:
        resumed = run(steps, mpidec.Record(path, resume=True))
    np.testing.assert_array_equal(whole.X, resumed.X)
    np.testing.assert_array_equal(whole.counts, resumed.counts)
    np.testing.assert_array_equal(whole.staleness, resumed.staleness)
    assert whole.averagings == resumed.averagings
    for name in "time", "events", "gradients", "messages", "bytes":
        assert whole.metrics[name][-1] == resumed.metrics[name][-1]


@pytest.mark.serial
@pytest.mark.parametrize("solver", [S.A2CiD2(0.005), SOLVER["queue"]], ids=["pairwise", "push"])
@pytest.mark.parametrize("oracle", [P.SAGA, P.SVRG, P.LSVRG], ids=lambda kind: kind.__name__)
def test_a_resumed_queue_has_the_memory_of_its_gradients(tmp_path, oracle, solver):
    problem = P.LeastSquares(A, B)

    def run(steps, kind, record=None):
        given = {"seed": 5, "delay": (0, 2), "drop": 0.1, "record": record}
        return mpidec.simulate(kind(problem), solver, T.ring(N), steps=steps, **given)

    path, whole = tmp_path / "run.h5", run(40, oracle)
    run(13, oracle, path)
    with pytest.raises(mpidec.ResumeError, match=r"run\.h5"):
        run(40, P.SARAH, mpidec.Record(path, resume=True))
    for steps in 21, 40:
        resumed = run(steps, oracle, mpidec.Record(path, resume=True))
    np.testing.assert_array_equal(whole.X, resumed.X)


@pytest.mark.serial
@pytest.mark.parametrize("solver", [S.A2CiD2(0.005), SOLVER["queue"]], ids=["pairwise", "push"])
def test_complex_rows_are_pairs_of_reals(solver):
    given = {"steps": 60, "seed": 1, "delay": (0, 1)}
    problem = P.LeastSquares(Z, B + 0j)
    one = mpidec.simulate(problem, solver, T.ring(N), **given)
    other = mpidec.simulate(P.RealView(problem), solver, T.ring(N), **given)
    np.testing.assert_array_equal(as_reals(one.X), other.X)
    np.testing.assert_array_equal(as_reals(one.state.X), other.X)
    for name in "consensus", "objective", "gradient_norm":
        np.testing.assert_allclose(one.metrics[name], other.metrics[name], rtol=1e-12)
    chosen = mpidec.tune(problem, S.A2CiD2(), T.ring(N), steps=60)
    assert (
        chosen.step_size
        == mpidec.tune(P.RealView(problem), S.A2CiD2(), T.ring(N), steps=60).step_size
    )


def test_pauses_and_losses_of_synchronous_steps():
    """A straggler changes no bit; messages are lost as `W.lossy` loses them."""
    with mpidec.Network(N) as net:

        def run(**options):
            problem = P.LeastSquares(A[net.lo : net.hi], B[net.lo : net.hi])
            return mpidec.solve(problem, S.EXTRA(0.005), T.ring(N), steps=10, net=net, **options)

        slow = run(straggler={0: 0.01})
        np.testing.assert_array_equal(run().X, slow.X)
        assert slow.metrics["time"][-1] >= 0.1
        lossy = run(mixing=lambda W: W.lossy(0.3, seed=4), seed=4)
        np.testing.assert_array_equal(lossy.X, run(drop=0.3, seed=4).X)


@pytest.mark.parametrize("solver", [S.A2CiD2(0.005), SOLVER["ranks"]], ids=["pairwise", "push"])
def test_complex_rows_targets_and_rates_on_ranks(solver):
    with mpidec.Network(N) as net:
        problem = P.LeastSquares(Z[net.lo : net.hi], B[net.lo : net.hi] + 0j)
        problem.x_star = P.LeastSquares(Z, B + 0j).solution()
        given = {"steps": 100_000, "net": net, "rates": [0.9, 1, 1, 1]}
        result = mpidec.solve(problem, solver, T.ring(N), stop={"error": 0.2}, **given)
        assert result.outcome == "stopped" and result.steps < 100_000
        assert result.X.dtype == complex and result.X.shape == (net.m, D)


def table_of(times) -> np.ndarray:
    kinds = [("time", float), ("kind", int), ("i", int), ("j", int)]
    return np.array([(t, 0, k % N, k % N) for k, t in enumerate(times)], kinds)


RECORDED = {  # the length of a run, the distance of records, and what else it is given
    "records at fractions": (30, 7.7, {}),
    "a table with a last step in part": (None, 3, {"events": table_of(np.arange(60) * 0.305)}),
    "averaging": (30, 5, {"problem": None, "solver": S.AsyncPushSum()}),
}


@pytest.mark.serial
@pytest.mark.parametrize("kind", RECORDED)
def test_the_file_of_an_interrupted_queue_has_the_records_of_a_whole_one(tmp_path, kind):
    steps, every, given = RECORDED[kind]
    given = {
        "problem": P.LeastSquares(A, B),
        "solver": S.RunningSumTracking(0.005),
        "topology": T.ring(N),
        "x0": draw.standard_normal((N, D)),
        "delay": (0, 3),
    } | given

    def run(record, progress=None):
        return mpidec.simulate(**given, steps=steps, every=every, record=record, progress=progress)

    def interrupt(step, steps, metrics):
        if step == 15:
            signal.raise_signal(signal.SIGINT)

    whole = run(tmp_path / "whole.h5")
    path = tmp_path / "parts.h5"
    with pytest.raises(mpidec.Interrupted):
        run(path, interrupt)
    for _ in ("the rest", "nothing"):
        resumed = run(mpidec.Record(path, resume=True))
        np.testing.assert_array_equal(resumed.X, whole.X)
        found, expected = mpidec.read(path).metrics, mpidec.read(tmp_path / "whole.h5").metrics
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, name)


@pytest.mark.serial
def test_the_end_of_a_short_queue_does_not_replace_a_record_in_its_step(tmp_path):
    def run(steps, **record):
        record = mpidec.Record(tmp_path / f"{len(record)}.h5", **record)
        given = {"steps": steps, "every": 1.04, "record": record}
        mpidec.simulate(P.LeastSquares(A, B), S.A2CiD2(0.01), T.ring(N), **given)
        return mpidec.read(record.path).metrics["time"]

    expected = run(40)
    run(31, resume=False)  # ends at 31; the next record is at 31.2
    np.testing.assert_array_equal(run(40, resume=True), expected)


@pytest.mark.serial
@pytest.mark.parametrize("solver", [S.A2CiD2(0.005), SOLVER["queue"]], ids=["pairwise", "push"])
def test_the_file_of_a_killed_queue_goes_on(tmp_path, solver):
    """What is on the disk at any record is a file that a run resumes, as after SIGKILL."""
    whole, killed = tmp_path / "whole.h5", tmp_path / "killed.h5"

    def run(record, progress=None):
        given = {"steps": 40, "every": 5, "seed": 2, "delay": (0, 3), "drop": 0.1}
        problem = P.SVRG(P.LeastSquares(A, B), 5)
        return mpidec.simulate(
            problem, solver, T.ring(N), record=record, progress=progress, **given
        )

    def copy(step, steps, metrics):
        if step == 25:
            shutil.copy(whole, killed)

    expected = run(mpidec.Record(whole, checkpoint_seconds=1e-9), copy)
    assert 0 < mpidec.read(killed).metrics["step"][-1] < 40
    np.testing.assert_array_equal(run(mpidec.Record(killed, resume=True)).X, expected.X)
    found, all_ = mpidec.read(killed).metrics, mpidec.read(whole).metrics
    for name, values in all_.items():
        np.testing.assert_array_equal(found[name], values, name)


def test_records_of_a_queue_closer_than_steps_are_refused_with_a_file(tmp_path):
    averaging = {"x0": np.eye(N), "steps": 5, "every": 0.5}
    mpidec.simulate(None, "pairwise_gossip", "ring", **averaging)
    with pytest.raises(ValueError, match=r"every is 0\.5, expected at least 1 with record"):
        mpidec.simulate(None, "pairwise_gossip", "ring", record=tmp_path / "run.h5", **averaging)


def test_a_record_of_a_queue_costs_as_much_after_many_others():
    solver, graph = S.PairwiseGossip(0.1), T.ring(N)
    count = 30000
    events = Events.of_table(table_of(range(count)), None, 0.0, 0)
    agents = LocalAgents.of(solver, graph, np.zeros((N, D)), range(N))
    simulator = events.simulator(solver, agents, None)
    begun = time.process_time()
    for t in range(count):
        simulator.run(t + 0.5)
    assert simulator.events == count and time.process_time() - begun < 1.5


@pytest.mark.serial
@pytest.mark.parametrize(("first", "second"), [("queue", "ranks"), ("ranks", "queue")])
def test_a_file_is_not_resumed_with_the_other_clock(tmp_path, first, second):
    def run(clock, steps, record):
        queue = mpidec.Queue() if clock == "queue" else None
        problem, solver = P.LeastSquares(A, B), SOLVER["queue"]
        with mpidec.Network(N) as net:
            mpidec.solve(problem, solver, "ring", net=net, steps=steps, record=record, clock=queue)

    path = tmp_path / "run.h5"
    run(first, 10, path)
    clock = {"queue": "a queue", "ranks": "ranks"}[first]
    with pytest.raises(mpidec.ResumeError, match=f"was written by a run on {clock}"):
        run(second, 20, mpidec.Record(path, resume=True))
    run(first, 20, mpidec.Record(path, resume=True))


@pytest.mark.serial
def test_a_queue_does_not_go_on_with_steps_of_another_length(tmp_path):
    def run(steps, rates, **record):
        given = {"rates": rates, "record": mpidec.Record(tmp_path / "run.h5", **record)}
        return mpidec.simulate(
            P.LeastSquares(A, B), S.A2CiD2(0.01), T.ring(N), steps=steps, **given
        )

    run(20, [1, 1, 1, 1])
    with pytest.raises(mpidec.ResumeError, match="a step takes another time"):
        run(40, [0.2, 1, 1, 1], resume=True, changed=True)
    assert run(40, [1, 1, 1, 1], resume=True).steps == 40
