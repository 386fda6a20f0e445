"""Asynchronous runs whose ranks die: mpirun --with-ft ulfm -n N python tests/programs/agents_dropped.py SEED [CASE ...]

Each case takes one rank away.  The limits of the agents that are left are compared with dense equations: with the weighted mean of
what they had when they went on (push-sum), their mean (gossip), the minimizer of the sum of their functions (tracking).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import warnings
from functools import wraps

import numpy as np

import mpidec
from mpidec import solvers, topology
from mpidec.driver.asynchronous.dropping import Dropping
from mpidec.driver.asynchronous.pairing import PairwiseRunner
from mpidec.driver.asynchronous.pushing import PushRunner

D = 3
# Solver, problem, graph, steps.
CASES = {
    "push_sum": (solvers.AsyncPushSum(), False, "exponential", 3000),
    "held_back": (solvers.AsyncPushSum(), False, topology.complete, 3000),
    "push_gradients": (solvers.AsyncPushSum(0.01), True, "given", 6000),
    "tracking": (solvers.RunningSumTracking(0.02), True, "exponential", 6000),
    "gossip": (solvers.PairwiseGossip(), False, "given", 700),
    "a2cid2": (solvers.A2CiD2(0.01), True, "complete", 1000),
}


def data(agent):
    random = np.random.default_rng(agent)
    A = random.standard_normal((6, D))
    return A, A @ np.ones(D) + random.standard_normal(6)


def of_agents(agents):
    A, b = zip(*map(data, agents))
    return mpidec.problems.LeastSquares(np.array(A), np.array(b))


def minimizer(agents):
    """Of the sum of the functions of some agents."""
    A, b = map(np.concatenate, zip(*map(data, agents)))
    return np.linalg.lstsq(A, b, rcond=None)[0]


def dying(owner, name, count):
    """Let this rank die in the `count`-th call of a method."""
    former, calls = getattr(owner, name), [0]

    @wraps(former)
    def counted(*args, **kwargs):
        calls[0] += 1
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return former(*args, **kwargs)

    setattr(owner, name, counted)


def gone_on(noted):
    """Note what agents go on with."""
    former = Dropping.hand_over

    def noting(self, agents):
        former(self, agents)
        noted[:] = [
            (s.x.copy(), getattr(s, "u", s.x).copy(), getattr(s, "w", 1.0)) for s in agents.states
        ]
        if self.former is not None:
            before = [s.x / 1 for s in self.former.agents.states]
            np.testing.assert_allclose([x for x, _, _ in noted], before, rtol=1e-12)

    Dropping.hand_over = noting
    return lambda: setattr(Dropping, "hand_over", former)


def solved(comm, name, random, folder):
    """Solve until the others have come to the end; return the relative error of their limit."""
    solver, with_problem, graph, steps = CASES[name]
    size = comm.size
    dead, count = int(random.integers(size)), int(random.integers(20, 600))
    n = size + int(random.integers(3))
    given = topology.complete(n) if graph == "given" else graph
    runner = (
        PairwiseRunner
        if isinstance(solver, solvers.PairwiseGossip | solvers.A2CiD2)
        else PushRunner
    )
    net = mpidec.Network(n, comm)
    problem = of_agents(net.agents) if with_problem else None
    x0 = np.random.default_rng(5).standard_normal((n, D))
    if net.rank == dead:
        dying(runner, "_event", count)
    noted = []
    restore = gone_on(noted)
    path = os.path.join(folder, f"{name}.h5")
    more = {"delay": (0.0, 1e-4)} if name == "held_back" else {}
    result = mpidec.solve(
        problem, solver, given, net=net, steps=steps, x0=x0, on_failure="drop", record=path, **more
    )
    restore()
    with mpidec.Network() as left:
        comm = left.comm
        assert comm.size == size - 1, comm.size
        X = np.concatenate(comm.allgather(result.X))
        x, u, w = map(np.array, zip(*[one for some in comm.allgather(noted) for one in some]))
        agents = result.left.tolist()
        assert len(agents) == len(X) == len(x) < n
        np.testing.assert_allclose(w.sum(), len(agents), rtol=1e-12)
        if name in ("push_sum", "held_back", "push_gradients"):
            assert 0 < result.lost_mass < n, result.lost_mass
        else:
            assert result.lost_mass == n - len(agents), result.lost_mass
        run = mpidec.read(path)
        assert run.outcome == "completed" and run.attributes["lost"].count("rank") >= 1
        np.testing.assert_array_equal(run.x[agents], X)
        assert np.isnan(np.delete(run.x, agents, 0)).all()
        assert run.asynchronous["left"].tolist() == agents
        assert run.asynchronous["lost_mass"] == result.lost_mass
        counts = run.asynchronous["steps"]
        assert len(counts) == n and (name == "gossip" or counts[agents].min() > 0), counts
        assert run.metrics["step"][-1] >= steps and (np.diff(run.metrics["step"]) > 0).all()
        expected = minimizer(agents) if with_problem else u.sum(0) / w.sum()
        error = np.linalg.norm(X - expected) / np.linalg.norm(expected) / np.sqrt(len(X))
        tolerance = 0.3 if name in ("push_gradients", "a2cid2") else 1e-6
        told = f"{name}: rank {dead} died, {len(agents)} of {n} agents are left, lost {result.lost_mass:.3f}, error {error:.1e}"
        if left.rank == 0:
            print(told, flush=True)
        assert error < tolerance, (name, error)
        comm = comm.Dup()
    if name == "tracking":  # resumed with all agents
        with mpidec.Network(n, comm) as net:
            steps = mpidec.record.last_checkpoint(path)[0] + 20
            record = mpidec.Record(path, resume=True)
            problem = of_agents(net.agents)
            options = {"net": net, "steps": steps, "x0": x0, "record": record}
            resumed = mpidec.solve(problem, solver, given, **options)
            assert resumed.left is None and resumed.outcome == "completed"
            again = mpidec.read(path)
            assert again.attributes["lost"] == run.attributes["lost"]
            assert "left" not in again.asynchronous and np.isfinite(again.x).all()
    return comm


def main() -> None:
    seed, *names = sys.argv[1:]
    random = np.random.default_rng(int(seed))
    warnings.simplefilter("ignore", RuntimeWarning)
    with mpidec.Network() as net:
        folder = net.comm.bcast(tempfile.mkdtemp())
        comm = net.comm.Dup()
    for name in names or random.permutation([*CASES])[: comm.size - 1]:
        comm = solved(comm, name, random, folder)


if __name__ == "__main__":
    main()
