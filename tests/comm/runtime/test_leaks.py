"""Nothing grows: memory, descriptors, mappings, threads and MPI objects stay what they were, however long it goes on."""

import contextlib
import gc
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import draws
from mpi4py import MPI

import mpidec
from mpidec import topology as T

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="what a process uses is read in /proc"
)
MEMORY = "memory (kB)"


def fields(path):
    """The numbers of a file with lines `Name:  number kB`."""
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {line[0][:-1]: int(line[1]) for line in lines if len(line) == 3 and line[2] == "kB"}


TAKEN: set[int] = set()


def requests(comm):
    """The number of requests that were ever among 2000 taken at once: it goes up by those that are not given back meanwhile.

    MPICH hands out first what was given back last, so that the number of the next request alone says nothing.
    """
    receives = [comm.Irecv([bytearray(1), MPI.BYTE], comm.rank, 9) for _ in range(2000)]
    TAKEN.update(one.py2f() for one in receives)
    for _ in receives:
        comm.Send([b"x", MPI.BYTE], comm.rank, 9)
    MPI.Request.Waitall(receives)
    return len(TAKEN)


def handles(comm):
    """The numbers of the next communicator and datatype, and how many requests were seen: they go up if some are not given back."""
    made = comm.Dup(), MPI.BYTE.Create_contiguous(3)
    numbers = [one.py2f() & 0xFFFFFF for one in made]
    made[1].Free()
    made[0].Free()
    return dict(zip(("communicators", "datatypes", "requests"), [*numbers, requests(comm)]))


def figures(comm):
    """What this process uses now."""
    gc.collect()
    comm.Barrier()
    use = fields("/proc/self/status")
    return {
        MEMORY: use["RssAnon"] + use["RssShmem"],
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": max(len(list(Path("/proc/self/task").iterdir())), threading.active_count()),
        **handles(comm),
    }


def unchanged(comm, work, warm, times, memory, slack=4):
    """Do the work `warm` times, then `times` times: `memory` kB more are allowed, and `slack` more of each other thing.

    A rank that runs ahead once takes what it needs for that, and keeps it: only what grows again, and again, grows.
    """
    limit, grown = {MEMORY: memory, "requests": 10 * slack}, [{}]
    work(warm)
    after = figures(comm)
    for _ in range(3):
        before = after
        work(times)
        after = figures(comm)
        grown = comm.allgather(
            {
                key: (before[key], after[key])
                for key in before
                if after[key] - before[key] > limit.get(key, slack)
            }
        )
        if not any(grown):
            break
    assert not any(grown), (
        f"grown in {times} turns, for the third time, on each rank: {grown}; before {before}, after {after}"
    )


@pytest.mark.skipif(
    "MPICH" not in MPI.Get_library_version(),
    reason="other libraries number only the requests that are asked for",
)
def test_requests_that_are_not_given_back_are_found(comm):
    kept = []

    def work(times):
        kept.extend(comm.Irecv([bytearray(1), MPI.BYTE], comm.rank, 8) for _ in range(times))

    try:
        with pytest.raises(AssertionError, match="'requests': "):
            unchanged(comm, work, 10, 300, memory=1 << 20)
    finally:
        for _ in kept:
            comm.Send([b"x", MPI.BYTE], comm.rank, 8)
        MPI.Request.Waitall(kept)


WAYS = {
    "blocking": lambda W, V, X, out: W(X),
    "out": lambda W, V, X, out: W(X, out=out),
    "nonblocking": lambda W, V, X, out: [
        one.wait() for one in [W.start(X), W.start(X, out), V.start(X)]
    ],
    "dynamic": lambda W, V, X, out: V(X),
    "many": lambda W, V, X, out: W([X, X, X]),
    "half": lambda W, V, X, out: V(X.astype(np.float16)),
    "exchange": lambda W, V, X, out: V.at(1).exchange(V.at(1).to_edges(X)),
}
TRANSPORTS = [("auto", 0), ("auto", 1), ("neighbor", 0), ("p2p", 0)]


def mixings(comm, monkeypatch, transport, per, ways, d, warm, times, memory):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(per))
    n = 2 * comm.size
    with mpidec.Network(n, transport=transport) as net:
        W, V = net.mixer(T.ring(n)), net.mixer(T.one_peer_exponential(n))
        X, out = net.empty(d), np.empty((net.m, d))
        X[...] = 1

        def work(count):
            for k in range(count):
                Y = WAYS[ways[k % len(ways)]](W, V, X, out)
                assert k < count - len(ways) or not len(Y) or np.all(Y[0] == 1)

        unchanged(comm, work, warm, times, memory)


@pytest.mark.parametrize("transport, per", TRANSPORTS)
def test_hundreds_of_mixings(comm, monkeypatch, transport, per):
    times = 280 if comm.size <= 4 else 210
    mixings(comm, monkeypatch, transport, per, list(WAYS), 1000, 210, times, memory=4096)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transport, per", TRANSPORTS)
@pytest.mark.parametrize(
    "way, d, times",
    [(way, 5, 100_000 if way in ("blocking", "out", "dynamic") else 20_000) for way in WAYS]
    + [("blocking", 20_000, 2000), ("nonblocking", 20_000, 1000)],
)
def test_a_hundred_thousand_mixings(comm, monkeypatch, transport, per, way, d, times):
    mixings(comm, monkeypatch, transport, per, [way], d, times // 10, times, memory=4096)


def one_network(k):
    """Make a network, use it in every way, and close it."""
    n = MPI.COMM_WORLD.size
    with mpidec.Network(transport=("auto", "neighbor", "p2p")[k % 3]) as net:
        W, V = net.mixer(T.ring(n)), net.mixer(T.one_peer_exponential(n))
        X = net.empty(3 if k % 4 else 20_000)
        X[...] = 1
        pending = W.start(X)
        V(W(X))
        pending.wait()
        phase = V.at(1)
        phase.exchange(phase.to_edges(X))
        net.mean(X)
        if k % 2:
            W.close()
        net.set_topology(T.ring(n))
        net.neighbor_allreduce(X[0])


def networks(count):
    for k in range(count):
        one_network(k)


def test_a_hundred_networks(comm):
    unchanged(
        comm,
        networks,
        24 if comm.size <= 4 else 12,
        96 if comm.size == 1 else 36 if comm.size <= 4 else 12,
        memory=4096,
        slack=8,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_networks(comm):
    """UCX, below some MPI libraries, keeps 150 bytes for each mmap (none with UCX_MEM_MMAP_HOOK_MODE=none): 1 kB a network."""
    unchanged(comm, networks, 500, 9_500, memory=4096 + 9_500, slack=40)


@pytest.mark.parametrize("transport", ["auto", "neighbor"])
def test_a_random_schedule(comm, transport):
    n = comm.size + 1
    with mpidec.Network(n, transport=transport) as net:
        W = net.mixer(draws.Draws(n, 1, "row"))
        X = np.ones((net.m, 4))

        def work(count):
            for _ in range(count):
                W(X)

        unchanged(comm, work, 70, 60 if comm.size <= 4 else 20, memory=4096, slack=8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_local_calls(comm):
    with mpidec.Network() as net:
        net.set_topology(T.ring(net.n))
        right, left = (
            ([(net.rank + 1) % net.n], [(net.rank - 1) % net.n]) if net.n > 1 else ([], [])
        )

        def work(count):
            for _ in range(count // 5):
                net.neighbor_allreduce(np.ones(3))
                net.neighbor_allreduce(np.ones(3), 1, left, right)
                net.neighbor_allreduce(np.ones(2000), 1, dst_weights=right)
                net.neighbor_allgather(np.ones(3))
                net.allreduce(1.0)

        unchanged(comm, work, 6000, 10_000, memory=4096)  # the last 4,096 calls are remembered


# ---------------------------------------------------------------------------------------------------------------------
# The memory of one mixing


def halo(transport):
    """What one rank needs for mixings of large rows, beyond the rows themselves, in rows: the most, and what it keeps."""
    d, comm, found = 1 << 19, MPI.COMM_WORLD, {}
    row = 8 * d / 1024
    for make in (T.ring, T.complete):
        with mpidec.Network(transport=transport) as net:
            W, X = net.mixer(make(net.n)), net.empty(d)
            X[...] = 1
            W(np.ones((net.m, 3)))
            comm.Barrier()
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
            rss, pss = (
                fields("/proc/self/status")["VmRSS"],
                fields("/proc/self/smaps_rollup")["Pss"],
            )
            for _ in range(3):
                Y = W(X)
            comm.Barrier()
            assert Y[0, 0] == 1
            found[make.__name__] = [
                (fields("/proc/self/status")["VmHWM"] - rss) / row,
                (fields("/proc/self/smaps_rollup")["Pss"] - pss) / row,
            ]
            comm.Barrier()
            del X, Y
    worst = {name: np.max(comm.allgather(value), axis=0).tolist() for name, value in found.items()}
    if comm.rank == 0:
        print(json.dumps(worst))


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.timeout(200)
@pytest.mark.parametrize("transport", ["shared", "neighbor", "p2p"])
def test_memory_is_that_of_the_own_halo(mpirun, transport):
    n = 16
    done = mpirun(n, [__file__, transport], timeout=150, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    for name, degree in (("ring", 2), ("complete", n - 1)):
        most, kept = rows[name]
        assert most <= degree + 4, f"{transport}, {name}: {rows} rows"
        assert kept <= (3 if transport == "shared" else degree + 4), (
            f"{transport}, {name}: {rows} rows"
        )


if __name__ == "__main__":
    halo(sys.argv[1])
