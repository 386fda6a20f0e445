"""Root attributes of the files of runs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from ._version import __version__
from .runtime.launch import library


def attributes(net: Any, record: Any, solver: Any, topology: Any, steps: int, every: float, seed: int, choice: Any = None,
               function: str = "solve") -> dict[str, Any]:
    """The root attributes of the file of a run that `mpidec.solve`, or another `function`, makes."""
    config = record.config(solver) if callable(record.config) else record.config
    described = f"# from mpidec.{function}: {solver!r} over {topology!r}, {steps} steps, every {every}\n"
    return {"mpidec": __version__, "config": config or described, "seed": seed, "agents": net.n, "ranks": net.size,
            "mpi": library(), "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **({} if choice is None else {"step_size": choice.step_size})}
