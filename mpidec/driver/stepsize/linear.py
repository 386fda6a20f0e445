"""Linear model of all agents' gradients at one point, in few dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..._sparse import is_sparse
from ...comm.runtime import Partition
from ...problems.internals import composite
from ...protocols import Motion, Reductions, Sample, StepSize
from .reference import residual
from .tuning import TUNING

if TYPE_CHECKING:
    from scipy.sparse import csc_array

    from ...problems import Term


T = TypeVar("T")
Gradient = Callable[[np.ndarray], np.ndarray]
Prox = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class GradientModel:
    r"""Gradients :math:`\nabla f_i(\hat x + V e) \approx V (H_i e + g_i)`, with the :math:`g_i`
    centred: e = 0 is the optimum.

    Attributes
    ----------
    H : array (s, n, r, r)
        Curvatures of all agents: one for the exact gradient, several (s > 1) for random draws of a
        stochastic one.
    g : array (s, n, r)
    start : array (n, r)
        The initial point of each agent, in coordinates.
    mean : array (r, r)
        Average of the curvatures.
    size : float
        :math:`\|\hat x\|`
    curvature : float
        Largest eigenvalue of the average curvature.
    distance : float
        :math:`\sqrt{\sum_i \|x_i^0 - \hat x\|^2}` over all agents.
    far : array (n,) or None
        Curvatures far from :math:`\hat x`, along one direction; None without `slope`.
    slope : array (n,) or None
        Largest norms of the gradients beyond :math:`g_i` and the far curvature, for losses of
        bounded slope; None where the model is linear everywhere.
    V : array (d, r) or None
        Orthonormal basis of the dimensions; None for the coordinates themselves.
    prox : callable or None
        `prox(E, t)`: the proximal points of the term, (n, r, S) -> (n, r, S), with the parameters
        t, (S,); the g_i are then not centred, as the average gradient does not vanish at the
        minimizer.
    """

    H: np.ndarray
    g: np.ndarray
    start: np.ndarray
    mean: np.ndarray
    size: float
    curvature: float
    distance: float
    far: np.ndarray | None = None
    slope: np.ndarray | None = None
    V: np.ndarray | None = None
    prox: Prox | None = None
    _draws: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def n(self) -> int:
        """The number of agents."""
        return len(self.start)

    @property
    def r(self) -> int:
        """The number of dimensions."""
        return int(self.start.shape[1])

    @property
    def away(self) -> float:
        r""":math:`\sqrt{\tfrac{1}{n} \sum_i \|g_i\|^2} / L`, 0 without a curvature L: how far a
        step 1 / L leads from e = 0.
        """
        size = float(np.linalg.norm(self.g[0])) / math.sqrt(self.n)
        return size / self.curvature if self.curvature > 0 and math.isfinite(size) else 0.0

    def gradients(self, V: np.ndarray, k: int) -> np.ndarray:
        """Return the gradients of all agents at step k, at the rows `V`, one column per candidate
        and coordinate.
        """
        E = V.reshape(len(V), self.r, -1)
        H, g = (self.H[0], self.g[0]) if len(self.H) == 1 else self._drawn(k)
        G: np.ndarray = H @ E
        if self.slope is not None and self.far is not None:
            G = _bounded(G, self.far[:, None, None] * E, self.slope[:, None, None])
        G += g[:, :, None]
        return G.reshape(V.shape)

    def gradient(self, i: int, v: np.ndarray, k: int) -> np.ndarray:
        """Return the gradients of agent i at its own step k, at the row `v`, one column per
        candidate and coordinate.
        """
        E = v.reshape(self.r, -1)
        draw = 0 if len(self.H) == 1 else int(self._chosen(k)[i])
        G: np.ndarray = self.H[draw, i] @ E
        if self.slope is not None and self.far is not None:
            G = _bounded(G[None], self.far[i] * E[None], self.slope[i : i + 1, None, None])[0]
        G += self.g[draw, i][:, None]
        return G.reshape(v.shape)

    def at(self, k: int) -> ModelFunctions:
        """Return the functions of all agents at step `k`, with the minimizer at zero."""
        return ModelFunctions(self, k)

    def functions(self, k: int, origin: np.ndarray | None = None) -> ModelFunctions:
        """Return the functions of all agents at step `k`, with the minimizer at `origin` (None:
        zero).
        """
        return ModelFunctions(self, k, origin)

    def _drawn(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """One of the draws for each agent."""
        chosen, rows = self._chosen(k), np.arange(self.n)
        return self.H[chosen, rows], self.g[chosen, rows]

    def _chosen(self, k: int) -> np.ndarray:
        """Return the numbers of the draws of all agents in step k."""
        block, place = divmod(k, 1024)
        if block not in self._draws:
            self._draws.clear()
            self._draws[block] = np.random.default_rng([2, block]).integers(
                len(self.H), size=(1024, self.n)
            )
        return np.asarray(self._draws[block][place])

    def proximal(self, E: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the proximal points of the functions, (n, r, S), with the parameters `sizes`, (S,)
        or (n, 1, S).
        """
        values, Q = self._spectra
        T = Q.transpose(0, 2, 1) @ (E / sizes - self.g[0][:, :, None])
        T /= values[:, :, None] + 1 / sizes
        result: np.ndarray = Q @ T
        return result

    def coordinates(self, away: np.ndarray) -> np.ndarray:
        r"""Return the rows :math:`x_i - \hat x` in the dimensions of the model."""
        return away if self.V is None else project(away, self.V)

    @cached_property
    def reachable(self) -> np.ndarray:
        """An orthonormal basis (r, q) of the space that no run leaves.

        It contains the initial points and the g_i, and each H_i maps it to itself.  Directions
        outside it come from linearly dependent columns of data, and from the classes of a softmax;
        there the curvature is often only that of the l2 term.
        """
        if self.prox is not None:
            return np.eye(self.r)
        H = self.H[0] / (np.abs(self.H[0]).max() or 1.0)
        B = _orthonormal(np.vstack([_scaled(self.start), _scaled(self.g[0])]).T)
        while 0 < B.shape[1] < self.r:
            images = (H @ B).transpose(1, 0, 2).reshape(self.r, -1)
            larger = _orthonormal(np.hstack([B, images]))
            if larger.shape[1] == B.shape[1]:
                break
            B = larger
        return B

    @cached_property
    def _spectra(self) -> tuple[np.ndarray, np.ndarray]:
        values, Q = np.linalg.eigh(self.H[0])
        return values.clip(min=0.0), Q


def _without_model(what: str) -> ValueError:
    return ValueError(
        f'step_size="auto": the solver asks for the {what}, expected a number or a schedule as '
        "step_size"
    )


@dataclass(frozen=True)
class ModelFunctions:
    """The functions of all agents in a linear model at one step, one column per candidate and
    coordinate.
    """

    model: GradientModel
    k: int
    origin: np.ndarray | None = None

    def _away(self, X: np.ndarray) -> np.ndarray:
        return X if self.origin is None else X - self.origin

    def _point(self, E: np.ndarray) -> np.ndarray:
        return E if self.origin is None else E + self.origin

    def grad(self, X: np.ndarray) -> np.ndarray:
        """Return the gradients of the smooth parts."""
        return self.model.gradients(self._away(X), self.k)

    def value(self, X: np.ndarray) -> np.ndarray:
        """Raise: the candidates have no common value.

        Raises
        ------
        ValueError
        """
        raise _without_model("values of the functions")

    def sample(self, X: np.ndarray) -> Sample:
        """Raise: a model of gradients has no samples."""
        raise _without_model("samples")

    def motion(self) -> Motion:
        """Raise: the minimizer of the model stays."""
        raise _without_model("motion of the target")

    def argmin(self, V: np.ndarray, t: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Return the proximal points of the functions; `t` is a number per agent, or one per
        column, too.
        """
        model = self.model
        E = self._away(V).reshape(len(V), model.r, -1)
        sizes = np.broadcast_to(t, V.shape).reshape(E.shape)[:, :1]
        return self._point(model.proximal(E, sizes).reshape(V.shape))

    def prox(self, V: np.ndarray, t: StepSize) -> np.ndarray:
        """Return the proximal points of the term; `t` is a number, or one per column."""
        model = self.model
        if model.prox is None:
            return V
        E = self._away(V).reshape(len(V), model.r, -1)
        sizes = np.broadcast_to(np.asarray(t, float), V.shape[1:]).reshape(E.shape[1:])[0]
        return self._point(model.prox(E, sizes).reshape(V.shape))


@dataclass(frozen=True)
class Linearization:
    """What a linear model is made of, and how many gradients it may take.

    Attributes
    ----------
    net : Network
    grad : callable
        `grad(X)`: the exact gradients, (m, d) -> (m, d).
    X0 : array (m, d)
        The initial points of the local agents.
    batches : callable, optional
        `batches(k)`: the function that evaluates the random draw k of a stochastic gradient.
    steps : int
        Steps of the run; few steps make few draws.
    bounded : bool
        Whether to look for gradients of bounded slope, which are far from linear in the first steps
        of a schedule.
    term : Term, optional
        Term of the functions, whose proximal points the solver takes.
    on_face : bool
        Whether the solver takes the proximal points of the functions with their term; the
        dimensions are then those in which the term is smooth.
    vanishing : bool
        Whether the noise of the random draws vanishes at the point, as with variance reduction.
    agents : int
        In short runs, how many top vectors of single agents are among the dimensions; 0 saves the
        gradients for them.
    """

    net: Reductions
    grad: Gradient
    X0: np.ndarray
    batches: Callable[[int], Gradient] | None = None
    steps: int = 0
    bounded: bool = False
    term: Term | None = None
    on_face: bool = False
    vanishing: bool = False
    agents: int = 0

    def face(self, x: np.ndarray) -> np.ndarray | csc_array | None:
        """Return a basis (d, q) of the face of the term at `x`; None where all dimensions are
        taken.
        """
        d, most = len(x), dimensions(self.net.n)
        few = evaluations(self.steps)
        if self.term is None or not (self.on_face or min(d, most) > few or d > most):
            return None
        basis = self.term.face(x).basis
        return basis if basis.shape[1] else None  # a vertex: as without a term

    def draws(self, r: int) -> int:
        """Return the number of random draws in `r` dimensions."""
        most = min(
            TUNING.more_draws * TUNING.draws if self.vanishing else TUNING.draws,
            max(TUNING.fewest_draws, TUNING.entries * 8 // (self.net.n * r * r)),
        )
        return int(
            np.clip(self.steps // (TUNING.part_of_gradients * (r + 1)), TUNING.fewest_draws, most)
        )


def linear_model(
    of: Linearization, x: np.ndarray, quadratic: bool = False
) -> tuple[GradientModel | None, np.ndarray | None, int]:
    """Return the linear model at the point `x`, on rank 0 (None on the others), the point, and the
    gradients; collective.

    Parameters
    ----------
    of : Linearization
    x : array (d,)
    quadratic : bool
        Whether the point is the minimizer that follows from the curvatures at `x`, by Newton's
        method.  If the gradient does not vanish there, the functions are not quadratic: the point
        is None, and so is the model.

    Notes
    -----
    In short runs, the curvatures are projected on Lanczos vectors of their average, as many as
    `evaluations` allows.  Otherwise: up to 100 dimensions (fewer with many agents: n r^2 <= 2^17),
    all curvatures are full, from d + 1 gradients; above, they are projected on r dimensions:
    Lanczos vectors of the average curvature, from the initial point on; the top vector of the
    agents of largest curvature; and the agents' gradients.
    """
    near, face = _Neighbourhood(of, x), of.face(x)
    if isinstance(face, np.ndarray) and face.size > TUNING.stack:
        return None, x, near.count
    images = near.span(face)
    H = near.curvatures(of.grad, near.G, images)
    near.count += near.r
    if quadratic and not near.minimize(H):
        return None, None, near.count
    if of.term is not None and near.V is None:
        near.follow(H)
    return near.model(H, face)


class _Neighbourhood:
    """The local agents' gradients near a point, in the dimensions of a model; its methods are
    collective.

    Attributes
    ----------
    x : array (d,)
    G : array (m, d)
        The gradients there.
    V : array (d, r) or None
        Basis of the dimensions; None for the coordinates themselves.
    count : int
        Gradients evaluated so far.
    """

    def __init__(self, of: Linearization, x: np.ndarray):
        self._of, self.count = of, 0
        self.V: np.ndarray | None = None
        self._h = TUNING.width * max(float(np.linalg.norm(x)), TUNING.least_point)
        self._move(x)
        self._widen()

    @property
    def r(self) -> int:
        """The number of dimensions."""
        return len(self.x) if self.V is None else self.V.shape[1]

    def _move(self, x: np.ndarray) -> None:
        self.x, self._at = x, np.tile(x, (len(self._of.X0), 1))
        self.G, self.count = self._of.grad(self._at), self.count + 1

    def _widen(self) -> None:
        """Widen the differences until they carry digits, where gradients are so large that the
        minimizer may be far away.
        """
        slope = self._of.net.mean(self.G)
        size = float(np.abs(slope).max(initial=0.0))
        while TUNING.large < size < np.inf and self._h < size:
            ahead = self._of.grad(self._at + self._h * (slope / size))
            self.count += 1
            if not np.abs(self._of.net.mean(ahead) - slope).max() < TUNING.digits * size:
                break
            self._h *= TUNING.wider

    def _in(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows in the dimensions of the model."""
        return rows if self.V is None else project(rows, self.V)

    def span(self, face: np.ndarray | csc_array | None) -> list[np.ndarray] | None:
        """Choose the dimensions; the products of the curvatures with them, where these are known.

        All of a small face, or of a small space; else Krylov vectors, in a large space of all
        agents' gradients, too.
        """
        of, d = self._of, len(self.x)
        most, few = dimensions(of.net.n), evaluations(of.steps)

        def onto(rows: np.ndarray) -> np.ndarray:
            if is_sparse(face):
                return np.ascontiguousarray((face @ (face.T @ rows.T)).T)
            return rows if face is None else project(project(rows, face), face.T)

        def product(rows: np.ndarray) -> np.ndarray:
            return onto((of.grad(self._at + self._h * onto(rows)) - self.G) / self._h)

        if face is not None and face.shape[1] <= min(most, few):
            self.V = face.toarray() if is_sparse(face) else face
        elif min(d, most) > few:
            return self._span_few(product, onto(of.X0 - self._at), few)
        elif d > most:
            away = onto(of.X0 - self._at)
            self.V, count = _basis(of.net, product, onto(self.G), away, most)
            self.count += count
        return None

    def _span_few(self, product: Gradient, away: np.ndarray, few: int) -> list[np.ndarray] | None:
        """Choose Lanczos vectors from `few` gradients, with the top vectors of some agents;
        their products, if there is memory for them.
        """
        of, (m, d) = self._of, away.shape
        agents = of.agents if of.net.n * d <= TUNING.stack else 0
        spared = min(TUNING.own_krylov + agents, few // 2) if agents else 0
        keep = of.net.n * d * few <= TUNING.images
        vectors, images = _lanczos(of.net, product, away, few - spared, keep)
        if agents:
            steepest = _top_directions(of.net, product, vectors, m, agents)
            self.count += TUNING.own_krylov
            images += [product(np.tile(row, (m, 1))) for row in steepest if keep]
            vectors = np.vstack([vectors, steepest])
        self.V = np.ascontiguousarray(vectors.T)
        if not keep:
            self.count += few - spared
        return images if keep else None

    def curvatures(
        self, gradient: Gradient, base: np.ndarray, known: list[np.ndarray] | None = None
    ) -> np.ndarray:
        """Return the local agents' curvatures (m, r, r), from differences of gradients with `base`,
        or `known` ones.
        """
        (m, d), r = base.shape, self.r
        H = np.empty((m, r, r))
        for j in range(r):
            if known is None:
                direction = np.eye(1, d, j)[0] if self.V is None else self.V[:, j]
                column = (gradient(self._at + self._h * direction) - base) / self._h
            else:
                column = known[j]
            H[:, :, j] = self._in(column)
        return np.asarray((H + H.transpose(0, 2, 1)) / 2)

    def minimize(self, H: np.ndarray) -> bool:
        """Go to the minimizer of the functions with these curvatures; whether the gradient
        vanishes there.
        """
        net, term = self._of.net, self._of.term
        t = 1.0 if term is None else 1 / _curvature(net, H)
        first = residual(term, self.x, net.mean(self.G), t)
        for _ in range(TUNING.newton):
            self._move(_newton(net, H, self.x, net.mean(self.G), term))
            if residual(term, self.x, net.mean(self.G), t) <= TUNING.vanished * first:
                return True
        return False

    def follow(self, H: np.ndarray) -> None:
        """Go to the minimizer of the model, without another gradient."""
        net = self._of.net
        x = _newton(net, H, self.x, net.mean(self.G), self._of.term)
        self.G = self.G + H @ (x - self.x)
        self.x, self._at = x, np.tile(x, (len(self.G), 1))

    def model(
        self, H: np.ndarray, face: np.ndarray | csc_array | None
    ) -> tuple[GradientModel | None, np.ndarray, int]:
        """Return the model here, on rank 0, with the point and the gradients taken."""
        of, net, x, term = self._of, self._of.net, self.x, self._of.term
        mean_gradient, away = net.mean(self.G), of.X0 - self._at
        g = self._in(self.G - mean_gradient * (term is None or of.on_face))
        distance = math.sqrt(net.sum((away**2).sum(axis=1, keepdims=True))[0])
        if face is not None and term is not None and of.on_face:
            H = self._on_face(H, term)
        Hs, gs = (H[None], g[None]) if of.batches is None else self._drawn(of.batches, H, g)
        far, slope = self._slopes(H) if of.bounded else (None, None)
        rows = (np.moveaxis(Hs, 0, 1), np.moveaxis(gs, 0, 1), self._in(away))
        stacks = [stack for stack in map(net.gather, rows) if stack is not None]
        if not stacks:
            return None, x, self.count
        Hs, gs = (np.ascontiguousarray(np.moveaxis(stack, 1, 0)) for stack in stacks[:2])
        mean = Hs.mean(axis=(0, 1))
        model = GradientModel(
            H=Hs,
            g=gs,
            start=stacks[2],
            mean=mean,
            size=float(np.linalg.norm(x)),
            curvature=float(np.linalg.eigvalsh(mean)[-1]) if np.isfinite(mean).all() else np.nan,
            distance=distance,
            far=far,
            slope=slope,
            V=self.V,
            prox=None if term is None or of.on_face else _proximal(term, x, mean_gradient, self.V),
        )
        return model, x, self.count

    def _on_face(self, H: np.ndarray, term: Term) -> np.ndarray:
        """Return the curvatures with those of the term on the face of the point."""
        H = H + term.l2 * np.eye(self.r)
        if self.V is not None and np.ndim(bend := term.face(self.x).bend):
            H = H + self.V.T @ bend @ self.V
        return H

    def _drawn(
        self, batches: Callable[[int], Gradient], H: np.ndarray, g: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the curvatures and gradients of some random draws, (s, m, r, r) and (s, m, r),
        around the exact ones.
        """
        H_drawn, g_drawn = [], []
        for k in range(self._of.draws(self.r)):
            gradient = batches(k)
            base = gradient(self._at)
            H_drawn.append(self.curvatures(gradient, base))
            g_drawn.append(self._in(base))
        self.count += len(g_drawn) * (self.r + 1)
        Hs, gs = np.stack(H_drawn), np.stack(g_drawn)
        if self._of.vanishing:
            return H + TUNING.remembered * (Hs - Hs.mean(axis=0)), np.broadcast_to(g, gs.shape)
        return Hs, gs - gs.mean(axis=0) + g

    def _slopes(self, H: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        """`far` and `slope` of all agents on rank 0; None on the others, and where no slope is
        bounded.

        The gradients are evaluated on both sides of the minimizer, along the direction of the
        largest average curvature.
        """
        net, V, G = self._of.net, self.V, self.G
        first = float(np.linalg.norm(net.mean(self._of.X0) - self.x))
        radius = TUNING.far_away * max(float(np.linalg.norm(self.x)), first)
        self.count += 4

        def top(stack: np.ndarray) -> np.ndarray:
            mean = np.nan_to_num(stack.reshape(net.n, *H.shape[1:]).mean(axis=0))
            u = np.linalg.eigh(mean)[1][:, -1]
            return np.asarray(u if V is None else V @ u)

        u = net.collectives.broadcast(
            _on_root(net, flat(H), top, np.empty(0)), 0, "the direction of the largest curvature"
        )
        v = u if V is None else V.T @ u
        here = ((H @ v) * v).sum(axis=1)
        found: list[np.ndarray] = []
        try:
            for t in (radius, -radius):
                inner = self._of.grad(self._at + t * u)
                outer = self._of.grad(self._at + 2 * t * u)
                h = ((outer - inner) * u).sum(axis=1) / t
                rest = inner - G - t * h[:, None] * u
                found.append(np.array([h, np.sqrt((rest**2).sum(axis=1))]))
        except Exception:  # of all ranks: there are no gradients so far away
            return None, None
        h, slope = np.mean(found, axis=0)
        linear = ~(h < TUNING.flatter * here) | ~np.isfinite(slope)
        stack = net.gather(np.array([np.where(linear, 0.0, h), np.where(linear, np.inf, slope)]).T)
        if stack is None or np.isinf(stack[:, 1]).all():
            return None, None
        return stack[:, 0].clip(min=0.0), stack[:, 1]


def evaluations(steps: int) -> int:
    """Gradients that the curvatures may take in a search for a run of `steps` steps, and as many
    those for the minimizer.
    """
    return max(TUNING.fewest_gradients, steps // TUNING.part_of_gradients - 1)


def dimensions(n: int) -> int:
    """Largest number of dimensions of a model of `n` agents."""
    return max(2, min(TUNING.most_dimensions, int((TUNING.entries / n) ** 0.5)))


def flat(X: np.ndarray) -> np.ndarray:
    """Return the rows of X without inner dimensions, also if there are none."""
    return X.reshape(len(X), math.prod(X.shape[1:]))


def _proximal(term: Term, x: np.ndarray, gradient: np.ndarray, V: np.ndarray | None) -> Prox:
    """Return the proximal points of a term around the minimizer `x`, exactly; or on the face of
    `x`, in a basis `V` of it.
    """
    if V is not None:
        # Minus that of the term, at the minimizer.
        slope = V.T @ gradient
        return lambda E, t: np.asarray((E + slope[:, None] * t) / (1 + term.l2 * t))

    def prox(E: np.ndarray, t: np.ndarray) -> np.ndarray:
        rows = E.transpose(0, 2, 1).reshape(-1, len(x)) + x
        points = term.prox(rows, np.tile(t, len(E))) - x
        return np.asarray(points.reshape(len(E), len(t), len(x)).transpose(0, 2, 1))

    return prox


def _curvature(net: Reductions, H: np.ndarray) -> float:
    """Return the largest eigenvalue of the average of the curvatures of all agents, or 1 if there
    is none above 0; collective.
    """

    def act(stack: np.ndarray) -> float:
        mean = np.nan_to_num(stack.reshape(net.n, *H.shape[1:]).mean(axis=0))
        return float(np.linalg.eigvalsh(mean)[-1])

    largest = net.collectives.broadcast(_on_root(net, flat(H), act, 0.0), 0, "the curvature")
    return largest if largest > 0 else 1.0


def _newton(
    net: Reductions, H: np.ndarray, x: np.ndarray, gradient: np.ndarray, term: Term | None
) -> np.ndarray:
    """Return the minimizer of the quadratic model at `x` with the average of the curvatures of all
    agents, plus the term; collective.
    """

    def act(stack: np.ndarray) -> np.ndarray:
        mean = np.nan_to_num(stack.reshape(net.n, *H.shape[1:]).mean(axis=0))
        if term is None:
            return np.asarray(x - np.linalg.lstsq(mean, gradient, rcond=1e-12)[0])
        pull = mean @ x - gradient
        try:
            return composite.minimize(
                lambda y: float(y @ (mean @ y) / 2 - pull @ y),
                lambda y: mean @ y - pull,
                lambda y: mean,
                lambda y: float(np.linalg.norm(np.abs(mean) @ np.abs(y) + np.abs(pull))),
                x0=x,
                smoothness=float(np.linalg.eigvalsh(mean)[-1]),
                term=term,
                factor=1.0,
            )
        except ValueError:
            return x

    return np.asarray(net.collectives.broadcast(_on_root(net, flat(H), act, x), 0, "Newton's step"))


def _scaled(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / (np.abs(rows).max() or 1.0))


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the span of `columns`, without directions that are smaller
    than the largest by `TUNING.negligible`.
    """
    values, Q = np.linalg.eigh(columns @ columns.T)
    return np.asarray(Q[:, values > max(TUNING.negligible**2 * values[-1], 0.0)])


def project(rows: np.ndarray, V: np.ndarray) -> np.ndarray:
    """`rows @ V`, one row after the other: the same bits for any number of local agents."""
    return np.asarray((rows[:, None, :] @ V)[:, 0])


def _on_root(net: Reductions, rows: np.ndarray, act: Callable[[np.ndarray], T], otherwise: T) -> T:
    """Return the result of `act` on the rows of all agents on rank 0, and `otherwise` on the
    others.
    """
    stack = net.gather(rows)
    return otherwise if stack is None else act(stack)


def _bounded(G: np.ndarray, far: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return the gradients `G` without g_i, of which the part beyond `far`, h_i e, has at most the
    norm `slope`.
    """
    G -= far
    G *= np.minimum(1.0, slope / np.sqrt((G**2).sum(axis=1, keepdims=True)).clip(min=TUNING.tiny))
    G += far
    return G


def _basis(
    net: Reductions, product: Gradient, G: np.ndarray, away: np.ndarray, most: int
) -> tuple[np.ndarray, int]:
    """Return an orthonormal basis (d, r), r <= `most`, and the number of gradients that it took."""
    m, d = G.shape
    length = min(TUNING.krylov, max(2, most // 2), d)
    parts = [_lanczos(net, product, away, length)[0]]
    count = length
    if net.n * d <= TUNING.stack:
        chosen = _steepest(net, product, m, d, TUNING.agents)
        count += TUNING.own_krylov
        gradients = _on_root(net, G, _principal, None)
        parts += [part for part in (chosen, gradients) if part is not None]
    basis = np.empty((d, 0))
    if net.rank == 0:
        rows = [row for part in parts[1:] for row in part]
        rest = np.array(rows).reshape(-1, d)
        rest = rest - (rest @ parts[0].T) @ parts[0]
        _, s, Vt = np.linalg.svd(rest, full_matrices=False)
        basis = np.ascontiguousarray(
            np.linalg.qr(np.vstack([parts[0], Vt[s > TUNING.negligible]])[:most].T)[0]
        )
    return net.collectives.broadcast(basis, 0, "the linear model"), count


def _lanczos(
    net: Reductions, product: Gradient, away: np.ndarray, length: int, keep: bool = False
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Orthonormal rows (length, d) from Lanczos' method for the average curvature, begun at the
    initial point, with full
    orthogonalization, and, if `keep`, their products with the curvatures of the local agents.
    """
    m, d = away.shape
    v: np.ndarray = net.mean(away)
    vectors: list[np.ndarray] = []
    images: list[np.ndarray] = []
    for _ in range(length):
        for u in vectors * 2:
            v = v - u * (u @ v)
        norm = float(np.linalg.norm(v))
        if not norm > 0 or not np.isfinite(norm):
            v = np.asarray(np.random.default_rng(len(vectors)).standard_normal(d))
            for u in vectors * 2:
                v = v - u * (u @ v)
            norm = float(np.linalg.norm(v))
        vectors.append(v / norm)
        image = product(np.tile(vectors[-1], (m, 1)))
        if keep:
            images.append(image)
        v = net.mean(image)
    return np.array(vectors), images


def _top_directions(
    net: Reductions, product: Gradient, vectors: np.ndarray, m: int, most: int
) -> np.ndarray:
    """Orthonormal rows that complete `vectors` by the top vectors of the `most` agents of
    largest curvature; collective.
    """
    found = _steepest(net, product, m, vectors.shape[1], most)
    rows = vectors[:0] if found is None else found
    rest = rows - (rows @ vectors.T) @ vectors
    _, s, Vt = np.linalg.svd(rest - (rest @ vectors.T) @ vectors, full_matrices=False)
    return np.asarray(net.collectives.broadcast(Vt[s > TUNING.negligible], 0, "the linear model"))


def _steepest(net: Reductions, product: Gradient, m: int, d: int, most: int) -> np.ndarray | None:
    """Return the top vectors of the `most` agents of largest curvature, the steepest first, on
    rank 0; None on the others.  Collective.
    """
    curvature, top = _top_vectors(product, m, d)
    stack = net.gather(curvature)
    first = None if stack is None else np.argsort(-stack, kind="stable")[:most]
    chosen = np.asarray(net.collectives.broadcast(first, 0, "the steepest agents"))
    ascending = np.sort(chosen)
    mine = ascending[(net.lo <= ascending) & (ascending < net.hi)] - net.lo
    counts = np.bincount(Partition(net.n, net.size).owner(chosen), minlength=net.size)
    rows = net.gather_rows(top[mine], counts)
    return None if rows is None else rows[np.searchsorted(ascending, chosen)]


def _principal(G: np.ndarray) -> np.ndarray:
    G = G - G.mean(axis=0)
    _, s, Vt = np.linalg.svd(G, full_matrices=False)
    return Vt[s > TUNING.negligible * max(float(s[0]), TUNING.tiny)][: TUNING.agents]


def _top_vectors(product: Gradient, m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest curvature of each local agent, and its direction, after a few Lanczos
    steps of its own.
    """
    start = np.random.default_rng(3).standard_normal(d)
    v = np.tile(start / np.linalg.norm(start), (m, 1))
    basis, images = [], []
    for _ in range(min(TUNING.own_krylov, d)):
        basis.append(v)
        images.append(product(v))
        v = images[-1]
        for u in basis * 2:
            v = v - u * (u * v).sum(axis=1)[:, None]
        v = v / np.maximum(np.linalg.norm(v, axis=1), TUNING.tiny)[:, None]
    Q, P = np.stack(basis, axis=1), np.stack(images, axis=1)  # (m, l, d)
    T = np.nan_to_num(Q @ P.transpose(0, 2, 1))
    values, S = np.linalg.eigh((T + T.transpose(0, 2, 1)) / 2)
    top = (Q.transpose(0, 2, 1) @ S[:, :, -1:])[:, :, 0]
    return values[:, -1], top
