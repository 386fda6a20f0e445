"""Ranks that have left a part of the program early, as after a failed assertion, are in step again after the next `bf.init`."""

import pytest

torch = pytest.importorskip("torch")

from mpidec.bluefog import torch as bf  # noqa: E402


@pytest.fixture
def x():
    bf.init(bf.RingGraph)
    yield torch.full((3,), float(bf.rank()))
    bf.shutdown()


def ring(x):
    """The average over a rank and its neighbours, of equal numbers on each rank."""
    ranks = {(bf.rank() + k) % bf.size() for k in (-1, 0, 1)}
    return torch.full_like(x, sum(ranks) / len(ranks))


def windows(x):
    bf.win_create(x.clone(), "w")
    bf.win_free("w")


def several(part, x):
    for _ in range(9):
        part(x)


@pytest.mark.most(4)
@pytest.mark.parametrize("part", [bf.neighbor_allreduce, bf.allreduce, bf.allgather, windows])
def test_ranks_meet_at_init(x, part):
    early = bf.rank() == 0 and bf.size() > 1
    part(x)
    if early and part is windows:
        bf.win_create(x.clone(), "w")  # and goes without freeing it
    elif not early and bf.size() > 1:  # from their second call on, others wait for rank 0
        with pytest.raises((ValueError, RuntimeError), match=r"bf\.init|out of step|closes"):
            several(part, x)
    bf.init(bf.RingGraph)
    torch.testing.assert_close(bf.neighbor_allreduce(x), ring(x))
    assert not bf.get_current_created_window_names() and bf.win_create(x.clone(), "w")
    bf.init(bf.RingGraph)  # in step: the window stays
    assert bf.get_current_created_window_names() == ["w"] and bf.win_free()
    torch.testing.assert_close(bf.neighbor_allreduce(x), ring(x))
