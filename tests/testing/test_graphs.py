"""Every graph of the catalogue has the properties of the contract, and each property sees the faults that it is for."""

from functools import partial

import networkx as nx
import numpy as np
import pytest

import mpidec.topology as T
from mpidec.testing import ContractError, check_topology
from mpidec.testing.graphs import GRAPHS

pytestmark = pytest.mark.serial


OPTIONS = {
    "base_k": [{"k": 3}],
    "ceca": [{"ports": 1}, {"ports": 1, "parity": "repository"}],
    "equitopo": [{"kind": kind} for kind in ("OU", "D-static", "U-static")],
}
ROWS = {
    "-".join([name, *map(str, options.values())]): partial(make, **options)
    for name, make in T.CATALOGUE.items()
    for options in ({}, *OPTIONS.get(name, []))
}


@pytest.mark.parametrize("make, name", [(make, name) for make in ROWS for name in GRAPHS])
def test_contract(make, name):
    GRAPHS[name](ROWS[make])


@pytest.mark.parametrize("weights", ["uniform", "push", "push-pull", "lazy", 0.04])
def test_contract_of_other_weights(weights):
    def graph(n):
        return T.star(n, weights=weights)

    check_topology(graph)


class Said(T.Schedule):
    """A ring that says something else of itself."""

    name, directed, period, kind = "said", False, 1, "doubly"

    def __init__(self, n, gap=None):
        self.n, self.gap, self.made = n, gap, T.ring(n)

    def at(self, k):
        return self.made

    def spectral_gap(self):
        return self.made.spectral_gap() if self.gap is None else self.gap

    def fingerprint(self):
        return self.made.fingerprint()


class Endless(Said):
    """A period that is too short."""

    def at(self, k):
        return T.ring(self.n) if k % 2 else T.star(self.n)


class Drawn(Said):
    """New random numbers each time."""

    def __init__(self, n):
        super().__init__(n)
        self.made = T.erdos_renyi(n, seed=int(np.random.default_rng().integers(2**31)))


class Wrong(T.Topology):
    """A topology with wrong words, or rows of another graph."""

    is_tree = True
    wrong_rows = False

    def rows(self, lo, hi):
        return T.star(self.n).rows(lo, hi) if self.wrong_rows else super().rows(lo, hi)


class WrongRows(Wrong):
    is_tree = T.Topology.is_tree
    wrong_rows = True


def row_sums(n):
    """Weights of a row-stochastic matrix, said to be doubly stochastic."""
    made = T.star(n, weights="uniform")
    object.__setattr__(made.source, "kind", "doubly")
    return made


def alone(n):
    return T.from_weights(np.eye(n), connected=False)


SEEN = {
    "sums": [row_sums],
    "words": [lambda n: Wrong("wrong", T.ring(n).source), alone],
    "blocks": [lambda n: WrongRows("wrong", T.ring(n).source)],
    "gap": [lambda n: Said(n, 0.9), lambda n: Said(n, 1.0)],
    "repeats": [lambda n: Endless(n), lambda n: Drawn(n)],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_property_sees_its_faults(name):
    for make in SEEN[name]:
        with pytest.raises(ContractError, match=f"fails '{name}': .*; "):
            GRAPHS[name](make)


def test_all_failures_are_told_at_once():
    with pytest.raises(ContractError, match=r"fails 'gap'.*\n.*fails 'repeats'"):
        check_topology(lambda n: Endless(n, 0.9))


def test_a_graph_of_one_agent_alone_is_refused_once():
    def split(n):
        return nx.disjoint_union(nx.path_graph(n // 2), nx.path_graph(n - n // 2))

    with pytest.raises(ContractError) as refused:
        check_topology(split)
    said = str(refused.value)
    assert said.startswith("split makes no graph of any of (2, 3, ") and said.count("n = 2") == 1
    assert "the graph is not connected" in said and "\n" not in said
