"""Jobs under `mpidec restart` whose ranks die at random moments, against undisturbed ones.

    python tests/programs/deaths.py run --cases 10 --how kill --seed 3       (also: train, sweep, reproduce; --how exit)

A case starts the command on 1 to 8 ranks, kills a random rank (SIGKILL), or lets it end by os._exit(0), once or twice, and compares
what the files hold in the end, all but times, with those of one undisturbed process.  Prints a line a case, and `x of y`.
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
from pathlib import Path

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
    "train": "--workers=8 --data=digits --epochs=8 --quiet --out train.h5",
    "sweep": f"{PROBLEM} --vary solver.name=extra,dgd --step-size=0.004 --steps=1000 --every=50 --vary topology.name=ring,grid "
    "--seeds=2 --set=problem.partition=sorted --quiet --out study",
    "reproduce": "relaysgd-fig6 ceca-claims --quiet --out reproduced",
}
TIMES = ("time", "seconds", "samples_per_second")
# Attributes that belong to the process, not to the result.
OWN = ("created", "ranks", "mpi", "host", "resumed", "config")


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


def ranks_of(supervisor: int, command: str) -> list[int]:
    """Return the ranks of the job of a supervisor: the Python processes of the command that it has started."""
    found = []
    for pid in launch.family(supervisor):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        is_python = "python" in os.path.basename(arguments[0])
        if is_python and arguments[2] == f"mpidec.{command}" and b"MPIDEC_RESTART=" in environ:
            found.append(pid)
    return found


def undisturbed(command: str, folder: Path) -> tuple[dict[str, np.ndarray], float]:
    """Return what an undisturbed process gives, and the seconds it takes."""
    began = time.monotonic()
    folder.mkdir()
    # The sums of a training depend on its ranks, in the last bits.
    done = launch.mpirun(4 if command == "train" else 0, words(command)[1:], 600, cwd=folder)
    assert done.returncode in (0, 4), done
    return contents(folder), time.monotonic() - began


def case(
    command: str, n: int, moments: list[float], how: str, folder: Path, rng: random.Random
) -> tuple[int, str, int]:
    """Run a case on `n` ranks; return the supervisor's status, its lines, and the number of deaths."""
    folder.mkdir()
    (folder / "custom").mkdir()
    (folder / "custom" / "sitecustomize.py").write_text(CUSTOM)
    env = {"MPIDEC_TIMEOUT": "8"}
    # Without --silent, ranks wait for ever in MPI_Init for one that has ended before it.
    silent = ["--silent", f"{launch.patient(60):g}"] if how == "exit" else []
    restart = [sys.executable, "-m", "mpidec.restart", "--times", "9", *silent, "--"]
    env["PYTHONPATH"] = os.pathsep.join([str(folder / "custom"), str(launch.ROOT)])
    log = open(folder / "log.txt", "w+")
    line = [*restart, *launch.mpirun_command(n), *words(command)]
    process = launch.start(line, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    deaths, began = 0, time.monotonic()
    try:
        for moment in moments:
            launch.until(lambda: ranks_of(process.pid, command) or process.poll() is not None, 60)
            time.sleep(moment)
            if process.poll() is None and (ranks := ranks_of(process.pid, command)):
                victim = rng.choice(ranks)
                # before Python has set the handler, SIGUSR2 kills
                launch.signalled([victim], signal.SIGKILL if how == "kill" else signal.SIGUSR2)
                deaths += 1
                launch.until(lambda v=victim: not Path(f"/proc/{v}/cmdline").exists(), 30)
        status = launch.finish(process, 300).returncode
    except subprocess.TimeoutExpired:
        status = -1
    finally:
        launch.end(process)
    log.seek(0)
    print(f"    {time.monotonic() - began:.1f} s", end="")
    return status, log.read(), deaths


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=JOBS)
    parser.add_argument("--cases", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--how", choices=("kill", "exit"), default="kill")
    args = parser.parse_args()
    rng, right, disturbed = random.Random(args.seed), 0, 0
    with tempfile.TemporaryDirectory() as place:
        expected, seconds = undisturbed(args.command, Path(place, "expected"))
        for number in range(args.cases):
            n = rng.randint(1, 8) if args.command != "train" else 4
            moments = [
                rng.uniform(0, 0.8 * seconds * (1 + n / 8)) for _ in range(rng.randint(1, 2))
            ]
            folder = Path(place, str(number))
            status, log, deaths = case(args.command, n, moments, args.how, folder, rng)
            wrong = differences(expected, contents(folder))
            ok = status in (0, 4) and not wrong
            disturbed += deaths > 0
            right += ok
            shown = " ".join(f"{moment:.1f}" for moment in moments)
            print(
                f" case {number}: n {n}, moments {shown}, deaths {deaths}, status {status}: "
                f"{'right' if ok else f'WRONG {wrong[:5]}'}",
                flush=True,
            )
            if not ok:
                print(log, flush=True)
    print(f"{args.command}, {args.how}: {right} of {args.cases} right, {disturbed} with deaths")
    return right < args.cases


if __name__ == "__main__":
    sys.exit(main())
