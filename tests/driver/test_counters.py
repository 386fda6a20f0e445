"""Counters are sums of what was evaluated and sent: also over a resume, and on other ranks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.driver import decisions
from mpidec.driver.asynchronous.events import NOMINAL, Events
from mpidec.driver.asynchronous.files import AsyncFile

pytestmark = pytest.mark.serial
N = 4
RNG = np.random.default_rng(4)
A, B = RNG.normal(size=(N, 9, 3)), RNG.normal(size=(N, 9))
COUNTERS = ("rounds", "rows", "bytes", "gradients", "prox")


class Counted(P.LeastSquares):
    """Least squares that counts what is evaluated of it."""

    calls: Counter[str]

    def grad(self, X, agents=None):
        self.calls["gradients"] += 1
        return super().grad(X) if agents is None else super().grad(X, agents)

    def prox(self, V, t, start=None):
        self.calls["prox"] += 1
        return super().prox(V, t, start)


def counted() -> Counted:
    problem = Counted(A, B)
    problem.calls = Counter()
    return problem


def go(problem, solver, steps, record=None, every=1, **options):
    return mpidec.solve(problem, solver, "ring", steps=steps, record=record, every=every, **options)


SOLVERS = {
    "extra": S.EXTRA(0.02),
    "gradient tracking": S.GradientTracking(0.02),
    "admm": S.ADMM(1.0),
    "local steps": S.Diffusion(0.02),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_counters_are_what_was_called_and_sums_over_a_resume(tmp_path, name):
    solver, path = SOLVERS[name], tmp_path / "run.h5"
    whole = go(counted(), solver, 12)
    calls = []
    for steps in (6, 12):  # no records in between, which evaluate gradients themselves
        problem = counted()
        go(problem, solver, steps, every=1000)
        calls.append(problem.calls)
    for kind in ("gradients", "prox"):
        counts = whole.metrics[kind]
        assert counts[12] - counts[6] == calls[1][kind] - calls[0][kind]
    assert max(whole.metrics["gradients"][-1], whole.metrics["prox"][-1]) >= 12
    go(counted(), solver, 6, path)
    resumed = go(counted(), solver, 12, mpidec.Record(path, resume=True))
    for counter in COUNTERS:
        assert resumed.metrics[counter][-1] == whole.metrics[counter][-1], counter
        found = mpidec.read(path).metrics[counter]
        np.testing.assert_array_equal(found, whole.metrics[counter], counter)


def test_checkpoints_are_a_period_apart(monkeypatch):
    """Decisions come more often; each period has one checkpoint, not only the first."""
    now = [0.0]
    monkeypatch.setattr(decisions, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with mpidec.Network(N) as net:
        control, taken = decisions.Control(net, 10.0), []
        for k in range(1, 51):
            now[0] += 1.0
            if control.decide(k, False, None).checkpoint:
                taken.append(k)
    assert taken == [10, 20, 30, 40, 50]


def test_pauses_of_stragglers_are_in_units_of_an_event():
    """An agent that sleeps as long as nine events take has a tenth of the rate."""
    for pauses, rates in (({1: 9 * NOMINAL}, [1, 0.1, 1, 1]), ({}, [1, 1, 1, 1])):
        events = Events.of_ranks(S.A2CiD2(0.01), T.ring(N), pauses, None, None, 0.0, 0)
        assert events.unit == pytest.approx(1 / np.mean(rates), rel=1e-12)


def test_the_clocks_of_a_resumed_run_begin_anew(tmp_path, monkeypatch):
    """The time since an agent's last event is not that of the part before."""
    path, begun, real = tmp_path / "run.h5", [], AsyncFile.begin

    def begin(self, *given):
        found = real(self, *given)
        begun.append([s.t for s in self._agents.states])
        return found

    monkeypatch.setattr(AsyncFile, "begin", begin)
    solver = S.A2CiD2(0.02)
    go(counted(), solver, 30, path)
    assert min(mpidec.record.last_checkpoint(path)[1]["t"]) > 0
    resumed = go(counted(), solver, 60, mpidec.Record(path, resume=True))
    assert begun == [[0.0] * N] * 2 and resumed.steps >= 60
