"""Write the tables of solvers of docs/guide/choosing.md, measured: `python docs/solver_tables.py`.

Each row is a solver of the catalogue.  Its class says what it is (`exact`, `needs`); what it sends is counted by
the mixer, what it keeps is the size of its state, and which graphs it bears is tried on small quadratics.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing import Mixer
from mpidec.comm.mixing.mixers.operator import Operator, StepOperator
from mpidec.driver.noisy_links import integrates
from mpidec.driver.stepsize.varying import growth
from mpidec.solvers import CATALOGUE, Bias, Solver
from mpidec.solvers.asynchronous import PushSolver, is_asynchronous
from mpidec.testing.case import SMALL, alone, costs, graph_of, made, problem, with_number
from mpidec.testing.convergence import rest
from mpidec.testing.linear import QuadraticCosts, run
from mpidec.theory import moments
from mpidec.theory.linear import LinearSteps

PAGE = Path(__file__).resolve().parent / "guide" / "choosing.md"
BEGIN, END = "<!-- {}: written by docs/solver_tables.py -->", "<!-- end of {} -->"
D = 200  # columns, so that rows and numbers can be told apart
SYNCHRONOUS = (
    "| solver | limit | bias | `W` | varying `W` | sent | kept | l1, bounds | reference |",
    "|---|---|---|---|---|---|---|---|---|",
)
FAULTS = (
    "| solver | graph | none | failing links | sleeping agents | lost messages | noise |",
    "|---|---|---|---|---|---|---|",
)
Mixing = Callable[[Mixer], Operator[StepOperator]]
ASYNCHRONOUS = (
    "| solver | limit | graph | sent | kept | lost messages | reference |",
    "|---|---|---|---|---|---|---|",
)
DIRECTED = (
    lambda: T.exponential(16),
    lambda: T.from_weights((np.eye(5) + np.roll(np.eye(5), 1, axis=0)) / 2),
)
VARYING = (
    lambda: T.cycle([T.ring(6), T.chain(6), T.star(6)]),
    lambda: T.one_peer_hypercube(8),
    lambda: T.one_peer_exponential(6),
    lambda: T.base_k(12),
)


def bears(solver: Solver, graph: T.Topology | T.Schedule) -> bool:
    """Return whether a solver reaches the minimizer on a graph; a biased one, that of agents with the same minimizer."""
    method, f = with_number(solver), costs(graph.n)
    if not solver.exact:
        f = QuadraticCosts(f.h, f.c[:1] + 0 * f.c)
    near = 0.01 if solver.bias_on(graph) is Bias.OTHER else 1e-6
    with warnings.catch_warnings(), alone(graph.n) as net, np.errstate(all="ignore"):
        warnings.simplefilter("error", RuntimeWarning)
        try:
            method.check(graph)
        except (ValueError, RuntimeWarning):
            return False
        W = net.mixer(graph)
        if graph.period != 1 and not solver.adaptive and growth(method, W) > 1:
            return False  # with smaller step sizes, at least
        if not solver.needs.problem:
            X = np.random.default_rng(0).standard_normal((graph.n, 1))
            end = run(method, W, f, method.init(X, W.at(0)), 600).X
            return bool(np.ptp(end) < 1e-6)
        constant = "column" not in solver.needs.kinds and not solver.adaptive
        if constant and (steps := LinearSteps(method, W, f.h[:, :, None])).linear:
            end = np.inf + f.c
            if steps.radius() < 1 - 1e-9:
                end = moments.rest(steps, 0 * f.c[:, None], (f.h * f.c)[:, None])[:, 0]
            return bool(np.max(abs(end - f.minimizer)) < near)
        end = run(method, W, f, method.init(0 * f.c, W.at(0)), 1500).X
        return bool(np.max(abs(end - f.minimizer)) < near)


def operators(solver: Solver) -> tuple[str, str]:
    """Return which W a solver bears, and whether it may vary with the step."""
    if not bears(solver, T.ring(7)):
        if bears(solver, T.chain(6)):
            return "a tree", "–"
        own = graph_of(solver)
        return f"`{own.name}`", "that" if own.period != 1 else "–"
    found = [
        "doubly stochastic" if all(bears(solver, make()) for make in DIRECTED) else "symmetric"
    ]
    others = {"row": "row stochastic", "column": "column stochastic", "pair": "a pair"}
    found += [text for kind, text in others.items() if kind in solver.needs.kinds]
    return ", ".join(found), "yes" if all(bears(solver, make()) for make in VARYING) else "–"


def counted(solver: Solver) -> tuple[str, str]:
    """Return the rows that an agent sends to each neighbour per step, and the rows that it keeps."""
    graph = graph_of(solver)
    f, method = costs(graph.n, D), with_number(solver)
    H = getattr(solver, "local_steps", 1)
    random = getattr(solver, "probability", 1.0) < 1
    steps, warm = (40 if random else 4) * H * (graph.period or 4), H
    with alone(graph.n) as net:
        W = net.mixer(graph)
        s = run(method, W, f, method.init(0 * f.c, W.at(0)), warm)
        before = W.bytes
        s = run(method, W, f, s, steps, warm)
        sent, arcs = (W.bytes - before) / 8, 0
        for k in range(warm // H, warm // H + steps // H):
            arcs += graph.at(k).W.nnz - np.count_nonzero(graph.at(k).W.diagonal())
        s = run(method, W, f, s, 1, warm + steps) if H > 1 else s  # between two mixings
    rows, more = divmod(round(sent / arcs), D) if not random else (0, 0)
    numbers = {0: "", 1: " and a number"}.get(more, f" and {more} numbers")
    text = f"{rows}{numbers}" if not random else f"{sent / arcs / D:.1f} on average"
    if H > 1:
        text += " every H steps"
    arrays = {id(value): (name, value) for name, value in zip(s._fields, s) if np.ndim(value) == 2}
    kept = sum(
        value.shape[1] >= D and name not in method.needs.per_edge for name, value in arrays.values()
    )
    edges = sum(name in method.needs.per_edge for name, _ in arrays.values())
    return text, f"{kept}" + (f", {edges} per neighbour" if edges else "")


def reference(solver: Solver) -> str:
    """Return authors and year of the first paper of the docstring."""
    papers = (inspect.getdoc(type(solver)) or "").partition("References\n----------\n")[2]
    papers = re.sub(r"\s+", " ", papers.partition(".  ")[0])
    names = re.findall(r"(?:[A-Z]\. )+((?:Di )?[A-Z][\w-]+)", papers.partition('"')[0])
    year = re.search(
        r"\b(?:19|20)\d\d\b|(?<=arXiv )\d\d(?=\d\d\.)|(?<=arXiv:)\d\d(?=\d\d\.)", papers
    )
    when = "" if year is None else year[0] if len(year[0]) == 4 else f"20{year[0]}"
    who = ", ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{who} {when}".strip()


def fault_row(name: str, solver: Solver, steps: int = 600) -> str:
    """Return the row of a solver with its errors when links fail, agents sleep, messages are lost or rows are noisy."""
    graph, method = graph_of(solver), with_number(solver, 0.08)
    f = costs(graph.n)
    X = np.random.default_rng(0).standard_normal((graph.n, 3)) * (not solver.needs.problem)
    goal = X.mean(axis=0) if not solver.needs.problem else f.minimizer
    scale = np.linalg.norm(goal)

    def error(topology: T.Topology | T.Schedule, mixing: Mixing = lambda W: W) -> str:
        try:
            method.check(topology)
        except ValueError:
            return "refused"
        with alone(graph.n) as net:
            W = mixing(net.mixer(topology))
            end = run(method, W, f, method.init(X, W.at(0)), steps).X
        away = float(np.sqrt(((end - goal) ** 2).sum(axis=1).mean()) / scale)
        return "0" if away < 1e-6 else f"{away:.1g}" if away < 10 else "diverges"

    cells = [
        error(graph),
        error(T.failing_links(graph, 0.2)),
        error(T.sleeping_agents(graph, 0.2)),
        error(graph, lambda W: W.lossy(0.1)),
        "grows" if integrates(method, graph) else error(graph, lambda W: W.noisy(0.001)),
    ]
    return f"| `{name}` | {graph.name} | {' | '.join(cells)} |"


def row(name: str, solver: Solver) -> str:
    """Return the row of a synchronous solver."""
    limit = "average" if not solver.needs.problem else "minimizer"
    bias = "–"
    if not solver.exact:
        graph = T.ring(7) if bears(solver, T.ring(7)) else None
        elsewhere = solver.bias_on(graph_of(solver)) is Bias.OTHER and not solver.adaptive
        limit, bias = "another point" if elsewhere else "near it", "adaptive"
        if not solver.adaptive:
            bias = f"{rest(solver, SMALL / 4, costs(7), graph):.2g}"
    if getattr(solver, "local_steps", 1) > 1 or "local_steps" in getattr(solver, "__dict__", {}):
        limit += ", with H local steps"
    composite = "yes" if solver.needs.term else "–"
    W, varying = operators(solver)
    sent, kept = counted(solver)
    cells = [f"`{name}`", limit, bias, W, varying, sent, kept, composite, reference(solver)]
    return f"| {' | '.join(cells)} |"


def asynchronous_row(name: str, solver: Solver) -> str:
    """Return the row of an asynchronous solver."""
    graph, d = graph_of(solver), 8
    n = graph.n
    f = costs(n, d)
    method, X = with_number(solver), np.random.default_rng(0).standard_normal((n, d))
    limit = "minimizer" if solver.exact else "near it; without a problem, the average"
    result = mpidec.simulate(problem(f), method, graph, steps=40, every=40)
    sent = result.metrics["bytes"][-1] / result.metrics["messages"][-1] / 8
    rows, more = divmod(round(sent), d)
    push = isinstance(solver, PushSolver)
    text = f"{rows}{' and a number' if more else ''} at {'a wake-up' if push else 'an averaging'}"
    s = method.init(X[0])
    kept = sum(np.size(getattr(s, field)) == d for field in s.__dataclass_fields__)
    if solver.needs_problem:
        method = with_number(solver, 0.1)
        lossy = mpidec.simulate(problem(f), method, graph, steps=3000, drop=0.1, every=3000)
        away = abs(lossy.X - f.minimizer).max()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lossy = mpidec.simulate(None, method, graph, steps=600, x0=X, drop=0.3, every=600)
        away = abs(lossy.X - X.mean(axis=0)).max()
    loss = "no effect on the limit" if away < 1e-6 else "move the limit"
    edges = "strongly connected" if push else "undirected"
    cells = [f"`{name}`", limit, edges, text, f"{kept}", loss, reference(solver)]
    return f"| {' | '.join(cells)} |"


def measured() -> dict[str, Solver]:
    """Return the solvers of gradients by name."""
    return {name: made(one) for name, one in CATALOGUE.items() if not one.needs.data}


def tables() -> dict[str, str]:
    """Return both tables by name."""
    solvers = measured()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = [row(name, one) for name, one in solvers.items() if not is_asynchronous(one)]
    apart = [asynchronous_row(name, one) for name, one in solvers.items() if is_asynchronous(one)]
    return {
        "solvers": "\n".join([*SYNCHRONOUS, *together]),
        "asynchronous solvers": "\n".join([*ASYNCHRONOUS, *apart]),
    }


def fault_table() -> dict[str, str]:
    """Return the table of faults by name."""
    solvers = measured()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [fault_row(name, one) for name, one in solvers.items() if not is_asynchronous(one)]
    return {"faults": "\n".join([*FAULTS, *rows])}


def written(page: str, found: dict[str, str]) -> str:
    """Return the page with these tables between its marks."""
    for name, table in found.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(*tables().values(), sep="\n\n")
    else:
        found = tables() | fault_table()
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
