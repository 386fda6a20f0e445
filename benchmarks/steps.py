"""The group steps: one step of a solver, against the same equations by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, cycle, islice
from typing import Any

import numpy as np

from mpidec.bench.cells import Cell, Contender, aligned
from mpidec.bench.report import ALLREDUCE, HAND, Group
from mpidec.comm.mixing import Network
from mpidec.comm.runtime.mpi import MPI
from mpidec.solvers import DGD, EXTRA, ExactDiffusion, GradientTracking, Solver
from mpidec.topology import Topology

Mixing = Callable[[np.ndarray], None]  # by hand: mixes rows that it knows into its argument
Bind = Callable[..., list[Mixing]]  # a mixing of the given rows for each phase
STEP_SIZE, STEPS = 1e-3, 6  # of the solvers, and how many of their steps are compared


class StepsCell(Cell):
    """One step of a solver as `solve` runs it, against the same equations by hand."""

    group = Group(
        "steps: one solver.step, against the same equations by hand in NumPy with persistent requests",
        ("times_hand", "faster_than_allreduce"),
    )
    sizes = "64K,1M,8M"
    fewest_ranks = 1

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 40 + ranks

    def _contenders(self) -> Iterator[Contender]:
        agents = np.arange(1, self.n + 1)
        c = np.stack([np.sin(agents), np.cos(2 * agents)], axis=1)  # of the gradients
        G = aligned(self.x.shape)
        G[:] = self.rows(c)
        net = self._network()
        for solver, by_hand in (
            (DGD(STEP_SIZE, "atc"), dgd),
            (ExactDiffusion(STEP_SIZE), exact_diffusion),
            (EXTRA(STEP_SIZE), extra),
            (GradientTracking(STEP_SIZE), gradient_tracking),
        ):
            name = type(solver).__name__
            due = self._due(solver, c, [phase.W.toarray() for phase in self.phases])
            yield Contender(
                f"{name}, solver.step",
                self._calls(self._steps(solver, G, net)),
                due,
                task=name,
                within=partial(as_in_solve, net, solver),
            )
            if self.comm.size > 1:
                steps = by_hand(self._bind, self._copy(self.x), G, STEP_SIZE)
                yield Contender(f"{name}, by hand", self._calls(steps), due, task=name, role=HAND)
            if self.comm.size > 1 and by_hand is dgd:
                steps = dgd_allreduce(self.comm, self._copy(self.x), G, STEP_SIZE)
                due = self._due(solver, c, [np.full((self.n, self.n), 1 / self.n)])
                yield Contender(
                    f"{name}, Allreduce by hand", self._calls(steps), due, task=name, role=ALLREDUCE
                )

    def _calls(self, steps: Iterator[np.ndarray]) -> list[Callable[[], np.ndarray]]:
        return [partial(next, steps)] * self.period

    def _steps(self, solver: Solver, G: np.ndarray, net: Network) -> Iterator[np.ndarray]:
        W = net.mixer(self.topology)
        s = solver.init(self.x, W.at(0))
        for k in count():
            s = solver.step(s, G, W.at(k))
            yield s.X

    def _due(self, solver: Solver, c: np.ndarray, matrices: list[np.ndarray]) -> list[np.ndarray]:
        """The iterates of the first steps with gradients `c`, computed on the coefficients with dense matrices."""
        due, s = [], solver.init(self.rows.start, matrices[0].__matmul__)
        for W in islice(cycle(matrices), max(STEPS, 2 * self.period)):
            product: Any = W.__matmul__
            s = solver.step(s, c, product)
            due.append(s.X)
        return due

    def _copy(self, x: np.ndarray) -> np.ndarray:
        copy = aligned(x.shape)
        copy[:] = x
        return copy

    def _bind(self, sent: np.ndarray, lazy: bool = False) -> list[Mixing]:
        """A function for each phase that mixes the rows `sent`, with `W` or with (I + W) / 2, into its argument."""
        return [self._mixing(phase, sent, lazy) for phase in self.phases]

    def _mixing(self, phase: Topology, sent: np.ndarray, lazy: bool) -> Mixing:
        dense = phase.rows(self.rows.lo, self.rows.hi).toarray()[0]
        if lazy:
            dense = (np.eye(self.n)[self.rows.lo] + dense) / 2
        own, weights = dense[self.rows.lo], dense[phase.in_neighbors(self.rows.lo)].tolist()
        requests, halo = self._requests(phase, sent), self.halo[: len(weights)]

        def mix(out: np.ndarray) -> None:
            MPI.Prequest.Startall(requests)
            np.multiply(sent, own, out=out)
            MPI.Request.Waitall(requests)
            for weight, row in zip(weights, halo):
                np.multiply(row, weight, out=row)
                np.add(out, row, out=out)

        return mix


@contextmanager
def as_in_solve(net: Network, solver: Solver) -> Iterator[None]:
    """The contexts in which `solve` runs the steps of a solver."""
    with ExitStack() as stack:
        stack.enter_context(net.memory())
        if solver.keeps_rows:
            stack.enter_context(net.keeping_rows())
        yield


def dgd_allreduce(
    comm: MPI.Intracomm, X: np.ndarray, G: np.ndarray, a: float
) -> Iterator[np.ndarray]:
    """X+ = mean of X - a G over all agents, by hand."""
    T = aligned(X.shape)
    while True:
        np.multiply(G, a, out=T)
        np.subtract(X, T, out=T)
        comm.Allreduce(T, X)
        np.divide(X, comm.size, out=X)
        yield X


def dgd(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """X+ = W (X - a G), by hand."""
    T = aligned(X.shape)
    for W in cycle(bind(T)):
        np.multiply(G, a, out=T)
        np.subtract(X, T, out=T)
        W(X)
        yield X


def exact_diffusion(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """Psi+ = X - a G, X+ = (I + W) / 2 (Psi+ + X - Psi), by hand."""
    Psi, Phi = aligned(X.shape), aligned(X.shape)
    Psi[:] = X
    for lazy_W in cycle(bind(Phi, lazy=True)):
        np.subtract(X, Psi, out=Phi)
        np.multiply(G, a, out=Psi)
        np.subtract(X, Psi, out=Psi)
        np.add(Phi, Psi, out=Phi)
        lazy_W(X)
        yield X


def extra(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """X+ = W X - a G - D, D+ = D + (X - W X) / 2, by hand."""
    WX, D, T = aligned(X.shape), aligned(X.shape), aligned(X.shape)
    D[:] = 0
    for W in cycle(bind(X)):
        W(WX)
        np.subtract(X, WX, out=T)
        np.multiply(G, a, out=X)
        np.add(X, D, out=X)
        np.subtract(WX, X, out=X)
        np.multiply(T, 0.5, out=T)
        np.add(D, T, out=D)
        yield X


def gradient_tracking(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """Y = W (Y + G - (G of the step before)), X+ = W (X - a Y), by hand; Y = G in the first step."""
    Y, T, before = aligned(X.shape), aligned(X.shape), G
    for k, W in enumerate(cycle(bind(T))):
        if k == 0:
            np.copyto(Y, G)
        else:
            np.add(Y, G, out=T)
            np.subtract(T, before, out=T)
            W(Y)
        np.multiply(Y, a, out=T)
        np.subtract(X, T, out=T)
        W(X)
        yield X
