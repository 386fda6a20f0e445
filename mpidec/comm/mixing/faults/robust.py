"""Robust aggregation rules in place of the average, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .... import _validation as check
from ...._complex import by_parts
from ...._words import word
from ..base.edges import edges_into
from .faults import Average, Fault, RobustRule, Round, checked

if TYPE_CHECKING:
    from ....topology import Topology

RULES = ("clip", "trimmed_mean")


@dataclass(frozen=True)
class SelfCentredClipping:
    r"""Self-centred clipping, ClippedGossip.

    .. math:: y = x + \sum_j w_j \min(1, \tau / \|x_j - x\|) (x_j - x)

    Parameters
    ----------
    tau : float, optional
        The radius.
    delta : float, optional
        Bound on the weight of the wrong neighbours of an agent, instead of `tau`: then
        :math:`\tau^2 = \frac 1 \delta \sum_{j \in S} w_j \|x_j - x\|^2` in each mixing, over the
        fewest closest neighbours S whose weights, with the agent's own, reach :math:`1 - \delta`.

    Notes
    -----
    A row with an infinite or undefined entry is left out.

    References
    ----------
    L. He, S. P. Karimireddy, M. Jaggi, "Byzantine-robust decentralized learning via ClippedGossip",
    arXiv:2202.01545 (2022).

    Examples
    --------
    >>> x, X, w = np.zeros(1), np.array([[1.0], [100.0]]), np.array([0.25, 0.25])
    >>> SelfCentredClipping(tau=2.0)(x, X, w).tolist(), SelfCentredClipping(delta=0.25)(x, X, w).tolist()
    ([0.75], [0.5])
    """

    tau: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if (self.tau is None) == (self.delta is None):
            raise ValueError(
                "robust: clip needs either tau, the radius, or delta, a bound on the weight of the "
                "wrong neighbours of an "
                'agent: W.robust("clip", delta=0.2)'
            )
        if self.tau is not None:
            check.number(self.tau, "robust: tau", least=0)
        if self.delta is not None:
            check.number(self.delta, "robust: delta", above=0, below=1)

    def __call__(self, x: np.ndarray, X: np.ndarray, w: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            Z = X - x
            norms = np.sqrt((np.abs(Z) ** 2).sum(axis=1))
        right = np.isfinite(norms)
        norms[~right], Z[~right] = np.inf, 0
        tau = _radius(norms, w, self.delta) if self.delta is not None else self.tau or 0.0
        c = w * np.minimum(1, np.divide(tau, norms, out=np.ones_like(norms), where=norms > 0))
        y: np.ndarray = x + (c.astype(norms.dtype)[:, None] * Z).sum(axis=0)
        return y


def _radius(norms: np.ndarray, w: np.ndarray, delta: float) -> float:
    order = np.argsort(norms, kind="stable")
    norms, w = norms[order], w[order]
    missing = w.sum() - delta - (w.cumsum() - w)  # of 1 - delta, before each neighbour
    closest = (missing > 1e-9) & np.isfinite(norms)
    return float(np.sqrt((w[closest] * norms[closest] ** 2).sum() / delta))


@dataclass(frozen=True)
class TrimmedMean:
    r"""Coordinate-wise trimmed mean.

    In each entry, the `trim` largest and the `trim` smallest values of the neighbours are left out;
    the mean is that of the others and the agent's own, with equal weights.

    Parameters
    ----------
    trim : int

    Notes
    -----
    Every agent needs more than 2 `trim` neighbours; in a step of a schedule in which it has no
    more, it keeps its row.  An undefined entry counts as the largest one.  Real and imaginary parts
    of complex rows are entries of their own.

    References
    ----------
    C. Fang, Z. Yang, W. U. Bajwa, "BRIDGE: Byzantine-resilient decentralized gradient descent",
    IEEE Trans. Signal and Information Processing over Networks 8 (2022).

    Examples
    --------
    >>> TrimmedMean(1)(np.array([2.0]), np.array([[1.0], [100.0], [4.0]]), np.full(3, 0.25)).tolist()
    [3.0]
    """

    trim: int = 1

    def __post_init__(self) -> None:
        check.integer(self.trim, "robust: trim", least=0)

    def __call__(self, x: np.ndarray, X: np.ndarray, w: np.ndarray) -> np.ndarray:
        return by_parts(self._mean, x, X)

    def _mean(self, x: np.ndarray, X: np.ndarray) -> np.ndarray:
        kept = np.sort(X, axis=0)[self.trim : max(len(X) - self.trim, self.trim)]
        y: np.ndarray = (x + kept.sum(axis=0)) / (1 + len(kept))
        return y


class RuleAverage(Average):
    """The robust average of each local agent's row and of those that arrive."""

    weighted = False

    def __init__(self, own: np.ndarray, at: Round, rule: RobustRule):
        super().__init__(own, at)
        self._rule = rule

    def take(self, rows: np.ndarray, arrived: np.ndarray, out: np.ndarray) -> None:
        # A rule may change, or keep them.
        weights, own = (
            self.edges.into.weights.copy(),
            rows.copy(),
        )
        own.flags.writeable = False
        for i, (lo, hi) in enumerate(self.edges.ends):
            made = self._rule(own[i], arrived[lo:hi], weights[lo:hi])
            out[i] = checked(made, "the robust rule", own[i])

    def difference(self, rows: np.ndarray, arrived: np.ndarray, out: np.ndarray) -> None:
        self.take(rows, arrived, out)
        out -= rows


@dataclass(frozen=True, repr=False)
class Robust(Fault):
    r"""A robust rule of each agent in place of the average; added by `Mixer.robust`.

    .. math:: Y_i = r(X_i, (X_j)_{j \in N_i}, (w_{ij})_{j \in N_i})

    Parameters
    ----------
    rule : callable
        See `Mixer.robust`.

    Notes
    -----
    Sent per call: as without the rule.  The average of all agents is not preserved, and the mixing
    is not linear: exact methods lose their exactness to the extent that rows are clipped or left
    out.  Where several arrays are mixed, the rule takes each by itself.
    """

    rule: RobustRule
    call: ClassVar[str] = "robust"
    weighted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columnwise", isinstance(self.rule, TrimmedMean))

    def __repr__(self) -> str:
        return f"robust({word(self.rule)})"

    def __str__(self) -> str:
        return "a robust rule takes the place of averages"

    def average(self, own: np.ndarray, at: Round) -> RuleAverage:
        return RuleAverage(own, at, self.rule)

    @classmethod
    def named(
        cls,
        rule: str | RobustRule,
        tau: float | None = None,
        delta: float | None = None,
        trim: int | None = None,
    ) -> Robust:
        """Return the rule of this name, with its parameters; see `Mixer.robust`.

        Raises
        ------
        ValueError
            If the rule is unknown, or a parameter is that of another one.
        """
        clip, mean = rule == "clip", rule == "trimmed_mean"
        if not (clip or mean or callable(rule)):
            check.choice(rule, "robust: rule", RULES)
        if (not clip and (tau, delta) != (None, None)) or (not mean and trim is not None):
            raise ValueError(
                f"robust: {rule!r} takes "
                f"{'no trim' if clip else 'no tau and no delta' if mean else 'no parameters'}: "
                "tau and delta belong to clip, trim to trimmed_mean"
            )
        if callable(rule):
            check.takes(rule, "robust: rule", "own", "received", "weights")
            return cls(rule)
        return cls(
            SelfCentredClipping(tau, delta) if clip else TrimmedMean(1 if trim is None else trim)
        )

    def check(self, topology: Topology, static: bool) -> None:
        """Refuse a graph whose averages the rule cannot take the place of.

        Raises
        ------
        ValueError
        """
        if topology.kind not in ("doubly", "row"):
            raise ValueError(
                f"robust: W of the {topology.name} topology is not row-stochastic "
                f"({topology.kind}), and a robust "
                'average needs rows that sum to 1: take weights="metropolis", and a solver for '
                "doubly stochastic W"
            )
        trim = self.rule.trim if isinstance(self.rule, TrimmedMean) and static else 0
        if not trim:
            return
        edges = edges_into(topology, 0, topology.n)
        degrees = np.bincount(edges.receivers, minlength=topology.n)
        least = int(degrees.argmin())
        if degrees[least] <= 2 * trim:
            raise ValueError(
                f"robust: agent {least} of the {topology.name} topology has {degrees[least]} "
                "neighbours, and trimmed_mean with "
                f"trim={trim} leaves out {2 * trim}: take a graph with more edges, a smaller trim, "
                "or clip"
            )
