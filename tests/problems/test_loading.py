"""From data to a problem in one call: in Python, on any number of ranks, and the same on the command line."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pytest
import scipy.sparse
from mpi4py import MPI

import mpidec
from mpidec import record
from mpidec.experiment import command as run
from mpidec.problems import Custom, Dataset, LogisticRegression, Subgradient, load, load_problem

RNG = np.random.default_rng(5)
A, Y = RNG.normal(size=(50, 4)), RNG.normal(size=50)
WORDS = np.where(Y > 0, "well", "ill")
QUIET = ["--quiet", "--set=run.progress=none"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mean_of(A, y, mask=None, power: float = 2.0):
    """A problem of the user's own: a distance to the mean of the samples of each agent."""
    weights = np.ones(y.shape) if mask is None else mask
    C = (A * weights[:, :, None]).sum(axis=1) / weights.sum(axis=1)[:, None]
    return Custom(
        lambda X: ((X - C) ** 2).sum(axis=1) / power,
        lambda X: 2 * (X - C) / power,
        m=len(A),
        d=A.shape[2],
    )


# -- on any number of ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"problem": "huber", "delta": 0.5, "l1": 0.1},
        {"partition": "sorted", "scale": "mean"},
        {"problem": mean_of, "power": 4.0},
        {"intercept": True, "standardize": True},
    ],
)
def test_each_rank_gets_its_own_rows(options):
    n = 2 * MPI.COMM_WORLD.size + 1
    whole = load_problem((A, Y), n, seed=3, **options)
    with mpidec.Network(n) as net:
        part = (
            load_problem(
                (A, Y) if net.rank == 0 else None,
                net=net,
                seed=3,
                **{"problem": "least_squares", **options},
            )
            if "problem" not in options
            else load_problem((A, Y), net=net, seed=3, **options)
        )
        same = load_problem((A, Y), n, lo=net.lo, hi=net.hi, seed=3, **options)
    X = np.random.default_rng(0).normal(size=(n, whole.d))
    for problem in (part, same):
        assert problem.m == net.m and np.array_equal(problem.x_star, whole.x_star)
        assert np.array_equal(problem.grad(X[net.lo : net.hi]), whole.grad(X)[net.lo : net.hi])


def test_errors_are_raised_on_every_rank():
    with mpidec.Network(2 * MPI.COMM_WORLD.size) as net:
        for call, message in (
            (lambda: load_problem("nothing", net=net), "unknown data set 'nothing'"),
            (lambda: load_problem((A, Y), 3, net=net), "expected one of n and net"),
            (lambda: load_problem((A, Y), net=net, problem="huber", delta=-1), "delta is -1"),
            (lambda: load_problem((A[:1], Y[:1]), net=net), "agents for 1 samples"),
        ):
            with pytest.raises(ValueError, match=message):
                call()


def test_solve_counts_the_agents_of_all_ranks():
    n = 2 * MPI.COMM_WORLD.size
    with mpidec.Network(n) as net:
        problem = load_problem((A, Y), net=net)
        expected = mpidec.solve(
            problem, mpidec.solvers.DGD(0.01), mpidec.topology.ring(n), steps=3, net=net
        )
    for graph in ("ring", mpidec.topology.ring, lambda n: mpidec.topology.ring(n)):
        assert np.array_equal(
            mpidec.solve(problem, mpidec.solvers.DGD(0.01), graph, steps=3).X, expected.X
        )
    one = mpidec.problems.LeastSquares(A[None], Y[None])
    assert mpidec.solve(one, "consensus", "ring", steps=1).X.shape == (1, 4)
    if MPI.COMM_WORLD.size > 1:  # each rank may hold all agents, or some
        with pytest.raises(
            ValueError,
            match=r"the problem has \d+ agents, but this rank hosts 2 .*load_problem\(..., net=net\)",
        ):
            mpidec.solve(load_problem((A, Y), n), mpidec.solvers.DGD(0.01), "ring", steps=3)
        with pytest.raises(ValueError, match="the number of agents is unknown"):
            mpidec.solve(
                mpidec.problems.LeastSquares(A[None].repeat(2, 0), Y[None].repeat(2, 0)),
                "consensus",
                "ring",
                steps=3,
            )


# -- in one process --------------------------------------------------------------------------------------------------------


@pytest.mark.serial
def test_the_problem_suits_the_data():
    assert type(load_problem((A, Y), 4)).__name__ == "LeastSquares"
    problem = load_problem((A.tolist(), WORDS.tolist()), 4)
    assert isinstance(problem, LogisticRegression) and problem.l2 == 4.0
    assert type(load_problem((A, np.arange(50) % 3), 4)).__name__ == "Softmax"
    assert type(load_problem(Dataset(A, Y, "mine", "regression"), 4)).__name__ == "LeastSquares"
    assert np.array_equal(
        load_problem((scipy.sparse.csr_array(A), Y), 4).A, load_problem((A, Y), 4).A
    )
    sklearn = pytest.importorskip("sklearn.datasets")
    bunch = load_problem(sklearn.load_diabetes(), 4, standardize=True, l2=0.5)
    np.testing.assert_allclose(
        bunch.x_star,
        load_problem("diabetes", 4, l2=0.5).x_star * sklearn.load_diabetes().target.std(),
    )


@pytest.mark.serial
def test_words_are_numbered_alphabetically():
    problem = load_problem((A, WORDS), 1, partition="blocks")
    assert np.array_equal(problem.y[0], np.where(WORDS == "well", 1.0, -1.0))


@pytest.mark.serial
def test_columns_of_very_different_size_are_hinted_at(tmp_path):
    with pytest.warns(
        UserWarning,
        match=r"data arrays: the columns of A differ in size by a factor of 6e\+04.*standardize=True",
    ):
        load_problem((A * [1, 1, 5e4, 1], Y), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_problem((A * [1, 1, 5e4, 1], Y), 4, standardize=True)
        load_problem((A * [0, 1, 1e2, 1], Y), 4)


@pytest.mark.serial
def test_a_label_that_is_not_the_last_column_is_hinted_at(tmp_path):
    rng = np.random.default_rng(0)
    kind, rows = rng.integers(0, 2, 30), rng.normal(size=(30, 3)).round(4)
    paths = {name: str(tmp_path / f"{name}.csv") for name in ("plain", "header", "words", "last")}
    table = np.column_stack([kind, rows])
    np.savetxt(paths["plain"], table, delimiter=",")
    np.savetxt(
        paths["header"],
        np.column_stack([rows[:, :2], kind, rows[:, 2]]),
        delimiter=",",
        header="u,v,kind,w",
        comments="",
    )
    np.savetxt(paths["last"], table[:, ::-1], delimiter=",")
    with open(paths["words"], "w") as file:
        file.writelines(f"{'ill' if k else 'well'},{a},{b}\n" for k, (a, b, _) in zip(kind, rows))
    with pytest.warns(
        UserWarning,
        match=r"30 values in 30 lines, column 0 has 2: .* label=0 \(--set problem.label=0\)",
    ):
        load_problem(paths["plain"], n=3)
    with pytest.raises(
        ValueError, match=r"two different labels, got 30.*column 2 \(kind\) has 2: .*label=2"
    ):
        load_problem(paths["header"], n=3, problem="logistic")
    with pytest.raises(
        ValueError,
        match=r"column 1: '(ill|well)' is not a number.*label=0 \(--set problem.label=0\)",
    ):
        load_problem(paths["words"], n=3)
    with warnings.catch_warnings():  # what was chosen is not questioned
        warnings.simplefilter("error")
        load_problem(paths["plain"], n=3, problem="least_squares")
        load_problem(paths["last"], n=3)
        assert (
            load_problem(paths["plain"], n=3, label=0).d
            == load_problem(paths["words"], n=3, label=0).d + 1
            == 3
        )


def test_no_finite_minimizer_is_a_warning():
    with pytest.warns(UserWarning, match="error metric is not available.*l2 > 0"):
        assert load_problem((A, A[:, 0] > 0), 4, l2=0.0).x_star is None


@pytest.mark.serial
@pytest.mark.parametrize(
    "options",
    [{}, {"test": 0.25}, {"l2": 2.0}, {"intercept": True}, {"standardize": True}, {"l1": 0.5}],
    ids=str,
)
def test_a_known_minimizer_is_that_of_the_problem_that_is_made(options):
    """That of the data set is of all samples, as they are."""
    assert load("synthetic_least_squares", standardize=True).x_star is None
    data = load("synthetic_least_squares", n=4, p=20)
    problem = load_problem(data, 4, "least_squares", **options)
    X = np.tile(problem.x_star, (4, 1))
    slope = problem.grad(X).mean(axis=0)
    step = 1e-3
    moved = problem.x_star - step * slope
    if problem.term is not None:
        moved = problem.term.prox(moved[None], step)[0]
    np.testing.assert_allclose(moved, problem.x_star, atol=1e-12)


@pytest.mark.serial
def test_a_custom_problem_in_the_same_call():
    problem = load_problem((A, Y), 7, mean_of)
    sizes = [len(part) for part in np.array_split(np.arange(50), 7)]
    assert (problem.m, problem.d, sum(sizes)) == (7, 4, 50)
    result = mpidec.solve(problem, mpidec.solvers.ExactDiffusion(0.5), "ring", steps=400)
    assert result.metrics["error"][-1] < 1e-12
    with pytest.raises(
        ValueError, match="has no parameter mask, but some agents have fewer samples"
    ):
        load_problem((A, Y), 7, lambda A, y: mean_of(A, y))
    assert load_problem((A, Y), 5, lambda A, y: mean_of(A, y)).m == 5


def of_agents(agents):
    C = np.arange(4.0)[agents][:, None]
    return Custom(lambda X: ((X - C) ** 2).sum(axis=1) / 2, lambda X: X - C, len(C), 1)


@pytest.mark.serial
@pytest.mark.parametrize(
    "option",
    [
        {"partition": "iid"},
        {"alpha": 0.1},
        {"per_agent": 2},
        {"label": 1},
        {"standardize": True},
        {"intercept": True},
        {"scale": "mean"},
    ],
    ids=str,
)
def test_a_problem_without_data_takes_no_options_of_data(option):
    assert load_problem(n=4, problem=of_agents).m == 4
    with pytest.raises(ValueError, match=f"{next(iter(option))} is given, but .*of_agents is made"):
        load_problem(n=4, problem=of_agents, **option)


@pytest.mark.serial
def test_a_flag_that_replaces_the_partition_of_a_file_drops_its_options(folder):
    pytest.importorskip("sklearn")
    (folder / "e.toml").write_text('[problem]\npartition = "dirichlet"\nalpha = 0.1\n')
    argv = ["e.toml", "--steps=2", "--step-size=0.01", *QUIET]
    assert run.main([*argv, "--set=problem.partition=iid"]) == 0
    assert run.main(["--resume=run.h5", "--steps=4"]) == 0
    config = record.read("run.h5").config
    assert 'partition = "iid"' in config and "alpha" not in config


COMMANDS = {
    "the main job": ([], {"data": "breast_cancer"}, "breast_cancer"),
    "penalties": (
        [
            "--problem=least_squares",
            "--set=problem.l1=0.5",
            "--set=problem.l2_total=2",
            "--set=problem.intercept=true",
            "--solver=dgd",
            "--set=problem.partition=iid",
        ],
        {"l1": 0.5, "l2_total": 2.0, "intercept": True, "partition": "iid"},
        "diabetes",
    ),
    "means": (
        ["--set=problem.scale=mean", "--set=problem.partition=dirichlet", "--seed=3"],
        {"scale": "mean", "partition": "dirichlet", "seed": 3},
        "breast_cancer",
    ),
    "a file": (
        [
            "--problem=logistic",
            "--data=mine.csv",
            "--set=problem.label=kind",
            "--set=problem.standardize=true",
        ],
        {"label": "kind", "standardize": True},
        "mine.csv",
    ),
}


@pytest.mark.serial
@pytest.mark.parametrize("name", COMMANDS)
def test_python_and_the_command_line_give_the_same_bits(folder, name):
    argv, options, data = COMMANDS[name]
    if data != "mine.csv":
        pytest.importorskip("sklearn")
    lines = [
        ",".join([*map(str, row[:2]), word, *map(str, row[2:])]) for row, word in zip(A, WORDS)
    ]
    (folder / "mine.csv").write_text("\n".join(["u,v,kind,w,x", *lines]))
    assert run.main([*argv, "--steps=20", "--step-size=0.01", *QUIET]) == 0
    experiment = record.read("run.h5").config
    problem = load_problem(n=16, **{"data": data, **options})
    if problem.term is not None:
        problem = Subgradient(problem)
    solver = (
        mpidec.solvers.DGD(0.01) if "dgd" in experiment else mpidec.solvers.GradientTracking(0.01)
    )
    result = mpidec.solve(problem, solver, "exponential", steps=20, every=10)
    with h5py.File("run.h5") as file:
        assert np.array_equal(file["result/x"], result.X)
        assert np.array_equal(file["metrics/error"], result.metrics["error"])


@pytest.mark.serial
@pytest.mark.parametrize(
    "argv, words",
    [
        (
            ["--set=problem.l2=1", "--set=problem.l2_total=4"],
            ["l2 = 1.0 and l2_total = 4.0", "expected one of them"],
        ),
        (["--set=problem.scale=average"], ["problem.scale", "expected sum or mean"]),
        (
            ["--set=problem.lower=1", "--set=problem.upper=0"],
            ["lower = 1.0 and upper = 0.0", "lower < upper"],
        ),
        (["--set=problem.lower=0"], ["solver GradientTracking takes gradients", "proximal step"]),
        (["--set=problem.simplex=0"], ["problem.simplex", "number > 0"]),
        (["--set=problem.l1=-1"], ["problem.l1", "number >= 0"]),
        (["--set=problem.label=3"], ["label = 3 was given", "column of a file"]),
        (["--data=diabetes"], ["two different labels", "least_squares"]),
        (
            ["--set=problem.alpha=0.1", "--set=problem.partition=iid"],
            ["alpha = 0.1 has no effect on the partition 'iid'", "take dirichlet or sizes"],
        ),
    ],
)
def test_refusals(folder, capsys, argv, words):
    pytest.importorskip("sklearn")
    assert run.main([*argv, "--steps=1"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words) and said.count("\n") == 1, said


@pytest.mark.serial
def test_the_summary_says_what_was_set(folder, capsys):
    pytest.importorskip("sklearn")
    assert (
        run.main(
            [
                "--problem=least_squares",
                "--set=problem.l1=0.5",
                "--set=problem.scale=mean",
                "--steps=2",
                "--step-size=0.01",
                "--set=problem.intercept=true",
            ]
        )
        == 0
    )
    table = capsys.readouterr().out
    assert all(word in table for word in ("scale mean", "l1 0.5", "intercept")), table
    (folder / "mine.csv").write_text(
        "\n".join(f"{row[0]},{row[1]},{word}" for row, word in zip(A, WORDS))
    )
    assert run.main(["--data=mine.csv", "--steps=2", "--step-size=0.01"]) == 0
    assert "ill = -1, well = 1" in capsys.readouterr().out


@pytest.mark.serial
def test_help_says_what_l2_means(capsys):
    assert run.main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "n agents together have n times as much",
        "l2_total",
        "1 / C of scikit-learn",
        "standardize (columns to mean 0",
        "FILE.py:NAME",
        "label (column of a file",
    ):
        assert words in said


def test_numbers_as_text_are_numbers_and_class_names_are_no_targets():
    A, y = np.arange(24.0).reshape(12, 2) % 5, np.arange(12) * 1.5
    ours = [load_problem((A, targets), 2, "least_squares").x_star for targets in (y, y.astype(str))]
    np.testing.assert_array_equal(*ours)
    with pytest.raises(ValueError, match=r"class names, expected numbers: .*classes blue, red"):
        load_problem((A, np.where(y > 4, "red", "blue")), 2, "least_squares")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("rank", [0, -1])
def test_any_exception_of_one_rank_is_raised_on_all(monkeypatch, rank):
    """Of the rank that reads the data, and of one that makes its problem."""
    from mpidec.problems import loading, registry

    def broken(*arguments, **options):
        raise ZeroDivisionError("broke")

    with mpidec.Network() as net:
        if net.rank == rank % net.size:
            monkeypatch.setattr(
                *((loading, "prepare") if rank == 0 else (registry.ProblemSpec, "of_data")), broken
            )
        with pytest.raises(ZeroDivisionError, match="broke"):
            mpidec.problems.load_problem("synthetic_least_squares", net=net, n=None)
        assert net.sum(np.ones((net.m, 1)))[0] == net.n


def test_arrays_and_settings_that_differ_between_ranks_are_refused():
    A = np.random.default_rng(0).standard_normal((24, 3))
    b = A @ [1, 2, 3]
    with mpidec.Network(4 * MPI.COMM_WORLD.size) as net:
        made = load_problem((A, b), net=net)
        np.testing.assert_allclose(made.x_star, [1, 2, 3], rtol=1e-9)
        alone = load_problem((A, b) if net.rank == 0 else None, net=net)
        np.testing.assert_array_equal(alone.A, made.A)
        if net.size > 1:
            last = net.rank == net.size - 1
            where = f"rank {net.size - 1} passes other"
            for data, options, what in (
                ((A + last, b), {}, "samples than rank 0"),
                ((A, b), {"l2": 1.0 + last}, "settings than rank 0: l2 is"),
                ((A, b), {"standardize": last}, "settings than rank 0: standardize is"),
            ):
                with pytest.raises(ValueError, match=f"{where} {what}"):
                    load_problem(data, net=net, **options)
