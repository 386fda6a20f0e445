"""Mean and covariance of the state of a solver under noisy gradients, and their limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import chain, cycle, islice

import numpy as np

from ..solvers.internals import name_of
from .linear import Array, LinearSteps, Step
from .links import LinkedSteps, WeightedSteps
from .noise import Noise, block_diagonal
from .quadratic import Quadratic

# Squarings of the map of a cycle: 2^DOUBLINGS cycles, at most; what counts as a change of the
# covariance, and of the mean.
DOUBLINGS, CHANGE, MOVED = 40, 1e-6, 1e-8
# Steps of schedules that never repeat, over which the steady state is an average: first, and at
# most; what counts as settled, and as growth without end: by a factor, and the ratio of the last
# two increments, which tends to 2 for a random walk, as the averages take twice as many steps each.
SHORT, LONG, SETTLES, GROWS, WALKS = 512, 4096, 0.02, 1e6, 1.8
# Singular values of J - I up to which a part of the state is conserved; what of a state in it is
# rounding; and the least angle between its left and right eigenvectors.
CONSERVED, ROUNDING, ANGLE = 1e-13, 1e-12, 1e-6
# Repetitions, at most, of a steady state whose noise depends on it; relative change of the last.
REPEATS, SAME = 200, 1e-4
# Relative distance below which a step counts as none: rounding errors.
STAYS = 1e-9
# Cycles, at least and at most, after which the growth of the mean square shows; its change then.
FEW, MANY, STEADY = 20, 2000, 1e-7


def rest(steps: LinearSteps, X: Array, B: Array) -> Array:
    """Return the limit of the iterates without noise, at the first step of a cycle.

    Parameters
    ----------
    steps : Steps
        That repeat.
    X, B : array (n, d, S)
        Initial points, and the b_i of the quadratics, of S problems.

    Returns
    -------
    array (n, d, S)

    Examples
    --------
    >>> import mpidec
    >>> with mpidec.Network(2) as net:
    ...     W = net.mixer(mpidec.topology.ring(2))
    ...     steps = LinearSteps(mpidec.solvers.Diffusion(0.4), W, np.ones((2, 1, 1)))
    ...     rest(steps, np.zeros((2, 1, 1)), np.array([[[1.0]], [[3.0]]])).ravel().round(6)
    array([2., 2.])
    """
    return (steps.observe() @ _rest(steps, X, B)).reshape(X.shape)


def _rest(steps: LinearSteps, X: Array, B: Array) -> Array:
    """Return the limit of the packed states without noise."""
    z, J = steps.state(X.reshape(steps.n, -1), B), np.eye(steps.size)
    b, c = B.reshape(steps.n * steps.d, -1), 0 * z
    for step in steps.cycle:  # the cycle as one map
        J, c = step.M @ J, step.M @ c + step.E @ b
    return _limit(J, c, (), steps.observe(), z)[0]


def deviations(steps: LinearSteps, part: Quadratic, X: Array, noise: Noise) -> Array:
    """Bias and noise of each agent, (2, n)."""
    with np.errstate(all="ignore"):  # of deviations that grow without a limit
        if isinstance(steps, LinkedSteps) and steps.weighted:
            b = part.b
            z = _rest(steps, X[:, :, None], b)
            if not np.isfinite(z).all():
                return np.full((2, steps.n), math.inf)
            steps = WeightedSteps(steps, z, b.reshape(-1, 1))
        return (_periodic if steps.periodic else _average)(steps, part, X, noise)


def course(steps: LinearSteps, part: Quadratic, X: Array, noise: Noise, count: int) -> Array:
    """Bias and noise of each agent before each of some steps, and after the last, (count + 1, 2,
    n).
    """
    if isinstance(steps, LinkedSteps) and steps.weighted:
        raise ValueError(
            f"theory: {name_of(steps.solver)} sends weights, whose noise moves the mean, expected "
            "no link_noise for its transient"
        )
    begun = steps.begun()
    maps: Iterator[Step] = begun.maps()
    if steps.periodic and steps.first < count:
        maps = chain(islice(maps, steps.first), cycle(steps.cycle))
    moments = _Moments(begun, part, X, noise)
    sizes = [moments.sizes()]
    with np.errstate(all="ignore"):  # of deviations that grow without a limit
        for step in islice(maps, count):
            moments.after(step)
            sizes.append(moments.sizes())
    return np.array(sizes)


def growth(steps: LinearSteps, noise: Noise) -> float:
    """Return the factor per cycle of the mean square of the error, without the noise at the
    minimizer.
    """
    P, factor, (n, d) = steps.asked(), math.inf, noise.sigma.shape[:2]
    starts, agents = steps.starts().V, np.arange(n)
    V = starts @ starts.conj().T
    with np.errstate(all="ignore"):
        for k in range(MANY):
            V = V / np.trace(V).real
            for step in steps.cycle:
                own = (P @ V @ P.conj().T).reshape(n, d, n, d)[agents, :, agents]
                S = block_diagonal(noise.gained(own))
                V = step.M @ V @ step.M.conj().T + step.E @ S @ step.E.conj().T
            before, factor = factor, float(np.trace(V).real)
            if k >= FEW and not abs(factor - before) > STEADY * factor:
                break
    return factor if math.isfinite(factor) else math.inf


class _Moments:
    """Mean and covariance of the packed state, step by step.

    Attributes
    ----------
    z : array (N, 1)
    V : array (N, N)
    """

    def __init__(self, steps: LinearSteps, part: Quadratic, X: Array, noise: Noise):
        self._noise, self._shape = noise, part.g.shape
        x = _origin(steps, part)
        b = dataclasses.replace(part, x_star=x).b
        self._x_star = np.broadcast_to(x, part.g.shape).reshape(-1, 1)
        self._walk, self._C, self._asked = steps.walk, steps.observe(), steps.asked()
        self._b = np.vstack([b.reshape(-1, 1), np.zeros((len(steps.walk), 1))])
        self.z = steps.state(X + x - part.x_star, b)
        self.V = np.zeros((len(self.z), len(self.z)), steps.dtype)

    def covariance(self) -> Array:
        """That of the noise of the next step, (n d, n d), and of the walk."""
        from scipy.linalg import block_diag

        (n, d), P = self._shape, self._asked
        V = (P @ self.V @ P.conj().T).reshape(n, d, n, d)[np.arange(n), :, np.arange(n)]
        noise = self._noise.at((P @ self.z - self._x_star).reshape(n, d), V)
        return np.asarray(block_diag(noise, self._walk))

    def after(self, step: Step) -> None:
        """Take a step."""
        S = self.covariance()
        self.z = step.M @ self.z + step.E @ self._b
        if not (S.any() or self.V.any() or np.any(step.links)):
            return
        self.V = step.M @ self.V @ step.M.conj().T + step.E @ S @ step.E.conj().T + step.links

    def sizes(self) -> Array:
        """Bias and noise of each agent, (2, n)."""
        C, n = self._C, self._shape[0]
        bias = (np.abs(C @ self.z - self._x_star) ** 2).reshape(n, -1).sum(axis=1)
        return np.array([bias, np.diag(C @ self.V @ C.T).real.reshape(n, -1).sum(axis=1)])

    def settle(self, cycle: list[Step]) -> bool:
        """Replace mean and covariance by their limits over a cycle, with the present noise; return
        whether they exist.
        """
        J, c, S = np.eye(len(self.V)), 0 * self.z, self.covariance()
        F = L = 0 * self.V  # of gradients, and of links, whose units have nothing to do with theirs
        for step in cycle:  # the cycle as one map
            J, c = step.M @ J, step.M @ c + step.E @ self._b
            F = step.M @ F @ step.M.conj().T + step.E @ S @ step.E.conj().T
            L = step.M @ L @ step.M.conj().T + step.links
        self.z, self.V = _limit(J, c, (F, L), self._C, self.z)
        return bool(np.isfinite(self.z).all())


def _origin(steps: LinearSteps, part: Quadratic) -> Array:
    """Return where to place the minimizer: at zero, where rounding errors are smallest, if agents
    that start at a common minimizer, or at their own, stay there; else its true position.
    """
    X = part.points
    B = dataclasses.replace(part, g=0 * part.g).b
    for k in (1, steps.length, steps.first):
        x = steps.observe() @ steps.state(X, B, k)
        if abs(x - X.reshape(-1, 1)).max() > STAYS * abs(X).max(initial=0.0):
            return part.x_star
    return 0 * part.x_star


def _periodic(steps: LinearSteps, part: Quadratic, X: Array, noise: Noise) -> Array:
    """Bias and noise of each agent, in the mean over a cycle, (2, n)."""
    moments, before = _Moments(steps, part, X, noise), np.full((2, steps.n), math.inf)
    # The noise depends on the deviations where curvatures are drawn.
    for _ in range(REPEATS):
        if not moments.settle(steps.cycle):
            return np.full((2, steps.n), math.inf)
        sums = np.zeros((2, steps.n))
        for step in steps.cycle:
            moments.after(step)
            sums += moments.sizes() / len(steps.cycle)
        if noise.change is None or abs(sums - before).max() <= SAME * sums.max():
            return sums
        before = sums
    return np.full((2, steps.n), math.inf)


def _average(steps: LinearSteps, part: Quadratic, X: Array, noise: Noise) -> Array:
    """Bias and noise of each agent, in the mean over the steps of a schedule that never repeats,
    (2, n).
    """
    moments, before, earlier = _Moments(steps, part, X, noise), math.inf, -math.inf
    maps, length = steps.maps(), SHORT
    while True:
        sums = np.zeros((2, steps.n))
        for step in islice(maps, length):
            moments.after(step)
            sums += moments.sizes() / length
        if not np.isfinite(sums).all() or sums.sum() > GROWS * before:
            return np.full_like(sums, math.inf)
        more = sums.sum() - before
        if length >= LONG and more > WALKS * (before - earlier) > 0:
            return np.full_like(sums, math.inf)
        if abs(more) <= SETTLES * sums.sum() or length >= LONG:
            return sums
        before, earlier, length = sums.sum(), before, 2 * length


def _limit(
    J: Array, c: Array, sources: tuple[Array, ...], C: Array, z: Array
) -> tuple[Array, Array]:
    r"""Return the limits of :math:`z \gets J z + c` and :math:`V \gets J V J^* + F`, F the sum over
    the sources of noise, as far as C shows them, by squaring J; infinite where there are none.
    """
    size, F = max(abs(C @ z).max(), abs(C @ c).max()), sum(sources, 0 * J)
    if any(_walks(J, source, C) for source in sources):
        return np.full_like(z, math.inf), np.full((len(J), len(J)), math.inf, F.dtype)
    Q, same = _changing(J, c, sources, z)
    J, F, C = Q.conj().T @ J @ Q, Q.conj().T @ F @ Q, C @ Q
    z, c = Q.conj().T @ (z - same), Q.conj().T @ c
    # Each turn composes the map with itself: after t turns, J, c and V are those of 2^t cycles.
    V, before = F, False
    for _ in range(DOUBLINGS):
        more, moved = J @ V @ J.conj().T, J @ z + c - z
        V, z, c, J = V + more, z + moved, J @ c + c, J @ J
        total, x = abs(np.diag(C @ V @ C.conj().T)).sum(), C @ z
        if not (np.isfinite(total) and np.isfinite(x).all()):
            break
        settled = abs(np.diag(C @ more @ C.conj().T)).sum() <= CHANGE * total
        settled = settled and abs(C @ moved).max() <= MOVED * max(abs(x).max(), size)
        # Twice in a row, as one change may vanish by chance, by symmetry for example.
        if settled and before:
            return Q @ z + same, Q @ V @ Q.conj().T
        before = settled
    return np.full_like(same, math.inf), np.full((len(Q), len(Q)), math.inf, V.dtype)


def _small(part: Array, whole: Array, than: float = CHANGE) -> bool:
    return bool(abs(part).max(initial=0.0) <= than * abs(whole).max(initial=0.0))


def _walks(J: Array, F: Array, C: Array) -> bool:
    """Return whether C shows a random walk of a quantity that J conserves, however slow relative to
    the other modes.
    """
    left, right = _conserved(J)
    G = left.conj().T @ right
    if not G.size or np.linalg.svd(G, compute_uv=False).min() < ANGLE:
        return False
    # Entries at rounding errors would make a walk of what is not excited.
    weights = np.where(abs(left) > ROUNDING * abs(left).max(), left, 0).conj().T
    seen = C @ right
    seen = np.where(abs(seen) > STAYS * abs(right).max(), seen, 0)
    shown, sizes = seen @ np.linalg.inv(G), np.sqrt(abs(np.diag(F)))
    walk = np.sqrt(abs(np.diag(shown @ weights @ F @ weights.conj().T @ shown.conj().T)))
    return bool((walk > 1e-3 * (abs(shown) @ (abs(weights) @ sizes))).any())


def _conserved(J: Array) -> tuple[Array, Array]:
    """Return bases of the left and the right eigenvectors of J of the eigenvalue 1."""
    U, s, Wh = np.linalg.svd(J - np.eye(len(J)))
    few = s <= CONSERVED * max(s.max(initial=0.0), 1.0)
    return U[:, few], Wh[few].conj().T


def _excited(left: Array, c: Array, sources: tuple[Array, ...]) -> bool:
    """Return whether c, or noise of one of the sources, by its covariance, reaches what the left
    eigenvectors conserve, each part of the state in its own unit: noise of trackers, in the unit of
    gradients, may be smaller than that of the iterates by any factor.
    """
    weights = np.where(abs(left) > ROUNDING * abs(left).max(), left, 0).conj().T
    moved = abs(weights @ c) > CHANGE * (abs(weights) @ abs(c))
    for F in sources:
        sizes = np.sqrt(abs(np.diag(F)))
        noisy = abs(weights @ F) > CHANGE * np.outer(abs(weights) @ sizes, sizes)
        moved = moved | noisy.any(axis=1, keepdims=True)
    return bool(moved.any())


def _changing(J: Array, c: Array, sources: tuple[Array, ...], z: Array) -> tuple[Array, Array]:
    """Return an orthonormal basis of the states without a part that J conserves, and c and the
    noise do not reach, and that part of z; a basis of all, and zero, where they reach it.

    Rounding errors would grow in that part.  It is taken off by left eigenvectors, which are
    orthogonal to the rest: with small step sizes, the right ones are nearly parallel to it.
    """
    U, s, Wh = np.linalg.svd(J - np.eye(len(J)))
    few = s <= CONSERVED * max(s.max(initial=0.0), 1.0)
    left, right = U[:, few], Wh[few].conj().T
    held = left.conj().T @ z
    if not few.any() or _excited(left, c, sources):
        return np.eye(len(J)), 0 * z
    if _small(held, z, ROUNDING):
        return U[:, ~few], 0 * z
    G = left.conj().T @ right
    if np.linalg.svd(G, compute_uv=False).min() < ANGLE:
        return np.eye(len(J)), 0 * z
    return U[:, ~few], np.asarray(right @ np.linalg.solve(G, held))
