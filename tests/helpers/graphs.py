"""The graphs of the catalogue, written down a second time, and what is compared with them."""

import math

import networkx as nx
import numpy as np

import mpidec.topology as T

SIZES = range(1, 41)
POWERS = [1, 2, 4, 8, 16, 32]
STATIC = [name for name, make in T.CATALOGUE.items() if isinstance(make(2), T.Topology)]
RANDOM = ["erdos_renyi", "geometric", "small_world"]
RULES = [name for name in STATIC if name not in RANDOM]


def sizes(name):
    some = ("base_k", "inner_outer", "matcha", "periodic_average")  # with many phases
    return POWERS if name == "hypercube" else [*range(1, 13), 21, 40] if name in some else SIZES


def nearer(n):
    """Of each agent but the root, the last neighbour on the shortest path from the root that is first in lexical order."""
    G = nx.DiGraph(sorted(EDGES["symmetric_exponential"](n))).to_undirected()
    return {(i, min(nx.all_shortest_paths(G, 0, i))[-2]) for i in range(1, n)}


def both(edges):
    return {pair for i, j in edges if i != j for pair in ((i, j), (j, i))}


def mesh(n, periodic):
    rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    columns = n // rows
    number = {node: node[0] * columns + node[1] for node in nx.grid_2d_graph(rows, columns)}
    return both(
        (number[u], number[v]) for u, v in nx.grid_2d_graph(rows, columns, periodic=periodic).edges
    )


def powers(base, most):
    return [base**t for t in range(64) if base**t <= most]


EDGES = {
    "ring": lambda n: both({(i, (i + 1) % n) for i in range(n)}),
    "chain": lambda n: both(nx.path_graph(n).edges),
    "star": lambda n: both(nx.star_graph(n - 1).edges),
    "complete": lambda n: both(nx.complete_graph(n).edges),
    "grid": lambda n: mesh(n, periodic=False),
    "torus": lambda n: mesh(n, periodic=True),
    "hypercube": lambda n: {(i, j) for i in range(n) for j in range(n) if (i ^ j).bit_count() == 1},
    "binary_tree": lambda n: both(
        {(0, 1)} | {(w // 2, w) for w in range(2, n)} if n > 1 else set()
    ),
    "regular_tree": lambda n: both(
        {
            ((w - 4) // 2 + 1 if w > 3 else 0, w) for w in range(1, n)
        }  # agents 1, 2, 3 below the root
    ),
    "spanning_tree": lambda n: both(nearer(n)),
    "exponential": lambda n: {(i, (i + h) % n) for i in range(n) for h in powers(2, n - 1)},
    "symmetric_exponential": lambda n: both(
        {(i, (i + h) % n) for i in range(n) for h in powers(4, n // 2)}
    ),
}


def adjacency(n, edges):
    A = np.zeros((n, n), bool)  # A[i, j]: i receives from j
    for sender, receiver in edges:
        A[receiver, sender] = True
    return A


def dense_weights(A, weights):
    """The definitions, one entry at a time."""
    n = len(A)
    incoming, outgoing = A.sum(axis=1), A.sum(axis=0)
    W = np.zeros((n, n))
    for i, j in zip(*np.nonzero(A)):
        degree = {
            "metropolis": max(incoming[i], outgoing[j]),
            "uniform": incoming[i],
            "push": outgoing[j],
        }
        W[i, j] = 1 / (1 + degree[weights]) if weights in degree else weights
    rest = 1 - W.sum(axis=0 if weights == "push" else 1)
    return W + np.diag(rest)


def assert_canonical(W):
    """Columns ascend in each row, nothing off the diagonal is a stored zero, and the flags are true."""
    assert (
        W.has_sorted_indices
        and W.has_canonical_format
        and W.indptr[0] == 0
        and W.indptr[-1] == W.nnz == len(W.data)
    )
    rows = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    assert (np.diff(rows * W.shape[1] + W.indices.astype(np.int64)) > 0).all()
    W.check_format(full_check=True)


def product(schedule):
    """W of one period, the first step's on the right."""
    W = np.eye(schedule.n)
    for k in range(schedule.period):
        W = schedule.at(k).W.toarray() @ W
    return W


def rounds(n):
    return max(1, math.ceil(math.log2(n)))


UNDIRECTED = [
    *(T.erdos_renyi(11, 0.5, seed=s) for s in range(12)),
    *(T.complete(n) for n in range(1, 10)),
    T.star(7),
    T.ring(7),
    T.grid(12),
    T.binary_tree(9),
    T.from_networkx(nx.petersen_graph()),
]


def edges_of(topology):
    return {tuple(sorted(edge)) for edge in topology.to_networkx().edges}


def ceca_rounds(n, ports=2, parity="paper"):
    """Digit, n_r and the senders s(i) of each round of CECA, by the paper's formulas."""
    made, count, i = [], 0, np.arange(n)
    for digit in map(int, f"{n - 1:b}"):
        if ports == 2:
            sender = (i - count - digit) % n
        else:
            forward = i % 2 == (parity == "repository")
            sender = (i + np.where(forward, 1, -1) * (2 * count + 1)) % n
        made.append((digit, count, sender))
        count = 2 * count + digit
    return made
