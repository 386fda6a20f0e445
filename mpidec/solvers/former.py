"""User-defined solvers that declare their requirements by the class attributes of version 0.1."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from ..protocols import Functions

NEEDS = ("kinds", "positive", "samples", "least_delta", "graph", "per_edge")
USES = {"gradient": ("grad",), "prox": ("argmin",), "functions": ("grad", "value"), "nothing": ()}


def _proximal(solver: Any, F: Functions, s: Any) -> np.ndarray:
    """Return the proximal points of the functions at `point(s)`, as `uses = "prox"` requested."""
    V = solver.point(s)
    return F.argmin(V, solver.step_size * np.ones((len(V), 1)))


ASK = {
    "gradient": lambda solver, F, s: F.grad(solver.point(s)),
    "prox": _proximal,
    "functions": lambda solver, F, s: F,
    "nothing": lambda solver, F, s: None,
}


def adapt(cls: type[Any]) -> None:
    """Give a class `needs` and `ask` for the attributes of version 0.1 that it declares, and warn
    of them.

    Raises
    ------
    ValueError
        If `uses` is an unknown word.
    """
    names = (*NEEDS, "edgewise", "uses", "composite", "implicit")
    given = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    if not given:
        return
    changes: dict[str, Any] = {name: given[name] for name in NEEDS if name in given}
    if "edgewise" in given:
        changes["exchange"] = given["edgewise"]
    if {"uses", "composite", "implicit"} & set(given):
        uses = given.get("uses", "functions")
        if uses not in USES:
            raise ValueError(f"{cls.__name__}: uses is {uses!r}, expected one of {', '.join(USES)}")
        more = ("prox",) * bool(given.get("composite")) + ("argmin",) * bool(given.get("implicit"))
        changes["functions"] = (*USES[uses], *more)
        cls.ask = ASK[uses]
    cls.needs = dataclasses.replace(cls.needs, **changes)
    text = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    warnings.warn(
        f"{cls.__name__} declares {', '.join(given)}, as solvers of version 0.1 do: declare needs "
        f"= Needs({text})"
        f"{' and a method ask(self, F, s)' if 'functions' in changes else ''} "
        "(mpidec.solvers.Needs)",
        FutureWarning,
        stacklevel=4,
    )
