"""Asynchronous methods in wall time, on any number of ranks: conservation, exactness, pairing, the end, files."""

import itertools
import os
import signal
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.driver.asynchronous import pairing, ranks, runner
from mpidec.driver.asynchronous.files import AsyncFile, Snapshots
from mpidec.record import last_checkpoint

pytestmark = [pytest.mark.most(1), pytest.mark.library]

WORLD = MPI.COMM_WORLD
RNG = np.random.default_rng(3)
A, B = RNG.normal(size=(12, 8, 4)) * 0.3 + np.eye(8, 4), RNG.normal(size=(12, 8))
X0 = RNG.normal(size=(12, 4))


@pytest.fixture(params=["auto", "p2p"])
def net(request):
    with mpidec.Network(max(WORLD.size, 4), transport=request.param) as net:
        yield net


def problem(net, kind=mpidec.problems.LeastSquares):
    full = mpidec.problems.LeastSquares(A[: net.n], B[: net.n])
    return kind(A[net.lo : net.hi], B[net.lo : net.hi], x_star=full.solution())


class Slow(mpidec.problems.LeastSquares):
    """A gradient that takes 3 ms."""

    def grad(self, X, agents=None):
        time.sleep(0.003)
        return super().grad(X) if agents is None else super().grad(X, agents)


def total(net, rows):
    return net.sum(np.asarray(rows, float).reshape(net.m, -1))


@pytest.mark.parametrize("graph", [T.ring, T.exponential, T.star])
def test_push_sum_keeps_the_mass_and_finds_the_mean(net, graph):
    result = mpidec.solve(
        None, S.AsyncPushSum(), graph(net.n), steps=150, net=net, x0=X0[: net.n], delay=(0, 1e-4)
    )
    mean = X0[: net.n].mean(axis=0)
    u, w = (
        np.array(result.state.U) if net.m else np.empty((0, 4)),
        np.array(result.state.w if net.m else []),
    )
    assert np.abs(total(net, u) / net.n - mean).max() < 1e-12 and abs(total(net, w) - net.n) < 1e-12
    assert result.outcome == "completed" and (net.size > 1 or np.abs(result.x - mean).max() < 0.2)
    assert result.counts.sum() >= 150 * net.n and len(result.counts) == net.n


@pytest.mark.parametrize("options", [{}, {"drop": 0.3}, {"delay": (0, 3e-4)}])
def test_running_sums_are_exact(net, options):
    result = mpidec.solve(
        problem(net), S.RunningSumTracking(0.2), T.ring(net.n), steps=800, net=net, **options
    )
    error = result.metrics[
        "error_rms"
    ]  # on a busy machine a rank has many events before others have one
    assert error[-1] < (1e-6 if net.size == 1 else 0.8) * error[0]


def test_push_sum_descends(net):
    result = mpidec.solve(
        problem(net), S.AsyncPushSum(0.02), T.exponential(net.n), steps=200, net=net
    )
    assert result.outcome == "completed" and result.metrics["error"][-1] < (
        0.5 if net.size == 1 else 2
    )


@pytest.mark.parametrize(
    "solver", [S.PairwiseGossip(0.05), S.A2CiD2(0.05), S.A2CiD2(0.05, momentum=0.5, rate=2.0)]
)
def test_pairs(net, solver):
    result = mpidec.solve(problem(net, Slow), solver, T.ring(net.n), steps=60, net=net)
    rate = solver.rate
    averagings = 2 * sum(result.averagings.values()) / result.counts.sum()
    assert abs(averagings - rate) < 6 * np.sqrt(2 * rate / result.counts.sum()), (
        "half of them by each, with Poisson numbers"
    )
    assert set(result.averagings) == {
        (i, j) for i in range(net.n) for j in T.ring(net.n).in_neighbors(i).tolist() if i < j
    }
    assert result.metrics["error"][-1] < 2 and result.idle.shape == (
        net.size,
    )  # its limit depends on the paces of the ranks
    assert result.metrics["messages"][-1] == 2 * sum(result.averagings.values())


def test_pairs_without_a_problem_find_the_mean(net):
    result = mpidec.solve(None, S.A2CiD2(0.0), T.ring(net.n), steps=60, net=net, x0=X0[: net.n])
    kept = total(net, result.state.X + result.state.X_tilde if net.m else np.empty((0, 4)))
    assert np.abs(kept / (2 * net.n) - X0[: net.n].mean(axis=0)).max() < 1e-11
    assert (
        result.metrics["consensus"][-1]
        < (0.3 if net.size == 1 else 0.9) * result.metrics["consensus"][0]
    )


@pytest.mark.mpi(min_size=2)
@pytest.mark.filterwarnings("ignore:straggler")  # the other agents of its rank wait for their turn
def test_a_straggler_delays_no_other_rank(net, monkeypatch):
    """It sleeps until the others have had all events of the run."""
    endings = []

    class Known(ranks.Termination):
        def __init__(self, *args):
            super().__init__(*args)
            endings.append(self)

    def sleep(seconds):
        while seconds == 1e9 and not endings[0].reason:
            time.sleep(0.001)
        time.sleep(seconds % 1e9)

    monkeypatch.setattr(ranks, "Termination", Known)
    monkeypatch.setattr(
        runner,
        "time",
        SimpleNamespace(sleep=sleep, monotonic=time.monotonic, perf_counter=time.perf_counter),
    )
    result = mpidec.solve(
        problem(net), S.A2CiD2(0.02), T.ring(net.n), steps=20, net=net, straggler={0: 1e9}
    )
    # 0 where the others were done before its rank began
    assert result.counts[0] <= 1 and result.counts.sum() >= 20 * net.n


def test_an_averaging_that_is_late_keeps_nobody_busy_but_its_two_agents(monkeypatch):
    """On ranks as in the simulator: a delay was a sleep of the thread that averages for all agents of a rank."""

    def briefly(seconds):
        assert seconds < 1, "the thread that averages, or the gradients, sleep for a delay"
        time.sleep(seconds)

    monkeypatch.setattr(
        pairing,
        "time",
        SimpleNamespace(sleep=briefly, monotonic=time.monotonic, perf_counter=time.perf_counter),
    )
    begun = []

    def delay(rng, i, j):
        begun.append({i, j})
        if {0, 1} in begun and begun[begun.index({0, 1}) :].count({2, 3}) == 5:
            os.kill(os.getpid(), signal.SIGINT)  # enough is seen
        return 1e9 if {i, j} == {0, 1} else 1e-4

    with mpidec.Network(4, comm=MPI.COMM_SELF) as net, pytest.raises(mpidec.Interrupted) as ended:
        mpidec.solve(
            None, S.PairwiseGossip(), T.ring(4), steps=50000, net=net, x0=X0[:4], delay=delay
        )
    found = ended.value.result
    assert found.averagings[0, 1] == 1 and found.averagings[2, 3] == begun.count({2, 3}) >= 5
    np.testing.assert_allclose(found.x, X0[:4].mean(axis=0), atol=1e-12)
    simulated = mpidec.simulate(
        None,
        S.PairwiseGossip(),
        T.ring(4),
        steps=100,
        x0=X0[:4],
        delay=lambda rng, i, j: 1e9 if {i, j} == {0, 1} else 1e-4,
    )
    assert simulated.averagings[0, 1] == 1 and simulated.averagings[2, 3] >= 5


def test_gradients_wait_for_averagings_that_are_many_behind(monkeypatch):
    behind = []

    class Slowly(pairing.PairwiseRunner):
        def _look(self, agent):
            time.sleep(0.002)
            return super()._look(agent)

        def _event(self, place):
            agent = self.agents[place]
            behind.append(agent.requests.behind)
            super()._event(place)

    monkeypatch.setattr(pairing, "_SLACK", 1)
    monkeypatch.setattr(ranks, "PairwiseRunner", Slowly)
    with mpidec.Network(2, comm=MPI.COMM_SELF) as net:
        mpidec.solve(None, S.PairwiseGossip(), T.complete(2), steps=30, net=net, x0=X0[:2])
    assert max(behind) <= 1 and len(behind) >= 60


@pytest.mark.parametrize(
    "words, options",
    [
        ("drop is 1", {"drop": 1.0}),
        ("delay is -1", {"delay": -1}),
        ("agents in 0", {"straggler": {99: 1}}),
        ("mixing is given", {"mixing": lambda W: W}),
        ("expected a number on ranks", {}),
    ],
)
def test_refusals(net, words, options):
    solver = (
        S.A2CiD2(0.1, eta=0.1, alpha_tilde=0.5, rate={(0, 1): 1.0})
        if not options
        else S.A2CiD2(0.1)
    )
    with pytest.raises(ValueError, match=words):
        mpidec.solve(problem(net), solver, T.ring(net.n), steps=5, net=net, **options)
    for given in {"delay": 0.1}, {"rates": np.ones(net.n)}:
        with pytest.raises(ValueError, match="is given, but DGD is synchronous"):
            mpidec.solve(problem(net), S.DGD(0.1), T.ring(net.n), steps=5, net=net, **given)


@pytest.mark.parametrize(
    "solver", [S.AsyncPushSum(0.01), S.RunningSumTracking(0.1), S.A2CiD2(0.05, momentum=0.3)]
)
def test_a_file_and_its_resumption(net, solver, shared_tmp):
    path = shared_tmp / "run.h5"
    first = mpidec.solve(
        problem(net), solver, T.ring(net.n), steps=20, net=net, record=path, seed=4
    )
    run = mpidec.read(path)
    assert (
        run.outcome == "completed"
        and {"time", "events", "messages", "error", "rounds", "bytes"} <= run.metrics.keys()
    )
    assert np.all(np.diff(run.metrics["step"]) > 0) and np.all(np.diff(run.metrics["time"]) >= 0)
    np.testing.assert_array_equal(run.x[net.lo : net.hi], first.X)
    net.barrier() if net.n == net.size else net.agree()
    steps = (
        first.steps + 40
    )  # ranks without common memory may take many more than they are asked for
    more = mpidec.solve(
        problem(net),
        solver,
        T.ring(net.n),
        steps=steps,
        net=net,
        seed=4,
        record=mpidec.Record(path, resume=True),
    )
    run = mpidec.read(path)
    assert run.metrics["step"][-1] >= steps and np.all(np.diff(run.metrics["step"]) > 0)
    assert more.counts.sum() >= steps * net.n and np.isfinite(more.metrics["error"]).all()


@pytest.mark.parametrize("solver", [S.RunningSumTracking(0.05), S.A2CiD2(0.05, momentum=0.3)])
def test_counters_are_sums_over_resumptions_on_other_ranks(comm, solver, shared_tmp):
    """They agree with what the agents have done, as in one run, and what was recorded stays."""
    path, n, steps, before = shared_tmp / "run.h5", 4, 20, {}
    for part, size in enumerate((1, comm.size, 1), 1):
        some = comm.Split(0 if comm.rank < size else MPI.UNDEFINED, comm.rank)
        if some != MPI.COMM_NULL:
            with mpidec.Network(n, comm=some) as net:
                record = mpidec.Record(path, resume=part > 1)
                mpidec.solve(
                    problem(net), solver, T.ring(n), steps=steps, net=net, seed=4, record=record
                )
            some.Free()
        comm.Barrier()
        run = mpidec.read(path)
        found, done = run.metrics, run.asynchronous
        events, messages = found["events"], found["messages"]
        assert done["steps"].sum() == events[-1] >= steps * n
        np.testing.assert_array_equal(found["gradients"], events)
        np.testing.assert_array_equal(found["bytes"], found["bytes"][-1] // messages[-1] * messages)
        if "averagings" in done:
            assert messages[-1] == 2 * done["averagings"].sum()
        else:  # to two neighbours, of which each agent reads once more at the end
            assert messages[-1] == 2 * events[-1]
            assert done["staleness"].sum() == 2 * (events[-1] + n * part)
        for name, values in before.items():
            np.testing.assert_array_equal(found[name][: len(values)], values, name)
        before, steps = found, run.steps + 20
        comm.Barrier()


@pytest.fixture
def pauses(monkeypatch):
    """Checkpoints as often as they are asked for, and a list of what is in the file after each of them."""
    found, plain = [], AsyncFile.checkpoint

    def checkpoint(self, row, activity):
        plain(self, row, activity)
        if activity and self._net.rank == 0:
            found.append(last_checkpoint(self.record.path))

    monkeypatch.setattr(ranks, "_PAUSE", 1)
    monkeypatch.setattr(AsyncFile, "checkpoint", checkpoint)
    return found


def paused(net, pauses):
    """How often a run has paused."""
    return int(net.collectives.broadcast(len(pauses), 0, "a test"))


@pytest.mark.parametrize("nodes", ["one node", "several nodes"])
@pytest.mark.parametrize("solver", [S.AsyncPushSum(), S.PairwiseGossip(0.05)])
def test_nothing_is_lost_at_checkpoints_during_a_run(
    shared_tmp, monkeypatch, pauses, solver, nodes
):
    if nodes == "several nodes":
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    with mpidec.Network(max(WORLD.size, 4)) as net:
        n, steps = net.n, 40
        while not paused(net, pauses):
            options = {"delay": (0, 0.003)} if isinstance(solver, S.AsyncPushSum) else {}
            result = mpidec.solve(
                None,
                solver,
                T.ring(n),
                steps=steps,
                net=net,
                x0=X0[:n],
                **options,
                straggler=dict.fromkeys(range(n), 0.002) | {n - 1: 0.01},
                record=mpidec.Record(
                    shared_tmp / f"{steps}.h5", checkpoint_seconds=0.05, flush_seconds=0.03
                ),
            )
            steps *= 3
        assert result.outcome == "completed" and result.metrics["events"][-1] >= steps // 3 * n
        rows = np.asarray(result.state.U) if net.m and "U" in vars(result.state) else result.X
        mean = X0[:n].mean(axis=0)
        assert np.abs(total(net, rows) / n - mean).max() < 1e-12
        for step, stored in pauses:
            assert np.abs(stored.get("U", stored["X"]).mean(axis=0) - mean).max() < 1e-12
            assert "w" not in stored or (
                abs(stored["w"].sum() - n) < 1e-12 and stored["k"].sum() >= step * n
            )


@pytest.mark.parametrize(
    "solver", [S.AsyncPushSum(0.01), S.RunningSumTracking(0.1), S.A2CiD2(0.05, momentum=0.3)]
)
def test_a_run_that_fails_goes_on_from_its_last_checkpoint(comm, solver, shared_tmp, pauses):
    path = shared_tmp / "run.h5"
    with mpidec.Network(max(WORLD.size, 4)) as net:

        class Failing(Slow):
            def grad(self, X, agents=None):
                if agents is not None and net.rank == net.size - 1 and last_checkpoint(path)[0] > 0:
                    raise ArithmeticError("no more")
                return super().grad(X, agents)

        with pytest.raises(ArithmeticError, match="no more"):
            mpidec.solve(
                problem(net, Failing),
                solver,
                T.ring(net.n),
                steps=100000,
                net=net,
                record=mpidec.Record(path, checkpoint_seconds=0.05),
            )
    comm.barrier()
    run, (step, stored) = mpidec.read(path), last_checkpoint(path)
    assert run.outcome == "failed" and step > 0 and comm.bcast(len(pauses))
    comm.barrier()
    with mpidec.Network(max(WORLD.size, 4)) as net:
        assert run.asynchronous["steps"].sum() == stored["k"].sum() >= step * net.n
        more = mpidec.solve(
            problem(net),
            solver,
            T.ring(net.n),
            steps=step + 60,
            net=net,
            record=mpidec.Record(path, resume=True, changed=True),
        )
        run = mpidec.read(path)
        assert (
            run.outcome == "completed"
            and more.counts.sum() >= (step + 60) * net.n
            and (more.counts >= stored["k"]).all()
        )
        assert np.all(np.diff(run.metrics["step"]) > 0) and np.all(
            np.diff(run.metrics["time"]) >= 0
        )


@pytest.mark.parametrize("solver", [S.RunningSumTracking(0.1), S.PairwiseGossip(0.05)])
def test_after_a_pause_the_turn_goes_on_with_the_next_agent(
    comm, solver, shared_tmp, monkeypatch, pauses
):
    monkeypatch.setattr(ranks, "_PAUSE", 0)
    with mpidec.Network(4 * WORLD.size) as net:
        problem = mpidec.problems.LeastSquares(np.ones((net.m, 1, 1)), np.ones((net.m, 1)))
        result = mpidec.solve(
            problem,
            solver,
            T.ring(net.n),
            steps=12,
            net=net,
            straggler=dict.fromkeys(range(net.n), 0.001),
            record=mpidec.Record(shared_tmp / "run.h5", checkpoint_seconds=0.003),
        )
        own = result.counts[net.lo : net.hi]
        assert own.max() - own.min() <= 1 and paused(net, pauses) > 1


@pytest.mark.parametrize("nodes", ["one node", "several nodes"])
@pytest.mark.parametrize("solver", [S.AsyncPushSum(0.01), S.PairwiseGossip(0.05)])
def test_all_ranks_agree_on_an_interrupt_between_pauses(
    comm, solver, shared_tmp, monkeypatch, pauses, nodes
):
    if nodes == "several nodes":
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "1")
    monkeypatch.setattr(ranks, "_PAUSE", 0)
    with mpidec.Network(max(WORLD.size, 4)) as net:
        calls = itertools.count()

        class Interrupting(Slow):
            def grad(self, X, agents=None):
                if net.rank == net.size - 1 and next(calls) == 30:
                    os.kill(os.getpid(), signal.SIGINT)
                return super().grad(X, agents)

        path = shared_tmp / "run.h5"
        with pytest.raises(mpidec.Interrupted) as raised:
            mpidec.solve(
                problem(net, Interrupting),
                solver,
                T.ring(net.n),
                steps=100000,
                net=net,
                record=mpidec.Record(path, checkpoint_seconds=0.0005),
            )
        assert raised.value.result.outcome == mpidec.read(path).outcome == "interrupted"
        net.agree()


def test_running_sums_are_exact_after_a_resumption(net, shared_tmp):
    """Each agent goes on with the sums that its senders had reached, also where the last message was lost."""
    path, errors, step = shared_tmp / "run.h5", [], 0
    for part in range(3):
        result = mpidec.solve(
            problem(net, Slow),
            S.RunningSumTracking(0.2),
            T.ring(net.n),
            steps=step + 100,
            net=net,
            drop=0.3,
            record=mpidec.Record(path, resume=part > 0),
        )
        step = result.steps
        errors.append(result.metrics["error_rms"])
        s, receivers = result.state, 2 if net.n > 2 else 1
        rest = s.Z + receivers * s.Rho - s.Rho_read - s.G if net.m else []
        assert (
            np.abs(total(net, rest)).max() < 1e-10
        )  # what the agents hold, or will read, is the sum of the gradients
        net.agree()
    for before, after in itertools.pairwise(errors):
        assert after[0] == pytest.approx(before[-1], rel=1e-6)
        assert after.max() < 5 * errors[0][0] and (
            net.size > 1 or after[-1] < 0.1 * after[0] or after[-1] < 1e-9
        )


@pytest.mark.parametrize("solver", [S.AsyncPushSum(0.01), S.A2CiD2(0.05, momentum=0.3)])
def test_records_reach_the_file_during_the_run(net, solver, shared_tmp, monkeypatch):
    """Without anybody waiting for a straggler, whose rows come late; the clock of a rank counts its gradients, 10 ms for each."""
    path, seen, count = shared_tmp / "run.h5", {}, itertools.count(1)
    clock = [0.0]
    monkeypatch.setattr(
        ranks,
        "time",
        SimpleNamespace(sleep=time.sleep, monotonic=time.monotonic, perf_counter=lambda: clock[0]),
    )

    class Read(mpidec.problems.LeastSquares):
        def grad(self, X, agents=None):
            time.sleep(0.001)
            if agents is None:
                return super().grad(X)
            clock[0] = 0.01 * next(count)
            if net.rank == 0 and round(100 * clock[0]) % 10 == 0 and len(seen.get("step", ())) < 4:
                seen.update(mpidec.read(path).metrics)
            return super().grad(X, agents)

    steps = {1: 25, 2: 60, 3: 100}.get(net.size, 200)
    result = mpidec.solve(
        problem(net, Read),
        solver,
        T.ring(net.n),
        net=net,
        record=mpidec.Record(path, flush_seconds=0.1),
        steps=steps,
        straggler=dict.fromkeys(range(net.n), 0.005) | {net.n - 1: 0.02},
    )
    run = mpidec.read(path)
    if net.rank == 0:
        step, moment, error = (seen[name] for name in ("step", "time", "error"))
        assert len(step) >= 2 and np.all(np.diff(step) > 0) and np.all(np.diff(moment) > 0)
        k = np.searchsorted(result.metrics["time"], moment[-1])
        near = result.metrics["error"][max(k - 3, 0) : k + 3]
        assert 0.5 * near.min() < error[-1] < 2 * near.max()
    assert np.isin(run.metrics["time"], result.metrics["time"]).all(), (
        "in the end those of the result take their place"
    )
    assert (
        len(run.metrics["time"])
        == len(np.unique(result.metrics["step"]))
        == len(run.trajectory()[1])
    )
    assert run.metrics["step"][-1] == result.steps and run.outcome == "completed"


@pytest.mark.parametrize("solver", [S.AsyncPushSum(0.01), S.A2CiD2(0.05, momentum=0.3)])
def test_a_gradient_that_is_not_finite_ends_the_run(net, solver):
    class Odd(mpidec.problems.LeastSquares):
        calls = 0

        def grad(self, X, agents=None):
            G = super().grad(X) if agents is None else super().grad(X, agents)
            if agents is not None and net.lo <= 2 < net.hi and list(agents) == [2 - net.lo]:
                Odd.calls += 1
                G[0, 1] = np.nan if Odd.calls == 21 else G[0, 1]
            return G

    result = mpidec.solve(
        problem(net, Odd), solver, T.ring(net.n), steps=10**6, every=10**5, net=net
    )
    assert result.steps < 10**6
    assert (result.outcome, result.reason, result.agent) == (
        "diverged",
        "the gradient of agent 2 at its step 20 is nan",
        2,
    )


def test_what_one_rank_raises():
    class Broken(mpidec.problems.LeastSquares):
        calls = 0

        def grad(self, X, agents=None):
            if agents is not None:
                Broken.calls += 1
                if Broken.calls > 30 and WORLD.rank == WORLD.size - 1:
                    raise ArithmeticError("broken on the last rank")
            return super().grad(X) if agents is None else super().grad(X, agents)

    for solver in (S.A2CiD2(0.01), S.RunningSumTracking(0.01)):
        Broken.calls = 0
        with pytest.raises(ArithmeticError, match="broken on the last rank"):
            mpidec.solve(
                problem(net_like(), Broken), solver, T.ring(max(WORLD.size, 4)), steps=10**6
            )


def net_like():
    class Part:
        n = max(WORLD.size, 4)
        lo, hi = mpidec.comm.runtime.partition.Partition(n, WORLD.size).bounds(WORLD.rank)

    return Part


def test_snapshots_thin_out():
    taken = Snapshots(lambda: np.zeros((1, 1)), 1 << 24)
    for k in range(100):
        taken.look(k * 0.01, k, 2 * k)
    assert (
        len(taken.times) <= 4
        and taken.at(0.5)[1] <= 50
        and taken.at(1e9)[2] == 2 * taken.at(1e9)[1]
    )
    taken.look(5.0, 100, 200, due=True)
    assert taken.at(5.0)[1:] == (100, 200)


def test_agents_of_one_rank_share_its_time():
    """The clocks of agents that take turns do not run ahead of their averagings: A2CiD2 diverged."""
    x0 = np.random.default_rng(0).normal(size=(16, 3))
    with mpidec.Network(16) as net:
        result = mpidec.solve(
            None,
            S.A2CiD2(),
            T.ring(16),
            steps=40,
            net=net,
            x0=x0,
            straggler=dict.fromkeys(range(16), 0.001),
        )
    assert result.metrics["consensus"][-1] < 0.5 < result.metrics["consensus"][0]


def test_a_sleeper_that_delays_the_agents_of_its_rank_is_warned_of(net):
    options = {"net": net, "x0": X0[: net.n], "steps": 2}
    shared = net.partition.counts()[0] > 1
    expected = pytest.warns(
        RuntimeWarning, match="agents of rank 0 take turns, and agent 0 delays the others"
    )
    with expected if shared and net.rank == 0 else warnings.catch_warnings():
        mpidec.solve(None, S.PairwiseGossip(), T.ring(net.n), straggler={0: 0.001}, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mpidec.solve(
            None,
            S.PairwiseGossip(),
            T.ring(net.n),
            straggler=dict.fromkeys(range(net.n), 0.001),
            **options,
        )


def test_lost_averagings_and_no_steps(net):
    options = {"net": net, "x0": X0[: net.n]}
    result = mpidec.solve(
        None, S.PairwiseGossip(rate=2.0), T.complete(net.n), steps=60, drop=0.5, **options
    )
    averagings = 2 * sum(result.averagings.values()) / result.metrics["events"][-1]
    assert 0.6 < averagings < 1.4, "half of them, also where neighbours are often busy"
    nothing = mpidec.solve(None, S.PairwiseGossip(), T.ring(net.n), steps=0, **options)
    np.testing.assert_array_equal(nothing.X, X0[net.lo : net.hi])
    assert nothing.metrics["events"][-1] == 0


def test_a_gradient_of_another_shape(net):
    class Wide(mpidec.problems.LeastSquares):
        calls = 0

        def grad(self, X, agents=None):
            Wide.calls += 1
            G = super().grad(X) if agents is None else super().grad(X, agents)
            return G[:, :1] if Wide.calls > 30 else G

    for solver in (S.GradientTracking(0.01), S.AsyncPushSum(0.01)):
        Wide.calls = 0
        with pytest.raises(ValueError, match=r"expected \(.*4"):
            mpidec.solve(
                problem(net, Wide),
                solver,
                T.ring(net.n),
                steps=10**5,
                net=net if net.size == 1 else None,
            )
