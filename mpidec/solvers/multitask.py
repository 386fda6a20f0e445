"""Multitask diffusion: agents whose minimizers differ, but are related."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import ConstantGraph, Graph, Operator
from .base import Bias, Solver, name_of, start_of
from .needs import Needs, Within
from .step_schedules import StepSize


@dataclass(frozen=True)
class MultitaskDiffusion(Solver):
    r"""Multitask diffusion LMS: agents of a cluster share a minimizer, those of neighbouring
    clusters have similar ones, and each agent is drawn towards neighbours in other clusters.

    .. math::
        \psi_i^k &= x_i^k - \alpha \Bigl(\nabla f_i(x_i^k) + \eta \sum_{j \notin C(i)} w_{ij}
                    (x_i^k - x_j^k)\Bigr) \\
        x_i^{k+1} &= \Bigl(1 - \sum_{j \in C(i) \setminus i} w_{ij}\Bigr) \psi_i^k +
                     \sum_{j \in C(i) \setminus i} w_{ij} \psi_j^k

    for the cluster C(i) of agent i.  By default each agent is a cluster of its own, :math:`X^{k+1}
    = X^k - \alpha (\nabla F(X^k) + \eta (X^k - W X^k))`: gradient descent on :math:`\sum_i f_i(x_i)
    + \tfrac{\eta}{4} \sum_{ij} w_{ij} \|x_i - x_j\|^2`, if W is symmetric.  With a single cluster,
    these are the steps of `Diffusion`.

    Parameters
    ----------
    step_size : float, "safe" or function of k
        :math:`\alpha`, not "auto", which looks for a common minimizer; without clusters, stable up
        to :math:`2 / (L + \eta (1 - \lambda_{\min}(W)))`.
    eta : float
        :math:`\eta \ge 0`, the strength of the penalty, in the unit of curvatures; with 0, clusters
        ignore each other.
    clusters : sequence of int, optional
        The number of the cluster of each of all n agents, (n,).

    Notes
    -----
    Sent per step: one row to each neighbour; with clusters a second one, of :math:`\psi^k`.  `W`:
    doubly or row stochastic; with clusters without negative weights, and neither compressed nor
    faulty.  The :math:`\rho_{ij}` of the paper are the weights w_ij between clusters, and its
    :math:`a_{ji}` those within, with the remainder for the agent itself; gradients are not
    exchanged (C = I).  The agents do not meet, so that `error_rms` and `msd` tell more than
    `consensus`, of a `Stream` with a minimizer of each agent.

    Examples
    --------
    Between their own minimizers, 1 and 3, and the common one, 2:

    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> for eta in (0.0, 0.5, 50.0):
    ...     X = mpidec.solve(problem, MultitaskDiffusion(0.01, eta), "complete", steps=2000).X
    ...     print(X.round(2).ravel().tolist())
    [1.0, 3.0]
    [1.33, 2.67]
    [1.98, 2.02]

    References
    ----------
    J. Chen, C. Richard, A. H. Sayed, "Multitask diffusion adaptation over networks", IEEE TSP 62
    (2014).
    """

    keeps_rows: ClassVar = True
    exact: ClassVar = False
    needs: ClassVar = Needs(kinds=("doubly", "row"))
    step_size: StepSize = 0.01
    eta: Annotated[float, Within(least=0.0)] = 1.0
    clusters: Sequence[int] | None = None

    class State(NamedTuple):
        X: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        start = start_of(self)
        if isinstance(start, str) and start == "auto":
            raise ValueError(
                f'{name_of(self)}: step_size is "auto", which takes the agents to a common '
                'minimizer, expected a number, a function of k, or "safe"'
            )
        if self.clusters is not None:
            labels = np.asarray(self.clusters)
            if labels.ndim != 1 or labels.dtype.kind not in "iu":
                raise ValueError(
                    f"{name_of(self)}: clusters is {self.clusters!r:.60}, expected an integer of "
                    "each agent: the number of its cluster"
                )
            object.__setattr__(self, "clusters", tuple(labels.tolist()))

    def check(self, topology: Graph) -> None:
        super().check(topology)
        if self.clusters is not None and len(self.clusters) != topology.n:
            raise ValueError(
                f"{name_of(self)}: clusters has {len(self.clusters)} numbers, expected "
                f"{topology.n}: one for each agent of the {topology.name} topology"
            )

    def bias_on(self, topology: Graph) -> Bias:
        return Bias.OTHER

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        if self.clusters is None:
            return self.State(descend(s.X, self.step_size, G + self.eta * (s.X - W(s.X))))
        across, within = (W.with_weights(A) for A in _parts(W.topology, self.clusters, W.agents))
        Psi = descend(s.X, self.step_size, G + self.eta * (s.X - across(s.X)))
        return self.State(within(Psi))


@lru_cache(maxsize=64)
def _parts(
    topology: ConstantGraph, clusters: tuple[int, ...], agents: range
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of W of some agents across clusters and within, with the remainder for the
    agent itself.
    """
    A, labels = topology.W[agents.start : agents.stop].toarray(), np.array(clusters)
    same = labels[agents][:, None] == labels
    parts = A * ~same, A * same
    for part in parts:
        part[range(len(part)), agents] += 1 - part.sum(axis=1)
    return parts
