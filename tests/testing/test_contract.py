"""Every solver of the catalogue has the properties of the contract, and each property sees the faults that it is for."""

from dataclasses import dataclass, fields
from itertools import count
from typing import NamedTuple

import numpy as np
import pytest

import mpidec
from mpidec import solvers as S
from mpidec.testing import ContractError, check_solver
from mpidec.testing.contract import ASYNCHRONOUS, COMMON, properties, variants

ROWS = [
    pytest.param(solver, name, id=f"{key}-{difference}{name}")
    for key, made in S.CATALOGUE.items()
    for solver in variants(made)
    for difference in [
        "".join(
            f"{field.name}={getattr(solver, field.name)}-"
            for field in fields(solver)
            if getattr(solver, field.name) != getattr(variants(made)[0], field.name)
        )
    ]
    for name in properties(solver)
]


@pytest.mark.serial
@pytest.mark.parametrize("solver, name", [row for row in ROWS if row.values[1] != "bits"])
def test_contract(solver, name):
    properties(solver)[name]()


@pytest.mark.serial
def test_prox_skip_that_skips_nothing_has_the_rate_of_its_linear_map():
    properties(S.ProxSkip(probability=1.0))["rate"]()


@pytest.mark.wide
def test_the_same_bits_on_any_number_of_ranks():
    for solver, name in (row.values for row in ROWS):
        if (
            name == "bits"
        ):  # one test, since each one ends with barriers; the error names the solver
            properties(solver)[name]()


# ---------------------------------------------------------------------------------------------------------------------
# Each fault is seen


@dataclass(frozen=True)
class Descent(S.Solver):
    """DGD, as a user writes it."""

    step_size: float | str = "auto"
    keeps_rows = True
    exact = False

    class State(NamedTuple):
        X: np.ndarray

    def init(self, X, W=None):
        return self.State(X)

    def step(self, s, G, W):
        return self.State(W(s.X - self.step_size * G))


@dataclass(frozen=True)
class Tracking(Descent):
    """Gradient tracking, likewise."""

    exact = True

    class State(NamedTuple):
        X: np.ndarray
        WY: np.ndarray
        G: np.ndarray

    def init(self, X, W=None):
        return self.State(X, 0 * X, 0 * X)

    def step(self, s, G, W):
        Y = s.WY + G - s.G
        X, WY = W([s.X - self.step_size * Y, Y])
        return self.State(X, WY, G)


@dataclass(frozen=True)
class Rounds(Descent):
    """Local steps, whose number has another name than ours."""

    step_size: float = 0.01
    period: int = 9

    class State(NamedTuple):
        X: np.ndarray
        k: int

    def init(self, X, W=None):
        return self.State(X, 0)

    def step(self, s, G, W):
        X, k = s.X - self.step_size * G, s.k + 1
        return self.State(X if k % self.period else W.at(s.k // self.period)(X), k)


def broken(base, **attributes):
    """A class derived from `base`, with a fault."""
    return dataclass(frozen=True)(type("Broken", (base,), attributes))


def wrong_sign(self, s, G, W):
    Y = s.WY - G + s.G
    X, WY = W([s.X - self.step_size * Y, Y])
    return self.State(X, WY, G)


def no_correction(self, s, G, W):
    return self.State(W(s.X - self.step_size * G), s.WY, G)


def other_weights(self, s, G, W):
    """W^{k+1} for what was tracked with W^k."""
    Y = s.WY + G - s.G
    return self.State(W(s.X - self.step_size * Y), W.next(Y) - W(s.G) + s.G, G)


def first_gradient_lost(self, s, G, W):
    Y = s.WY + (G - s.G if s.G.any() else 0 * G)
    X, WY = W([s.X - self.step_size * Y, Y])
    return self.State(X, WY, G)


def first_gradient_twice(self, s, G, W):
    """On agent 0 of several."""
    Y = s.WY + G - s.G
    if W.n > 1 and not s.G.any():
        Y = Y + G * (G[:1] == G)
    X, WY = W([s.X - self.step_size * Y, Y])
    return self.State(X, WY, G)


HIDDEN, DRAWN = count(), np.random.default_rng(0)


def hidden_state(self, s, G, W):
    """Every other call takes a quarter of the step size, whatever the state."""
    X, Y = s.X, s.WY + G - s.G
    size = self.step_size if next(HIDDEN) % 2 else self.step_size / 4
    X, WY = W([X - size * Y, Y])
    return self.State(X, WY, G)


def random_step_size(self, s, G, W):
    """From a generator that is not in the state."""
    return self.State(W(s.X - self.step_size * DRAWN.uniform(0.5, 1.5) * G))


def prox_of_half_a_step(self, s, F, W):
    WX = W(s.X)
    Z = WX - self.step_size * F.grad(s.X) - s.D
    return self.State(F.prox(Z, self.step_size / 2), s.D + (s.X - WX) / 2)


def prox_forgotten(self, s, F, W):
    t = S.NIDS.step(self, s, F, W)
    return t._replace(X=t.Z)


def one_speaks(self, s, G, W):
    return self.State(W(s.X - self.step_size * (0 * G + G[:1])))


def one_counts_more(base, agent=0):
    def step(self, s, G, W):
        return base.step(self, s, G * (1 + 4 * (np.arange(len(G))[:, None] == agent)), W)

    return broken(base, step=step)


def alpha_twice(self, s, G, W):
    return self.State(W(s.X - 10 * self.step_size**2 * G))


def alpha_on_the_rows(self, s, G, W):
    return self.State(W((1 - self.step_size / 5) * s.X - self.step_size * G))


def weights_not_mixed(self, s, G, W):
    U = W(s.U - self.step_size * G)
    return self.State(U / s.w, U, s.w)


def mass_lost(self, s, G, W):
    U, w = W([s.U - self.step_size * G, s.w])
    return self.State(U / w, U, 0.99 * w)


def float64_state(self, s, G, W):
    return self.State(W(s.X - self.step_size * G) + np.zeros(s.X.shape))


def float64_message(self, s, G, W):
    X = np.asarray(s.X, np.float64) - self.step_size * G
    return self.State(W(X).astype(s.X.dtype))


def in_place(self, s, G, W):
    X = s.X - self.step_size * G
    Y = W(X)
    X += 1
    return self.State(Y)


def rows_before_changed(self, s, G, W):
    X = s.X
    X -= self.step_size * G
    return self.State(W(X))


def gradients_changed(self, s, G, W):
    G *= self.step_size
    return self.State(W(s.X - G))


def arrays_of_numpy(self, s, G, W):
    return self.State(np.asarray(W(s.X - self.step_size * G)))


def one_step_size(self, s, G, W):
    return self.State(W(s.X - float(np.max(self.step_size)) * G))


def others_alone(self, s, G, W):
    return self.State(W(s.X - self.step_size * (G if W.n > 1 else 0 * G)))


def check_nothing(self, topology):
    pass


def no_remedy(self, topology):
    if topology.kind != "doubly":
        raise ValueError("W is wrong")


def moduli(self, s, G, W):
    return self.State(W(s.X - self.step_size * G / (1 + abs(G))))


def squares_of_complex_numbers(self, s, G, W):
    return self.State(W(s.X - self.step_size * G / (1 + (G * G).sum(axis=1, keepdims=True)) ** 0.5))


def biased_gossip(self, s, mine, theirs, t):
    s.x -= 0.51 * mine - 0.5 * theirs
    s.t = t


def forgotten_sums(self, s, received, gradient):
    message = S.RunningSumTracking.wake(self, s, received, gradient)
    s.rho_read *= 0.9
    return message


def forgotten_weight(self, s, received):
    weight = s.w
    S.AsyncPushSum.collect(self, s, received)
    s.w = weight if s.k % 5 == 4 else s.w


SEEN = {
    "minimizer": [
        broken(Tracking, step=wrong_sign)(0.3),
        broken(Tracking, step=no_correction)(0.3),
        broken(Descent, exact=True)(0.3),
        broken(Tracking, step=first_gradient_lost)(0.3),
        broken(Tracking, step=other_weights, needs=S.Needs(graph="one_peer_exponential"))(0.1),
        broken(S.RunningSumTracking, wake=forgotten_sums),
    ],
    "term": [
        broken(S.PGEXTRA, step=prox_of_half_a_step)(0.3),
        broken(S.NIDS, step=prox_forgotten)(0.3),
    ],
    "rate": [broken(Tracking, step=hidden_state)],
    "bias": [broken(Descent, step=alpha_twice), broken(Descent, step=alpha_on_the_rows)],
    "noise": [broken(Descent, step=one_speaks), *map(one_counts_more, (S.DLM, S.RelaySGD))],
    "steady": [broken(Descent, step=random_step_size)],
    "mean": [
        broken(Descent, step=one_speaks),
        broken(Tracking, step=first_gradient_twice),
    ],
    "average": [
        broken(S.PushSum, step=weights_not_mixed),
        broken(S.PushSum, step=mass_lost),
        broken(S.PairwiseGossip, average=biased_gossip),
        broken(S.AsyncPushSum, collect=forgotten_weight),
    ],
    "dtype": [broken(Descent, step=float64_state), broken(Descent, step=float64_message)],
    "rows": [broken(Descent, step=in_place)],
    "in_place": [
        broken(Descent, step=rows_before_changed),
        broken(Descent, step=gradients_changed),
    ],
    "tensors": [broken(Descent, step=arrays_of_numpy)],
    "columns": [broken(Descent, step=one_step_size)],
    "complex": [
        broken(Descent, step=moduli),
        broken(Descent, step=squares_of_complex_numbers),
    ],
    "kinds": [
        broken(Descent, check=check_nothing),
        broken(Descent, check=no_remedy),
        broken(Descent, needs=S.Needs(graph="star", kinds=("column",))),
    ],
    "few_agents": [broken(Descent, step=others_alone)],
}


@pytest.mark.serial
@pytest.mark.parametrize("name", SEEN)
def test_a_property_sees_its_faults(name):
    if name == "tensors":
        pytest.importorskip("torch")
    for solver in SEEN[name]:
        with pytest.raises(ContractError, match=f"fails '{name}': .*; "):
            properties(solver)[name]()


@pytest.mark.serial
@pytest.mark.parametrize("solver", [Descent, Descent(0.02), Tracking, Tracking(0.02), Rounds])
def test_a_correct_solver_of_a_user_passes(solver):
    check_solver(solver)


@pytest.mark.serial
def test_every_property_is_seen_to_fail():
    assert {*COMMON, *ASYNCHRONOUS} - {*SEEN} == {"bits"}


def local_sums(self, s, G, W):
    return self.State(W(s.X - self.step_size * G) + 1e-3 * s.X.sum())


@pytest.mark.mpi(min_size=2)
def test_bits_that_depend_on_the_ranks_are_seen():
    with pytest.raises(ContractError, match=r"fails 'bits': .*; "):
        properties(broken(Descent, step=local_sums))["bits"]()


@pytest.mark.serial
def test_all_failures_are_told_at_once():
    with pytest.raises(ContractError) as caught:
        check_solver(broken(Descent, step=one_speaks))
    lines = str(caught.value).splitlines()
    assert len(lines) > 2 and all("Broken(step_size='auto') fails '" in line for line in lines)
    with pytest.raises(
        TypeError, match=r"cannot be made without arguments .*hand over a solver with numbers"
    ):
        check_solver(broken(Descent, __init__=lambda self, other: None))


@pytest.mark.serial
def test_a_class_without_its_decorator_is_told_so():
    class Plain(S.Solver):
        step_size = "auto"
        State, init, step = Descent.State, Descent.init, Descent.step

    with pytest.raises(TypeError, match="Plain is no dataclass: write @"):
        check_solver(Plain)
    problem = mpidec.problems.load_problem("synthetic_least_squares", 4)
    with pytest.raises(TypeError, match="Plain is no dataclass: write @"):
        mpidec.solve(problem, Plain(), "ring", steps=5)
