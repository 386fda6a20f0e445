"""Arguments of `solve` as users give them: names, classes, graphs and matrices; what cannot be used is refused in one line."""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plugins import nearest

if TYPE_CHECKING:
    from ..plugins import Table

__all__ = [
    "agents",
    "arguments",
    "graph",
    "integer",
    "method",
    "oracle",
    "probe",
    "rows",
    "step_size",
    "with_subgradients",
]

SOLVER = ("init", "step", "point", "check", "uses", "per_edge", "keeps_rows", "unstable")
STEP_SIZES = ("step_size", "stepsize", "lr", "learning_rate", "alpha", "eta")
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


def agents(problem: Any, topology: Any, x0: Any = None) -> int:
    """Return the number of agents n that the arguments of `solve` stand for; if the problem knows only its local ones, m.

    Parameters
    ----------
    problem, topology, x0
        As given to `solve`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> agents(None, mpidec.topology.ring(4)), agents(None, np.eye(3)), agents(None, "ring", x0=np.ones((5, 2)))
    (4, 3, 5)
    """
    n = getattr(topology, "n", None)
    if isinstance(n, numbers.Integral) and not inspect.isclass(topology):
        return int(n)
    if (
        hasattr(topology, "adj")
        and hasattr(topology, "number_of_nodes")
        and not inspect.isclass(topology)
    ):
        return int(topology.number_of_nodes())
    shape = getattr(topology, "shape", None)
    if shape is None and isinstance(topology, (list, tuple)):
        shape = (len(topology),)
    if shape:
        return int(shape[0])
    graph(topology, 1, check=True)
    oracle(problem)
    inner = getattr(problem, "problem", problem)
    for name in ("n", "m"):
        if isinstance(getattr(inner, name, None), numbers.Integral):
            return int(getattr(inner, name))
    if np.ndim(x0) == 2:
        return len(x0)
    raise ValueError(
        "the number of agents is unknown: give a topology with it, such as mpidec.topology.ring(16), or x0 of shape "
        "(n, d)"
    )


def graph(topology: Any, n: int, *, check: bool = False) -> Any:
    """Return the topology of n agents that `topology` stands for.

    Parameters
    ----------
    topology : Topology, Schedule, str, networkx graph, matrix or function
        A name (one of the package, an entry point, or ``FILE.py:NAME``), a graph (with Metropolis weights), a stochastic
        matrix, or a function of n that returns any of these.
    n : int
        Number of agents.
    check : bool
        Only look whether `topology` is of a kind that can be used, and return it.

    Raises
    ------
    ValueError, TypeError
        If it is something else, or has another number of agents.

    Examples
    --------
    >>> import mpidec
    >>> graph("ring", 4), graph(mpidec.topology.star, 3)
    (Topology('ring', n=4, kind='doubly', directed=False), Topology('star', n=3, kind='doubly', directed=False))
    """
    from ..topology import Schedule, Topology, from_networkx, from_weights

    made: Any = topology
    if isinstance(topology, str):
        from ..registry import topologies

        made = _named(topologies(), topology)
    elif inspect.isclass(topology) or _is_solver(topology):
        what = (
            topology.__name__
            if inspect.isclass(topology)
            else f"the solver {type(topology).__name__}"
        )
        swapped = (
            ORDER
            if _is_solver(topology)
            else "expected a topology such as mpidec.topology.ring(16)"
        )
        raise TypeError(
            f"topology is {'the class ' if inspect.isclass(topology) else ''}{what}: {swapped}"
        )
    if check and callable(made):
        return made
    if inspect.isroutine(made):
        made = _called(made, n)
    if hasattr(made, "adj") and hasattr(made, "number_of_nodes"):
        made = from_networkx(made)
    elif not isinstance(made, (Topology, Schedule)) and (
        hasattr(made, "shape") or isinstance(made, (list, tuple))
    ):
        made = from_weights(made)
    if not isinstance(made, (Topology, Schedule)):
        number = isinstance(made, numbers.Integral) and not isinstance(made, bool)
        remedy = (
            f'name the graph, such as "ring" or mpidec.topology.ring({made})'
            if number
            else (
                'expected a name such as "ring", a topology such as mpidec.topology.ring(16), a networkx graph or a matrix'
            )
        )
        raise TypeError(f"topology is {_what(made)}: {remedy}")
    if made.n != n and not check:
        raise ValueError(
            f"topology {made.name} has {made.n} agents, expected {n}, as many as the problem or the network: "
            f"build it with n = {n}"
        )
    return made


def _called(make: Any, n: int) -> Any:
    name = getattr(make, "__name__", "the function")
    required = [
        p.name
        for p in inspect.signature(make).parameters.values()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY, p.KEYWORD_ONLY)
    ][1:]
    if required:
        raise TypeError(
            f"topology {name} needs {' and '.join(required)}, too: call it, {name}({n}, "
            f"{', '.join(f'{p}=...' for p in required)})"
        )
    try:
        return make(n)
    except TypeError as error:
        raise TypeError(
            f"topology {name} cannot be called with n = {n}: {error}; expected a function of n that returns a "
            "topology, a graph or a matrix"
        ) from error


def method(solver: Any, problem: Any = None) -> Any:
    """Return the solver that `solver` stands for: an instance, a class (made with its defaults), or a name.

    Raises
    ------
    ValueError, TypeError
        If it is something else, or misses a member of the protocol.

    Examples
    --------
    >>> import mpidec
    >>> method("consensus"), method(mpidec.solvers.Consensus)
    (Consensus(), Consensus())
    """
    made = solver
    if isinstance(solver, str):
        from ..registry import solvers

        made = _named(solvers(), solver)
    if inspect.isclass(made):
        if not all(callable(getattr(made, name, None)) for name in ("init", "step")):
            raise TypeError(
                f"solver is the class {made.__name__}, which has no init and step: {_expected()}"
            )
        made = _instance(made)
    if _is_graph(made):
        raise TypeError(f"solver is {_what(made)}: {ORDER}")
    missing = [name for name in SOLVER if not hasattr(made, name)]
    if missing:
        if not {"init", "step"} & set(missing):
            raise TypeError(
                f"solver {type(made).__name__} has no {', '.join(missing)}: derive the class from "
                "mpidec.solvers.Solver"
            )
        remedy = (
            "derive it from mpidec.solvers.Solver and define init(X, W) and step(s, G, W)"
            if _own(made)
            else _expected()
        )
        raise TypeError(f"solver is {_what(made)}: {remedy}")
    return _with_term(made, problem)


def _own(thing: Any) -> bool:
    return hasattr(thing, "step") and type(thing).__module__ == "__main__"


def _instance(make: Any) -> Any:
    required = [
        p.name
        for p in inspect.signature(make).parameters.values()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY, p.KEYWORD_ONLY)
    ]
    if required:
        raise TypeError(
            f"solver {make.__name__} needs {' and '.join(required)}: pass an object, "
            f"{make.__name__}({', '.join(f'{name}=...' for name in required)})"
        )
    return make()


def _with_term(solver: Any, problem: Any) -> Any:
    """Return the solver with the term of the problem, if it has a field for it; refuse one that would ignore the term."""
    term = getattr(getattr(problem, "problem", problem), "term", None)
    if term is None:
        return solver
    if _takes_term(solver):
        return (
            dataclasses.replace(solver, term=term)
            if getattr(solver, "term", None) is None
            else solver
        )
    if solver.uses == "gradient" and not _has_subgradients(problem):
        bounded = getattr(term, "bounded", True)
        remedy = (
            "use a solver with a proximal step (docs/protocol.md)"
            if bounded
            else (
                "wrap the problem in mpidec.problems.Subgradient(problem), or use a solver with a proximal step (docs/protocol.md)"
            )
        )
        raise ValueError(
            f"the problem has the term {term!r}, which {type(solver).__name__} would ignore, as it takes gradients: "
            f"{remedy}"
        )
    return solver


def _takes_term(solver: Any) -> bool:
    return (
        any(field.name == "term" for field in dataclasses.fields(solver))
        if dataclasses.is_dataclass(solver)
        else False
    )


def _has_subgradients(oracle: Any) -> bool:
    while oracle is not None:
        if getattr(oracle, "includes_term", False):
            return True
        oracle = getattr(oracle, "source", None)
    return False


def with_subgradients(oracle: Any, solver: Any) -> Any:
    """Return `oracle`, with subgradients of the problem's term if the class `solver` takes gradients and no term.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((1, 1, 1)), [[1.0]], term=mpidec.problems.l1(0.1))
    >>> type(with_subgradients(problem, mpidec.solvers.DGD)).__name__
    'Subgradient'
    """
    term = getattr(getattr(oracle, "problem", oracle), "term", None)
    if term is None or solver.uses != "gradient" or _takes_term(solver):
        return oracle
    from ..problems import Subgradient

    try:
        return Subgradient(oracle)
    except ValueError as error:
        raise ValueError(f"solver {solver.__name__} takes gradients, and {error}") from None


def oracle(problem: Any) -> None:
    """Check that `problem` is a problem, an oracle or None, and say what is missing.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> oracle("logistic")
    Traceback (most recent call last):
    ...
    TypeError: problem is the name 'logistic': load it with mpidec.problems.load_problem("breast_cancer", n=16, problem="logistic")
    """
    if problem is None:
        return
    if isinstance(problem, str):
        from ..problems import registry

        if problem in registry.PROBLEMS:
            call = f'"{registry.default_dataset(problem)}", n=16, problem="{problem}"'
        else:
            call = f'"{problem}", n=16'
        raise TypeError(
            f"problem is the name {problem!r}: load it with mpidec.problems.load_problem({call})"
        )
    if _is_solver(problem) or _is_graph(problem):
        raise TypeError(f"problem is {_what(problem)}: {ORDER}")
    if inspect.isclass(problem):
        raise TypeError(
            f"problem is the class {problem.__name__}: pass an object, such as {problem.__name__}(A, b)"
        )
    if inspect.isroutine(problem):
        raise TypeError(
            f"problem is {_what(problem)}: wrap it in mpidec.problems.Custom(value, grad, m, d)"
        )
    if isinstance(problem, (np.ndarray, list, tuple)):
        raise TypeError(
            f"problem is {_what(problem)}: build one from data, mpidec.problems.load_problem((A, y), n=16)"
        )
    if hasattr(problem, "fit") and hasattr(problem, "get_params"):
        raise TypeError(
            f"problem is {_what(problem)}, an estimator: build a problem from its data, "
            "mpidec.problems.load_problem((A, y), n=16)"
        )
    inner = getattr(problem, "problem", problem)
    missing = [name for name in ("m", "d", "value", "grad") if not hasattr(inner, name)]
    if missing:
        raise TypeError(
            f"problem {type(inner).__name__} has no {', '.join(missing)}, expected m and d (the local agents and the "
            "length of a row), value(X) -> (m,) and grad(X) -> (m, d): mpidec.problems.Custom(value, grad, m, d) has "
            "them"
        )
    for name in ("m", "d"):
        if not isinstance(getattr(inner, name), numbers.Integral):
            raise TypeError(
                f"problem {type(inner).__name__}: {name} is {getattr(inner, name)!r}, expected an integer: "
                f"{'the number of local agents' if name == 'm' else 'the length of a row'}"
            )


def arguments(unknown: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Refuse arguments that `function` does not have, and say where they belong.

    Raises
    ------
    TypeError

    Examples
    --------
    >>> import mpidec
    >>> arguments({"step_size": 0.1}, mpidec.solve)
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
        elif name in ("l1", "l2", "batch_size", "partition", "standardize"):
            remedy = "it belongs to the problem, such as mpidec.problems.load_problem(data, n=16, l2=0.1) or MiniBatch(problem, 32)"
        raise TypeError(f"{function.__name__} has no argument {name}: {remedy}")


def step_size(solver: Any) -> None:
    """Refuse the step size 0, with which a solver of gradients never moves.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> import mpidec
    >>> step_size(mpidec.solvers.DGD(0))
    Traceback (most recent call last):
    ...
    ValueError: DGD: step_size is 0, expected a number > 0, or "auto": with 0 it takes no steps towards the minimum
    """
    size = getattr(solver, "step_size", None)
    if solver.uses != "nothing" and isinstance(size, numbers.Real) and size == 0:
        raise ValueError(
            f'{type(solver).__name__}: step_size is {size}, expected a number > 0, or "auto": with 0 it takes no '
            "steps towards the minimum"
        )


def probe(problem: Any, X: np.ndarray, lo: int = 0, gradient: bool = True) -> None:
    """Check what a problem of the user's own returns at the initial point: shapes, and that the gradients are finite.

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
    ValueError

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> probe(mpidec.problems.LeastSquares(np.ones((1, 2, 1)), np.ones((1, 2))), np.zeros((1, 1)))
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
        if np.shape(result) != shape:
            raise ValueError(
                f"problem {name}: {what}(X) has shape {np.shape(result)} for X of shape {X.shape}, expected {shape}: "
                f"{'one number' if what == 'value' else 'one gradient'} for each row of X"
            )
        if not np.array_equal(given, X):
            raise ValueError(
                f"problem {name}: {what}(X) changes X, expected it to leave X alone: write X = X - ..., not X -= ..."
            )
        if what == "grad" and isinstance(result, np.ndarray) and np.shares_memory(result, given):
            raise ValueError(
                f"problem {name}: grad(X) returns X itself or a view of it, expected a new array: return X.copy()"
            )
        if (
            what == "grad"
            and isinstance(result, np.ndarray)
            and np.shares_memory(result, problem.grad(given))
        ):
            raise ValueError(
                f"problem {name}: grad(X) returns the same array at each call, expected a new one: return G.copy()"
            )
        if (
            what == "grad"
            and gradient
            and not (finite := np.isfinite(result).all(axis=tuple(range(1, result.ndim)))).all()
        ):
            row = int(finite.argmin())
            raise ValueError(
                f"problem {name}: the gradient of agent {lo + row} at x0 is {_first_bad(result[row])}, expected "
                "finite numbers: look for NaN or inf in the data of that agent, or choose an x0 in the domain of f"
            )


def _first_bad(row: Any) -> float:
    numbers_of = np.ravel(row)
    return float(numbers_of[~np.isfinite(numbers_of)][0])


def integer(name: str, value: Any, least: int) -> int:
    """Return `value` as an int >= `least`.

    Examples
    --------
    >>> integer("steps", 10, 0)
    10
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, expected an integer >= {least}")
    return number


def rows(x0: Any, problem: Any, net: Any) -> np.ndarray:
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
    ...     rows([1.0], None, net)
    array([[1.],
           [1.]])
    """
    if problem is None and x0 is None:
        raise ValueError(
            "neither problem nor x0 is given: without a problem, pass x0 of shape (n, d)"
        )
    if problem is not None and problem.m != net.m:
        raise ValueError(
            f"rank {net.rank}: the problem has {problem.m} agents, but this rank hosts {net.m} (agents "
            f"{net.lo}:{net.hi} of {net.n}): pass the data of the local agents, A[net.lo:net.hi], or "
            "load_problem(..., net=net)"
        )
    d = np.shape(x0)[-1] if problem is None and np.ndim(x0) else getattr(problem, "d", 1)
    if x0 is None:
        return np.zeros((net.m, d))
    try:
        x0 = np.asarray(x0, float)
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
            f"x0 is not finite in {np.count_nonzero(~np.isfinite(x0))} of {x0.size} entries, the first at index "
            f"{tuple(int(i) for i in np.argwhere(~np.isfinite(x0))[0])}"
        )
    return np.tile(x0, (net.m, 1)) if x0.ndim == 1 else np.array(x0[net.lo : net.hi])


def _named(table: Table, name: str) -> Any:
    from ..registry import solvers, topologies

    other = next(
        (other for other in (solvers(), topologies()) if other is not table and name in other.own),
        None,
    )
    if other is not None and name not in table:
        raise ValueError(f"{name!r} is a {other.kind}, expected a {table.kind}: {ORDER}")
    return table.find(name)


def _is_solver(thing: Any) -> bool:
    return hasattr(thing, "init") and hasattr(thing, "step") and not hasattr(thing, "W")


def _is_graph(thing: Any) -> bool:
    return (
        hasattr(thing, "spectral_gap")
        or (hasattr(thing, "adj") and hasattr(thing, "number_of_nodes"))
    ) and not inspect.isclass(thing)


def _expected() -> str:
    return (
        'expected a name such as "exact_diffusion", or an object such as mpidec.solvers.ExactDiffusion(step_size=0.1) '
        "(python -m mpidec.run --list)"
    )


def _what(thing: Any) -> str:
    if thing is None:
        return "None"
    if isinstance(thing, (bool, int, float, np.number)):
        return f"the number {thing}"
    if inspect.isroutine(thing):
        return f"the function {getattr(thing, '__name__', '')}"
    if isinstance(thing, np.ndarray):
        return f"an array of shape {thing.shape}"
    if hasattr(thing, "spectral_gap"):
        return f"the topology {getattr(thing, 'name', '')}"
    return f"a {type(thing).__name__}"
