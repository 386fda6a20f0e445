"""Partitions of a data set over agents, and the padded arrays of the local agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._sparse import Samples, dealt, is_sparse, matrix
from .._validation import Array

if TYPE_CHECKING:
    from .._sparse import csr_array

HOW = ("iid", "stratified", "sorted", "shards", "labels", "dirichlet", "sizes", "blocks")
TAKE = {"alpha": ("dirichlet", "sizes"), "per_agent": ("shards", "labels")}  # who has an effect
DRAWS = 1000  # of a Dirichlet split, after which the best one is taken
Index = NDArray[np.intp]


def partition(
    y: ArrayLike,
    n: int,
    how: str = "iid",
    *,
    alpha: float | None = None,
    per_agent: int | None = None,
    seed: int = 0,
) -> list[Index]:
    r"""Split N samples over n agents.

    As evenly as possible (sizes differ by at most one):

    - ``iid`` shuffles the samples.
    - ``stratified`` deals out the shuffled samples of each class in turn, so that the classes of
      all agents are alike, to one sample of each; with real targets, their ranges.
    - ``sorted`` sorts the samples by target, so that agents hold different classes (or ranges).
    - ``dirichlet`` draws, for each class c, its distribution over the agents,

      .. math:: q_c \sim \mathrm{Dir}(\alpha 1_n),

      in groups of 10 agents, and then re-splits evenly, as RelaySGD does. With a small
      :math:`\alpha` each agent has few classes, with a large :math:`\alpha` all of them.
    - ``blocks`` keeps the order of the data.

    With sizes that may differ:

    - ``shards`` sorts by target and cuts n s shards of equal size (to one sample), of which each
      agent draws s = `per_agent`.
    - ``labels`` gives each agent c = `per_agent` classes, all classes to equally many agents (to
      one), and divides the samples of a class evenly among these.
    - ``sizes`` shuffles, and draws the numbers of samples: each agent has one, and a part
      :math:`q_i` of the others,
      :math:`q \sim \mathrm{Dir}(\alpha 1_n)`.

    Parameters
    ----------
    y : (N,) array
        Targets; class labels for ``dirichlet`` and ``labels``.
    n : int
        Number of agents, at most N.
    how : {"iid", "stratified", "sorted", "shards", "labels", "dirichlet", "sizes", "blocks"}
        The kind of partition.
    alpha : float, optional
        Concentration of ``dirichlet`` and ``sizes``, > 0; by default 1. Others refuse it.
    per_agent : int, optional
        Shards or classes of each agent of ``shards`` and ``labels``, by default 2. Others refuse
        it.
    seed : int
        Seed of all but ``sorted`` and ``blocks``, in 0 .. 2**32 - 1.

    Returns
    -------
    list of n int arrays
        Sample numbers of each agent; every sample occurs exactly once.

    Raises
    ------
    ValueError, TypeError
        If there are more agents than samples, or an argument is out of range, or an agent would
        have no sample.

    Notes
    -----
    Nothing is communicated: every rank computes the whole partition from the seed.

    Examples
    --------
    >>> from mpidec.problems import partition
    >>> [part.tolist() for part in partition([1, 0, 1, 0, 0], 2, "sorted")]
    [[1, 3, 4], [0, 2]]

    References
    ----------
    T. Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data", NeurIPS
    2021, app. B; code epfml/relaysgd. The split equals theirs if `seed` is their seed + 100.

    Shards: H. B. McMahan et al., "Communication-efficient learning of deep networks from
    decentralized data", AISTATS 2017, section 3. Labels and sizes: Q. Li et al., "Federated
    learning on non-IID data silos: an experimental study", ICDE 2022, section 4.
    """
    y = check.real(y, "y", complex_too=True)
    check.choice(how, "partition", HOW)
    for name, value in (("alpha", alpha), ("per_agent", per_agent)):
        if value is not None and how not in TAKE[name]:
            raise ValueError(
                f"{name} = {value} has no effect on the partition {how!r}: omit it, or take "
                f"{' or '.join(TAKE[name])}"
            )
    n = check.integer(n, "agents")
    alpha = check.number(1.0 if alpha is None else alpha, "alpha", above=0)
    check.integer(seed, "seed", least=0, most=2**32 - 1)
    if y.ndim != 1:
        raise ValueError(f"y has shape {y.shape}, expected (N,): one target per sample")
    if n > len(y):
        raise ValueError(
            f"{n} agents for {len(y)} samples, expected at most {len(y)} agents: each holds at "
            "least one"
        )
    per_agent = check.integer(2 if per_agent is None else per_agent, "per_agent")
    draw = np.random.default_rng(seed)
    orders: dict[str, Callable[[], Index]] = {
        "iid": lambda: draw.permutation(len(y)),
        "sorted": lambda: np.argsort(y, kind="stable"),
        "dirichlet": lambda: np.concatenate(dirichlet(y, n, alpha, seed)),
        "blocks": lambda: np.arange(len(y)),
    }
    splits: dict[str, Callable[[], list[Index]]] = {
        "stratified": lambda: _stratified(y, n, draw),
        "shards": lambda: _shards(y, n, per_agent, draw),
        "labels": lambda: _labels(y, n, per_agent, draw),
        "sizes": lambda: _sizes(len(y), n, alpha, draw),
    }
    return splits[how]() if how in splits else np.array_split(orders[how](), n)


def _stratified(y: NDArray[Any], n: int, draw: np.random.Generator) -> list[Index]:
    shuffled = draw.permutation(len(y))
    order = shuffled[np.argsort(y[shuffled], kind="stable")]
    return [np.sort(order[i::n]) for i in range(n)]


def _sizes(N: int, n: int, alpha: float, draw: np.random.Generator) -> list[Index]:
    cuts = 1 + np.floor(np.cumsum(_shares(n, alpha, draw)) * (N - n)).astype(int)
    return np.split(draw.permutation(N), (np.arange(n) + cuts)[:-1])


def _shares(n: int, alpha: float, draw: np.random.Generator) -> NDArray[np.float64]:
    """Shares of n agents, Dir(alpha 1); all of one agent if alpha is so small that the draw
    underflows.
    """
    q = draw.dirichlet(np.full(n, alpha))
    return q if np.isfinite(q).all() else np.eye(1, n, int(draw.integers(n)))[0]


def _shards(y: NDArray[Any], n: int, s: int, draw: np.random.Generator) -> list[Index]:
    if n * s > len(y):
        raise ValueError(
            f"per_agent = {s}: {n} agents need {n * s} shards, expected at most {len(y)}, the "
            "number of samples"
        )
    shards = np.array_split(np.argsort(y, kind="stable"), n * s)
    drawn = draw.permutation(n * s).reshape(n, s)
    return [np.concatenate([shards[k] for k in np.sort(row)]) for row in drawn]


def _labels(y: NDArray[Any], n: int, c: int, draw: np.random.Generator) -> list[Index]:
    classes, numbers = np.unique(y, return_inverse=True)
    _check_classes(y, len(classes), "labels")
    if not len(classes) <= n * c or c > len(classes):
        raise ValueError(
            f"per_agent = {c}: {n} agents with {c} classes each, expected {-(-len(classes) // n)} "
            f"to {len(classes)} for "
            f"{len(classes)} classes in all"
        )
    holders: list[list[int]] = [[] for _ in classes]
    # The classes that fewest agents hold so far.
    for i in range(n):
        order = sorted(draw.permutation(len(classes)).tolist(), key=lambda k: len(holders[k]))
        for k in order[:c]:
            holders[k].append(i)
    held: list[list[Index]] = [[] for _ in range(n)]
    for k, agents in enumerate(holders):
        members = draw.permutation(np.flatnonzero(numbers == k))
        for i, piece in zip(agents, np.array_split(members, len(agents))):
            held[i].append(piece)
    parts = [np.concatenate(pieces) for pieces in held]
    if empty := [i for i, part in enumerate(parts) if not len(part)]:
        raise ValueError(
            f"agent {empty[0]} would have no sample, since its classes have fewer samples than "
            "agents: raise per_agent, or take "
            "fewer agents"
        )
    return parts


def _check_classes(y: NDArray[Any], distinct: int, how: str) -> None:
    if distinct > max(len(y) // 2, 1):
        raise ValueError(
            f"y has {distinct} distinct values in {len(y)} samples, expected class labels for a "
            f"{how} partition (for regression, sorted gives heterogeneous agents)"
        )


def dirichlet(y: NDArray[Any], n: int, alpha: float, seed: int) -> list[Index]:
    """Return RelaySGD's Dirichlet split before the even re-split: n index arrays of uneven
    sizes.
    """
    _check_classes(y, len(np.unique(y)), "dirichlet")
    # Legacy generator, to reproduce the original split.
    random = np.random.RandomState(seed)
    order = np.arange(len(y))
    random.shuffle(order)
    parts: list[Index] = []
    size = int(10 / n * len(y))
    for first in range(0, n, 10):
        start = first // 10 * size
        group = order[start:] if first + 10 >= n else order[start : start + size]
        parts += _split_group(y, group, min(10, n - first), alpha, random)
    return parts


def _split_group(
    y: NDArray[Any], group: Index, k: int, alpha: float, random: np.random.RandomState
) -> list[Index]:
    """Split a group's samples over its k agents, class by class; redraw, up to DRAWS times,
    until each has half its share.
    """
    share = len(group) / k
    classes = [group[y[group] == c] for c in np.unique(y[group])]
    best, most = [group[:0]] * k, -1
    for _ in range(DRAWS):
        held: list[list[Index]] = [[] for _ in range(k)]
        sizes = np.zeros(k, dtype=int)
        for members in classes:
            # An agent that has its share gets no samples of further classes.
            open_ = sizes < share
            with np.errstate(invalid="ignore"):
                q = random.dirichlet(np.repeat(alpha, k)) * open_
                q /= q.sum()
            # Alpha so small that the draw underflows.
            if not np.isfinite(q).all():
                q = open_ / open_.sum()
            cuts = (np.cumsum(q) * len(members)).astype(int)[:-1]
            for i, piece in enumerate(np.split(members, cuts)):
                held[i].append(piece)
                sizes[i] += len(piece)
        if sizes.min() > most:
            best, most = [np.concatenate(pieces) for pieces in held], int(sizes.min())
        if most >= 0.5 * share:
            break
    return best  # with few classes, half a share may be impossible


def stack(
    A: ArrayLike | csr_array,
    y: ArrayLike,
    parts: Sequence[Index],
    lo: int,
    hi: int,
    width: int | None = None,
) -> tuple[Samples, Array, NDArray[np.bool_] | None]:
    """Return the arrays of agents lo..hi-1, padded with zero rows to a common width.

    Parameters
    ----------
    A, y : (N, d) and (N,) arrays
        The whole data set; a sparse matrix of scipy remains sparse.
    parts : list of n int arrays
        Sample numbers of all agents (not only the local ones), as returned by :func:`partition`.
    lo, hi : int
        The local agents, 0 <= lo <= hi <= n.
    width : int, optional
        Samples per agent after padding; by default the largest number of samples of any of the n
        agents, which is the same on every rank.

    Returns
    -------
    A : (hi-lo, width, d) array, or SparseSamples
    y : (hi-lo, width) array
        Both of float32 if `A` is, otherwise of float64.
    mask : (hi-lo, width) array of bool, or None
        True for samples; None if all n agents have exactly `width` samples.

    Raises
    ------
    ValueError
        If shapes or ranges do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import stack
    >>> A, b, mask = stack(np.eye(3), np.arange(3), [np.array([0, 1]), np.array([2])], 0, 2)
    >>> A.shape, b.tolist(), mask.tolist()
    ((2, 2, 3), [[0.0, 1.0], [2.0, 0.0]], [[True, True], [True, False]])
    """
    A = matrix(A, "A", complex_too=True) if is_sparse(A) else check.real(A, "A", complex_too=True)
    y = check.real(y, "y", complex_too=True)
    if A.ndim != 2 or y.shape != A.shape[:1]:
        raise ValueError(f"A has shape {A.shape} and y {y.shape}, expected (N, d) and (N,)")
    if not 0 <= lo <= hi <= len(parts):
        raise ValueError(
            f"agents {lo}..{hi} of {len(parts)}, expected 0 <= lo <= hi <= {len(parts)}"
        )
    sizes = [len(part) for part in parts]
    most = max(sizes, default=0)
    width = most if width is None else check.integer(width, "width")
    if width < most:
        raise ValueError(
            f"width = {width}, expected at least {most}, the number of samples of agent "
            f"{sizes.index(most)}"
        )
    dtype = np.result_type(check.precision(A), *([np.complex64] if np.iscomplexobj(y) else []))
    local_A = dealt(A.astype(dtype, copy=False), parts[lo:hi], width)
    local_y = np.zeros((hi - lo, width), dtype)
    for i, part in enumerate(parts[lo:hi]):
        local_y[i, : len(part)] = y[part]
    if min(sizes, default=width) == width:
        return local_A, local_y, None
    return local_A, local_y, np.arange(width) < np.array(sizes[lo:hi], dtype=int)[:, None]
