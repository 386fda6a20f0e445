"""Jobs under `mpidec restart` whose ranks die at random moments, against undisturbed ones.

    python tests/programs/deaths.py run --cases 10 --how kill --seed 3       (also: train, sweep, reproduce; --how exit)

A case starts the command on 1 to 8 ranks, kills a random rank (SIGKILL), or lets it end by os._exit(0), once or twice: at a moment
after the start, or after its files have changed.  It compares what the files hold in the end, all but times, with those of an
undisturbed job: of one process, or of as many ranks for a training, whose sums depend on them.  Prints a line a case, and
`x of y`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from helpers import launch

# Ranks end by os._exit(0) at SIGUSR2, as when a library of theirs ends the process.
CUSTOM = "import os, signal\nsignal.signal(signal.SIGUSR2, lambda *_: os._exit(0))\n"
PROBLEM = (
    "--problem=least_squares --data=synthetic_least_squares --set=problem.p=6 --set=problem.d=5 --agents=8 "
    "--set=run.checkpoint=0.05 --stop-error=1e-300"
)
JOBS = {
    "run": f"{PROBLEM} --solver=gradient_tracking --topology=ring --step-size=0.004 --steps=4000 --every=50 --quiet --out run.h5",
    "train": "--workers=8 --data=digits --batch=64 --epochs=10 --every=1 --quiet --out train.h5",
    "sweep": f"{PROBLEM} --vary solver.name=extra,dgd --step-size=0.004 --steps=1000 --every=50 --vary topology.name=ring,grid "
    "--seeds=2 --set=problem.partition=sorted --quiet --out study",
    "reproduce": "relaysgd-fig6 ceca-claims --quiet --out reproduced",
}
TIMES = ("time", "seconds", "samples_per_second")


class Death(NamedTuple):
    """A moment: `seconds` after the start of a job, or after its files have changed `writes` times."""

    writes: int
    seconds: float


class Ended(NamedTuple):
    """How a case has ended: the supervisor's status, its lines, and where the ranks died."""

    status: int
    log: str
    deaths: list[str]


def contents(folder: Path) -> dict[str, np.ndarray]:
    """Return all that the files of a folder hold, but times and checkpoints, by file and name."""
    found: dict[str, np.ndarray] = {}

    def visit(prefix: str, name: str, node: h5py.Dataset | h5py.Group) -> None:
        if isinstance(node, h5py.Dataset) and name.rpartition("/")[2] not in TIMES:
            found[f"{prefix}:{name}"] = node[()]
        if name == "result/x":
            found[f"{prefix}:outcome"] = np.asarray(
                [str(node.attrs["outcome"]), node.attrs["steps"]]
            )

    for path in sorted(folder.rglob("*.h5")):
        with h5py.File(path) as file:
            for name in file:
                if name not in ("checkpoint", "pending"):
                    part = file[name]
                    visit(str(path.relative_to(folder)), name, part)
                    if isinstance(part, h5py.Group):
                        part.visititems(
                            lambda inner, node, p=path, top=name: visit(
                                str(p.relative_to(folder)), f"{top}/{inner}", node
                            )
                        )
    return found


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    """Return the names of what differs in a bit, or is in one of both only."""
    return [
        name
        for name in sorted({*one, *other})
        if name not in one or name not in other or one[name].tobytes() != other[name].tobytes()
    ]


def words(command: str) -> list[str]:
    return [sys.executable, "-m", f"mpidec.{command}", *JOBS[command].split()]


def ranks_of(folder: Path, command: str) -> list[int]:
    """Return the ranks of the job in a folder: its Python processes of the command, which no supervisor is."""
    found, own = [], str(folder / "custom").encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().decode().split("\0")
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        is_python = "python" in os.path.basename(arguments[0])
        if is_python and arguments[2:3] == [f"mpidec.{command}"] and own in environ:
            found.append(int(process.name))
    return found


def stamps(folder: Path) -> list[tuple[str, int]]:
    """Return what changes when a job writes."""
    found = []
    for path in folder.rglob("*.h5"):
        try:
            found.append((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:
            continue
    return sorted(found)


def undisturbed(command: str, folder: Path, ranks: int = 0) -> tuple[dict[str, np.ndarray], float]:
    """Return what an undisturbed job gives, and the seconds it takes."""
    began = time.monotonic()
    folder.mkdir()
    done = launch.mpirun(ranks, words(command)[1:], 600, cwd=folder)
    assert done.returncode in (0, 4), done
    return contents(folder), time.monotonic() - began


def case(
    command: str,
    launcher: Sequence[str],
    deaths: list[Death],
    how: str,
    folder: Path,
    rng: random.Random,
) -> Ended:
    """Run a case with the words of a launcher."""
    folder.mkdir()
    (folder / "custom").mkdir()
    (folder / "custom" / "sitecustomize.py").write_text(CUSTOM)
    env = {"MPIDEC_TIMEOUT": "8"}
    restart = [sys.executable, "-m", "mpidec.restart", "--times", "9", "--"]
    env["PYTHONPATH"] = os.pathsep.join([str(folder / "custom"), str(launch.ROOT)])
    log = open(folder / "log.txt", "w+")
    line = [*restart, *launcher, *words(command)]
    process = launch.start(line, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    died: list[str] = []
    try:
        for death in deaths:
            launch.until(lambda: ranks_of(folder, command) or process.poll() is not None, 60)
            for _ in range(death.writes):
                before = stamps(folder)
                launch.until(lambda b=before: stamps(folder) != b or process.poll() is not None, 60)
            time.sleep(death.seconds)
            if process.poll() is None and (ranks := ranks_of(folder, command)):
                victim = rng.choice(ranks)
                died.append("running" if stamps(folder) else "starting")
                # before Python has set the handler, SIGUSR2 kills
                launch.signalled([victim], signal.SIGKILL if how == "kill" else signal.SIGUSR2)
                launch.until(lambda v=victim: not alive(v), 30)
        status = launch.finish(process, 300).returncode
    except subprocess.TimeoutExpired:
        status = -1
    finally:
        launch.end(process)
    log.seek(0)
    return Ended(status, log.read(), died)


def alive(pid: int) -> bool:
    """Return whether a process lives; one that has ended without being waited for has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def random_deaths(rng: random.Random, n: int, starting: float) -> list[Death]:
    """Return one or two moments: a third of them in the first seconds, the others after something was written."""
    late = [
        Death(0, rng.uniform(0, starting * (1 + n / 4)))
        if rng.random() < 1 / 3
        else Death(rng.randint(1, 8), rng.uniform(0, 0.3))
        for _ in range(rng.randint(1, 2))
    ]
    return late


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=JOBS)
    parser.add_argument("--cases", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--how", choices=("kill", "exit", "both"), default="kill")
    parser.add_argument("--most", type=int, default=8, help="ranks")
    args = parser.parse_args()
    rng, right, disturbed = random.Random(args.seed), 0, 0
    expected: dict[int, dict[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as place:
        for number in range(args.cases):
            began, n = time.monotonic(), rng.randint(1, args.most)
            alone = n if args.command == "train" else 0
            if alone not in expected:
                folder = Path(place, f"expected-{alone}")
                expected[alone], _ = undisturbed(args.command, folder, alone)
            deaths = random_deaths(rng, n, 3.0 if args.command == "train" else 1.0)
            folder = Path(place, str(number))
            how = args.how if args.how != "both" else rng.choice(["kill", "exit"])
            ended = case(args.command, launch.mpirun_command(n), deaths, how, folder, rng)
            wrong = differences(expected[alone], contents(folder))
            ok = ended.status in (0, 4) and not wrong
            disturbed += bool(ended.deaths)
            right += ok
            shown = ", ".join(f"{death.writes} writes + {death.seconds:.1f} s" for death in deaths)
            print(
                f"  case {number}: {time.monotonic() - began:.1f} s, n {n}, {how} {shown}, died {ended.deaths}, "
                f"status {ended.status}: {'right' if ok else f'WRONG {wrong[:5]}'}",
                flush=True,
            )
            if not ok:
                print(ended.log, flush=True)
    print(f"{args.command}, {args.how}: {right} of {args.cases} right, {disturbed} with deaths")
    return right < args.cases


if __name__ == "__main__":
    sys.exit(main())
