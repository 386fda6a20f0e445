"""Arguments of `solve` as users give them: names, classes, graphs and matrices; what cannot be
used is refused in one line.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import os
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .._words import STEP_SIZES, word
from ..comm.mixing import Network
from ..comm.runtime.agreement import on_all_ranks
from ..plugins import Table, nearest
from ..problems.custom import REAL
from ..problems.differences import mismatch
from ..protocols import Reductions
from ..record.recorder import Record
from ..solvers.asynchronous import is_asynchronous
from ..solvers.base import Solver
from ..topology.given import (
    TOPOLOGIES,
    TopologyLike as TopologyLike,
    built,
    converted,
    is_networkx,
    named,
    required_parameters,
    what_is,
)

if TYPE_CHECKING:
    from ..problems import Oracle, Problem
    from ..topology import Schedule, Topology
    from ..topology.weights import WeightsLike

SOLVER = ("init", "step", "ask", "point", "check", "needs", "keeps_rows", "unstable")
OTHER_NAMES = {
    "iterations": "steps",
    "iters": "steps",
    "max_iter": "steps",
    "maxiter": "steps",
    "epochs": "steps",
    "tol": "stop",
    "out": "record",
    "random_state": "seed",
    "network": "net",
    "callback": "progress",
    "verbose": "progress",
    "rates": "straggler",
    "straggler": "rates",
}
ORDER = "the order is mpidec.solve(problem, solver, topology, steps=...)"
DIGRAPH_WEIGHTS = {
    "doubly": "sinkhorn",
    "row": "uniform",
    "column": "push",
    "pair": "push-pull",
}  # by the last of a solver's `kinds`
LONGEST = 160  # characters of an argument that ranks compare

T = TypeVar("T")
Delay = float | tuple[float, float] | Callable[[np.random.Generator, int, int], float]


def problem_of(oracle: Problem | Oracle | None) -> Problem | None:
    """The problem behind an oracle."""
    problem: Problem | None = getattr(oracle, "problem", oracle)  # type: ignore[arg-type]
    return problem


def infer_agents(
    problem: Problem | Oracle | None, topology: TopologyLike, x0: ArrayLike | None = None
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
    >>> infer_agents(None, mpidec.topology.ring(4)), infer_agents(None, np.eye(3)), infer_agents(None, "ring", np.ones((5, 2)))
    (4, 3, 5)
    """
    n = getattr(topology, "n", None)
    if isinstance(n, numbers.Integral) and not inspect.isclass(topology):
        return int(n)
    if is_networkx(topology) and not inspect.isclass(topology):
        return topology.number_of_nodes()
    shape = getattr(topology, "shape", None)
    if shape:
        return int(shape[0])
    if isinstance(topology, (list, tuple)):
        return len(topology)
    made = _looked_up(topology)
    if not callable(made):
        _converted(made)
    as_oracle(problem)
    for name in ("n", "m"):
        number = getattr(problem_of(problem), name, None)
        if isinstance(number, numbers.Integral):
            return int(number)
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
    """What a name stands for; a solver, and a class, are refused."""
    if isinstance(topology, str):
        return _named(TOPOLOGIES, topology)
    if inspect.isclass(topology):
        remedy = (
            ORDER
            if _is_solver(topology)
            else "expected a topology such as mpidec.topology.ring(16)"
        )
        raise TypeError(f"topology is the class {topology.__name__}: {remedy}")
    if _is_solver(topology):
        raise TypeError(f"topology is the solver {type(topology).__name__}: {ORDER}")
    return topology


def _converted(
    made: object,
    weights: WeightsLike | None = None,
    solver: Solver | type[Solver] | None = None,
) -> Topology | Schedule:
    """The topology itself, or that of a networkx graph or of a matrix."""
    from ..topology.weights import FOR_DIGRAPHS

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


def as_solver(
    solver: Solver | type[Solver] | str, problem: Problem | Oracle | None = None
) -> Solver:
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
    made: Any = solver
    options: Mapping[str, Any] = {}
    if isinstance(solver, str):
        from ..registry import SOLVERS

        made, options = _named(SOLVERS, solver), SOLVERS.options(solver)
    if inspect.isclass(made):
        if not all(callable(getattr(made, name, None)) for name in ("init", "step")):
            raise TypeError(
                f"solver is the class {made.__name__}, which has no init and step: {_expected()}"
            )
        if required := required_parameters(made):
            raise TypeError(
                f"solver {made.__name__} needs {' and '.join(required)}: pass an object, "
                f"{made.__name__}({', '.join(f'{name}=...' for name in required)})"
            )
        made = made(**options)
    if _is_graph(made):
        raise TypeError(f"solver is {what_is(made)}: {ORDER}")
    missing = [name for name in SOLVER if not hasattr(made, name)]
    if missing:
        if not {"init", "step"} & set(missing):
            raise TypeError(
                f"solver {type(made).__name__} has no {', '.join(missing)}: derive the class from "
                "mpidec.solvers.Solver"
            )
        own = hasattr(made, "step") and type(made).__module__ == "__main__"
        remedy = (
            "derive it from mpidec.solvers.Solver and define init(X, W) and step(s, G, W)"
            if own
            else _expected()
        )
        raise TypeError(f"solver is {what_is(made)}: {remedy}")
    return _with_term(made, problem)


def _with_term(solver: Solver, problem: Problem | Oracle | None) -> Solver:
    """Return the solver with the term of the problem, if it has a field for it; refuse one that
    would ignore the term.
    """
    term = getattr(problem_of(problem), "term", None)
    if term is None:
        return solver
    if _takes_term(solver):
        given = getattr(solver, "term", None) is not None
        return solver if given else dataclasses.replace(solver, term=term)  # type: ignore[type-var]
    ignored = solver.needs.problem and not solver.needs.term
    if ignored and not getattr(problem, "includes_term", False):
        bounded = getattr(term, "bounded", True)
        remedy = (
            "use a solver with a proximal step, such as NIDS"
            if bounded
            else (
                "wrap the problem in mpidec.problems.Subgradient(problem), or use a solver with a "
                "proximal step, such as NIDS"
            )
        )
        raise ValueError(
            f"the problem has the term {term!r}, which {type(solver).__name__} would ignore, as it "
            "takes gradients: "
            f"{remedy}"
        )
    return solver


def _takes_term(solver: Solver | type[Solver]) -> bool:
    return dataclasses.is_dataclass(solver) and any(
        field.name == "term" for field in dataclasses.fields(solver)
    )


def with_subgradients(oracle: Problem | Oracle, solver: type[Solver]) -> Problem | Oracle:
    """Return `oracle`, with subgradients of the problem's term if the class `solver` takes
    gradients and no term.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((1, 1, 1)), [[1.0]], term=mpidec.problems.l1(0.1))
    >>> type(with_subgradients(problem, mpidec.solvers.DGD)).__name__
    'Subgradient'
    """
    term = getattr(problem_of(oracle), "term", None)
    if term is None or not solver.needs.problem or solver.needs.term or _takes_term(solver):
        return oracle
    from ..problems import Subgradient

    try:
        return Subgradient(oracle)
    except ValueError as error:
        raise ValueError(f"solver {solver.__name__} takes gradients, and {error}") from None


def as_oracle(problem: T) -> T:
    """Return `problem` if it is a problem, an oracle or None; otherwise say what is missing.

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
        return problem
    if isinstance(problem, str):
        from ..problems import registry

        known = problem in registry.PROBLEMS
        data = registry.default_dataset(problem) if known else problem
        call = f'"{data}", n=16' + f', problem="{problem}"' * known
        raise TypeError(
            f"problem is the name {problem!r}: load it with mpidec.problems.load_problem({call})"
        )
    if inspect.isclass(problem) and not _is_solver(problem):
        raise TypeError(
            f"problem is the class {problem.__name__}: pass an object, such as "
            f"{problem.__name__}(A, b)"
        )
    from_data = "mpidec.problems.load_problem((A, y), n=16)"
    for wrong, kind, remedy in (
        (_is_solver(problem) or _is_graph(problem), "", ORDER),
        (inspect.isroutine(problem), "", "wrap it in mpidec.problems.Custom(value, grad, m, d)"),
        (
            isinstance(problem, (np.ndarray, list, tuple)),
            "",
            f"build one from data, {from_data}",
        ),
        (
            hasattr(problem, "fit") and hasattr(problem, "get_params"),
            ", an estimator",
            f"build a problem from its data, {from_data}",
        ),
    ):
        if wrong:
            raise TypeError(f"problem is {what_is(problem)}{kind}: {remedy}")
    inner = getattr(problem, "problem", problem)
    missing = [name for name in ("m", "d", "value", "grad") if not hasattr(inner, name)]
    if missing:
        raise TypeError(
            f"problem {type(inner).__name__} has no {', '.join(missing)}, expected m and d (the "
            "local agents and the "
            "length of a row), value(X) -> (m,) and grad(X) -> (m, d): "
            "mpidec.problems.Custom(value, grad, m, d) has "
            "them"
        )
    for name in ("m", "d"):
        if not isinstance(getattr(inner, name), numbers.Integral):
            raise TypeError(
                f"problem {type(inner).__name__}: {name} is {getattr(inner, name)!r}, expected an "
                "integer: "
                f"{'the number of local agents' if name == 'm' else 'the length of a row'}"
            )
    if callable(getattr(inner, "x_star", None)):
        raise TypeError(
            f"problem {type(inner).__name__}: x_star is a function, expected an array of shape "
            "(d,) or None: the minimizer of a "
            "run does not move; for one that does, take steps in a loop of your own "
            "(docs/guide/signal_processing.md)"
        )
    return problem


def as_record(record: str | os.PathLike[str] | Record | None) -> Record | None:
    """Return the recording options that `record` stands for: a path alone has the defaults.

    Raises
    ------
    TypeError
    """
    if not isinstance(record, (str, os.PathLike, Record, type(None))):
        raise TypeError(f"record is {record!r:.60}, expected a path, or mpidec.Record(path, ...)")
    return record if record is None or isinstance(record, Record) else Record(record)


def check_arguments(unknown: Mapping[str, object], function: Callable[..., object]) -> None:
    """Refuse arguments that `function` does not have, and say where they belong.

    Raises
    ------
    TypeError

    Examples
    --------
    >>> import mpidec
    >>> check_arguments({"step_size": 0.1}, mpidec.solve)
    Traceback (most recent call last):
    ...
    TypeError: solve has no argument step_size: it belongs to the solver, such as mpidec.solvers.ExactDiffusion(step_size=0.1)
    """
    for name, value in unknown.items():
        known = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        remedy = (
            f"did you mean {OTHER_NAMES[name]}?" if name in OTHER_NAMES else nearest(name, known)
        )
        if name in STEP_SIZES:
            remedy = f"it belongs to the solver, such as mpidec.solvers.ExactDiffusion(step_size={value!r:.20})"
        elif name == "weights":
            remedy = (
                "they belong to the topology, such as "
                f"mpidec.topology.ring(16, weights={value!r:.20}) or from_networkx(G, "
                f"weights={value!r:.20})"
            )
        elif name in ("l1", "l2", "batch_size", "partition", "standardize"):
            remedy = "it belongs to the problem, such as mpidec.problems.load_problem(data, n=16, l2=0.1) or MiniBatch(problem, 32)"
        raise TypeError(f"{function.__name__} has no argument {name}: {remedy}")


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
    size = getattr(solver, "step_size", None)
    if isinstance(size, np.ndarray):
        raise ValueError(
            f"{type(solver).__name__}: step_size is an array of shape {size.shape}, expected one "
            "number for all agents and "
            'columns, "auto", "safe", or a function of the step'
        )
    if solver.needs.problem and isinstance(size, numbers.Real) and size == 0:
        raise ValueError(
            f'{type(solver).__name__}: step_size is {size}, expected a number > 0, or "auto": with '
            "0 it takes no "
            "steps towards the minimum"
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
    >>> check_callbacks(mpidec.problems.LeastSquares(np.ones((1, 2, 1)), np.ones((1, 2))), np.zeros((1, 1)))
    """
    from ..problems import Custom

    if (
        problem is None
        or not hasattr(problem, "grad")
        or (
            type(problem).__module__.startswith("mpidec.problems")
            and not isinstance(problem, Custom)
        )
    ):
        return
    name = type(problem).__name__
    for what, shape in (("value", X.shape[:1]), ("grad", X.shape)):
        given = X.copy()
        result = getattr(problem, what)(given)
        _check_array(f"problem {name}: {what}(X)", result, X, shape)
        if not np.array_equal(given, X):
            raise ValueError(
                f"problem {name}: {what}(X) changes X, expected it to leave X alone: write X = X - "
                "..., not X -= ..."
            )
        if what == "value":
            continue
        if isinstance(result, np.ndarray) and np.shares_memory(result, given):
            raise ValueError(
                f"problem {name}: grad(X) returns X itself or a view of it, expected a new array: "
                "return X.copy()"
            )
        if isinstance(result, np.ndarray) and np.shares_memory(result, problem.grad(given)):
            raise ValueError(
                f"problem {name}: grad(X) returns the same array at each call, expected a new one: "
                "return G.copy()"
            )
        bad = ~np.isfinite(result)
        if gradient and bad.any():
            row = int(bad.any(axis=1).argmax())
            raise ValueError(
                f"problem {name}: the gradient of agent {lo + row} at x0 is "
                f"{np.ravel(result[row])[bad[row]][0]}, expected "
                "finite numbers: look for NaN or inf in the data of that agent, or choose an x0 in "
                "the domain of f"
            )
    if gradient and getattr(problem, "check", True) is not False:
        _check_gradient(problem, X, lo)


def _check_array(what: str, result: ArrayLike, X: np.ndarray, shape: tuple[int, ...]) -> None:
    if np.shape(result) != shape:
        raise ValueError(
            f"{what} has shape {np.shape(result)} for X of shape {X.shape}, expected {shape}: "
            f"{'one number' if len(shape) == 1 else 'one gradient'} for each row of X"
        )
    if np.iscomplexobj(result):
        raise TypeError(f"{what} is complex, expected real numbers: {REAL}")


def _check_gradient(problem: Problem, X: np.ndarray, lo: int) -> None:
    """Refuse a gradient that is not that of the value, less that of the term."""
    term = getattr(problem, "term", None)
    wrong = mismatch(
        lambda X: problem.value(X) - (0 if term is None else term.value(X)),
        problem.grad,
        X,
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
    if problem is not None and problem.m != net.m:
        small = net.size == 1 and problem.m > net.n
        graph = f"build a topology with n = {problem.m}, as W has {net.n} agents, or " * small
        raise ValueError(
            f"rank {net.rank}: the problem has {problem.m} agents, but this rank hosts {net.m} "
            "(agents "
            f"{net.lo}:{net.hi} of {net.n}): {graph}pass the data of the local agents, "
            "A[net.lo:net.hi], or "
            "load_problem(..., net=net)"
        )
    dtype = getattr(problem, "dtype", getattr(x0, "dtype", None))  # of Neural, a torch.dtype
    single = isinstance(dtype, np.dtype) and dtype == np.float32
    dtype = np.dtype(np.float32 if single else np.float64)
    if x0 is None:
        return np.zeros((net.m, getattr(problem, "d", 1)), dtype)
    d = np.shape(x0)[-1] if problem is None and np.ndim(x0) else getattr(problem, "d", 1)
    if np.iscomplexobj(x0):
        raise TypeError(f"x0 is complex, expected real numbers: {REAL}")
    try:
        x0 = np.asarray(x0, dtype)
    except (TypeError, ValueError):
        raise ValueError(
            f"x0 is {x0!r:.60}, expected numbers of shape ({d},) or ({net.n}, {d})"
        ) from None
    if x0.shape not in ((d,), (net.n, d)):
        raise ValueError(
            f"x0 has shape {x0.shape}, expected ({d},), common to all agents, or ({net.n}, {d})"
        )
    if not np.isfinite(x0).all():
        raise ValueError(
            f"x0 is not finite in {np.count_nonzero(~np.isfinite(x0))} of {x0.size} entries, the "
            "first at index "
            f"{tuple(int(i) for i in np.argwhere(~np.isfinite(x0))[0])}"
        )
    return np.tile(x0, (net.m, 1)) if x0.ndim == 1 else np.array(x0[net.lo : net.hi])


def network_for(
    problem: Problem | Oracle | None, topology: TopologyLike, x0: ArrayLike | None
) -> Network:
    """The network of as many agents as the arguments of `solve` stand for."""
    if not (isinstance(topology, str) or callable(topology)):
        return Network(infer_agents(problem, topology, x0))
    with Network() as ranks:  # n may be known only to all ranks together
        with on_all_ranks(ranks):
            n = infer_agents(problem, topology, x0)
        inner = problem_of(problem)
        if ranks.size > 1 and inner is not None and not hasattr(inner, "n"):
            counts = ranks.collectives.gather_all(np.array(inner.m), "solve").tolist()
            if set(counts) != {1}:  # each rank may hold some agents, or all of them
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
    texts = net.gather_rows(
        np.array([[_text(value) for value in arguments.values()]], f"S{LONGEST}")
    )
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


def in_words(oracle: object) -> str:
    """The oracles around a problem and their numbers, which must be the same on all ranks.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((1, 2, 1)), np.ones((1, 2)))
    >>> in_words(mpidec.problems.Noisy(mpidec.problems.SAGA(problem), 0.1)), in_words(problem)
    ('Noisy(sigma=0.1) of SAGA(batch_size=1)', '')
    """
    words = []
    while hasattr(oracle, "start"):
        given = {name: getattr(oracle, name, None) for name in ("batch_size", "period", "sigma")}
        numbers = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        words.append(f"{type(oracle).__name__}({numbers})")
        oracle = getattr(oracle, "source", None)
    return " of ".join(words)


def _text(value: object) -> bytes:
    """An argument as text that is the same on all ranks; a long one ends with a fingerprint."""
    text = word(value).encode()
    return text if len(text) <= LONGEST else text[: LONGEST - 12] + b"... #%08x" % zlib.crc32(text)


def _named(table: Table[Any], name: str) -> object:
    from ..registry import SOLVERS

    other = next(
        (other for other in (SOLVERS, TOPOLOGIES) if other is not table and other.knows(name)), None
    )
    if other is not None and not table.knows(name):
        raise ValueError(f"{name!r} is a {other.kind}, expected a {table.kind}: {ORDER}")
    return table.find(name)


def _is_solver(thing: object) -> bool:
    return hasattr(thing, "init") and hasattr(thing, "step") and not hasattr(thing, "W")


def _is_graph(thing: object) -> bool:
    return (hasattr(thing, "spectral_gap") or is_networkx(thing)) and not inspect.isclass(thing)


def _expected() -> str:
    return (
        'expected a name such as "exact_diffusion", or an object such as '
        "mpidec.solvers.ExactDiffusion(step_size=0.1) "
        "(python -m mpidec.run --list)"
    )
