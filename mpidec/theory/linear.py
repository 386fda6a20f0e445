"""A solver's steps on quadratics as affine maps of its state, found by probing `step`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import cached_property
from itertools import count, islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..comm.mixing.mixer import Mixer
from ..solvers.base import FunctionSolver, Solver, at_step, name_of

Array = NDArray[Any]  # real or complex

# Steps of a period, at most, and numbers of a state of all agents.
LONGEST, LARGEST = 64, 6000
# Steps after which weights that W mixes have their limits: at least, times n, and at most; the
# relative change of a limit.
SETTLED, LATEST, SETTLED_TO = 4, 20000, 1e-10
# Singular values below this part of the largest count as zero.
RANK = 1e-10


class State(Protocol):
    """State of a solver: a named tuple with the rows of all agents."""

    @property
    def X(self) -> Array: ...

    def _asdict(self) -> dict[str, Array]: ...

    def _replace(self, **fields: Array) -> State: ...


class Quadratics:
    r"""Costs :math:`f_i(x) = \tfrac12 x^* H_i x - \mathrm{Re}\, b_i^* x`, as solvers ask them: many
    problems at once, which have the curvatures in common.

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

    def grad(self, X: Array) -> Array:
        """The gradients at the rows of X."""
        G: Array = (self.H @ self._apart(X) - self.B).reshape(X.shape)
        return G

    def value(self, X: Array) -> Array:
        """Refused: the problems have a value each.

        Raises
        ------
        ValueError
        """
        raise ValueError("the solver asks for values of the functions, whose step is not linear")

    def prox(self, V: Array, t: object) -> Array:
        """V, since there is no term."""
        return V

    def argmin(self, V: Array, t: Array, start: Array | None = None) -> Array:
        """The proximal points of the functions, with a parameter for each agent."""
        t = np.asarray(t)[:, :1, None]
        A = np.eye(self.H.shape[1]) + t * self.H
        P: Array = np.linalg.solve(A, self._apart(V) + t * self.B).reshape(V.shape)
        return P


def cycle_length(solver: Solver, W: Mixer) -> int | None:
    """Steps after which a solver does the same again; None if never, or after too many."""
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
    """

    M: Array
    E: Array


class Steps:
    """The steps of a solver on quadratics with the curvatures `H`, from the step on at which all
    that gradients do not change (weights, counts) repeats with the cycle.

    The packed state is the arrays of the state whose width is that of the rows, one below the
    other, agent by agent and coordinate by coordinate.

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

    walk: Array = np.zeros((0, 0))

    def __init__(self, solver: Solver, W: Mixer, H: Array):
        self.solver, self.W, self.H = solver, W, H
        self.n, self.d = H.shape[:2]
        cycle = cycle_length(solver, W)
        self.length, self.periodic = cycle or 1, cycle is not None
        narrow, wide = (self._run(np.zeros((self.n, w * self.d)), None, 1) for w in (1, 2))
        self._wide = _wide(narrow, wide)
        self.size = len(self._pack(narrow))
        if self.size > LARGEST:
            raise ValueError(
                f"{name_of(solver)} keeps {self.size} numbers for {self.n} agents with "
                f"{self.d} coordinates that depend on each other, expected at most {LARGEST}: take "
                "fewer agents, or curvatures with common eigenvectors"
            )
        self._settled, self.first = self._settle()
        before = self._wide[: self._wide.index("X")]
        fields = narrow._asdict()
        at = sum(fields[name][..., : self.d].size for name in before)
        self._X = np.arange(at, at + self.n * self.d)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return np.result_type(self.H.dtype, np.float64)

    def _costs(self, B: Array | None) -> Quadratics:
        return Quadratics(self.H, np.zeros((self.n, self.d, 1)) if B is None else B)

    def _run(
        self, X: Array, B: Array | None, steps: int, first: int = 0, s: State | None = None
    ) -> State:
        costs = self._costs(B)
        if s is None:
            s = self.solver.init(X.astype(self.dtype), self.W.at(0))
        for k in range(first, first + steps):
            method = at_step(self.solver, k)
            s = method.step(s, method.ask(costs, s), self.W.at(k))
        return s

    def _settle(self) -> tuple[State, int]:
        """The state, one problem wide, at the first step from which on all that gradients do not
        change repeats with the cycle, and that step.
        """
        k = self.length * math.ceil(SETTLED * self.n / self.length)
        s = self._run(np.zeros((self.n, self.d)), None, k)
        while k < LATEST:
            later = self._run(s.X, None, self.length, k, s)
            if all(map(_same, self._weights(s), self._weights(later))):
                return s, k
            s, k = later, k + self.length
        return s, k

    def _weights(self, s: State) -> list[Array]:
        """The arrays of a state that gradients do not change."""
        arrays = s._asdict().items()
        return [a[..., self.d * (name in self._wide) :] for name, a in arrays if np.ndim(a) >= 2]

    def _zero(self, S: int) -> State:
        """The state at step `first` of S problems whose iterates have always been zero."""

        def widened(rows: Array) -> Array:
            zeros = np.zeros((*rows.shape[:-1], self.d * S), self.dtype)
            return np.concatenate([zeros, rows[..., self.d :]], axis=-1)

        fields = self._settled._asdict()
        return self._settled._replace(**{name: widened(fields[name]) for name in self._wide})

    def _pack(self, s: State) -> Array:
        S, fields = s.X.shape[-1] // self.d, s._asdict()
        return np.vstack([fields[name][..., : self.d * S].reshape(-1, S) for name in self._wide])

    def _unpack(self, Z: Array, s: State) -> State:
        at, wide = 0, s.X.shape[-1]
        for name in self._wide:
            rows = np.array(s._asdict()[name], dtype=Z.dtype)
            part = rows[..., :wide]
            height = part.size // Z.shape[1]
            part[...] = Z[at : at + height].reshape(part.shape)
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
        every = np.eye(N + n * d, dtype=self.dtype)
        some = np.random.default_rng(0).standard_normal((N + n * d, 2)).astype(self.dtype)
        probes = [every, some]
        states = [self._zero(len(p.T)) for p in probes]
        for k in count(self.first):
            ends, *tried = (self._after(p, s, k) for p, s in zip(probes, states))
            for end in tried:
                if not np.allclose(end, ends @ some, rtol=1e-9, atol=1e-9 * abs(ends).max()):
                    raise ValueError(
                        f"a step of {name_of(self.solver)} is not linear in gradients and state, "
                        "expected a method without adaptive step sizes, clipping, codecs or faults"
                    )
            yield Step(ends[:, :N], ends[:, N:])
            probes, states = probes[:1], states[:1]
            states = [self._run(s.X, None, 1, k, s) for s in states]

    def _after(self, probe: Array, s: State, k: int) -> Array:
        """The packed states after step k, of which each column of `probe` is the packed state
        before, and the b.
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
        """The packed state after `steps` steps (None: `first`) from the rows X, (n, d S)."""
        return self._pack(self._run(X, B, self.first if steps is None else steps))

    def asked(self) -> Array:
        """The matrix (n d, N) that takes the points of the gradients out of a packed state; the
        iterates, where the solver does not tell.
        """
        if isinstance(self.solver, FunctionSolver):
            return self.observe()
        s = self._unpack(np.eye(self.size, dtype=self.dtype), self._zero(self.size))
        return np.asarray(at_step(self.solver, self.first).point(s)).reshape(-1, self.size)

    def observe(self) -> Array:
        """The matrix (n d, N) that takes the iterates out of a packed state."""
        return np.eye(self.size)[self._X]

    def radius(self) -> float:
        """Spectral radius of a step, of the part of the state that the iterates depend on and that
        the initial points, and the differences between the agents' costs, reach.
        """
        n, d = self.n, self.d
        eye = np.eye(n * d).reshape(n, d, n * d)
        changes = []  # of a cycle: what is conserved is not in them
        for X, B in ((eye, 0 * eye), (0 * eye, eye)):
            early, late = (self.state(X.reshape(n, -1), B, k) for k in (0, self.length))
            changes.append(late - early)
        J = np.eye(self.size)
        for step in self.cycle:
            J = step.M @ J
        Q = _krylov(J, np.hstack(changes))  # reached
        J, C = Q.conj().T @ J @ Q, self.observe() @ Q
        Q = _krylov(J.conj().T, C.conj().T)  # observed
        J = Q.conj().T @ J @ Q
        return float(max(abs(np.linalg.eigvals(J)), default=0.0) ** (1 / self.length))


def _wide(narrow: State, wide: State) -> list[str]:
    """The names of the arrays of a state whose width grows with that of the rows."""
    pairs = zip(narrow._asdict().items(), wide._asdict().values())
    return [name for (name, a), b in pairs if np.ndim(a) >= 2 and b.shape[-1] > a.shape[-1]]


def _same(a: Array, b: Array) -> bool:
    return bool(abs(a - b).max(initial=0.0) <= SETTLED_TO * abs(a).max(initial=0.0))


def _span(V: Array) -> Array:
    """An orthonormal basis of the columns."""
    U, sizes, _ = np.linalg.svd(V, full_matrices=False)
    basis: Array = U[:, sizes > RANK * max(sizes.max(initial=0.0), 1e-300)]
    return basis


def _krylov(J: Array, V: Array) -> Array:
    """An orthonormal basis of the columns of V, J V, J J V, ..."""
    Q = _span(V)
    while True:
        larger = _span(np.hstack([Q, J @ Q]))
        if larger.shape[1] <= Q.shape[1]:
            return Q
        Q = larger
