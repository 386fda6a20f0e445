"""Adaptive filters over a network, which take samples in place of gradients: recursive least
squares, affine projection, Kalman filters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from .. import _validation as check
from ..protocols import Functions, Motion, Operator, Sample
from .base import Solver, name_of
from .needs import Needs, Positive, Within


class SampleSolver(Solver):
    """Base class of solvers whose `step` takes the samples of the agents, `step(s, sample, W)`:
    what they measure in this step (`mpidec.protocols.Sample`).

    Examples
    --------
    >>> import mpidec
    >>> mpidec.solvers.AffineProjection.needs.functions
    ('sample',)
    """

    needs: ClassVar = Needs(functions=("sample",), kinds=("doubly", "row"))
    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False
    exact: ClassVar = False
    adaptive: ClassVar = True
    columnwise: ClassVar = False

    def ask(self, F: Functions, s: Any) -> Any:
        return F.sample(s.X)


def stacked(sample: Sample) -> np.ndarray:
    """Return the samples as rows :math:`[H_i, y_i]`, (m, p, d + 1)."""
    return np.concatenate([sample.H, sample.y[:, :, None]], axis=2)


def times(A: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Return :math:`A_i x_i`, (m, p, d), (m, d) -> (m, p): the same bits wherever row i lives."""
    product: np.ndarray = (A * X[:, None]).sum(axis=2)
    return product


def adjoint(A: np.ndarray) -> np.ndarray:
    """Return :math:`A_i^*`."""
    turned: np.ndarray = A.conj().swapaxes(1, 2)
    return turned


def scaled_identity(X: np.ndarray, factor: float) -> np.ndarray:
    """Return a multiple of the identity for each row of X, (m, d, d)."""
    return np.tile(factor * np.eye(X.shape[1], dtype=X.dtype), (len(X), 1, 1))


def information(sample: Sample, W: Operator, exchange: bool) -> tuple[np.ndarray, np.ndarray]:
    r"""Return what the samples of each agent, or with `exchange` of it and its neighbours, tell:

    .. math::
        S_i = \sum_{l \in \mathcal N_i} H_l^* R_l^{-1} H_l, \qquad
        q_i = \sum_{l \in \mathcal N_i} H_l^* R_l^{-1} y_l

    Examples
    --------
    >>> sample = Sample(np.ones((1, 2, 1)), np.array([[1.0, 3.0]]), np.eye(2)[None] / 4)
    >>> [float(part.item()) for part in information(sample, None, exchange=False)]
    [8.0, 16.0]
    """
    Z = np.linalg.solve(np.linalg.cholesky(sample.R), stacked(sample))
    N = adjoint(Z) @ Z
    if exchange and W.n > 1:
        Z = W.exchange(W.to_edges(Z))
        N = N + W.sum_edges(adjoint(Z) @ Z)
    return N[:, :-1, :-1], N[:, :-1, -1]


@dataclass(frozen=True)
class DiffusionRLS(SampleSolver):
    r"""Diffusion RLS: recursive least squares with the samples and the estimates of the neighbours.

    .. math::
        \Omega_i^{k+1} &= \lambda \Omega_i^k + S_i^k, \qquad
        S_i^k = \sum_{l \in \mathcal N_i} H_l^* R_l^{-1} H_l, \quad
        q_i^k = \sum_{l \in \mathcal N_i} H_l^* R_l^{-1} y_l \\
        \Psi_i^k &= X_i^k + (\Omega_i^{k+1})^{-1} (q_i^k - S_i^k X_i^k), \qquad X^{k+1} = W^k \Psi^k

    Of a filter, :math:`H_l = u_l^T` and :math:`R_l = \sigma_l^2`, the variance of its noise.  The
    paper's incremental update, neighbour by neighbour, has the same result, by the matrix inversion
    lemma, with :math:`P = \Omega^{-1}`.

    Parameters
    ----------
    forgetting : float
        :math:`\lambda`, in (0, 1]: samples count for some :math:`1 / (1 - \lambda)` steps.
    regularization : float
        :math:`\Omega^0 = \delta I`, :math:`\delta > 0`.
    exchange : bool
        Whether neighbours exchange samples (the sums over :math:`\mathcal N_i`, with i itself);
        otherwise estimates only.

    Notes
    -----
    Sent per step to each neighbour: the p samples, p (d + 1) numbers, and one row.  `W`: doubly or
    row stochastic, constant or varying in time.  The samples of all neighbours have the weight 1,
    as the estimates have those of `W`.  A lost message carries no information.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> w = np.array([1.0, -2.0])
    >>> def draw(rng, agent, k):
    ...     u = rng.standard_normal(2)
    ...     return u, u @ w + 0.1 * rng.standard_normal()
    >>> stream = mpidec.problems.Stream(draw, m=8, d=2, x_star=w, noise=0.1)
    >>> result = mpidec.solve(stream, DiffusionRLS(0.99), "ring", steps=200)
    >>> bool(result.metrics["error_rms"][-1] < 0.005)
    True

    References
    ----------
    F. Cattivelli, C. Lopes, A. Sayed, "Diffusion recursive least-squares for distributed estimation
    over adaptive networks", IEEE TSP 56 (2008), algorithm 1.
    """

    needs: ClassVar = Needs(functions=("sample",), kinds=("doubly", "row"), exchange=True)
    step_size = 1
    forgetting: Annotated[float, Within(above=0.0, most=1.0)] = 0.995
    regularization: Positive = 0.01
    exchange: bool = True

    class State(NamedTuple):
        X: np.ndarray
        Omega: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, scaled_identity(X, self.regularization))

    def step(self, s: State, sample: Sample, W: Operator) -> State:
        S, q = information(sample, W, self.exchange)
        Omega = self.forgetting * s.Omega + S
        Psi = s.X + np.linalg.solve(Omega, (q - times(S, s.X))[:, :, None])[:, :, 0]
        return self.State(W(Psi), Omega)


@dataclass(frozen=True)
class AffineProjection(SampleSolver):
    r"""Diffusion affine projection: each agent moves towards the estimates that explain its newest
    samples, then the estimates are averaged.

    .. math::
        \Psi_i^k = X_i^k + \mu U_i^* (\epsilon I + U_i U_i^*)^{-1} (y_i - U_i X_i^k), \qquad
        X^{k+1} = W^k \Psi^k

    :math:`U_i`, :math:`y_i`: the newest K samples of agent i.  With K = 1, diffusion NLMS.

    Parameters
    ----------
    step_size : float
        :math:`\mu`, in (0, 2).
    window : int
        K.
    regularization : float
        :math:`\epsilon > 0`.

    Notes
    -----
    Sent per step: one row to each neighbour.  `W`: doubly or row stochastic, constant or varying in
    time.

    Examples
    --------
    >>> AffineProjection(0.2, window=3)
    AffineProjection(step_size=0.2, window=3, regularization=0.001)

    References
    ----------
    L. Li, J. Chambers, "Distributed adaptive estimation based on the APA algorithm over diffusion
    networks with changing topology", IEEE Workshop on Statistical Signal Processing 2009.
    """

    step_size: Annotated[float, Within(above=0.0, below=2.0)] = 0.5
    window: int = 4
    regularization: Positive = 1e-3

    class State(NamedTuple):
        X: np.ndarray
        Z: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer(self.window, f"{name_of(self)}: window")

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        m, d = X.shape
        return self.State(X, np.zeros((m, self.window, d + 1), X.dtype))

    def step(self, s: State, sample: Sample, W: Operator) -> State:
        Z = np.concatenate([stacked(sample), s.Z], axis=1)[:, : self.window]
        U, e = Z[:, :, :-1], Z[:, :, -1] - times(Z[:, :, :-1], s.X)
        gram = self.regularization * np.eye(self.window, dtype=Z.dtype) + U @ adjoint(U)
        return self.State(
            W(
                s.X
                + self.step_size * times(adjoint(U), np.linalg.solve(gram, e[:, :, None])[:, :, 0])
            ),
            Z,
        )


@dataclass(frozen=True)
class DiffusionKalman(SampleSolver):
    r"""Diffusion Kalman filter: time update, measurement update with the measurements of the
    neighbours, and an average of their estimates.

    .. math::
        \hat X_i &= F X_i^k, & \hat P_i &= F P_i^k F^* + Q, \\
        P_i^{k+1} &= (I + \hat P_i S_i^k)^{-1} \hat P_i, &
        \Psi_i &= \hat X_i + P_i^{k+1} (q_i^k - S_i^k \hat X_i), \qquad X^{k+1} = W^k \Psi

    with :math:`S_i^k`, :math:`q_i^k` of `DiffusionRLS`.  The paper's incremental update has the
    same result, and its information form is this one, with the inverse of :math:`P`.

    Parameters
    ----------
    variance : float
        :math:`P^0 = \pi I`: the variance of each coordinate of the initial estimate.
    exchange : bool
        Whether neighbours exchange measurements; otherwise estimates only.

    Notes
    -----
    Sent per step to each neighbour: the p measurements, p (d + 1) numbers, and one row.  `W`:
    doubly or row stochastic, constant or varying in time.  :math:`P_i` is the covariance of the
    estimate before the average, :math:`\Psi_i`, if the neighbours' estimates were exact copies:
    what is left after it, `mpidec.theory.steady_state` predicts.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> F, H = np.array([[1.0, 1.0], [0.0, 1.0]]), np.tile([[1.0, 0.0]], (6, 1, 1))
    >>> target = mpidec.problems.StateSpace(F, 1e-4 * np.eye(2), H, R=0.25)
    >>> result = mpidec.solve(target, DiffusionKalman(), "ring", steps=100)
    >>> result.metrics["error_rms"][-1] < 0.1
    np.True_

    References
    ----------
    F. Cattivelli, A. Sayed, "Diffusion strategies for distributed Kalman filtering and smoothing",
    IEEE TAC 55 (2010), algorithms 2 and 3.
    """

    needs: ClassVar = Needs(functions=("sample", "motion"), kinds=("doubly", "row"), exchange=True)
    step_size = 1
    variance: Positive = 1.0
    exchange: bool = True

    class State(NamedTuple):
        X: np.ndarray
        P: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, scaled_identity(X, self.variance))

    def ask(self, F: Functions, s: State) -> tuple[Motion, Sample]:
        return F.motion(), F.sample(s.X)

    def step(self, s: State, given: tuple[Motion, Sample], W: Operator) -> State:
        (X, P), (S, q) = predicted(s, given[0]), information(given[1], W, self.exchange)
        P = np.linalg.solve(np.eye(X.shape[1], dtype=X.dtype) + P @ S, P)
        return self.State(W(X + times(P, q - times(S, X))), P)


@dataclass(frozen=True)
class InformationKalman(DiffusionKalman):
    r"""Kalman filter with consensus on information: what is averaged is the information of the
    estimates, with which less certain ones count less.

    .. math::
        \hat X_i &= F X_i^k, \quad \hat P_i = F P_i^k F^* + Q, \\
        [\Omega, \omega] &= W^k [\hat P^{-1} + S^k, \; \hat P^{-1} \hat X + q^k], \qquad
        P^{k+1}_i = \Omega_i^{-1}, \quad X^{k+1}_i = \Omega_i^{-1} \omega_i

    with :math:`S_i^k`, :math:`q_i^k` of `DiffusionRLS`.  :math:`P_i` is then no less than the
    covariance of the error, whatever the errors of the agents have in common.

    Parameters
    ----------
    variance, exchange : see `DiffusionKalman`

    Notes
    -----
    Sent per step to each neighbour: d + 1 rows, and with `exchange` the measurements.  `W`: doubly
    or row stochastic, constant or varying in time.  F and Q such that :math:`\hat P` has an
    inverse.

    Examples
    --------
    >>> InformationKalman()
    InformationKalman(variance=1.0, exchange=False)

    References
    ----------
    G. Battistelli, L. Chisci, "Kullback-Leibler average, consensus on probability densities, and
    distributed state estimation with guaranteed stability", Automatica 50 (2014), section 4.
    """

    exchange: bool = False

    def step(
        self, s: DiffusionKalman.State, given: tuple[Motion, Sample], W: Operator
    ) -> DiffusionKalman.State:
        (X, P), (S, q) = predicted(s, given[0]), information(given[1], W, self.exchange)
        Omega = np.linalg.inv(P)
        omega = times(Omega, X) + q
        Omega, omega = W([Omega + S, omega])
        P = np.linalg.inv(Omega)
        return self.State(times(P, omega), P)


def predicted(s: DiffusionKalman.State, motion: Motion) -> tuple[np.ndarray, np.ndarray]:
    """Return the estimates and covariances after the motion,
    :math:`F X_i`, :math:`F P_i F^* + Q`.
    """
    F, Q = (np.asarray(part, s.X.dtype) for part in motion)
    P = F @ s.P @ F.conj().T + Q
    return times(F[None], s.X), P
