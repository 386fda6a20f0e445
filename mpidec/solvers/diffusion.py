"""Consensus and diffusion: average, and descend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from .._words import warn
from ..comm.kernels import descend
from ..protocols import Functions, Graph, Operator
from .base import _LARGE, REMEDIES, Bias, Solver, averages, name_of, needed
from .needs import Needs, OneOf
from .step_schedules import StepSize


@dataclass(frozen=True)
class Consensus(Solver):
    r"""Average consensus: every agent ends with the average of all starting points.

    .. math:: X^{k+1} = W^k X^k

    Notes
    -----
    Sent per step: one row, of :math:`X^k`, to each neighbour.  `W`: doubly stochastic for the
    average, row stochastic for a weighted average; constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> solver = mpidec.solvers.Consensus()
    >>> s = solver.init(np.array([[0.], [2.]]))
    >>> solver.step(s, None, lambda X: X.mean(axis=0) + 0 * X).X.tolist()
    [[1.0], [1.0]]

    References
    ----------
    L. Xiao, S. Boyd, "Fast linear iterations for distributed averaging", Systems & Control Letters
    53 (2004).
    """

    needs: ClassVar = Needs(functions=(), kinds=("doubly", "row"), graph="exponential")
    keeps_rows: ClassVar = True
    step_size = 0.0

    class State(NamedTuple):
        X: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X)

    def ask(self, F: Functions, s: object) -> None:
        return None

    def step(self, s: State, G: None, W: Operator) -> State:
        return self.State(W(s.X))


@dataclass(frozen=True)
class DGD(Solver):
    r"""Decentralized gradient descent, DGD (awc), and the two orders of diffusion.

    .. math::
        \text{awc}:\; X^{k+1} &= W^k X^k - \alpha \nabla F(X^k) \\
        \text{atc}:\; X^{k+1} &= W^k (X^k - \alpha \nabla F(X^k)) \\
        \text{cta}:\; X^{k+1} &= \Phi^k - \alpha \nabla F(\Phi^k), \quad \Phi^k = W^k X^k

    Adapt-while-combine (default) is what the literature calls DGD; its mixing can overlap with the
    gradient.  Adapt-then-combine and combine-then-adapt are `Diffusion`; they allow larger step
    sizes.  With a constant step size the agents end near the optimum, at a distance proportional to
    `step_size` and to the heterogeneity of their data.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; atc is stable up to 2 / L, awc up to (1 + lambda_min(W)) / L.
    order : {"awc", "atc", "cta"}

    Notes
    -----
    Sent per step: one row to each neighbour: of :math:`X^k - \alpha \nabla F(X^k)` (atc), of
    :math:`X^k` (awc), or of :math:`X^{k+1}` (cta: step k ends with :math:`\Phi^{k+1} = W^{k+1}
    X^{k+1}`, `init` with :math:`\Phi^0`).  `W`: doubly or row stochastic, constant or varying in
    time.  With a row-stochastic one, such as that of `topology.hastings`, small step sizes lead to
    the minimizer of :math:`\sum_i p_i f_i`, where :math:`p^T W = p^T` (Perron vector), which is
    also that of the average if all agents have the same minimizer.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, DGD(0.1), mpidec.topology.complete(2), steps=200).x.round(6).tolist()
    [2.0]

    References
    ----------
    awc: A. Nedic, A. Ozdaglar, "Distributed subgradient methods for multi-agent optimization", IEEE
    TAC 54 (2009). cta: C. Lopes, A. Sayed, "Diffusion least-mean squares over adaptive networks:
    formulation and performance analysis", IEEE TSP 56 (2008). atc: F. Cattivelli, A. Sayed,
    "Diffusion LMS strategies for distributed estimation", IEEE TSP 58 (2010). Row-stochastic W: A.
    H. Sayed, *Adaptation, Learning, and Optimization over Networks*, Foundations and Trends in
    Machine Learning 7 (2014), chapter 8.
    """

    keeps_rows: ClassVar = True
    exact: ClassVar = False
    needs: ClassVar = Needs(kinds=("row", "doubly"), graph="exponential")
    step_size: StepSize = "auto"
    order: Annotated[str, OneOf("awc", "atc", "cta")] = "awc"

    class State(NamedTuple):
        X: np.ndarray
        Phi: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(
            X, needed(self, W, "with order='cta' mixes X^0 first")(X) if self.order == "cta" else X
        )

    def point(self, s: State) -> np.ndarray:
        return s.Phi

    def check(self, topology: Graph) -> None:
        super().check(topology)
        if topology.kind == "row":
            warn(
                f"{name_of(self)} minimizes a weighted sum of the agents' functions on the "
                f"{topology.name} topology, whose W is row stochastic{_weights(topology)}; for "
                f"their average, {REMEDIES['doubly']}"
            )

    def bias_on(self, topology: Graph) -> Bias:
        if topology.kind == "row":
            return Bias.OTHER
        return Bias.NONE if self.order == "atc" and averages(topology) else Bias.STEP

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        if self.order == "cta":
            X = descend(s.Phi, self.step_size, G)
            return self.State(X, W.next(X))
        X = (
            W(descend(s.X, self.step_size, G))
            if self.order == "atc"
            else descend(W(s.X), self.step_size, G)
        )
        return self.State(X, X)


def _weights(topology: Graph) -> str:
    """Describe the weights of the agents' functions on a row-stochastic W, for messages."""
    if topology.period != 1 or topology.n > _LARGE:
        return ""
    W = topology.at(0).W.toarray()
    A = np.vstack([W.T - np.eye(len(W)), np.ones(len(W))])
    p = np.linalg.lstsq(A, np.eye(len(A))[-1], rcond=None)[0]
    return f", with weights p = W^T p from {p.min():.3g} to {p.max():.3g} (1/n is {1 / len(W):.3g})"


@dataclass(frozen=True)
class Diffusion(DGD):
    r"""Diffusion, DGD with the gradient and the mixing one after the other: adapt-then-combine
    (default) or combine-then-adapt.

    .. math::
        \text{atc}:\; \Psi^k &= X^k - \alpha \nabla F(X^k), & X^{k+1} &= W^k \Psi^k \\
        \text{cta}:\; \Phi^k &= W^k X^k, & X^{k+1} &= \Phi^k - \alpha \nabla F(\Phi^k)

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
    order : {"atc", "cta"}

    Notes
    -----
    Sent per step: one row to each neighbour: of :math:`\Psi^k` (atc), or of :math:`X^{k+1}` (cta;
    `init` sends :math:`X^0`). `W`: as for `DGD`.

    Examples
    --------
    >>> Diffusion(step_size=0.1)
    Diffusion(step_size=0.1, order='atc')

    References
    ----------
    atc: F. Cattivelli, A. Sayed, "Diffusion LMS strategies for distributed estimation", IEEE TSP 58
    (2010). cta: C. Lopes, A. Sayed, "Diffusion least-mean squares over adaptive networks:
    formulation and performance analysis", IEEE TSP 56 (2008).
    """

    order: Annotated[str, OneOf("atc", "cta")] = "atc"
