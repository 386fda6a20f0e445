"""Partitions of the samples among the agents."""

import numpy as np
import pytest

from mpidec.datasets.partition import HOW, TAKE, dirichlet
from mpidec.problems import (
    partition,
    stack,
)

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("how", ["iid", "stratified", "sorted", "dirichlet", "blocks"])
@pytest.mark.parametrize(
    "N, n, classes", [(569, 16, 2), (100, 33, 10), (7, 7, 2), (5, 1, 2), (40, 3, 1)]
)
def test_partitions_are_even_and_whole(how, N, n, classes):
    y = np.random.default_rng(0).integers(0, classes, N)
    options = {"alpha": 0.1} if how == "dirichlet" else {}
    parts = partition(y, n, how, seed=4, **options)
    assert sorted(np.concatenate(parts)) == list(range(N))
    assert [len(part) for part in parts] == [len(part) for part in np.array_split(np.arange(N), n)]
    assert all(map(np.array_equal, parts, partition(y, n, how, seed=4, **options)))


def histograms(y, parts):
    return np.array([np.bincount(y[part], minlength=y.max() + 1) for part in parts])


@pytest.mark.parametrize("N, n, classes", [(500, 7, 10), (100, 33, 5), (40, 3, 1), (5, 1, 2)])
def test_partitions_of_uneven_sizes_are_whole_and_repeat(N, n, classes):
    y = np.random.default_rng(0).integers(0, classes, N)
    for how in ("shards", "labels", "sizes"):
        options = {"alpha": 0.3} if how == "sizes" else {"per_agent": 1 if classes == 1 else 2}
        parts, again, other = (partition(y, n, how, seed=seed, **options) for seed in (4, 4, 5))
        assert sorted(np.concatenate(parts)) == list(range(N)), how
        assert min(map(len, parts)) >= 1
        assert all(map(np.array_equal, parts, again))
        assert n == 1 or classes == 1 or not all(map(np.array_equal, parts, other))


def test_stratified_agents_have_the_classes_of_the_whole():
    y = np.random.default_rng(1).choice(3, 500, p=[0.7, 0.2, 0.1])
    share = np.bincount(y) / 7
    assert np.abs(histograms(y, partition(y, 7, "stratified", seed=2)) - share).max() < 1
    targets = np.random.default_rng(1).standard_normal(70)
    tenths = np.argsort(np.argsort(targets)) // 7
    assert (histograms(tenths, partition(targets, 7, "stratified")) == 1).all()


@pytest.mark.parametrize("n, c", [(7, 2), (10, 1), (5, 3), (40, 4)])
def test_agents_have_as_many_classes_as_asked_for(n, c):
    y = np.random.default_rng(2).permutation(np.arange(2000) % 10)
    found = histograms(y, partition(y, n, "labels", per_agent=c, seed=3))
    assert ((found > 0).sum(axis=1) == c).all()
    holders = (found > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in found.T:  # evenly among those that hold the class
        assert np.ptp(column[column > 0]) <= 1


def test_shards_are_pieces_of_the_sorted_samples():
    y = np.random.default_rng(2).permutation(np.arange(1000) % 10)
    place = np.argsort(np.argsort(y, kind="stable"))
    parts = partition(y, 20, "shards", per_agent=3, seed=1)
    for part in parts:
        runs = np.split(np.sort(place[part]), np.flatnonzero(np.diff(np.sort(place[part])) > 1) + 1)
        assert len(part) in range(48, 52) and len(runs) <= 3
        assert (np.diff(place[part]) > 0).all()  # in the order of the targets
        assert (histograms(y, [part]) > 0).sum() <= 6


def test_sizes_are_those_of_a_dirichlet_distribution():
    y = np.arange(3000) % 2
    shares = np.array(
        [[len(p) for p in partition(y, 6, "sizes", alpha=2.0, seed=s)] for s in range(300)]
    )
    np.testing.assert_allclose(shares.mean(axis=0), 500, rtol=0.1)
    variance = (1 / 6) * (5 / 6) / (6 * 2.0 + 1)  # of Dir(2, ..., 2)
    np.testing.assert_allclose((shares / 3000).var(axis=0).mean(), variance, rtol=0.15)
    assert [len(p) for p in partition(y, 6, "sizes", alpha=1e-300)].count(1) == 5


def test_partition_kinds():
    y = np.random.default_rng(0).integers(0, 4, 400)

    def mixture(how, **options):
        return np.mean([len(np.unique(y[part])) for part in partition(y, 8, how, **options)])

    assert mixture("iid") == 4
    assert mixture("sorted") <= 2
    assert mixture("dirichlet", alpha=0.01) <= 2.5
    assert mixture("dirichlet", alpha=1e4) == 4
    assert np.array_equal(np.concatenate(partition(y, 8, "blocks")), np.arange(400))
    assert np.array_equal(
        np.concatenate(partition(y, 8, "sorted")), np.lexsort((np.arange(400), y))
    )
    targets = np.random.default_rng(0).standard_normal(50)
    assert (np.diff(targets[np.concatenate(partition(targets, 5, "sorted"))]) >= 0).all()
    assert not np.array_equal(partition(y, 8, seed=0)[0], partition(y, 8, seed=1)[0])


@pytest.mark.parametrize(
    "n, alpha, sizes, order",
    [
        (4, 1.0, [45, 50, 53, 52], 2002086),
        (4, 0.01, [59, 39, 60, 42], 1980273),
        (
            16,
            0.1,
            [17, 11, 14, 12, 13, 7, 9, 15, 14, 13, 15, 12, 7, 14, 12, 15],
            1981625,
        ),
    ],
)
def test_dirichlet_is_that_of_relaysgd(n, alpha, sizes, order):
    """Recorded from code that gave all the parts of RelaySGD's own code, on 2,000 labels."""
    parts = dirichlet(np.arange(200) % 10, n, alpha, 101)
    assert [len(part) for part in parts] == sizes
    assert np.arange(200) @ np.concatenate(parts) == order


def test_dirichlet_with_alpha_that_underflows():
    parts = partition(np.arange(100) % 2, 12, "dirichlet", alpha=1e-300)
    assert sorted(np.concatenate(parts)) == list(range(100))


@pytest.mark.parametrize(
    "error, args, message",
    [
        (ValueError, ([0, 1], 3), "3 agents for 2 samples, expected at most 2"),
        (ValueError, ([0, 1], 0), "agents is 0, expected an integer >= 1"),
        (TypeError, ([0, 1], 1.0), "agents is 1.0, expected an integer"),
        (ValueError, ([0, 1], 1, "idd"), "partition is 'idd', expected one of .*did you mean iid"),
        (ValueError, ([[0, 1]], 1), r"y has shape \(1, 2\), expected \(N,\)"),
        (
            ValueError,
            (np.linspace(0, 1, 9), 2, "dirichlet"),
            "9 distinct values in 9 samples, expected class labels.*sorted",
        ),
        (ValueError, (np.arange(9), 2, "labels"), "expected class labels for a labels partition"),
        (ValueError, ([0, 1, 2] * 3, 1, "labels"), "1 agents with 2 classes .* expected 3 to 3"),
        (ValueError, ([0] * 9, 2, "labels"), "expected 1 to 1 for 1 classes"),
        (ValueError, ([0, 1] * 3, 4, "shards"), "need 8 shards, expected at most 6"),
    ],
)
def test_partition_refuses(error, args, message):
    with pytest.raises(error, match=message):
        partition(*args)


@pytest.mark.parametrize("how", HOW)
def test_an_option_of_a_partition_changes_it_or_is_refused(how):
    y = np.arange(60) % 3
    default = partition(y, 4, how)
    for name, value in (("alpha", 0.1), ("per_agent", 3)):
        if how in TAKE[name]:
            other = partition(y, 4, how, **{name: value})
            assert not all(map(np.array_equal, default, other))
        else:
            words = f"{name} = {value} has no effect on the partition '{how}': omit it"
            with pytest.raises(ValueError, match=words):
                partition(y, 4, how, **{name: value})


def test_partition_refuses_numbers_out_of_range():
    with pytest.raises(ValueError, match=r"agent \d would have no sample"):
        partition([0, 1, 1, 1, 1, 1], 4, "labels", per_agent=1)
    for alpha in (0, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"alpha is .*expected a finite number > 0"):
            partition([0, 1], 1, "dirichlet", alpha=alpha)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=r"seed is .*expected an integer"):
            partition([0, 1], 1, seed=seed)


def test_stack_is_the_same_on_every_rank():
    A, y = np.random.default_rng(0).standard_normal((10, 3)), np.arange(10.0)
    parts = partition(y, 4)
    whole = stack(A, y, parts, 0, 4)
    for lo, hi in ((0, 1), (1, 3), (3, 4), (2, 2)):
        for part, all_ in zip(stack(A, y, parts, lo, hi), whole):
            assert np.array_equal(part, all_[lo:hi])
    assert stack(A, y, parts[:2], 0, 2)[2] is None
    assert stack(A, y, parts, 0, 4, width=5)[0].shape == (4, 5, 3)
    with pytest.raises(
        ValueError, match=r"width = 2, expected at least 3, the number of samples of agent 0"
    ):
        stack(A, y, parts, 0, 4, width=2)
    with pytest.raises(ValueError, match=r"agents 0..5 of 4, expected 0 <= lo <= hi <= 4"):
        stack(A, y, parts, 0, 5)
    with pytest.raises(ValueError, match=r"A has shape \(10, 3\) and y \(9,\)"):
        stack(A, y[:9], parts, 0, 4)
