"""Quadratic costs of the agents, and steps on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._complex import squares
from ..comm.mixing import Mixer
from ..protocols import Motion, Sample
from ..solvers import Solver
from ..solvers.internals import after


class QuadraticCosts:
    r"""Costs :math:`f_i(x) = \tfrac{h_i}{2} \|x - c_i\|^2`, as solvers ask them.

    Parameters
    ----------
    h : array (n, 1)
    c : array (n, d)

    Examples
    --------
    >>> QuadraticCosts(np.array([[1.0], [3.0]]), np.array([[4.0], [0.0]])).minimizer
    array([1.])
    """

    def __init__(self, h: np.ndarray, c: np.ndarray):
        self.h, self.c = h, c

    @property
    def minimizer(self) -> np.ndarray:
        """The minimizer of the sum, shape `(d,)`."""
        x: np.ndarray = (self.h * self.c).sum(axis=0) / self.h.sum()
        return x

    def grad(self, X: np.ndarray) -> np.ndarray:
        """The gradients at the rows of X."""
        G: np.ndarray = self.h * (X - self.c)
        return G

    def at(self, k: int) -> QuadraticCosts:
        """The same at each step."""
        return self

    def value(self, X: np.ndarray) -> np.ndarray:
        """The values at the rows of X."""
        f: np.ndarray = (self.h / 2 * squares(X - self.c)).sum(axis=1)
        return f

    def prox(self, V: np.ndarray, t: object) -> np.ndarray:
        """V, since there is no term."""
        return V

    def argmin(self, V: np.ndarray, t: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """The proximal points of the functions, with a parameter for each agent."""
        P: np.ndarray = (V + t * self.h * self.c) / (1 + t * self.h)
        return P

    def sample(self, X: np.ndarray) -> Sample:
        """Samples with the functions as their squares, without noise."""
        root, eye = np.sqrt(self.h), np.eye(self.c.shape[1], dtype=self.c.dtype)
        return Sample(root[:, :, None] * eye, root * self.c, np.tile(eye, (len(self.c), 1, 1)))

    def motion(self) -> Motion:
        """None: the minimizer stays."""
        eye = np.eye(self.c.shape[1])
        return Motion(eye, 0 * eye)


class ConstantGradients(QuadraticCosts):
    """Functions whose gradients are the rows of `G`, everywhere."""

    def __init__(self, G: np.ndarray):
        super().__init__(0 * G[:, :1], G)

    def grad(self, X: np.ndarray) -> np.ndarray:
        """The rows of G."""
        return +self.c


def run(solver: Solver, W: Mixer, costs: QuadraticCosts, s: Any, steps: int, first: int = 0) -> Any:
    """The state after `steps` steps from the state `s` of step `first`."""
    return after(solver, costs, W, s, steps, first)
