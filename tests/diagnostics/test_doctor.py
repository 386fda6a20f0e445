"""python -m mpidec.doctor: it passes where everything works, and finds defects without hanging."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from mpidec.diagnostics import doctor, host as _machine, selftest as selftest

pytestmark = pytest.mark.launch
BROKEN = """
import sys, time
from mpidec.diagnostics import doctor
from mpidec.diagnostics import selftest

def wrong(comm):
    selftest.same(comm.rank, min(comm.rank, 1))

def hangs(comm):
    if comm.rank == 1:
        time.sleep(60)
    comm.Barrier()

doctor.FACTS, selftest.TESTS = {}, {"wrong": wrong, "hangs": hangs}
sys.exit(doctor.main(["--timeout=1.5"]))
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lines(text: str) -> dict[str, str]:
    """Return the findings: name -> status."""
    found = re.findall(r"^(ok|warn|FAIL)\s+(\S.*?)(?:  |$)", text, re.MULTILINE)
    return {name.strip(): status for status, name in found}


def ranks(*places) -> SimpleNamespace:
    """Return what looks like a communicator whose ranks have gathered `places`."""
    return SimpleNamespace(allgather=lambda _: list(places), size=len(places), rank=0)


def test_all_is_well_in_one_process(capsys):
    assert doctor.main([]) == 0
    found = lines(capsys.readouterr().out)
    assert {
        "launcher",
        *doctor.FACTS,
        *selftest.TESTS,
    } <= found.keys() and "FAIL" not in found.values()


def test_all_is_well_on_three_ranks(mpirun, tmp_path):
    done = mpirun(3, ["-m", "mpidec.doctor"], cwd=tmp_path, check=True)
    found = lines(done.stdout)
    assert {
        "launcher",
        *doctor.FACTS,
        *selftest.TESTS,
        *(f"W(X), {name}" for name in doctor.TRANSPORTS),
    } <= found.keys()
    assert "FAIL" not in found.values()
    assert len(re.findall(r"^ok +launcher ", done.stdout, re.MULTILINE)) == 1
    assert re.search(r"^ +2: 0 \w+, 1 \w+$", done.stdout, re.MULTILINE), (
        "which way the rows of each pair take"
    )
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_one_node_or_several(mpirun, tmp_path):
    done = mpirun(
        3, ["-m", "mpidec.doctor"], env={"MPIDEC_RANKS_PER_NODE": "1"}, cwd=tmp_path, check=True
    )
    assert re.search(r"^ +2: 0 p2p, 1 p2p$", done.stdout, re.MULTILINE)


def test_what_is_broken_on_one_rank_and_what_hangs(mpirun, tmp_path):
    done = mpirun(3, ["-c", BROKEN], cwd=tmp_path)
    assert done.returncode != 0, (
        "1, or what the launcher makes of it and of the ranks that it killed"
    )
    assert re.search(
        r"^FAIL wrong +rank 2: ValueError: gave \[2\], expected \[1\]$", done.stdout, re.MULTILINE
    )
    assert re.search(
        r"^FAIL hangs +after 1.5 s rank 0 is still in this check$", done.stdout, re.MULTILINE
    )


@pytest.mark.parametrize("name, status", [("Dup", 1), ("shared memory", 0)])
def test_a_broken_self_test_makes_the_exit_status(name, status, monkeypatch, capsys):
    def broken(comm):
        raise MPI.Exception(MPI.ERR_OTHER)

    monkeypatch.setitem(selftest.TESTS, name, broken)
    assert doctor.main([]) == status
    assert lines(capsys.readouterr().out)[name] == ("FAIL" if status else "warn")


def test_a_launcher_of_another_library_is_a_finding(monkeypatch, capsys):
    monkeypatch.delenv("MPIDEC_ALONE", raising=False)
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "0")
    assert doctor.main([]) == 1
    assert "each of them is alone" in capsys.readouterr().out
    monkeypatch.setenv("PMI_RANK", "2")
    assert doctor.main([]) == 1 and not capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_a_finding(monkeypatch, capsys):
    monkeypatch.setattr(
        _machine, "write_test", lambda folder: (_ for _ in ()).throw(OSError("read-only"))
    )
    assert doctor.main([]) == 1
    assert "HDF5_USE_FILE_LOCKING" in capsys.readouterr().out


def test_ranks_and_cores():
    def verdict(*places):
        return doctor.oversubscription(ranks(*places))

    some, none = frozenset({0, 1}), float("inf")
    assert verdict(("a", some, 2, none), ("a", some, 2, none)).status == "ok"
    crowded = verdict(*[("a", some, 2, none)] * 3)
    assert (
        crowded.status == "warn"
        and crowded.text.startswith("3 ranks on 2 cores (a)")
        and "--agents 3" in crowded.text
    )
    bound = verdict(*[("a", frozenset({0}), 8, none)] * 4)
    assert (
        bound.status == "warn"
        and "1 core (a) of 8" in bound.text
        and "--bind-to none" in bound.text
    )
    assert verdict(("a", some, 2, 1.0), ("a", some, 2, 1.0)).text.startswith(
        "2 ranks on 1 core (a)"
    )
    assert verdict(("a", some, 2, none), *[("b", some, 2, none)] * 5).text.startswith(
        "5 ranks on 2 cores (b)"
    )


@pytest.mark.parametrize(
    "files, cores",
    [
        ({}, float("inf")),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "50000 100000"}, 0.5),
        ({"cpu.max": "max 100000"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "300000"}, float("inf")),
        ({"cpu.max": "odd"}, float("inf")),
    ],
)
def test_the_quota_of_a_container(tmp_path, monkeypatch, files, cores):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(_machine, "CGROUPS", tmp_path)
    assert _machine.quota() == cores


FOUR, ALL, NONE = frozenset(range(4)), frozenset(range(8)), float("inf")


@pytest.mark.parametrize(
    "places, said",
    [
        ([("a", FOUR, NONE, 2)] * 4, "2 threads per rank, 8 threads on 4 cores"),
        ([("a", FOUR, NONE, 2)] * 2, ""),
        ([("a", FOUR, NONE, 1)] * 8, ""),  # too many ranks, not too many threads
        ([("a", FOUR, NONE, 4)], ""),
        ([("a", FOUR, 2.0, 2)] * 2, "4 threads on 2 cores"),
        ([("a", ALL - FOUR, NONE, 4), ("a", FOUR, NONE, 4)], ""),  # each on cores of its own
        ([("a", FOUR, NONE, 1), *[("b", FOUR, NONE, 3)] * 2], "3 threads per rank, 6 threads on 4"),
        ([("a", FOUR, NONE, 4), ("b", FOUR, NONE, 4)], ""),
    ],
)
def test_threads_and_cores(places, said):
    found = doctor.blas_threads(ranks(*places))
    assert found.status == ("warn" if said else "ok") and said in found.text
    assert ("OMP_NUM_THREADS=1" in found.text) == bool(said)


@pytest.mark.parametrize(
    "library, status, said",
    [
        ("Open MPI v5.0.8, package: x", "ok", "bfloat16"),
        ("Open MPI v4.1.6, package: x", "warn", "compare-and-swap"),
        ("MPICH Version:      4.0.2", "warn", "spins"),
        ("MPICH Version:      4.3.1", "ok", "none that affects mpidec"),
        ("Open MPI v6.1.0", "ok", "none that affects mpidec"),
    ],
)
def test_known_bugs(monkeypatch, library, status, said):
    monkeypatch.setattr(
        doctor, "MPI", SimpleNamespace(Get_library_version=lambda: library, Intracomm=None)
    )
    found = doctor.known_bugs(MPI.COMM_SELF)
    assert found.status == status and said in found.text


@pytest.mark.parametrize("missing", _machine.COMPILED)
def test_what_is_not_compiled(monkeypatch, missing):
    monkeypatch.setattr(_machine, "uncompiled", lambda: {missing: "no such file"})
    found = doctor.compiled(MPI.COMM_SELF)
    assert found.status == "warn" and f"without {missing} " in found.text
    for elsewhere, remedy in ((False, "install a C compiler"), (True, "its compiled copy")):
        monkeypatch.setattr(doctor, "compiled_copy", lambda there=elsewhere: there)
        monkeypatch.setattr(doctor, "remedy", lambda: "run its compiled copy")
        assert remedy in doctor.compiled(MPI.COMM_SELF).text
    monkeypatch.setattr(_machine, "uncompiled", lambda: {})
    assert doctor.compiled(MPI.COMM_SELF).status == "ok"


@pytest.mark.parametrize(
    "hosts, chosen, way, simulated, compiled, said",
    [
        ("aa", "auto", "p2p", "", True, "the system forbids it"),
        ("aa", "shared", "p2p", "", True, "the system forbids it"),
        ("aa", "auto", "p2p", "", False, "is not compiled"),
        ("aa", "auto", "shared", "", True, ""),
        ("ab", "auto", "p2p", "", True, ""),
        ("aa", "p2p", "p2p", "", True, ""),
        ("aa", "auto", "p2p", "1", True, ""),
    ],
)
def test_ranks_of_a_host_that_exchange_messages(
    monkeypatch, hosts, chosen, way, simulated, compiled, said
):
    monkeypatch.setattr(doctor, "_ways", lambda comm: (chosen, {(0, 1): way, (1, 0): way}))
    monkeypatch.setattr(_machine, "READS_MEMORY", True)
    monkeypatch.delenv("MPIDEC_RANKS_PER_NODE", raising=False)
    if simulated:
        monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", simulated)
    comm = ranks(*hosts)
    comm.allreduce = lambda value, op: compiled
    found = doctor.transports(comm)
    assert found.status == ("warn" if said else "ok") and said in found.text


@pytest.mark.parametrize("free, status", [(2 << 30, "ok"), (1 << 20, "warn")])
def test_the_room_on_the_disk(monkeypatch, free, status):
    monkeypatch.setattr(_machine, "write_test", lambda folder: free)
    assert doctor.folder(MPI.COMM_SELF).status == status


@pytest.mark.parametrize(
    "devices, libraries, aware, status, said",
    [
        (0, [], None, "ok", "no CUDA device"),
        (2, [], True, "warn", "mpidec[cuda]"),
        (1, ["cupy 13"], True, "ok", "MPI accepts device arrays"),
        (1, ["torch 2"], False, "ok", "through host memory"),
        (1, ["torch 2"], None, "warn", "MPIDEC_GPU_MPI=on"),
    ],
)
def test_gpu_verdict(devices, libraries, aware, status, said, monkeypatch):
    monkeypatch.setattr(_machine, "devices", lambda: devices)
    monkeypatch.setattr(_machine, "gpu_libraries", lambda: libraries)
    monkeypatch.setattr(doctor, "detect_cuda", lambda: (aware, "why"))
    found = doctor.gpu(MPI.COMM_SELF)
    assert found.status == status and said in found.text


def test_a_bad_choice_for_device_arrays_is_a_finding(monkeypatch, capsys):
    monkeypatch.setenv("MPIDEC_GPU_MPI", "yes")
    report = doctor.HealthReport(MPI.COMM_SELF, 20)
    report.run("GPU", doctor.gpu)
    assert (
        report.worst == "FAIL"
        and "MPIDEC_GPU_MPI is 'yes', expected one of auto, on, off" in capsys.readouterr().out
    )


def test_a_degraded_thread_level(monkeypatch):
    monkeypatch.setattr(doctor.MPI, "Query_thread", lambda: MPI.THREAD_FUNNELED)
    assert doctor.thread_level(MPI.COMM_SELF).status == "warn"
    monkeypatch.setattr(doctor.MPI, "Query_thread", lambda: MPI.THREAD_MULTIPLE)
    assert doctor.thread_level(MPI.COMM_SELF).status == "ok"


def test_different_environments_on_the_ranks(monkeypatch):
    assert doctor.versions(ranks("another")).status == "FAIL"


@pytest.mark.parametrize("argument", ["--timeout=0", "--timeout=soon", "--wrong"])
def test_a_bad_argument_is_said(argument, capsys):
    assert doctor.main([argument]) == 2
    assert capsys.readouterr().err.startswith("mpidec.doctor: error: ")


def test_help_has_examples(capsys):
    assert doctor.main(["-h"]) == 0
    assert "mpirun -n 4 python -m mpidec.doctor" in capsys.readouterr().out


def test_what_the_system_tells_has_its_units(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal:  4000 kB\nMemAvailable:    1500 kB\n",
        "/sys/fs/cgroup/cpu.max": "150000 100000\n",
    }
    monkeypatch.setattr(_machine.Path, "read_text", lambda path: files[str(path)])
    assert _machine.memory() == 1500 * 1024 and _machine.quota() == 1.5
    files["/sys/fs/cgroup/cpu.max"] = "max 100000\n"
    assert _machine.quota() == float("inf")
