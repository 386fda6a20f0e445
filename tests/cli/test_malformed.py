"""Whatever is handed in: one clear message, exit status 2 on all ranks, no traceback, no hang."""

from __future__ import annotations

import collections
import json

import pytest
from helpers import launch
from mpi4py import MPI
from programs import malformed

pytestmark = pytest.mark.serial
CASES = malformed.cases()


def test_there_are_enough_of_every_kind():
    count = collections.Counter(case.kind for case in CASES)
    assert len(CASES) >= 200 and min(count.values()) >= 10 and len(count) == 6, count


def test_refused_in_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for case in CASES:
        malformed.prepare(case, tmp_path)
        if said := malformed.complaint(case, [malformed.outcome(case, MPI.COMM_WORLD)]):
            wrong.append(f"{case}: {said}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.launch
def test_refused_on_three_ranks(tmp_path):
    done = launch.mpirun(3, [malformed.__file__, str(tmp_path)], timeout=110)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    wrong = [line for line in lines if line[0] == "wrong"]
    assert not wrong, "\n".join(map(str, wrong))
    assert done.returncode == 0 and lines[-1] == ["done", len(CASES)], (
        f"ended after {lines[-1:]}: {done.stderr[-3000:]}"
    )


BY_LAUNCH = [
    case
    for case in CASES
    if case.call is None and not any("\0" in word or "\udcff" in word for word in case.argv)
]


@pytest.mark.launch
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.kind}-{k}", marks=[pytest.mark.slow] if k >= 2 else [])
        for k, case in enumerate(BY_LAUNCH[::5])
    ],
)
def test_refused_by_a_launch_of_its_own(case, tmp_path):
    malformed.prepare(case, tmp_path)
    done = launch.mpirun(2, ["-m", "mpidec.run", *case.argv], timeout=60, cwd=tmp_path)
    said = [line for line in done.stderr.splitlines() if "mpidec.run: error: " in line]
    assert done.returncode == 2 and len(said) == 1 and "Traceback" not in done.stderr, done
