"""Mixings, trainings and runs whose results do not depend on what carries the rows: under mpirun, or with the argument
`group` under torchrun, where MPI is not to be found.

    carried.py [group] [mixing|training|solve ...]        prints {name: SHA-1 of all rows, or the refusal}
"""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import closing

import numpy as np
import torch

import mpidec
from mpidec import topology

GROUP = "group" in sys.argv
if GROUP:
    # `import mpidec` has loaded nothing of MPI, and from here on it cannot be loaded.
    assert not any(name.startswith("mpi4py") for name in sys.modules)
    sys.modules["mpi4py"] = None  # type: ignore[assignment]

GRAPHS = ("ring", "exponential", "one_peer_exponential", "erdos_renyi", "chain", "star")
ALGORITHMS = (
    *("atc", "awc", "local", "pga", "choco", "d2", "gradient_tracking", "push_sum"),
    *("osgp", "relay", "qg", "mixed_momentum", "allreduce"),
)


def digest(net, rows):
    """SHA-1 of the rows of all agents, on rank 0."""
    stack = net.gather(np.ascontiguousarray(rows))
    return hashlib.sha1(stack.tobytes()).hexdigest()[:12] if net.rank == 0 else ""


def mixing(net):
    """Yield the name and the rows of each way to mix."""
    X = np.random.default_rng(7).normal(size=(net.n, 5))[net.lo : net.hi]
    for name in GRAPHS:
        W = net.mixer(getattr(topology, name)(net.n))
        Y = X.copy()
        for k in range(3):
            Y = W.at(k).start(Y).wait()
        yield f"W(X) {name}", Y
    W = net.mixer(topology.ring(net.n))
    yield "float32", W(X.astype(np.float32))
    yield "bfloat16", W(torch.from_numpy(X).bfloat16()).float().numpy()
    yield "two arrays", np.concatenate(W([X, X[:, :2] ** 2]), axis=1)
    ways = {
        "compress": W.compress("top_k", fraction=0.4),
        "accelerate": W.accelerate(3),
        "triggered": W.triggered(0.5),
        "lossy": W.lossy(0.3, seed=3),
        "noisy": W.noisy(0.1, seed=3),
        "robust": W.robust("clip", tau=0.5),
        "repeat": W.repeat(2),
    }
    for name, way in ways.items():
        Y = X.copy()
        for k in range(4):
            Y = way.at(k)(Y)
        yield name, Y
    step = W.at(0)
    yield "with_weights", step.with_weights((W.topology.W.toarray() + np.eye(net.n)) / 2)(X)
    yield "exchange", step.sum_edges(step.exchange(step.to_edges(X)))
    yield "mean", np.tile(net.mean(X), (net.m, 1))
    yield "scatter", net.scatter(net.gather(X))
    if net.m == 1 and net.n == net.size:
        x = X[0]
        net.set_topology(topology.exponential(net.n))
        yield "neighbor_allreduce", net.neighbor_allreduce(x)[None]
        yield "neighbor_allgather", np.sort(net.neighbor_allgather(x), axis=0)[:1]
        yield "allreduce", net.allreduce(x)[None]
        yield "broadcast", net.broadcast(x, 1)[None]
        net.set_machine_topology(topology.ring(len(net.machines())))
        yield "hierarchical", net.hierarchical_neighbor_allreduce(x)[None]


def trained(net, name, graph, steps=4):
    """Return the rows of parameters after some steps of an algorithm."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    if net.m > 1:
        model = mpidec.nn.Stacked(model, net.m)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9 * (name not in ("qg", "mixed_momentum"))
    )
    wrapped = mpidec.optim.Decentralized(
        optimizer, model, getattr(topology, graph)(net.n), algorithm=name, net=net
    )
    data = torch.from_numpy(np.random.default_rng(1).normal(size=(net.n, 8, 4)))[
        net.lo : net.hi
    ].float()
    with closing(wrapped) as optimizer:
        for _ in range(steps):
            optimizer.zero_grad()
            model(data if net.m > 1 else data[0]).square().mean(dim=(-1, -2)).sum().backward()
            optimizer.step()
    rows = [p.detach().reshape(net.m, -1) for p in model.parameters()]
    return torch.cat(rows, dim=1).numpy()


def training(net):
    for name in ALGORITHMS:
        for graph in GRAPHS:
            try:
                rows = trained(net, name, graph)
            except ValueError as error:
                yield f"{name} {graph}", str(error)
            else:
                yield f"{name} {graph}", rows


def solve(net):
    rng = np.random.default_rng(5)
    A, b = rng.normal(size=(net.n, 9, 4)), rng.normal(size=(net.n, 9))
    problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
    S = mpidec.solvers
    for solver, graph in (
        (S.DGD(0.01), "ring"),
        (S.EXTRA(0.01), "ring"),
        (S.ExactDiffusion(0.01), "chain"),
        (S.GradientTracking(0.01), "one_peer_exponential"),
        (S.RelaySGD(0.01), "chain"),
        (S.DGD("auto"), "star"),
    ):
        result = mpidec.solve(problem, solver, graph, steps=12, net=net, every=4)
        name = type(solver).__name__
        yield f"solve {name} {graph}", result.X
        kept = {key: value for key, value in result.metrics.items() if key != "time"}
        words = f"{result.outcome} {result.steps} {kept}"
        yield f"metrics {name} {graph}", words


def main() -> None:
    group = None
    if GROUP:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        group = dist.group.WORLD
    parts = [name for name in ("mixing", "training", "solve") if name in sys.argv] or [
        "mixing",
        "training",
        "solve",
    ]
    found: dict[str, str] = {}
    for each in (1, 2):
        size = dist.get_world_size() if GROUP else mpidec.comm.runtime.MPI.COMM_WORLD.size
        with mpidec.Network(each * size, process_group=group) as net:
            for part in parts:
                for name, rows in globals()[part](net):
                    value = rows if isinstance(rows, str) else digest(net, rows)
                    found[f"{each} {name}"] = value
    if net.rank == 0:
        print(json.dumps(found), flush=True)


main()
