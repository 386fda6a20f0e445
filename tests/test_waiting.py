"""A rank that does not come is named, and the job ends."""

import pytest

pytestmark = pytest.mark.launch
LATE = ("import mpidec, numpy as np, time\n"
        "with mpidec.Network(transport={transport!r}) as net:\n"
        "    W = net.mixer(mpidec.topology.ring(net.n))\n"
        "    W(np.zeros((1, 3)))\n"
        "    if net.rank == 1: time.sleep(30)\n"
        "    W(np.zeros((1, 3)))\n")


@pytest.mark.parametrize("transport, words", [("shared", "waited 1 s for rank 1 to begin mixing 2 (W(X) over ring)"),
                                              ("neighbor", "waited 1 s for messages of its neighbours in W(X) over ring"),
                                              ("p2p", "waited 1 s for messages of its neighbours in W(X) over ring")])
def test_a_late_rank_ends_the_job(mpirun, transport, words):
    done = mpirun(2, ["-c", LATE.format(transport=transport)], timeout=25, env={"MPIDEC_TIMEOUT": "1"})
    assert done.returncode != 0
    assert f"[rank 0] mpidec: {words}" in done.stderr
    assert "MPIDEC_TIMEOUT=SECONDS allows more" in done.stderr
