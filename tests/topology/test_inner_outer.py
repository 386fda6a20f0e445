"""Inner-outer schedules.  No MPI."""

import numpy as np
import pytest

import mpidec.topology as T

pytestmark = pytest.mark.serial


def test_permutations_of_inner_outer():
    """Those that BlueFog's generators make."""
    sends = {
        (6, 3, "ring"): ["321054", "240513", "105432"],
        (6, 3, "exponential"): ["321054", "240513", "105432"],
        (8, 4, "ring"): ["42310675", "25306174"],
        (8, 4, "exponential"): ["42310675", "35027146", "13605724", "20176453"],
    }
    for (n, size, kind), maps in sends.items():
        schedule = T.inner_outer(n, size, kind)
        for k, expected in enumerate(maps):
            P = np.zeros((n, n))
            P[[int(i) for i in expected], range(n)] = 1
            assert (schedule.at(k).W.toarray() == (np.eye(n) + P) / 2).all()


@pytest.mark.parametrize("kind", ["ring", "exponential"])
def test_agents_of_inner_outer_meet(kind):
    for n, size in [(5, 1), (9, 3), (16, 4), (24, 8), (20, 5), (7, 7)]:
        schedule, machines = T.inner_outer(n, size, kind), n // size
        met = {
            (i, int(j))
            for k in range(schedule.period)
            for i in range(n)
            for j in schedule.at(k).out_neighbors(i)
        }
        outside = {(j // size - i // size) % machines for i, j in met if i // size != j // size}
        hops = {2**r for r in range(8) if 2**r < machines} if kind == "exponential" else {1}
        assert outside == (hops if machines > 1 else set())
        for i in range(n):  # every agent uses every distance
            assert {(j // size - i // size) % machines for a, j in met if a == i} - {0} == outside
        assert schedule.spectral_gap() > 0.01


WRONG = [
    (lambda: T.inner_outer(12, 5), ValueError, "machine_size is 5, expected a divisor"),
    (lambda: T.inner_outer(12, 2), ValueError, "machine_size is 2, expected 1 or at least 3"),
    (lambda: T.inner_outer(12, kind="rings"), ValueError, "did you mean ring?"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
