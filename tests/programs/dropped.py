"""Trainings whose ranks die: mpirun --with-ft ulfm -n N python tests/programs/dropped.py SEED [CASE ... [window]]

Each case takes one rank away.

In each training one of the ranks that are left ends by SIGKILL at a random place.  What the others have in the end is compared with
the dense equations on the workers that are left, begun at their parameters and momenta where the algorithm began anew.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import warnings
from functools import wraps
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import mpidec
from mpidec import topology
from mpidec.topology.internals import restricted

LR, STEPS, ROWS, D = 0.05, 30, 8, 5


def _equations():
    path = Path(__file__).parents[1] / "optim" / "test_equations.py"
    spec = importlib.util.spec_from_file_location("equations", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["equations"] = module
    spec.loader.exec_module(module)
    return module


eq = _equations()


def case(equations, graph=None, momentum=0.9, algorithm=None, **options):
    return SimpleNamespace(
        equations=equations, graph=graph, momentum=momentum, algorithm=algorithm, options=options
    )


CASES = {
    "atc": case(eq.atc, "one_peer_exponential"),
    "awc": case(eq.awc, "ring"),
    "overlap": case(eq.corrected(False), "chain", algorithm="d2", overlap=True),
    "given": case(eq.atc, "ring", algorithm="atc"),
    "d2": case(eq.corrected(False), "chain"),
    "exact_diffusion": case(eq.corrected(True), "ring"),
    "gradient_tracking": case(eq.gradient_tracking, "exponential"),
    "relay": case(eq.relay, "chain"),
    "choco": case(eq.choco, "ring", codec="top_k", k=4, gamma=0.4),
    "allreduce": case(eq.allreduce),
    "push_sum": case(eq.push_sum, "exponential"),
    "osgp": case(eq.osgp, "exponential"),
    "mixed_momentum": case(eq.mixed_momentum, "ring", momentum=0.0),
    "qg": case(eq.qg, "ring", momentum=0.0),
    "slowmo": case(eq.outer(eq.slowmo), "complete", local_steps=2, slow_step=0.8, momentum=0.6),
    "local": case(eq.local, "ring", local_steps=2),
}
CASES["slowmo"].momentum, CASES["slowmo"].options["momentum"] = 0.0, 0.6


def data(worker):
    random = np.random.default_rng(worker)
    A = random.standard_normal((ROWS, D)) + worker / 4
    return A, A @ random.standard_normal(D) + 0.1 * random.standard_normal(ROWS)


def gradient(x, worker):
    A, b = data(worker)
    return A.T @ (A @ x - b) / ROWS


def dense(case, of, X, B, workers, steps):
    """The equations on the graph `of`, from X and the momenta B."""
    equations = case.equations(
        SimpleNamespace(
            X=X.copy(),
            W=lambda k: of.at(k).W.toarray(),
            bucket=np.zeros(D),
            sizes=[D],
            column=np.arange(D),
            width=D,
        )
    )
    x = next(equations)
    for k in range(steps):
        G = np.array([gradient(row, worker) for row, worker in zip(x, workers)])

        def update(at, G):
            nonlocal B
            B = case.momentum * B + G
            return -LR * B

        x = equations.send(eq.Step(k, G, LR, 0.0, update))
    return x


def kill_at(averager, place, count):
    """Let this rank die in the `count`-th call of a part of a step."""
    owner, name = {
        "update": (averager, "update"),
        "begin": (averager, "_begin"),
        "after": (averager, "_settle"),
    }[place]
    former, calls = getattr(owner, name), [0]

    @wraps(former)
    def counted(*args):
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return former(*args)

    setattr(owner, name, counted)


def other(A, b):
    """A training of the same ranks with a network of its own, step by step."""
    model = torch.nn.Linear(D, 1, bias=False).double()
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    with mpidec.optim.Decentralized(sgd, model, "ring", on_failure="drop") as optimizer:
        for _ in range(STEPS):
            optimizer.zero_grad()
            (A @ model.weight[0] - b).square().mean().backward()
            optimizer.step()
            yield
        yield optimizer.averager.net.n


def trained(net, name, random):
    """Train until a rank has died and the others have come to the end; return the relative error."""
    case, me, worker = CASES[name], net.rank, net.rank
    dead, count = int(random.integers(net.size)), int(random.integers(4, STEPS // 2))
    place = ["update", "begin", "after", "gradient", "consensus"][random.integers(5)]
    first = net.size
    torch.manual_seed(0)
    model = torch.nn.Linear(D, 1, bias=False).double()
    A, b = map(torch.from_numpy, data(worker))
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=case.momentum)
    make = case.graph and getattr(topology, case.graph)
    given = make(net.n) if name == "given" else None
    optimizer = mpidec.optim.Decentralized(
        sgd,
        model,
        given or case.graph,
        case.algorithm or name,
        net,
        on_failure="drop",
        **case.options,
    )
    averager, starts = optimizer.averager, []
    begin = averager._begin_method

    def noted():
        begin()
        buffer = sgd.state.get(model.weight, {}).get("momentum_buffer")
        row = model.weight.detach().numpy().ravel().copy()
        starts.append((row, np.zeros(D) if buffer is None else buffer.numpy().ravel().copy()))

    averager._begin_method = noted
    if me == dead and place in ("update", "begin", "after"):
        kill_at(averager, place, count)
    beside = other(A, b) if name == "choco" else None
    losses = []
    for k in range(STEPS):
        if beside is not None:
            next(beside)
        optimizer.zero_grad()
        loss = (A @ model.weight[0] - b).square().mean() / 2
        losses.append(float(loss.detach()))
        if me == dead and place == "gradient" and k == count:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        if k == count:
            if me == dead and place == "consensus":
                os.kill(os.getpid(), signal.SIGKILL)
            with optimizer.consensus():
                pass
    row = model.weight.detach().numpy().ravel().copy()
    found = net.comm.allgather((row, *starts[-1], losses[0], losses[-1]))
    rows, X, B, before, after = (np.array(each) for each in zip(*found))
    assert net.size == first - 1, averager.lost
    assert after.mean() < before.mean(), (before, after)
    workers = averager.workers
    of = restricted(given, workers) if given else make and make(len(workers))
    expected = dense(case, of, X, B, workers, averager.steps)
    optimizer.close()
    if beside is not None:
        assert next(beside, net.n) == net.n
    return place, np.linalg.norm(rows - expected) / np.linalg.norm(expected)


def window():
    """A window by messages, of which a rank dies: calls that use it and `close` raise, and nothing waits."""
    net = mpidec.Network(windows="messages")
    win = net.window(np.full(9, float(net.rank)), "ring")
    net.barrier()
    if net.rank == net.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def use():
        while True:
            win.put(win.value)
            win.flush()

    raised = []
    for call in (use, win.close):
        try:
            call()
        except mpidec.RanksLost as error:
            raised.append(error)
    assert len(raised) == 2 and win.closed, raised
    if net.rank == 0:
        print("window, died: all calls raise", flush=True)


def main() -> None:
    seed, *names = sys.argv[1:]
    random = np.random.default_rng(int(seed))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    with mpidec.Network() as net:
        for name in [name for name in names if name != "window"] or [
            *random.permutation([*CASES])[: net.size - 1]
        ]:
            place, error = trained(net, name, random)
            if net.rank == 0:
                print(
                    f"{name}, died at {place}: {net.size} are left, error {error:.1e}", flush=True
                )
            assert error < 1e-12, (name, place, error)
    if "window" in names:
        window()


if __name__ == "__main__":
    main()
