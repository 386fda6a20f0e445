"""A solver with proximal steps; the package has none."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpidec.solvers import Needs, Solver


@dataclass(frozen=True)
class PEXTRA(Solver):
    """A method with proximal steps."""

    step_size: Any = "auto"
    needs = Needs(functions=("argmin",))

    class State(NamedTuple):
        X: np.ndarray
        WX: np.ndarray
        D: np.ndarray

    def init(self, X, W):
        return self.State(X, W(X), np.zeros_like(X))

    def ask(self, F, s):
        V = s.WX - s.D
        return F.argmin(V, self.step_size * np.ones((len(V), 1)))

    def step(self, s, X, W):
        return self.State(X, W.next(X), s.D + (s.X - s.WX) / 2)
