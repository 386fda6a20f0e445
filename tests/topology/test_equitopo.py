"""EquiTopo: matrices by definition, draws, mean-square contraction.  No MPI."""

import itertools
import pickle

import numpy as np
import pytest
from helpers.sets import first

import mpidec.topology as T

pytestmark = pytest.mark.serial


def directed(n, u):
    """A^(u): agent i receives from agent i + u."""
    A = np.eye(n) / n
    A[np.arange(n), (np.arange(n) + u) % n] += (n - 1) / n
    return A


def undirected(n, u, s):
    """From agent s on, i and i + u are matched if both are free."""
    A, free = np.eye(n), set(range(n))
    for i in ((s + k) % n for k in range(n)):
        j = (i + u) % n
        if {i, j} <= free:
            free -= {i, j}
            A[[i, i, j, j], [i, j, i, j]] = 1 / n, (n - 1) / n, (n - 1) / n, 1 / n
    return A


@pytest.mark.parametrize("n, M, seed", [(6, 2, 0), (8, 3, 5), (11, None, 3)])
def test_equitopo_by_definition(n, M, seed):
    every = np.arange(1, n)
    hops = np.random.RandomState(seed).choice(every, M or int(np.log2(n)))
    K = np.mean([directed(n, u) for u in hops], axis=0)
    for kind, W in (("D-static", K), ("U-static", (K + K.T) / 2)):
        made = T.equitopo(n, kind, M, seed=seed).W.toarray()
        np.testing.assert_allclose(made, W, atol=1e-15)
    for kind, eta in itertools.product(("OD", "OU"), (0.5, 1.0)):
        schedule, rng = T.equitopo(n, kind, M, eta, seed), np.random.default_rng(seed)
        for k in range(12):
            u = rng.choice(hops if M else every)
            A = directed(n, u) if kind == "OD" else undirected(n, u, rng.integers(n))
            W = (1 - eta) * np.eye(n) + eta * A
            np.testing.assert_allclose(schedule.at(k).W.toarray(), W, atol=1e-15)


@pytest.mark.parametrize("kind", ["OD", "OU"])
def test_draws_of_equitopo_depend_on_seed_and_step_alone(kind):
    first, second = (
        T.equitopo(11, kind, seed=3),
        pickle.loads(pickle.dumps(T.equitopo(11, kind, seed=3))),
    )
    forward = [first.at(k).fingerprint() for k in range(300)]
    assert [second.at(k).fingerprint() for k in reversed(range(300))] == forward[
        ::-1
    ] and first == second
    assert [pickle.loads(pickle.dumps(first)).at(k).fingerprint() for k in (299, 300, 0)] == [
        forward[299],
        second.at(300).fingerprint(),
        forward[0],
    ]
    assert len(set(forward)) >= 10 and first.period is None
    assert all(len(first.at(k).out_neighbors(i)) <= 1 for k in range(20) for i in range(11))
    assert all(first.at(k).symmetric for k in range(20)) == (kind == "OU")


@pytest.mark.parametrize(
    ("kind", "M"), first([("OD", 3), ("OU", 3), ("OD", None), ("OU", None)], 1)
)
def test_gap_of_equitopo_is_its_mean_square_contraction(kind, M):
    n, schedule = 9, T.equitopo(9, kind, M, seed=1)
    steps = [schedule.at(k).W.toarray() - 1 / n for k in range(3000)]
    rho = np.linalg.eigvalsh(np.mean([W.T @ W for W in steps], axis=0))[-1]
    assert schedule.spectral_gap() == pytest.approx(1 - rho**0.5, rel=0.05)


WRONG = [
    (
        lambda: T.equitopo(6, "od"),
        ValueError,
        "equitopo: kind is 'od', expected one of OD, OU",
    ),
    (
        lambda: T.equitopo(6, eta=0),
        ValueError,
        "equitopo: eta is 0, expected a finite number > 0 and <= 1",
    ),
    (lambda: T.equitopo(6, M=0), ValueError, "equitopo: M is 0, expected an integer >= 1"),
    (lambda: T.equitopo(6).at(-1), ValueError, "equitopo.at: k is -1, expected an integer >= 0"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
