"""RelaySGD: exact sums over a tree, relayed edge by edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .base import Solver, name_of, one_of


@dataclass(frozen=True)
class RelaySGD(Solver):
    r"""RelaySGD: on a tree, each agent relays to each neighbour the sum of all it knows from the others.

    With the local half step :math:`V = X - \alpha \nabla F(X)`, over each edge travel a row and a count

    .. math::
        M_{i \to j} = V_i + \sum_{k \in N_i \setminus j} M_{k \to i}, \qquad
        C_{i \to j} = 1 + \sum_{k \in N_i \setminus j} C_{k \to i}

    (on the right, what arrived in the step before; nothing at first), and then

    .. math::
        S_i = V_i + \sum_{j \in N_i} M_{j \to i}, \qquad c_i = 1 + \sum_{j \in N_i} C_{j \to i}, \qquad
        X_i^{k+1} = \bigl(S_i + (n - c_i) R_i\bigr) / n

    so that the half step of an agent h hops away arrives h - 1 steps late, and every one exactly once.

    Parameters
    ----------
    step_size : float
        :math:`\alpha`
    relay : {"model", "gradient"}
        What is relayed: the half step, as above; or the update, with :math:`V = -\alpha \nabla F(X)` and
        :math:`X^{k+1} = X^k + S / n` (RelaySGD/Grad, for which what is missing counts as zero).
    missing : {"initial", "current", "count", "own"}
        What stands for the :math:`n - c_i` agents not heard from yet: the initial iterate, :math:`R = X^0`; the current
        one, :math:`R = X^k`; one's own half step, :math:`R = V`; or nothing, :math:`X^{k+1} = S / c`.

    Notes
    -----
    Sent per step: a different row and count to each neighbour.  `W`: any tree; its weights are not used.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]]))
    >>> mpidec.solve(problem, RelaySGD(0.3), mpidec.topology.chain(4), steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    T. Vogels, L. He, A. Koloskova, T. Lin, S. P. Karimireddy, S. Stich, M. Jaggi, "RelaySum for decentralized deep learning
    on heterogeneous data", NeurIPS 2021, Algorithm 1.
    """

    kinds: ClassVar = ("doubly", "row", "column")
    per_edge: ClassVar = ("M", "C")
    step_size: float
    relay: str = "model"
    missing: str = "initial"

    class State(NamedTuple):
        X: np.ndarray
        X0: np.ndarray
        M: np.ndarray                                # what arrived over each edge
        C: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "relay", ("model", "gradient"))
        one_of(self, "missing", ("initial", "current", "count", "own"))

    def init(self, X: np.ndarray, W: Any = None) -> State:
        if W is None:
            raise ValueError(f"{name_of(self)} keeps a message for each edge: init(X, W) needs the operator W")
        return self.State(X, X, np.zeros((W.in_edges, *X.shape[1:])), np.zeros((W.in_edges, 1)))

    def step(self, s: State, G: np.ndarray, W: Any) -> State:
        U = -self.step_size * G
        V = s.X + U if self.relay == "model" else U
        M = W.exchange(W.to_edges(V + W.sum_edges(s.M)) - s.M)
        C = W.exchange(W.to_edges(1 + W.sum_edges(s.C)) - s.C)
        S, c = V + W.sum_edges(M), 1 + W.sum_edges(C)
        if self.relay == "gradient":
            X = s.X + S / W.n
        elif self.missing == "count":
            X = S / c
        else:
            R = {"initial": s.X0, "current": s.X, "own": V}[self.missing]
            X = (S + (W.n - c) * R) / W.n
        return self.State(X, s.X0, M, C)

    def check(self, topology: Any) -> None:
        if topology.period != 1 or not topology.is_tree:
            raise ValueError(f"{name_of(self)} needs a tree (undirected, connected, n - 1 edges), the {topology.name} topology is "
                             "not one: use topology.chain(n), star(n) or binary_tree(n), or a spanning tree of your graph")
