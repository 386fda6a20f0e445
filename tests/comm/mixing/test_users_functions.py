"""Functions of users on the way of rows: what they write into or keep changes nothing else, and what they return is checked."""

import numpy as np
import pytest
from helpers.mixing import stack
from helpers.users import WRONG, keeping, same_signature, writing
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing.base.edges import edges_into, edges_out_of

N, D = 5, 3


def graph():
    return T.erdos_renyi(N, p=0.7, seed=1)


def mixed(make, complex_too=True):
    """What a mixer of a fresh network makes of rows, in three steps, of one array and several."""
    with mpidec.Network(N) as net:
        W, made = make(net), []
        for dtype in (float, complex) if complex_too else (float,):
            X, Z = (stack(N, (d,), dtype, seed=d)[net.lo : net.hi] for d in (D, 2))
            for k in range(3):
                made += [W.at(k)(X), *W.at(k).start([X, Z]).wait()]
        return made


def exchanged(make):
    with mpidec.Network(N) as net:
        W, made = make(net.mixer(graph())), []
        X = stack(N, (D,))[net.lo : net.hi]
        for k in range(3):
            M = W.at(k).to_edges(X)
            kept = M.copy()
            made.append(W.at(k).exchange(M))
            np.testing.assert_array_equal(M, kept)  # what is sent is not changed
        return made


def rule(x, X, w):
    far = np.abs(X - x).max(axis=1) > 1.5
    w = w * ~far
    return x + w @ (X - x)


def attack(step, agent, row):
    return 2 * row + step


def told(step, agent, row, receiver):
    return row - receiver


def lost(k, receivers, senders):
    return (receivers + senders + k) % 3 == 0


def matrices(n):
    return T.chain(n).W.toarray()


FUNCTIONS = {  # a right one, a run with it, how messages name it, and what it may return beside
    "rule": (
        rule,
        lambda f: mixed(lambda net: net.mixer(graph()).robust(f)),
        "the robust rule",
        (),
    ),
    "rule, repeated": (
        rule,
        lambda f: mixed(lambda net: net.mixer(graph()).attacked({1: 3.0}).robust(f).repeat(2)),
        "the robust rule",
        (),
    ),
    "attack": (
        attack,
        lambda f: mixed(lambda net: net.mixer(graph()).attacked(dict.fromkeys(range(N), f)), False),
        "the attack of agent [0-4]",
        ("nan",),
    ),
    "attack on a message": (
        told,
        lambda f: exchanged(lambda W: W.attacked(dict.fromkeys(range(N), f))),
        "the attack of agent [0-4]",
        ("nan",),
    ),
    "lost": (
        lost,
        lambda f: mixed(lambda net: net.mixer(graph()).lossy(f)),
        "the function of lost messages, in step 0,",
        ("True",),
    ),
    "lost messages": (
        lost,
        lambda f: exchanged(lambda W: W.lossy(f)),
        "the function of lost messages, in step 0,",
        ("True",),
    ),
    "graph of n": (
        matrices,
        lambda f: mixed(lambda net: net.mixer(f)),
        "topology <?matrices|topology <lambda>|ragged",
        (),
    ),
}


def assert_same(got, expected):
    assert len(got) == len(expected)
    for Y, Z in zip(got, expected):
        np.testing.assert_array_equal(Y, Z)


def others():
    """What networks that know nothing of these functions make of an equal graph."""
    return mixed(lambda net: net.mixer(graph()).lossy(0.3).repeat(2)) + exchanged(
        lambda W: W.attacked({})
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_else_changes(name):
    f, go, *_ = FUNCTIONS[name]
    expected, beside = go(f), others()
    for wrong in (writing, keeping):
        assert_same(go(wrong(f)), expected)
        assert_same(others(), beside)
    assert_same(go(f), expected)


@pytest.mark.serial
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_returned_is_checked(name):
    f, go, named, takes = FUNCTIONS[name]
    expected = go(f)
    more = {
        "probabilities": lambda args: np.full(len(args[-1]) if "lost" in name else 9, 0.1),
        "too long": lambda args: np.ones(99),
        "texts": lambda args: np.array(["1.0"] * D),
        "bools": lambda args: [True] if "lost" in name else np.ones(D, bool),
        "complex row": lambda args: np.ones(D, complex),
        "ragged": lambda args: [[1.0], [1.0, 2.0]],
    }
    more |= {kind: lambda args, wrong=wrong: wrong for kind, wrong in WRONG.items()}
    for kind, body in more.items():
        g = same_signature(f, body)
        if kind in takes:
            go(g)
            continue
        with pytest.raises((TypeError, ValueError), match=named) as told:
            go(g)
        assert "\n" not in str(told.value), kind
        if name != "graph of n":
            assert "returned" in str(told.value) and "expected" in str(told.value), kind
    assert_same(go(f), expected)


def test_integers_are_numbers():
    with mpidec.Network(N) as net:
        X = stack(N, (D,))[net.lo : net.hi]
        Y = net.mixer(graph()).robust(lambda x, X, w: np.arange(D))(X)
        assert Y.dtype == float
        np.testing.assert_array_equal(Y, np.tile(np.arange(D), (net.m, 1)))


def test_arrays_that_graphs_share_are_read_only():
    given = T.erdos_renyi(N, p=0.7, seed=1).W.toarray()
    changing = T.from_function(N, lambda k: given)
    bools = T.from_function(N, lambda k: given > 0)
    for one in (
        graph(),
        T.from_weights(given),
        changing.at(0),
        bools.at(0),
        T.push_pull(graph(), graph()),
    ):
        for edges in (edges_into(one, 0, N), edges_out_of(one, 1, 3)):
            assert not any(array.flags.writeable for array in edges)
        W = one.W
        assert not any(part.flags.writeable for part in (W.data, W.indices, W.indptr))
        for make in (lambda one=one: one.rows(0, N), lambda one=one: one.columns(0, N)):
            expected, block = make().toarray(), make()
            for part in (block.data, block.indices, block.indptr):
                if part.flags.writeable:
                    part[:] = 0
            np.testing.assert_array_equal(make().toarray(), expected)
        one.in_neighbors(0)[:] = 0
        assert (
            one.in_neighbors(0).tolist() == np.flatnonzero(given[0] * (np.arange(N) != 0)).tolist()
        )


@pytest.mark.serial
def test_a_rule_that_sets_weights_to_zero():
    """The common way to write one: the weights of the graph stay as they are, in this network and in others."""

    def deaf(x, X, w):
        w[np.abs(X - x).max(axis=1) > 2] = 0
        return x + w @ (X - x)

    near, far = np.array([[0.0], [1.0], [2.0], [1.5]]), np.array([[0.0], [1.0], [2.0], [50.0]])
    for _ in range(2):
        with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
            W = net.mixer(T.complete(4)).robust(deaf)
            before, _, after = W.at(0)(near), W.at(1)(far), W.at(2)(near)
            np.testing.assert_array_equal(before, after)
            np.testing.assert_allclose(net.mixer(T.complete(4)).lossy(0.0)(far), 13.25)
