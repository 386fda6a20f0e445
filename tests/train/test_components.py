"""Criteria, optimizers, schedules, metrics, targets and loggers of a training: of torch, and of one's own."""

from __future__ import annotations

import csv

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidec  # noqa: E402
from mpidec.train import Settings, fit  # noqa: E402
from mpidec.train.command import main  # noqa: E402
from mpidec.train.components import CRITERIA, LossFunction  # noqa: E402

pytestmark = pytest.mark.most(1)

OWN = """
import numpy as np, torch
def samples(N=240):
    x = np.random.default_rng(0).normal(size=(N, 5))
    return {"x_train": x, "y_train": x @ np.arange(5.0)}
def flags():
    given = samples()
    return {**given, "y_train": given["x_train"][:, :3] > 0}
def squares(outputs, targets, scale=1.0): return scale * (outputs - targets).square().mean()
def no_loss(outputs, targets): return torch.ones(())
def r2(outputs, targets):
    assert outputs.shape == targets.shape
    return 1 - (outputs - targets).square().sum() / (targets - targets.mean()).square().sum()
def raises(outputs, targets): return 1 / 0
class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, beta=0.9): super().__init__(params, {"lr": lr, "beta": beta})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(group["beta"]).add_(p.grad)
                p.sub_(m, alpha=group["lr"])
class Normalized(Momentum):
    def step(self, closure=None):
        norm = sum(p.grad.square().sum() for p in self.param_groups[0]["params"]).sqrt()
        [p.grad.div_(norm) for p in self.param_groups[0]["params"]]
        super().step()
def triangle(epoch, epochs): return 1 - abs(2 * epoch / epochs - 1)
def negative(epoch, epochs): return -1
seen = []
def show(step, numbers): seen.append((step, numbers))
def fails(step, numbers): raise OSError("no space")
"""


@pytest.fixture(autouse=True)
def own(comm, shared_tmp, monkeypatch):
    """The working folder of all ranks, with own.py."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if comm.rank == 0:
        (shared_tmp / "own.py").write_text(OWN)
    comm.Barrier()
    monkeypatch.chdir(shared_tmp)
    return shared_tmp


@pytest.fixture
def net(comm):
    with mpidec.Network(3, comm) as net:
        yield net


def rows(trained):
    return torch.cat([p.detach().flatten() for m in trained.models for p in m.parameters()])


REGRESSION = Settings(
    data="own.py:samples",
    criterion="own.py:squares",
    criterion_options={"scale": 0.5},
    optimizer="own.py:Momentum",
    optimizer_options={"beta": 0.5},
    lr=0.1,
    schedule="own.py:triangle",
    metrics="r2=own.py:r2",
    model_options={"hidden": [8]},
    batch=8,
    accumulate=2,
    epochs=4,
    every=2,
    log="csv",
)


class Killed(Exception):
    pass


def test_all_of_ones_own_continues_with_the_same_bits_between_two_evaluations(own, net):
    whole = fit(REGRESSION, net=net, out=str(own / "whole.h5"))
    assert whole.metrics["r2_mean"][-1] > 0.8 and "accuracy_mean" not in whole.metrics
    assert whole.workers["r2"].shape == (3, 3)

    def kill(step, steps, metrics):
        assert step < 7 or metrics["train_loss"] > 0
        if step == 7:
            raise Killed

    part = {"out": str(own / "part.h5"), "checkpoint_minutes": 1e-9}
    with pytest.raises(Killed):
        fit(REGRESSION, net=net, progress=kill, **part)
    again = fit(REGRESSION, net=net, resume=True, **part)
    assert torch.equal(rows(whole), rows(again))
    for name in ("step", "r2_mean", "loss_consensus", "train_loss", "lr"):
        assert np.array_equal(whole.metrics[name], again.metrics[name], equal_nan=True), name
    if net.rank == 0:
        lines = [*csv.DictReader(open("part-log.csv"))]
        assert [float(line["r2_mean"]) for line in lines] == again.metrics["r2_mean"].tolist()
    with pytest.raises(ValueError, match=r"optimizer.schedule was own.py:triangle, is now cosine"):
        fit(REGRESSION, net=net, resume=True, schedule="cosine", **part)


def test_two_batches_are_one_of_twice_the_size(net):
    """Also in the rate, and in the mean loss since the last record."""
    halves = fit(REGRESSION, net=net, log=None)
    whole = fit(REGRESSION, net=net, log=None, batch=16, accumulate=1)
    torch.testing.assert_close(rows(halves), rows(whole))
    for name in ("train_loss", "lr", "epoch"):
        np.testing.assert_allclose(halves.metrics[name], whole.metrics[name], rtol=1e-5)


@pytest.mark.serial
@pytest.mark.filterwarnings("ignore:reduction")  # of kl_div
@pytest.mark.parametrize("name", [*CRITERIA.own])
def test_criteria_are_those_of_torch_for_each_worker(name):
    z = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    y = (z > 0.5).float()
    criterion = LossFunction(name, {})
    if criterion.targets == "classes":
        y = y.argmax(-1)
    expected = [CRITERIA.own[name]()(a, b) for a, b in zip(z, y)]
    torch.testing.assert_close(criterion(z, y), torch.stack(expected))


@pytest.mark.serial
def test_several_labels(tmp_path):
    trained = fit(
        workers=2,
        data="own.py:flags",
        criterion="BCEWithLogitsLoss",
        optimizer="adamw",
        lr=0.03,
        epochs=5,
        every=5,
    )
    assert trained.settings.alpha == "iid" and trained.loss[-1].max() < 0.3


WRONG = [
    ("--criterion mse", "--criterion: unknown criterion 'mse': did you mean mse_loss"),
    ("--criterion own.py:no_loss", "criterion own.py:no_loss: its loss does not depend on the"),
    ("--criterion own.py:samples", "own.py:samples cannot be used as a criterion: it is samples("),
    ("--criterion mse_loss --set criterion.delta=1", "mse_loss has no option delta: expected no"),
    ("--criterion mse_loss --alpha 0.1", "the targets are not classes: use --alpha iid"),
    ("--criterion cross_entropy", "real targets need another criterion, such as --criterion mse"),
    ("--criterion mse_loss --optimizer adafactor", "start one rank for each worker (mpirun)"),
    ("--criterion mse_loss --optimizer own.py:Normalized", "start one rank for each worker"),
    ("--criterion mse_loss --optimizer own.py:Momentum --momentum 0.9", "--momentum 0.9: own.py:"),
    ("--criterion mse_loss --metric r2", "--metric r2: expected NAME=FILE.py:F, got 'r2'"),
    ("--criterion mse_loss --metric loss=own.py:r2", "loss is not available as a name"),
    ("--criterion mse_loss --metric x=own.py:raises", "metric x: line 14: ZeroDivisionError"),
    ("--criterion mse_loss --schedule own.py:negative", "returns -1, expected a number >= 0"),
    ("--criterion mse_loss --accumulate 99", "--accumulate 99: an epoch of a worker has"),
    ("--criterion mse_loss --log own.py:fails", "log own.py:fails: line 33: OSError: no space"),
    ("--criterion mse_loss --size 8", "--size 8 is for folders of images, which own.py:samples"),
]


@pytest.mark.serial
@pytest.mark.parametrize("argv, said", WRONG)
def test_refused_in_words_of_the_command_line(argv, said, own, capfd):
    given = "--data own.py:samples --workers 2 --epochs 1 --batch 8 --quiet".split()
    assert main([*given, *argv.split()]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("mpidec.train: error: ") and said in line, line


@pytest.mark.serial
def test_a_table_that_cannot_be_written_ends_the_training(own, capfd):
    (own / "part-log.csv.new").mkdir()
    given = "--data own.py:samples --criterion mse_loss --workers 2 --batch 8 --log csv --quiet"
    assert main([*given.split(), "--out", "part.h5", "--force"]) != 0
    assert "cannot write part-log.csv: Is a directory" in capfd.readouterr().err


@pytest.mark.serial
def test_the_momentum_of_an_algorithm_is_named_by_its_flag(capfd):
    given = "--workers 2 --epochs 1 --batch 256 --algorithm qg --momentum 0.9 --quiet"
    assert main(given.split()) == 0
    assert capfd.readouterr().err.endswith("too: give the optimizer --momentum 0\n")
