"""Several mixings in one step."""

import numpy as np
from helpers.losses import masks, stack, weights

import mpidec
from mpidec import topology as T

N, D = 7, 5


def test_several_mixings_in_a_step_go_on_with_the_schedule():
    X, schedule, lost = stack(), T.one_peer_exponential(N), masks(steps=20)
    with mpidec.Network(N) as net:
        W = net.mixer(schedule)
        for mixer, gone in (W.repeat(2), lost & False), (W.lossy(lost).repeat(2), lost):
            for k in range(4):
                want = X
                for r in (2 * k, 2 * k + 1):
                    want = weights(schedule.at(r).W.toarray(), gone[r], "renormalize") @ want
                np.testing.assert_allclose(
                    mixer.at(k)(X[net.lo : net.hi]), want[net.lo : net.hi], atol=1e-15
                )
