"""`W([a, b])` is `[W(a), W(b)]`, to the bit, of every mixer: the calls of one step, one after the other."""

from itertools import combinations

import numpy as np
import pytest
from helpers.mixers import CALLS
from helpers.mixing import stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing.mixers.operator import EXCLUDED, FAULTS, ORDER

N = 7
GRAPHS = {
    "complete": T.complete(N),  # of many neighbours, symmetric
    "one_peer": T.one_peer_exponential(N),
    "random": T.failing_links(T.erdos_renyi(N, p=0.8, seed=1), 0.2, seed=2),
    "striped": T.double_binary_trees(N),
    "function": T.from_function(N, lambda k: T.erdos_renyi(N, p=0.5, seed=k).W.toarray() > 0),
    "push-pull": T.erdos_renyi(N, p=0.5, seed=3, weights="push-pull"),
}


REMEMBERING = [  # with error feedback: over static graphs, and not past faults
    lambda W: W.compress("top_k", k=2),
    lambda W: W.compress("rand_k", fraction=0.5, seed=4),
    lambda W: W.compress("qsgd", levels=2),
]


def compositions():
    """All calls that may follow each other."""
    for length in range(len(ORDER) + 1):
        for calls in combinations(ORDER, length):
            if not any(pair in EXCLUDED for pair in combinations(calls, 2)):
                yield calls


def arrays_of(case, agents):
    """1 to 3 arrays, a list or a dict of them, of several lengths and types."""
    dtypes = [(float,), (float, complex, np.float32)][case % 3 == 2]
    made = [
        stack(N, shape, dtypes[(case + i) % len(dtypes)], seed=case + 10 * i)[agents] * 10.0**-i
        for i, shape in enumerate([(5,), (2, 3), (1,)][: 1 + case % 3])
    ]
    if case % 4 == 1:
        made = [X.astype(complex) * (1 - 2j) for X in made]
    return dict(zip("cab", made)) if case % 2 else made


def made_of(base, calls, case):
    W, rng = base, np.random.default_rng(case)
    for call in calls:
        kinds = CALLS[call]
        if call == "compress" and "accelerate" in calls:
            # Random rounding draws once a mixing: the arrays of one call draw in turn, and separate calls one by one.
            kinds = [kind for kind in kinds if not kind(base).codec.draws]
        if call == "compress" and not {*calls} & {*FAULTS} and base.topology.period == 1:
            kinds = kinds if "accelerate" in calls else REMEMBERING + kinds
        W = kinds[rng.integers(len(kinds))](W)
    return W


def each(P, arrays):
    """The arrays mixed by one call each, those of a dict in the order of their names."""
    if isinstance(arrays, dict):
        return {name: P(arrays[name]) for name in sorted(arrays)}
    return [P(X) for X in arrays]


def assert_same(Y, Z):
    assert type(Y) is type(Z) and len(Y) == len(Z)
    for name in Z if isinstance(Z, dict) else range(len(Z)):
        assert Y[name].dtype == Z[name].dtype and Y[name].shape == Z[name].shape
        np.testing.assert_array_equal(Y[name], Z[name])


def fits(calls, graph):
    """Whether the calls suit the graph; what does not is refused, as other tests see."""
    static = graph.period == 1 and graph.kind != "pair"
    return (
        (static or "accelerate" not in calls)
        and (graph.period is not None or "triggered" not in calls)
        and ("compress" not in calls or not isinstance(graph, T.Striped))
        and ("robust" not in calls or graph.kind in ("doubly", "row"))
        and (graph.kind != "pair" or "repeat" not in calls)
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_several_arrays_are_mixed_as_by_one_call_each(name):
    graph, tried = GRAPHS[name], 0
    with mpidec.Network(N) as net, mpidec.Network(N, comm=MPI.COMM_SELF) as alone:
        bases, all_ = [net.mixer(graph) for _ in range(3)], alone.mixer(graph)
        here = slice(net.lo, net.hi)
        for case, calls in enumerate(filter(lambda calls: fits(calls, graph), compositions())):
            mixers = [made_of(base, calls, case) for base in [*bases, all_]]
            arrays, stacks = arrays_of(case, here), arrays_of(case, slice(None))
            for k in (0, 2):
                at_k = [W.at(k) for W in mixers]
                for P, Q, R, S in [at_k, [op.C for op in at_k]][: 1 + (graph.kind == "pair")]:
                    expected = each(Q, arrays)
                    assert_same(P(arrays), expected)
                    assert_same(R.start(arrays).wait(), expected)
                    whole = each(S, stacks)
                    for key in whole if isinstance(whole, dict) else range(len(whole)):
                        np.testing.assert_array_equal(expected[key], whole[key][here])
            tried += 1
    assert tried >= 13


@pytest.mark.parametrize("name", ["plain", "lossy", "robust", "compress"])
def test_arrays_of_one_type_travel_in_one_message(name):
    made = {
        "plain": lambda W: W,
        "lossy": lambda W: W.lossy(0.3),
        "robust": lambda W: W.robust("clip", tau=1),
        "compress": lambda W: W.compress("top_k", k=2),
    }[name]
    with mpidec.Network(N) as net:
        W, V = made(net.mixer("ring")), made(net.mixer("ring"))
        X, Z = (stack(N, shape)[net.lo : net.hi] for shape in ((5,), (2, 3)))
        W([X, Z])
        V(X), V(Z)
        assert (W.rounds, V.rounds) == (1, 2)
        assert (2 * W.messages, W.bytes) == (V.messages, V.bytes)
        W([X, Z.astype(np.float32)])
        assert W.rounds == 3 and W([]) == []
