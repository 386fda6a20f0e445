"""What objects say of themselves: one line, the same in every process, without addresses."""

from __future__ import annotations

import importlib
import inspect
import re
import rlcompleter
from dataclasses import dataclass

import numpy as np
import pytest

import mpidec
from mpidec import problems, topology
from mpidec._words import word
from mpidec.comm.mixing.codecs import Codec
from mpidec.problems import LeastSquares, MiniBatch

pytestmark = pytest.mark.serial

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(4, 6, 3)), np.sign(RNG.normal(size=(4, 6)))
MASK = np.arange(6) < [[4], [5], [6], [6]]


class Bare:
    """A problem of one's own, derived from nothing."""

    m, d, x_star = 4, 3, None

    def __init__(self, scale=1.0):
        self.scale = scale

    def value(self, X):
        return self.scale * (X**2).sum(axis=1)

    def grad(self, X):
        return 2 * self.scale * X


class Derived(problems.Problem):
    """A problem of one's own, derived from the protocol."""

    m, d, x_star = 4, 3, None


class Absolute(problems.LinearModel):
    bound = 1.0


class Own(mpidec.solvers.Solver):
    def __init__(self, size):
        self.size = size


class Rounded(Codec):
    def __init__(self, digits=3):
        self.digits = digits


def rule(own, received, weights):
    return own


def value(X):
    return (X**2).sum(axis=1)


SIZES = r"m=4, p=6, d=3"
SHOWN = [
    (LeastSquares(A, B), f"LeastSquares({SIZES})"),
    (LeastSquares(A, B, 0.5, weight=2.0), f"LeastSquares({SIZES}, l2=0.5, weight=2.0)"),
    (LeastSquares(A, B, mask=MASK), "LeastSquares(m=4, p=4 to 6, d=3)"),
    (LeastSquares(A[:0], B[:0]), "LeastSquares(m=0, p=6, d=3)"),
    (LeastSquares(A.astype("f"), B.astype("f")), f"LeastSquares({SIZES}, dtype=float32)"),
    (problems.LogisticRegression(A, B, 0.1), f"LogisticRegression({SIZES}, l2=0.1)"),
    (problems.Softmax(A, B > 0, 3), "Softmax(m=4, p=6, d=9, classes=3)"),
    (problems.Huber(A, B, 0.5), f"Huber({SIZES}, delta=0.5)"),
    (Absolute(A, B, intercept=True), f"Absolute({SIZES}, intercept=True)"),
    (
        LeastSquares(A, B, term=problems.l1(0.1)),
        f"LeastSquares({SIZES}, term={problems.l1(0.1)!r})",
    ),
    (
        problems.Custom(value, lambda X: 2 * X, 4, 3, smoothness=2.0, x_star=np.zeros(3)),
        "Custom(m=4, d=3, value=value, grad=<lambda>, smoothness=2.0)",
    ),
    (Bare(), "Bare(m=4, d=3)"),
    (Bare(2.0), "Bare(m=4, d=3, scale=2.0)"),
    (Derived(), "Derived(m=4, d=3)"),
    (problems.Full(Bare(2.0)), "Full(problem=Bare(m=4, d=3, scale=2.0))"),
    (MiniBatch(LeastSquares(A, B), 2), f"MiniBatch(problem=LeastSquares({SIZES}), batch_size=2)"),
    (
        problems.Noisy(problems.SVRG(LeastSquares(A, B), 2, period=7), 0.5),
        f"Noisy(source=SVRG(problem=LeastSquares({SIZES}), batch_size=2, period=7), sigma=0.5)",
    ),
    (problems.SAGA(LeastSquares(A, B)), f"SAGA(problem=LeastSquares({SIZES}))"),
    (problems.Batches([np.arange(4)] * 2, 2, seed=3), "Batches(batch=2, seed=3, agents=[0, 1])"),
    (Own(7), "Own(size=7)"),
    (Rounded(2), "Rounded(digits=2)"),
]


@pytest.mark.parametrize(("thing", "text"), SHOWN, ids=lambda item: str(item)[:30])
def test_problems_oracles_and_own_classes_say_what_they_are(thing, text):
    assert word(thing) == text
    assert isinstance(thing, Bare) or repr(thing) == text


def test_an_own_problem_without_a_base_class_is_described_within_an_oracle():
    assert repr(problems.Noisy(Bare(3.0), 0.1)) == (
        "Noisy(source=Full(problem=Bare(m=4, d=3, scale=3.0)), sigma=0.1)"
    )


RING = "Mixer(Topology('ring', n=5, kind='doubly', directed=False))"
WRAPPED = {
    "compress(TopK(fraction=0.01, k=2), feedback=False, gamma=None)": lambda W: W.compress(
        "top_k", k=2, feedback=False
    ),
    "compress(Rounded(digits=2), feedback=False, gamma=None)": lambda W: W.compress(
        Rounded(2), feedback=False
    ),
    "accelerate(3, method='chebyshev')": lambda W: W.accelerate(3),
    "lossy(0.1, seed=4, fill='own')": lambda W: W.lossy(0.1, seed=4, fill="own"),
    "attacked({1: 'sign_flip'}).robust(SelfCentredClipping(tau=1.0, delta=None)).repeat(2)": None,
    "noisy(0.5, seed=0)": lambda W: W.noisy(0.5),
    "robust(rule)": lambda W: W.robust(rule),
}


@pytest.mark.parametrize("text", WRAPPED)
def test_mixers_name_their_graph_and_what_they_are_made_of(text):
    with mpidec.Network(5) as net:
        W = net.mixer(topology.ring(5))
        make = WRAPPED[text] or (
            lambda W: W.attacked({1: "sign_flip"}).robust("clip", tau=1.0).repeat(2)
        )
        made = make(W)
        assert repr(W) == RING and repr(made) == f"{RING}.{text}"
        assert repr(made.at(0)).endswith(
            "Phase(Topology('ring', n=5, kind='doubly', directed=False))"
        )
    assert repr(made) == f"{RING[:-1]}, closed).{text}"


@dataclass(frozen=True)
class Cell:
    function: object


def test_what_is_under_way_is_shown_without_waiting():
    with mpidec.Network(5) as net:
        pending = net.mixer(topology.ring(5)).start(np.ones((5, 2)))
        before = repr(pending)
        pending.wait()
        assert (before, repr(pending)) == ("Pending(under way)", "Pending(complete)")
    with mpidec.Network(comm=net_of_one()) as net:
        with net.window(np.ones((2, 3), np.float32), topology.ring(1)) as window:
            shown = repr(window)
        assert shown == "Window((2, 3) float32, rank 0 of 1, 0 slots, transport='shared')"
        assert repr(window) == f"{shown[:-1]}, closed)"
    assert not re.search("0x", word(Cell(value)))


def net_of_one():
    from mpi4py import MPI

    return MPI.COMM_SELF


LISTED = {
    "mpidec": ("solve", "Network", "problems", "oracles registry startup"),
    "mpidec.problems": ("LeastSquares", "load_problem", "losses oracles registry np"),
    "mpidec.topology": ("ring", "from_weights", "rules given isfunction"),
    "mpidec.solvers": ("EXTRA", "CATALOGUE", "base primal_dual"),
    "mpidec.comm.mixing": ("Network", "codecs", "lifecycle operator"),
    "mpidec.plot": ("figure", "agents", "drawing runs"),
    "mpidec.sweep": ("sweep", "Table", "study cases"),
    "mpidec.record": ("read", "Record", "reader runfile"),
    "mpidec.testing": ("check_solver", "SolverContract", "contract graphs"),
    "mpidec.train": ("fit", "Settings", "Any import_module"),
    "mpidec.nn": ("Stacked", "models", "_torch stacked"),
    "mpidec.optim": ("Decentralized", "names", "averager muon"),
    "mpidec.reproduce": ("measure", "EXPERIMENTS", "relaysgd store"),
}


@pytest.mark.parametrize("name", LISTED)
def test_dir_of_a_module_lists_what_users_call(name):
    if name.rpartition(".")[2] in ("train", "nn", "optim", "reproduce"):
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    *public, internal = LISTED[name]
    assert {*public} <= {*dir(module)} and not {*internal.split()} & {*dir(module)}
    assert all(hasattr(module, word) for word in dir(module))
    first = rlcompleter.Completer({"module": module}).complete(f"module.{public[0][:3]}", 0)
    assert first is not None and not re.search(r"\._", first)


def test_dir_of_a_network_lists_what_users_call():
    with mpidec.Network(4) as net:
        names = {name for name in dir(net) if not name.startswith("_")}
        internal = {
            "agreeing",
            "keeping_rows",
            "raising_together",
            "slots",
            "wait_for_readers",
            "engine",
        }
        assert not internal & names and all(hasattr(net, name) for name in internal)
        assert {"mixer", "window", "n", "lo", "agents", "mean", "start_broadcast", "rank"} <= names
        first = rlcompleter.Completer({"net": net}).complete("net.mix", 0)
        assert first is not None and first.startswith("net.mixer(")


@dataclass(frozen=True)
class Heavy(mpidec.solvers.Solver):
    """A solver of one's own."""

    step_size: float = 0.1
    beta: float = 0.0


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: mpidec.solvers.EXTRA(alpha=0.1),
            "EXTRA has no option alpha: did you mean step_size?",
        ),
        (
            lambda: Heavy(bet=1),
            "Heavy has no option bet: did you mean beta? expected one of step_size, beta",
        ),
        (lambda: Own(sise=1), "Own has no option sise: did you mean size? expected one of size"),
        (lambda: mpidec.solvers.Consensus(alpha=1), "Consensus has no option alpha: expected none"),
        (lambda: Rounded(digit=1), "Rounded has no option digit: did you mean digits?"),
        (lambda: LeastSquares(A, B, L2=1), "LeastSquares has no option L2: did you mean l2?"),
        (lambda: topology.ring(4, weight=1), "ring has no option weight: did you mean weights?"),
    ],
)
def test_an_unknown_option_is_answered_with_the_known_ones(make, line):
    with pytest.raises(TypeError, match=re.escape(line)):
        make()


def test_a_component_keeps_its_signature():
    assert str(inspect.signature(Own)) == "(size)"
    assert str(inspect.signature(mpidec.solvers.Consensus)) == "() -> None"
    with pytest.raises(TypeError, match="takes no arguments"):
        Derived(1)


def test_a_metric_that_is_not_recorded_is_answered_with_the_others(tmp_path):
    result = mpidec.solve(
        None, "Consensus", "Ring", steps=1, x0=np.ones((3, 2)), record=tmp_path / "a.h5"
    )
    for metrics in (result.metrics, mpidec.read(tmp_path / "a.h5").metrics):
        with pytest.raises(
            KeyError, match="no metric 'concensus': did you mean consensus\\? expected one of "
        ):
            metrics["concensus"]


def test_an_unknown_name_of_the_package_is_answered_with_a_similar_one():
    with pytest.raises(AttributeError, match="has no attribute 'slove': did you mean solve"):
        getattr(mpidec, "slove")  # noqa: B009
