"""Arguments of `solve` as users give them: names, classes, graphs and matrices; what cannot be
used is refused in one line.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from .._complex import as_reals, is_complex
from .._validation import takes, unmasked
from .._words import STEP_SIZES, parameters, word
from ..comm.mixing import Network
from ..comm.runtime import ALONE, on_all_ranks, world
from ..plugins import Components, nearest
from ..problems import Oracle, OracleLike, Separable, Subgradient
from ..problems.internals import (
    MODULUS,
    REAL,
    Bare,
    adapted,
    agents_of,
    dtype_of,
    is_checked,
    mismatch,
    moves,
    seen,
    targets_of,
    term_of,
    x_star_of,
)
from ..protocols import Reductions
from ..record import Record
from ..solvers import Solver
from ..solvers.internals import is_asynchronous, name_of, step_size_of
from ..topology import Schedule, Topology
from ..topology.internals import (
    TOPOLOGIES,
    NetworkxGraph,
    TopologyLike as TopologyLike,
    built,
    converted,
    is_matrix,
    is_networkx,
    named,
    required_parameters,
    what_is,
)

if TYPE_CHECKING:
    from ..problems import Problem
    from ..topology.internals import WeightsLike

# Relative differences between minimizers that other machines may have computed.
ROUNDING = 1e-6
SOLVER = ("init", "step", "ask", "point", "check", "needs", "keeps_rows", "unstable")
SOLVER_NAME = (
    'expected a name such as "exact_diffusion", or an object such as '
    "mpidec.solvers.ExactDiffusion(step_size=0.1) (python -m mpidec.run --list)"
)
BELONGS = {  # where arguments belong that `solve` does not have; {} is their value
    **dict.fromkeys(
        STEP_SIZES,
        "it belongs to the solver, such as mpidec.solvers.ExactDiffusion(step_size={})",
    ),
    **dict.fromkeys(
        ("l1", "l2", "batch_size", "partition", "standardize"),
        "it belongs to the problem, such as mpidec.problems.load_problem(data, n=16, l2=0.1) or "
        "MiniBatch(problem, 32)",
    ),
    "weights": "they belong to the topology, such as mpidec.topology.ring(16, weights={0}) or "
    "from_networkx(G, weights={0})",
    "resume": 'record=mpidec.Record("run.h5", resume=True) continues the run in a file, as '
    "mpidec run --resume run.h5 does",
    "iterations": "did you mean steps?",
    "iters": "did you mean steps?",
    "max_iter": "did you mean steps?",
    "maxiter": "did you mean steps?",
    "epochs": "did you mean steps?",
    "tol": "did you mean stop?",
    "out": "did you mean record?",
    "random_state": "did you mean seed?",
    "network": "did you mean net?",
    "callback": "did you mean progress?",
    "verbose": "did you mean progress?",
}
ORDER = "the order is mpidec.solve(problem, solver, topology, steps=...)"
# By the last of a solver's `kinds`.
DIGRAPH_WEIGHTS = {
    "doubly": "sinkhorn",
    "row": "uniform",
    "column": "push",
    "pair": "push-pull",
}
# Characters of an argument that ranks compare.
LONGEST = 160

P = ParamSpec("P")
T = TypeVar("T")
Delay = float | tuple[float, float] | Callable[[np.random.Generator, int, int], float]


def problem_of(oracle: Oracle | None) -> Problem | None:
    """Return the functions of the local agents."""
    return None if oracle is None else oracle.problem


def infer_agents(
    problem: Problem | OracleLike | None, topology: TopologyLike, x0: ArrayLike | None = None
) -> int:
    """Return the number of agents n that the arguments of `solve` stand for; if the problem knows
    only its local ones, m.

    Parameters
    ----------
    problem, topology, x0
        As given to `solve`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> infer_agents(None, mpidec.topology.ring(4)), infer_agents(None, np.eye(3))
    (4, 3)
    >>> infer_agents(None, "ring", np.ones((5, 2)))
    5
    """
    if isinstance(topology, (Topology, Schedule)):
        return topology.n
    if is_networkx(topology):
        return topology.number_of_nodes()
    if is_matrix(topology) and topology.shape:
        return int(topology.shape[0])
    if isinstance(topology, (list, tuple)):
        return len(topology)
    made = _looked_up(topology)
    if not callable(made):
        _converted(made)
    oracle = as_oracle(problem)
    if oracle is not None:
        n = agents_of(oracle.problem)
        return int(oracle.problem.m if n is None else n)
    if x0 is not None and np.ndim(x0) == 2:
        return len(np.asarray(x0))
    raise ValueError(
        "the number of agents is unknown: give a topology with it, such as "
        "mpidec.topology.ring(16), or x0 of shape "
        "(n, d)"
    )


def as_topology(
    topology: TopologyLike,
    n: int,
    weights: WeightsLike | None = None,
    *,
    solver: Solver | type[Solver] | None = None,
) -> Topology | Schedule:
    """Return the topology of n agents that `topology` stands for.

    Parameters
    ----------
    topology : Topology, Schedule, str, networkx graph, matrix or function
        A name (one of the package, an entry point, or ``FILE.py:NAME``), a graph (with Metropolis
        weights), a stochastic matrix, or a function of n that returns any of these.
    n : int
        Number of agents.
    weights : str or float, optional
        Those of a networkx graph, which has none of its own.
    solver : Solver or class, optional
        The one that will use the topology.  Of asynchronous solvers only the edges count: a
        directed graph then has "push" weights by default.

    Raises
    ------
    ValueError, TypeError
        If it is something else, or has another number of agents; if weights are given to what has
        its own.

    Examples
    --------
    >>> import mpidec
    >>> as_topology("ring", 4), as_topology(mpidec.topology.star, 3)
    (Topology('ring', n=4, kind='doubly', directed=False), Topology('star', n=3, kind='doubly', directed=False))
    """
    made = _looked_up(topology)
    graph = named(
        _converted(built(made, n), weights, solver), topology if isinstance(topology, str) else made
    )
    if graph.n != n:
        raise ValueError(
            f"topology {graph.name} has {graph.n} agents, expected {n}, as many as the problem or "
            "the network: "
            f"build it with n = {n}"
        )
    return graph


def _looked_up(topology: object) -> object:
    """Return what a name stands for; a solver, and a class, are refused."""
    if isinstance(topology, str):
        return _named(TOPOLOGIES, topology)
    if inspect.isclass(topology):
        remedy = (
            ORDER if is_solver(topology) else "expected a topology such as mpidec.topology.ring(16)"
        )
        raise TypeError(f"topology is the class {topology.__name__}: {remedy}")
    if is_solver(topology):
        raise TypeError(f"topology is the solver {type(topology).__name__}: {ORDER}")
    return topology


def _converted(
    made: object,
    weights: WeightsLike | None = None,
    solver: Solver | type[Solver] | None = None,
) -> Topology | Schedule:
    """Return the topology itself, or that of a networkx graph or of a matrix."""
    from ..topology.internals import FOR_DIGRAPHS

    if weights is None and is_networkx(made) and made.is_directed() and solver is not None:
        weights = "push" if is_asynchronous(solver) else None
    try:
        return converted(made, weights)
    except ValueError as error:
        if solver is None or FOR_DIGRAPHS not in str(error):
            raise
        name = solver.__name__ if isinstance(solver, type) else type(solver).__name__
        own = DIGRAPH_WEIGHTS[solver.needs.kinds[-1]]
        remedy = (
            f'{name} takes weights="{own}" on it: from_networkx(G, weights="{own}"), or '
            f"topology.weights={own} on the "
            "command line"
        )
        raise ValueError(str(error).replace(FOR_DIGRAPHS, remedy)) from None


def as_solver(solver: Solver | type[Solver] | str, oracle: Oracle | None = None) -> Solver:
    """Return the solver that `solver` stands for: an instance, a class (made with its defaults), or
    a name.

    Raises
    ------
    ValueError, TypeError
        If it is something else, or misses a member of the protocol.

    Examples
    --------
    >>> import mpidec
    >>> as_solver("consensus"), as_solver(mpidec.solvers.Consensus)
    (Consensus(), Consensus())
    """
    made: object = solver
    options: Mapping[str, Any] = {}
    if isinstance(solver, str):
        from ..registry import SOLVERS

        made, options = _named(SOLVERS, solver), SOLVERS.options(solver)
    if isinstance(made, type) and issubclass(made, Solver):
        if required := required_parameters(made):
            raise TypeError(
                f"solver {made.__name__} needs {' and '.join(required)}: pass an object, "
                f"{made.__name__}({', '.join(f'{name}=...' for name in required)})"
            )
        made = made(**options)
    if isinstance(made, Solver):
        return _with_term(made, oracle)
    if is_graph(made):
        raise TypeError(f"solver is {what_is(made)}: {ORDER}")
    missing = [name for name in SOLVER if not hasattr(made, name)]
    if {"init", "step"}.isdisjoint(missing):
        raise TypeError(
            f"solver {name_of(made)} has no {', '.join(missing)}: derive the class from "
            "mpidec.solvers.Solver"
        )
    own = "derive it from mpidec.solvers.Solver and define init(X, W) and step(s, G, W), or "
    raise TypeError(f"solver is {what_is(made)}: {own * ('step' not in missing)}{SOLVER_NAME}")


def _with_term(solver: Solver, oracle: Oracle | None) -> Solver:
    """Return the solver with the term of the problem, if it has a field for it; refuse one that
    would ignore the term.
    """
    term = None if oracle is None else oracle.term
    if term is None:
        return solver
    if _takes_term(solver):
        given = term_of(solver) is not None
        return solver if given else dataclasses.replace(solver, term=term)  # type: ignore[type-var]
    if solver.needs.problem and not solver.needs.term:
        wrap = "wrap the problem in mpidec.problems.Subgradient(problem), or "
        raise ValueError(
            f"the problem has the term {term!r}, which {name_of(solver)} would ignore, as it "
            f"takes gradients: {wrap * (isinstance(term, Separable) and not term.bounded)}"
            "use a solver with a proximal step, such as NIDS"
        )
    return solver


def _takes_term(solver: Solver | type[Solver]) -> bool:
    return dataclasses.is_dataclass(solver) and any(
        field.name == "term" for field in dataclasses.fields(solver)
    )


def with_subgradients(oracle: Oracle, solver: type[Solver]) -> Oracle:
    """Return `oracle`, with subgradients of the problem's term if the class `solver` takes
    gradients and no term.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((1, 1, 1)), [[1.0]], term=mpidec.problems.l1(0.1))
    >>> type(with_subgradients(as_oracle(problem), mpidec.solvers.DGD)).__name__
    'Subgradient'
    """
    needs = solver.needs
    if oracle.term is None or not needs.problem or needs.term or _takes_term(solver):
        return oracle
    try:
        return Subgradient(oracle)
    except ValueError as error:
        raise ValueError(f"solver {solver.__name__} takes gradients, and {error}") from None


def as_oracle(problem: Problem | OracleLike | None) -> Oracle | None:
    """Return the oracle of a problem, or that of an oracle of the user's own; of None, None.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> as_oracle("logistic")
    Traceback (most recent call last):
    ...
    TypeError: problem is the name 'logistic': load it with mpidec.problems.load_problem("breast_cancer", n=16, problem="logistic")
    """
    if problem is None:
        return None
    inner = problem.problem if isinstance(problem, OracleLike) else problem
    missing = [name for name in ("m", "d", "value", "grad") if not hasattr(inner, name)]
    if missing or isinstance(problem, type):
        raise TypeError(_no_problem(problem, name_of(inner), missing))
    for name, number in (("m", inner.m), ("d", inner.d)):
        if not isinstance(number, numbers.Integral):
            raise TypeError(
                f"problem {name_of(inner)}: {name} is {number!r}, expected an integer: "
                f"{'the number of local agents' if name == 'm' else 'the length of a row'}"
            )
    if moves(inner):
        x_star_of(inner)
    return adapted(problem) if isinstance(problem, OracleLike) else Bare(problem)


def _no_problem(thing: object, name: str, missing: list[str]) -> str:
    """Return what is wrong with something that is no problem, and the remedy."""
    load = "mpidec.problems.load_problem"
    if isinstance(thing, str):
        from ..problems.internals import registry

        known = thing in registry.PROBLEMS
        data = registry.default_dataset(thing) if known else thing
        call = f'"{data}", n=16' + f', problem="{thing}"' * known
        return f"problem is the name {thing!r}: load it with {load}({call})"
    given, from_data = f"problem is {what_is(thing)}", f"{load}((A, y), n=16)"
    if is_solver(thing) or is_graph(thing):
        return f"{given}: {ORDER}"
    if isinstance(thing, type):
        return f"{given}: pass an object, such as {thing.__name__}(A, b)"
    if inspect.isroutine(thing):
        return f"{given}: wrap it in mpidec.problems.Custom(value, grad, m, d)"
    if isinstance(thing, (np.ndarray, list, tuple)):
        return f"{given}: build one from data, {from_data}"
    if hasattr(thing, "get_params"):
        return f"{given}, an estimator: build a problem from its data, {from_data}"
    return (
        f"problem {name} has no {', '.join(missing)}, expected m and d (the local agents and the "
        "length of a row), value(X) -> (m,) and grad(X) -> (m, d): "
        "mpidec.problems.Custom(value, grad, m, d) has them"
    )


def as_record(record: str | os.PathLike[str] | Record | None) -> Record | None:
    """Return the recording options that `record` stands for: a path alone has the defaults.

    Raises
    ------
    TypeError
    """
    if not isinstance(record, (str, os.PathLike, Record, type(None))):
        raise TypeError(f"record is {record!r:.60}, expected a path, or mpidec.Record(path, ...)")
    return record if record is None or isinstance(record, Record) else Record(record)


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that an unknown argument raises an error that says where it belongs.

    Examples
    --------
    >>> import mpidec
    >>> mpidec.solve(None, "consensus", "ring", steps=1, step_size=0.1)
    Traceback (most recent call last):
    ...
    TypeError: solve has no argument step_size: it belongs to the solver, such as mpidec.solvers.ExactDiffusion(step_size=0.1)
    """
    known = parameters(function) or ()

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        for name, value in options.items():
            if name not in known:
                remedy = BELONGS.get(name, nearest(name, known)).format(f"{value!r:.20}")
                raise TypeError(f"{function.__name__} has no argument {name}: {remedy}")
        return function(*args, **options)

    return checked


def check_step_size(solver: Solver) -> None:
    """Refuse the step size 0, with which a solver of gradients never moves.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> import mpidec
    >>> check_step_size(mpidec.solvers.DGD(0))
    Traceback (most recent call last):
    ...
    ValueError: DGD: step_size is 0, expected a number > 0, or "auto": with 0 it takes no steps towards the minimum
    """
    size = step_size_of(solver)
    if isinstance(size, np.ndarray):
        raise ValueError(
            f"{name_of(solver)}: step_size is an array of shape {size.shape}, expected one "
            "number for all agents and "
            'columns, "auto", "safe", or a function of the step'
        )
    if solver.needs.problem and isinstance(size, numbers.Real) and size == 0:
        raise ValueError(
            f'{name_of(solver)}: step_size is {size}, expected a number > 0, or "auto": with '
            "0 it takes no "
            "steps towards the minimum"
        )


def check_hosted(oracle: Oracle | None, net: Reductions) -> None:
    """Refuse a problem with other agents than those of this rank.

    Raises
    ------
    ValueError
    """
    if oracle is not None and oracle.problem.m != net.m:
        m = oracle.problem.m
        small = net.size == 1 and m > net.n
        graph = f"build a topology with n = {m}, as W has {net.n} agents, or " * small
        raise ValueError(
            f"rank {net.rank}: the problem has {m} agents, but this rank hosts {net.m} (agents "
            f"{net.lo}:{net.hi} of {net.n}): {graph}pass the data of the local agents, "
            "A[net.lo:net.hi], or load_problem(..., net=net)"
        )


def check_callbacks(
    problem: Problem | None, X: np.ndarray, lo: int = 0, gradient: bool = True
) -> None:
    """Check what a problem of the user's own returns at the initial point: real numbers in the
    right shape, finite gradients.

    Near it, gradients are compared with differences of values (see `mpidec.problems.differences`),
    unless the problem has the attribute ``check = False``.

    Parameters
    ----------
    problem : problem
    X : array (m, d)
        The initial points of the local agents.
    lo : int
        Number of the first of them.
    gradient : bool
        Whether the run needs gradients.

    Raises
    ------
    ValueError, TypeError

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((1, 2, 1)), np.ones((1, 2)))
    >>> check_callbacks(problem, np.zeros((1, 1)))
    """
    from ..problems import Custom, Stream

    own = not type(problem).__module__.startswith("mpidec.problems")
    if problem is None or not (own or isinstance(problem, (Custom, Stream))):
        return
    name, given = f"problem {name_of(problem)}", X.copy()
    takes(problem.value, f"{name}: value", "X")
    takes(problem.grad, f"{name}: grad", "X")
    _called(f"{name}: value(X)", problem.value, given, X, X.shape[:1])
    result = _called(f"{name}: grad(X)", problem.grad, given, X, X.shape)
    for other, what, remedy in (
        (given, "X itself or a view of it, expected a new array", "X"),
        (problem.grad(given), "the same array at each call, expected a new one", "G"),
    ):
        if np.shares_memory(result, other):
            raise ValueError(f"{name}: grad(X) returns {what}: return {remedy}.copy()")
    bad = ~np.isfinite(result)
    if gradient and bad.any():
        row = int(bad.any(axis=1).argmax())
        raise ValueError(
            f"{name}: the gradient of agent {lo + row} at x0 is "
            f"{np.ravel(result[row])[bad[row]][0]}, expected "
            "finite numbers: look for NaN or inf in the data of that agent, or choose an x0 in "
            "the domain of f"
        )
    if gradient and is_checked(problem):
        _check_gradient(problem, X, lo)


def _called(
    what: str,
    function: Callable[[np.ndarray], ArrayLike],
    given: np.ndarray,
    X: np.ndarray,
    shape: tuple[int, ...],
) -> np.ndarray:
    """Return what a function returns at `given`, a copy of X: numbers of the shape, real ones or as
    X, and X as it was.
    """
    result = function(given)
    if np.shape(result) != shape:
        raise ValueError(
            f"{what} has shape {np.shape(result)} for X of shape {X.shape}, expected {shape}: "
            f"{'one number' if len(shape) == 1 else 'one gradient'} for each row of X"
        )
    if np.iscomplexobj(result) and (len(shape) == 1 or not is_complex(X)):
        remedy = MODULUS if len(shape) == 1 else REAL
        raise TypeError(f"{what} is complex, expected real numbers: {remedy}")
    if not np.array_equal(given, X):
        raise ValueError(
            f"{what} changes X, expected it to leave X alone: write X = X - ..., not X -= ..."
        )
    return np.asarray(result)


def _check_gradient(problem: Problem, X: np.ndarray, lo: int) -> None:
    """Refuse a gradient that is not that of the value, less that of the term."""
    real = cast("Problem", seen(problem, X))
    term = term_of(real)
    wrong = mismatch(
        lambda X: real.value(X) - (0 if term is None else term.value(X)),
        real.grad,
        as_reals(X),
        range(lo, lo + len(X)),
    )
    if wrong is None:
        return
    less = "" if term is None else ", less the term,"
    raise ValueError(
        f"problem {type(problem).__name__}: grad(X) is not the gradient of value(X){less} for "
        f"agent {lo + wrong.row}: along a "
        f"random direction near x0, value changes at the rate {wrong.value:.6g}, by grad it is "
        f"{wrong.grad:.6g}; correct one of "
        "them, or give the problem check=False, as in Custom(..., check=False), if they are meant "
        "to differ"
    )


def initial_rows(x0: ArrayLike | None, problem: Problem | None, net: Reductions) -> np.ndarray:
    """Return the initial rows of the local agents.

    Parameters
    ----------
    x0 : array (d,) or (n, d), or None
    problem : problem or None
    net : Network
        Its `n`, `m`, `lo`, `hi` and `rank`.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> import mpidec
    >>> with mpidec.Network(2) as net:
    ...     initial_rows([1.0], None, net)
    array([[1.],
           [1.]])
    """
    if problem is None and x0 is None:
        raise ValueError(
            "neither problem nor x0 is given: without a problem, pass x0 of shape (n, d)"
        )
    dtype = dtype_of(problem, x0)
    if x0 is None:
        return np.zeros((net.m, 1 if problem is None else problem.d), dtype)
    d = problem.d if problem is not None else np.shape(x0)[-1] if np.ndim(x0) else 1
    rows = _given_rows(x0, net.n, d, dtype)
    return np.tile(rows, (net.m, 1)) if rows.ndim == 1 else np.array(rows[net.lo : net.hi])


def _given_rows(x0: ArrayLike, n: int, d: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the initial point (d,) or (n, d) as an array; refused unless it is finite."""
    if np.iscomplexobj(x0) and not is_complex(dtype):
        raise TypeError(
            f"x0 is complex, expected real numbers, as the problem is {dtype}: give it complex "
            "data (A.astype(complex)), or take x0.real"
        )
    given = unmasked(x0, "x0")
    try:
        if np.asarray(given).dtype.kind not in "biufcO":
            raise TypeError
        rows = np.asarray(given, dtype)
    except (TypeError, ValueError):
        raise ValueError(
            f"x0 is {' '.join(repr(x0).split()):.60}, expected numbers of shape ({d},) or "
            f"({n}, {d})"
        ) from None
    if rows.shape not in ((d,), (n, d)):
        raise ValueError(
            f"x0 has shape {rows.shape}, expected ({d},), common to all agents, or ({n}, {d})"
        )
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        raise ValueError(
            f"x0 is not finite in {len(bad)} of {rows.size} entries, the first at index "
            f"{tuple(bad[0].tolist())}"
        )
    return rows


# Held by the thread whose run makes a network of all ranks.
_OF_ALL_RANKS = threading.RLock()


@contextmanager
def network_of_run(
    call: str,
    net: Network | None,
    problem: Problem | OracleLike | None,
    topology: TopologyLike,
    x0: ArrayLike | None,
    alone: bool = False,
) -> Iterator[Network]:
    """The network of a run, for the time of the run: `net`, or one of its own (`network_for`).

    Raises
    ------
    RuntimeError
        Another thread of this rank has a run on the network; or both make their own, and their
        collective calls would meet those of the other run on other ranks.
    """
    with ExitStack() as stack:
        if net is not None or not (alone or world().size == 1):
            lock = _OF_ALL_RANKS if net is None else net.engine.run
            if not lock.acquire(blocking=False):
                raise RuntimeError(
                    f"{call}: another thread of this rank has a run on the same network, expected "
                    "one at a time: give each thread its network, net=, made before they begin"
                )
            stack.callback(lock.release)
        if net is None:
            net = stack.enter_context(network_for(problem, topology, x0, alone))
        yield net


def network_for(
    problem: Problem | OracleLike | None,
    topology: TopologyLike,
    x0: ArrayLike | None,
    alone: bool = False,
) -> Network:
    """Return the network of as many agents as the arguments of `solve` stand for; of this process
    `alone`, or of all ranks.
    """
    if alone:
        return Network(infer_agents(problem, topology, x0), comm=ALONE)
    if not (isinstance(topology, str) or callable(topology)):
        return Network(infer_agents(problem, topology, x0))
    # n may be known only to all ranks together.
    with Network() as ranks:
        with on_all_ranks(ranks):
            n = infer_agents(problem, topology, x0)
        oracle = as_oracle(problem)
        if ranks.size > 1 and oracle is not None and agents_of(oracle.problem) is None:
            mine = np.array(oracle.problem.m)
            counts = ranks.collectives.gather_all(mine, "solve").tolist()
            # Each rank may hold some agents, or all of them.
            if set(counts) != {1}:
                raise ValueError(
                    f"the number of agents is unknown: the problems of the ranks have {counts} "
                    "agents; pass a "
                    "topology with n, such as mpidec.topology.ring(n), or net=, a Network"
                )
            n = len(counts)
    return Network(n)


def check_equal(net: Network, arguments: Mapping[str, object]) -> None:
    """Compare the arguments of all ranks.

    Raises
    ------
    ValueError
        On every rank, naming the argument and both sides.
    """
    if net.size == 1:
        return
    mine = np.array([[_text(value) for value in arguments.values()]], f"S{LONGEST}")
    if net.agreement.same(mine.tobytes(), "solve"):
        return
    texts = net.gather_rows(mine)
    error = None
    rows = [] if texts is None else texts.tolist()
    for rank, others in enumerate(rows):
        for name, mine, other in zip(arguments, rows[0], others):
            if mine != other and error is None:
                error = ValueError(
                    f"rank 0 and rank {rank} call solve with different {name}: "
                    f"{mine.decode(errors='replace')} and "
                    f"{other.decode(errors='replace')}; every rank must pass the same"
                )
    net.agree(error)


def known_minimizer(problem: Problem | None, n: int) -> np.ndarray | None:
    """Return the minimizer, (d,), or those of all agents' own functions, (n d,), if known.

    Raises
    ------
    ValueError
        If these are of other agents.
    """
    targets = targets_of(problem)
    if targets is None:
        return x_star_of(problem)
    if len(targets) != n:
        raise ValueError(
            f"problem {name_of(problem)}: x_star has shape {targets.shape}, expected ({n}, "
            f"{targets.shape[1]}): a row for each of all {n} agents, on every rank"
        )
    return targets.ravel()


def check_minimizer(net: Network, known: np.ndarray | None) -> None:
    """Compare the minimizers of all ranks, which have one shape; collective.

    Raises
    ------
    ValueError
        On every rank, if they differ by more than rounding.
    """
    if known is None or net.size == 1:
        return
    x = as_reals(known)
    least = net.collectives.minimum(np.concatenate([x, -x]), "solve")
    apart = float(-(least[: len(x)] + least[len(x) :]).min())
    if apart > ROUNDING * np.abs(least).max():
        raise ValueError(
            f"x_star differs between the ranks by {apart:.2g}, expected on all of them the "
            "minimizer of the average over all agents, as problems.load_problem(..., net=net) "
            "computes it"
        )


def in_words(oracle: Oracle | None) -> str:
    """Return the oracles around a problem and their numbers, which must be the same on all ranks.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((1, 2, 1)), np.ones((1, 2)))
    >>> noisy = mpidec.problems.Noisy(mpidec.problems.SAGA(problem), 0.1)
    >>> in_words(noisy), in_words(as_oracle(problem))
    ('Noisy(sigma=0.1) of SAGA(batch_size=1)', '')
    """
    if oracle is None:
        return ""
    words = []
    for layer in oracle.layers():
        given = {
            name: getattr(layer, name, None) for name in ("batch_size", "period", "sigma", "seed")
        }
        numbers = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        words.append(f"{name_of(layer)}({numbers})")
    return " of ".join(words)


def _text(value: object) -> bytes:
    """Return an argument as text that is the same on all ranks; a long one ends with a hash."""
    text = word(value).encode()
    return text if len(text) <= LONGEST else text[: LONGEST - 12] + b"... #%08x" % zlib.crc32(text)


def _named(table: Components[Any], name: str) -> object:
    from ..registry import SOLVERS

    if not table.knows(name):
        for other in (SOLVERS, TOPOLOGIES):
            if other is not table and other.knows(name):
                raise ValueError(f"{name!r} is a {other.kind}, expected a {table.kind}: {ORDER}")
    return table.find(name)


def is_solver(thing: object) -> bool:
    """Return whether it is a solver, or a class of solvers."""
    return issubclass(thing if isinstance(thing, type) else type(thing), Solver)


def is_graph(thing: object) -> TypeGuard[Topology | Schedule | NetworkxGraph]:
    """Return whether it is a topology, or a networkx graph."""
    return isinstance(thing, (Topology, Schedule)) or is_networkx(thing)
