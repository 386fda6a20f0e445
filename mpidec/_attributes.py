"""Root attributes of the files of runs."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np

from . import catalogue
from ._version import __version__
from .runtime.launch import library


def attributes(net: Any, record: Any, solver: Any, topology: Any, steps: int, every: float, seed: int, choice: Any = None,
               function: str = "solve") -> dict[str, Any]:
    """The root attributes of the file of a run that `mpidec.solve`, or another `function`, makes."""
    config = record.config(solver) if callable(record.config) else record.config
    described = f"# from mpidec.{function}: {solver!r} over {topology!r}, {steps} steps, every {every}\n"
    return {"mpidec": __version__, "config": config or described, "seed": seed, "agents": net.n, "ranks": net.size,
            "mpi": library(), "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **({} if config else {"settings": json.dumps(settings(solver, topology))}),
            **({} if choice is None else {"step_size": choice.step_size})}


def settings(solver: Any, topology: Any) -> dict[str, Any]:
    """The solver and the graph of a run under the keys of an experiment; numbers and texts, or what stands for other values.

    Examples
    --------
    >>> import mpidec
    >>> settings(mpidec.solvers.EXTRA(0.1), mpidec.topology.ring(4))
    {'solver.name': 'extra', 'solver.step_size': 0.1, 'topology.name': 'ring', 'run.agents': 4}
    """
    kind = type(solver)
    name = next((name for name, known in catalogue.solvers().own.items() if known is kind), kind.__name__)
    values = {field.name: getattr(solver, field.name) for field in fields(solver)} if is_dataclass(solver) else {}
    return {"solver.name": name, **{f"solver.{key}": _plain(value) for key, value in values.items()},
            "topology.name": topology.name, "run.agents": topology.n}


def _plain(value: Any) -> bool | int | float | str | None:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.item() if isinstance(value, np.generic) else getattr(value, "__name__", f"{value!r:.200}")
