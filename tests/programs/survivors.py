"""Runs that go on while ranks die, at named places and at random moments, against undisturbed ones (Open MPI).

    python tests/programs/survivors.py --cases 40 --seed 3 [--ranks 8] [--mpirun "mpirun --host a:4,b:4"]

In a case the ranks of a job solve a problem, 1 to 3 of them die, or all of a host, and those that are left compare their rows, the
metrics but time, and the file with those of a run in one process.  A job goes on with its next case until one rank is left, on
several hosts until no minority is left; then another job starts.  Only cases in which a rank has died are counted.  Prints a line
a case, then `x of y` for each family.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from helpers import dying, launch

N, D, STEPS = 8, 4, 120
# Places, and how often a run comes to them, about.
PLACES = {
    "comm.mixing.base.lifecycle.Lifecycle.__init__": 1,
    "comm.mixing.base.lifecycle.Lifecycle.close": 1,
    "comm.mixing.network.reductions.NetworkReductions._sum": 40,
    "comm.runtime.collectives.Collectives.wait": 60,
    "comm.transport.node_reader.NodeReader.start": 100,
    "driver.backup.Backup._exchange": 20,
    "driver.decisions.Control.watch": 110,
    "driver.journal.Journal.record": 12,
    "driver.journal.Journal.checkpoint": 3,
    "driver.journal.Journal.copy": 10,
    "driver.journal.Journal.begin": 1,
    "driver.journal.Journal.finish": 1,
    "record.atomic.AtomicFile._publish": 8,
    "record.runfile.RunFile.append": 12,
    "programs.load": 1,
}
# Those of a second one, while the others go on after the first death.
LATER = {
    "comm.runtime.survivors.Survivors.revoke": 1,
    "comm.runtime.survivors.Survivors.shrink": 1,
    "comm.runtime.survivors.Survivors.settle": 1,
    "comm.mixing.base.lifecycle.Lifecycle._lose": 1,
    "driver.backup.Backup.meet": 2,
    "driver.backup.Backup.recall": 1,
    "record.recorder.Recorder.rejoin": 1,
    "comm.mixing.base.lifecycle.Lifecycle.__init__": 2,
    "programs.load": 2,
}


def load(agents: range) -> Any:
    """Return the least-squares problem of some agents."""
    from helpers.solvers import least_squares

    import mpidec

    A, b, _ = least_squares(N)
    return mpidec.problems.LeastSquares(A[list(agents)], b[list(agents)])


def stream(agents: range) -> Any:
    import mpidec

    def draw(rng: np.random.Generator, agent: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        A = rng.standard_normal(D)
        return A, A.sum() + 0.1 * rng.standard_normal()

    return mpidec.problems.Stream(
        draw, m=len(agents), d=D, lo=agents.start, x_star=np.ones(D), check=False
    )


def families() -> dict[str, Any]:
    """Return functions that draw the problem, the solver, the topology and options of `solve`, by name."""
    from helpers.solvers import ALL

    import mpidec

    S, P, T = mpidec.solvers, mpidec.problems, mpidec.topology

    def catalogue(rng: random.Random) -> Any:
        while True:
            solver, graph = rng.choice(ALL)
            with contextlib.suppress(ValueError):
                return load, solver, graph(N), {}

    def local(rng: random.Random) -> Any:
        some = [(solver, graph) for solver, graph in ALL if solver.period > 1]
        solver, graph = rng.choice(some)
        return load, solver, graph(N), {}

    def varying(rng: random.Random) -> Any:
        solver = rng.choice([S.GradientTracking(0.02), S.DGD(0.02), S.Diffusion(0.02)])
        graphs = [
            T.one_peer_exponential(N),
            T.random_matchings(T.ring(N), seed=1),
            T.failing_links(T.ring(N), 0.2),
        ]
        return load, solver, rng.choice(graphs), {}

    def compressed(rng: random.Random) -> Any:
        codec = rng.choice(
            [("top_k", {"fraction": 0.5}), ("rand_k", {"fraction": 0.5}), ("qsgd", {})]
        )
        more = rng.choice([{}, {"feedback": True}, {"feedback": False}])
        solver = rng.choice([S.DGD(0.02), S.GradientTracking(0.005), S.CHOCO(0.02)])
        if isinstance(solver, S.CHOCO):
            return load, solver, T.ring(N), {"mixing": lambda W: W.compress(codec[0], **codec[1])}

        def mixing(W: Any) -> Any:
            return W.compress(codec[0], **codec[1], **more)

        return load, solver, T.ring(N), {"mixing": mixing}

    def robust(rng: random.Random) -> Any:
        ways = [
            lambda W: W.robust("clip", tau=0.5),
            lambda W: W.robust("trimmed_mean", trim=1),
            lambda W: W.attacked({2: "sign_flip"}).robust("clip", tau=0.5),
        ]
        return load, S.DGD(0.02), T.complete(N), {"mixing": rng.choice(ways)}

    def faulty(rng: random.Random) -> Any:
        ways = [
            lambda W: W.accelerate(3),
            lambda W: W.triggered(0.01),
            lambda W: W.lossy(0.2, seed=3),
            lambda W: W.noisy(0.01, seed=3),
            lambda W: W.repeat(2),
        ]
        return (
            load,
            rng.choice([S.DGD(0.02), S.Diffusion(0.02)]),
            T.ring(N),
            {"mixing": rng.choice(ways)},
        )

    def stochastic(rng: random.Random) -> Any:
        kind = rng.choice([P.SVRG, P.LSVRG, P.SARAH, P.SAGA, None])
        solver = rng.choice([S.DGD(0.01), S.GradientTracking(0.01), S.ExactDiffusion(0.01)])

        def loaded(agents: range) -> Any:
            return P.MiniBatch(load(agents), 2) if kind is None else kind(load(agents), 2)

        return loaded, solver, T.ring(N), {}

    def streams(rng: random.Random) -> Any:
        solver = rng.choice([S.DGD(0.02), S.Diffusion(0.02), S.GradientTracking(0.01)])
        return stream, solver, T.ring(N), {}

    def runs(rng: random.Random) -> Any:
        solver = rng.choice([S.DGD(0.01), S.GradientTracking(0.01)])
        return lambda agents: P.MiniBatch(load(agents), 2), solver, T.ring(N), {"runs": 3}

    def auto(rng: random.Random) -> Any:
        solver = rng.choice([S.GradientTracking(), S.EXTRA(), S.DGD(), S.NIDS()])
        return load, solver, T.ring(N), {}

    made = (catalogue, local, varying, compressed, robust, faulty, stochastic, streams, runs, auto)
    return {one.__name__: one for one in made}


def most(hosts: list[str]) -> int:
    """Return how many ranks may die: between hosts only a majority goes on."""
    return len(hosts) - 1 if len({*hosts}) == 1 else (len(hosts) - 1) // 2


def faults(rng: random.Random, hosts: list[str]) -> dict[int, list[tuple[str, float, bool]]]:
    """Return which of the ranks, on these hosts, die: at a place when they come there for the so-manieth time, or after some
    seconds; there also all of a host.
    """
    found: dict[int, list[tuple[str, float, bool]]] = {}
    host = rng.choice(hosts)
    there = [rank for rank, name in enumerate(hosts) if name == host]
    if len(there) <= most(hosts) and len({*hosts}) > 1 and rng.random() < 0.3:
        moment = rng.uniform(0, 0.6)
        return {rank: [("moment", moment, False)] for rank in there}
    victims = rng.sample(range(len(hosts)), min(rng.choice([1, 1, 2, 2, 3]), most(hosts)))
    for number, victim in enumerate(victims):
        places = LATER if number and rng.random() < 0.6 else PLACES
        place = rng.choice([*places, "moment"])
        count = rng.uniform(0, 0.6) if place == "moment" else rng.randint(1, places[place])
        found[victim] = [(place, count, rng.random() < 0.3)]
    return found


@contextlib.contextmanager
def armed(some: list[tuple[str, float, bool]]) -> Any:
    """Context in which this process dies."""
    with contextlib.ExitStack() as stack:
        for place, count, after in some:
            if place == "moment":
                timer = threading.Timer(count, os.kill, (os.getpid(), signal.SIGKILL))
                timer.start()
                stack.callback(timer.cancel)
            elif place == "programs.load":
                stack.callback(dying.dies_at(sys.modules[__name__], "load", int(count), after))
            else:
                stack.callback(dying.dies_at(*dying.owner_of(place), int(count), after))
        yield


def same(one: Any, other: Any) -> bool:
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def content(path: Path) -> dict[str, Any]:
    """Return what a run file holds, but times and checkpoints."""
    import h5py

    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        timed = name.rpartition("/")[2] in ("time", "seconds")
        kept = not name.startswith("checkpoint") and not timed
        if kept and isinstance(node, h5py.Dataset):
            found[name] = node[()]

    with h5py.File(path) as file:
        file.visititems(visit)
        attributes = file["result/x"].attrs
        found["end"] = np.array([str(attributes["outcome"]), str(attributes["steps"])])
    return found


def wrong(result: Any, alone: Any, lo: int, hi: int) -> list[str]:
    """Return what differs between a result and that of one process."""
    found = [] if same(result.X, alone.X[lo:hi]) else ["X"]
    if {*result.metrics} != {*alone.metrics}:
        return [*found, "names of metrics"]
    found += [
        name
        for name, values in alone.metrics.items()
        if name != "time" and not same(values, result.metrics[name])
    ]
    return found + ["outcome"] * (result.outcome != alone.outcome or result.steps != alone.steps)


def case(seed: int, number: int, folder: Path) -> dict[str, Any]:
    """Run a case, and return what is said of it."""
    import mpidec
    from mpidec.comm.runtime import ALONE, Partition, living
    from mpidec.driver import backup

    rng, ranks = random.Random(f"{seed}:{number}"), living()
    hosts = ranks.allgather(socket.gethostname())
    drawn = families()
    family = sorted(drawn)[number % len(drawn)]
    problem, solver, graph, options = drawn[family](rng)
    options |= {"steps": STEPS, "every": rng.choice([5, 8, 10]), "seed": number}
    kind, trajectory = rng.choice(["none", "file", "file", "file"]), rng.random() < 0.5
    seconds, flush = rng.choice([0.02, 30.0]), rng.choice([0.0, 0.05, 2.0])
    backup._LEAST, backup._SHARE = rng.choice([0.0, 0.0, 0.02, 1e9]), 1.0

    def record(name: str) -> Any:
        return mpidec.Record(
            folder / f"{number}-{name}.h5",
            trajectory=trajectory,
            checkpoint_seconds=seconds,
            flush_seconds=flush,
        )

    mine = faults(rng, hosts)
    told = {
        "case": number,
        "family": family,
        "solver": repr(solver)[:50],
        "ranks": ranks.size,
        "hosts": len({*hosts}),
        "faults": mine,
        "copies": backup._LEAST,
        "file": [kind, trajectory, seconds, flush],
    }
    if ranks.rank == 0:
        print(f"\nbegins {json.dumps(told)}", flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with armed(mine.get(ranks.rank, [])):
            saved = record("lost") if kind == "file" else None
            result = mpidec.solve(
                lambda agents: problem(agents) if problem is not load else load(agents),
                solver,
                graph,
                record=saved,
                on_failure="continue",
                **options,
            )
        left = living()
        with mpidec.Network(N, comm=ALONE) as net:
            saved = record("alone") if kind == "file" and left.rank == 0 else None
            alone = mpidec.solve(problem(range(N)), solver, graph, net=net, record=saved, **options)
    bad = wrong(result, alone, *Partition(N, left.size).bounds(left.rank))
    if saved is not None:
        one, other = content(folder / f"{number}-lost.h5"), content(folder / f"{number}-alone.h5")
        bad += [
            f"/{name}"
            for name in {*one, *other}
            if name not in one or name not in other or not same(one[name], other[name])
        ]
    bad = sorted({name for some in left.allgather(bad) for name in some})
    return {**told, "died": ranks.size - left.size, "wrong": bad}


def work(seed: int, first: int, last: int, folder: Path) -> None:
    """Take cases until one rank is left."""
    import mpidec  # before MPI starts
    from mpidec.comm.runtime import living

    assert mpidec
    for number in range(first, last):
        if most(living().allgather(socket.gethostname())) == 0:
            break
        try:
            told = case(seed, number, folder)
        except Exception:
            print(f"[{number}] {traceback.format_exc()}", file=sys.stderr, flush=True)
            living().Abort(1)
        if living().rank == 0:
            print(f"\nended {json.dumps(told)}", flush=True)


def lines(text: str, word: str) -> list[dict[str, Any]]:
    return [json.loads(line[len(word) :]) for line in text.splitlines() if line.startswith(word)]


def job(
    args: argparse.Namespace, rng: random.Random, first: int, folder: Path
) -> list[dict[str, Any]]:
    """Run cases from `first` on in one job, and return what is said of them."""
    n = args.ranks or rng.randint(2, 8)
    here = [
        sys.executable,
        __file__,
        "--work",
        str(args.seed),
        str(first),
        str(args.cases),
        str(folder),
    ]
    front = shlex.split(args.mpirun) or launch.mpirun_command(n)[:1]
    env = {
        "MPIDEC_TIMEOUT": str(args.timeout),
        "PYTHONPATH": os.pathsep.join([str(launch.ROOT), str(launch.ROOT / "tests")]),
    }
    with open(folder / "out", "w+") as out_file, open(folder / "err", "w+") as err_file:
        line = [*front, "--with-ft", "ulfm", "-n", str(n), *here]
        process = launch.start(line, env=env, stdout=out_file, stderr=err_file)
        status: Any = "a time-out"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = launch.finish(process, args.limit).returncode
        launch.end(process)
    out, err = (folder / "out").read_text(), (folder / "err").read_text()
    found = lines(out, "ended ")
    begun = lines(out, "begins ")
    if begun and begun[-1]["case"] not in {one["case"] for one in found}:
        found.append({**begun[-1], "died": 1, "wrong": [f"the job ended with {status}"]})
        print(err[-6000:], flush=True)
    if not begun:
        print(status, out, err[-6000:], flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--mpirun", default="")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--work", nargs=4)
    args = parser.parse_args()
    if args.work:
        seed, first, last, folder = args.work
        work(int(seed), int(first), int(last), Path(folder))
        return 0
    rng, right, all_ = random.Random(args.seed), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        first = args.first
        while first < args.cases:
            found = job(args, rng, first, Path(place))
            for told in found:
                if told["died"]:
                    all_[told["family"]] += 1
                    right[told["family"]] += not told["wrong"]
                print("WRONG" if told["wrong"] else "right", json.dumps(told), flush=True)
            first = max((told["case"] + 1 for told in found), default=first + 1)
    for family in sorted(all_):
        print(f"{family}: {right[family]} of {all_[family]}")
    print(f"{sum(right.values())} of {sum(all_.values())}")
    return right != all_


if __name__ == "__main__":
    sys.exit(main())
