"""Faults by which workers come to train different models: each is found, and named on all ranks.  Any number of ranks."""

import warnings

import pytest
from mpi4py import MPI

import mpidec
from mpidec.exceptions import on_all_ranks

pytestmark = [pytest.mark.most(1), pytest.mark.mpi(min_size=2)]

torch = pytest.importorskip("torch")
nn, optim = torch.nn, mpidec.optim

torch.set_num_threads(1)
LAST = MPI.COMM_WORLD.size - 1


@pytest.fixture
def net():
    with mpidec.Network() as net:
        yield net


def network(norm=True, drop=0.1, act=nn.Tanh):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else act(), nn.Dropout(drop), nn.Linear(6, 2)
    )


def step(model, optimizer, x=None):
    optimizer.zero_grad()
    x = torch.randn(8, 4) + 1 if x is None else x
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def train(model, optimizer, steps):
    for _ in range(steps):
        step(model, optimizer)


def adam(model, **more):
    return torch.optim.AdamW(model.parameters(), 0.01, **more)


def rate(model, inner, optimizer):
    inner.param_groups[0]["lr"] = 0.02


def decay(model, inner, optimizer):
    inner.param_groups[0]["weight_decay"] = 0.5


def betas(model, inner, optimizer):
    inner.param_groups[0]["betas"] = (0.8, 0.999)


def plateau(model, inner, optimizer):
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        schedule.step(1.0)


def schedule(model, inner, optimizer):
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def frozen(model, inner, optimizer):
    model[3].bias.requires_grad_(False)


def evaluated(model, inner, optimizer):
    model[1].eval()


def dropout(model, inner, optimizer):
    model[2].p = 0.7


def replaced(model, inner, optimizer):
    model[3] = nn.Linear(6, 2)


EVERYWHERE = [
    (rate, r"lr of parameter group 0 is 0\.01 on ranks? 0.* and 0\.02 on rank {last}"),
    (decay, r"weight_decay of parameter group 0 is 0\.01 on .* and 0\.5 on rank {last}"),
    (betas, r"betas of parameter group 0 .* \(0\.8, 0\.999\) on rank {last}"),
    (plateau, r"lr of parameter group 0 .* the same loss"),
    (schedule, "initial_lr of parameter group 0 is missing on"),
    (frozen, r"requires_grad of parameter 3\.bias is True on .* and False on rank {last}"),
    (evaluated, "training of module 1 is True on .* and False on rank {last}: call train"),
    (dropout, r"module 2 is Dropout\(p=0\.1, .*Dropout\(p=0\.7"),
    (replaced, r"replaced parameters is empty on .* and 3\.weight, 3\.bias on rank {last}"),
]


def loaded(model, inner, optimizer):
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def initialized(model, inner, optimizer):
    nn.init.zeros_(model[3].weight)


def moments(model, inner, optimizer):
    for state in inner.state.values():
        state["exp_avg"].zero_()


def clipped(model, inner, optimizer):
    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 1e-4)

    inner.register_step_pre_hook(clip)


OF_ALLREDUCE = [
    (loaded, "parameter 3.bias of worker {last} differs"),
    (initialized, "parameter 3.weight of worker {last} differs"),
    (moments, "parameter 3.bias of worker {last} differs"),
    (clipped, "parameter 3.bias of worker {last} differs"),
]


@pytest.mark.parametrize(
    ("algorithm", "fault", "message"),
    [(name, *each) for each in EVERYWHERE for name in ("allreduce", "gradient_tracking")]
    + [("allreduce", *each) for each in OF_ALLREDUCE],
)
def test_what_differs_on_one_rank_is_named_on_all(net, algorithm, fault, message):
    model = network()
    inner = adam(model)
    optimizer = optim.Decentralized(inner, model, algorithm=algorithm, net=net)
    train(model, optimizer, 3)
    if net.rank == LAST:
        fault(model, inner, optimizer)
    usual = message.replace("worker {last}", f"worker {LAST}" if net.size > 2 else r"\d")
    with pytest.raises(ValueError, match=usual.replace("{last}", str(LAST))) as caught:
        train(model, optimizer, 14)
    assert on_all_ranks(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_ranks_are_not_refused(net, dtype):
    """Also while a schedule changes the rates, with own statistics, dropout and another worker's stacked beside."""
    model = network().to(dtype)
    optimizer = optim.Decentralized(adam(model), model, algorithm="allreduce", net=net)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for k in range(36):
            torch.manual_seed(10 * net.rank + k)
            step(model, optimizer, torch.randn(8, 4).to(dtype))
            schedule.step()
        with optimizer.consensus() as distance:
            assert distance <= (1e-6 if dtype == torch.float32 else 1e-1)
        optimizer.close()


def test_agents_of_one_rank_are_compared_too():
    with mpidec.Network(2 * MPI.COMM_WORLD.size) as net:
        model = mpidec.nn.Stacked(network(norm=False), 2)
        optimizer = optim.Decentralized(adam(model), model, algorithm="allreduce", net=net)
        if net.rank == LAST:
            with torch.no_grad():
                model.get_parameter("3.bias")[1] += 1
        with pytest.raises(ValueError, match=rf"bias of worker {net.n - 1} differs"):
            step(model, optimizer, torch.randn(2, 8, 4))


def test_ranks_of_different_numbers_of_agents_are_not_refused():
    with mpidec.Network(MPI.COMM_WORLD.size + 1) as net:
        model = network(norm=False)
        model = mpidec.nn.Stacked(model, net.m) if net.m > 1 else model
        x = torch.randn(*([net.m] if net.m > 1 else []), 8, 4)
        with optim.Decentralized(adam(model), model, algorithm="allreduce", net=net) as optimizer:
            step(model, optimizer, x)


def test_rounding_is_warned_of_once(net):
    model = network(norm=False)
    optimizer = optim.Decentralized(adam(model), model, algorithm="allreduce", net=net)
    if net.rank == LAST:
        with torch.no_grad():
            model[3].weight[0, 0] *= 1 + 1e-7
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer, 3)
    told = [each for each in caught if "as if rounded differently" in str(each.message)]
    assert len(told) == (net.rank == 0)
    optimizer.close()


def test_statistics_that_are_nan_do_not_spread(net):
    model = network()
    optimizer = optim.Decentralized(adam(model), model, net=net, buffers="average")
    step(model, optimizer)
    if net.rank == LAST:
        with torch.no_grad():
            model(torch.full((8, 4), float("nan")))
    with pytest.raises(ValueError, match=rf"worker {LAST}: buffer 1\.running_mean is nan"):
        step(model, optimizer)
    assert bool(model[1].running_mean.isfinite().all()) == (net.rank != LAST)


@pytest.mark.parametrize(
    "act",
    [
        lambda model, optimizer: train(model, optimizer, 2),
        lambda model, optimizer: optimizer.state_dict(),
        lambda model, optimizer: optimizer.consensus().__enter__(),
        lambda model, optimizer: optimizer.close(),
    ],
    ids=["step", "state_dict", "consensus", "close"],
)
def test_parameters_that_are_not_the_models_any_more(net, act):
    model = network()
    optimizer = optim.Decentralized(adam(model), model, net=net)
    train(model, optimizer, 3)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    with pytest.raises(RuntimeError, match=r"parameter 0\.weight is trained, but is not"):
        act(model, optimizer)


def test_what_differs_is_allowed_by_check(net):
    """Also an optimizer's own estimates, which are in its groups."""
    model = network()
    inner = torch.optim.SGD(model.parameters(), 0.01 * (1 + net.rank))
    with optim.Decentralized(inner, model, net=net, check=False) as optimizer:
        step(model, optimizer)
    inner = adam(model)
    with optim.Decentralized(inner, model, net=net, equal=False) as optimizer:
        inner.param_groups[0]["estimate"] = net.rank
        step(model, optimizer)
