"""Random programs of BlueFog's windows against a dense model of all values, slots and push-sum weights."""

import networkx as nx
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpidec.bluefog import torch as bf  # noqa: E402

pytestmark = pytest.mark.most(4)
SHAPE = 3, 2


class Model:
    """What each rank i has, X[i] and P[i], and what lies in its slot for j, S[i, j] and Q[i, j]."""

    def __init__(self, near, X, zero):
        n = len(near)
        self.near, self.X, self.P = near, X.copy(), np.ones(n)
        self.S = np.stack([[(0 if zero else 1) * X[i] for _ in range(n)] for i in range(n)])
        self.Q, self.V = np.zeros((n, n)), np.zeros((n, n), int)

    def send(self, i, y, own, weights, add, counts):
        """Put y, or add it, and scale the weight of rank i, and its value if that is what it has sent."""
        for j, w in weights.items():
            self.S[j, i] = add * self.S[j, i] + w * y
            self.Q[j, i] = add * self.Q[j, i] + w * self.P[i]
            self.V[j, i] += 1
        self.P[i] *= own if counts else 1

    def get(self, i, weights):
        for j, w in weights.items():
            self.S[i, j], self.Q[i, j] = w * self.X[j], w * self.P[j]
            self.V[i, j] += 1

    def update(self, i, own, weights, reset, counts):
        """What rank i has then; its versions, and with `reset` the slots that were used, become 0."""
        x = own * self.X[i] + sum(w * self.S[i, j] for j, w in weights.items())
        if counts:
            self.P[i] = own * self.P[i] + sum(w * self.Q[i, j] for j, w in weights.items())
        if reset:
            used = list(weights)
            self.S[i, used], self.Q[i, used] = 0, 0
        self.V[i] = 0
        return x


def a_graph(n, rng):
    """A[i, j] from i to j: a directed ring, further edges, some of them of weight 0, columns that do not sum to 1."""
    edges = (
        (rng.random((n, n)) < 0.5) | np.roll(np.eye(n), 1, 1).astype(bool) | np.eye(n, dtype=bool)
    )
    A = rng.random((n, n)) * edges * (rng.random((n, n)) < 0.7)
    G = nx.DiGraph()
    G.add_nodes_from(range(n))
    G.add_weighted_edges_from((i, j, A[i, j]) for i, j in zip(*np.nonzero(edges)))
    return G, A, [np.flatnonzero(edges[:, i] & (np.arange(n) != i)).tolist() for i in range(n)]


def some(ranks, rng):
    """Weights for a part of some ranks."""
    return {j: float(rng.normal()) for j in ranks if rng.random() < 0.7}


@pytest.fixture
def size():
    bf.init()
    yield bf.size()
    bf.turn_off_win_ops_with_associated_p()
    bf.shutdown()


@pytest.mark.parametrize("counts", [True, False])
def test_programs(size, counts):
    """Puts and accumulates of the window's tensor, of a view of it and of others, reads, updates: each rank has what it should."""
    n, r, rng = size, bf.rank(), np.random.default_rng([size, counts])
    G, A, near = a_graph(n, rng)
    far = [[j for j in range(n) if i in near[j]] for i in range(n)]
    assert bf.set_topology(G, is_weighted=True)
    X, zero = rng.normal(size=(n, *SHAPE)), bool(rng.integers(2))
    model, x = Model(near, X, zero), torch.tensor(X[r])
    (bf.turn_on_win_ops_with_associated_p if counts else bf.turn_off_win_ops_with_associated_p)()
    bf.win_create(x, "x", zero_init=zero)

    def check(got, expected):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)

    for k in range(12):
        for i in range(n):  # all ranks draw what each does
            add, of, own = rng.integers(2), rng.integers(3), float(rng.normal())
            default, free = rng.random(2) < 0.3
            weights = dict.fromkeys(far[i], 1.0) if default else some(far[i], rng)
            Y = rng.normal(size=SHAPE) if of == 2 else model.X[i]
            if i == r:
                y = (x, x.view_as(x), torch.tensor(Y))[of]
                given = y, "x", None if free else own, None if default else weights
                if (k + r) % 2:
                    (bf.win_accumulate if add else bf.win_put)(*given)
                else:
                    begin = bf.win_accumulate_nonblocking if add else bf.win_put_nonblocking
                    assert bf.win_wait(begin(*given))
                check(y, Y * (1 if free else own))
            model.send(i, Y, 1.0 if free else own, weights, add, counts)
            if of < 2 and not free:
                model.X[i] = own * model.X[i]
        bf.barrier()
        check(x, model.X[r])
        check(bf.win_associated_p("x"), model.P[r])
        drawn = [some(near[i], rng) if rng.random() < 0.3 else {} for i in range(n)]
        bf.win_get("x", drawn[r])
        for i in range(n):
            model.get(i, drawn[i])
        assert bf.get_win_version("x") == {j: model.V[r, j] for j in near[r]}
        bf.barrier()
        for i in range(n):
            reset, clone, collect, default = rng.random(4) < [0.5, 0.3, 0.3, 0.3]
            own, weights = float(rng.normal()), some(near[i], rng)
            given = {} if default else {"self_weight": own, "neighbor_weights": weights}
            if default:  # those of the graph
                own, weights = A[i, i], {j: A[j, i] for j in near[i]}
            if collect:
                own, weights, reset, clone = 1.0, dict.fromkeys(near[i], 1.0), True, False
            found = model.update(i, own, weights, reset, counts)
            if i == r:
                y = (
                    bf.win_update_then_collect("x")
                    if collect
                    else bf.win_update("x", **given, reset=reset, clone=clone)
                )
                check(y, found)
                assert (y is x) != clone
            model.X[i] = model.X[i] if clone else found
        check(x, model.X[r])
        check(bf.win_associated_p("x"), model.P[r])
        bf.barrier()
    bf.win_free("x")
