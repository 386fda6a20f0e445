"""The loop: outcomes, metrics, files, stopping, wrong use."""

import os
import signal
import sys

import h5py
import numpy as np
import pytest

import mpidec
from mpidec import solvers as S
from mpidec import topology as T

N, D = 6, 3


def problem_of(net, x_star=True):
    rng = np.random.default_rng(5)
    A, b = rng.standard_normal((N, 5, D)), rng.standard_normal((N, 5))
    problem = mpidec.problems.LeastSquares(A[net.lo:net.hi], b[net.lo:net.hi])
    if x_star:
        problem.x_star = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return problem, A, b


@pytest.fixture
def net():
    with mpidec.Network(N) as net:
        yield net


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
    np.testing.assert_allclose(last["consensus"], np.sqrt(((X - mean) ** 2).sum(axis=1).mean()), rtol=1e-12)
    np.testing.assert_allclose(last["objective"], (residual ** 2).sum() / 2 / N, rtol=1e-12)
    np.testing.assert_allclose(last["gradient_norm"], np.linalg.norm(np.einsum("npd,np->d", A, residual)) / N, rtol=1e-12)
    np.testing.assert_allclose(last["error"], np.linalg.norm(mean - problem.x_star) / np.linalg.norm(problem.x_star), rtol=1e-12)
    np.testing.assert_allclose(result.x, mean, rtol=1e-13)


def test_no_steps_is_the_start(net):
    problem, *_ = problem_of(net, x_star=False)
    x0 = np.arange(float(N * D)).reshape(N, D)
    result = mpidec.solve(problem, S.DGD(0.1), T.ring(N), steps=0, net=net, x0=x0)
    np.testing.assert_array_equal(result.X, x0[net.lo:net.hi])
    assert (result.outcome, result.steps, "error" in result.metrics) == ("completed", 0, False)


def test_x0_is_left_alone(net):
    problem, *_ = problem_of(net)
    x0 = np.ones((N, D))
    mpidec.solve(problem, S.GradientTracking(0.01, variant="diging"), T.ring(N), steps=5, net=net, x0=x0)
    np.testing.assert_array_equal(x0, np.ones((N, D)))


def test_stopping_at_a_metric_or_by_a_callable(net):
    problem, *_ = problem_of(net)
    solve = lambda stop: mpidec.solve(problem, S.GradientTracking(0.05), T.complete(N), steps=5000, net=net, every=10, stop=stop)   # noqa: E731
    result = solve({"error": 1e-6, "consensus": 1e-6})
    assert result.outcome == "stopped"
    assert result.metrics["error"][-1] <= 1e-6 < result.metrics["error"][-2]
    assert result.steps == result.metrics["step"][-1] < 5000
    result = solve(lambda metrics: metrics["step"] >= 30)
    assert (result.steps, str(result.outcome)) == (30, "stopped")


def test_divergence_is_an_outcome_with_its_step(net, shared_tmp):
    problem, *_ = problem_of(net)
    result = mpidec.solve(problem, S.DGD(50.0), T.ring(N), steps=100_000, net=net, every=1000, record=shared_tmp / "run.h5")
    assert result.outcome == "diverged"
    assert 50 < result.steps < 300
    finite = mpidec.solve(problem, S.DGD(50.0), T.ring(N), steps=result.steps - 1, net=net, every=1000)
    assert finite.outcome == "completed"
    with h5py.File(shared_tmp / "run.h5") as file:
        assert np.isfinite(file["metrics/objective"][...]).all()
        assert file["result/x"].attrs["outcome"] == "diverged"
        assert file["result/x"].attrs["steps"] == result.steps


def test_the_file_holds_the_run(net, shared_tmp):
    problem, *_ = problem_of(net)
    path = shared_tmp / "run.h5"
    result = mpidec.solve(problem, S.DGD(0.02), T.one_peer_exponential(N), steps=7, net=net, every=2, record=path)
    net.comm.Barrier()
    with h5py.File(path) as file:
        assert file["trajectory/step"][...].tolist() == [0, 2, 4, 6, 7]
        assert file["trajectory/x"].shape == (5, N, D)
        np.testing.assert_array_equal(file["trajectory/x"][-1, net.lo:net.hi], result.X)
        np.testing.assert_array_equal(file["result/x"][net.lo:net.hi], result.X)
        for name, column in result.metrics.items():
            if net.rank == 0 or name != "time":
                np.testing.assert_array_equal(file[f"metrics/{name}"][...], column)
        assert file.attrs["agents"] == N
        assert file.attrs["ranks"] == net.size


@pytest.mark.parametrize("solver, graph", [(S.GradientTracking(0.02), T.one_peer_exponential), (S.RelaySGD(0.05), T.chain),
                                               (S.DSGDCECA(0.02), T.ceca), (S.DGD(0.02, order="cta"), T.one_peer_exponential),
                                               (S.PushDIGing(0.02), T.exponential)], ids=repr)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(net, shared_tmp, solver, graph):
    problem, *_ = problem_of(net)
    oracle = mpidec.problems.Noisy(problem, 0.1)
    path = shared_tmp / "run.h5"
    run = lambda steps, record=None: mpidec.solve(oracle, solver, graph(N), steps=steps, net=net, every=5, record=record, seed=3)   # noqa: E731
    run(13, path)
    resumed, whole = run(40, mpidec.Record(path, resume=True)), run(40)
    np.testing.assert_array_equal(resumed.X, whole.X)
    net.comm.Barrier()
    with h5py.File(path) as file:
        assert file["metrics/step"][...].tolist() == [0, 5, 10, 13, 15, 20, 25, 30, 35, 40]
        assert file["result/x"].attrs["steps"] == 40
        assert file.attrs["ranks"] == net.size
        for name in ("rounds", "bytes"):
            assert file[f"metrics/{name}"][-1] == whole.metrics[name][-1]
        assert (np.diff(file["metrics/time"]) >= 0).all()
        np.testing.assert_array_equal(file["result/x"][net.lo:net.hi], whole.X)


def test_consensus_needs_no_problem(net):
    X = np.random.default_rng(2).standard_normal((N, 4))
    result = mpidec.solve(None, S.Consensus(), T.ring(N), steps=200, x0=X, net=net, every=100)
    np.testing.assert_allclose(result.X, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-12)
    assert set(result.metrics) == {"step", "time", "rounds", "bytes", "consensus"}


def test_progress_is_told_on_rank_0(net):
    problem, *_ = problem_of(net)
    told = []
    mpidec.solve(problem, S.DGD(0.02), T.ring(N), steps=4, net=net, every=2, progress=lambda *what: told.append(what))
    assert [step for step, *_ in told] == ([0, 2, 4] if net.rank == 0 else [])
    assert all(steps == 4 and "objective" in metrics for _, steps, metrics in told)


WRONG = [
    ({"steps": -1}, ValueError, "steps is -1, expected a whole number >= 0"),
    ({"steps": 2.5}, ValueError, "steps is 2.5"),
    ({"every": 0}, ValueError, "every is 0, expected a whole number >= 1"),
    ({"seed": "x"}, ValueError, "seed is 'x'"),
    ({"x0": np.zeros(D + 1)}, ValueError, r"x0 has shape \(4,\), expected \(3,\), the same for every agent, or \(6, 3\)"),
    ({"x0": np.zeros((N - 1, D))}, ValueError, "x0 has shape"),
    ({"x0": [0, np.nan, 0]}, ValueError, "x0 has 1 entries that are not finite"),
    ({"x0": "zeros"}, ValueError, "expected numbers of shape"),
    ({"stop": {"eror": 1}}, ValueError, "stop names the metric 'eror', expected one of"),
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
    with pytest.raises(ValueError, match=r"rank 0: the problem holds .* agents, this rank hosts .*A\[net.lo:net.hi\]"):
        mpidec.solve(problem, S.DGD(0.1), T.ring(N), net=net, steps=3)


def test_a_file_that_cannot_be_written(net, shared_tmp):
    problem, *_ = problem_of(net)
    with pytest.raises(OSError, match="nowhere"):
        mpidec.solve(problem, S.DGD(0.1), T.ring(N), net=net, steps=3, record=shared_tmp / "nowhere" / "run.h5")


@pytest.mark.launch
def test_an_exception_in_one_ranks_problem_ends_the_job(mpirun):
    program = ("import mpidec, numpy as np\n"
               "net = mpidec.Network()\n"
               "def grad(X):\n"
               "    if net.rank == 1: raise ArithmeticError('no gradient')\n"
               "    return X\n"
               "problem = mpidec.problems.Custom(lambda X: (X**2).sum(axis=1) / 2, grad, 1, 2)\n"
               "mpidec.solve(problem, mpidec.solvers.DGD(0.1), mpidec.topology.ring(net.n), steps=100, net=net)\n")
    done = mpirun(3, ["-c", program], timeout=30)
    assert done.returncode != 0
    assert "[rank 1] ArithmeticError: no gradient" in done.stderr


@pytest.mark.serial
def test_ctrl_c_is_an_outcome():
    class Interrupting:
        m, d = 2, 1

        def value(self, X):
            return X[:, 0]

        def grad(self, X):
            if -0.55 < X[0, 0] < -0.45:
                os.kill(os.getpid(), signal.SIGINT)
            return np.ones_like(X)
    result = mpidec.solve(Interrupting(), S.DGD(0.1), T.ring(2), steps=10**6, every=10**6)
    assert result.outcome == "interrupted"
    assert result.steps < 1000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
