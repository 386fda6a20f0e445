"""Description of everything that determines the iterates of a run: a resumed run is compared with
it, and differences are named.
"""

from __future__ import annotations

import inspect
import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._code import TAG, code
from .._complex import as_reals, double, width
from .._words import ADDRESS, held, number, settings, word
from ..comm.mixing import Network
from ..comm.mixing.internals import Channel, Operator, StepOperator, Triggered, Wrapped
from ..comm.runtime import on_all_ranks
from ..problems.internals import moves, seen, targets_of, x_star_of
from ..record.internals import ON, SEARCH
from ..solvers import Solver
from ..solvers.internals import name_of, step_size_of
from ..topology import Schedule
from .arguments import problem_of
from .metrics import NONE, Metrics, Own
from .provenance import agent_hash, attributes
from .recalled import search_arrays

if TYPE_CHECKING:
    from ..problems import Oracle, Problem
    from ..record import Record
    from ..topology import Topology
    from .plan import Plan
    from .stepsize import Choice, Guard

STEPS = range(4)  # of which functions of the step, and schedules without a period, are compared
# Parameters of problems that shape no curve.
FREE = {"m", "n", "x_star", "smoothness", "check"}

Words = dict[str, str | list[float]]


def attributes_of_run(
    plan: Plan,
    record: Record,
    choice: Choice | None,
    guard: Guard | None,
    topology: Topology | Schedule,
    function: str = "solve",
    mixer: Operator[StepOperator] | None = None,
    **conditions: object,
) -> dict[str, Any]:
    """Return the root attributes of the file of a run that `mpidec.solve`, or another `function`,
    makes under `conditions`, with its `curve`, and what a resumed run needs of the search that has
    found its step size; collective.
    """
    common = attributes(
        plan.net,
        record,
        plan.solver,
        topology=topology,
        steps=plan.steps,
        every=plan.every,
        seed=plan.seed,
        choice=choice,
        function=function,
        problem=plan.problem,
    )
    search = {} if choice is None else {SEARCH: search_arrays(choice, guard)}
    return (
        common
        | search
        | curve(
            plan.net,
            plan.solver,
            plan.oracle,
            topology,
            plan.X,
            plan.seed,
            mixer=mixer,
            metrics=plan.metrics,
            **conditions,
        )
    )


def curve(
    net: Network,
    solver: Solver,
    oracle: Oracle | None,
    topology: Topology | Schedule,
    X: np.ndarray,
    seed: int,
    mixer: Operator[StepOperator] | None = None,
    metrics: Mapping[str, Own] = NONE,
    **conditions: object,
) -> dict[str, str]:
    """Return the root attribute ``curve``, on rank 0: texts and numbers by name, as JSON;
    collective.

    Of the problem its class and its plain parameters, and value and gradient at the initial rows
    `X`, unless they are random; likewise the minimizer and user-defined `metrics`, which shape
    the recorded curve.  Its data have a hash besides (see `provenance`).  Functions are compared by
    their code, too.  What differs between the ranks, such as a parameter of a user-defined problem,
    belongs to so many ranks (see `record.fingerprint.ON`).
    """
    problem = problem_of(oracle)
    made = _codes(solver, oracle, topology, mixer, metrics, conditions)  # before more calls
    found: Words = {
        "solver": type(solver).__name__,
        **_parts(solver, "solver."),
        **_on_ranks(net, {**_oracles(oracle), **made}),
        **_at_start(net, problem, X),
        **_minimizer(problem, X),
        "metrics": word([*metrics]),
        **_metrics(net, metrics, X),
        "seed": str(seed),
        "x0": _initial(net, X),
        "dtype": str(X.dtype),
        "mixing": "W" if mixer is None else ADDRESS.sub("", mixer.calls),
        **_schedule(topology),
        **{name: word(value) for name, value in conditions.items()},
    }
    return {} if net.rank else {"curve": json.dumps(found)}


def _codes(
    solver: Solver,
    oracle: Oracle | None,
    topology: Topology | Schedule,
    mixer: Operator[StepOperator] | None,
    metrics: Mapping[str, Own],
    conditions: Mapping[str, object],
) -> Words:
    """Return hashes of the user-defined functions and classes that take part in a run, by name."""
    layers = () if oracle is None else (*oracle.layers(), oracle.problem)
    found = {
        "solver": code(solver),
        "topology": code(getattr(topology, "function", None)),
        **{name: code(thing) for name, thing in _given_to(mixer)},
        **{name: code(thing) for name, thing in conditions.items()},
        **{name: code(metric, arrays=False) for name, metric in metrics.items()},
        **{name_of(layer): code(_functions(layer), arrays=False) for layer in layers},
    }
    return {f"code of {name} ({TAG})": digest for name, digest in found.items() if digest}


def _functions(layer: object) -> list[object]:
    """Return the class of an oracle or a problem, and the functions that it was made with."""
    known = held(layer)
    given = (known.get(name, known.get(f"_{name}")) for name in _parameters(type(layer)))
    return [type(layer), *(value for value in given if callable(value))]


def _given_to(mixer: Operator[StepOperator] | None) -> Iterable[tuple[str, object]]:
    """What the calls were given that have made a mixer."""
    while isinstance(mixer, Wrapped):
        for fault in mixer.faults if isinstance(mixer, Channel) else ():
            yield f"W.{fault.call}", list(settings(fault).values())
        if isinstance(mixer, Triggered):
            yield "W.triggered", list(settings(mixer.trigger).values())
        yield "codec", mixer.codec
        mixer = mixer.W


def _on_ranks(net: Network, words: Words) -> Words:
    """Return the words that are the same on all ranks; of others those of all ranks, under a name
    that has their number; collective.
    """
    names = net.collectives.broadcast([*words], 0, "the record")
    mine = [zlib.crc32(repr(words.get(name)).encode()) for name in names]
    columns = net.collectives.distinct(np.array(mine, np.int64), "the record")
    found: Words = {}
    for name, column in zip(names, columns.T):
        if (column == column[0]).all():
            found[name] = words.get(name, "")
        else:
            told = f"{words.get(name, '')} on rank 0 (all: #{zlib.crc32(column.tobytes()):08x})"
            found[f"{name}{ON}{net.size} ranks"] = told
    return found


def _parts(solver: Solver, prefix: str) -> Words:
    """Return the fields of a solver; a step size that is a function by its first values, too."""
    if not is_dataclass(solver):
        return {f"{prefix}parameters": word(solver)}
    found: Words = {prefix + name: word(value) for name, value in settings(solver).items()}
    size = step_size_of(solver)
    if callable(size) and not is_dataclass(size):
        first: list[float] = []
        with suppress(Exception):  # of a function that ends
            for k in STEPS:
                first.append(float(size(k)))
        found[f"{prefix}step_size of steps 0, 1, ..."] = first
    return found


def _oracles(oracle: Oracle | None) -> Words:
    """Return the classes of the oracles and of the problem, from the outside, and their numbers,
    texts and terms.
    """
    kinds, found = list[str](), Words()
    if oracle is None:
        return {"problem": "None"}
    inner = oracle.problem
    for one in *(layer for layer in oracle.layers() if layer is not inner), inner:
        kinds.append(name_of(one))
        known = held(one)
        for name in _parameters(type(one)):
            value = number(known.get(name, known.get(f"_{name}", known)))
            # None on ranks whose agents have equally many samples; the hash of the data tells
            masked = name == "mask" and value is None
            plain = value is None or isinstance(value, (bool, int, float, str))
            if name not in FREE and not masked and (plain or is_dataclass(value)):
                found[f"{kinds[-1]}.{name}"] = word(value)
    return {"problem": " of ".join(kinds), **found}


def _parameters(kind: type) -> Iterable[str]:
    try:
        return inspect.signature(kind).parameters
    except ValueError:  # of a class that is not written in Python
        return ()


def _at_start(net: Network, problem: Problem | None, X: np.ndarray) -> Words:
    """Sums over the agents of their values and gradients at X, weighted differently; without
    those that are random.
    """
    if problem is None:
        return {}
    problem, X = cast("Problem", seen(problem, X)), as_reals(X)
    m, d = X.shape
    weight = 1 + np.arange(net.lo, net.lo + m) / net.n
    along = np.cos(np.arange(1.0, d + 1))
    sums = np.zeros((m, 6))
    with on_all_ranks(net), np.errstate(all="ignore"):
        values = [np.asarray(problem.value(X.copy()), float) for _ in range(2)]
        grads = [np.asarray(problem.grad(X.copy()), float) for _ in range(2)]
        sums[:, 5] = weight * _elsewhere(problem, X + along.astype(X.dtype))
        for column, (one, other) in enumerate((values, grads)):
            sums[:, 3 + column] = not np.array_equal(one, other, equal_nan=True)
        sums[:, 0] = weight * values[0]
        sums[:, 1] = weight * (grads[0] @ along)
        sums[:, 2] = weight * (grads[0] ** 2).sum(axis=1)
    value, slope, square, *random, beside = net.sum(sums).tolist()
    found: Words = {} if random[0] else {"value at x0": [value], "value beside x0": [beside]}
    return found if random[1] else {**found, "gradient at x0": [slope, float(np.sqrt(square))]}


def _initial(net: Network, X: np.ndarray) -> str:
    """Return the number of which the initial rows of all agents consist, or their shape and hash;
    collective.
    """
    first = net.collectives.broadcast(X.flat[0].item() if X.size else None, 0, "the record")
    same = np.array([int(first is not None and bool((first == X).all()))])
    if net.collectives.minimum(same, "the record")[0]:
        return word(first)
    words = np.zeros((net.m, 2), np.uint64)
    for i, x in enumerate(X):
        words[i] = agent_hash(net.lo + i, [x])
    return f"array {(net.n, *X.shape[1:])} #{net.sum(words).tobytes().hex()}"


def _minimizer(problem: Problem | None, X: np.ndarray) -> Words:
    """Numbers of the minimizer, or those of the agents; of one that moves, of those of the first
    steps.
    """
    found: list[float] = []
    with suppress(Exception):  # of a function that ends
        for k in STEPS if moves(problem) else (0,):
            each = targets_of(seen(problem, X))
            x = x_star_of(seen(problem, X), k) if each is None else each.ravel()
            if x is not None:
                found += [float(x @ np.cos(np.arange(1.0, len(x) + 1))), float(np.linalg.norm(x))]
    return {"x_star": found} if found else {}


def _metrics(net: Network, own: Mapping[str, Own], X: np.ndarray) -> Words:
    """Return the averages of user-defined metrics at points near X, but of random ones."""
    if not own:
        return {}
    measure = Metrics(net, None, own, like=X)
    beside = double(as_reals(X)) + np.cos(np.arange(1.0, width(X) + 1))
    sums = np.full((len(X), 2, len(own)), np.nan)
    for column, (name, function) in enumerate(own.items()):
        with suppress(Exception), np.errstate(all="ignore"):  # outside of the domain
            one, other = (measure.of_agents(name, function, beside) for _ in range(2))
            sums[:, 0, column] = one
            sums[:, 1, column] = one != other
    found = zip(own, *net.mean(sums).tolist())
    return {f"{name} beside x0": [value] for name, value, random in found if random == 0}


def _elsewhere(problem: Problem, X: np.ndarray) -> np.ndarray:
    """Return the values at X, which at x0 = 0 do not depend on a curvature; NaN where there are
    none.
    """
    try:
        return np.asarray(problem.value(X), float)
    except Exception:  # outside of the domain
        return np.full(len(X), np.nan)


def _schedule(topology: Topology | Schedule) -> Words:
    """Return a schedule without a period: its parameters, and the graphs of the first steps."""
    if not isinstance(topology, Schedule) or topology.period is not None:
        return {}
    given = topology.parameters
    found: Words = {f"topology.{name}": word(value) for name, value in given.items()}
    return {"topology": _first_graphs(topology), **found}


def _first_graphs(topology: Topology | Schedule) -> str:
    digest = 0
    for k in STEPS:
        W = topology.at(k).W
        for part in (W.indptr, W.indices, W.data):
            digest = zlib.crc32(np.ascontiguousarray(part).tobytes(), digest)
    return f"{topology.name} #{digest:08x}"
