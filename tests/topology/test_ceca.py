"""CECA's rounds: exactness, digits and counts, partners.  No MPI."""

import numpy as np
import pytest
from helpers.graphs import ceca_rounds, rounds

import mpidec.topology as T

pytestmark = pytest.mark.serial


CECA = [{"ports": 2}, {"ports": 1}, {"ports": 1, "parity": "repository"}]


def block_average(schedule, transposed_start=False):
    """The period's product of CECA's 2n x 2n matrices, made from the rounds' own fields."""
    n = schedule.n
    I = np.eye(n)  # noqa: E741
    Y = np.eye(2 * n)
    for k in range(schedule.period):
        t = schedule.at(k)
        P = 2 * t.W.toarray() - I
        a, b = (t.count + 1) / (2 * t.count + 1), t.count / (2 * t.count + 1)
        half = (I + P) / 2
        W = np.block(
            [[half, 0 * I], [a * P, b * I]] if t.digit else [[a * I, b * P], [0 * I, half]]
        )
        Y = W @ Y
    return Y


@pytest.mark.parametrize("options", CECA, ids=str)
def test_ceca_averages_any_number_of_agents_exactly(options):
    for n in range(1, 65):
        if options["ports"] == 1 and n % 2 and n > 1:
            continue
        schedule = T.ceca(n, **options)
        assert (schedule.period, schedule.kind, schedule.n) == (rounds(n), "doubly", n)
        average = block_average(schedule)[:n]
        if n > 1:
            np.testing.assert_allclose(
                average, np.c_[np.full((n, n), 1 / n), np.zeros((n, n))], atol=1e-15
            )
            for k in range(schedule.period):
                P = 2 * schedule.at(k).W.toarray() - np.eye(n)
                assert (
                    set(np.unique(P)) == {0.0, 1.0}
                    and (P.sum(axis=0) == 1).all()
                    and (np.diag(P) == 0).all()
                )
                assert options["ports"] == 2 or (P == P.T).all()
        assert schedule.directed == (options["ports"] == 2 and n > 2)


@pytest.mark.parametrize("options", CECA, ids=str)
def test_digits_and_counts_of_ceca(options):
    for n in range(2, 42, 2):
        schedule = T.ceca(n, **options)
        digits = [schedule.at(k).digit for k in range(schedule.period)]
        assert int("".join(map(str, digits)), 2) == n - 1 and digits[0] == 1
        assert [schedule.at(k).next_digit for k in range(schedule.period)] == [*digits[1:], 1]
        counts = [schedule.at(k).count for k in range(schedule.period)]
        assert counts[0] == 0 and 2 * counts[-1] + digits[-1] == n - 1
        assert all(2 * c + d == e for c, d, e in zip(counts, digits, counts[1:]))
    one = T.ceca(1, **options).at(5)
    assert (one.digit, one.count, one.next_digit, one.W.toarray().tolist()) == (1, 0, 1, [[1.0]])


def test_partners_of_ceca():
    assert [T.ceca(6).at(k).out_neighbors(0).tolist() for k in range(3)] == [[1], [1], [3]]
    assert [T.ceca(6).at(k).in_neighbors(0).tolist() for k in range(3)] == [[5], [5], [3]]
    assert [T.ceca(6, ports=1).at(k).neighbors(0).tolist() for k in range(3)] == [[1], [3], [5]]
    assert [T.ceca(6, 1, "repository").at(k).neighbors(1).tolist() for k in range(3)] == [
        [2],
        [4],
        [0],
    ]
    assert isinstance(T.ceca(6).at(1), T.CecaRound) and T.ceca(6).at(1).name == "ceca"


@pytest.mark.parametrize("options", CECA, ids=str)
def test_partners_of_ceca_are_those_of_the_formula(options):
    for n in range(2, 41, 3 - options["ports"]):
        schedule = T.ceca(n, **options)
        wanted = ceca_rounds(n, **options)
        assert len(wanted) == schedule.period
        for k, (digit, count, sender) in enumerate(wanted):
            t = schedule.at(k)
            assert (t.digit, t.count) == (digit, count)
            assert [t.in_neighbors(i).tolist() for i in range(n)] == sender[:, None].tolist()
            receiver = np.argsort(sender)
            assert [t.out_neighbors(i).tolist() for i in range(n)] == receiver[:, None].tolist()


WRONG = [
    (
        lambda: T.ceca(7, ports=1),
        ValueError,
        "ceca: n = 7 agents cannot be paired, expected an even n with ports=1 "
        "(ceca(7, ports=2) takes any n)",
    ),
    (lambda: T.ceca(6, ports=3), ValueError, "ports is 3, expected one of 1, 2"),
    (lambda: T.ceca(6, ports=True), ValueError, "ports is True, expected one of 1, 2"),
    (lambda: T.ceca(6, ports="2"), ValueError, "ports is '2', expected one of 1, 2"),
    (lambda: T.ceca(6, parity="papers"), ValueError, "did you mean paper?"),
    (lambda: T.ceca("6"), TypeError, "ceca: n is '6', expected an integer >= 1"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
