"""Whole runs of `solve` and `simulate`: fixed cost, steps, records and events, as differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..driver.internals import simulate, solve
from ..problems import Custom
from ..solvers import AsyncPushSum, Diffusion
from .cells import Cell, Contender
from .report import HAND, Group

STEPS, STEP_SIZE = 100, 0.1


class SolveCell(Cell):
    """Diffusion on :math:`f_i(x) = \\tfrac12 \\|x - c_i\\|^2`, against the same steps by hand: a
    gradient in NumPy and W(X).

    The fixed cost of a run is that of one step, a step a hundredth of what 100 steps take longer,
    and a record a hundredth of what they take longer still with a record of each.
    """

    group = Group(
        f"solve: runs of 1 and {STEPS} steps, with and without records, and {STEPS} steps' events",
        ("times_hand",),
    )
    sizes = "80,64K"
    fewest_ranks = 1

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 20 + ranks

    def _contenders(self) -> Iterator[Contender]:
        net, C, d = self._network(), self.x, self.d
        problem = Custom(
            lambda X: ((X - C) ** 2).sum(axis=1) / 2,
            lambda X: X - C,
            m=net.m,
            d=d,
            smoothness=1.0,
            check=False,
        )
        W, solver, topology = net.mixer(self.topology), Diffusion(STEP_SIZE), self.topology

        def run(steps: int, every: int) -> Callable[[], np.ndarray]:
            return lambda: solve(problem, solver, topology, steps=steps, net=net, every=every).X

        def by_hand() -> np.ndarray:
            X = np.zeros_like(C)
            for k in range(STEPS):
                X = W.at(k)(X - STEP_SIZE * (X - C))
            return X

        task, due = f"{STEPS} steps", [self._due(STEPS)]
        yield Contender("solve, 1 step", [run(1, STEPS)], [self._due(1)], task="1 step")
        yield Contender(f"solve, {STEPS} steps", [run(STEPS, STEPS)], due, task=task)
        yield Contender(f"solve, {STEPS} steps and records", [run(STEPS, 1)], due, task=task)
        yield Contender(f"{STEPS} steps by hand", [by_hand], due, task=task, role=HAND)
        # Asynchronous solvers take no schedules.
        if net.size == self.period == 1:
            events = lambda: simulate(problem, AsyncPushSum(1e-3), topology, steps=STEPS).X
            yield Contender(f"simulate, {STEPS} steps", [events], [], task="events")

    def _due(self, steps: int) -> np.ndarray:
        """Return the coefficients of the rows after so many steps."""
        c = 0 * self.rows.start
        for k in range(steps):
            W = self.phases[k % self.period].W.toarray()
            c = W @ (c - STEP_SIZE * (c - self.rows.start))
        return c
