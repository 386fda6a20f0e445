"""Steps over noisy links, `W.noisy`: the noise that reaches the state, found by probing `step`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import ClassVar, NamedTuple

import numpy as np

from ..comm.mixing import Mixer
from ..comm.mixing.internals import Channel, Fault, Round
from ..solvers import Solver
from ..solvers.internals import name_of
from .linear import LARGEST, Array, LinearState, LinearSteps, Step

# Columns of a probe, and numbers that arrive in a step of one problem, at most.
COLUMNS, MOST = 2048, 200_000
# Differences of weights that are mixed; they are about 1.
NEAR = 2.0**-7


class MixingCall(NamedTuple):
    """Sizes of what arrives in one call of a mixer, for one problem: edges, columns of the
    problem's coordinates, and columns that all problems share.
    """

    edges: int
    own: int
    common: int


class Probe(Fault):
    """Known numbers in place of noise: `added` has one array for each mixing of a step, in order,
    of the shape of the rows that arrive.
    """

    call: ClassVar[str] = "noisy"

    def __init__(self) -> None:
        self.added: list[Array] = []
        self.shapes: list[tuple[int, ...]] = []

    def __str__(self) -> str:
        return ""

    def arrive(self, rows: Array, at: Round, call: int) -> Array:
        number = len(self.shapes)
        self.shapes.append(rows.shape)
        return rows + self.added[number] if self.added else rows

    @contextmanager
    def adding(self, *arrays: Array) -> Iterator[None]:
        """Context of a step whose calls add these."""
        self.added, self.shapes = list(arrays), []
        try:
            yield
        finally:
            self.added = []


class LinkedSteps(LinearSteps):
    r"""The steps of a solver over links with noise: as by `W.noisy`, independent noise is added to
    each number that arrives over an edge.

    Parameters
    ----------
    solver, W, H : see `Steps`
    link_noise : float
        Its standard deviation.

    Attributes
    ----------
    weighted : bool
        Whether also numbers that gradients do not change travel over these links, such as the
        weights of push-sum.
    """

    def __init__(self, solver: Solver, W: Mixer, H: Array, link_noise: float = 0.0):
        super().__init__(solver, W, H)
        self.link_noise = link_noise
        self.weighted = False
        if not link_noise:
            return
        if W.topology.divides_columns:
            raise ValueError(
                f"theory: the {W.topology.name} topology sends the columns of a row over several "
                "graphs, expected one graph for link_noise"
            )
        self._probe = Probe()
        self._noisy = Channel(W, [self._probe])
        self.weighted, s, found = True, self._zero(1), []
        for k in range(self.first, self.first + self.length):
            calls, s = self._calls(k, s)
            found += calls
        self.weighted = any(call.common for call in found)

    def maps(self) -> Iterator[Step]:
        if not self.link_noise:
            yield from super().maps()
            return
        s = self._zero(1)
        for k, step in zip(count(self.first), super().maps()):
            calls, after = self._calls(k, s)
            yield dataclasses.replace(step, links=self.link_noise**2 * self._spread(k, s, calls))
            s = after

    def _calls(self, k: int, s: LinearState) -> tuple[list[MixingCall], LinearState]:
        """Return what arrives in step k, from the state of one problem, and the state after it."""
        shapes, after = self._arrived(k, s)
        if not self.weighted:
            return [MixingCall(edges, width, 0) for edges, width in shapes], after
        wide, _ = self._arrived(k, self._widened(s, 2))
        widths = [(edges, one, two) for (edges, one), (_, two) in zip(shapes, wide)]
        return [MixingCall(edges, two - one, 2 * one - two) for edges, one, two in widths], after

    def _arrived(self, k: int, s: LinearState) -> tuple[list[tuple[int, ...]], LinearState]:
        with self._probe.adding():
            after = self._over_noisy(k, s)
            return self._probe.shapes, after

    def _over_noisy(self, k: int, s: LinearState, B: Array | None = None) -> LinearState:
        clean, self.W = self.W, self._noisy
        try:
            return self._run(s.X, B, 1, k, s)
        finally:
            self.W = clean

    def _widened(self, s: LinearState, S: int) -> LinearState:
        """Return the state of S problems whose iterates are zero, with the weights of `s`, one
        problem wide.
        """
        fields = s._asdict()
        wide = {}
        for name in self._wide:
            rows = fields[name]
            zeros = np.zeros((*rows.shape[:-1], self.d * S), self.dtype)
            wide[name] = np.concatenate([zeros, rows[..., self.d :]], axis=-1)
        return s._replace(**wide)

    def _spread(self, k: int, s: LinearState, calls: list[MixingCall]) -> Array:
        """Return the covariance of what unit noise adds to the packed state in step k."""
        F = np.zeros((self.size, self.size), self.dtype)
        sources = sum(call.edges * call.own for call in calls)
        if sources > MOST:
            raise ValueError(
                f"theory: {sources} numbers arrive in a step of {name_of(self.solver)} on the "
                f"{self.W.topology.name} topology, expected at most {MOST} for link_noise"
            )
        for first in range(0, sources, COLUMNS):
            S, added, at = min(COLUMNS, sources - first), [], 0
            for edges, own, common in calls:
                rows = np.zeros((edges, own, S), self.dtype)
                mine = np.arange(edges * own) + at - first
                inside = (mine >= 0) & (mine < S)
                edge, column = divmod(np.flatnonzero(inside), max(own, 1))
                rows[edge, column, mine[inside]] = 1
                added.append(np.hstack([rows.reshape(edges, -1), np.zeros((edges, common))]))
                at += edges * own
            with self._probe.adding(*added):
                end = self._pack(self._over_noisy(k, self._widened(s, S)))
            F += end @ end.conj().T
        return F


class WeightedSteps(LinkedSteps):
    r"""`LinkedSteps` for methods whose weights travel over the links, too: the weights are appended
    to the packed state, and their noise is treated to first order around the mean of the state.

    Parameters
    ----------
    steps : LinkedSteps
        That repeat.
    z : array (N, 1)
        The mean of the packed state at the first step of a cycle.
    b : array (n d, 1)
        See `Step`.
    """

    def __init__(self, steps: LinkedSteps, z: Array, b: Array):
        if not steps.periodic:
            raise ValueError(
                f"theory: {name_of(steps.solver)} sends weights on a schedule that never repeats, "
                "expected one with a period for link_noise"
            )
        vars(self).update(vars(steps))
        vars(self).pop("cycle", None)
        self._z, self._b, self._more = z, b, len(self._vector(self._settled))
        if steps.size + self._more > LARGEST:
            raise ValueError(
                f"theory: {name_of(steps.solver)} keeps {steps.size + self._more} numbers for "
                f"{steps.n} agents, expected at most {LARGEST} for link_noise: take fewer agents"
            )
        self._unit = float(np.abs(z).max(initial=0.0)) or 1.0

    def _vector(self, s: LinearState) -> Array:
        """Return the weights of a state."""
        return np.concatenate([np.ravel(a) for a in self._weights(s)] or [np.zeros(0)])

    def _with_vector(self, w: Array, s: LinearState) -> LinearState:
        """Return the state with these weights."""
        at = 0
        for name, old in s._asdict().items():
            if np.ndim(old) >= 2:
                rows = np.array(old)
                part = rows[..., self.d * (name in self._wide) :]
                part[...] = w[at : at + part.size].reshape(part.shape)
                at += part.size
                s = s._replace(**{name: rows})
        return s

    def maps(self) -> Iterator[Step]:
        s, z, B = self._zero(1), self._z, self._b.reshape(self.n, self.d, 1)
        for k, step in zip(count(self.first), super().maps()):
            now = self._unpack(z.astype(self.dtype), s)
            (calls, later), w = self._calls(k, s), self._vector(s)
            size = len(w) + sum(call.edges * call.common for call in calls)
            slopes = _slopes(partial(self._changed, k, now, w, calls, B), size)
            D, L = slopes[:, : len(w)] / self._unit, self.link_noise * slopes[:, len(w) :]
            N = len(z)
            M = np.block([[step.M, D[:N]], [np.zeros((len(w), N)), D[N:]]])
            F = L @ L.conj().T
            F[:N, :N] += step.links
            yield Step(M, np.vstack([step.E, np.zeros((len(w), step.E.shape[1]))]), F)
            z, s = step.M @ z + step.E @ self._b, later

    def _changed(
        self, k: int, s: LinearState, w: Array, calls: list[MixingCall], B: Array, change: Array
    ) -> Array:
        """Return the packed state, with the weights, after step k from other weights than `w` and
        with noise of weights on their way.
        """
        at, added = len(w), []
        for edges, own, common in calls:
            part = change[at : at + edges * common].reshape(edges, common)
            added.append(np.hstack([np.zeros((edges, own)), part]))
            at += edges * common
        with self._probe.adding(*added):
            end = self._over_noisy(k, self._with_vector(w + change[: len(w)], s), B)
        return np.concatenate([self._pack(end).ravel(), self._unit * self._vector(end)])

    def state(self, X: Array, B: Array, steps: int | None = None) -> Array:
        z = super().state(X, B, steps)
        return np.vstack([z, np.zeros((self._more, z.shape[1]))])

    def asked(self) -> Array:
        return self._beside(super().asked())

    def observe(self) -> Array:
        return self._beside(super().observe())

    def _beside(self, C: Array) -> Array:
        return np.hstack([C, np.zeros((len(C), self._more))])


def _slopes(f: Callable[[Array], Array], size: int) -> Array:
    """Return the derivatives of f at zero in each of `size` directions, one column each, from
    differences extrapolated to a vanishing distance.
    """

    def difference(e: Array) -> Array:
        slope: Array = (f(e) - f(-e)) / (2 * abs(e).max())
        return slope

    every = NEAR * np.eye(size)
    return np.stack([(4 * difference(e / 2) - difference(e)) / 3 for e in every], axis=1)
