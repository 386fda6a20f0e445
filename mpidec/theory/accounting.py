"""What noise on messages hides: differential privacy of each agent's data towards every other."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .._validation import choice, integer, number
from ..topology import Schedule, Topology
from .linear import Array

# Bisections of an epsilon: its relative error is 2^-HALVINGS.
HALVINGS = 60
# What is left of a row in the rows of all agents, below which later messages tell nothing of it.
FORGOTTEN = 1e-12


@dataclasses.dataclass(frozen=True)
class Privacy:
    r"""Loss of privacy of each agent u towards each agent v.

    Attributes
    ----------
    mu : array (n, n)
        ``mu[u, v]``: to tell two possible data of agent u apart from what v sees is at least as
        hard as to tell :math:`\mathcal N(0, 1)` from :math:`\mathcal N(\mu, 1)` (Gaussian
        differential privacy); 0 on the diagonal, and where nothing of u reaches v.
    delta : float
    epsilon : array (n, n)
        The smallest numbers with :math:`(\varepsilon, \delta)`-differential privacy at these mu.
    """

    mu: NDArray[np.float64]
    delta: float

    @property
    def epsilon(self) -> NDArray[np.float64]:
        return np.asarray(epsilon(self.mu, self.delta))

    @property
    def worst(self) -> float:
        """The largest epsilon of two agents."""
        return float(self.epsilon.max())

    @property
    def mean(self) -> float:
        """The mean epsilon of two different agents."""
        n = len(self.mu)
        return float(self.epsilon.sum() / max(n * (n - 1), 1))

    def renyi(self, order: float) -> NDArray[np.float64]:
        r"""Return the Rényi divergences (n, n) of an order > 1: :math:`\alpha \mu^2 / 2`."""
        return np.asarray(number(order, "renyi: order", above=1) * self.mu**2 / 2)


def epsilon(mu: Array, delta: float) -> Array:
    r"""Return the smallest :math:`\varepsilon` at which Gaussians at the distances mu are
    :math:`(\varepsilon, \delta)`-indistinguishable: the root of

    .. math:: \delta = \Phi(\tfrac \mu 2 - \tfrac \varepsilon \mu)
              - e^\varepsilon\, \Phi(-\tfrac \mu 2 - \tfrac \varepsilon \mu)

    It is less than :math:`\min_\alpha \alpha \rho + \frac{\ln 1 / \delta}{\alpha - 1} = \rho + 2
    \sqrt{\rho \ln 1 / \delta}` with :math:`\rho = \mu^2 / 2`, what the Rényi divergences say at
    the best order.

    Examples
    --------
    >>> epsilon(np.array([0.0, 0.1, 1.0]), 1e-5).round(4)
    array([0.    , 0.3407, 4.3772])
    """
    from scipy.special import log_ndtr, ndtr

    m = np.where(mu > 0, mu, 1.0)
    low, high = 0 * m, m**2 / 2 + m * np.sqrt(-2 * np.log(delta))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        beyond = np.exp(middle + log_ndtr(-m / 2 - middle / m))
        enough = ndtr(m / 2 - middle / m) - beyond <= delta
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where((mu > 0) & (low > 0), high, 0.0)


def privacy(
    topology: Topology | Schedule,
    sigma: float,
    clip: float,
    *,
    mixings: int,
    delta: float = 1e-5,
    account: Literal["averaging", "messages"] = "averaging",
    rows: int = 1,
) -> Privacy:
    r"""Return the privacy of agents whose messages carry Gaussian noise, as by `W.noisy(sigma)`.

    The adversary is a single agent v that follows the protocol and knows all but the data of agent
    u: the graphs, the weights, sigma, the data of all others, every row that arrives at v in all
    mixings, and the noise that v itself adds to what it sends.  Two data of u are compared,
    whatever they are.

    "averaging": :math:`X \gets W^k X`, whose initial rows are clipped to the norm C once, and no
    row later.  Protected is the initial row of u.  What v sees is Gaussian with a mean that is
    linear in that row, :math:`a_u x_u`, and a covariance :math:`\sigma^2 \Sigma_v` that does not
    depend on it, so that the loss is known exactly,

    .. math:: \mu_{uv}^2 = \frac{(2 C)^2}{\sigma^2}\, a_u^* \Sigma_v^{-1} a_u

    and is computed by a Kalman filter of the rows that v does not see.

    "messages": any method, with all messages clipped, `W.noisy(sigma, clip=C)`.  Protected are all
    data of u, whatever use the method makes of them.  Each message is a Gaussian mechanism with the
    sensitivity 2 C, given all before; of all that u sends, or all that v receives, the fewer count,

    .. math:: \mu_{uv}^2 = \frac{(2 C)^2}{\sigma^2} \min(\text{out}_u, \text{in}_v)

    which is a bound; with the first number alone, it holds against all other agents together.

    Parameters
    ----------
    topology : Topology or Schedule
        Of one graph per mixing.
    sigma : float
        Standard deviation of the noise in each real entry; of complex rows, whose noise `W.noisy`
        divides among both parts, sigma / sqrt(2).
    clip : float
        C, the largest norm of a row.
    mixings : int
        Their number, each with the graph of its number.
    delta : float
        Of :math:`(\varepsilon, \delta)`-differential privacy, in (0, 1): less than one over the
        number of people whose data are protected.
    account : {"averaging", "messages"}
    rows : int
        "messages": rows over each edge in a mixing, such as 2 of gradient tracking.

    Returns
    -------
    Privacy

    Raises
    ------
    ValueError, TypeError

    Notes
    -----
    No communication.  Noise of `W.noisy` comes from a seed that every rank knows, and is added
    where rows arrive: runs are simulations of agents that add it, from a secret source, to what
    they send.  The result itself, metrics and a search for the step size are not counted.

    Examples
    --------
    >>> import mpidec
    >>> account = mpidec.theory.privacy(mpidec.topology.ring(8), 5.0, 1.0, mixings=50)
    >>> account.epsilon[0, [1, 2, 4]].round(2), round(account.worst, 2), round(account.mean, 2)
    (array([1.7 , 0.65, 0.26]), 1.7, 0.8)

    References
    ----------
    E. Cyffers, M. Even, A. Bellet, L. Massoulié, "Muffliato: peer-to-peer privacy amplification for
    decentralized optimization and averaging", NeurIPS 2022 (pairwise network differential
    privacy).  J. Dong, A. Roth, W. J. Su, "Gaussian differential privacy", J. R. Stat. Soc. B 84
    (2022), Corollaries 1 and 2 (conversion and composition).
    """
    choice(account, "privacy: account", ("averaging", "messages"))
    number(delta, "privacy: delta", above=0, below=1)
    scale = 2 * number(clip, "privacy: clip", above=0) / number(sigma, "privacy: sigma", above=0)
    integer(mixings, "privacy: mixings")
    integer(rows, "privacy: rows")
    if not isinstance(topology, Topology | Schedule):
        raise TypeError(
            f"privacy: topology is {topology!r:.60}, expected one with its agents, such as "
            "topology.ring(8)"
        )
    if topology.divides_columns or topology.kind == "pair":
        raise ValueError(
            f"privacy: the {topology.name} topology has several graphs at once, expected one graph "
            "per mixing"
        )
    counted = _averaging(topology, mixings) if account == "averaging" else None
    if counted is None:
        counted = rows * _messages(topology, mixings, mixings * rows)
    return Privacy(scale * np.sqrt(counted), delta)


def _averaging(topology: Topology | Schedule, mixings: int) -> Array:
    r"""Return :math:`a_u^* \Sigma_v^{-1} a_u`, (n, n), of averaging.

    For each v, a filter of the n rows given what v has seen: their covariance P, (n, n), and the
    response D, (n, n), of their mean to changes of the initial rows.
    """
    n, agents = topology.n, np.arange(topology.n)
    told, P, D = np.zeros((n, n)), np.zeros((n, n, n)), np.tile(np.eye(n), (n, 1, 1))
    D[agents, agents] = 0
    for k in range(mixings):
        W = topology.at(k).W.toarray()
        between = W - np.diag(W.diagonal())
        squares = between**2
        for v, senders in enumerate(between != 0):
            p, arriving = P[v][:, senders], D[v][senders]
            S = np.eye(p.shape[1]) + p[senders]
            gains = np.linalg.solve(S, np.hstack([arriving, p.T]))
            told[:, v] += (arriving * gains[:, :n]).sum(axis=0)
            D[v] = W @ (D[v] - p @ gains[:, :n])
            P[v] = W @ (P[v] - p @ gains[:, n:]) @ W.T
            # v knows the noise that it adds, and its own row
            P[v, agents, agents] += squares.sum(axis=1) - squares[:, v]
            D[v, v] = P[v, v] = P[v, :, v] = 0
        if np.abs(D).max() < FORGOTTEN:
            break
    return told


def _messages(topology: Topology | Schedule, mixings: int, hops: int) -> Array:
    """Return the number of messages (n, n) that u sends, or that v receives if these are fewer, in
    some mixings; 0 where nothing gets from u to v in so many hops.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    n, period = topology.n, topology.period or mixings
    sent, received, edges = np.zeros(n), np.zeros(n), csr_array((n, n))
    for k in range(min(mixings, period)):
        A = csr_array(topology.at(k).W, copy=True)
        A.setdiag(0)
        A = csr_array(A != 0, dtype=float)
        times = len(range(k, mixings, period))
        sent, received = sent + times * A.sum(axis=0), received + times * A.sum(axis=1)
        edges = edges + A.T
    distances = shortest_path(edges, unweighted=True)
    reached = (distances <= hops) & (distances > 0)
    return np.asarray(reached * np.minimum(sent[:, None], received))
