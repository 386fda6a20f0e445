"""Wrong use on one rank: an error that names both sides, or a report of which rank waits for which; never a wrong number."""

import json
import re
import subprocess

import pytest
from helpers import launch

pytestmark = pytest.mark.launch
PROGRAM = launch.ROOT / "tests" / "programs" / "misuse.py"
MIXING = [
    "columns",
    "shape",
    "scalars",
    "none",
    "dtype",
    "same_bytes",
    "half",
    "complex",
    "complex_columns",
    "topology",
    "step",
    "list",
    "exchange",
    "order",
    "mean",
    "gather",
    "agree",
    "barrier",
    "allreduce",
    "neighbor_allreduce",
    "mixer",
    "close",
    "mean_dtype",
    "mean_columns",
    "gather_dtype",
    "more",
    "less",
    "agents",
    "transport",
    "sleep",
    "exit",
    "raise",
    "abort",
]
LOCAL = [
    "rows",
    "dtype",
    "same_bytes",
    "complex",
    "integers",
    "root",
    "mode",
    "call",
    "list",
    "source",
    "stranger",
    "more",
    "less",
    "sleep",
    "exit",
    "raise",
    "abort",
]
TRANSPORTS = ["shared", "neighbor", "p2p"]
REPORT = re.compile(r"\[rank \d+\].*wait(s|ed) .*(rank|neighbours).*")


def ended(case: str, ends: list) -> str:
    """Complaint about the outcome of a case that all ranks survived; empty if there is none."""
    errors = [
        (rank, *what)
        for rank, (_, _, said) in enumerate(ends)
        for what in said
        if isinstance(what, list)
    ]
    odd, when, _ = ends[0]
    results = [[what if isinstance(what, str) else what[0] for what in said] for _, _, said in ends]
    what = f"{case}: rank {odd} goes wrong in call {when}: {results}"
    if any("wrong" in said or "returned" in said for said in results):
        return f"a result of a call that went wrong: {what}"
    if not errors or (case.startswith("mixing") and len({rank for rank, *_ in errors}) < len(ends)):
        return f"not all were told: {what}"
    for rank, kind, text in errors:
        both = (
            len(set(re.findall(r"rank (\d+)", text))) > 1
            or rank == odd
            or f"rank {odd} gave up" in text
            or ":agents:" in case
        )
        if kind not in ("ValueError", "RankMismatchError", "RuntimeError", "TypeError") or not both:
            return f"rank {rank} is told {kind}: {text!r}, expected both sides' names: {what}"
    return ""


def aborted(case: str, status: int, err: str) -> str:
    """Complaint about a launch that a case ended; empty if there is none."""
    kind = case.split(":")[1]
    if status == 0:
        return f"{case}: exit status 0 without an end"
    if kind == "abort":
        return ""
    if kind == "raise":
        return "" if "Wrong: this rank fails" in err else f"{case}: the error is not shown: {err}"
    report = REPORT.search(err)
    return (
        ""
        if report
        and re.search(
            r"W\(X\)|call \d+|exchange|mean|gather|agree|barrier|mixer|close|Network", report[0]
        )
        else f"{case}: exit status {status} without a report of which rank waits for which in which call:\n{err[:1500]}"
    )


def commit(mpirun, n: int, transport: str, cases: list[str]) -> None:
    """Commit all cases, in as many launches as they take."""
    complaints, left = [], list(cases)
    while left:
        try:
            done = mpirun(
                n, [PROGRAM, transport, *left], timeout=20 + len(left), env={"MPIDEC_TIMEOUT": "1"}
            )
            out, err, status = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            out, err, status = (late.stdout or "", late.stderr or "", None)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith('["')]
        ends = {case: ends for what, case, *ends in lines if what == "ends"}
        complaints += [ended(case, *ends[case]) for case in ends]
        left = left[len(ends) :]
        if left:  # the first of these did not come to an end
            case = left.pop(0)
            complaints.append(
                f"{case}: hangs\n{err[:1500]}" if status is None else aborted(case, status, err)
            )
        elif status != 0:
            complaints.append(f"exit status {status} after all cases\n{err[:1500]}")
    wrong = [line for line in complaints if line]
    assert not wrong, (
        f"{len(wrong)} of {len(cases)} cases with {n} ranks over {transport}:\n" + "\n".join(wrong)
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_some_wrong_uses(mpirun, transport):
    mixing = ["columns", "dtype", "topology", "step"]
    local = ["rows", "dtype", "root", "mode", "list", "source"]
    commit(
        mpirun,
        3,
        transport,
        [*(f"mixing:{kind}:1" for kind in mixing), *(f"local:{kind}:1" for kind in local)],
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("where, kinds", [("mixing", MIXING), ("local", LOCAL)])
def test_wrong_uses(mpirun, where, kinds, transport, seed):
    commit(mpirun, 2 + seed % 3, transport, [f"{where}:{kind}:{seed}" for kind in kinds])
