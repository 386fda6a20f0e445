"""The same in mpidec's own calls, and the time of both: mpirun -n 4 python -m mpidec.bluefog native.py

Each pair runs in turns (A B A B ...); the time of a step is the smallest of several rounds, that of the slowest rank.
"""

import argparse
import time
from collections.abc import Callable

import average
import bluefog.torch as bf
import digits
import least_squares
import numpy as np
import resource_allocation
import torch
from bluefog.common import topology_util

import mpidec
from mpidec import problems, solvers, topology
from mpidec.optim import Decentralized

ROUNDS = 5


def static(net: mpidec.Network, x: np.ndarray, rounds: int) -> np.ndarray:
    net.set_topology(topology.exponential(net.n))
    for _ in range(rounds):
        x = net.neighbor_allreduce(x)
    return x


def dynamic(net: mpidec.Network, x: np.ndarray, rounds: int) -> np.ndarray:
    net.set_topology(topology.one_peer_exponential(net.n))
    for _ in range(rounds):
        x = net.neighbor_allreduce(x)
    return x


def push_sum(net: mpidec.Network, x: np.ndarray, rounds: int) -> np.ndarray:
    with net.window(x, topology.exponential(net.n)) as win:
        share = 1 / (len(win.out_neighbors) + 1)
        weights = dict.fromkeys(win.out_neighbors, share)
        for _ in range(rounds):
            win.accumulate(win.value, self_weight=share, dst_weights=weights)
            win.collect()
        net.barrier()
        win.collect()
        return win.value / win.p


def quadratic(K: torch.Tensor, d: torch.Tensor) -> problems.Custom:
    """x'Kx/2 - d'x of this rank."""
    A, b = K.numpy(), d.numpy()
    value = lambda X: ((X @ A) * X / 2 - X * b).sum(axis=1)
    return problems.Custom(value, lambda X: X @ A - b, m=1, d=len(b))


def solved(net: mpidec.Network, method: str, steps: int) -> np.ndarray:
    solver = {
        "exact_diffusion": solvers.ExactDiffusion(0.1),
        "gradient_tracking": solvers.GradientTracking(0.1),
        "push_diging": solvers.PushDIGing(0.1),
    }[method]
    graph = topology.exponential if method == "push_diging" else topology.ring
    problem = quadratic(*least_squares.data())
    return mpidec.solve(problem, solver, graph(net.n), steps=steps, every=steps, net=net).X[0]


def allocated(net: mpidec.Network, steps: int) -> np.ndarray:
    """The price; `argmin` is the answer of this rank to a price, of the cost x'Hx/2 - x'Hd with the inverse H of K."""
    K, d = (each.numpy() for each in resource_allocation.demand())
    H = np.linalg.inv(K)
    problem = problems.ConstraintCoupled(
        argmin=lambda C: d - C @ K,
        value=lambda X: ((X @ H) * (X / 2 - d)).sum(axis=1),
        A=np.eye(len(d))[None],
        b=np.zeros((1, len(d))),
    )
    solver = solvers.GradientTracking(0.4 / net.allgather(np.linalg.eigvalsh(K)[-1:]).max())
    graph = topology.ring(net.n)
    return mpidec.solve(problem, solver, graph, steps=steps, every=steps, net=net).X[0]


def trained(kind: str, steps: int, net: mpidec.Network) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels, *_ = digits.shares()
    turns = None
    if kind == "native":
        graph = topology.one_peer_exponential(net.n)
        optimizer = Decentralized(plain, model, graph, net=net)
    else:
        optimizer = digits.wrapped("atc", plain, model)
        if bf.size() > 1:
            turns = topology_util.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())
    for _ in range(steps):
        if turns:
            targets, sources = next(turns)
            share = 1 / (len(sources) + 1)
            optimizer.self_weight = share
            optimizer.src_weights = dict.fromkeys(sources, share)
            optimizer.dst_weights = targets
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[:32]), labels[:32]).backward()
        optimizer.step()
    if kind == "native":
        optimizer.close()


def times(pair: tuple[Callable[[int], object], ...], steps: int) -> list[float]:
    """Seconds of a step of each."""
    best = [float("inf")] * len(pair)
    for _ in range(ROUNDS):
        for k, run in enumerate(pair):
            bf.barrier()
            begin = time.perf_counter()
            run(steps)
            spent = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
            best[k] = min(best[k], bf.allgather(spent).max().item() / steps)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    bf.init()
    net = mpidec.Network()
    x = torch.randn(10_000, dtype=torch.float64)
    H, c = least_squares.data()
    K, d = resource_allocation.demand()
    pairs = {
        "average, static": (
            lambda k: average.static(x, k),
            lambda k: static(net, x.numpy(), k),
        ),
        "average, one peer": (
            lambda k: average.dynamic(x, k),
            lambda k: dynamic(net, x.numpy(), k),
        ),
        "push-sum": (
            lambda k: average.push_sum(x.clone(), k),
            lambda k: push_sum(net, x.numpy(), k),
        ),
        **{
            name: (
                lambda k, method=method: method(H, c, k, 0.1),
                lambda k, name=name: solved(net, name, k),
            )
            for name, method in least_squares.METHODS.items()
        },
        "resource allocation": (
            lambda k: resource_allocation.price(K, d, k),
            lambda k: allocated(net, k),
        ),
        "digits, ATC": (
            lambda k: trained("bluefog", k, net),
            lambda k: trained("native", k, net),
        ),
    }
    if bf.rank() == 0:
        print(f"{'microseconds a step, ' + str(bf.size()) + ' ranks':30} bluefog  native  ratio")
    for name, pair in pairs.items():
        bf.set_topology(topology_util.ExponentialGraph(bf.size()))
        theirs, ours = times(pair, steps)
        if bf.rank() == 0:
            print(
                f"{name:30} {theirs * 1e6:7.0f} {ours * 1e6:7.0f} {theirs / ours:6.2f}", flush=True
            )


if __name__ == "__main__":
    main()
