"""Scans of step sizes on the problems themselves: steps to an error, for all step sizes at once as columns of one stack.

python tests/programs/stepsizes.py [-n 6 16] [--problems wine ...] [--methods gt ...]   "auto" against the best of a scan
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace

import numpy as np
from mpi4py import MPI

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.solvers.base import with_step_size

PROBLEMS = {
    "breast_cancer": ("logistic", "breast_cancer", {"l2": 0.05}),
    "wine": ("logistic", "wine", {"l2": 0.05}),
    "wine_softmax": ("softmax", "wine", {"l2": 0.05}),
    "diabetes": ("least_squares", "diabetes", {"l2": 0.05}),
    "huber": ("huber", "diabetes", {"l2": 0.05}),
    "synthetic": ("least_squares", "synthetic_least_squares", {}),
    "digits": ("softmax", "digits", {"l2": 0.05}),
    "dependent": ("logistic", "dependent", {"l2": 0.05}),
    "separable": ("logistic", "separable", {"l2": 0.01}),
    "unequal": ("least_squares", "unequal", {"l2": 0.05}),
}
GRAPHS = {
    "ring": T.ring,
    "grid": T.grid,
    "exponential": T.exponential,
    "one_peer": T.one_peer_exponential,
}
METHODS = {
    "gt": S.GradientTracking(),
    "extra": S.EXTRA(),
    "ed": S.ExactDiffusion(),
    "dgd": S.DGD(S.InverseSqrt()),
    "dgd_1/k": S.DGD(S.Inverse()),
    "dgd_constant": S.DGD(),
}


def dataset(name, n):
    if name == "wine":
        from sklearn.datasets import load_wine

        A, y = load_wine(return_X_y=True)
        return P.Dataset(
            (A - A.mean(axis=0)) / A.std(axis=0), y, "wine", "classification", "sorted"
        )
    if name == "dependent":  # linearly dependent columns, few of the second class
        from sklearn.datasets import make_classification

        A, y = make_classification(600, 10, weights=[0.96], flip_y=0.01, random_state=7)
        return P.Dataset(A, 2 * y - 1, name, "classification", "iid")
    if name == "separable":  # the curvature at the minimizer is small
        from sklearn.datasets import load_digits

        A, y = load_digits(n_class=2, return_X_y=True)
        return P.Dataset(A / 16, 2 * y - 1, name, "classification", "sorted")
    if name == "unequal":  # columns of sizes 0.1 to 10
        rng = np.random.default_rng(5)
        A = rng.standard_normal((480, 6)) * np.geomspace(0.1, 10, 6)
        return P.Dataset(
            A, A @ rng.standard_normal(6) + rng.standard_normal(480), name, "regression", "iid"
        )
    return P.load(name, **({"n": n} if name.startswith("synthetic") else {}))


def make(case, n, lo=0, hi=None):
    """The problem of agents lo..hi-1 of n, and the minimizer over all of them."""
    name, data, options = PROBLEMS[case]
    data = dataset(data, n)
    y = np.where(data.y == 0, 1, -1) if (name, data.name) == ("logistic", "wine") else data.y
    data = replace(data, y=y)
    parts = P.partition(y, n, data.partition, seed=0)
    whole = P.build(name, data, parts, 0, n, **options)
    x_star = whole.solution() if whole.x_star is None else whole.x_star
    part = whole if hi is None else P.build(name, data, parts, lo, hi, **options)
    part.x_star = None
    return part, x_star


def gradient(problem, X):
    """Gradients at columns: (m, d S) -> (m, d S)."""
    m, d = problem.m, problem.d
    E = X.reshape(m, d, -1)
    if problem.features != d:
        return np.stack(
            [problem.grad(np.ascontiguousarray(E[:, :, j])) for j in range(E.shape[2])], axis=2
        ).reshape(X.shape)
    G = problem.A.transpose(0, 2, 1) @ problem._slope(problem.A @ E, problem._Y)
    return (G + problem.l2 * E).reshape(X.shape)


def scan(problem, solver, topology, sizes, x_star, most, tol=1e-6, every=10, wanted=None, x0=None):
    """For each step size, the first multiple of `every` after which the RMS error over agents is <= tol, and the error at the end.

    The scan ends once the step size of index `wanted`, and some other one, have come there.
    """
    n, d, sizes = problem.m, problem.d, np.asarray(sizes, float)
    steps, errors, alive = (
        np.full(len(sizes), np.inf),
        np.full(len(sizes), np.inf),
        np.arange(len(sizes)),
    )
    size = np.linalg.norm(x_star)
    varying = callable(solver.step_size)
    with mpidec.Network(n, comm=MPI.COMM_SELF) as net, np.errstate(all="ignore"):
        W = net.mixer(topology)
        start = np.zeros((n, d)) if x0 is None else np.tile(x0, (n, 1))
        now = with_step_size(solver, np.tile(sizes, d))
        s = now.init(np.repeat(start, len(sizes), axis=1), W.at(0))
        for k in range(most):
            if varying:
                now = with_step_size(solver, np.tile(sizes * solver.step_size.factor(k), d))
            s = now.step(s, gradient(problem, now.point(s)), W.at(k))
            if (k + 1) % every:
                continue
            error = (
                np.sqrt(((s.X.reshape(n, d, -1) - x_star[:, None]) ** 2).sum(axis=(0, 1)) / n)
                / size
            )
            errors[alive] = error
            steps[alive[(error <= tol) & ~np.isfinite(steps[alive])]] = k + 1
            left = np.isfinite(error) & (error < 1e8) & ~(error <= tol)
            if (
                wanted is not None
                and np.isfinite(steps).any()
                and (np.isfinite(steps[wanted]) or k > 4 * steps.min())
            ):
                break
            if not left.any():
                break
            if not left.all():
                errors[alive[~left & ~(error <= tol)]] = np.inf
                sizes, alive = sizes[left], alive[left]
                s = type(s)(
                    *(
                        value
                        if np.ndim(value) == 0 or value.shape[1] == 1
                        else np.ascontiguousarray(value.reshape(n, d, -1)[:, :, left]).reshape(
                            n, -1
                        )
                        for value in s
                    )
                )
                now = with_step_size(solver, np.tile(sizes, d))
    return steps, errors


def compare(case, n, graph, method, most=20000, half_octaves=(-7, 4)):
    """Auto against the best of a sqrt(2) scan around it: a dict of steps, errors, ratio, gradients and seconds of the search."""
    problem, x_star = make(case, n)
    solver, topology = METHODS[method], GRAPHS[graph](n)
    exact = method in ("gt", "extra", "ed")
    most = most if exact else min(most, 3000)
    if case == "digits":
        most = min(most, 4000)
    with mpidec.Network(n, comm=MPI.COMM_SELF) as net, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = time.perf_counter()
        choice = mpidec.tune(problem, solver, topology, steps=most, net=net)
        seconds = time.perf_counter() - begun
    low, high = half_octaves
    sizes = choice.step_size * 2 ** (np.arange(low, high + 1) / 2)
    begun = time.perf_counter()
    steps, errors = scan(problem, solver, topology, sizes, x_star, most, wanted=-low)
    result = {
        "rule": choice.rule,
        "size": choice.step_size,
        "steps": steps[-low],
        "best": steps.min(),
        "error": errors[-low],
        "least": errors.min(),
        "gradients": choice.gradients,
        "search": seconds,
        "scan": time.perf_counter() - begun,
        "best_size": sizes[np.argmin(steps if exact else errors)],
        "predicted": choice.expected,
    }
    converged = np.isfinite(steps.min())
    result["by"] = "steps" if exact and converged else "error"
    result["ratio"] = (
        steps[-low] / steps.min() if exact and converged else errors[-low] / errors.min()
    )
    result["cost"] = choice.gradients / (
        steps[-low] if converged and np.isfinite(steps[-low]) else most
    )
    return result


def table(cases, sizes, graphs, methods):
    found = []
    for case in cases:
        for n in sizes:
            for graph in graphs:
                for method in methods:
                    if method in ("extra", "ed") and graph in ("exponential", "one_peer"):
                        continue  # they need a symmetric, constant W
                    row = compare(case, n, graph, method)
                    found.append(row)
                    print(
                        f"{case:14} {n:3} {graph:12} {method:8} {row['rule']:5} a {row['size']:.3g} best {row['best_size']:.3g} "
                        f"steps {row['steps']:.0f}/{row['best']:.0f} (predicted {row['predicted']:.4g}) error {row['error']:.1e}/"
                        f"{row['least']:.1e} ratio {row['ratio']:.2f} ({row['by']}) gradients {row['gradients']} cost "
                        f"{row['cost']:.3f} search {row['search']:.2f} s scan {row['scan']:.0f} s",
                        flush=True,
                    )
    for by in ("steps", "error"):
        ratios = np.array([row["ratio"] for row in found if row["by"] == by])
        costs = np.array([row["cost"] for row in found if row["by"] == by])
        if len(ratios):
            shown = (
                f"{name} median {np.median(row):.3g}, 90 % {np.quantile(row, 0.9):.3g}, max {row.max():.3g}"
                for name, row in (("ratio", ratios), ("cost", costs))
            )
            print(f"by {by}: {len(ratios)} cases,", "; ".join(shown))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, nargs="+", default=[6, 16])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--methods", nargs="+", default=["gt", "extra", "ed", "dgd", "dgd_1/k"])
    given = parser.parse_args()
    table(given.problems, given.n, given.graphs, given.methods)
