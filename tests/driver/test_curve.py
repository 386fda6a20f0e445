"""A run is resumed with what has shaped its curve; other settings are refused by name, or accepted on purpose."""

import functools
import re

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N = 6
RNG = np.random.default_rng(0)
A, Y = RNG.normal(size=(N, 10, 3)), np.sign(RNG.normal(size=(N, 10)))


def logistic(net, A=A, **options):
    return P.LogisticRegression(A[net.lo : net.hi], Y[net.lo : net.hi], **options)


def squares(net):
    return P.LeastSquares(A[net.lo : net.hi], Y[net.lo : net.hi])


def uneven(net):  # one agent has a sample less: only its rank has a mask
    present = np.ones((N, 10), bool)
    present[-1, -1] = False
    mine = present[net.lo : net.hi]
    mask = None if mine.all() else mine
    return P.LeastSquares(A[net.lo : net.hi], Y[net.lo : net.hi], mask=mask)


def custom(net, at=1.0):
    target = at * A[net.lo : net.hi, 0]
    return P.Custom(
        lambda X: ((X - target) ** 2).sum(axis=1) / 2, lambda X: X - target, m=net.m, d=3
    )


def moving(net, speed=1.0):
    f = logistic(net)
    return P.Custom(f.value, f.grad, net.m, 3, x_star=lambda k: np.array([speed * k, 0, 0]))


def batches(net, size=2):
    return P.MiniBatch(logistic(net, l2=0.1), size)


def run(net, path, steps=6, problem=logistic, solver=None, topology="ring", **options):
    return mpidec.solve(
        problem(net),
        solver or S.EXTRA(0.02),
        topology,
        steps=steps,
        net=net,
        every=3,
        record=path,
        **options,
    )


def resumed(path, **options):
    return mpidec.Record(path, resume=True, **options)


def option(problem, **options):
    return {"problem": functools.partial(problem, **options)}


CHANGES = {  # name: settings before, those that change, what the message says
    "step size": ({}, {"solver": S.EXTRA(0.002)}, "solver.step_size was 0.02, is now 0.002"),
    "solver": ({"solver": S.DGD(0.1)}, {"solver": S.Diffusion(0.1)}, "solver was DGD, is now Diff"),
    "variant": (
        {"solver": S.DGD(0.1)},
        {"solver": S.DGD(0.1, "cta")},
        "order was 'awc', is now 'cta'",
    ),
    "schedule": (
        {"solver": S.DGD(S.InverseSqrt(0.1))},
        {"solver": S.DGD(S.InverseSqrt(0.2))},
        r"InverseSqrt\(start=0.1, delay=100\), is now InverseSqrt\(start=0.2",
    ),
    "function": (
        {"solver": S.DGD(lambda k: 0.1)},
        {"solver": S.DGD(lambda k: 0.2)},
        "step_size of steps 0, 1, ... was 0.1, 0.1, 0.1, 0.1, is now 0.2",
    ),
    "auto": ({}, {"solver": S.EXTRA("auto")}, "its step size was given as a number"),
    "problem": ({}, {"problem": squares}, "problem was LogisticRegression, is now LeastSquares"),
    "l2": (option(logistic, l2=0.1), option(logistic, l2=3.0), "l2 was 0.1, is now 3.0"),
    "term": (
        {"solver": S.NIDS(0.1), **option(logistic, term=P.l1(0.1))},
        option(logistic, term=P.l1(0.2)),
        "l1=0.1.*, is now .*l1=0.2",
    ),
    "data": ({}, option(logistic, A=A + 1e-12), "the data of the problem have changed"),
    "custom": ({"problem": custom}, option(custom, at=1.0001), "gradient at x0 was"),
    "x_star": (
        option(logistic, x_star=[1.0, 0.0, 0.0]),
        option(logistic, x_star=[1.0, 1e-6, 0.0]),
        "x_star was .*, is now",
    ),
    "x_star of the step": (
        {"problem": moving},
        option(moving, speed=2.0),
        "x_star was .*, is now",
    ),
    "metric": (
        {"metrics": {"msd": lambda X, agents, k: (X**2).sum(axis=1)}},
        {"metrics": {"msd": lambda X, agents, k: abs(X).sum(axis=1)}},
        "msd beside x0 was .*, is now",
    ),
    "metric of another name": (
        {"metrics": {"msd": lambda X, agents, k: X[:, 0]}},
        {"metrics": {"mse": lambda X, agents, k: X[:, 0]}},
        r"metrics was \['msd'\], is now \['mse'\]",
    ),
    "batch": ({"problem": batches}, option(batches, size=4), "batch_size was 2, is now 4"),
    "oracle": (
        {"problem": batches},
        option(logistic, l2=0.1),
        "MiniBatch of Logistic.*, is now Log",
    ),
    "seed": ({"problem": batches}, {"seed": 5}, "seed was 0, is now 5"),
    "x0": ({}, {"x0": np.ones(3)}, "x0 was 0.0, is now 1.0"),
    "dtype": (
        {"problem": custom},
        {"x0": np.zeros(3, np.float32)},
        "dtype was float64, is now float32",
    ),
    "W": ({}, {"topology": "star"}, "made with another W"),
    "graphs": (
        {"solver": S.DGD(0.1), "topology": T.random_matchings(T.ring(N), seed=0)},
        {"topology": T.random_matchings(T.ring(N), seed=1)},
        "topology was random_matchings.*, is now",
    ),
    "mixing": ({}, {"mixing": lambda W: W.accelerate(2)}, r"mixing was W, is now .*accelerate\(2"),
    "codec": (
        {"mixing": lambda W: W.compress("top_k", fraction=0.5)},
        {"mixing": lambda W: W.compress("top_k", fraction=0.4)},
        "fraction=0.5.*, is now .*fraction=0.4",
    ),
}
SHOWN = ("step size", "l2", "custom", "seed")  # those that are tried on purpose, too


def far(step, agent, row, size=100.0):
    return np.full(len(row), size)


def farther(step, agent, row, size=200.0):
    return np.full(len(row), size)


farther.__qualname__ = far.__qualname__  # another function under the same name


def made(source: str, name="f", **given):
    """A function from its source, as a program that begins anew has it."""
    space = {"np": np, "__name__": "own", **given}
    exec(source, space)
    return space[name]


SLOWER = "def f(k):\n    return 0.02 if k < {} else 0.01"
LOST = "def f(step, receivers, senders):\n    return receivers == {}"
MEAN = "def f(row, others, weights):\n    return row + {} * (others - row).mean(axis=0)"
RINGS = "def f(k):\n    return ring(6) if k < {} else complete(6)"
METRIC = "def f(X, agents, k):\n    return X[:, 0] if k < {} else X[:, 1]"
GRAPHS = {"ring": T.ring, "complete": T.complete}
LATE = {  # two runs that begin alike, and the name of what is refused
    "step size": (lambda n: {"solver": S.EXTRA(made(SLOWER.format(n)))}, "code of solver"),
    "attack": (
        lambda n: {"mixing": lambda W: W.attacked({1: far if n == 7 else farther})},
        r"code of W\.attacked",
    ),
    "loss": (lambda n: {"mixing": lambda W: W.lossy(made(LOST.format(n)))}, r"code of W\.lossy"),
    "rule": (lambda n: {"mixing": lambda W: W.robust(made(MEAN.format(n)))}, r"code of W\.robust"),
    "graph": (
        lambda n: {"topology": T.from_function(6, made(RINGS.format(n), **GRAPHS))},
        "code of topology",
    ),
    "metric": (lambda n: {"metrics": {"own": made(METRIC.format(n))}}, "code of own"),
    "links": (
        lambda n: {"topology": T.failing_links(T.ring(6), n * 1e-7)},
        r"topology\.p was 7e-07, is now 8e-07",
    ),
    "sleepers": (
        lambda n: {"topology": T.sleeping_agents(T.ring(6), 1e-9, seed=n)},
        r"topology\.seed was 7, is now 8",
    ),
    "links of links": (
        lambda n: {"topology": T.sleeping_agents(T.failing_links(T.ring(6), n * 1e-7), 1e-9)},
        r"topology\.failing_links\.p was 7e-07, is now 8e-07",
    ),
}


@pytest.mark.serial
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LATE)
def test_what_begins_alike_is_compared_by_code_and_parameters(tmp_path, name):
    options, words = LATE[name]
    path = tmp_path / "run.h5"
    with mpidec.Network(N) as net:
        run(net, path, 3, **options(7))
        with pytest.raises(mpidec.ResumeError, match=f"run.h5: {words}"):
            run(net, resumed(path), 6, **options(8))
        run(net, resumed(path), 6, **options(7))
        run(net, resumed(path, changed=True), 9, **options(8))
    assert re.search(f"changed: {words}", mpidec.read(path).attributes["resumed"])


@pytest.mark.serial
def test_delays_of_asynchronous_runs_are_compared_by_code(tmp_path):
    path, later = tmp_path / "run.h5", "def f(rng, i, j):\n    return {} * rng.random()"
    with mpidec.Network(N) as net:
        run(net, path, solver=S.AsyncPushSum(0.01), delay=made(later.format("1e-4")))
        again = made(later.format("2e-4"))
        with pytest.raises(mpidec.ResumeError, match="code of delay"):
            run(net, resumed(path), 9, solver=S.AsyncPushSum(0.01), delay=again)


class Ranked(P.LeastSquares):
    """A problem of one's own with parameters that follow the rank."""

    def __init__(self, A, b, first, level=1.0):
        super().__init__(A, b)
        self.first, self.level = first, level


def ranked(net, level=1.0):
    mine = slice(net.lo, net.hi)
    return Ranked(A[mine], Y[mine], net.lo, level if net.rank == net.size - 1 else 1.0)


@pytest.mark.mpi(min_size=2)
def test_parameters_that_follow_the_rank(net, shared_tmp):
    """The same on as many ranks; a change on any rank is refused; another number of ranks is told."""
    path = shared_tmp / "run.h5"
    run(net, path, 6, ranked)
    net.comm.Barrier()
    with pytest.raises(ValueError, match=r"Ranked\.level differs between the ranks only"):
        run(net, resumed(path), 9, functools.partial(ranked, level=2.0))
    run(net, resumed(path), 9, ranked)
    net.comm.Barrier()
    if net.rank == 0:
        with (
            mpidec.Network(N, MPI.COMM_SELF) as alone,
            pytest.warns(RuntimeWarning, match="Ranked.first: differs between the ranks"),
        ):
            run(alone, resumed(path), 12, ranked)
    net.comm.Barrier()


@pytest.fixture
def net():
    with mpidec.Network(N) as net:
        yield net


@pytest.mark.parametrize("name", CHANGES)
def test_what_shapes_the_curve_is_refused_by_name(net, shared_tmp, name):
    first, change, words = CHANGES[name]
    path = shared_tmp / "run.h5"
    run(net, path, **first)
    net.comm.Barrier()
    before = path.read_bytes()
    net.comm.Barrier()
    with pytest.raises(ValueError, match=f"run.h5: .*{words}"):
        run(net, resumed(path), 9, **first | change)
    assert path.read_bytes() == before
    net.comm.Barrier()
    if name in SHOWN:  # then the settings of the second part are those that go on
        run(net, resumed(path, changed=True), 9, **first | change)
        net.comm.Barrier()
        part = mpidec.read(path).attributes["resumed"]
        assert part.startswith("step 6, changed: ") and part.count("\n") == 1
        run(net, resumed(path), 12, **first | change)
        net.comm.Barrier()
        found = mpidec.read(path).attributes["resumed"].splitlines()
        assert found[0] == part[:-1] and found[1].startswith("step 9, created: ")


@pytest.mark.parametrize("problem", [custom, batches, uneven])
def test_what_has_not_changed_is_accepted_on_any_number_of_ranks(net, shared_tmp, problem):
    """Steps, records and targets are free; so are files without a description."""
    path, whole = shared_tmp / "run.h5", shared_tmp / "whole.h5"
    run(net, whole, 12, problem, seed=3)
    assert " on 3 ranks" not in mpidec.read(whole).attributes["curve"]
    with mpidec.Network(N, MPI.COMM_SELF) as alone:
        if net.rank == 0:
            run(alone, path, 6, problem, seed=3)
    net.comm.Barrier()
    run(net, resumed(path), 9, problem, seed=3, stop={"consensus": 0.0}, progress=print)
    net.comm.Barrier()
    if net.rank == 0:
        with h5py.File(path, "r+") as file:
            del file.attrs["curve"]
    net.comm.Barrier()
    run(net, resumed(path), 12, problem, seed=3)
    net.comm.Barrier()
    np.testing.assert_array_equal(mpidec.read(path).x, mpidec.read(whole).x)


@pytest.mark.serial
def test_functions_that_are_random_are_not_compared(tmp_path):
    draw = np.random.default_rng(0).normal
    problem = lambda net: P.Custom(lambda X: X[:, 0], lambda X: X + draw(size=X.shape), m=N, d=3)
    metrics = {"random": lambda X, agents, k: draw(size=N)}
    with mpidec.Network(N) as net:
        run(net, tmp_path / "run.h5", problem=problem, metrics=metrics)
        run(net, resumed(tmp_path / "run.h5"), 9, problem=problem, metrics=metrics)


@pytest.mark.serial
@pytest.mark.parametrize(
    "change, words",
    [
        ({"drop": 0.1}, "drop was 0.0, is now 0.1"),
        ({"delay": 1e-4}, "delay was None, is now 0.0001"),
        ({"straggler": {0: 1e-4}}, "straggler was None, is now {0: 0.0001}"),
        ({"solver": S.AsyncPushSum(0.02)}, "solver.step_size was 0.01, is now 0.02"),
    ],
    ids=["drop", "delay", "straggler", "step size"],
)
def test_asynchronous_runs(tmp_path, change, words):
    path, solver = tmp_path / "run.h5", S.AsyncPushSum(0.01)
    with mpidec.Network(N) as net:
        run(net, path, solver=solver)
        with pytest.raises(mpidec.ResumeError, match=words):
            run(net, resumed(path), 9, **{"solver": solver, **change})
        run(net, resumed(path), 9, solver=solver)


@pytest.mark.serial
def test_changes_without_a_run_are_refused(tmp_path):
    with mpidec.Network(N) as net, pytest.raises(ValueError, match="changed=True without resume"):
        run(net, mpidec.Record(tmp_path / "run.h5", changed=True))
