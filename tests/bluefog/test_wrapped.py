"""BlueFog's optimizers in programs that know those of torch: classes, schedules, checkpoints, scaled gradients, groups."""

import copy
import pickle

import networkx as nx
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpidec.bluefog import torch as bf  # noqa: E402

pytestmark = pytest.mark.most(2)
KINDS = {
    "atc": bf.DistributedAdaptThenCombineOptimizer,
    "awc": bf.DistributedAdaptWithCombineOptimizer,
    "gradient": bf.DistributedGradientAllreduceOptimizer,
    "put": bf.DistributedWinPutOptimizer,
    "get": bf.DistributedPullGetOptimizer,
}


@pytest.fixture
def size():
    bf.init()
    yield bf.size()
    bf.shutdown()


def ring(n):
    """Set a directed ring, and return its matrix: row i has what rank i takes."""
    W = 0.75 * np.eye(n) + 0.25 * np.roll(np.eye(n), 1, 0)
    bf.set_topology(nx.from_numpy_array(W.T, create_using=nx.DiGraph), is_weighted=True)
    return W


def model_of(x):
    model = torch.nn.Linear(1, len(x), bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(x)[:, None])
    return model


def loss_of(model):
    """|x - r|^2 / 2 for the parameters x of rank r."""
    return (model(torch.ones(1, 1, dtype=torch.float64))[0] - bf.rank()).square().sum() / 2


def step(optimizer, model):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


@pytest.mark.serial
@pytest.mark.parametrize("kind", KINDS)
def test_class(size, kind):
    model = model_of([1.0, 2.0])
    optimizer = KINDS[kind](torch.optim.AdamW(model.parameters(), lr=0.5), model)
    assert isinstance(optimizer, torch.optim.AdamW) and isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.__class__.__name__ == "AdamW" and not isinstance(optimizer, torch.optim.SGD)
    assert kind in ("put", "get") or "AdamW" in repr(optimizer)
    for again in (KINDS[kind], bf.DistributedPushSumOptimizer):
        with pytest.raises(TypeError, match="wrapped"):
            again(optimizer, model)
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        copy.deepcopy(optimizer)


@pytest.mark.parametrize("kind", ["atc", "awc", "gradient"])
def test_schedules_and_checkpoints(size, kind):
    """Schedules from before and after the wrapping, states to and from plain optimizers; the same numbers afterwards."""
    model = model_of([1.0, 2.0 + bf.rank()])
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    before = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = KINDS[kind](plain, model)
    after = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.25, 20)
    first = optimizer.param_groups[0]["lr"]
    step(optimizer, model)
    before.step()
    assert plain.param_groups[0]["lr"] == first / 2
    after.step()
    state = pickle.loads(pickle.dumps(copy.deepcopy(optimizer.state_dict())))
    assert set(state) == {"state", "param_groups"} and state["state"][0]["momentum_buffer"].any()
    other = model_of(model.weight.detach().numpy()[:, 0])
    base = torch.optim.SGD(other.parameters(), lr=9.0, momentum=0.1)
    base.load_state_dict(state)
    wrapped = KINDS[kind](base, other)
    step(optimizer, model)
    step(wrapped, other)
    assert torch.equal(model.weight, other.weight)
    wrapped.load_state_dict(state)
    assert (
        wrapped.param_groups[0]["lr"]
        == base.param_groups[0]["lr"]
        == optimizer.param_groups[0]["lr"]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_one_rank_that_are_infinite(size, kind):
    """A GradScaler leaves out that rank's update, not the communication; with averaged gradients the update of all."""
    W, r = ring(size), bf.rank()
    X = np.random.default_rng(size).standard_normal((size, 3))
    if kind == "gradient":
        X = X[[0] * size]
    model = model_of(X[r])
    optimizer = KINDS[kind](torch.optim.SGD(model.parameters(), lr=0.1), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for k in range(4):
        bad = k == 1  # on rank 0
        optimizer.zero_grad(set_to_none=k != 2)
        loss = loss_of(model) * (np.inf if bad and r == 0 else 1)
        scaler.scale(loss).backward()
        if k == 3:  # as before gradients are clipped
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        U = -0.1 * (X - np.arange(size)[:, None])
        if bad:
            U[0] = 0
        if kind == "gradient":
            X = X if bad else X + U.mean(0)
        else:
            X = W @ (X + U) if kind == "atc" else W @ X + U
    x = model.weight.detach().numpy()[:, 0]
    assert np.isfinite(x).all() and scaler.get_scale() == (4.0 if r == 0 else 8.0)
    if kind not in ("put", "get"):
        np.testing.assert_allclose(x, X[r], rtol=1e-12)
    bf.barrier()


@pytest.mark.parametrize("kind", ["atc", "put"])
def test_groups_that_are_added(size, kind):
    """They are averaged from then on; parameters that are not of the model are refused."""
    W, r = ring(size), bf.rank()
    model = torch.nn.ParameterList([torch.full((2,), float(r)), torch.full((3,), r + 10.0)])
    optimizer = KINDS[kind](torch.optim.SGD([model[0]], lr=0.0), model)

    def step():
        for p in model:
            p.grad = torch.zeros_like(p)
        optimizer.step()

    step()
    assert torch.equal(model[1], torch.full((3,), r + 10.0))
    with pytest.raises(ValueError, match="no module"):
        optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)]})
    optimizer.add_param_group({"params": [model[1]], "lr": 0.5})
    assert len(optimizer.param_groups) == 2
    if kind == "put":
        optimizer.force_barrier = True
    step()
    expected = W[r] @ (np.arange(size) + 10.0)
    np.testing.assert_allclose(model[1].detach(), [expected] * 3, rtol=1e-6)
    bf.barrier()


@pytest.mark.serial
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("kind", ["atc", "awc", "put", "get"])
def test_communications_are_as_rare_as_asked_for(size, kind, accumulate, monkeypatch):
    """One in three passes, with a step for each of them or for all three."""
    model, losses, begun = model_of([1.0, 2.0]), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = KINDS[kind](optimizer, model, num_steps_per_communication=3)
    begin = optimizer._begin
    monkeypatch.setattr(optimizer, "_begin", lambda: (begun.append(len(losses) // 3), begin()))
    for passes in range(1, 10):
        losses.append(loss_of(model))
        losses[-1].backward()
        if not accumulate or passes % 3 == 0:
            optimizer.step()
    assert begun == ([1, 2, 3] if kind == "atc" else [0, 1, 2])  # before this pass is counted


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["atc", "awc"])
def test_compiled_models(size, kind):
    """Their passes count as those of the model."""
    ring(size)
    found = []
    for compiled in (False, True):
        model = model_of([1.0, 2.0 + bf.rank()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = KINDS[kind](optimizer, model, num_steps_per_communication=2)
        used = torch.compile(model, backend="eager") if compiled else model
        for _ in range(3):
            step(optimizer, used)
        found.append(model.weight.detach().clone())
    assert torch.equal(*found)
