"""EquiTopo: the reference matrices, draws, mean-square contraction.  No MPI."""

import pickle
import re

import numpy as np
import pytest
from helpers.sets import first

import mpidec.topology as T

pytestmark = pytest.mark.serial


def test_reference_matrices_of_equitopo(reference):
    pattern = re.compile(
        r"(O?[DU])Equi.*__n(?P<n>\d+)(?:__M(?P<M>\d+))?__seed(?P<seed>\d+)(?:__eta(?P<eta>[\d.]+))?__(K|Wseq)"
    )
    for match, expected in [
        (pattern.fullmatch(name), W) for name, W in reference("equitopo").items()
    ]:
        if match is None:
            continue
        kind, options = (
            match[1],
            {
                name: float(value) if name == "eta" else int(value)
                for name, value in match.groupdict().items()
                if value is not None
            },
        )
        made = T.equitopo(kind=kind if kind[0] == "O" else f"{kind}-static", **options)
        W = np.stack(
            [made.at(k).W.toarray() for k in range(len(expected) if expected.ndim == 3 else 1)]
        )
        np.testing.assert_allclose(W, expected.reshape(W.shape), atol=1e-15)


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
