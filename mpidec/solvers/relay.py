"""RelaySGD: exact sums over a tree, relayed edge by edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import Solver, name_of, needed, zeros
from .needs import Needs, OneOf, Within
from .step_schedules import StepSize


@dataclass(frozen=True)
class RelaySGD(Solver):
    r"""RelaySGD: on a tree, each agent sends each neighbour the sum of its own half step and of all
    messages from the others.

    With the local half step :math:`V^k = X^k - \alpha \nabla F(X^k)`, a row and a count are sent
    over each edge:

    .. math::
        M_{i \to j}^k &= V_i^k + \sum_{l \in N_i \setminus j} M_{l \to i}^{k-1}, & M^{-1} &= 0 \\
        C_{i \to j}^k &= 1 + \sum_{l \in N_i \setminus j} C_{l \to i}^{k-1}, & C^{-1} &= 0

    and then

    .. math::
        S_i^k = V_i^k + \sum_{j \in N_i} M_{j \to i}^k, \qquad c_i^k = 1 + \sum_{j \in N_i} C_{j \to i}^k, \qquad
        X_i^{k+1} = \bigl(S_i^k + (n - c_i^k) R_i^k\bigr) / n

    so that the half step of an agent h hops away arrives h - 1 steps late, and each half step
    arrives exactly once.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`
    relay : {"model", "gradient", "mix"}
        Relayed quantity: the half step, as above; the update, with :math:`V^k = -\alpha \nabla
        F(X^k)` and :math:`X^{k+1} = X^k + S^k / n` (RelaySGD/Grad, where missing updates count as
        zero); or a part of both, with :math:`V^k = \theta X^k - \alpha \nabla F(X^k)`,
        :math:`\theta R^k` in place of :math:`R^k = X^0` or :math:`X^k`, and :math:`(1 - \theta)
        X^k` added to :math:`X^{k+1}`.
    missing : {"initial", "current", "count", "own"}
        Replacement for the half steps of the :math:`n - c_i` agents that have not arrived yet.
        "initial", the rule of the authors' published code: the initial iterate, :math:`R^k = X^0`.
        "count": none, and :math:`X^{k+1} = S^k / c^k`, the mean of what has arrived.  "current",
        that of the published code for lost messages: the current iterate, :math:`R^k = X^k`.
        "own", that of the README beside this code: the agent's own half step, :math:`R^k = V^k`.
        All four are one once :math:`c = n`.
    overlap : bool
        Whether messages travel while the next gradients are computed: :math:`S^k` and :math:`c^k`
        are sums of :math:`M^{k-1}` and :math:`C^{k-1}`, so that the half step of an agent h hops
        away arrives h steps late.
    share : float
        :math:`\theta` of "mix", in (0, 1].

    Notes
    -----
    Sent per step: a different row and count to each neighbour, in one message.  `W`: any tree, or
    several trees at once that divide the columns (`topology.double_binary_trees`), each with a
    count of its own; weights are not used.

    A message that is lost (`mixing=lambda W: W.lossy(0.1)`) takes its count along: the half steps
    that it carried are missing once, in the sums of all agents that it would have reached.  The
    published experiments with lost messages have `missing="current"`.

    Half steps that arrive h - 1 steps late slow the average down: with small steps it moves as with
    :math:`\alpha / (1 + \bar h)`, where :math:`\bar h` is the mean delay over all pairs, 2.3 on a
    binary tree of 16 and 5.5 of 64. The same factor lowers the stationary noise of stochastic
    gradients.

    The count is one more column of the row, in the dtype of `X`: float32 counts exactly up to
    :math:`2^{24}` agents.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, RelaySGD(0.3), "chain", steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    T. Vogels, L. He, A. Koloskova, T. Lin, S. P. Karimireddy, S. Stich, M. Jaggi, "RelaySum for
    decentralized deep learning on heterogeneous data", NeurIPS 2021, and its code,
    github.com/epfml/relaysgd.
    """

    needs: ClassVar = Needs(
        kinds=("doubly", "row", "column"), graph="binary_tree", exchange=True, per_edge=("M",)
    )
    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False  # half steps arrive late
    step_size: StepSize = "auto"
    relay: Annotated[str, OneOf("model", "gradient", "mix")] = "model"
    missing: Annotated[str, OneOf("initial", "current", "count", "own")] = "initial"
    overlap: bool = False
    share: Annotated[float, Within(above=0.0, most=1.0)] = 0.5

    class State(NamedTuple):
        X: np.ndarray
        X0: np.ndarray
        # What arrived over each edge: a row, and the count of each tree in the last columns.
        M: np.ndarray

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.relay != "gradient"

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        W = needed(self, W, "keeps a message for each edge")
        return self.State(X, X, zeros(X, W.in_edges, X.shape[1] + len(W.parts)))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        d, K = s.X.shape[1], len(W.parts)
        share = {"model": 1.0, "gradient": 0.0, "mix": self.share}[self.relay]
        V = descend(s.X if share == 1 else share * s.X, self.step_size, G)
        V1 = _with_counts(V, K)
        M = W.exchange(W.to_edges(V1 + W.sum_edges(s.M)) - s.M)
        sums = V1 + W.sum_edges(s.M if self.overlap else M)
        S, c = sums[:, :d], sums[:, d:]
        if K > 1:  # that of the tree of each column
            c = c[:, (np.arange(d) - d) % K]
        if self.relay == "gradient":
            X = s.X + S / W.n
        elif self.missing == "count":
            X = S / c
        else:
            R = V if self.missing == "own" else s.X0 if self.missing == "initial" else s.X
            if self.relay == "mix" and self.missing != "own":
                R = share * R
            X = (S + (W.n - c) * R) / W.n
        return self.State(X + (1 - share) * s.X if self.relay == "mix" else X, s.X0, M)

    def check(self, topology: Graph) -> None:
        if not topology.is_tree:
            raise ValueError(
                f"{name_of(self)} needs a tree (undirected, connected, n - 1 edges), the "
                f"{topology.name} topology is "
                "not one: use the topology chain, star or binary_tree, or a spanning tree of your "
                "graph"
            )


def _with_counts(V: np.ndarray, K: int) -> np.ndarray:
    """Return the rows of `V` with K more columns of ones: sums of such rows count their terms, in
    each of K trees.
    """
    m, d = V.shape
    rows = zeros(V, m, d + K)
    rows[:, :d], rows[:, d:] = V, 1
    return rows
