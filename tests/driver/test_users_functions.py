"""Functions of users that write into their arguments, keep them, or return something else: nothing else changes, and the message
names the function.
"""

import numpy as np
import pytest
from helpers.users import WRONG, keeping, same_signature, writing

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.comm.mixing.codecs import Codec, Float16

pytestmark = pytest.mark.serial

N, D = 4, 3
RNG = np.random.default_rng(0)
A, B, X0 = RNG.normal(size=(N, 6, D)), RNG.normal(size=(N, 6)), RNG.normal(size=(N, D))


def ended(result):
    return {"X": result.X.copy()} | {k: v for k, v in result.metrics.items() if k != "time"}


def run(problem=None, solver=None, graph="ring", **options):
    problem, solver = problem or P.LeastSquares(A, B), solver or S.GradientTracking(0.02)
    return ended(mpidec.solve(problem, solver, graph, steps=6, every=2, x0=X0, **options))


def simulated(problem=None, **options):
    problem, solver = problem or P.LeastSquares(A, B), S.AsyncPushSum(0.02)
    return ended(mpidec.simulate(problem, solver, T.ring(N), steps=6, x0=X0, **options))


def value(X):
    return ((np.einsum("npd,nd->np", A, X) - B) ** 2).sum(axis=1) / 2


def grad(X):
    return np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - B)


def draw(rng, agent, k):
    u = rng.normal(size=D)
    return u, u.sum() + 0.1 * rng.normal()


def custom(value=value, grad=grad):
    return P.Custom(value, grad, m=N, d=D, smoothness=20.0)


def stream(draw=draw, **options):
    return P.Stream(draw, N, D, held_out=9, **options)


class OwnOracle:
    def __init__(self, gradient):
        self.problem, self.gradient = P.LeastSquares(A, B), gradient

    def start(self, agents, seed):
        return self.gradient


class OwnCodec(Codec):
    def __init__(self, **methods):
        vars(self).update(methods)

    def nbytes(self, d, dtype):
        return Float16().nbytes(d, dtype)

    def encode(self, X, step, agents):
        return Float16().encode(X, step, agents)

    def decode(self, rows, d, dtype, step, agents):
        return Float16().decode(rows, d, dtype, step, agents)

    def delta(self, d):
        return 1.0


def by_codec(**methods):
    return run(mixing=lambda W: W.compress(OwnCodec(**methods), feedback=False))


def coupled(argmin=lambda C: -C, value=lambda X: (X**2).sum(axis=1) / 2):
    return P.ConstraintCoupled(argmin, value, A[:, :D, :2], B[:, :D])


FUNCTIONS = {  # a right one, a run with it, how messages name it, and what it may return beside
    "mixing": (lambda W: W.repeat(2), lambda f: run(mixing=f), "mixing", ""),
    "graph": (
        lambda k: (T.ring if k % 2 else T.complete)(N).W.toarray(),
        lambda f: run(graph=T.from_function(N, f)),
        "from_function",
        "",
    ),
    "encode": (OwnCodec().encode, lambda f: by_codec(encode=f), r"OwnCodec\.encode", ""),
    "decode": (OwnCodec().decode, lambda f: by_codec(decode=f), r"OwnCodec\.decode", ""),
    "value": (value, lambda f: run(custom(value=f)), "value", ""),
    "grad": (grad, lambda f: run(custom(grad=f)), "grad", ""),
    "oracle": (lambda X, k: grad(X), lambda f: run(OwnOracle(f)), "gradient", ""),
    "oracle of events": (
        lambda X, k, agents=None: X - np.arange(D),
        lambda f: simulated(OwnOracle(f)),
        "gradient",
        "",
    ),
    "argmin": (lambda C: -C, lambda f: run(coupled(argmin=f)), "argmin", ""),
    "value of argmin": (
        lambda X: (X**2).sum(axis=1) / 2,
        lambda f: run(coupled(value=f)),
        "value",
        "",
    ),
    "draw": (draw, lambda f: run(stream(f), S.Diffusion(0.02)), "draw", ""),
    "loss": (
        lambda x, u, y: ((u @ x - y) ** 2 / 2, (u @ x - y) * u),
        lambda f: run(stream(loss=f), S.Diffusion(0.02)),
        "loss",
        "",
    ),
    "x_star": (
        lambda k: np.ones(D) * k,
        lambda f: run(stream(x_star=f), S.Diffusion(0.02)),
        "x_star",
        "",
    ),
    "step_size": (
        lambda k: 0.02 / (k + 1),
        lambda f: run(solver=S.GradientTracking(f)),
        "step_size",
        "",
    ),
    "metric": (
        lambda X, agents, k: np.abs(X).sum(axis=1),
        lambda f: run(metrics={"mine": f}),
        "metric mine",
        "",
    ),
    "stop": (lambda metrics: metrics["step"] > 3, lambda f: run(stop=f), "stop", "True"),
    "stop_of_events": (
        lambda metrics: metrics["step"] > 3,
        lambda f: simulated(stop=f),
        "stop",
        "True",
    ),
    "progress": (lambda k, steps, metrics: None, lambda f: run(progress=f), "", "all"),
    "progress_of_events": (
        lambda k, steps, metrics: None,
        lambda f: simulated(progress=f),
        "",
        "all",
    ),
    "delay": (lambda rng, i, j: 0.1 * rng.random(), lambda f: simulated(delay=f), "delay", ""),
}
READ_ONLY = {"value", "grad"}  # writing into X is refused before the first step


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_else_changes(name):
    f, go, *_ = FUNCTIONS[name]
    expected = go(f)
    for wrong in (writing, keeping):
        if wrong is writing and name in READ_ONLY:
            with pytest.raises(ValueError, match=r"changes X|read-only"):
                go(writing(f))
        else:
            assert_same(go(wrong(f)), expected)
        assert_same(go(f), expected)


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for key in got:
        np.testing.assert_array_equal(got[key], expected[key], err_msg=key)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_returned_is_checked(name):
    f, go, named, takes = FUNCTIONS[name]
    expected = go(f)
    for kind, wrong in WRONG.items():
        g = same_signature(f, lambda args, wrong=wrong: wrong)
        if takes in ("all", kind):
            go(g)
        else:
            with pytest.raises((TypeError, ValueError), match=named):
                go(g)
    assert_same(go(f), expected)


class OwnProblem:
    m, d = N, D

    def __init__(self, **methods):
        self.value, self.grad = value, grad
        vars(self).update(methods)


def mixed(**options):
    (name, value), *_ = options.items()
    return run(mixing=lambda W: getattr(W, name)(value))


ARITY = {name: (f, go, named) for name, (f, go, named, _) in FUNCTIONS.items()} | {
    "progress": (lambda k, steps, metrics: None, lambda f: run(progress=f), "progress"),
    "progress_of_events": (
        lambda k, steps, metrics: None,
        lambda f: simulated(progress=f),
        "progress",
    ),
    "rule": (lambda own, received, weights: own, lambda f: mixed(robust=f), "robust: rule"),
    "attack": (
        lambda step, agent, row: row,
        lambda f: mixed(attacked={1: f}),
        "attack of agent 1",
    ),
    "losses": (
        lambda step, receivers, senders: np.zeros(len(receivers), bool),
        lambda f: mixed(lossy=f),
        "lossy: messages",
    ),
    "start": (
        lambda agents, seed: lambda X, k: grad(X),
        lambda f: run(own_start(f)),
        r"OwnOracle\.start",
    ),
    "value of a class": (value, lambda f: run(OwnProblem(value=f)), "OwnProblem: value"),
    "grad of a class": (grad, lambda f: run(OwnProblem(grad=f)), "OwnProblem: grad"),
    "nbytes": (OwnCodec().nbytes, lambda f: by_codec(nbytes=f), r"OwnCodec\.nbytes"),
    "delta": (OwnCodec().delta, lambda f: by_codec(delta=f), r"OwnCodec\.delta"),
    "x_star of Custom": (
        lambda k: np.ones(D),
        lambda f: run(P.Custom(value, grad, m=N, d=D, smoothness=20.0, x_star=f)),
        "x_star",
    ),
}


def own_start(start):
    oracle = OwnOracle(None)
    oracle.start = start
    return oracle


@pytest.mark.parametrize("name", ARITY)
def test_a_function_of_other_parameters_is_refused_by_its_name(name):
    """In one line that names what is expected, and what is there."""
    f, go, named = ARITY[name]
    go(f)
    for wrong in (lambda: None, lambda a, b, c, d, e, f: None):
        with pytest.raises(TypeError, match=rf"{named}.* is <lambda>\(.*expected a function of \("):
            go(wrong)


def test_a_function_of_losses_may_return_one_bool_for_all_messages():
    all_lost = run(mixing=lambda W: W.lossy(1.0))
    assert_same(run(mixing=lambda W: W.lossy(lambda step, receivers, senders: True)), all_lost)
