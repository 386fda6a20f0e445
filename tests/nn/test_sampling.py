"""Samplers that divide the data among the agents."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")


from mpidec.nn import sampler  # noqa: E402

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("samples", "n"), [(12, 3), (13, 3), (7, 6), (2, 5)])
def test_samplers_divide_the_data(samples, n, drop_last):
    """As torch does among the ranks, in the order of the seed and the epoch; the workers of a rank take turns."""
    data, options = list(range(samples)), {"seed": 3, "drop_last": drop_last}
    if drop_last and samples < n:
        with pytest.raises(
            ValueError, match=f"{samples} samples for {n} workers, expected at least one for each"
        ):
            sampler(data, SimpleNamespace(n=n, lo=0, hi=1), **options)
        return
    nets = [SimpleNamespace(n=n, lo=worker, hi=worker + 1) for worker in range(n)]
    drawn = []
    for epoch in range(2):
        parts = []
        for worker, net in enumerate(nets):
            mine, theirs = (
                sampler(data, net, **options),
                torch.utils.data.DistributedSampler(data, n, worker, **options),
            )
            for each in mine, theirs:
                each.set_epoch(epoch)
            parts.append(list(mine))
            assert parts[-1] == list(theirs) and len(mine) == len(theirs)
        drawn.append([i for part in parts for i in part])
        assert len(set(drawn[-1])) == (samples // n * n if drop_last else samples)
        both = sampler(data, SimpleNamespace(n=n, lo=1, hi=3), **options)
        both.set_epoch(epoch)
        (batch,) = torch.utils.data.DataLoader(data, len(both), sampler=both)
        assert batch.unflatten(0, (-1, 2)).transpose(0, 1).tolist() == parts[1:3]
    assert samples == 2 or drawn[0] != drawn[1]


def test_a_sampler_needs_a_length():
    with pytest.raises(TypeError, match="the data set, a generator, has no length"):
        sampler((i for i in range(3)), SimpleNamespace(n=1, lo=0, hi=1))
