"""What newcomers type first: it works, or the answer is one line that names the remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.driver.arguments import as_oracle

pytestmark = pytest.mark.serial

RNG = np.random.default_rng(0)
A, Y = RNG.normal(size=(40, 3)), RNG.normal(size=40)
B = RNG.normal(size=(4, 5, 3)), RNG.normal(size=(4, 5))
LABELS = np.where(Y > 0, 1, 0)


def problem():
    return P.LeastSquares(*B)


def solver():
    return S.ExactDiffusion(step_size=0.02)


class NoGrad:
    m, d = 4, 3

    def value(self, X):
        return (X * X).sum(axis=1)


class Summed(NoGrad):
    def grad(self, X):
        return 2 * X.sum(axis=0)


class InPlace(NoGrad):
    def grad(self, X):
        X -= 1
        return 2 * X


class Itself(NoGrad):
    def grad(self, X):
        return X


class MeanValue(Itself):
    def value(self, X):
        return (X * X).mean()


class NotASolver:
    def step(self, x, g):
        return x - 0.1 * g


class NotDerived:
    def init(self, X, W=None):
        return X

    def step(self, s, G, W):
        return W(s - G)


class Nothing(NoGrad):
    def grad(self, X):
        return np.where(np.arange(4)[:, None] == 2, np.nan, 2 * X)


class State(NamedTuple):
    X: np.ndarray


class NoX(NamedTuple):
    Y: np.ndarray


class Returning(S.Solver):
    """A solver of one's own, whose init and step return what they are told."""

    def __init__(self, init=State, step=State, step_size=0.1):
        self.made, self.stepped, self.step_size = init, step, step_size

    def init(self, X, W=None):
        return self.made(X)

    def step(self, s, G, W):
        return self.stepped(W(s.X) - self.step_size * G)


@dataclass(frozen=True)
class Forgetful(S.Solver):
    step_size: Any = "auto"

    def init(self, X, W=None):
        return State(X)

    def step(self, s, G, W):
        State(W(s.X) - self.step_size * G)


class NeedsMore(S.DGD):
    def __init__(self, momentum):
        pass


class Estimator:
    def fit(self, X, y):
        return self

    def get_params(self):
        return {}


def graph_of(n):
    return nx.cycle_graph(n)


def random_graph(n, p):
    return nx.gnp_random_graph(n, p)


def digraph(n):
    return nx.DiGraph([*((i, (i + 1) % n) for i in range(n)), (0, n // 2)])


def without_n():
    return T.ring(4)


def solve(problem_=None, solver_=None, topology=None, *, p=problem, s=solver, t="ring", **more):
    return mpidec.solve(
        p() if callable(p) and p is problem else p,
        s() if s is solver else s,
        t,
        **{"steps": 3, **more},
    )


# What works.
RUNS = {
    "names": lambda: solve(s="consensus"),
    "a class with defaults": lambda: solve(s=S.Consensus),
    "a function of the package": lambda: solve(t=T.ring),
    "a function of one's own": lambda: solve(t=graph_of),
    "a networkx graph": lambda: solve(t=nx.petersen_graph(), p=P.load_problem((A, Y), n=10)),
    "a matrix": lambda: solve(t=np.full((4, 4), 0.25)),
    "a list of lists": lambda: solve(t=[[0.5, 0.5], [0.5, 0.5]], p=P.load_problem((A, Y), n=2)),
    "a sparse matrix": lambda: solve(t=sparse.csr_array(np.full((4, 4), 0.25))),
    "a name and x0": lambda: mpidec.solve(None, "consensus", "ring", x0=np.eye(5), steps=3),
    "an oracle": lambda: solve(p=P.MiniBatch(problem(), 2)),
    "labels 0 and 1": lambda: solve(p=P.load_problem((A, LABELS), n=4)),
    "labels that are words": lambda: solve(
        p=P.load_problem((A.tolist(), np.where(Y > 0, "ill", "well").tolist()), n=4)
    ),
    "a network": lambda: _with_network(),
}


def _with_network():
    with mpidec.Network(4) as net:
        return solve(net=net, t="exponential")


@pytest.mark.parametrize("name", RUNS)
def test_runs(name):
    assert RUNS[name]().steps == 3


# What is refused: the call, and words of the answer, of which the last ones are the remedy.
TRIES = {
    "problem by name": (
        lambda: solve(p="logistic"),
        "the name 'logistic'",
        'load_problem("breast_cancer", n=16, problem="logistic")',
    ),
    "data by name": (lambda: solve(p="mine.csv"), 'load_problem("mine.csv", n=16)'),
    "mixing that is no function": (
        lambda: solve(mixing={"codec": "top_k"}),
        "mixing is {'codec': 'top_k'}",
        'lambda W: W.compress("top_k"',
    ),
    "weights of the solver": (
        lambda: solve(weights="auto"),
        "belong to the topology",
        "ring(16, weights='auto')",
    ),
    **{
        f"digraph without weights, {kind}": (
            lambda method=method: solve(s=method, t=digraph(4)),
            f'{method.__name__} takes weights="{kind}"',
            f"topology.weights={kind}",
        )
        for kind, method in {
            "sinkhorn": S.Diffusion,
            "uniform": S.FROST,
            "push": S.PushDIGing,
            "push-pull": S.PushPull,
        }.items()
    },
    "problem class": (
        lambda: solve(p=P.LeastSquares),
        "the class LeastSquares",
        "LeastSquares(A, b)",
    ),
    "problem function": (
        lambda: solve(p=lambda x: x @ x),
        "the function",
        "mpidec.problems.Custom(value, grad, m, d)",
    ),
    "arrays as problem": (lambda: solve(p=(A, Y)), "a tuple", "load_problem((A, y), n=16)"),
    "estimator as problem": (
        lambda: solve(p=Estimator()),
        "an estimator",
        "load_problem((A, y), n=16)",
    ),
    "no problem": (
        lambda: solve(p=None, t=T.ring(4)),
        "problem is None",
        "ExactDiffusion needs the gradients of a problem",
    ),
    "problem without grad": (
        lambda: solve(p=NoGrad()),
        "NoGrad has no grad",
        "Custom(value, grad, m, d)",
    ),
    "gradient summed": (
        lambda: solve(p=Summed()),
        "grad(X) has shape (3,)",
        "expected (4, 3)",
        "one gradient for each row",
    ),
    "gradient in place": (lambda: solve(p=InPlace()), "changes X", "write X = X - ..."),
    "gradient is X": (lambda: solve(p=Itself()), "returns X itself", "X.copy()"),
    "value averaged": (
        lambda: solve(p=MeanValue()),
        "value(X) has shape ()",
        "expected (4,)",
        "one number for each row",
    ),
    "Custom with a wrong shape": (
        lambda: solve(p=P.Custom(lambda X: X.sum(), lambda X: X, m=4, d=3)),
        "value(X) returns float64 of shape ()",
        "(4,)",
    ),
    "solver misspelt": (
        lambda: solve(s="gradient trakking"),
        "unknown solver 'gradient trakking'",
        "did you mean gradient_tracking",
    ),
    "solver in camel case": (lambda: solve(s="GradientTraking"), "did you mean gradient_tracking"),
    "solver unknown": (
        lambda: solve(s="xyz"),
        "unknown solver 'xyz'",
        "expected one of consensus, dgd",
        "FILE.py:NAME",
    ),
    "solver class with parameters": (
        lambda: solve(s=NeedsMore),
        "NeedsMore needs momentum",
        "NeedsMore(momentum=...)",
    ),
    "solver is a number": (lambda: solve(s=0.1), "the number 0.1", "ExactDiffusion(step_size=0.1)"),
    "solver is None": (lambda: solve(s=None), "solver is None", "ExactDiffusion(step_size=0.1)"),
    "solver is a function": (
        lambda: solve(s=lambda x, g: x - g),
        "the function",
        "ExactDiffusion(step_size=0.1)",
    ),
    "solver without init": (
        lambda: solve(s=NotASolver()),
        "a NotASolver",
        "ExactDiffusion(step_size=0.1)",
    ),
    "solver not derived": (
        lambda: solve(s=NotDerived()),
        "NotDerived has no ask, point, check",
        "derive the class from mpidec.solvers.Solver",
    ),
    "swapped": (
        lambda: solve(s=T.ring(4), t=solver()),
        "the order is mpidec.solve(problem, solver, topology",
    ),
    "swapped names": (
        lambda: solve(s="ring", t="extra"),
        "'extra' is a solver",
        "the order is mpidec.solve(problem, solver, topology",
    ),
    "problem and solver swapped": (
        lambda: solve(p=solver(), s=problem()),
        "the order is mpidec.solve(problem, solver, topology",
    ),
    "topology is n": (lambda: solve(t=16), "the number 16", "mpidec.topology.ring(16)"),
    "topology misspelt": (
        lambda: solve(t="rings"),
        "unknown topology 'rings'",
        "did you mean ring?",
    ),
    "topology is None": (lambda: solve(t=None), "topology is None", 'a name such as "ring"'),
    "topology is a class": (
        lambda: solve(t=T.Topology),
        "the class Topology",
        "mpidec.topology.ring(16)",
    ),
    "topology needs more": (
        lambda: solve(t=random_graph),
        "random_graph needs p",
        "random_graph(4, p=...)",
    ),
    "function without n": (
        lambda: solve(t=without_n),
        "without_n cannot be called with n = 4",
        "expected a function of n",
    ),
    "adjacency matrix": (
        lambda: solve(t=nx.to_numpy_array(nx.cycle_graph(4))),
        "row of W sums to 2, expected 1",
        "from_networkx(G)",
    ),
    "ones": (lambda: solve(t=np.ones((4, 4))), "row of W sums to 4", "from_networkx(G)"),
    "matrix that is not square": (
        lambda: solve(t=np.ones((4, 3)) / 3),
        "shape (4, 3), expected (n, n)",
    ),
    "graph not connected": (lambda: solve(t=nx.empty_graph(4)), "not connected", "connected=False"),
    "other number of agents": (lambda: solve(t=T.ring(16)), "the problem has 4 agents", "hosts 16"),
    "a graph that is too small": (
        lambda: solve(t=T.ring(3)),
        "the problem has 4 agents, but this rank hosts 3",
        "n = 4, as W has 3 agents",
    ),
    "network of another size": (
        lambda: _other_network(),
        "ring has 8 agents, expected 4",
        "build it with n = 4",
    ),
    "ring of 16 for a matrix solver": (
        lambda: solve(s=S.DSGDCECA(0.1)),
        "DSGDCECA needs topology.ceca",
    ),
    "steps missing": (lambda: mpidec.solve(problem(), solver(), "ring"), "missing", "steps=1000"),
    "steps are a fraction": (lambda: solve(steps=1.5), "steps is 1.5", "an integer"),
    "steps are negative": (lambda: solve(steps=-1), "steps is -1", "an integer >= 0"),
    "x0 of a wrong shape": (
        lambda: solve(x0=np.zeros(7)),
        "x0 has shape (7,)",
        "(3,), common to all agents, or (4, 3)",
    ),
    "x0 not finite": (lambda: solve(x0=np.full(3, np.nan)), "x0 is not finite"),
    "step size in solve": (
        lambda: solve(step_size=0.1),
        "no argument step_size",
        "belongs to the solver",
    ),
    "lr in solve": (
        lambda: solve(lr=0.1),
        "belongs to the solver",
        "ExactDiffusion(step_size=0.1)",
    ),
    "l2 in solve": (
        lambda: solve(l2=0.1),
        "belongs to the problem",
        "load_problem(data, n=16, l2=0.1)",
    ),
    "argument misspelt": (lambda: solve(sede=1), "no argument sede", "did you mean seed?"),
    "tol in solve": (lambda: solve(tol=1e-6), "no argument tol", "did you mean stop?"),
    "step size 0": (
        lambda: solve(s=S.ExactDiffusion(0)),
        "step_size is 0",
        "expected a number > 0",
    ),
    "stop at a negative error": (
        lambda: solve(p=P.load_problem((A, Y), n=4), stop={"error": -1}),
        "is -1",
        "never negative",
    ),
    "stop at error 0": (
        lambda: solve(p=P.load_problem((A, Y), n=4), stop={"error": 0}),
        "is 0",
        "such as 1e-8",
    ),
    "stop at an unknown metric": (
        lambda: solve(p=P.load_problem((A, Y), n=4), stop={"eror": 1}),
        "'eror'",
        "one of",
    ),
    "stop at nothing": (lambda: solve(stop={}), "stop is {}", 'such as {"error": 1e-8}'),
    "gradient not finite": (
        lambda: solve(p=Nothing()),
        "the gradient of agent 2 at x0 is nan",
        "in the data of that agent",
    ),
    "gradient not finite, auto": (
        lambda: solve(p=Nothing(), s="extra"),
        "the gradient of agent 2 at x0 is nan",
    ),
    "gradient not finite, tune": (
        lambda: mpidec.tune(Nothing(), "extra", "ring"),
        "the gradient of agent 2 at x0 is nan",
    ),
    "init returns an array": (
        lambda: solve(s=Returning(init=lambda X: X)),
        "Returning.init() must return the state",
        "field X of shape (4, 3), got a ndarray",
    ),
    "init returns no X": (lambda: solve(s=Returning(init=NoX)), "got a NoX with the fields Y"),
    "step returns a tuple": (
        lambda: solve(s=Returning(step=lambda X: (X,))),
        "Returning.step() must return the state",
        "a tuple",
    ),
    "step returns None": (
        lambda: solve(s=Returning(step=lambda X: None)),
        "Returning.step()",
        "None: is a return missing?",
    ),
    "step returns None, auto": (
        lambda: solve(s=Forgetful()),
        "Forgetful.step() must return the state",
        "is a return missing?",
    ),
    "step returns another shape": (
        lambda: solve(s=Returning(step=lambda X: State(X[:, :1]))),
        "X of shape (4, 3)",
        "got an X of shape (4, 1)",
    ),
    "step returns a list": (
        lambda: solve(s=Returning(step=lambda X: State(X.tolist()))),
        "got an X that is a list",
    ),
    "a wrong name for a mixer": (lambda: _mixer("stra"), "'stra'", "did you mean star"),
    "a matrix for a mixer": (lambda: _mixer(np.eye(4)), "not connected", "connected=False"),
    "a number for a mixer": (
        lambda: _mixer(4),
        "topology is the number 4",
        "mpidec.topology.ring(4)",
    ),
    "step size negative": (lambda: S.DGD(-1.0), "step_size is -1.0", "expected"),
    "data of two dimensions": (
        lambda: P.LeastSquares(A, Y),
        "A has shape (40, 3), expected (m, p, d)",
        "problems.stack",
    ),
    "lists of unequal length": (
        lambda: P.LeastSquares([[[1.0], [1.0, 2.0]]], [[1.0, 2.0]]),
        "ragged",
        "problems.stack",
    ),
    "NaN in the data": (
        lambda: P.load_problem((np.where(A > 2, np.nan, A), Y), n=4),
        "A is nan at row",
        "drop or impute",
    ),
    "labels 0 and 1 in a class": (
        lambda: P.LogisticRegression(B[0], B[1] > 0),
        "label 0",
        "problems.signs(y)",
    ),
    "labels that are words in a class": (
        lambda: P.LogisticRegression(B[0], np.full((4, 5), "ill")),
        "dtype <U3",
        "real numbers",
    ),
    "regression as classification": (
        lambda: P.load_problem((A, Y), n=4, problem="softmax"),
        "is this a regression problem?",
        "least_squares",
    ),
    "one class": (
        lambda: P.load_problem((A, np.ones(40)), n=4, problem="logistic"),
        "all 40 labels are equal (1)",
        "two classes",
    ),
    "one class by default": (
        lambda: P.load_problem((A, -np.ones(40)), n=4),
        "all 40 labels are equal (-1)",
        "two classes",
    ),
    "three classes": (
        lambda: P.load_problem((A, np.arange(40) % 3), n=4, problem="logistic"),
        "two different labels, got 3",
        "use softmax",
    ),
    "n missing": (lambda: P.load_problem((A, Y)), "needs n", "load_problem(data, n=16)"),
    "n too large": (lambda: P.load_problem((A, Y), n=41), "41 agents for 40 samples", "at most 40"),
    "A alone": (
        lambda: P.load_problem(A, n=4),
        "an array of shape (40, 3)",
        "load_problem((A, y), n=16)",
    ),
    "y of a column": (
        lambda: P.load_problem((A, Y[:, None]), n=4),
        "y has shape (40, 1)",
        "np.ravel(y)",
    ),
    "data split already": (
        lambda: P.load_problem(B, n=4),
        "A has shape (4, 5, 3), expected (N, d)",
        "problems.LeastSquares(A, b)",
    ),
    "data misspelt": (
        lambda: P.load_problem("brest_cancer", n=4),
        "unknown data set 'brest_cancer'",
        "did you mean breast_cancer?",
    ),
    "data unknown": (
        lambda: P.load_problem("iris", n=4),
        "'iris': expected one of breast_cancer, digits",
        "path of a file",
    ),
    "schedule misspelt": (
        lambda: S.DGD("inverse(0.1, dealy=3)"),
        "unknown parameter of the schedule inverse 'dealy'",
        "did you mean delay?",
    ),
    "problem misspelt": (
        lambda: P.load_problem((A, Y), n=4, problem="least-sqares"),
        "did you mean least_squares?",
    ),
    "parameter misspelt": (
        lambda: P.load_problem((A, Y), n=4, problem="huber", dleta=2),
        "dleta",
        "parameter",
    ),
    "British spelling": (
        lambda: P.load_problem((A, Y), n=4, standardise=True),
        "did you mean standardize?",
    ),
    "an argument of the class": (
        lambda: P.load_problem((A, Y), n=4, weight=2.0),
        "unknown parameter",
        "expected one of",
    ),
    "an object as the kind of problem": (
        lambda: P.load_problem((A, Y), n=4, problem=problem()),
        "has its data already",
        "pass a name or the class",
    ),
    "a number as the kind of problem": (
        lambda: P.load_problem((A, Y), n=4, problem=5),
        "expected a class or a function of (A, y)",
    ),
    "a word as a bound": (
        lambda: P.load_problem((A, Y), n=4, lower="a"),
        "lower is 'a', expected a number",
    ),
    "partition misspelt": (
        lambda: P.load_problem((A, Y), n=4, partition="dirichelt"),
        "did you mean dirichlet?",
    ),
    "both ridges": (
        lambda: P.load_problem((A, Y), n=4, l2=1, l2_total=4),
        "l2 = 1 and l2_total = 4",
        "one of them",
    ),
    "an l1 term with gradients": (
        lambda: solve(p=P.load_problem((A, Y), n=4, l1=0.1)),
        "ExactDiffusion would ignore",
        "Subgradient(problem)",
    ),
    "a box with gradients": (
        lambda: solve(p=P.load_problem((A, Y), n=4, lower=0)),
        "ExactDiffusion would ignore",
        "proximal step",
    ),
}


def _other_network():
    with mpidec.Network(4) as net:
        return solve(net=net, t=T.ring(8))


def _mixer(topology):
    with mpidec.Network(4) as net:
        return net.mixer(topology)


@pytest.mark.parametrize("name", TRIES)
def test_is_refused_in_one_line_with_the_remedy(name):
    call, *words = TRIES[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    text = str(caught.value)
    missing = [word for word in words if word not in text]
    assert not missing and "\n" not in text and len(text) < 360, f"{text!r} does not say {missing}"
    assert not re.search(r"object at 0x", text)


def test_a_result_and_a_run_print_in_one_short_line(tmp_path):
    result = solve(p=P.load_problem((A, Y), n=4), record=tmp_path / "run.h5")
    run = mpidec.read(tmp_path / "run.h5")
    for thing in (result, run):
        assert "completed after 3 steps" in repr(
            thing
        ) and f"error {result.metrics['error'][-1]:.4g}" in repr(thing)
        assert "records: 2" in repr(thing) and "array" not in repr(thing) and "\n" not in str(thing)
    assert len(repr(result)) < 250 and "step size 0.02" in repr(result) and "(4, 3)" in repr(result)
    assert len(repr(run)) < 400 + len(str(tmp_path))


def test_a_warning_of_a_run_points_to_the_line_that_calls_it():
    with pytest.warns(RuntimeWarning, match="all without communication") as caught:
        mpidec.solve(problem(), S.LocalDGD(0.01, local_steps=9), "ring", steps=3)
    assert {warning.filename for warning in caught} == {__file__}


def test_an_oracle_of_ones_own_states_what_it_is():
    """What it leaves out is that of `Oracle`; the driver sees it through one adapter."""
    exact = type("Exact", (), {"problem": problem(), "random": False, "start": lambda *_: None})()
    drawn = type("Drawn", (), {"problem": problem(), "start": lambda *_: None})()
    found = [as_oracle(one) for one in (exact, drawn, problem(), None)]
    assert [one and (one.random, one.smooth, one.batches) for one in found] == [
        (False, True, None),
        (True, True, None),
        (False, True, None),
        None,
    ]
    assert [one.layers() for one in found[:3]] == [[exact], [drawn], []]
    assert as_oracle(found[0]) is found[0]


def test_an_argument_resume_names_the_way():
    with pytest.raises(TypeError, match=r'no argument resume: record=mpidec.Record\("run.h5", res'):
        mpidec.solve(None, "consensus", "ring", steps=1, resume=True)


def test_progress_may_be_printed_by_simulations_too(capsys):
    problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.ones((4, 1)))
    for shown in (True, False):
        mpidec.simulate(
            problem, mpidec.solvers.A2CiD2(0.1), "ring", steps=20, every=10, progress=shown
        )
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines] == [
            ["step", f"{k}/20"] for k in (0, 10, 20) if shown
        ]
