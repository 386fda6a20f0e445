"""A rank that does not come is named, and the job ends."""

import re

import pytest
from helpers.sets import first

pytestmark = pytest.mark.launch
LATE = (
    "import mpidec, numpy as np, time\n"
    "with mpidec.Network(transport={transport!r}) as net:\n"
    "    W = net.mixer(mpidec.topology.ring(net.n))\n"
    "    W(np.zeros((1, 3)))\n"
    "    if net.rank == 1: time.sleep(200)\n"
    "    W(np.zeros((1, 3)))\n"
)


@pytest.mark.parametrize(
    "transport, words",
    first(
        [
            ("shared", "for rank 1 to begin mixing 2 (W(X) over ring)"),
            ("p2p", "for messages of rank 1 in W(X) over ring"),
            ("neighbor", "for messages of rank 1 in W(X) over ring"),
        ]
    ),
)
def test_a_late_rank_ends_the_job(mpirun, transport, words):
    done = mpirun(
        2, ["-c", LATE.format(transport=transport)], timeout=120, env={"MPIDEC_TIMEOUT": "1"}
    )
    assert done.returncode != 0
    assert re.search(
        r"\[rank 0\] mpidec: waited 1 s, since \d\d:\d\d:\d\d, " + re.escape(words), done.stderr
    )
    assert "MPIDEC_TIMEOUT=SECONDS allows more" in done.stderr


ELSEWHERE = (
    "import mpidec, numpy as np\n"
    "with mpidec.Network(transport={transport!r}) as net:\n"
    "    W = net.mixer(mpidec.topology.ring(net.n))\n"
    "    for _ in range(3): W(np.zeros((1, 3)))\n"
    "    try:\n"
    "        net.mean(np.zeros((1, 3))) if net.rank == 1 else W(np.zeros((1, 3)))\n"
    "    except ValueError as error:\n"
    "        print('%d %s%s' % (net.rank, error, chr(10)), end='', flush=True)\n"
)


@pytest.mark.parametrize("transport", first(["shared", "p2p", "neighbor"]))
def test_ranks_in_different_calls_are_told_before_the_time_is_over(mpirun, transport):
    done = mpirun(
        3, ["-c", ELSEWHERE.format(transport=transport)], timeout=120, env={"MPIDEC_TIMEOUT": "600"}
    )
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line)
    assert set(found) >= {"0", "1", "2"}, done.stdout + done.stderr
    assert all(
        "rank 1" in text and ("net.mean" in text or "closes the network" in text)
        for text in found.values()
    ), found


NOT_COME = (
    "import sys, time, mpidec, numpy as np\n"
    "net = mpidec.Network(); x = np.ones((1, 2)); net.mixer('ring')(x)\n"
    "if net.rank == 1: time.sleep(200)\n"
    "{'agree': net.agree, 'close': net.close, 'barrier': net.barrier, 'mean': lambda: net.mean(x)}[sys.argv[1]]()\n"
)


@pytest.mark.parametrize("call", first(["close", "agree", "barrier", "mean"]))
def test_all_that_wait_name_the_rank_that_has_not_come(mpirun, call):
    done = mpirun(3, ["-c", NOT_COME, call], timeout=120, env={"MPIDEC_TIMEOUT": "3"})
    assert done.returncode != 0
    named = re.findall(
        r"\[rank (\d)\] mpidec: waited 3 s, since [\d:]{8}, for ranks? (\d) ", done.stderr
    )
    assert named and {who for _, who in named} == {"1"}, done.stderr
