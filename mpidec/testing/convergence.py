"""Limits of solvers and convergence to them: minimizer, rate, bias, noise floor."""

from __future__ import annotations

import math

import numpy as np

from ..comm.mixing import Mixer
from ..driver.internals import solve
from ..problems import Custom, l1
from ..solvers import Solver
from ..theory import steady_state
from ..theory.internals import LinearSteps, rest as resting
from ..topology import Schedule, Topology
from .case import (
    SMALL,
    alone,
    bearable,
    costs,
    graph_of,
    problem,
    require,
    resized,
    solved,
    with_number,
)
from .linear import QuadraticCosts, run


def minimizer(solver: Solver) -> None:
    """An exact solver leads all agents to the minimizer of the sum, with the step size that
    `solve` finds.
    """
    result, f = solved(solver)
    away = float(abs(result.X - f.minimizer).max() / np.linalg.norm(f.minimizer))
    require(
        away <= 1e-10,
        solver,
        "minimizer",
        f"agents rest at a relative distance of {away:.2g} from the minimizer after {result.steps} "
        "steps with step size "
        f"{result.step_size:.3g} on {graph_of(solver).name}, expected at most 1e-10",
        "is a correction missing, or a sign wrong?  A method with a bias declares exact = False",
    )
    _, *others = bearable(solver, ("row", "column", "pair"))
    for graph in others:
        f, method = costs(graph.n), with_number(solver)
        with alone(graph.n) as net:
            W = net.mixer(graph)
            X = run(method, W, f, method.init(0 * f.c, W.at(0)), 1500).X
        away = float(abs(X - f.minimizer).max())
        require(
            away <= 1e-10,
            solver,
            "minimizer",
            f"agents are {away:.2g} away from the minimizer after 1500 steps with step size "
            f"{SMALL:g} on a directed graph "
            f"with a {graph.kind} stochastic W, expected 0",
            "kinds declares such a W: are the weights of push-sum, or both matrices, in the right "
            "places?",
        )


def term(solver: Solver) -> None:
    """A solver that takes proximal steps leads all agents to the minimizer with an l1 norm, one
    with a bias as near as its step size.
    """
    graph = graph_of(solver)
    f, n, strength = costs(graph.n), graph.n, 0.2
    x, threshold = f.minimizer, strength * n / float(f.h.sum())
    target = np.sign(x) * np.maximum(abs(x) - threshold, 0)
    made = problem(f, term=l1(strength), x_star=target)
    with alone(n) as net:
        stop = {"error_max": 1e-11}
        if not solver.exact:
            far, near = (
                solve(made, with_number(solver, size), graph, steps=2000, net=net, every=2000)
                for size in (SMALL / 2, SMALL / 4)
            )
            ratio = near.metrics["error_rms"][-1] / far.metrics["error_rms"][-1]
            require(
                0.44 <= ratio <= 0.56,
                solver,
                "term",
                f"with the term l1({strength:g}), half of the step size leads agents to {ratio:.3g}"
                f" of the distance from the minimizer on {graph.name}, expected half of it",
                "is F.prox taken with the step size?",
            )
            return
        result = solve(made, solver, graph, steps=800, net=net, every=20, stop=stop)
    away = float(abs(result.X - target).max())
    require(
        away <= 1e-9,
        solver,
        "term",
        f"with the term l1({strength:g}), agents are {away:.2g} away from the minimizer after 800 "
        "steps with step size "
        f"{result.step_size:.3g} on {graph.name}, expected 0",
        "is F.prox taken with the step size, and of what the fixed point needs?",
    )


def rate(solver: Solver) -> None:
    """The error of a run falls at the rate that the spectral radius of the step's own linear map
    predicts.
    """
    result, f = solved(solver)
    graph = graph_of(solver)
    with alone(graph.n) as net:
        W, method = net.mixer(graph), with_number(solver, float(result.step_size or 0))  # type: ignore[arg-type]
        steps = LinearSteps(method, W, f.h[:, :, None])
        if not steps.linear:
            repeats(solver, method, W, f, "rate")
            return
        radius = steps.radius()
    k, error = result.metrics["step"], result.metrics["error_rms"]
    late = (error < 1e-5) & (error > 1e-11)
    if late.sum() < 4:  # too fast to have a rate
        return
    observed = math.exp(np.polyfit(k[late], np.log(error[late]), 1)[0])
    require(
        abs(math.log(observed) / math.log(radius) - 1) <= 0.1,
        solver,
        "rate",
        f"the error of a run falls by a factor of {observed:.4f} per step, the linear map of "
        "step() has the spectral "
        f"radius {radius:.4f} (step size {result.step_size:.3g}, {graph.name}), expected "
        "logarithms within 10 %",
        "does step() use the W of another step, or gradients from elsewhere than point(s)?",
    )


def repeats(solver: Solver, method: Solver, W: Mixer, f: QuadraticCosts, name: str) -> None:
    """Five steps from the same rows lead to the same rows again."""
    X = 0 * f.c
    first, again = (run(method, W, f, method.init(X, W.at(0)), 5).X for _ in range(2))
    require(
        (first == again).all(),
        solver,
        name,
        f"five steps from the same rows, repeated, differ by {abs(first - again).max():.2g}, "
        "expected the same rows",
        "does step() keep something between steps that is not in the state?",
    )


def bias(solver: Solver) -> None:
    """The bias, the distance from the minimizer at which a solver plateaus, is proportional to the
    step size, and 0 if the agents' minimizers are equal.
    """
    graph = graph_of(solver)
    f = costs(graph.n)
    large, small = SMALL / 4, SMALL / 8
    far, near = rest(solver, large, f), rest(solver, small, f)
    require(
        0.44 <= near / far <= 0.56 if far > 1e-9 else near <= 1e-9,
        solver,
        "bias",
        f"agents rest at {far:.3g} from the minimizer with step size {large:g}, at {near:.3g} with "
        "half of it "
        f"({graph.name}), expected half of the distance",
        "does the step size multiply the whole gradient, once?",
    )
    same = rest(solver, large, QuadraticCosts(f.h, f.c[:1] + 0 * f.c))
    require(
        same <= 1e-9,
        solver,
        "bias",
        f"agents whose minimizers are equal rest at {same:.3g} from it, expected 0",
        "is the mixing an average (weights that sum to one), and is the gradient that of point(s)?",
    )


def rest(
    solver: Solver, size: float, f: QuadraticCosts, graph: Topology | Schedule | None = None
) -> float:
    """Distance from the minimizer at which the agents rest (root mean square), on the solver's
    graph by default.
    """
    graph, method = graph or graph_of(solver), resized(solver, size)
    X = 0 * f.c + np.random.default_rng(1).standard_normal(f.c.shape[1])
    with alone(graph.n) as net:
        W = net.mixer(graph)
        steps = LinearSteps(method, W, f.h[:, :, None])
        if steps.linear:
            X = resting(steps, X[:, None], (f.h * f.c)[:, None])[:, 0]
        else:
            X = run(method, W, f, method.init(X, W.at(0)), 6000).X
    return float(np.sqrt(((X - f.minimizer) ** 2).sum(axis=1).mean()))


def noise(solver: Solver) -> None:
    """Under noisy gradients, the mean of n agents is n times nearer (mean square) than one
    agent: the linear speed-up.

    Where n agents take other steps than one, with a penalty on their disagreement or with late
    messages: n times nearer than that of n agents whose gradients have the same noise.
    """
    n = graph_of(solver).n
    slowed = solver.needs.argmin or hasattr(solver, "penalty")
    late = "row" in solver.needs.kinds and not solver.keeps_mean
    many, one = _floor(solver, n), _floor(solver, n, 1) if slowed or late else _floor(solver, 1)
    require(
        0.8 * n <= one / many <= 1.25 * n,
        solver,
        "noise",
        f"under gradient noise, the mean square distance of a single agent (or of {n} with the "
        f"same noise) is {one:.3g}, that of "
        f"the mean of {n} agents {many:.3g}: a ratio of {one / many:.3g}, expected {n}",
        "does the mean of the iterates follow the mean of the gradients, and does each gradient "
        "enter once?",
    )


def steady(solver: Solver) -> None:
    """Under noisy gradients, each agent reaches the mean square distance that the linear map of
    the step predicts (`mpidec.theory`).
    """
    graph, method = graph_of(solver), with_number(solver)
    f, sizes = costs(graph.n, 1), np.linspace(0.5, 1.5, graph.n)[:, None]
    model = Custom(f.value, f.grad, m=graph.n, d=1, x_star=f.minimizer)
    with alone(graph.n) as net:
        W = net.mixer(graph)
        steps = LinearSteps(method, W, f.h[:, :, None])
        if not steps.linear:
            repeats(solver, method, W, f, "steady")
            return
        expected = steady_state(model, method, graph, noise=sizes[:, 0]).msd
        # in column (p, j), agent j's gradient is off once, at phase p of a cycle
        L, n, k = steps.length, graph.n, 0
        X, found = np.tile(f.minimizer, (n, L * n + 1)), np.zeros(n)
        s, end = method.init(X, W.at(0)), steps.first + math.ceil(14 / -math.log(steps.radius()))
        for k in range(L * math.ceil(end / L)):
            off, phase = 0 * X, k - steps.first
            if 0 <= phase < L:
                off[:, phase * n : (phase + 1) * n] = np.diag((sizes / f.h)[:, 0])
            s = run(method, W, QuadraticCosts(f.h, f.c + off), s, 1, k)
            found += ((s.X[:, :-1] - s.X[:, -1:]) ** 2).sum(axis=1) / L
        for j in range(k + 1, k + 1 + L):
            s = run(method, W, f, s, 1, j)
            found += (s.X[:, -1] - f.minimizer) ** 2 / L
    off = abs(found / expected - 1).max()
    require(
        off <= 1e-3,
        solver,
        "steady",
        f"what single errors of gradients add to the agents' mean square distance is off by "
        f"{off:.2g} from the steady state that the linear map of step() predicts ({graph.name}), "
        "expected at most .001",
        "does step() keep something between steps that is not in the state?",
    )


def _floor(solver: Solver, n: int, draws: int = 0) -> float:
    """Mean square distance of the mean from the minimizer, over problems side by side (one per
    column) and late steps.

    Each agent draws its own noise, or `draws` = 1 is that of all.
    """
    rng, X, method = np.random.default_rng(n), np.zeros((n, 240)), with_number(solver)
    burn, steps, total = 80, 240, 0.0
    with alone(n) as net:
        W = net.mixer(graph_of(solver, n))
        s = method.init(X, W.at(0))
        for k in range(steps):
            noisy = QuadraticCosts(np.ones((n, 1)), 0 * X + rng.standard_normal((draws or n, 240)))
            s = run(method, W, noisy, s, 1, k)
            total += float((s.X.mean(axis=0) ** 2).mean()) * (k >= burn)
    return total / (steps - burn)
