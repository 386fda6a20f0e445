"""Malformed inputs, drawn with a fixed seed, and a program that feeds them to all ranks of one launch.

mpirun -n 3 python tests/programs/malformed.py FOLDER       prints one line of JSON a case that was not refused as it should be
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpidec.plugins import canonical

SEED, COUNT = 20250, 220
SMALL = [
    "--problem=least_squares",
    "--data=synthetic_least_squares",
    "--set=problem.p=4",
    "--set=problem.d=3",
    "--steps=2",
    "--agents=6",
]
INTEGERS = [
    "0",
    "-1",
    "-7",
    "1.5",
    "ten",
    "nan",
    "inf",
    "1e400",
    "",
    " ",
    "[1]",
    "{}",
    "true",
    "9" * 30,
    "0x",
    "1 2",
    "--",
    "٣?",
]
NUMBERS = [
    "-1",
    "-1e-9",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "big",
    "",
    "1,5",
    "[0.1]",
    "true",
    "0.1.2",
    "1e",
]
VALID = """[problem]
name = "least_squares"
data = "synthetic_least_squares"
p = 4
d = 3
l2 = 0.5
[solver]
name = "gradient_tracking"
variant = "atc"
[topology]
name = "ring"
weights = "metropolis"
[run]
agents = 6
steps = 2
"""


class Case(NamedTuple):
    """An input that must be refused: a command line with the files it names, or a call by name with its argument."""

    kind: str
    argv: list[str]
    files: Mapping[str, bytes] = MappingProxyType({})
    call: tuple[str, Any] | None = None


def misspelt(draw: random.Random, names: list[str]) -> str:
    while True:
        name = list(draw.choice(names))
        place = draw.randrange(len(name))
        name[place : place + 1] = draw.choice([[], [name[place]] * 3, ["q"], list("-X")])
        if name and canonical("".join(name), names) is None:
            return "".join(name)


def flags(draw: random.Random) -> Case:
    def bad(flag: str, values: list[str]) -> list[str]:
        return [f"--{flag}={draw.choice(values)}"]

    def setting(key: str, values: list[str]) -> list[str]:
        return ["--set", f"{key}={draw.choice(values)}"]

    argv = draw.choice(
        [
            lambda: bad("agents", [*INTEGERS, "99999999999"]),
            lambda: bad("steps", INTEGERS),
            lambda: bad("every", INTEGERS),
            lambda: bad("seed", [*INTEGERS[1:], str(2**32)]),
            lambda: bad("step-size", NUMBERS),
            lambda: bad("stop-error", ["0", *NUMBERS]),
            lambda: bad(
                "solver",
                [
                    misspelt(draw, ["gradient_tracking", "dgd", "extra", "exact_diffusion"]),
                    "",
                    "DDGD",
                ],
            ),
            lambda: bad(
                "topology", [misspelt(draw, ["exponential", "ring", "star", "grid"]), "", "[ring]"]
            ),
            lambda: bad(
                "problem", [misspelt(draw, ["least_squares", "logistic", "huber"]), "", "3"]
            ),
            lambda: bad(
                "data",
                [
                    misspelt(draw, ["diabetes", "digits"]),
                    "",
                    "nowhere.npz",
                    "nowhere/x.csv",
                    ".",
                    "/",
                ],
            ),
            lambda: bad(
                "out",
                ["", "/", ".", "no/such/folder/run.h5", "a\nb", "x" * 300, "\udcff.h5", "a\0b"],
            ),
            lambda: bad("resume", ["", "nowhere.h5", ".", "/dev/null"]),
            lambda: setting("problem.l2", NUMBERS),
            lambda: setting("problem.alpha", ["0", *NUMBERS]),
            lambda: setting("problem.batch_size", [*INTEGERS, "5", "1000"]),
            lambda: setting("problem.noise", NUMBERS),
            lambda: setting("problem.p", INTEGERS),
            lambda: setting("run.trajectory", ["1", "yes", "True", "", "[]"]),
            lambda: setting("problem.partition", ["random", "", "IID", "0", "dirichlet"]),
            lambda: setting("run.progress", ["loud", "1", ""]),
            lambda: setting("solver.variant", ["act", "1", ""]),
            lambda: setting(
                misspelt(draw, ["solver.name", "run.steps", "problem.l2", "topology.weights"]),
                ["3", "x"],
            ),
            lambda: setting("problem.data", ["[1", "'", "a.b.c"]),
            lambda: [
                "--set",
                draw.choice(
                    ["", "=", "x", "solver", "solver.=1", ".name=x", "a.b.c=1", "solver.name"]
                ),
            ],
            lambda: [f"--{misspelt(draw, ['agents', 'solver', 'steps', 'out'])}", "3"],
            lambda: [
                draw.choice(
                    ["--steps", "--set", "--out", "--resume", "-n", "-x", "--=", "---", "-"]
                )
            ],
            lambda: [
                draw.choice(["nowhere.toml", "x y", "\udcff", "-5"]),
                *draw.choice([[], ["more.toml"]]),
            ],
        ]
    )()
    return Case("flags", [*SMALL, *argv])


def topologies(draw: random.Random) -> Case:
    argv = draw.choice(
        [
            ["--topology=hypercube", f"--agents={draw.choice([3, 5, 6, 7, 9, 12])}"],
            [
                "--topology=ring",
                f"--set=topology.weights={draw.choice(['foo', '', '-0.5', 'nan', '[1]', '1e9'])}",
            ],
            ["--topology=grid", f"--set=topology.{draw.choice(['shap', 'wights', 'm', 'n'])}=3"],
            [
                "--topology=erdos_renyi",
                f"--set=topology.p={draw.choice(['-0.1', '1.5', 'nan', 'x', '0'])}",
            ],
            ["--topology=erdos_renyi", f"--set=topology.seed={draw.choice(['-1', '1.5', 'x'])}"],
            [
                "--topology=geometric",
                f"--set=topology.radius={draw.choice(['-1', '0', 'nan', 'x'])}",
            ],
            ["--topology=small_world", f"--set=topology.k={draw.choice(['-1', '1.5', 'x'])}"],
            ["--topology=ceca", f"--set=topology.ports={draw.choice(['0', '3', '-1', 'two'])}"],
            ["--topology=ceca", "--set=topology.ports=1", "--agents=5"],
            [
                f"--topology={draw.choice(['ring', 'exponential', 'complete', 'torus', 'one_peer_exponential'])}",
                "--solver=relaysgd",
            ],
            [
                f"--topology={draw.choice(['ring', 'star', 'exponential', 'one_peer_exponential'])}",
                "--solver=dsgd_ceca",
            ],
            [
                "--topology=star",
                f"--solver={draw.choice(['gradient_tracking', 'extra', 'exact_diffusion'])}",
                "--set=topology.weights=uniform",
            ],
        ]
    )
    return Case("topology", [*SMALL, *argv])


def experiment_files(draw: random.Random) -> Case:
    lines = VALID.splitlines()
    place = draw.randrange(len(lines))
    key = draw.choice([line for line in lines if "=" in line])
    name = key.partition(" ")[0]
    table = next(lines[i] for i in range(lines.index(key), -1, -1) if lines[i].startswith("["))
    wrong = draw.choice(["[]", "{}", "1979-05-27", "07:32:00", "[[1]]", "{a = 1}", "-inf", "nan"])
    text = draw.choice(
        [
            lambda: VALID.replace(key, f"{name} = {wrong}"),
            lambda: VALID.replace(key, f"{name} ="),
            lambda: VALID.replace(key, f"= {name}"),
            lambda: VALID.replace(key, f"{key}\n{key}"),
            lambda: VALID.replace(key, key.replace(name, f"{name}q")),
            lambda: VALID.replace(table, table.replace("]", "q]")),
            lambda: VALID.replace(table, table[:-1]),
            lambda: f"{table[1:-1]} = 3\n",
            lambda: VALID + f"\n{table}\n",
            lambda: "\n".join(lines[:place]) + '\nx = "open',
            lambda: VALID + f"[{misspelt(draw, ['solver', 'run'])}]\na = 1\n",
            lambda: VALID + "\x00",
            lambda: VALID.replace("agents = 6", "agents = 6.5"),
            lambda: VALID.replace(
                "steps = 2", f"steps = {draw.choice(['0', '-2', 'true', 'two', '1e400', '[2]'])}"
            ),
            lambda: "[" * 5000,
        ]
    )()
    content = draw.choice(
        [
            text.encode(),
            text.encode(),
            text.encode(),
            text.encode()[:40] + b"\xff\xfe" + text.encode()[40:],
        ]
    )
    return Case("toml", ["experiment.toml"], {"experiment.toml": content})


def data_files(draw: random.Random) -> Case:
    def npz(**arrays: Any) -> bytes:
        file = io.BytesIO()
        np.savez(file, **arrays)
        return file.getvalue()

    A, y = np.arange(24.0).reshape(8, 3), np.arange(8.0)
    bad, value = A.copy(), draw.choice([np.nan, np.inf, -np.inf])
    bad[draw.randrange(8), draw.randrange(3)] = value
    csv = "\n".join(",".join(map(str, [*row, t])) for row, t in zip(A, y)) + "\n"
    svm = "\n".join(f"{t} 1:{a} 3:{c}" for t, (a, b, c) in zip(y, A)) + "\n"
    cut = draw.randrange(10, 60)
    name, content = draw.choice(
        [
            lambda: ("x.npz", npz(A=A)),
            lambda: ("x.npz", npz(B=A, y=y)),
            lambda: ("x.npz", npz(A=bad, y=y)),
            lambda: ("x.npz", npz(A=A, y=y[:5])),
            lambda: ("x.npz", npz(A=y, y=y)),
            lambda: ("x.npz", npz(A=A[:0], y=y[:0])),
            lambda: ("x.npz", npz(A=A, y=np.array([{}] * 8))),
            lambda: ("x.npz", npz(A=A.astype(str), y=y)),
            lambda: ("x.npz", npz(A=A + 1j * np.nan, y=y)),
            lambda: ("x.npz", npz(A=A, y=y, b=y)),
            lambda: ("x.npz", npz(A=A, y=y)[:-cut]),
            lambda: ("x.npz", npz(A=A[:3], y=y[:3])),
            lambda: ("x.npz", b""),
            lambda: ("x.npz", b"PK\x03\x04" + b"\0" * cut),
            lambda: ("x.csv", b""),
            lambda: ("x.csv", csv.replace("\n", ",1\n", 1).encode()),
            lambda: ("x.csv", b"a,b,y\n"),
            lambda: ("x.csv", csv.replace("1.0", "one", 1).encode()),
            lambda: ("x.csv", csv.replace("1.0", str(value), 1).encode()),
            lambda: ("x.csv", b"1\n2\n3\n4\n5\n6\n7\n"),
            lambda: ("x.csv", csv.encode("utf-16")),
            lambda: ("x.csv", csv.replace("1.0", "", 1).encode()),
            lambda: ("x.csv", b"1,2\n3,4\n"),
            lambda: ("x.svm", svm.replace("1:", "-1:", 1).encode()),
            lambda: ("x.svm", svm.replace(" 3:", " 1:", 1).encode()),
            lambda: ("x.svm", svm.replace("1:", "1;", 1).encode()),
            lambda: ("x.svm", svm.replace(":", ":x", 1).encode()),
            lambda: ("x.svm", b"+1 999999999999:1\n" * 8),
            lambda: ("x.svm", svm[3:].encode()),
            lambda: ("x.svm", b"\n\n"),
            lambda: ("x.parquet", b"PAR1" + npz(A=A)),
            lambda: ("x", b"some words\nand others\n"),
            lambda: ("x.svm.gz", svm.encode()),
        ]
    )()
    return Case(
        "data",
        [*SMALL[2:], f"--data={name}", "--problem=least_squares", "--set", "problem.l2=1"][2:],
        {name: content},
    )


def labels(draw: random.Random) -> Case:
    y = draw.choice([[0, 1, 2] * 4, [0.5 * k for k in range(12)], [7] * 12])
    problem = draw.choice(["logistic", "logistic", "softmax"]) if len(set(y)) != 3 else "logistic"
    rows = "".join(f"{k},{t}\n" for k, t in enumerate(y))
    return Case(
        "data",
        ["--steps=2", "--agents=4", f"--problem={problem}", "--data=x.csv"],
        {"x.csv": rows.encode()},
    )


def weights(draw: random.Random) -> Case:
    n, value = 6, draw.choice([float("nan"), float("inf"), -0.5, 2.0])
    W = np.full((n, n), 1 / n)
    i, j = draw.randrange(n), draw.randrange(n)
    spoilt = W.copy()
    spoilt[i, j] = value
    matrix = draw.choice(
        [
            spoilt,
            spoilt,
            W[:, :4],
            W[0],
            W[:0, :0],
            W[None],
            W * draw.choice([0.5, 1.1, -1, 0]),
            np.eye(n),
            np.kron(np.eye(2), np.full((3, 3), 1 / 3)),
            W + 1j * W,
            [["a", "b"], ["c", "d"]],
            [[1, 2], [3]],
            None,
            "ring",
            3,
            np.random.default_rng(draw.randrange(99)).random((n, n)),
            W.tolist()[:-1],
            {"W": 1},
        ]
    )
    return Case("weights", [], {}, ("weights", matrix))


def calls(draw: random.Random) -> Case:
    return Case(
        "call",
        [],
        {},
        draw.choice(
            [
                (
                    "x0",
                    draw.choice(
                        [
                            np.zeros(2),
                            np.zeros((5, 3)),
                            np.zeros((6, 3, 1)),
                            np.full(3, np.nan),
                            "zeros",
                            [[1, 2], [3]],
                            np.full((6, 3), np.inf),
                            np.zeros(0),
                            1.0,
                            {"x": 1},
                            np.zeros(3) + 1j,
                        ]
                    ),
                ),
                ("steps", draw.choice([-1, 1.5, "2", float("nan"), True, [3]])),
                ("every", draw.choice([0, -1, 1.5, "1"])),
                ("seed", draw.choice([-1, 1.5, "s", float("inf")])),
                ("step_size", draw.choice([-1.0, float("nan"), "x", None, [1.0]])),
                (
                    "stop",
                    draw.choice(
                        [
                            {"eror": 1.0},
                            {"error": "x"},
                            3,
                            "error",
                            {"consensus": float("nan")},
                            [1],
                        ]
                    ),
                ),
                ("agents", draw.choice([0, -1, 2.5, "6", True])),
                ("topology_of", draw.choice([1, 5, 7, 12])),
                ("rows", draw.choice([1, 5, -1])),
                ("record", draw.choice(["no/such/folder/x.h5", ".", "/"])),
            ]
        ),
    )


def cases(seed: int = SEED, count: int = COUNT) -> list[Case]:
    """Draw `count` different malformed inputs, some of every kind."""
    draw, found = random.Random(seed), []
    kinds = itertools.cycle(
        [
            flags,
            experiment_files,
            topologies,
            data_files,
            weights,
            flags,
            calls,
            data_files,
            labels,
            flags,
        ]
    )
    said = set()
    while len(found) < count:
        case = next(kinds)(draw)
        if repr(case) not in said:
            said.add(repr(case))
            found.append(case)
    return found


def prepare(case: Case, folder: Path) -> None:
    """Write the files that a case names into `folder`."""
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    for name, content in case.files.items():
        (folder / name).write_bytes(content)


def call(name: str, value: Any, comm: Any) -> None:
    """Make the call of a case on every rank: it must raise."""
    import mpidec

    if name == "weights":
        mpidec.topology.from_weights(value)
        return
    with mpidec.Network(value if name == "agents" else 6, comm) as net:
        given = {"steps": 2, "seed": 0, "every": 1, "x0": None, "stop": None, "record": None}
        if name in given:
            given[name] = value
        m = net.m + (value if name == "rows" and net.rank == net.size - 1 else 0)
        problem = mpidec.problems.LeastSquares(np.ones((max(m, 0), 4, 3)), np.ones((max(m, 0), 4)))
        solver = mpidec.solvers.DGD(step_size=value if name == "step_size" else 0.1)
        mpidec.solve(
            problem,
            solver,
            mpidec.topology.ring(value if name == "topology_of" else 6),
            net=net,
            **given,
        )


def outcome(case: Case, comm: Any) -> tuple[Any, str, str]:
    """Return what became of a case on this rank: an exit status or an exception's name, the message, and what else was said."""
    from mpidec.experiment import command as run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if case.call is None:
                return run.main(case.argv, comm), err.getvalue(), out.getvalue()
            call(*case.call, comm)
        except BaseException as error:
            return type(error).__name__, str(error), out.getvalue()
    return 0, "", out.getvalue()


def complaint(case: Case, outcomes: list[tuple[Any, str, str]]) -> str:
    """Return what is wrong with how the ranks ended a case; nothing if it is as it should be."""
    ends, said = [end for end, _, _ in outcomes], [message for _, message, _ in outcomes]
    if case.call is not None:
        if not set(ends) <= {
            "ValueError",
            "TypeError",
            "OSError",
            "FileNotFoundError",
            "IsADirectoryError",
            "PermissionError",
        }:
            return f"ended with {ends}: {said[0]}"
        return (
            ""
            if len(set(said)) == 1 and len(said[0]) > 10
            else f"the ranks do not say the same: {said}"
        )
    if set(ends) != {2}:
        return f"exit status {ends}: {said}"
    lines = said[0].splitlines()
    if (
        len(lines) != 1
        or not lines[0].startswith("mpidec.run: error: ")
        or not 30 < len(lines[0]) < 700
        or any(said[1:])
    ):
        return f"expected one message: {said}"
    return f"printed {outcomes[0][2]!r}" if any(text for _, _, text in outcomes) else ""


def main(folder: Path) -> None:
    """Feed all cases to all ranks, and print on rank 0 what is wrong with how they ended."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    os.chdir(folder)
    for number, case in enumerate(cases()):
        if comm.rank == 0:
            prepare(case, folder)
            print(json.dumps(["begins", number, repr(case)]), flush=True)
        comm.Barrier()
        outcomes = comm.gather(outcome(case, comm))
        if comm.rank == 0 and (wrong := complaint(case, outcomes)):
            print(json.dumps(["wrong", number, repr(case)[:300], wrong]), flush=True)
    if comm.rank == 0:
        print(json.dumps(["done", len(cases())]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
