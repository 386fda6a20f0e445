"""Models, stacked workers, schedules of the learning rate."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mpidec.nn import Stacked, models, sampler, schedules  # noqa: E402

pytestmark = pytest.mark.serial
SMALL = {
    "mlp": {"hidden": [16]},
    "cnn": {"channels": [4, 8], "hidden": 8},
    "vgg11": {},
    "resnet18": {"width": 4},
    "transformer": {"dim": 16, "patch": 4},
}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Tied(nn.Module):
    """Tied weights, a frozen layer, batch norm, and a head that is not used."""

    def __init__(self):
        super().__init__()
        self.encoder, self.norm, self.decoder = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.decoder.weight = self.encoder.weight
        self.frozen, self.head, self.out = (
            nn.Linear(6, 6).requires_grad_(False),
            nn.Linear(6, 2),
            nn.Linear(6, 10),
        )

    def forward(self, x):
        return self.out(self.decoder(self.frozen(torch.relu(self.norm(self.encoder(x))))))


def batches(m, B, *shape):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(m, B, *shape, generator=generator), torch.randint(
        0, 10, (m, B), generator=generator
    )


def train(model, x, y, loss, steps=4):
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9
    )
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


def of_all(outputs, y):
    """The sum of the workers' mean losses."""
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten()) * len(y)


# ---------------------------------------------------------------------------------------------------------------------
# Models


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_models_train_on_images_of_any_size(name, shape):
    model = models.make(name, shape, 10, **SMALL[name])
    outputs = model(torch.zeros(2, *shape))
    outputs.sum().backward()
    assert outputs.shape == (2, 10) and all(p.grad is not None for p in model.parameters())


def test_the_start_of_a_model_is_its_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = models.make("mlp", (1, 8, 8), 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    b, c = models.make("mlp", (1, 8, 8), 10, seed=1), models.make("mlp", (1, 8, 8), 10, seed=2)
    assert torch.equal(a[1].weight, b[1].weight) and not torch.equal(a[1].weight, c[1].weight)


def test_sizes_are_those_of_the_papers():
    """VGG-11 of RelaySGD's code, ResNet-18 for CIFAR-10."""
    size = [
        sum(p.numel() for p in models.make(name, (3, 32, 32), 10).parameters())
        for name in ("vgg11", "resnet18")
    ]
    assert size == [9750922, 11173962]


def test_patches_are_the_pixels_of_squares():
    x = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    patches = models.Tokens(2, 3)(x)
    assert torch.equal(patches[1, 1], x[1, :, 0:2, 3:6].flatten()) and torch.equal(
        patches[0, 2], x[0, :, 2:4, 0:3].flatten()
    )


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: models.make("mpl", (1, 8, 8), 10),
            "unknown model 'mpl': did you mean mlp.* expected one of mlp, cnn",
        ),
        (
            lambda: models.make("mlp", (1, 8, 8), 10, depth=3),
            "model mlp has no option depth, expected hidden",
        ),
        (
            lambda: models.make("mlp", (1, 8, 8), 10, hidden=[True]),
            r"model mlp: hidden is \[True\], expected a list of integers > 0",
        ),
        (
            lambda: models.make("transformer", (1, 8, 8), 10, dropout=1),
            "model transformer: dropout is 1, expected a number in",
        ),
        (
            lambda: models.make("resnet18", (1, 8, 8), 10, width=None),
            "model resnet18: width is None, expected an integer > 0",
        ),
        (
            lambda: models.make("transformer", (1, 8, 8), 10, patch=3),
            "patch = 3, expected a divisor",
        ),
        (
            lambda: models.make("transformer", (1, 8, 8), 10, dim=10),
            "dim = 10, expected a multiple of heads = 4",
        ),
        (lambda: Stacked(nn.Linear(1, 1), 0), "m = 0, expected at least 1 worker"),
        (
            lambda: Stacked(nn.Linear(1, 1), 2)(torch.zeros(3, 1, 1)),
            r"shape \(3, 1, 1\), expected \(2, B, ...\)",
        ),
        (lambda: Stacked(nn.Linear(1, 1), 2).worker(2), r"worker 2, expected 0 \.\. 1"),
    ],
)
def test_wrong_use(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# ---------------------------------------------------------------------------------------------------------------------
# Stacked workers


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "transformer", "tied"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_stacked_workers_train_as_if_each_were_alone(name, loop):
    """Parameters and running statistics, also in double precision, where equations that differ would show."""
    model = (Tied() if name == "tied" else models.make(name, (1, 8, 8), 10, **SMALL[name])).double()
    x, y = batches(3, 4, *((6,) if name == "tied" else (1, 8, 8)))
    x = x.double()
    stacked = train(Stacked(model, 3, loop=loop), x, y, of_all)
    for i in range(3):
        alone, mine = train(copy.deepcopy(model), x[i], y[i], F.cross_entropy), stacked.worker(i)
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(stacked.eval()(x)[i], alone.eval()(x[i]), rtol=1e-9, atol=1e-11)


def test_names_are_those_of_the_model():
    model = Tied()
    stacked = Stacked(model, 2)
    assert [name for name, _ in stacked.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert list(stacked.state_dict()) == list(model.state_dict())
    assert [p.shape for p in stacked.parameters()] == [(2, *p.shape) for p in model.parameters()]
    assert [p.requires_grad for p in stacked.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]
    assert stacked.decoder.weight is stacked.encoder.weight
    other = Stacked(Tied(), 2)
    other.load_state_dict(stacked.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(other.parameters(), stacked.parameters()))


@pytest.mark.parametrize("loop", [False, True])
def test_parameters_may_be_views_of_rows(loop):
    model = models.make("cnn", (1, 8, 8), 10, **SMALL["cnn"])
    x, y = batches(3, 4, 1, 8, 8)
    plain, viewed = Stacked(model, 3, loop=loop), Stacked(model, 3, loop=loop)
    X, a = torch.empty(3, sum(p[0].numel() for p in viewed.parameters())), 0
    for p in viewed.parameters():
        view = X[:, a : a + p[0].numel()].view(p.shape)
        view.copy_(p.data)
        p.data, a = view, a + p[0].numel()
    train(plain, x, y, of_all)
    train(viewed, x, y, of_all)
    torch.testing.assert_close(
        X,
        torch.cat([p.detach().flatten(1) for p in plain.parameters()], dim=1),
        rtol=1e-5,
        atol=1e-7,
    )


def test_one_worker_is_the_plain_model():
    model = models.make("cnn", (1, 8, 8), 10)
    x, y = batches(1, 8, 1, 8, 8)
    stacked, alone = (
        train(Stacked(model, 1), x, y, of_all),
        train(copy.deepcopy(model), x[0], y[0], F.cross_entropy),
    )
    assert all(torch.equal(p[0], q) for p, q in zip(stacked.parameters(), alone.parameters()))


@pytest.mark.parametrize("loop", [False, True])
def test_dropout_draws_for_each_worker_in_training_only(loop):
    stacked = Stacked(nn.Sequential(nn.Dropout(0.5)), 2, loop=loop)
    x = torch.ones(2, 1, 100)
    y = stacked(x)
    assert not torch.equal(y[0], y[1])
    assert torch.equal(stacked.eval()(x), x)


def test_a_copy_is_independent():
    stacked = Stacked(nn.Linear(2, 1), 2)
    copied = copy.deepcopy(stacked)
    with torch.no_grad():
        copied.weight += 1
    assert not torch.equal(copied.worker(1).weight, stacked.worker(1).weight)
    assert torch.equal(copied(torch.ones(2, 1, 2))[1], copied.worker(1)(torch.ones(1, 2)))


# ---------------------------------------------------------------------------------------------------------------------
# Schedules


def test_schedule_of_relaysgd():
    epochs = [0.0, 0.5, 4.5, 5.0, 149.5, 150.0, 179.5, 180.0, 199.5]
    assert [schedules.relaysgd(e) for e in epochs] == pytest.approx(
        [0, 0.1, 0.9, 1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    assert schedules.relaysgd(0.0, warmup=0, milestones=()) == 1


def test_schedule_of_goyal():
    """Factors of A2CiD2's code for n workers, batches of 128 and 390 batches an epoch, from the number of a worker's own steps."""

    def factor(n, step, epochs, milestones, total):
        per_epoch = total // epochs
        return schedules.goyal(step * n / per_epoch, total / per_epoch, 128 * n / 256, milestones)

    cifar10, imagenet = (300, (0.5, 0.75)), (90, (0.3, 0.6, 0.8))
    found = [
        factor(4, 73, *cifar10, 117000),
        factor(4, 292, *cifar10, 117000),
        factor(4, 29200, *cifar10, 117000),
        factor(16, 18, *cifar10, 116992),
        factor(16, 7308, *cifar10, 116992),
        factor(64, 4, *imagenet, 35072),
        factor(64, 552, *imagenet, 35072),
    ]
    assert found == pytest.approx(
        [1.14974359, 1.59897436, 0.02, 2.03650386, 0.08, 5.08020566, 0.032], rel=1e-8
    )


# ---------------------------------------------------------------------------------------------------------------------
# Sampling


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("samples", "n"), [(12, 3), (13, 3), (7, 6), (2, 5)])
def test_samplers_divide_the_data(samples, n, drop_last):
    """As torch does among the ranks, in the order of the seed and the epoch; the workers of a rank take turns."""
    data, options = list(range(samples)), {"seed": 3, "drop_last": drop_last}
    if drop_last and samples < n:
        with pytest.raises(
            ValueError, match=f"{samples} samples for {n} workers, expected at least one for each"
        ):
            sampler(data, SimpleNamespace(n=n, lo=0, hi=1), **options)
        return
    nets = [SimpleNamespace(n=n, lo=worker, hi=worker + 1) for worker in range(n)]
    drawn = []
    for epoch in range(2):
        parts = []
        for worker, net in enumerate(nets):
            mine, theirs = (
                sampler(data, net, **options),
                torch.utils.data.DistributedSampler(data, n, worker, **options),
            )
            for each in mine, theirs:
                each.set_epoch(epoch)
            parts.append(list(mine))
            assert parts[-1] == list(theirs) and len(mine) == len(theirs)
        drawn.append([i for part in parts for i in part])
        assert len(set(drawn[-1])) == (samples // n * n if drop_last else samples)
        both = sampler(data, SimpleNamespace(n=n, lo=1, hi=3), **options)
        both.set_epoch(epoch)
        (batch,) = torch.utils.data.DataLoader(data, len(both), sampler=both)
        assert batch.unflatten(0, (-1, 2)).transpose(0, 1).tolist() == parts[1:3]
    assert samples == 2 or drawn[0] != drawn[1]


def test_a_sampler_needs_a_length():
    with pytest.raises(TypeError, match="the data set, a generator, has no length"):
        sampler((i for i in range(3)), SimpleNamespace(n=1, lo=0, hi=1))
