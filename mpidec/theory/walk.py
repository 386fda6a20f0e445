"""Steps towards a moving minimizer: a random walk appended to the state of the solver."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

import numpy as np

from ..comm.mixing import Mixer
from ..solvers import Solver
from ..solvers.internals import name_of
from .linear import Array, Step
from .links import LinkedSteps


class WalkingSteps(LinkedSteps):
    r"""The steps of a solver on costs :math:`f_i(x - w^k)`, with :math:`w^{k+1} = w^k + q^k`.

    The packed state is that of `Steps` with w below; iterates are observed, and gradients taken,
    relative to w.

    Parameters
    ----------
    solver, W, H, link_noise : see `LinkedSteps`
    walk : array (d, d)
        Covariance of the q^k.
    """

    def __init__(self, solver: Solver, W: Mixer, H: Array, walk: Array, link_noise: float = 0.0):
        super().__init__(solver, W, H, link_noise)
        if self.weighted:
            raise ValueError(
                f"theory: {name_of(solver)} sends weights, whose noise goes with the minimizer, "
                "expected either walk or link_noise"
            )
        self.walk = walk

    @cached_property
    def _below(self) -> Array:
        return -np.tile(np.eye(self.d), (self.n, 1))

    def _beside(self, step: Step) -> Step:
        from scipy.linalg import block_diag

        n, d, N = self.n, self.d, self.size
        M = block_diag(step.M, np.eye(d))
        M[:N, N:] = step.E @ self.H.reshape(n * d, d)
        links = np.zeros_like(M)
        links[:N, :N] = step.links
        return Step(M, block_diag(step.E, np.eye(d)), links)

    def maps(self) -> Iterator[Step]:
        return map(self._beside, super().maps())

    @cached_property
    def cycle(self) -> list[Step]:
        return list(islice(self.maps(), self.length))

    def state(self, X: Array, B: Array, steps: int | None = None) -> Array:
        z = super().state(X, B, steps)
        return np.vstack([z, np.zeros((self.d, z.shape[1]))])

    def asked(self) -> Array:
        return np.hstack([super().asked(), self._below])

    def observe(self) -> Array:
        return np.hstack([super().observe(), self._below])
