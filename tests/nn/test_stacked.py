"""Stacked workers: as if each were alone."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")


from helpers.models import SMALL  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mpidec.nn import Stacked, models  # noqa: E402

pytestmark = pytest.mark.serial


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


@pytest.mark.parametrize(
    "call, said",
    [
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
