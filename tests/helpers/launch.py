"""Real launches: a program under the environment's own mpirun, for tests and for the Makefile.

    python tests/helpers/launch.py -n 3 --timeout 120 -m pytest -q         (what follows goes to this Python)

The mpirun is the one beside this Python (or the first on PATH), variables of an outer launcher are removed from the
environment, Open MPI gets the settings of .ci/openmpi.env, and no process survives a time-out.  All time-outs are multiplied by
MPIDEC_TEST_PATIENCE (default: 1), and by the load of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = float(os.environ.get("MPIDEC_TEST_PATIENCE", "1"))
LAUNCHER = (
    "PMI",
    "PMIX_",
    "OMPI_",
    "PRTE_",
    "OPAL_",
    "HYDRA",
    "HYDI_",
    "MPI_LOCAL",
    "MPIR_RANK",
    "MPIDEC_HIDDEN_RANK",
    "PYTEST_",
    "PYTHONDONTWRITEBYTECODE",  # a program would compile the package again
)


def load() -> float:
    """Return how many processes want each core, as far as this stretches time-outs: 1 on an idle machine, 8 at most."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), 8.0)


def patient(seconds: float) -> float:
    """Return `seconds` times PATIENCE and the load of now: a time-out that goes to none of :func:`until`, :func:`finish` and
    :func:`mpirun`.
    """
    return seconds * PATIENCE * load()


def until(done: Callable[[], object], seconds: float) -> bool:
    """Wait until `done()` is true, and return whether it is so within :func:`patient` `seconds`."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > patient(seconds):
            return False
        time.sleep(0.01)
    return True


def knobs() -> dict[str, str]:
    """Return the settings of ``.ci/openmpi.env``."""
    lines = (ROOT / ".ci" / "openmpi.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return this environment without an outer launch, with this Python's folder and the repository in front."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER)}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), str(ROOT / "tests"), env.get("PYTHONPATH")])
    )
    env["PYTHONUNBUFFERED"] = "1"
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env.setdefault(threads, "1")
    if not sys.stdout.isatty():
        env["PY_COLORS"] = "0"  # Open MPI gives ranks a terminal even where we have none
    return {**env, **knobs(), **(extra or {})}


def mpirun_command(n: int) -> list[str]:
    """Return the command that starts `n` ranks of what follows it."""
    path = shutil.which("mpirun", path=environment()["PATH"])
    if path is None:
        raise FileNotFoundError("no mpirun beside this Python or on PATH: pip install mpich")
    return [path, "-n", str(n)]


def family(leader: int) -> list[int]:
    """Return `leader` and all that descends from it: children of children, and the session that it leads."""
    parents, found = {}, [leader]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, parent, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            parents[int(stat.parent.name)] = leader if int(session) == leader else int(parent)
    for pid in found:  # grows meanwhile
        found += [
            child for child, parent in parents.items() if parent == pid and child not in found
        ]
    return found


def signalled(pids: list[int], sig: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)


def end(process: subprocess.Popen) -> None:
    """End `process` and everything it started: the launcher is asked first, so that it can clean up, then all are made to."""
    everybody = family(process.pid)
    signalled([process.pid], signal.SIGTERM)
    deadline = time.monotonic() + patient(2)
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    signalled(list(dict.fromkeys([*everybody, *family(process.pid)])), signal.SIGKILL)


def start(command: list[str], **options) -> subprocess.Popen:
    """Start `command` in a session of its own, in the environment of :func:`environment`."""
    options["env"] = environment(options.get("env"))
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def finish(process: subprocess.Popen, timeout: float) -> subprocess.CompletedProcess:
    """Wait for `process` and return what it said; end it all when :func:`patient` `timeout` seconds have passed."""
    began = time.monotonic()
    while True:
        passed = time.monotonic() - began
        try:
            out, err = process.communicate(timeout=max(patient(timeout) - passed, 0))
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)
        except subprocess.TimeoutExpired as error:
            passed = time.monotonic() - began
            if passed < patient(timeout):  # the load has grown meanwhile
                continue
            end(process)
            out, err = process.communicate()
            raise subprocess.TimeoutExpired(error.cmd, passed, out, err) from None
        except BaseException:
            end(process)
            raise


def mpirun(
    n: int,
    args: list,
    timeout: float = 60,
    *,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess:
    """Run ``python *args`` on `n` ranks (plainly, without a launcher, if ``n == 0``).

    Parameters
    ----------
    n : ranks; 0 runs one process with no launcher at all.
    args : what follows ``python``: ``["-m", "mpidec.run"]``, ``["-c", "..."]`` or a script and its arguments.
    timeout : seconds, times PATIENCE and the load; past them every process of the launch is ended and
        :class:`subprocess.TimeoutExpired` raised.
    env : settings on top of the scrubbed environment.
    cwd : the working directory.
    check : raise :class:`AssertionError` with all output if the exit status is not 0.

    Returns
    -------
    subprocess.CompletedProcess, with ``returncode``, ``stdout`` and ``stderr`` (text).
    """
    command = [*(mpirun_command(n) if n else []), sys.executable, *map(str, args)]
    process = start(
        command, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    done = finish(process, timeout)
    if check and done.returncode:
        raise AssertionError(
            f"exit status {done.returncode} of {' '.join(command)}\n{done.stdout}\n{done.stderr}"
        )
    return done


def main() -> int:
    """Run what the command line says, its output passed on; exit status 124 after a time-out, as timeout(1) does."""
    args, n, timeout = sys.argv[1:], 1, 600.0
    while args and args[0] in ("-n", "--timeout"):
        n, timeout = (int(args[1]), timeout) if args[0] == "-n" else (n, float(args[1]))
        args = args[2:]
    command = [*mpirun_command(n), sys.executable, *args]
    print("$", " ".join(command), flush=True)
    try:
        return finish(start(command), timeout).returncode
    except subprocess.TimeoutExpired:
        print(f"ended after {patient(timeout):g} s: {' '.join(command)}", file=sys.stderr)
        return 124


if __name__ == "__main__":
    sys.exit(main())
