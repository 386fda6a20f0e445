"""Averages over agents that are drawn: by definition, and how often each is drawn."""

import numpy as np
import pytest

from mpidec import topology as T


@pytest.mark.serial
@pytest.mark.parametrize("n, fraction, size", [(1, 0.5, 1), (2, 0.1, 1), (7, 0.4, 3), (7, 1, 7)])
def test_sampled_average_by_definition(n, fraction, size):
    schedule, seen = T.sampled_average(n, fraction, seed=5), np.zeros(n)
    assert schedule.kind == ("doubly" if size == n else "row") and schedule.period is None
    for k in range(60):
        W, sample = schedule.at(k).W.toarray(), schedule.sample(k)
        expected = np.zeros((n, n))
        expected[:, sample] = 1 / size
        assert len(set(sample)) == size and (expected == W).all()
        assert (T.sampled_average(n, fraction, seed=5).at(k).W.toarray() == W).all()
        seen[sample] += 1
    assert seen.min() > 0.5 * 60 * size / n
    repeated = sum(set(schedule.sample(k)) == set(schedule.sample(k + 1)) for k in range(60))
    assert size != 3 or repeated < 10  # one of 35 samples
    assert schedule == T.sampled_average(n, fraction, 5) != T.sampled_average(n + 1, fraction, 5)
    with pytest.raises(ValueError, match="fraction"):
        T.sampled_average(n, 1.1)
