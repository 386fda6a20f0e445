"""A solver's steps on quadratics as affine maps of its state, found by probing `step`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from itertools import count, islice
from typing import Any, Protocol, TypeVar

import numpy as np

from ..comm.mixing import Mixer
from ..comm.mixing.internals import Operator, StepOperator
from ..solvers import Bias, FunctionSolver, Solver
from ..solvers.internals import after, at_step, name_of
from .modes import Array as Array, Starts, radius

StepsT = TypeVar("StepsT", bound="LinearSteps")
# Steps of a period, at most, and numbers of a state of all agents.
LONGEST, LARGEST = 64, 6000
# Steps after which weights that W mixes have their limits: at least, times n, and at most; the
# relative change of a limit.
SETTLED, LATEST, SETTLED_TO = 4, 20000, 1e-13
# Steps beyond a cycle in which the sizes of the arrays of a state show.
SIZED = 4
# Relative size of an eigenvalue of the mean curvature, and of a difference, that is rounding; size
# of differences, relative to their terms, below which they are not enlarged to the size 1.
FLAT, ROUNDING, LEAST = 1e-14, 1e-12, 1e-3


class LinearState(Protocol):
    """State of a solver: a named tuple with the rows of all agents."""

    @property
    def X(self) -> Array: ...

    def _asdict(self) -> dict[str, Array]: ...

    def _replace(self, **fields: Array) -> LinearState: ...


class QuadraticColumns:
    r"""Costs :math:`f_i(x) = \tfrac12 x^* H_i x - \mathrm{Re}\, b_i^* x`, with the interface that
    solvers expect: many problems at once that share the curvatures.

    Rows of S problems are `(n, d S)`: the S columns of the first coordinate come first.

    Parameters
    ----------
    H : array (n, d, d)
    B : array (n, d, S) or (n, d, 1)
    """

    def __init__(self, H: Array, B: Array):
        self.H, self.B = H, B

    def _apart(self, X: Array) -> Array:
        return X.reshape(len(X), self.H.shape[1], -1)

    def at(self, k: int) -> QuadraticColumns:
        """The same at each step."""
        return self

    def grad(self, X: Array) -> Array:
        """Return the gradients at the rows of X."""
        G: Array = (self.H @ self._apart(X) - self.B).reshape(X.shape)
        return G

    def value(self, X: Array) -> Array:
        """Raise: several problems at once have no single value.

        Raises
        ------
        ValueError
        """
        raise ValueError("the solver asks for values of the functions, whose step is not linear")

    def prox(self, V: Array, t: object) -> Array:
        """V, since there is no term."""
        return V

    def argmin(self, V: Array, t: Array, start: Array | None = None) -> Array:
        """Return the proximal points of the functions, with a parameter for each agent."""
        t = np.asarray(t)[:, :1, None]
        A = np.eye(self.H.shape[1]) + t * self.H
        P: Array = np.linalg.solve(A, self._apart(V) + t * self.B).reshape(V.shape)
        return P


def cycle_length(solver: Solver, W: Mixer) -> int | None:
    """Return the number of steps after which a solver's operations repeat; None if they do not, or
    only after too many steps.
    """
    random = getattr(solver, "probability", 1) != 1
    period = None if random else W.topology.period
    # rounds of local steps mix by the graph of the round's number
    length = None if period is None else period * solver.period
    return length if length is not None and length <= LONGEST else None


@dataclasses.dataclass(frozen=True)
class Step:
    r"""One step on the packed state, :math:`z^{k+1} = M z^k + E (b + v^k)`, where the gradient of
    agent i is :math:`H_i x_i - b_i - v_i^k`.

    Attributes
    ----------
    M : array (N, N)
    E : array (N, n d)
    links : array (N, N) or 0
        Covariance of what noise of the links adds.
    """

    M: Array
    E: Array
    links: Array | float = 0.0


class LinearSteps:
    """The steps of a solver on quadratics with the curvatures `H`, beginning where the part of the
    state that does not depend on gradients (weights, counts) has become periodic.

    The packed state is the arrays of the state whose width is that of the rows, one below the
    other, agent by agent and coordinate by coordinate, each in a unit of its own: in a run with
    iterates of the size 1 all have about that size, whatever the unit of the costs.

    Parameters
    ----------
    solver : Solver
        With a number as step size.
    W : Mixer
        Of all n agents, in this process.
    H : array (n, d, d)
        Curvatures of the agents, real or complex.

    Attributes
    ----------
    length : int
        Steps of a cycle; 1 for schedules that never repeat.
    periodic : bool
        Whether the steps repeat with the cycle.
    first : int
        The step that the first map belongs to.

    walk : array (w, w)
        Covariance of what moves beside the solver, at the end of the state; w = 0 for nothing.

    Raises
    ------
    ValueError
        If there are too many numbers.
    """

    W: Operator[StepOperator]
    walk: Array = np.zeros((0, 0))

    def __init__(self, solver: Solver, W: Mixer, H: Array):
        self.solver, self.W, self.H = solver, W, H
        self.n, self.d = H.shape[:2]
        cycle = cycle_length(solver, W)
        self.length, self.periodic = cycle or 1, cycle is not None
        narrow, wide = (self._run(np.zeros((self.n, w * self.d)), None, 1) for w in (1, 2))
        self._wide = _wide(narrow, wide)
        self.curvature = _power_of_two(float(np.abs(H).max(initial=0.0)))
        self._units = dict.fromkeys(self._wide, 1.0)
        self.size = len(self._pack(narrow))
        if self.size > LARGEST:
            raise ValueError(
                f"{name_of(solver)} keeps {self.size} numbers for {self.n} agents with "
                f"{self.d} coordinates that depend on each other, expected at most {LARGEST}: take "
                "fewer agents, or curvatures with common eigenvectors"
            )
        self._units = self._measured()
        self._settled, self.first = self._settle()
        before = self._wide[: self._wide.index("X")]
        fields = narrow._asdict()
        at = sum(fields[name][..., : self.d].size for name in before)
        self._X = np.arange(at, at + self.n * self.d)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return np.result_type(self.H.dtype, np.float64)

    def _costs(self, B: Array | None) -> QuadraticColumns:
        return QuadraticColumns(self.H, np.zeros((self.n, self.d, 1)) if B is None else B)

    def _run(
        self, X: Array, B: Array | None, steps: int, first: int = 0, s: LinearState | None = None
    ) -> LinearState:
        costs = self._costs(B)
        if s is None:
            s = self.solver.init(X.astype(self.dtype), self.W.at(0))
        state: LinearState = after(self.solver, costs, self.W, s, steps, first)
        return state

    def _measured(self) -> dict[str, float]:
        """Return the sizes of the arrays of the state in the first steps, relative to those of the
        iterates.
        """
        rows = np.random.default_rng(0).standard_normal((2, self.n, self.d))
        s, sizes = self._run(rows[0], None, 0), dict.fromkeys(self._wide, 0.0)
        B = self.curvature * rows[1][:, :, None]
        with np.errstate(all="ignore"):
            for k in range(self.length + SIZED):
                s = self._run(s.X, B, 1, k, s)
                fields = s._asdict()
                largest = float(np.abs(s.X).max())
                for name in self._wide:
                    size = float(np.abs(fields[name][..., : self.d]).max(initial=0.0)) / largest
                    sizes[name] = max(sizes[name], size if math.isfinite(size) else 0.0)
        return {name: _power_of_two(size) for name, size in sizes.items()}

    def _settle(self) -> tuple[LinearState, int]:
        """Return the state, for a single problem, at the first step from which the part that does
        not depend on gradients is periodic, and that step.
        """
        # Weights of push-sum and counts of relays need some rounds over the graph; compare cycles
        # after that.
        k = self.length * math.ceil(SETTLED * self.n / self.length)
        s = self._run(np.zeros((self.n, self.d)), None, k)
        while k < LATEST:
            later = self._run(s.X, None, self.length, k, s)
            if all(map(_same, self._weights(s), self._weights(later))):
                return s, k
            s, k = later, k + self.length
        return s, k

    def begun(self: StepsT) -> StepsT:
        """Return the same steps from step 0 on, whose maps may not repeat at first."""
        steps = copy(self)
        vars(steps).pop("cycle", None)
        steps._settled, steps.first = self._run(np.zeros((self.n, self.d)), None, 0), 0
        return steps

    def _weights(self, s: LinearState) -> list[Array]:
        """Return the arrays of a state that do not depend on gradients."""
        arrays = s._asdict().items()
        return [a[..., self.d * (name in self._wide) :] for name, a in arrays if np.ndim(a) >= 2]

    def _zero(self, S: int) -> LinearState:
        """Return the state at step `first` of S problems whose iterates have always been zero."""

        def widened(rows: Array) -> Array:
            zeros = np.zeros((*rows.shape[:-1], self.d * S), self.dtype)
            return np.concatenate([zeros, rows[..., self.d :]], axis=-1)

        fields = self._settled._asdict()
        return self._settled._replace(**{name: widened(fields[name]) for name in self._wide})

    def _pack(self, s: LinearState) -> Array:
        S, fields = s.X.shape[-1] // self.d, s._asdict()
        return np.vstack(
            [fields[f][..., : self.d * S].reshape(-1, S) / unit for f, unit in self._units.items()]
        )

    def _unpack(self, Z: Array, s: LinearState) -> LinearState:
        at, wide = 0, s.X.shape[-1]
        for name in self._wide:
            rows = np.array(s._asdict()[name], dtype=Z.dtype)
            part = rows[..., :wide]
            height = part.size // Z.shape[1]
            part[...] = self._units[name] * Z[at : at + height].reshape(part.shape)
            at += height
            s = s._replace(**{name: rows})
        return s

    def maps(self) -> Iterator[Step]:
        """The maps of the steps `first`, `first + 1`, ..., without end.

        Raises
        ------
        ValueError
            If the first of them is not linear.
        """
        n, d, N = self.n, self.d, self.size
        # Probe the step with the unit vectors of state and b, which gives the columns of M and E;
        # two random combinations, in the first step, must give the same combinations of these: the
        # step is linear.
        units = np.repeat([1.0, self.curvature], [N, n * d])
        every = np.diag(units).astype(self.dtype)
        some = np.random.default_rng(0).standard_normal((N + n * d, 2)).astype(self.dtype)
        probes = [every, every @ some]
        states = [self._zero(len(p.T)) for p in probes]
        for k in count(self.first):
            ends, *tried = (self._after(p, s, k) for p, s in zip(probes, states))
            for end in tried:
                if not np.allclose(end, ends @ some, rtol=1e-9, atol=1e-9 * abs(ends).max()):
                    raise ValueError(
                        f"a step of {name_of(self.solver)} is not linear in gradients and state, "
                        "expected a method without adaptive step sizes, clipping, codecs or faults"
                    )
            yield Step(ends[:, :N], ends[:, N:] / self.curvature)
            probes, states = probes[:1], states[:1]
            states = [self._run(s.X, None, 1, k, s) for s in states]

    def _after(self, probe: Array, s: LinearState, k: int) -> Array:
        """Return the packed states after step k; each column of `probe` is a packed state before
        it, followed by b.
        """
        B = probe[self.size :].reshape(self.n, self.d, -1)
        return self._pack(self._run(s.X, B, 1, k, self._unpack(probe[: self.size], s)))

    @property
    def linear(self) -> bool:
        """Whether the steps repeat, and are linear."""
        try:
            return self.periodic and bool(self.cycle)
        except ValueError:
            return False

    @cached_property
    def cycle(self) -> list[Step]:
        """The maps of the steps of a cycle.

        Raises
        ------
        ValueError
            If the steps are not linear.
        """
        *cycle, again = islice(self.maps(), self.length + 1)
        if self.periodic and not np.allclose(again.M, cycle[0].M, rtol=1e-6, atol=1e-9):
            raise ValueError(
                f"the steps of {name_of(self.solver)} change with their number, expected the same "
                "ones in each cycle"
            )
        return cycle

    def state(self, X: Array, B: Array, steps: int | None = None) -> Array:
        """Return the packed state after `steps` steps (None: `first`) from the rows X, (n, d S)."""
        return self._pack(self._run(X, B, self.first if steps is None else steps))

    def asked(self) -> Array:
        """Return the matrix (n d, N) that maps a packed state to the points of the gradients; to
        the iterates, if the solver does not state them.
        """
        if isinstance(self.solver, FunctionSolver):
            return self.observe()
        s = self._unpack(np.eye(self.size, dtype=self.dtype), self._zero(self.size))
        return np.asarray(at_step(self.solver, self.first).point(s)).reshape(-1, self.size)

    def observe(self) -> Array:
        """Return the matrix (n d, N) that maps a packed state to the iterates."""
        return np.eye(self.size)[self._X]

    def radius(self, own_limit: bool = False) -> float:
        """Return the factor per step by which the error falls in the end: that of the slowest mode
        that the initial points, and the differences between the agents' costs, reach, and the
        iterates show.

        The error of exact methods is that from the minimizer, of biased ones that from their own
        limit, as of all with `own_limit`, and of averaging the disagreement.
        """
        with np.errstate(all="ignore"):  # of large steps
            runs = self.starts(own_limit)
            found = float(radius(*runs) ** (1 / self.length))
        return max(found, 1.0) if self.solver.needs.problem and _flat(self.H) else found

    def starts(self, own_limit: bool = False) -> Starts:
        """Return the map of a cycle, with the initial states of runs, and the matrix that maps a
        state to its error.
        """
        n, d = self.n, self.d
        averages = not self.solver.needs.problem
        exact = self.solver.bias_on(self.W.topology) is Bias.NONE and not own_limit
        J, K = np.eye(self.size), np.zeros((self.size, n * d))
        for step in self.cycle:  # the cycle as one map
            J, K = step.M @ J, step.M @ K + step.E
        C = self.observe()
        if averages:
            C = np.kron(np.eye(n) - 1 / n, np.eye(d)) @ C
        limits = C if averages or exact else C[:0]
        begun = self._run(np.zeros((n, d)), None, 0)
        begins = all(map(_same, self._weights(begun), self._weights(self._settled)))
        first = 0 if begins else self.first
        eye = np.eye(n * d).reshape(n, d, n * d)
        V = self.state(eye.reshape(n, -1), 0 * eye, first)
        if averages or n == 1:
            return Starts(J, C, V, limits)
        # differences between the costs, whose sum has its minimizer at zero
        B = self.curvature * np.kron(np.linalg.svd(np.ones((1, n)))[2][1:].T, np.eye(d))
        z = self.state(np.zeros((n, B.shape[1] * d)), B.reshape(n, d, -1), first)
        A = np.vstack([J - np.eye(len(J)), limits])
        rest = np.linalg.lstsq(A, np.vstack([-K @ B, np.zeros((len(limits), B.shape[1]))]))[0]
        away, size = z - rest, max(np.abs(z).max(), np.abs(rest).max())
        if np.abs(away).max() > ROUNDING * size:
            away = away / max(np.abs(away).max(), LEAST * size)
            V = np.hstack([V / np.abs(V).max(), away])
        return Starts(J, C, V, limits)


def _flat(H: Array) -> bool:
    """Return whether the mean curvature has an eigenvalue 0."""
    return bool(np.abs(np.linalg.eigvalsh(H.mean(axis=0))).min() <= FLAT * np.abs(H).max())


def _power_of_two(size: float) -> float:
    """Return the next power of two, or 1 for 0: products with it are exact."""
    return 2.0 ** round(math.log2(size)) if 0 < size < math.inf else 1.0


def _wide(narrow: LinearState, wide: LinearState) -> list[str]:
    """Return the names of the arrays of a state whose width grows with that of the rows."""
    pairs = zip(narrow._asdict().items(), wide._asdict().values())
    return [name for (name, a), b in pairs if np.ndim(a) >= 2 and b.shape[-1] > a.shape[-1]]


def _same(a: Array, b: Array) -> bool:
    return bool(abs(a - b).max(initial=0.0) <= SETTLED_TO * abs(a).max(initial=0.0))
