"""What mixers answer for themselves: the order of the calls, other bases, and what limits exact methods."""

import numpy as np
import pytest
from helpers.mixers import CALLS
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing.codecs import QSGD
from mpidec.comm.mixing.faults.faults import LinkNoise
from mpidec.comm.mixing.mixers.operator import EXCLUDED, FAULTS, ORDER, Kept, Limits

pytestmark = pytest.mark.serial
N = 5


@pytest.fixture
def W():
    with mpidec.Network(N, comm=MPI.COMM_SELF) as net:
        yield net.mixer(T.complete(N))


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_refused_after_one_that_it_does_not_follow(W, call):
    assert tuple(CALLS) == ORDER
    for last in ORDER:
        made = CALLS[last][0](W)
        follows = ORDER.index(call) > ORDER.index(last) and (last, call) not in EXCLUDED
        if follows:
            assert CALLS[call][0](made).layers[-1] == call
        else:
            with pytest.raises(ValueError, match=f"{call} of a mixer that .* already: "):
                CALLS[call][0](made)


def test_a_call_is_refused_after_any_of_the_earlier_ones(W, monkeypatch):
    monkeypatch.setitem(EXCLUDED, ("attacked", "repeat"), "a reason")
    with pytest.raises(ValueError, match="repeat of a mixer that is attacked already: a reason"):
        W.attacked({}).noisy(0.1).repeat(2)


def test_nothing_follows_error_feedback_that_changes_what_arrives(W):
    for call in FAULTS:
        with pytest.raises(ValueError, match=rf"{call}: .* feedback=False\)\.{call}"):
            CALLS[call][0](W.compress("qsgd", feedback=True))


def test_a_mixer_is_rebuilt_on_another_base(W):
    other, codec = W.base.T, QSGD(seed=3)
    mixer = W.compress(codec, feedback=False).attacked({}).noisy(0.1).lossy(0.0).repeat(2)
    assert mixer.calls.count(".") >= 5
    assert mixer.base is W and mixer.rebuilt(other, Kept()).base is other
    assert mixer.rebuilt(W, Kept()).calls == mixer.calls
    calm = mixer.rebuilt(W, Kept(faults=False))  # without noise: the others do nothing
    assert calm.calls == mixer.calls.replace(".noisy(0.1, seed=0)", "") and not calm.disturbance
    X, gamma = np.random.default_rng(0).standard_normal((N, 4)), mixer.gamma(4)
    linear = W.compress(codec, feedback=False).rebuilt(W, Kept(codec=False, d=4))
    assert gamma < 1 and linear.gamma(4) == gamma
    np.testing.assert_allclose(linear(X), X + gamma * (W(X) - X))
    assert W.rebuilt(other, Kept(codec=False)) is other


def test_what_limits_exact_methods(W):
    rounding = W.compress("qsgd", feedback=False)
    assert W.limits(4) == W.compress("identity").limits(4) == Limits()
    assert rounding.noisy(0.0).repeat(2).limits(4) == Limits(rounding.codec)
    assert W.compress("qsgd").accelerate(2).limits(4) == Limits(rounding.codec, feedback=True)
    disturbed = W.attacked({1: 2.0}).noisy(0.1).repeat(2)
    assert disturbed.limits(4) == Limits(disturbance=disturbed.disturbance)
    assert disturbed.disturbance.startswith("wrong rows are sent (attackers: 1) and channel noise")


def test_faults_are_values():
    assert LinkNoise(0.1, 2) == LinkNoise(0.1, 2) != LinkNoise(0.1, 3)
    assert repr(LinkNoise(0.1, 2)) == "noisy(0.1, seed=2)" and str(LinkNoise(0.0)) == ""


def test_rows_without_columns_are_lost_as_others_are(W):
    step = W.lossy(0.4, seed=1).at(0)
    rows = np.arange(1.0, N + 1)
    flat, wide = step.exchange(step.to_edges(rows)), step.exchange(step.to_edges(rows[:, None]))
    np.testing.assert_array_equal(flat, wide[:, 0])
    assert (flat == 0).any()
