"""One test tree for one process and for any number of ranks.

    pytest                                       one process: everything, real launches included
    mpirun -n 3 python -m pytest                 the tests that make sense on several ranks, the same on every rank
    pytest --cover                               of the parameter sets of a test only as many as show each value once
    pytest --cover --most 6                      at most 6 of these

Under several ranks only rank 0 reports.  A test that fails on any rank says so, tagged with the rank, and aborts the
job: the other ranks may be waiting for this one in a collective.

No test asserts how fast this machine is; time-outs only end what hangs.  On a machine that is much busier or slower than usual,
MPIDEC_TEST_PATIENCE=4 (default: 1) multiplies all of them, as the load does: those of the programs that tests start, of pytest, and
of the Makefile.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections import Counter, defaultdict
from functools import cache
from itertools import count
from pathlib import Path

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # before NumPy: threads that spin are slow where others use the cores

import pytest
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent))  # so that tests can import `helpers`

from helpers import launch

# Of Hypothesis, which would take the folder in which pytest is started.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(launch.ROOT / ".hypothesis"))

WORLD = MPI.COMM_WORLD
PARALLEL = WORLD.size > 1
NOT_RUN = pytest.StashKey[Counter]()


@cache
def has_gpu() -> bool:
    from mpidec.diagnostics import host as _machine

    return _machine.devices() > 0


if PARALLEL:  # modules of which no test would run are not even imported
    unused = "serial|launch" if has_gpu() else "serial|launch|gpu"
    collect_ignore = [
        str(path)
        for path in Path(__file__).parent.rglob("test_*.py")
        if re.search(
            rf"^pytestmark = .*\b({unused})\b", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Which tests run


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption(
        "--cover",
        action="store_true",
        help="of the parameter sets of a test run only as many as show each value of each parameter, not all combinations",
    )
    parser.addoption(
        "--most",
        metavar="N",
        type=int,
        default=0,
        help="with --cover: of these at most N of each test, spread over them",
    )


def accept_missing_modules() -> None:
    """Without compiled modules the results are the same: no warning of it here and in programs that tests start."""
    from mpidec.comm.runtime.launch import warn_if_not_compiled
    from mpidec.diagnostics import host

    if host.uncompiled():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_if_not_compiled(False)
        first = [str(each.message).partition(":")[0] for each in caught]
        os.environ.setdefault("PYTHONWARNINGS", ",".join(f"ignore:{text}" for text in first))


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    gc.disable()  # until the tests are collected: what is imported stays
    accept_missing_modules()
    config.option.with_mpi = True  # pytest-mpi: tests marked mpi are decided by their min_size
    if PARALLEL:
        config.pluginmanager.register(Collective(config), "collective")
    if WORLD.rank:
        config.pluginmanager.getplugin("terminalreporter")._tw._file = Path(os.devnull).open("w")


def obstacle(config, item) -> str:
    """Why a test does not run here; empty if it does."""
    needs = item.get_closest_marker("mpi")
    return next(
        (
            why
            for marked, why in [
                (
                    item.get_closest_marker("slow") and not config.getoption("--slow"),
                    "slow (--slow)",
                ),
                (item.get_closest_marker("gpu") and not has_gpu(), "without a CUDA device"),
                (needs and needs.kwargs.get("min_size", 1) > WORLD.size, "for more ranks (mpirun)"),
                (
                    PARALLEL
                    and (item.get_closest_marker("serial") or item.get_closest_marker("launch")),
                    "for one process",
                ),
            ]
            if marked
        ),
        "",
    )


def pytest_ignore_collect(collection_path, config):
    """Do not import a file that lacks the marker of ``-m MARKER``: torch alone takes seconds on each rank."""
    marker = config.option.markexpr
    if marker.isidentifier() and collection_path.name.startswith("test_"):
        return f"mark.{marker}" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(config, items):
    reasons = {item: obstacle(config, item) for item in items}
    left = [item for item in items if not reasons[item]]
    if config.getoption("--cover"):
        left, all_sets = covering(left, config.getoption("--most")), left
        reasons |= dict.fromkeys(
            set(all_sets) - set(left), "other combinations of parameters (without --cover)"
        )
    config.hook.pytest_deselected(items=[item for item in items if reasons[item]])
    config.stash[NOT_RUN] = Counter(filter(None, reasons.values()))
    items[:] = left
    if launch.patient(1) != 1:
        for item in items:
            own = item.get_closest_marker("timeout")
            limit = (
                own.args[0]
                if own and own.args
                else config.getoption("timeout") or config.getini("timeout") or 0
            )
            item.add_marker(pytest.mark.timeout(launch.patient(float(limit))), append=False)
    gc.enable()
    freeze()


def freeze():
    """Leave what is imported by now out of all further searches for garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter, config):
    for reason, number in sorted(config.stash.get(NOT_RUN, {}).items()):
        terminalreporter.write_line(f"not run here: {number} {reason}")


def covering(items, most):
    """The items without those parameter sets that only combine values anew: the sets left show each value (each row of a list).

    Of more than `most` sets of a test (if that is not 0), as many are left, spread evenly over them; a marker `most` of the test
    takes the place of this number.  Which sets are left depends on the order of the parameters alone: the same on all ranks.
    """
    tests = defaultdict(list)
    for item in items:
        tests[getattr(item, "function", item)].append(item)
    kept = set()
    for sets in tests.values():
        values = {
            item: set(enumerate(item.callspec._idlist)) if hasattr(item, "callspec") else {()}
            for item in sets
        }
        missing, chosen = set().union(*values.values()), []
        while missing:
            best = max(sets, key=lambda item: len(values[item] & missing))
            chosen.append(best)
            missing -= values[best]
        own = sets[0].get_closest_marker("most")
        limit = own.args[0] if own and most else most
        if limit and len(chosen) > limit:
            chosen = [chosen[k * len(chosen) // limit] for k in range(limit)]
        kept |= {*chosen}
    return [item for item in items if item in kept]


# ---------------------------------------------------------------------------------------------------------------------
# Failures are collective, and nothing hangs


def uncaptured(config):
    """Return a context in which stdout and stderr are the real ones."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else contextlib.nullcontext()


def abort(config, where: str, what: str) -> None:
    """Say on stderr what failed on this rank and end the job."""
    time.sleep(0.3 * (WORLD.rank > 0))  # where all fail alike, one report will do: rank 0's
    with uncaptured(config):
        print(
            f"\n[rank {WORLD.rank}] {where}\n{what}\n[rank {WORLD.rank}] aborts the job of {WORLD.size} ranks",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(0.2)  # let the launcher pass it on before it kills
        WORLD.Abort(1)


class Collective:
    """The hooks of a run on several ranks."""

    def __init__(self, config):
        self.config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            abort(self.config, f"{report.when} of {report.nodeid} failed", report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report):
        if report.failed:
            abort(self.config, f"collection of {report.nodeid} failed", report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr):
        abort(self.config, "internal error", str(excrepr))

    @pytest.hookimpl(trylast=True)
    def pytest_keyboard_interrupt(self):
        abort(self.config, "interrupted", "")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item, nextitem):
        if nextitem and nextitem.path != item.path:
            freeze()  # what the tests of this file imported: each test ends with a search

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item, settings):
        """On time-out print where this rank is and leave: the launcher ends the others."""

        def expire():
            with uncaptured(self.config):
                print(
                    f"\n[rank {WORLD.rank}] {item.nodeid} still runs after {settings.timeout:g} s",
                    *(value for _, value in item.user_properties),
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(sys.__stderr__)
                time.sleep(0.5)
                os._exit(1)

        timer = threading.Timer(settings.timeout, expire)
        timer.daemon = True
        timer.start()
        item.cancel_timeout = timer.cancel
        return True


# ---------------------------------------------------------------------------------------------------------------------
# Fixtures


@pytest.fixture(scope="session", autouse=True)
def _folders(tmp_path_factory):
    """Leave the folder in which pytest was started: what lies there is no business of the tests, nor what they write of its."""
    base = WORLD.bcast(None if WORLD.rank else tmp_path_factory.mktemp("folders"))
    started = Path.cwd()
    os.chdir(base)
    yield (base / str(number) for number in count())
    os.chdir(started)


@pytest.fixture(autouse=True)
def _own_folder(_folders):
    """Run each test in an empty folder of its own, the same one on all ranks, as those of a job have."""
    folder = next(_folders)
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    yield
    os.chdir(folder.parent)
    with contextlib.suppress(OSError):  # not empty, or removed by another rank
        folder.rmdir()


@pytest.fixture(autouse=True)
def _together():
    """Under several ranks, collect garbage after each test (destructors may be collective) and wait for all ranks.

    A rank that is early sleeps: in MPI's own barrier it would use up time on a core that a late rank needs.
    """
    yield
    if PARALLEL:
        gc.collect()
        barrier = WORLD.Ibarrier()
        while not barrier.Test():
            time.sleep(0.0005)


@pytest.fixture(autouse=True)
def _interruptible():
    """Handle SIGINT as usual during a test, in its child processes too, even if pytest was started to ignore it (nohup, `&`)."""
    former = signal.getsignal(signal.SIGINT)
    if former is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if former is signal.SIG_IGN:
        signal.signal(signal.SIGINT, former)


@pytest.fixture(scope="session")
def comm():
    """Yield a duplicate of the world communicator."""
    duplicate = WORLD.Dup()
    yield duplicate
    duplicate.Free()


@pytest.fixture
def shared_tmp(comm, tmp_path_factory):
    """Return a fresh folder, the same on every rank."""
    return comm.bcast(tmp_path_factory.mktemp("shared") if comm.rank == 0 else None)


@pytest.fixture
def fuzz(comm, monkeypatch, request):
    """Return a function that runs `count` random programs of a kind from seed `first` on, or the one of MPIDEC_FUZZ_SEED."""
    monkeypatch.setenv(
        "MPIDEC_TIMEOUT", "600"
    )  # the test's own limit is shorter, and says which program it was

    def note(line):
        request.node.user_properties[:] = [("case", line)]

    def run(kind, first, count):
        half = comm.Split(comm.rank % 2, comm.rank)
        one = os.environ.get("MPIDEC_FUZZ_SEED")
        for seed in [int(one)] if one else range(first, first + count):
            try:
                kind(seed, half if seed % 10 == 9 else comm, note).run(monkeypatch)
            except Exception as error:
                raise AssertionError(f"{request.node.user_properties[0][1]}: {error}") from error
        half.Free()

    return run


@pytest.fixture(scope="session")
def mpirun():
    """Return :func:`launch.mpirun`, for tests marked ``launch``."""
    return launch.mpirun
