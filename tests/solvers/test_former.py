"""Solvers of users that declare what they need as in version 0.1."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N = 4
CENTRES = np.array([[1.0], [3.0], [0.0], [4.0]])


def declared(**attributes):
    """A class with these class attributes, which averages and takes steps of what it is given."""

    class State(NamedTuple):
        X: np.ndarray

    def step(self, s, G, W):
        if isinstance(G, np.ndarray):
            return State(W(s.X) - self.step_size * G)
        return State(W(s.X) if G is None else G.prox(W(s.X) - 0.1 * G.grad(s.X), 0.1))

    body = {
        "__annotations__": {"step_size": float},
        "init": lambda self, X, W=None: State(X),
        "step": step,
        **attributes,
    }
    return dataclass(frozen=True)(type("Own", (S.Solver,), body))


@pytest.mark.parametrize(
    "attributes, needs",
    [
        ({"kinds": ("doubly", "row")}, S.Needs(kinds=("doubly", "row"))),
        ({"graph": "ring", "positive": True}, S.Needs(graph="ring", positive=True)),
        ({"edgewise": True, "per_edge": ("M",)}, S.Needs(exchange=True, per_edge=("M",))),
        ({"uses": "nothing"}, S.Needs(functions=())),
        ({"uses": "prox"}, S.Needs(functions=("argmin",))),
        (
            {"uses": "functions", "composite": True},
            S.Needs(functions=("grad", "value", "prox")),
        ),
    ],
)
def test_attributes_of_version_0_1_are_needs(attributes, needs):
    with pytest.warns(FutureWarning, match=r"Own declares .*: declare needs = Needs\("):
        assert declared(**attributes).needs == needs


@pytest.mark.parametrize(
    "uses, steps",
    [
        ("gradient", lambda X: X.mean(axis=0) + 0 * X - 0.1 * (X - CENTRES)),
        ("nothing", lambda X: X.mean(axis=0) + 0 * X),
        ("functions", lambda X: X.mean(axis=0) + 0 * X - 0.1 * (X - CENTRES)),
    ],
)
def test_they_take_the_steps_that_they_took(uses, steps):
    with pytest.warns(FutureWarning):
        solver = declared(uses=uses)(0.1)
    X0 = np.arange(4.0)[:, None]
    problem = None if uses == "nothing" else P.LeastSquares(np.ones((N, 1, 1)), CENTRES)
    with mpidec.Network(N, comm=MPI.COMM_SELF) as net:
        X = mpidec.solve(problem, solver, T.complete(N), steps=2, x0=X0, net=net).X
    np.testing.assert_allclose(X, steps(steps(X0)), rtol=1e-14)


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="uses is 'gradients', expected one of gradient, prox"):
        declared(uses="gradients")
