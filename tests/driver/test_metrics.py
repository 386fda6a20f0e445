"""Minimizers that move, and metrics of one's own: numbers by hand, on any ranks, after a resume, as targets."""

import h5py
import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.comm.runtime.mpi import MPI
from mpidec.driver.metrics import METRICS, Known, Metric, Metrics, Summand
from mpidec.driver.provenance import data_hash
from mpidec.exceptions import ResumeError
from mpidec.plot.quantities import y_values
from mpidec.record import read

N, D, MU = 7, 2, 0.3
OFFSET = np.random.default_rng(0).standard_normal((N, D))


def x_star(k):
    return np.array([np.cos(0.1 * k), 2 * np.sin(0.1 * k)])


class Following(P.Oracle):
    """Gradients of |x - c_i(k)|^2 / 2, whose centers move together."""

    random = False

    def __init__(self, lo=0, m=N, minimizer=x_star):
        C = (OFFSET - OFFSET.mean(axis=0))[lo : lo + m]
        self.C, grad = C, lambda X: X - C
        value = lambda X: ((X - C) ** 2).sum(axis=1) / 2
        self.problem = P.Custom(value, grad, m, D, x_star=minimizer)

    def start(self, agents, seed):
        def gradient(X, k, agents=None):
            return X - x_star(k) - (self.C if agents is None else self.C[list(agents)])

        return gradient


def by_hand(steps, graph=T.ring(N)):  # noqa: B008
    """The rows of DGD after each step."""
    A, C, X = graph.at(0).W.toarray(), Following().C, [np.zeros((N, D))]
    for k in range(steps):
        X.append(A @ X[-1] - MU * (X[-1] - x_star(k) - C))
    return np.array(X)


def errors(X, k):
    """error, error_rms and error_max of rows at step k."""
    away = np.linalg.norm(X - x_star(k), axis=1)
    mean = np.linalg.norm(X.mean(axis=0) - x_star(k))
    return np.array([mean, np.sqrt((away**2).mean()), away.max()]) / np.linalg.norm(x_star(k))


def run(net, steps=40, **options):
    oracle = Following(net.lo, net.m)
    return mpidec.solve(oracle, S.DGD(MU, order="awc"), T.ring(N), steps=steps, net=net, **options)


def msd(X, agents, k):
    return ((X - x_star(k)) ** 2).sum(axis=1) * (1 + np.array(agents))


@pytest.fixture
def net(comm):
    with mpidec.Network(N, comm) as made:
        yield made


def test_errors_are_those_against_the_minimizer_of_their_step(net, shared_tmp):
    path = shared_tmp / "run.h5"
    run(net, 17, every=5, record=path)
    found = run(net, 40, every=5, record=mpidec.Record(path, resume=True)).metrics
    steps, X = found["step"], by_hand(40)
    assert steps[-1] == 40
    expected = np.array([errors(X[k], k) for k in steps])
    for name, values in zip(("error", "error_rms", "error_max"), expected.T):
        np.testing.assert_allclose(found[name], values, rtol=1e-12)
    with h5py.File(path) as file:
        recorded = file["metrics/error"][...]
        np.testing.assert_allclose(
            recorded, [errors(X[k], k)[0] for k in file["metrics/step"][...]], rtol=1e-12
        )
        assert "f_star" not in file.attrs


def test_a_target_is_judged_against_the_minimizer_of_its_step(net):
    X = by_hand(200)
    level = 1.2 * min(errors(X[k], k)[0] for k in range(60))
    first = next(k for k in range(200) if errors(X[k], k)[0] <= level)
    ended = run(net, 200, every=1, stop={"error": level})
    assert (ended.outcome, ended.steps) == ("stopped", first) and first > 3


@pytest.mark.serial
def test_asynchronous_records_have_the_minimizer_of_their_step():
    for go in (mpidec.simulate, mpidec.solve):
        found = go(Following(), S.PairwiseGossip(0.1), T.ring(N), steps=30, metrics={"msd": near})
        assert found.metrics["step"][-1] >= 30
        scale = np.array([np.linalg.norm(x_star(k)) for k in found.metrics["step"]])
        np.testing.assert_allclose(
            found.metrics["msd"], (scale * found.metrics["error_rms"]) ** 2, rtol=1e-12
        )


def near(X, agents, k):
    return ((X - x_star(k)) ** 2).sum(axis=1)


def test_own_metrics_are_averages_over_all_agents_with_the_same_bits(net):
    found = run(
        net, 23, every=10, metrics={"msd": msd, "step_number": lambda X, a, k: [k] * len(a)}
    )
    X, steps = by_hand(23), [0, 10, 20, 23]
    assert found.metrics["step_number"].tolist() == steps
    expected = [np.mean(msd(X[k], range(N), k)) for k in steps]
    np.testing.assert_allclose(found.metrics["msd"], expected, rtol=1e-12)
    with mpidec.Network(N, MPI.COMM_SELF) as alone:
        whole = run(alone, 23, every=10, metrics={"msd": msd})
    np.testing.assert_array_equal(found.metrics["msd"], whole.metrics["msd"])


def test_own_metrics_are_recorded_resumed_and_drawn(net, shared_tmp):
    path, own = shared_tmp / "run.h5", {"msd": msd}
    run(net, 17, every=5, record=path, metrics=own)
    for others in (None, {"other": msd}):
        with pytest.raises(ResumeError, match=r"metrics was \['msd'\], is now \["):
            run(net, 40, record=mpidec.Record(path, resume=True), metrics=others)
    run(net, 40, every=5, record=mpidec.Record(path, resume=True), metrics=own)
    net.comm.Barrier()
    found = read(path)
    X = by_hand(40)
    expected = [np.mean(msd(X[k], range(N), k)) for k in found.metrics["step"]]
    np.testing.assert_allclose(found.metrics["msd"], expected, rtol=1e-12)
    (drawn,), label = y_values([found], "msd")
    np.testing.assert_array_equal(drawn, found.metrics["msd"])
    assert label == "msd"


def test_own_metrics_are_targets_and_may_have_any_value(net):
    decibel = lambda X, agents, k: np.full(len(X), -np.inf if k == 0 else -float(k))
    ended = run(net, 60, every=5, metrics={"db": decibel}, stop={"db": -20})
    assert (ended.outcome, ended.steps) == ("stopped", 0)  # -inf is smaller
    ended = run(net, 60, every=5, metrics={"db": lambda X, a, k: [-k] * len(a)}, stop={"db": -20})
    assert (ended.outcome, ended.steps) == ("stopped", 20)
    ended = run(net, 9, metrics={"db": lambda X, a, k: [np.nan] * len(a)}, stop={"db": -20})
    assert (ended.outcome, ended.steps) == ("missed", 9)


def test_own_metrics_leave_the_rows_alone(net):
    def spoils(X, agents, k):
        X[:] = 9
        return X[:, 0]

    np.testing.assert_array_equal(run(net, metrics={"nine": spoils}).X, run(net).X)


def test_errors_of_own_metrics_and_minimizers_are_raised_on_all_ranks(net):
    last = lambda X, agents, k: [1 / (N - 1 - i) for i in agents]
    with pytest.raises(ZeroDivisionError):
        run(net, metrics={"inverse": last})
    with pytest.raises(
        ValueError, match=r"metric wrong: f\(X, agents, k\) returns float64 of shape"
    ):
        run(net, metrics={"wrong": lambda X, agents, k: X if N - 1 in agents else X[:, 0]})
    moving = Following(net.lo, net.m, lambda k: x_star(k)[: 1 if k > 9 else 2])
    with pytest.raises(ValueError, match=r"x_star\(10\) is of shape \(1,\), expected finite"):
        mpidec.solve(moving, S.DGD(MU), T.ring(N), steps=20, net=net)
    assert net.sum(np.ones((net.m, 1)))[0] == N  # in step


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("minimizer", "says"),
    [
        (lambda rank: None if rank else x_star(0), "different x_star: .*of shape .2,.* and None"),
        (lambda rank: x_star(rank), "x_star differs between the ranks by 0.2, expected on all"),
        (lambda rank: lambda k: x_star(k + rank), "x_star differs between the ranks by 0.2"),
    ],
)
def test_ranks_with_different_minimizers_are_told(net, minimizer, says):
    """The errors of rank 0 were recorded, and minimizers of some ranks ended in a timeout."""
    rank = int(net.rank == net.size - 1)
    problem = Following(net.lo, net.m, minimizer(rank))
    with pytest.raises(ValueError, match=says):
        mpidec.solve(problem, S.DGD(MU), T.ring(N), steps=1, net=net)
    rounded = Following(net.lo, net.m, x_star(0) * (1 + 1e-15 * rank))
    assert mpidec.solve(rounded, S.DGD(MU), T.ring(N), steps=1, net=net).steps == 1


@pytest.mark.serial
@pytest.mark.parametrize(
    ("metrics", "error", "says"),
    [
        ({"error": msd}, ValueError, "'error' is a metric of every run, expected .* 'my_error'"),
        ({"m/s": msd}, ValueError, "'m/s' is no name"),
        ({"msd": 3}, TypeError, r"msd is 3, expected a function of \(X, agents, k\)"),
        (
            {"msd": lambda X: 1},
            TypeError,
            r"msd is <lambda>\(X\), expected a .* \(X, agents, k\): too many",
        ),
        ([msd], TypeError, "expected a mapping"),
    ],
)
def test_what_is_no_metric_is_refused(metrics, error, says):
    with pytest.raises(error, match=says):
        mpidec.solve(Following(), S.DGD(MU), T.ring(N), steps=1, metrics=metrics)
    with pytest.raises(error, match=says):
        mpidec.simulate(Following(), S.PairwiseGossip(MU), T.ring(N), steps=1, metrics=metrics)


@pytest.mark.serial
def test_a_complex_minimizer_of_real_rows_is_refused():
    problem = P.LeastSquares(np.ones((1, 2, 1)), [[1.0, 2.0]])
    problem.x_star = np.array([1.5 + 1j])
    late = Following(minimizer=lambda k: x_star(k) * (1j if k else 1))
    for one in (problem, late):
        with pytest.raises(TypeError, match="x_star is complex, the rows are real"):
            mpidec.solve(one, S.DGD(0.1), T.ring(1 if one is problem else N), steps=1)


@pytest.mark.serial
@pytest.mark.parametrize("size", [1e-100, 1e140, 1e160, 1e200])
@pytest.mark.filterwarnings("ignore:overflow")
def test_large_finite_rows_and_gradients_are_no_divergence(size):
    A = np.random.default_rng(0).standard_normal((4, 6, 2))
    f = mpidec.problems.LeastSquares(A, size * A.sum(axis=2), x_star=size * np.ones(2))
    run = mpidec.solve(f, mpidec.solvers.EXTRA(0.05), mpidec.topology.ring(4), steps=20)
    same = mpidec.problems.LeastSquares(A, A.sum(axis=2), x_star=np.ones(2))
    plain = mpidec.solve(same, mpidec.solvers.EXTRA(0.05), mpidec.topology.ring(4), steps=20)
    assert run.outcome == plain.outcome == "completed"
    for name, unit in (("gradient_norm", size), ("error_rms", 1.0), ("consensus", size)):
        np.testing.assert_allclose(run.metrics[name], unit * plain.metrics[name], rtol=1e-9)


@pytest.mark.serial
def test_errors_that_are_not_recorded_say_why():
    A, b = np.ones((3, 2, 1)), np.ones((3, 2))
    result = mpidec.solve(P.LeastSquares(A, b), S.DGD(0.1), "ring", steps=2)
    with pytest.raises(KeyError, match="no metric 'error_rms': the problem has no x_star"):
        result.metrics["error_rms"]
    with pytest.raises(KeyError, match="did you mean objective"):
        result.metrics["objectiv"]
    known = mpidec.solve(P.LeastSquares(A, b, x_star=np.ones(1)), S.DGD(0.1), "ring", steps=2)
    with pytest.raises(KeyError, match="did you mean error_rms"):
        known.metrics["error_rsm"]


@pytest.mark.serial
@pytest.mark.parametrize("size", [1.0, 1e100, 1e200])
def test_errors_of_rows_of_any_size_are_relative(size):
    apart = np.random.default_rng(0).standard_normal((4, 3)) / 100
    at = size * np.array([1.0, -2.0, 2.0])
    zero = lambda X: 0 * X
    problem = mpidec.problems.Custom(lambda X: 0 * X[:, 0], zero, 4, 3, x_star=at)
    for shift in (apart.mean(axis=0), 0.0):  # where the mean is the minimizer, and where it is not
        D = apart - shift
        with mpidec.Network(4) as net:
            found = Metrics(net, problem)(at + 3 * size * D)
        norms = np.linalg.norm(D, axis=1)
        assert found["error_rms"] == pytest.approx(np.sqrt((norms**2).mean()), rel=1e-9)
        assert found["error_max"] == pytest.approx(norms.max(), rel=1e-9)
        assert found["error"] == pytest.approx(np.linalg.norm(D.mean(axis=0)), rel=1e-9, abs=1e-12)


@pytest.mark.serial
def test_samples_of_a_file_are_those_without_padding():
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 5))
    mask = np.arange(5) < np.array([5, 2, 4])[:, None]
    with mpidec.Network(3) as net:
        found = [
            data_hash(net, mpidec.problems.LeastSquares(A + pad, b, mask=mask))
            for pad in (0, 9.0 * ~mask[..., None])
        ]
        all_ = data_hash(net, mpidec.problems.LeastSquares(A, b))
    assert found[0] == found[1] and found[0]["data_samples"] == mask.sum()
    assert all_["data_samples"] == 15 and all_["data_hash"] != found[0]["data_hash"]


def test_one_value_adds_a_metric(net, monkeypatch):
    """Recorded with its own terms, a number and a vector of each agent, and a target."""
    first = Summand(lambda rows: rows.X[:, 0])
    pull = Summand(lambda rows: rows.problem.grad(rows.X), vector=True)
    made = Metric(
        "spread_of_pull",
        Known.PROBLEM,
        (first, pull),
        lambda totals: abs(totals.sums[first]) + np.abs(totals.sums[pull]).sum(),
    )
    monkeypatch.setitem(METRICS, made.name, made)
    X = by_hand(3)[3]
    found = run(net, 3, every=1).metrics
    expected = abs(X[:, 0].sum()) + np.abs((X - Following().C).sum(axis=0)).sum()
    np.testing.assert_allclose(found[made.name][-1], expected, rtol=1e-12)
    assert found["consensus"][-1] == run(net, 3).metrics["consensus"][-1]
    assert run(net, 3, stop={made.name: 1e9}).steps == 0
