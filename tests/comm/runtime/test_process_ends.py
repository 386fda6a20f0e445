"""Programs that end their job, or their process, in an unusual way: each in a launch of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from helpers import launch
from helpers.sets import first

pytestmark = [pytest.mark.launch, pytest.mark.timeout(250)]
HEAD = """
import os, re, sys, time, signal, gc, resource
import numpy as np, mpidec
from mpi4py import MPI
from mpidec import topology as T
comm = MPI.COMM_WORLD
r, n = comm.rank, comm.size
def say(*what): sys.stdout.write(f"[{r}] " + " ".join(map(str, what)) + chr(10)); sys.stdout.flush()
def attempt(f, *a):
    try: say("returned", f(*a))
    except BaseException as error: say(type(error).__name__ + ":", str(error).splitlines()[0])
"""
TRANSPORTS = ["shared", "neighbor", "p2p"]


def said(done, rank):
    """What a rank has said, line by line."""
    return [
        line.removeprefix(f"[{rank}] ")
        for line in done.stdout.splitlines()
        if line.startswith(f"[{rank}] ")
    ]


# ---------------------------------------------------------------------------------------------------------------------
# A rank that does not come

ALONE = {
    "Network()": "if r == 0: mpidec.Network(4)\nelse: time.sleep(40)",
    "net.scatter": "net = mpidec.Network()\nif r == 1: net.scatter(None)\nelse: time.sleep(40)",
    "net.gather": "net = mpidec.Network()\nif r == 1: net.gather(np.ones((1, 3)))\nelse: time.sleep(40)",
    "net.sum": "net = mpidec.Network()\nif r == 1: net.mean(np.ones((1, 3)))\nelse: time.sleep(40)",
    "net.agree": "net = mpidec.Network()\nif r == 1: net.agree()\nelse: time.sleep(40)",
    "net.mixer": "net = mpidec.Network()\nif r == 1: net.mixer(T.ring(n))\nelse: time.sleep(40)",
    "close": "net = mpidec.Network()\nif r == 1: net.close()\nelse: time.sleep(40)",
}


@pytest.mark.parametrize("call", first(ALONE, 2))
def test_a_rank_that_is_alone_in_a_call_of_all(mpirun, call):
    done = mpirun(2, ["-c", HEAD + ALONE[call]], timeout=25, env={"MPIDEC_TIMEOUT": "1"})
    assert done.returncode != 0
    assert re.search(r"\[rank \d\].*wait(s|ed) .*(Network\(\)|net\.|close)", done.stderr), (
        done.stderr
    )


UNCLOSED = (
    HEAD
    + """
net = mpidec.Network(transport=sys.argv[1]); W = net.mixer(T.ring(n))
def forgotten(): other = mpidec.Network(); other.mean(np.ones((1, 2))); other.itself = other
forgotten()
for k in range(3): W(np.ones((1, 3)))
if r == int(sys.argv[2]): W(np.ones((1, 3)))
say("ends")
"""
)


@pytest.mark.parametrize("transport", first(TRANSPORTS))
def test_networks_that_are_never_closed(mpirun, transport):
    """The job ends, at once also if a rank is in one call more than the others."""
    done = mpirun(3, ["-c", UNCLOSED, transport, -1], timeout=30)
    assert done.returncode == 0 and all(said(done, rank) == ["ends"] for rank in range(3)), (
        done.stdout + done.stderr
    )
    done = mpirun(3, ["-c", UNCLOSED, transport, 1], timeout=30)
    assert done.returncode != 0
    assert re.search(
        r"rank 1 is in W\(X\) over ring.*, rank [02] closes the network", done.stderr
    ), done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Interrupted and caught

INTERRUPTED = (
    HEAD
    + """
net = mpidec.Network(transport=sys.argv[1]); W = net.mixer(T.complete(n)); d = int(sys.argv[2])
x, got = np.full((1, d), float(r)), []
for k in range(3): W(x)
if r == 0:
    signal.signal(signal.SIGALRM, signal.default_int_handler); signal.setitimer(signal.ITIMER_REAL, 0.4)
else: time.sleep(1)
for k in range(3):
    try: y = float(W(x + 10 * k)[0, 0]); say("right" if y == 10 * k + (n - 1) / 2 else f"wrong {y} in call {k}")
    except KeyboardInterrupt: say("interrupted")
    except Exception as error: say("out of step" if re.search("out of step|0 closes the network", str(error)) else repr(error))
"""
)


@pytest.mark.parametrize("d", first([20_000, 3]))
@pytest.mark.parametrize(
    "transport, per", [("shared", 0), ("shared", 2), ("neighbor", 0), ("p2p", 0)]
)
def test_after_an_interruption_calls_are_right_or_out_of_step(mpirun, transport, per, d):
    """Ctrl-C in W(X), caught by the user, who goes on: each rank goes through its three calls, or is told of one that does not."""
    done = mpirun(
        3,
        ["-c", INTERRUPTED, transport, d],
        timeout=30,
        env={"MPIDEC_TIMEOUT": "2", "MPIDEC_RANKS_PER_NODE": str(per)},
    )
    lines = [line for rank in range(3) for line in said(done, rank)]
    assert said(done, 0)[0] == "interrupted", done.stdout + done.stderr
    assert set(lines) <= {"interrupted", "right", "out of step"}, done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Children

FORKED = (
    HEAD
    + """
net = mpidec.Network(transport=sys.argv[1]); W = net.mixer(T.complete(n))
x = net.empty(20_000); x[...] = r; Y = W(x)
with net.memory(): Z = np.full((1, 20_000), 3.0)
comm.Barrier()
if r == 0:
    pid = os.fork()
    if pid == 0:
        calls = {"all": (lambda: W(np.full((1, 3), 777.0)), lambda: W.start(x), lambda: net.mean(x), lambda: net.agree(),
                         lambda: net.gather(x), lambda: net.mixer(T.ring(n)), lambda: W.at(0).exchange(x),
                         lambda: W.at(0).fetch(x)),
                 "local": (lambda: net.neighbor_allreduce(x, 1, [1], [1]), lambda: net.barrier(), lambda: net.allreduce(x),
                           lambda: net.broadcast(x, 0), lambda: net.pair_gossip(x, 1), lambda: mpidec.Network(),
                           lambda: net.empty(3))}
        for call in calls[sys.argv[2]]:
            try: call(); say("child returned")
            except RuntimeError as error: say("child refused" if "forked child" in str(error) else f"child: {error}")
        x[...], Y[...], Z[...] = 7, 7, 7
        with net.memory(): other = [np.full(20_000, 9.0) for _ in range(20)]
        os.write(1, b"[0] child has %g %g %g %g\\n" % (x[0, 0], Y[0, 0], Z[0, 0], other[3][5]))
        os._exit(0)
    os.waitpid(pid, 0)
    say("parent has", x[0, 0], Y[0, 0], Z[0, 0])
V = W(x)
say("mixed", V[0, 0], V[0, -1])
net.close()
"""
)


@pytest.mark.parametrize("transport", first(TRANSPORTS))
@pytest.mark.parametrize("calls, count", [("all", 8), ("local", 7)])
def test_a_forked_child_is_refused_and_writes_to_memory_of_its_own(mpirun, transport, calls, count):
    done = mpirun(
        2, ["-c", FORKED, transport, calls], timeout=40, env={"MPIDEC_TIMEOUT": "5"}, check=True
    )
    lines = said(done, 0)
    assert lines.count("child refused") == count, done.stdout
    assert (
        "child has 7 7 7 9" in lines
        and "parent has 0.0 0.5 3.0" in lines
        and "mixed 0.5 0.5" in lines
    ), done.stdout
    assert said(done, 1) == ["mixed 0.5 0.5"]


POOL = (
    HEAD
    + """
import multiprocessing, subprocess
def work(k): return float(rows[0].sum()) + k
net = mpidec.Network(); W = net.mixer(T.complete(n))
with net.memory():
    rows = [np.full(50_000, float(k)) for k in range(8)]
    Y = W(np.full((1, 50_000), 2.0 + r))
    if r == 0:
        with multiprocessing.get_context("fork").Pool(3) as pool: say(pool.map(work, range(5)))
    say(subprocess.run([sys.executable, "-c", "print(1 + 1)"], capture_output=True, text=True).stdout.strip(), os.system("true"))
    W(Y)
    say([float(one[0]) for one in rows], Y[0, 0])
net.close()
"""
)


def test_pools_and_other_programs(mpirun):
    done = mpirun(2, ["-c", POOL], timeout=60, env={"MPIDEC_TIMEOUT": "20"}, check=True)
    kept = str([float(k) for k in range(8)])
    assert said(done, 0) == ["[0.0, 1.0, 2.0, 3.0, 4.0]", "2 0", f"{kept} 2.5"]
    assert said(done, 1) == ["2 0", f"{kept} 2.5"]


# ---------------------------------------------------------------------------------------------------------------------
# Limits of the system

LIMITED = (
    HEAD
    + """
net = mpidec.Network(transport=sys.argv[1] if len(sys.argv) > 1 else None); W = net.mixer(T.complete(n))
V = net.mixer(T.ring(n)).accelerate(2)
with net.memory():
    for d in (3, 20_000, 300_000):
        X = net.empty(d); X[...] = r
        for k in range(5): Y = W(X); Z = W(X + 1.0); p = W.start(X * 2); q = V(X)
        say(Y[0, 0], Z[0, -1], p.wait()[0, 0])
say("copied", 0 if net.node is None else net.node.node.copies)
net.close()
"""
)


def limited(mpirun, limits, *args, n=2):
    """The program under limits that are set before anything is imported."""
    head = "import resource\n" + "".join(
        f"resource.setrlimit(resource.RLIMIT_{name}, ({value}, {value}))\n"
        for name, value in limits.items()
    )
    return mpirun(n, ["-c", head + LIMITED, *args], timeout=60, env={"MPIDEC_TIMEOUT": "20"})


@pytest.mark.parametrize(
    "limits",
    first(
        [
            {"NOFILE": 32},
            {"AS": 3 << 30},
            {"FSIZE": 1 << 20},
            {"FSIZE": 1 << 30},
            {"AS": 6 << 30},
            {"CORE": 0},
        ],
        2,
    ),
    ids=str,
)
def test_limits_of_the_system(mpirun, limits):
    """Few descriptors, files of 1 MB, little address space: with a smaller arena, or without one; and by messages all the same."""
    done = limited(mpirun, limits)
    if done.returncode and "MPI_Init" in done.stderr:
        pytest.skip("MPI itself does not start under this limit")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert said(done, rank)[:3] == ["0.5 1.5 1.0"] * 3


@pytest.mark.parametrize("transport", first(TRANSPORTS))
def test_few_descriptors(mpirun, transport):
    done = limited(mpirun, {"NOFILE": 32}, transport)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(done, 1)[:3] == ["0.5 1.5 1.0"] * 3


SMALL_ARENA = (
    HEAD
    + """
from mpidec.comm.runtime import arena as memory
memory._MOST = memory._LEAST = int(sys.argv[1])
net = mpidec.Network(); W = net.mixer(T.complete(n))
with net.memory():
    kept = [W(np.full((1, 50_000), float(k + r))) for k in range(60)]     # 24 MB a rank
say(all(np.all(Y == k + 0.5) for k, Y in enumerate(kept)), memory.arena()[1], memory.shared.arena_stats()[0] <= memory.arena()[1])
net.close()
"""
)


@pytest.mark.parametrize("size", first([1 << 20, 1 << 22, 1 << 26]))
def test_an_exhausted_arena(mpirun, size):
    """What does not fit lies in ordinary memory, and is copied to a small block; where there is none, the error names remedies."""
    done = mpirun(2, ["-c", SMALL_ARENA, size], timeout=60, env={"MPIDEC_TIMEOUT": "20"})
    if done.returncode:
        assert size == 1 << 20 and "no shared memory for 400000 bytes of rows" in done.stderr, (
            done.stdout + done.stderr
        )
    else:
        assert [said(done, rank) for rank in range(2)] == [[f"True {size} True"]] * 2


def test_ranks_in_pid_namespaces_of_their_own():
    """As containers have: every rank is number 1, and /proc/1/fd of another one is its own; rows go by messages."""
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run(
            [unshare, "-p", "-f", "--mount-proc", "true"], capture_output=True
        ).returncode
    ):
        pytest.skip("unshare is not permitted")
    program = HEAD + (
        "net = mpidec.Network(); W = net.mixer(T.complete(n))\n"
        "for d in (3, 3000):\n"
        "    for k in range(3): say(os.getpid(), W(np.full((1, d), float(r)))[0, -1])\n"
        "net.close()\n"
    )
    no_cma = {
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
        "OMPI_MCA_smsc": "^cma",
    }  # MPI itself fails there by process numbers
    command = [
        *launch.mpirun_command(2),
        unshare,
        "-p",
        "-f",
        "--mount-proc",
        sys.executable,
        "-c",
        program,
    ]
    for _ in range(2):  # the second one finds what the first one left
        process = launch.start(
            command,
            env={"MPIDEC_TIMEOUT": "10", **no_cma},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        done = launch.finish(process, 40)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [said(done, rank) for rank in range(2)] == [["1 0.5"] * 6] * 2


# ---------------------------------------------------------------------------------------------------------------------
# Arrays outlive everything

OUTLIVE = (
    HEAD
    + """
import atexit
net = mpidec.Network(); W = net.mixer(T.complete(n))
with net.memory(): A = np.full(100_000, 4.0)
X = net.empty(100_000); X[...] = r; Y = W(X); part = Y[0, 5:9]
pending = W.start(X)
if len(sys.argv) > 1: net.close()
class Late:
    def __init__(self, rows): self.rows = rows
    def __del__(self): self.rows[...] += 1; os.write(1, b"[%d] del %g\\n" % (r, self.rows.flat[0]))
late = Late(np.copy(A))
atexit.register(lambda: say("exit", A[0], part[0], X[0, 0] == r))
del net, W, Y; gc.collect()
with mpidec.Network() as other: other.mixer(T.complete(n))(np.ones((1, 100_000)))
say("end", A[-1], part.tolist())
"""
)


@pytest.mark.parametrize("close", first([([],), (["close"],)]))
def test_arrays_outlive_their_network_and_the_end_of_the_program(mpirun, close):
    done = mpirun(2, ["-c", OUTLIVE, *close], timeout=40, env={"MPIDEC_TIMEOUT": "10"}, check=True)
    for rank in range(2):
        lines = said(done, rank)
        assert (
            lines[0] == "end 4.0 [0.5, 0.5, 0.5, 0.5]"
            and "exit 4.0 0.5 True" in lines
            and "del 5" in lines
        ), done.stdout


@pytest.mark.parametrize("transport", first(TRANSPORTS))
def test_a_rank_that_leaves_right_after_its_last_call(mpirun, transport):
    """It closes the network at once, and exits: slower ranks read its rows all the same."""
    program = HEAD + (
        "net = mpidec.Network(transport=sys.argv[1]); W = net.mixer(T.complete(n))\n"
        "X = net.empty(20_000); X[...] = r\n"
        "with net.memory(), net.keeping_rows():\n"
        "    for k in range(3): time.sleep(0.1 * (r == 1)); Y = W(X + k)\n"
        "net.close(); say(Y[0, 0])\n"
    )
    done = mpirun(
        3, ["-c", program, transport], timeout=40, env={"MPIDEC_TIMEOUT": "10"}, check=True
    )
    assert [said(done, rank) for rank in range(3)] == [["3.0"]] * 3


def test_a_rank_that_is_killed_ends_the_job(mpirun):
    program = HEAD + (
        "net = mpidec.Network(); W = net.mixer(T.complete(n)); X = np.ones((1, 20_000))\n"
        "for k in range(10**9):\n"
        "    if r == 1 and k == 20: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    W(X)\n"
    )
    done = mpirun(2, ["-c", program], timeout=40, env={"MPIDEC_TIMEOUT": "3"})
    assert done.returncode != 0


def test_a_traceback_is_not_lost_in_the_hook_of_torch_distributed(mpirun, tmp_path):
    """Which collects what is written to standard error until all hooks have returned."""
    pytest.importorskip("torch")
    program = HEAD + (
        "import torch.distributed as dist\n"
        "with mpidec.Network() as net:\n"
        "    where = 'file://' + sys.argv[1]\n"
        "    dist.init_process_group('gloo', init_method=where, rank=r, world_size=n)\n"
        "    raise KeyError('lost')\n"
    )
    done = mpirun(2, ["-c", program, str(tmp_path / "store")], timeout=60)
    assert done.returncode != 0
    assert re.search(r"^\[rank \d\] KeyError: 'lost'", done.stderr, re.MULTILINE), done.stderr
