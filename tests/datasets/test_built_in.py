"""Data sets by name: known numbers, standardized columns, labels."""

import numpy as np
import pytest
from helpers import launch

from mpidec.datasets.built_in import TABLES, from_sklearn
from mpidec.problems import (
    build,
    class_numbers,
    load,
    partition,
    signs,
    standardized,
    synthetic_least_squares,
)

pytestmark = pytest.mark.serial


ROOT = launch.ROOT


def test_built_in_sets():
    pytest.importorskip("sklearn")
    cancer, digits, diabetes = load("breast_cancer"), load("digits"), load("diabetes")
    assert cancer.A.shape == (569, 30)
    assert set(cancer.y) == {-1, 1}
    assert (cancer.y == 1).sum() == 357
    assert digits.A.shape == (1797, 64)
    assert set(digits.y) == set(range(10))
    assert (digits.A.min(), digits.A.max()) == (0, 1)
    assert diabetes.A.shape == (442, 10)
    for column in (*cancer.A.T, *diabetes.A.T, diabetes.y):
        assert abs(column.mean()) <= 1e-13
        assert abs(column.std() - 1) <= 1e-13
    assert [data.kind for data in (cancer, digits, diabetes)] == [
        "classification",
        "classification",
        "regression",
    ]


@pytest.mark.parametrize("tables", [TABLES, {}], ids=["tables", "loaders"])
@pytest.mark.parametrize("name", ["breast_cancer", "digits", "diabetes"])
def test_samples_are_those_that_scikit_learn_loads(monkeypatch, name, tables):
    sets = pytest.importorskip("sklearn.datasets")
    monkeypatch.setattr("mpidec.datasets.built_in.TABLES", tables)
    theirs = getattr(sets, f"load_{name}")(return_X_y=True)
    if tables:  # read without the loader, whose import takes seconds
        monkeypatch.delattr(sets, f"load_{name}")
    assert all(np.array_equal(a, b) for a, b in zip(from_sklearn(name), theirs, strict=True))


def test_the_real_file_is_the_built_in_set():
    pytest.importorskip("sklearn")
    raw = load(ROOT / "data" / "breast_cancer.csv")
    assert raw.kind == "classification"
    assert raw.A[0, 3] == 1001.0
    data, built_in = (
        load(ROOT / "data" / "breast_cancer.csv", standardize=True),
        load("breast_cancer"),
    )
    assert np.array_equal(data.A, built_in.A)
    assert np.array_equal(signs(data.y), built_in.y)


def test_standardized_leaves_constant_columns_at_zero():
    A = standardized(np.array([[0.1, 1.0], [0.1, 3.0], [0.1, 5.0]]))
    assert (A[:, 0] == 0).all()
    np.testing.assert_allclose(A[:, 1], [-np.sqrt(1.5), 0, np.sqrt(1.5)])


@pytest.mark.parametrize("zeta2", [0, 0.01, 1, 25.0])
def test_synthetic_has_the_stated_minimizer_and_heterogeneity(zeta2):
    data = synthetic_least_squares(n=6, p=8, d=5, heterogeneity=zeta2, seed=3)
    problem = build("least_squares", data, partition(data.y, 6, data.partition), 0, 6)
    np.testing.assert_allclose(problem.solution(), data.x_star, rtol=1e-10)
    assert problem.x_star is not None
    G = problem.grad(np.tile(data.x_star, (6, 1)))
    np.testing.assert_allclose((G**2).sum() / 6, zeta2, rtol=1e-12, atol=1e-28)


def test_synthetic_edges():
    assert synthetic_least_squares(1, 5, 3).A.shape == (5, 3)
    assert synthetic_least_squares(3, 1, 10).A.shape == (3, 10)
    assert np.array_equal(
        synthetic_least_squares(2, 5, 3).A, synthetic_least_squares(4, 5, 3).A[:10]
    )
    with pytest.raises(ValueError, match="heterogeneity is -1"):
        synthetic_least_squares(heterogeneity=-1)
    with pytest.raises(TypeError, match=r"p is 2\.5"):
        load("synthetic_least_squares", p=2.5)


def test_labels_convert():
    assert signs([0, 1, 0]).tolist() == [-1, 1, -1]
    assert signs([2, 1]).tolist() == [1, -1]
    assert signs(["no", "yes"]).tolist() == [-1, 1]
    assert signs([1.0, 1.0]).tolist() == [1, 1]
    assert class_numbers([5, 3, 5]).tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"two different labels, got 3: 0, 1, 2 .*softmax"):
        signs([0, 1, 2])
    with pytest.raises(ValueError, match=r"got 9: 0, 1, 2, 3, 4, ..."):
        signs(range(9))
    with pytest.raises(ValueError, match="got 1: 7"):
        signs([7, 7])
    with pytest.raises(ValueError, match="y is nan at sample 1"):
        signs([0, np.nan, 1])
