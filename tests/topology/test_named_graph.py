"""Graphs over a graph that is given by name.  No MPI."""

import pytest

import mpidec.topology as T

pytestmark = pytest.mark.serial


def test_catalogue_takes_the_graph_by_name():
    made = T.CATALOGUE["matcha"](9, 0.3, graph="erdos_renyi(p=0.6, seed=2)", seed=4)
    assert made == T.matcha(T.erdos_renyi(9, 0.6, 2), 0.3, 4)
    assert T.CATALOGUE["spanning_tree"](12, graph="grid") == T.spanning_tree(T.grid(12))
    assert T.CATALOGUE["periodic_average"](6, 3, graph="one_peer_exponential").period == 3


WRONG = [
    (
        lambda: T.CATALOGUE["matcha"](6, graph="rign"),
        "unknown topology in matcha: graph = 'rign': did you mean ring",
    ),
    (
        lambda: T.CATALOGUE["matcha"](6, graph="ring(3)"),
        "graph is 'ring(3)', expected a name, perhaps with settings",
    ),
    (
        lambda: T.CATALOGUE["matcha"](6, graph="ring(q=3)"),
        "unknown parameter of ring 'q': expected one of weights",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words[-24:] for _, words in WRONG])
def test_wrong_calls_say_what_is_wrong(call, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert words in str(caught.value)
