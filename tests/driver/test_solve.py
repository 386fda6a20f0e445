"""The loop: outcomes, metrics, files, stopping, wrong use."""

import errno
import os
import signal
import sys
import warnings
from contextlib import nullcontext
from itertools import count, product
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers.counting import calls
from mpi4py import MPI

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.comm.mixing.codecs import CODECS
from mpidec.driver import decisions, journal
from mpidec.driver.provenance import data_hash
from mpidec.record import RunFile, last_checkpoint, recorder

pytestmark = pytest.mark.most(2)

N, D = 6, 3


def label(case):
    return getattr(case, "__name__", None) or repr(case)


def problem_of(net, x_star=True):
    rng = np.random.default_rng(5)
    A, b = rng.standard_normal((N, 5, D)), rng.standard_normal((N, 5))
    problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
    if x_star:
        problem.x_star = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return problem, A, b


@pytest.fixture
def net():
    with mpidec.Network(N) as net:
        yield net


@pytest.mark.parametrize("kind", ["l1", "box"])
def test_the_gradient_norm_of_a_term_is_that_of_the_proximal_gradient(net, kind):
    _, A, b = problem_of(net)
    term = P.l1(0.7) if kind == "l1" else P.box(-0.3, 0.2)
    problem = P.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi], term=term)
    x0 = np.random.default_rng(5).standard_normal(D)
    run = mpidec.solve(problem, S.NIDS(0.001), T.ring(N), steps=0, net=net, x0=x0)
    v = x0 - np.einsum("npd,np->d", A, np.einsum("npd,d->np", A, x0) - b) / N
    soft = np.sign(v) * np.maximum(abs(v) - 0.7, 0)
    moved = soft if kind == "l1" else np.clip(v, -0.3, 0.2)
    found = run.metrics["gradient_norm"][0]
    np.testing.assert_allclose(found, np.linalg.norm(x0 - moved), rtol=1e-12)
    run = mpidec.solve(problem, S.NIDS(), T.ring(N), steps=3000, net=net, every=3000)
    assert run.metrics["gradient_norm"][-1] < 1e-9


def test_metrics_are_what_they_say(net):
    problem, A, b = problem_of(net)
    result = mpidec.solve(problem, S.DGD(0.02), T.ring(N), steps=10, net=net, every=5)
    X = net.comm.bcast(net.gather(result.X))
    mean = X.mean(axis=0)
    residual = np.einsum("npd,d->np", A, mean) - b
    assert result.metrics["step"].tolist() == [0, 5, 10]
    assert result.metrics["rounds"].tolist() == [0, 5, 10]
    assert result.metrics["bytes"].tolist() == [0, 5 * 2 * N * D * 8, 10 * 2 * N * D * 8]
    last = {name: column[-1] for name, column in result.metrics.items()}
    np.testing.assert_allclose(
        last["consensus"], np.sqrt(((X - mean) ** 2).sum(axis=1).mean()), rtol=1e-12
    )
    np.testing.assert_allclose(last["objective"], (residual**2).sum() / 2 / N, rtol=1e-12)
    np.testing.assert_allclose(
        last["gradient_norm"], np.linalg.norm(np.einsum("npd,np->d", A, residual)) / N, rtol=1e-12
    )
    np.testing.assert_allclose(
        last["error"],
        np.linalg.norm(mean - problem.x_star) / np.linalg.norm(problem.x_star),
        rtol=1e-12,
    )
    np.testing.assert_allclose(result.x, mean, rtol=1e-13)


def test_no_steps_is_the_start(net):
    problem, *_ = problem_of(net, x_star=False)
    x0 = np.arange(float(N * D)).reshape(N, D)
    result = mpidec.solve(problem, S.DGD(0.1), T.ring(N), steps=0, net=net, x0=x0)
    np.testing.assert_array_equal(result.X, x0[net.lo : net.hi])
    assert (result.outcome, result.steps, "error" in result.metrics) == ("completed", 0, False)


def test_x0_is_left_alone(net):
    problem, *_ = problem_of(net)
    x0 = np.ones((N, D))
    mpidec.solve(
        problem, S.GradientTracking(0.01, variant="diging"), T.ring(N), steps=5, net=net, x0=x0
    )
    np.testing.assert_array_equal(x0, np.ones((N, D)))


def test_stopping_at_a_metric_or_by_a_callable(net):
    problem, *_ = problem_of(net)
    solve = lambda stop: mpidec.solve(
        problem, S.GradientTracking(0.05), T.complete(N), steps=5000, net=net, every=10, stop=stop
    )
    result = solve({"error": 1e-6, "consensus": 1e-6})
    assert result.outcome == "stopped"
    assert result.metrics["error"][-1] <= 1e-6 < result.metrics["error"][-2]
    assert result.steps == result.metrics["step"][-1] < 5000
    result = solve(lambda metrics: metrics["step"] >= 30)
    assert (result.steps, str(result.outcome)) == (30, "stopped")


def test_divergence_is_an_outcome_with_its_step(net, shared_tmp):
    problem, *_ = problem_of(net)
    result = mpidec.solve(
        problem,
        S.DGD(50.0),
        T.ring(N),
        steps=100_000,
        net=net,
        every=1000,
        record=shared_tmp / "run.h5",
    )
    assert result.outcome == "diverged"
    assert 50 < result.steps < 300
    assert (
        f"the iterate of agent {result.agent} is not finite after step {result.steps}"
        == result.reason
    )
    before = mpidec.solve(
        problem, S.DGD(50.0), T.ring(N), steps=result.steps - 1, net=net, every=1000
    )
    assert np.isfinite(before.X).all() and (before.outcome, before.steps) == (
        "diverged",
        result.steps - 1,
    )
    with h5py.File(shared_tmp / "run.h5") as file:
        assert np.isfinite(file["metrics/objective"][...]).all()
        assert file["result/x"].attrs["outcome"] == "diverged"
        assert file["result/x"].attrs["steps"] == result.steps


def test_the_file_holds_the_run(net, shared_tmp):
    problem, *_ = problem_of(net)
    path = shared_tmp / "run.h5"
    result = mpidec.solve(
        problem, S.DGD(0.02), T.one_peer_exponential(N), steps=7, net=net, every=2, record=path
    )
    net.comm.Barrier()
    with h5py.File(path) as file:
        assert file["trajectory/step"][...].tolist() == [0, 2, 4, 6, 7]
        assert file["trajectory/x"].shape == (5, N, D)
        np.testing.assert_array_equal(file["trajectory/x"][-1, net.lo : net.hi], result.X)
        np.testing.assert_array_equal(file["result/x"][net.lo : net.hi], result.X)
        for name, column in result.metrics.items():
            if net.rank == 0 or name != "time":
                np.testing.assert_array_equal(file[f"metrics/{name}"][...], column)
        assert file.attrs["agents"] == N
        assert file.attrs["ranks"] == net.size


@pytest.mark.parametrize(
    "solver, graph",
    [
        (S.GradientTracking(0.02), T.one_peer_exponential),
        (S.RelaySGD(0.05), T.chain),
        (S.DSGDCECA(0.02), T.ceca),
        (S.DGD(0.02, order="cta"), T.one_peer_exponential),
        (S.PushDIGing(0.02), T.exponential),
        (S.DecentLaM(0.01), T.ring),
        (S.KGT(0.02, local_steps=3), T.one_peer_exponential),
    ],
    ids=label,
)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(net, shared_tmp, solver, graph):
    problem, *_ = problem_of(net)
    oracle = mpidec.problems.Noisy(problem, 0.1)
    path = shared_tmp / "run.h5"
    run = lambda steps, record=None: mpidec.solve(
        oracle, solver, graph(N), steps=steps, net=net, every=5, record=record, seed=3
    )
    run(13, path)
    resumed, whole = run(40, mpidec.Record(path, resume=True)), run(40)
    np.testing.assert_array_equal(resumed.X, whole.X)
    net.comm.Barrier()
    with h5py.File(path) as file:
        assert file["metrics/step"][...].tolist() == [*range(0, 41, 5)]
        assert file["result/x"].attrs["steps"] == 40
        assert file.attrs["ranks"] == net.size
        for name in ("rounds", "bytes"):
            assert file[f"metrics/{name}"][-1] == whole.metrics[name][-1]
        assert (np.diff(file["metrics/time"]) >= 0).all()
        np.testing.assert_array_equal(file["result/x"][net.lo : net.hi], whole.X)


# -- resuming with the memory of the mixer ----------------------------------------------------------------------------

SPARSE = {"top_k": {"k": 1}, "rand_k": {"k": 2}, "qsgd": {"seed": 3}}
QUICK = ("qsgd", "top_k") if MPI.COMM_WORLD.size > 1 else tuple(CODECS)  # the others with --slow


def compressed(name, feedback=None):
    return lambda W: W.compress(name, feedback=feedback, **SPARSE.get(name, {}))


def accelerated(make, K, method="chebyshev"):
    return lambda W: make(W).accelerate(K, method)


def mixings():
    """Every codec with and without feedback, accelerated, and both; first one with a memory, which few sets show, too."""
    yield pytest.param(compressed("top_k"), S.DGD(0.02, order="cta"), T.ring, id="mixes-in-init")
    for name in CODECS:
        marks = () if name in QUICK else pytest.mark.slow
        for feedback in (False, True):
            words = name + feedback * "-feedback"
            yield pytest.param(
                compressed(name, feedback), S.GradientTracking(0.02), T.ring, id=words, marks=marks
            )
            if not CODECS[name].feedback:
                yield pytest.param(
                    accelerated(compressed(name, feedback), 2),
                    S.ExactDiffusion(0.02),
                    T.ring,
                    id=f"{words}-accelerated",
                    marks=marks,
                )
    for method in ("chebyshev", "fastmix"):
        yield pytest.param(
            accelerated(lambda W: W, 3, method), S.GradientTracking(0.02), T.ring, id=method
        )
    yield pytest.param(compressed("qsgd"), S.RelaySGD(0.02), T.chain, id="edge-by-edge")
    for name in ("qsgd", "rand_k"):
        yield pytest.param(
            compressed(name, False),
            S.ExactDiffusion(0.02),
            T.one_peer_exponential,
            id=f"schedule-{name}",
        )
    yield pytest.param(compressed("qsgd"), S.DSGDCECA(0.02), T.ceca, id="ceca")


def solved(comm, solver, graph, steps, record=None, mixing=None, **options):
    """A run on the ranks of `comm`; nothing on the others."""
    if comm == MPI.COMM_NULL:
        return None
    with mpidec.Network(N, comm=comm) as net:
        oracle = mpidec.problems.Noisy(problem_of(net)[0], 0.1)
        oracle = options.pop("wrapped", lambda oracle: oracle)(oracle)
        return mpidec.solve(
            oracle,
            solver,
            graph(N),
            steps=steps,
            net=net,
            seed=3,
            record=record,
            mixing=mixing,
            **{"every": 5, **options},
        )


def same_run(resumed, whole):
    """Whether two files hold the same run, bit for bit, at the steps that both record."""
    with h5py.File(resumed) as a, h5py.File(whole) as b:
        kept = np.isin(a["metrics/step"][...], b["metrics/step"][...])
        for name in (
            "trajectory/x",
            "trajectory/step",
            *(f"metrics/{name}" for name in b["metrics"] if name != "time"),
        ):
            np.testing.assert_array_equal(a[name][...][kept], b[name][...], err_msg=name)
        np.testing.assert_array_equal(a["result/x"], b["result/x"])
        memory = sorted(name for name in b["checkpoint"] if name.startswith("memory."))
        assert memory == sorted(name for name in a["checkpoint"] if name.startswith("memory."))
        for name in memory:
            np.testing.assert_array_equal(
                a["checkpoint"][name], b["checkpoint"][name], err_msg=name
            )
        return bool(memory)


@pytest.fixture
def parts(comm):
    """Communicators over 1, size - 1 and size ranks; COMM_NULL on the other ranks."""
    sizes = sorted({1, max(1, comm.size - 1), comm.size})
    made = {size: comm.Split(0 if comm.rank < size else MPI.UNDEFINED, comm.rank) for size in sizes}
    yield made
    for part in made.values():
        if part != MPI.COMM_NULL:
            part.Free()


@pytest.mark.parametrize("mixing, solver, graph", list(mixings()))
def test_a_resumed_run_continues_with_the_memory_of_its_mixer(
    comm, parts, shared_tmp, mixing, solver, graph
):
    """Written on some ranks and resumed on as many or on another number of them, against one run on a single rank."""
    whole = shared_tmp / "whole.h5"
    solved(parts[1], solver, graph, 25, whole, mixing)
    sizes = list(parts)
    for first, second in (
        product(sizes, sizes) if comm.size <= 2 else zip(sizes, sizes[1:] + sizes[:1])
    ):
        path = shared_tmp / f"{first}-{second}.h5"
        solved(parts[first], solver, graph, 10, path, mixing)
        comm.Barrier()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings(
                "ignore", ".* with (TopK|RandK|QSGD)"
            )  # does the codec fit the method?
            solved(parts[second], solver, graph, 25, mpidec.Record(path, resume=True), mixing)
        comm.Barrier()
        same_run(path, whole)


COUNTED = {
    "pair": (S.PushPull(0.02), T.ring, None),
    "lossy": (S.DGD(0.02), T.ring, lambda W: W.lossy(0.3, seed=1)),
    "edge by edge": (S.RelaySGD(0.02), T.chain, None),
    "local steps": (S.KGT(0.02, local_steps=3), T.ring, None),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counters_are_sums_over_an_interruption_and_other_ranks(comm, parts, shared_tmp, name):
    """Rounds, rows, bytes and gradients are those of one run on one rank, at each step of both."""
    (solver, graph, mixing), sizes = COUNTED[name], list(parts)
    whole = shared_tmp / "whole.h5"
    solved(parts[1], solver, graph, 25, whole, mixing, every=1)
    for first, second in dict.fromkeys([(sizes[0], sizes[-1]), (sizes[-1], sizes[0])]):
        path = shared_tmp / f"{first}-{second}.h5"
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with (
                nullcontext() if parts[first] == MPI.COMM_NULL else pytest.raises(KeyboardInterrupt)
            ):
                solved(
                    parts[first],
                    solver,
                    graph,
                    25,
                    path,
                    mixing,
                    progress=lambda step, *_: step == 5 and os.kill(os.getpid(), signal.SIGINT),
                )
        finally:
            signal.signal(signal.SIGINT, former)
        comm.Barrier()
        solved(parts[second], solver, graph, 25, mpidec.Record(path, resume=True), mixing)
        comm.Barrier()
        expected, found = mpidec.read(whole).metrics, mpidec.read(path).metrics
        for counter in ("rounds", "rows", "bytes", "gradients", "prox"):
            np.testing.assert_array_equal(
                found[counter], expected[counter][found["step"]], (counter, first, second)
            )
        comm.Barrier()


class Fails:
    """An oracle that raises on every rank at one step."""

    def __init__(self, oracle, step):
        self.oracle, self.problem, self.step = oracle, oracle.problem, step

    def start(self, agents, seed):
        gradient = self.oracle.start(agents, seed)

        def failing(X, k):
            if k == self.step:
                raise ArithmeticError("no gradient")
            return gradient(X, k)

        return failing


def test_a_failed_run_continues_from_its_last_checkpoint(comm, shared_tmp):
    path, whole, mixing, solver = (
        shared_tmp / "run.h5",
        shared_tmp / "whole.h5",
        compressed("top_k"),
        S.GradientTracking(0.02),
    )
    solved(comm, solver, T.ring, 25, whole, mixing)
    with pytest.raises(ArithmeticError):
        solved(
            comm,
            solver,
            T.ring,
            25,
            mpidec.Record(path, checkpoint_seconds=0),
            mixing,
            wrapped=lambda oracle: Fails(oracle, 17),
        )
    comm.Barrier()
    assert 0 < comm.bcast(last_checkpoint(path)[0] if comm.rank == 0 else None) <= 17
    again = mpidec.Record(path, resume=True, changed=True)  # the oracle is another one
    solved(comm, solver, T.ring, 25, again, mixing)
    comm.Barrier()
    assert same_run(path, whole)


def test_an_interrupted_run_continues(comm, shared_tmp):
    path, whole, mixing, solver = (
        shared_tmp / "run.h5",
        shared_tmp / "whole.h5",
        compressed("qsgd", True),
        S.ExactDiffusion(0.02),
    )
    solved(comm, solver, T.ring, 40, whole, mixing)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(
            KeyboardInterrupt,
            match=r"interrupted after step \d+: .*run.h5 is complete.*resume=True",
        ) as caught:
            solved(
                comm,
                solver,
                T.ring,
                40,
                path,
                mixing,
                progress=lambda step, *_: step == 15 and os.kill(os.getpid(), signal.SIGINT),
            )
    finally:
        signal.signal(signal.SIGINT, former)
    result = caught.value.result
    assert result.outcome == "interrupted" and 15 < result.steps < 40
    comm.Barrier()
    assert (
        solved(comm, solver, T.ring, 40, mpidec.Record(path, resume=True), mixing).outcome
        == "completed"
    )
    comm.Barrier()
    assert same_run(path, whole)


def test_a_diverged_run_diverges_again_at_the_same_step(comm, shared_tmp):
    path, mixing, solver = shared_tmp / "run.h5", compressed("blockwise8", True), S.DGD(50.0)
    record = mpidec.Record(path, checkpoint_seconds=0)
    first = solved(comm, solver, T.ring, 10_000, record, mixing, every=20)
    comm.Barrier()
    assert first.outcome == "diverged"
    assert 0 < comm.bcast(last_checkpoint(path)[0] if comm.rank == 0 else None) < first.steps
    again = solved(comm, solver, T.ring, 10_000, mpidec.Record(path, resume=True), mixing, every=20)
    assert (again.outcome, again.steps) == ("diverged", first.steps)


def test_a_checkpoint_without_the_memory_resumes_with_a_warning(comm, shared_tmp):
    path, mixing, solver = shared_tmp / "run.h5", compressed("top_k"), S.ExactDiffusion(0.02)
    solved(comm, solver, T.ring, 10, path, mixing)
    if comm.rank == 0:
        with h5py.File(path, "r+") as file:
            assert "memory.0_3_d" in file["checkpoint"]
            del file["checkpoint/memory.0_3_d"]
    comm.Barrier()
    with (
        pytest.warns(RuntimeWarning, match="step 10 contains no error feedback memory")
        if comm.rank == 0
        else nullcontext()
    ):
        assert (
            solved(comm, solver, T.ring, 25, mpidec.Record(path, resume=True), mixing).steps == 25
        )


@pytest.mark.parametrize(
    "solver, mixing, words",
    [
        (S.ExactDiffusion(0.02), None, "a mixer without error feedback has no memory, got 0_3_d"),
        (S.DGD(0.02, "cta"), compressed("top_k"), "resume with the solver that wrote it"),
    ],
)
def test_a_resume_that_does_not_fit_leaves_the_file_as_it_was(
    comm, shared_tmp, solver, mixing, words
):
    path = shared_tmp / "run.h5"
    solved(comm, S.ExactDiffusion(0.02), T.ring, 10, path, compressed("top_k"))
    comm.Barrier()
    before = path.read_bytes()
    comm.Barrier()
    with pytest.raises(ValueError, match=words):
        solved(comm, solver, T.ring, 25, mpidec.Record(path, resume=True, changed=True), mixing)
    comm.Barrier()
    assert path.read_bytes() == before


@pytest.mark.parametrize("mixing", [lambda W: None, lambda W: W.at(0), lambda W: W.topology])
def test_a_mixing_that_returns_no_mixer_is_refused(net, mixing):
    with pytest.raises(TypeError, match="expected a mixer derived from its argument"):
        mpidec.solve(problem_of(net)[0], S.DGD(0.02), T.ring(N), steps=1, net=net, mixing=mixing)


def test_consensus_needs_no_problem(net):
    X = np.random.default_rng(2).standard_normal((N, 4))
    result = mpidec.solve(None, S.Consensus(), T.ring(N), steps=200, x0=X, net=net, every=100)
    np.testing.assert_allclose(result.X, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-12)
    assert set(result.metrics) == {
        "step",
        "time",
        "rounds",
        "rows",
        "bytes",
        "gradients",
        "prox",
        "consensus",
    }


@pytest.mark.mpi(min_size=2)
def test_all_ranks_stop_by_the_clock_of_rank_0(net, monkeypatch):
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: 0.1 * next(ticks) / (1 + net.rank))
    monkeypatch.setattr(journal, "time", clock)
    result = mpidec.solve(
        problem_of(net)[0], S.DGD(0.01), T.ring(N), steps=300, net=net, stop={"time": 3}
    )
    times = net.comm.bcast(result.metrics["time"])
    assert result.outcome == "stopped" and times[-1] >= 3 > times[-2]
    assert len({*net.comm.allgather(result.steps)}) == 1


def test_progress_is_told_on_rank_0(net):
    problem, *_ = problem_of(net)
    told = []
    mpidec.solve(
        problem,
        S.DGD(0.02),
        T.ring(N),
        steps=4,
        net=net,
        every=2,
        progress=lambda *what: told.append(what),
    )
    assert [step for step, *_ in told] == ([0, 2, 4] if net.rank == 0 else [])
    assert all(steps == 4 and "objective" in metrics for _, steps, metrics in told)


@pytest.mark.parametrize(
    "solver, schedule",
    [
        (S.RelaySGD(0.1), T.cycle([T.chain(N)])),
        (S.EXTRA(0.05), T.cycle([T.ring(N)])),
        (S.DSGDCECA(0.05), None),
    ],
    ids=str,
)
def test_a_schedule_of_period_1_is_static_for_every_solver(comm, solver, schedule):
    """The checks of the solvers read properties that only a static topology has."""
    schedule = schedule or T.ceca(2)
    with mpidec.Network(schedule.n) as net:
        problem = mpidec.problems.LeastSquares(np.ones((net.m, 2, D)), np.ones((net.m, 2)))
        result = mpidec.solve(problem, solver, schedule, steps=5, net=net)
        np.testing.assert_array_equal(
            result.X, mpidec.solve(problem, solver, schedule.at(0), steps=5, net=net).X
        )


WRONG = [
    ({"steps": -1}, ValueError, "steps is -1, expected an integer >= 0"),
    ({"steps": 2.5}, TypeError, "steps is 2.5"),
    ({"every": 0}, ValueError, "every is 0, expected an integer >= 1"),
    ({"seed": "x"}, TypeError, "seed is 'x'"),
    (
        {"x0": np.zeros(D + 1)},
        ValueError,
        r"x0 has shape \(4,\), expected \(3,\), common to all agents, or \(6, 3\)",
    ),
    ({"x0": np.zeros((N - 1, D))}, ValueError, "x0 has shape"),
    ({"x0": [0, np.nan, 0]}, ValueError, "x0 is not finite in 1 of 3 entries"),
    ({"x0": "zeros"}, ValueError, "expected numbers of shape"),
    ({"stop": {"eror": 1}}, ValueError, "stop: unknown metric 'eror', expected one of"),
    ({"stop": {"error": "small"}}, ValueError, "expected a finite number"),
    ({"stop": 1e-8}, TypeError, "expected a mapping"),
]


@pytest.mark.parametrize("options, error, words", WRONG, ids=lambda case: str(case)[:30])
def test_wrong_use_is_told_on_every_rank(net, options, error, words):
    problem, *_ = problem_of(net)
    with pytest.raises(error, match=words):
        mpidec.solve(problem, S.DGD(0.1), T.ring(N), net=net, **{"steps": 3, **options})


def test_the_wrong_number_of_local_agents(net):
    problem = mpidec.problems.LeastSquares(np.zeros((net.m + 1, 2, D)), np.zeros((net.m + 1, 2)))
    with pytest.raises(
        ValueError,
        match=r"rank 0: the problem has .* agents, but this rank hosts .*A\[net.lo:net.hi\]",
    ):
        mpidec.solve(problem, S.DGD(0.1), T.ring(N), net=net, steps=3)


def test_a_file_that_cannot_be_written(net, shared_tmp):
    problem, *_ = problem_of(net)
    with pytest.raises(OSError, match="nowhere"):
        mpidec.solve(
            problem,
            S.DGD(0.1),
            T.ring(N),
            net=net,
            steps=3,
            record=shared_tmp / "nowhere" / "run.h5",
        )


@pytest.mark.serial
def test_what_solve_adds_to_a_step():
    """A few calls of functions, against the same steps by hand; with its defaults."""
    n, d = 16, 30
    rng = np.random.default_rng(0)
    problem = mpidec.problems.LeastSquares(
        rng.standard_normal((n, 20, d)), rng.standard_normal((n, 20)), x_star=np.ones(d)
    )
    solver, graph = S.GradientTracking(1e-3), T.exponential(n)

    def by_hand(net, steps):
        W = net.mixer(graph)
        s = solver.init(np.zeros((n, d)), W.at(0))
        for k in range(steps):
            s = solver.step(s, problem.grad(solver.point(s)), W.at(k))

    def of_a_step(act):
        act(50)  # what is made once is made
        return (calls(lambda: act(250)) - calls(lambda: act(50))) / 200

    with mpidec.Network(n) as net, net.memory():
        added = of_a_step(
            lambda k: mpidec.solve(problem, solver, graph, steps=k, net=net)
        ) - of_a_step(lambda k: by_hand(net, k))
    assert added < 60  # 40 in Python 3.11


@pytest.mark.launch
def test_an_exception_in_one_ranks_problem_ends_the_job(mpirun):
    program = (
        "import mpidec, numpy as np\n"
        "net = mpidec.Network()\n"
        "def grad(X):\n"
        "    if net.rank == 1: raise ArithmeticError('no gradient')\n"
        "    return X.copy()\n"
        "problem = mpidec.problems.Custom(lambda X: (X**2).sum(axis=1) / 2, grad, 1, 2)\n"
        "mpidec.solve(problem, mpidec.solvers.DGD(0.1), mpidec.topology.ring(net.n), steps=100, net=net)\n"
    )
    done = mpirun(3, ["-c", program], timeout=30)
    assert done.returncode != 0
    assert "[rank 1] ArithmeticError: no gradient" in done.stderr


@pytest.mark.serial
def test_ctrl_c_ends_the_program_too():
    """A loop of several solves took one Ctrl-C each: the program did not see them."""

    class Interrupting:
        m, d = 2, 1

        def value(self, X):
            return X[:, 0]

        def grad(self, X):
            if -0.55 < X[0, 0] < -0.45:
                os.kill(os.getpid(), signal.SIGINT)
            return np.ones_like(X)

    with pytest.raises(KeyboardInterrupt, match=r"^interrupted after step \d+$") as caught:
        mpidec.solve(Interrupting(), S.DGD(0.1), T.ring(2), steps=10**6, every=10**6)
    assert (
        isinstance(caught.value, mpidec.Interrupted)
        and caught.value.result.outcome == "interrupted"
    )
    assert caught.value.result.steps < 1000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "name, values",
    {
        "solver": (S.EXTRA(0.02), S.EXTRA(0.01)),
        "every": (10, 7),
        "seed": (0, 1),
        "record": ("a.h5", None),
        "x0": (np.zeros(3), np.ones(3)),
        "stop": (None, {"time": 3}),
        "mixing": (lambda W: W.lossy(0.1).repeat(2), lambda W: W.lossy(0.1, seed=1).repeat(2)),
        "oracle": (mpidec.problems.SAGA, mpidec.problems.SVRG),
    }.items(),
)
def test_ranks_with_different_arguments_are_told_which(comm, shared_tmp, name, values):
    with mpidec.Network(2 * comm.size) as net:
        problem = mpidec.problems.LeastSquares(np.ones((net.m, 2, 3)), np.ones((net.m, 2)))
        value = values[net.rank == net.size - 1]
        if name == "record" and value is not None:
            value = shared_tmp / value
        arguments = {"solver": S.EXTRA(0.02), "steps": 5, "problem": problem}
        arguments |= {"problem": value(problem)} if name == "oracle" else {name: value}
        with pytest.raises(
            ValueError,
            match=f"rank 0 and rank {net.size - 1} call solve with different {name}: .* and ",
        ):
            mpidec.solve(topology=T.ring(net.n), net=net, **arguments)
        assert (
            mpidec.solve(problem, S.EXTRA(0.02), T.ring(net.n), steps=5, net=net).outcome
            == "completed"
        )
    assert not list(shared_tmp.iterdir())


@pytest.mark.serial
def test_gradients_of_a_resumed_run_are_counted(tmp_path):
    problem, path = (
        mpidec.problems.LeastSquares(np.ones((4, 2, 3)), np.ones((4, 2))),
        tmp_path / "run.h5",
    )
    for steps in (3, 7, 7):
        record = mpidec.Record(path, resume=path.exists())
        mpidec.solve(problem, S.NIDS(0.1), T.ring(4), steps=steps, every=3, record=record)
    metrics = mpidec.read(path).metrics
    assert metrics["gradients"].tolist() == metrics["step"].tolist() == [0, 3, 6, 7]


@pytest.mark.serial
def test_a_run_without_steps_is_not_told_to_mix_every_step(recwarn):
    problem = mpidec.problems.LeastSquares(np.ones((4, 2, 3)), np.ones((4, 2)))
    assert mpidec.solve(problem, S.DGD(0.1), T.ring(4), steps=0).steps == 0 and not recwarn.list
    with pytest.raises(
        ValueError, match=r"DGD: step_size is an array of shape \(2,\), expected one"
    ):
        mpidec.solve(problem, S.DGD(np.array([0.1, 0.2])), T.ring(4), steps=5)


@pytest.mark.serial
def test_gradients_in_one_buffer_are_copied_or_refused_and_those_in_place_refused():
    buffer, value = np.empty((4, 3)), lambda X: ((X - 1) ** 2).sum(axis=1) / 2

    def in_place(X):
        X -= 1
        return X

    class Own:
        m, d = 4, 3

        def __init__(self, grad):
            self.value, self.grad = value, grad

    run = lambda problem: mpidec.solve(problem, S.EXTRA(0.1), T.ring(4), steps=5).X
    in_one = lambda X: np.subtract(X, 1, out=buffer)
    custom = lambda grad: mpidec.problems.Custom(value, grad, m=4, d=3)
    np.testing.assert_array_equal(run(custom(in_one)), run(custom(lambda X: X - 1)))
    for grad, words in (
        (in_one, "the same array at each call"),
        (in_place, "changes X"),
        (lambda X: X, "X itself"),
    ):
        with pytest.raises(ValueError, match=words):
            run(Own(grad))


@pytest.mark.serial
def test_a_record_that_is_no_path():
    with pytest.raises(TypeError, match=r"record is True, expected a path, or mpidec.Record"):
        mpidec.solve(None, S.Consensus(), T.ring(4), x0=np.eye(4), steps=5, record=True)


def test_a_resumed_run_has_the_data_of_its_beginning(net, shared_tmp):
    (problem, A, b), path = problem_of(net), shared_tmp / "run.h5"
    go = lambda problem, steps, record: mpidec.solve(
        problem, S.EXTRA(0.02), "ring", steps=steps, net=net, record=record
    )
    go(problem, 5, path)
    net.comm.Barrier()
    before = path.read_bytes()
    with mpidec.Network(
        N, MPI.COMM_SELF
    ) as alone:  # the hash does not depend on the number of ranks
        whole = data_hash(alone, mpidec.problems.LeastSquares(A, b))
        assert whole != data_hash(alone, mpidec.problems.LeastSquares(A[::-1], b[::-1]))
    assert len(whole["data_hash"]) == 32 and whole["data_samples"] == 5 * N
    assert whole.items() <= mpidec.read(path).attributes.items()
    A = A.copy()
    A[-1, 0, 0] *= 1 + 1e-15
    for samples, text in ((5, "30 samples with other values"), (4, "30 samples then, 24 now")):
        changed = mpidec.problems.LeastSquares(
            A[net.lo : net.hi, :samples], b[net.lo : net.hi, :samples]
        )
        with pytest.raises(
            ValueError,
            match=f"run.h5: the data of the problem have changed since the run began: {text}",
        ):
            go(changed, 9, mpidec.Record(path, resume=True))
    assert path.read_bytes() == before
    problem.x_star = problem.x_star + 1.0
    go(problem, 9, mpidec.Record(path, resume=True, changed=True))
    net.comm.Barrier()
    run = mpidec.read(path)
    least = net.mean(problem.value(np.tile(problem.x_star, (net.m, 1)))[:, None])[0]
    assert (
        run.steps == 9 and run.attributes["f_star"] == least
    )  # that of the solution as it is known now
    go(problem, 12, mpidec.Record(path, resume=True))
    net.comm.Barrier()
    parts = mpidec.read(path).attributes["resumed"].splitlines()
    assert parts[0].startswith("step 5, changed: x_star was ")
    assert parts[1].startswith("step 9, created: ")
    assert all("command: " in part for part in parts)


def refused_then_replaced(path, run, comm=None):
    if comm is None or comm.rank == 0:
        path.write_bytes(b"hours of work")
    with pytest.raises(ValueError, match="both resume=True and replace=True"):
        run(mpidec.Record(path, resume=True, replace=True))
    with pytest.raises(
        FileExistsError,
        match=r"run.h5 exists: .* replace it with record=mpidec.Record\(.*replace=True",
    ):
        run(path)
    assert path.read_bytes() == b"hours of work"
    if comm is not None:
        comm.Barrier()
    run(mpidec.Record(path, replace=True))
    assert mpidec.read(path).outcome == "completed"


def test_an_existing_file_is_replaced_only_on_request(net, shared_tmp):
    problem, *_ = problem_of(net)
    refused_then_replaced(
        shared_tmp / "run.h5",
        lambda record: mpidec.solve(problem, "extra", "ring", steps=5, net=net, record=record),
        net.comm,
    )


@pytest.mark.serial
def test_simulations_replace_no_file_either(tmp_path):
    problem = mpidec.problems.LeastSquares(np.ones((4, 2, 3)), np.ones((4, 2)))
    refused_then_replaced(
        tmp_path / "run.h5",
        lambda record: mpidec.simulate(
            problem, "running_sum_tracking", "ring", steps=5, record=record
        ),
    )


@pytest.mark.serial
def test_a_run_is_resumed_with_its_own_topology(tmp_path):
    problem, path = (
        mpidec.problems.LeastSquares(np.ones((4, 2, 3)), np.ones((4, 2))),
        tmp_path / "run.h5",
    )
    mpidec.solve(problem, S.EXTRA(0.1), T.ring(4), steps=5, record=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"made with another W, not that of .*star"):
        mpidec.solve(
            problem, S.EXTRA(0.1), T.star(4), steps=9, record=mpidec.Record(path, resume=True)
        )
    assert path.read_bytes() == before
    assert (
        mpidec.solve(
            problem, S.EXTRA(0.1), T.ring(4), steps=9, record=mpidec.Record(path, resume=True)
        ).steps
        == 9
    )


@pytest.mark.serial
def test_a_run_is_resumed_with_its_own_weights(tmp_path):
    """Not with others on the same edges, not with as many edges elsewhere, and not with the other matrix of a pair."""
    problem, path = P.LeastSquares(np.ones((4, 2, 3)), np.ones((4, 2))), tmp_path / "run.h5"

    def ring(w, order=range(4)):
        A = np.zeros((4, 4))
        for i, j in zip(order, np.roll(order, 1)):
            A[i, j] = A[j, i] = w
        return T.from_weights(A + np.diag(1 - A.sum(axis=1)))

    def solve(graph, steps, resume=True):
        record = mpidec.Record(path, resume=resume, replace=not resume)
        return mpidec.solve(problem, S.PushPull(0.1), graph, steps=steps, record=record)

    own = T.push_pull(ring(0.2), ring(0.3))
    others = [
        (ring(0.2), [ring(0.3), ring(0.2, (0, 2, 1, 3))]),
        (own, [T.push_pull(ring(0.2), ring(0.2)), T.push_pull(ring(0.3), ring(0.3)), ring(0.2)]),
    ]
    for graph, wrong in others:
        solve(graph, 5, resume=False)
        for other in wrong:
            with pytest.raises(ValueError, match=r"made with another W"):
                solve(other, 9)
        assert solve(graph, 9).steps == 9


@pytest.mark.serial
def test_a_large_topology_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_LARGEST_TOPOLOGY", 11)
    problem, path = (
        mpidec.problems.LeastSquares(np.ones((4, 2, 3)), np.ones((4, 2))),
        tmp_path / "run.h5",
    )
    for steps in (5, 9):
        record = mpidec.Record(path, resume=steps == 9)
        mpidec.solve(problem, S.EXTRA(0.1), T.ring(4), steps=steps, record=record)
        assert not mpidec.read(path).topology and mpidec.read(path).steps == steps


def test_a_run_that_resumes_between_two_records_adds_none_there(comm, shared_tmp, monkeypatch):
    monkeypatch.setattr(decisions.Control, "_interval", lambda *arguments: 1)  # a decision per step
    path = shared_tmp / "run.h5"
    with mpidec.Network(2 * comm.size) as net:
        for call in (10, 0):
            record = mpidec.Record(
                path, resume=call == 0, changed=call == 0, checkpoint_seconds=1e-9
            )
            problem = Broken(net, "grad", call, 0)
            ended = pytest.raises(ZeroDivisionError) if call else nullcontext()
            with ended:
                mpidec.solve(
                    problem, S.DGD(0.05), "ring", steps=10, every=5, net=net, record=record
                )
            if call and net.rank == 0:
                assert last_checkpoint(path)[0] % 5
        net.comm.Barrier()
        assert mpidec.read(path).metrics["step"].tolist() == [0, 5, 10]


class Interrupting(mpidec.problems.Full):
    """Exact gradients, and Ctrl-C on rank 0 in step `at`."""

    at = -1

    def start(self, agents, seed):
        def gradient(X, k):
            if k == self.at and 0 in agents:
                signal.raise_signal(signal.SIGINT)
            return self.problem.grad(X)

        return gradient


def test_an_interruption_between_two_records_leaves_none_there(net, shared_tmp, monkeypatch):
    """The file of an interrupted run has a record of its last step, and the resumed one those of an uninterrupted run."""
    monkeypatch.setattr(decisions.Control, "_interval", lambda *arguments: 1)  # a decision per step
    path, oracle = shared_tmp / "run.h5", Interrupting(problem_of(net)[0])

    def go(record, steps=20, every=5):
        mpidec.solve(oracle, S.DGD(0.05), "ring", steps=steps, every=every, net=net, record=record)

    def recorded():
        net.comm.Barrier()
        return mpidec.read(path).metrics["step"].tolist()

    go(shared_tmp / "whole.h5")
    oracle.at = 7
    with pytest.raises(mpidec.Interrupted, match="after step 8"):
        go(path)
    assert recorded() == [0, 5, 8]
    oracle.at = 8
    with pytest.raises(mpidec.Interrupted, match="after step 9"):
        go(mpidec.Record(path, resume=True))
    assert recorded() == [0, 5, 9]
    for every in (5, 6):  # a second time: no step
        go(mpidec.Record(path, resume=True), 12, every)
        assert recorded() == [0, 5, 10, 12]
    go(mpidec.Record(path, resume=True))
    assert recorded() == [0, 5, 10, 12, 15, 20]  # 12 is a multiple of 6
    same_run(path, shared_tmp / "whole.h5")


def test_an_error_at_the_end_of_the_file_is_raised_on_all_ranks(net, shared_tmp, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFile, "finish", full)
    with pytest.raises(OSError, match="No space left"):
        mpidec.solve(
            problem_of(net)[0], S.DGD(0.02), "ring", steps=3, net=net, record=shared_tmp / "run.h5"
        )


# ---------------------------------------------------------------------------------------------------------------------
# An exception on one rank is raised on all


class Broken(mpidec.problems.LeastSquares):
    """A problem whose functions raise on one rank at some call."""

    def __init__(self, net, what, call, rank=-1):
        super().__init__(np.ones((net.m, 2, 3)), np.ones((net.m, 2)))
        self.calls, self.what, self.call, self.here = (
            {"value": 0, "grad": 0},
            what,
            call,
            net.rank == rank % net.size,
        )

    def _count(self, what):
        self.calls[what] += 1
        if self.here and what == self.what and self.calls[what] == self.call:
            raise ZeroDivisionError(f"{what} broke")

    def value(self, X):
        self._count("value")
        return super().value(X)

    def grad(self, X):
        self._count("grad")
        return super().grad(X)


@pytest.mark.parametrize("step_size", ["auto", 0.05])
@pytest.mark.parametrize(
    "what, call", [("value", 1), ("value", 8), ("grad", 1), ("grad", 4), ("grad", 9)]
)
def test_what_the_problem_raises_on_one_rank_is_raised_on_all(
    comm, shared_tmp, step_size, what, call
):
    with mpidec.Network(2 * comm.size) as net:
        path = shared_tmp / "run.h5"
        with pytest.raises(ZeroDivisionError, match=f"{what} broke"):
            mpidec.solve(
                Broken(net, what, call),
                S.EXTRA(step_size),
                T.ring(net.n),
                steps=30,
                every=5,
                net=net,
                record=path,
            )
        np.testing.assert_array_equal(net.sum(np.ones((net.m, 1))), [net.n])  # all are in step
        if net.rank == 0 and path.exists():
            assert mpidec.read(path).outcome == "failed"


@pytest.mark.parametrize("what", ["stop", "progress"])
def test_what_stop_or_progress_raises_on_rank_0_is_raised_on_all(comm, shared_tmp, what):
    def broken(*arguments):
        if (arguments[0]["step"] if what == "stop" else arguments[0]) >= 10:
            raise ZeroDivisionError("broke")
        return False

    with mpidec.Network(2 * comm.size) as net:
        problem, path = (
            mpidec.problems.LeastSquares(np.ones((net.m, 2, 3)), np.ones((net.m, 2))),
            shared_tmp / "run.h5",
        )
        for last in (30, 10):  # in the midst, and at the last record
            with pytest.raises(ZeroDivisionError, match="broke"):
                mpidec.solve(
                    problem,
                    S.EXTRA(0.05),
                    T.ring(net.n),
                    steps=last,
                    every=5,
                    net=net,
                    record=mpidec.Record(path, replace=True),
                    **{what: broken},
                )
            np.testing.assert_array_equal(net.sum(np.ones((net.m, 1))), [net.n])
            if net.rank == 0:
                assert mpidec.read(path).outcome == "failed"
            comm.Barrier()
