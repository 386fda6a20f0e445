"""Problems by name, built on data sets."""

import subprocess
import sys

import numpy as np
import pytest
from helpers import launch

from mpidec.problems import (
    Dataset,
    LeastSquares,
    build,
    dataset_names,
    default_dataset,
    load,
    partition,
    problem_names,
    problem_parameters,
)

pytestmark = pytest.mark.serial


ROOT = launch.ROOT
A4, Y4 = np.arange(8.0).reshape(4, 2), np.array([0.0, 1, 1, 0])


@pytest.mark.parametrize("name", ["least_squares", "logistic", "softmax", "huber"])
def test_every_problem_builds_on_its_default_data(name):
    pytest.importorskip("sklearn")
    data = load(default_dataset(name))
    parts = partition(data.y, 5, data.partition)
    whole = build(name, data, parts, 0, 5, l2=0.1)
    part = build(name, data, parts, 1, 3, l2=0.1)
    X = np.random.default_rng(0).standard_normal((5, whole.d))
    assert np.array_equal(whole.grad(X)[1:3], part.grad(X[1:3]))
    assert set(problem_parameters(name)) >= {"l2"}
    assert build(name, data, parts, 5, 5).grad(np.zeros((0, whole.d))).shape == (0, whole.d)


def test_default_experiment_has_a_solution_to_rounding():
    pytest.importorskip("sklearn")
    data = load("breast_cancer")
    problem = build("logistic", data, partition(data.y, 16, "sorted"), 0, 16, l2=1.0)
    G = problem.grad(np.tile(problem.solution(), (16, 1)))
    assert np.linalg.norm(G.sum(axis=0)) <= 1e-13 * np.linalg.norm(G, axis=1).sum()


def test_lists_are_one_line_each():
    for names in (problem_names(), dataset_names()):
        assert all(line and "\n" not in line for line in names.values())
    assert list(problem_names()) == ["least_squares", "logistic", "softmax", "huber"]


LINE = Dataset(A4, np.array([0.5, 1.5, 2.5, 3.5]), "line", "regression")
FOUR = Dataset(A4, np.array([1.0, 2.0, 1.0, 2.0]), "four", "classification")


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: build("logistik", FOUR, [[0]], 0, 1),
            "unknown problem 'logistik': did you mean logistic?",
        ),
        (
            lambda: build("logistic", FOUR, [[0]], 0, 1, l1=3),
            "unknown parameter of problem logistic 'l1': did you mean l2?",
        ),
        (
            lambda: build("logistic", FOUR, [[0]], 0, 1, delta=3),
            "unknown parameter of problem logistic 'delta'.*one of l2",
        ),
        (
            lambda: build("logistic", LINE, [[0]], 0, 1),
            "data line: .*two different labels, got 4.*least_squares",
        ),
        (
            lambda: build("softmax", LINE, [[0]], 0, 1),
            "data line: .* 4 distinct values in 4 samples: .*regression.*least_squares",
        ),
        (
            lambda: build(
                "softmax", pytest.importorskip("sklearn") and load("digits"), [[0]], 0, 1, classes=5
            ),
            "classes = 5, expected at least 10",
        ),
        (lambda: default_dataset("lasso"), "unknown problem 'lasso'"),
    ],
)
def test_build_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_build_converts_labels():
    parts = [np.array([0, 1]), np.array([2, 3])]
    assert build("logistic", FOUR, parts, 0, 2).y.tolist() == [[-1, 1], [-1, 1]]
    assert build("softmax", FOUR, parts, 0, 2).y.tolist() == [[0, 1], [0, 1]]
    assert isinstance(build("least_squares", FOUR, parts, 0, 2), LeastSquares)


def test_problems_import_neither_mpi_nor_sklearn():
    """Not even for the samples of a run without any flags."""
    code = (
        "import importlib.util, sys; sys.modules['mpi4py'] = None; import runpy, types; m = types.ModuleType('mpidec'); "
        f"m.__path__ = [{str(ROOT / 'mpidec')!r}]; sys.modules['mpidec'] = m; import mpidec.problems; "
        "installed = importlib.util.find_spec('sklearn'); "
        "[mpidec.problems.load(name) for name in ('breast_cancer', 'digits') if installed]; "
        "print(sorted(set(sys.modules) & {'sklearn', 'matplotlib', 'torch', 'networkx', 'h5py', 'rich'}))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=launch.patient(60),
            check=True,
        ).stdout
        == "[]\n"
    )
