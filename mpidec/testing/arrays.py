"""How solvers treat arrays: dtype, rows that stay unchanged, tensors, columns, ranks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .._complex import as_reals
from ..comm.mixing import Network
from ..driver.internals import solve
from ..protocols import Operator, Rows
from ..solvers import Solver
from ..solvers.internals import at_step, step_size_of, with_step_size
from .case import SMALL, alone, costs, graph_of, problem, require, with_number
from .linear import QuadraticCosts, run

STEPS = 9


def dtype(solver: Solver) -> None:
    """With float32 iterates, the state and the messages are float32, also with a step size of
    NumPy's float64.
    """
    messages = _Messages()
    for k, s in enumerate(_states(solver, np.float32, messages)):
        for name, value in zip(s._fields, s):
            if hasattr(value, "dtype"):
                require(
                    value.dtype == np.float32,
                    solver,
                    "dtype",
                    f"with an X of float32, the state's {name} is {value.dtype} after {k} steps, "
                    "expected float32",
                    "write np.zeros_like(X), not np.zeros(X.shape), and float(a) for numbers of "
                    "NumPy",
                )
    wrong = {str(rows.dtype) for rows, _ in messages.sent} - {"float32"}
    require(
        not wrong,
        solver,
        "dtype",
        f"with an X of float32, rows of {', '.join(sorted(wrong))} are handed to W, expected "
        "float32",
        "write np.zeros_like(X), not np.zeros(X.shape), and float(a) for numbers of NumPy",
    )


def rows(solver: Solver) -> None:
    """Rows handed to W are never changed afterwards, as `keeps_rows` declares."""
    messages = _Messages()
    for _ in _states(solver, np.float64, messages):
        pass
    require(
        all(np.array_equal(sent, copy) for sent, copy in messages.sent),
        solver,
        "rows",
        "rows handed to W are changed afterwards, but the class declares keeps_rows = True",
        "make a new array, as X = X - a * G does and X -= a * G does not",
    )


def in_place(solver: Solver) -> None:
    """Neither init nor step changes an array that it is handed: rows, an earlier state,
    gradients.
    """
    graph = graph_of(solver)
    method, f = with_number(solver), costs(graph.n)
    X = np.random.default_rng(3).standard_normal((graph.n, 3))
    with alone(graph.n) as net:
        W = net.mixer(graph)
        kept = {"the X that init was handed": (X, X.copy())}
        s = method.init(X, W.at(0))
        for k in range(STEPS):
            now = at_step(method, k)
            G = now.ask(f, s)
            for number, part in enumerate(_parts(G)):
                kept[f"the gradients G ({number})"] = (part, np.copy(part))
            for name, value in zip(s._fields, s):
                kept[f"the {name} of the state before"] = (value, np.copy(value))
            s = now.step(s, G, W.at(k))
            changed = [
                name
                for name, (array, copy) in kept.items()
                if isinstance(array, np.ndarray) and not np.array_equal(array, copy, equal_nan=True)
            ]
            require(
                not changed,
                solver,
                "in_place",
                f"step {k} changes {' and '.join(changed)} in place, which the search for a step "
                "size and checkpoints need as "
                "they were",
                "make a new array, as X = X - a * G does and X -= a * G does not",
            )


def tensors(solver: Solver) -> None:
    """Tensors of PyTorch take the same steps, if it is installed."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    # PyTorch rounds square roots otherwise.
    rtol = 1e-4 if solver.adaptive else 0.0
    pairs = zip(_states(solver, np.float32), _states(solver, np.float32, convert=torch.from_numpy))
    for k, (ours, theirs) in enumerate(pairs):
        for name, one, two in zip(ours._fields, ours, theirs):
            if isinstance(one, np.ndarray):
                tensor = isinstance(two, torch.Tensor)
                require(
                    tensor and np.allclose(two.numpy(), one, rtol=rtol, atol=0),
                    solver,
                    "tensors",
                    f"with tensors of PyTorch, the state's {name} is "
                    + ("another one" if tensor else f"a {type(two).__name__}")
                    + f" after {k} steps, expected a tensor with the numbers of NumPy's array",
                    "use operators, and mpidec.solvers.base.zeros(X, *shape) in place of NumPy's "
                    "functions",
                )


def columns(solver: Solver) -> None:
    """An array with one step size per column takes the steps of each of them, as the search for
    "auto" needs it.
    """
    graph, sizes = graph_of(solver), (SMALL, SMALL / 2)
    f = costs(graph.n, 2)
    X = np.random.default_rng(3).standard_normal((graph.n, 2))
    with alone(graph.n) as net:
        W = net.mixer(graph)

        def end(size: float | np.ndarray, at: slice) -> np.ndarray:
            method = with_step_size(solver, size)
            s = method.init(X[:, at], W.at(0))
            end: np.ndarray = run(method, W, QuadraticCosts(f.h, f.c[:, at]), s, STEPS).X
            return end

        both = end(np.array(sizes), slice(0, 2))
        each = np.hstack([end(size, slice(j, j + 1)) for j, size in enumerate(sizes)])
    away = float(abs(both - each).max())
    require(
        away <= 1e-12,
        solver,
        "columns",
        f"a step size per column gives iterates that differ by {away:.2g} from those of each step "
        "size alone, expected 0",
        "use equations on whole rows, without float(step_size), norms or sorting; or give a number "
        'in place of "auto"',
    )


def complex_rows(solver: Solver) -> None:
    """Complex rows take the steps of their real and imaginary parts, as W is real; those of a
    solver that takes moduli (`by_parts`) are the same steps in any phase.
    """
    graph, method = graph_of(solver), with_number(solver)
    f, rng = costs(graph.n), np.random.default_rng(3)
    X, c = rng.standard_normal((2, graph.n, 2, 2)) @ [1, 1j]
    other = as_reals if solver.by_parts else partial(np.multiply, np.exp(1j))
    with alone(graph.n) as net:
        W = net.mixer(graph)
        both, parts = (
            run(method, W, QuadraticCosts(f.h, c), method.init(X, W.at(0)), STEPS).X
            for X, c in ((X, c), (other(X), other(c)))
        )
    away = float(abs(other(np.asarray(both, complex)) - parts).max())
    require(
        away <= 1e-12,
        solver,
        "complex",
        f"complex rows differ by {away:.2g} after {STEPS} steps from what the same steps make of "
        + ("their real and imaginary parts" if solver.by_parts else "the rows in another phase")
        + ", expected rounding errors",
        "write abs(g)**2 for the squares of moduli, not g * g, and no conjugates",
    )


def bits(solver: Solver) -> None:
    """The iterates have the same bits on any number of ranks; collective over `MPI.COMM_WORLD`."""
    graph = graph_of(solver)
    n, method = graph.n, with_number(solver)
    f = costs(n)
    X = np.random.default_rng(7).standard_normal((n, 3))
    with Network(n) as net, alone(n) as single:
        results = [
            solve(
                problem(f, one.lo, one.hi) if solver.needs.problem else None,
                method,
                graph,
                steps=20,
                x0=X,
                net=one,
                every=10,
            )
            for one in (net, single)
        ]
        mine, whole = results[0].X, results[1].X[net.lo : net.hi]
        different = np.array(-float(abs(mine - whole).max(initial=0)))
        worst = -float(net.collectives.minimum(different, "the contract of a solver"))
    require(
        worst == 0,
        solver,
        "bits",
        f"the iterates on {net.size} ranks differ by up to {worst:.2g} from those of one process, "
        "expected the same bits",
        "do sums go over local rows only, or random numbers depend on the rank instead of the "
        "agent?",
    )


def _parts(G: object) -> list[Any]:
    """The arrays in what a step is given."""
    return [part for one in G for part in _parts(one)] if isinstance(G, tuple) else [G]


class _Messages:
    """The rows that are handed to the operators, each with a copy."""

    def __init__(self) -> None:
        self.sent: list[tuple[np.ndarray, np.ndarray]] = []

    def watch(self, W: Operator) -> _Watched:
        return _Watched(W, self)


class _Watched:
    """An operator whose messages are kept."""

    def __init__(self, W: Any, messages: _Messages):
        self._W, self._messages = W, messages

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._W, name)
        return _Watched(found, self._messages) if hasattr(found, "in_edges") else found

    def _keep(self, X: Rows) -> None:
        several = X if isinstance(X, (list, tuple)) else [X]
        self._messages.sent += [(one, one.copy()) for one in several]

    def at(self, k: int) -> _Watched:
        return _Watched(self._W.at(k), self._messages)

    def __call__(self, X: Rows) -> Any:
        self._keep(X)
        return self._W(X)

    def start(self, X: Rows) -> Any:
        self._keep(X)
        return self._W.start(X)

    def exchange(self, M: np.ndarray) -> Any:
        self._keep(M)
        return self._W.exchange(M)


def _states(
    solver: Solver,
    kind: type,
    messages: _Messages | None = None,
    convert: Callable[[np.ndarray], Any] = np.asarray,
) -> Any:
    """The states of some steps from arrays of the dtype `kind`, made by `convert`."""
    graph = graph_of(solver)
    n = graph.n
    method = with_number(solver)
    if isinstance(step_size_of(method), float) and method.step_size:
        method = with_step_size(method, np.float64(method.step_size))  # NumPy's scalar, too
    f = costs(n)
    f = QuadraticCosts(convert(f.h.astype(kind)), convert(f.c.astype(kind)))
    X = convert(np.random.default_rng(3).standard_normal((n, 3)).astype(kind))
    with alone(n) as net:
        W: Any = net.mixer(graph)
        if messages is not None:
            W = messages.watch(W)
        s = method.init(X, W.at(0))
        yield s
        for k in range(STEPS):
            s = run(method, W, f, s, 1, k)
            yield s
