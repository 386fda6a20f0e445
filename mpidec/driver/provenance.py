"""Root attributes of run files: what was run, on which data, by which code, and where."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import registry as catalogue
from .._sparse import SparseSamples, numbers_of
from .._version import __version__
from .._words import settings as fields_of
from ..comm.runtime import library
from ..plugins import source
from ..problems import LinearModel
from ..protocols import Reductions
from ..record import Record
from ..record.internals import MODEL, file_hashes
from ..solvers import Solver
from .stepsize import Choice

if TYPE_CHECKING:
    from ..problems import Problem
    from ..topology import Schedule, Topology

PACKAGES = ("numpy", "scipy", "h5py", "mpi4py")
LONGEST = 10_000  # characters of a command line
PATIENCE = 1.0  # seconds that git may take


def attributes(
    net: Reductions,
    record: Record,
    solver: Solver,
    topology: Topology | Schedule,
    steps: int,
    every: float,
    seed: int,
    choice: Choice | None = None,
    function: str = "solve",
    problem: Problem | None = None,
) -> dict[str, Any]:
    """Return the root attributes of the file of a run that `mpidec.solve`, or another `function`,
    makes; collective.

    Rank 0, which writes the file, has all of them.
    """
    config = record.config(solver) if callable(record.config) else record.config
    described = (
        f"# from mpidec.{function}: {solver!r} over {topology!r}, {steps} steps, every {every}\n"
    )
    data = data_hash(net, problem)
    found = {
        "mpidec": __version__,
        "config": config or described,
        "seed": seed,
        "agents": net.n,
        "ranks": net.size,
        "mpi": library(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **({} if config else {"settings": json.dumps(settings(solver, topology))}),
        **({} if choice is None else {"step_size": choice.step_size}),
        **({"weights": choice.weights} if choice is not None and choice.weights else {}),
    }
    if isinstance(problem, LinearModel) and problem.given.notes:
        found["notes"] = "\n".join(problem.given.notes)
    if isinstance(problem, LinearModel):
        found[MODEL] = problem.predictor.stored()
    if net.rank:
        return found
    sources = record.sources
    # A Python program: components that were loaded from files by name.
    if sources is None:
        loaded = {"solver.name": source(solver), "problem.name": source(problem)}
        sources = {key: path for key, path in loaded.items() if path}
    files = file_hashes(sources)
    return {**found, **data, **({"files": json.dumps(files)} if files else {}), **provenance()}


def settings(solver: Solver, topology: Topology | Schedule) -> dict[str, Any]:
    """Return the solver and the graph of a run under the keys of an experiment; numbers and texts,
    or what stands for other values.

    Examples
    --------
    >>> import mpidec
    >>> settings(mpidec.solvers.EXTRA(0.1), mpidec.topology.ring(4))
    {'solver.name': 'extra', 'solver.step_size': 0.1, 'topology.name': 'ring', 'run.agents': 4}
    """
    kind = type(solver)
    name = next(
        (name for name, known in catalogue.SOLVERS.own.items() if known is kind), kind.__name__
    )
    return {
        "solver.name": name,
        **{f"solver.{key}": _plain(value) for key, value in fields_of(solver).items()},
        "topology.name": topology.name,
        "run.agents": topology.n,
    }


def _plain(value: object) -> bool | int | float | str | None:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return (
        value.item()
        if isinstance(value, np.generic)
        else getattr(value, "__name__", f"{value!r:.200}")
    )


def data_hash(net: Reductions, problem: Problem | None) -> dict[str, Any]:
    """Hash of the samples of all agents, and their number; collective, on rank 0; empty for a
    problem without arrays A and y.

    Each agent's samples are hashed where they are, so that the hash does not depend on the number
    of ranks.
    """
    A, y, mask = (getattr(problem, name, None) for name in ("A", "y", "mask"))
    # Of each agent: two words of its hash, number of samples.
    mine = np.zeros((net.m, 3), np.uint64)
    arrays = [
        array
        for array in (A, y)
        if isinstance(array, (np.ndarray, SparseSamples)) and array.ndim > 1 and len(array) == net.m
    ]
    if len(arrays) == 2:
        for agent in range(net.m):
            parts = [
                array[agent] if mask is None else array[agent][mask[agent]] for array in arrays
            ]
            numbers = chain(*map(numbers_of, parts))
            mine[agent] = *agent_hash(net.lo + agent, numbers), len(parts[1])
    *digest, samples = net.sum(mine)
    if net.rank or not samples:
        return {}
    return {"data_hash": np.array(digest).tobytes().hex(), "data_samples": int(samples)}


def agent_hash(agent: int, arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Hash of arrays of an agent, two words; those of all agents together have their sum."""
    digest = hashlib.blake2b(digest_size=16, salt=agent.to_bytes(8, "little"))
    for array in map(np.ascontiguousarray, arrays):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.data)
    return np.frombuffer(digest.digest(), np.uint64)


def provenance() -> dict[str, str]:
    """Command line, host, versions, and commit of the working folder (if it has one), of this
    process.

    Examples
    --------
    >>> sorted(set(provenance()) - {"git"})
    ['command', 'host', 'versions']
    """
    found = {
        "command": shlex.join(sys.orig_argv)[:LONGEST],
        "host": platform.node(),
        "versions": _versions(),
        "git": _commit(),
    }
    return {
        name: text.encode("utf-8", "backslashreplace").decode()
        for name, text in found.items()
        if text
    }


def _versions() -> str:
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *(("torch",) if "torch" in sys.modules else ())):
        try:
            found[name] = str(
                getattr(sys.modules.get(name), "__version__", None) or metadata.version(name)
            )
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _commit() -> str:
    """Commit of the working folder, with the ending "-dirty" if tracked files differ from it;
    empty if there is none.
    """
    try:
        folder = Path.cwd()
        if not any((place / ".git").exists() for place in (folder, *folder.parents)):
            return ""
        command = [
            "git",
            "-c",
            "core.fsmonitor=false",
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ]
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
