"""Lightning's strategy: the bits of a plain loop, samples, metrics, loggers, checkpoints, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import launch
from helpers.trainers import CUT, DATA, bits, cut, model, plain_loop

import mpidec

L = pytest.importorskip("lightning")
torch = pytest.importorskip("torch")
metrics = pytest.importorskip("torchmetrics")
from torch.utils.data import DataLoader  # noqa: E402

from mpidec.integrations.lightning import DecentralizedStrategy  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Module(L.LightningModule):
    """A network with dropout-free layers, which notes what it sees."""

    def __init__(self):
        super().__init__()
        self.net, self.seen, self.losses = model(), [], []
        self.accuracy = metrics.Accuracy(task="multiclass", num_classes=2)

    def training_step(self, batch, _):
        self.seen += batch[2].tolist()
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("loss", loss, sync_dist=True, on_step=True)
        return loss

    def validation_step(self, batch, _):
        out = self.net(batch[0])
        self.accuracy(out, batch[1])
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.log("own", self.net[0].weight[0, 0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def fit(net, epochs, folder, algorithm="atc", path=None, evaluate="average", **more):
    """Train with another seed on each rank; the module and the trainer."""
    L.seed_everything(net.rank, verbose=False)
    strategy = DecentralizedStrategy(None, algorithm, net, evaluate=evaluate)
    save = L.pytorch.callbacks.ModelCheckpoint(folder, save_last=True)
    trainer = L.Trainer(
        max_epochs=epochs,
        strategy=strategy,
        callbacks=[save],
        default_root_dir=folder,
        accelerator="cpu",
        gradient_clip_val=CUT,
        accumulate_grad_batches=2,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )
    module = Module()
    loaders = DataLoader(DATA, 4, shuffle=True), DataLoader(DATA, 8)
    trainer.fit(module, *loaders, ckpt_path=path)
    return module, trainer


@pytest.fixture
def net(comm):
    with mpidec.Network(comm=comm) as net:
        yield net


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce"])
def test_it_has_the_bits_of_a_loop(net, shared_tmp, algorithm):
    """Clipping and accumulation included; with allreduce the average gradient is clipped."""
    module, trainer = fit(net, 3, shared_tmp, algorithm)
    L.seed_everything(0, verbose=False)
    own = model()
    plain_loop(net, own, algorithm, epochs=3)
    assert bits(module.net) == bits(own)
    assert (trainer.global_rank, trainer.world_size) == (net.rank, net.size)


def test_each_rank_sees_its_own_samples_and_one_rank_reports(net, shared_tmp):
    module, trainer = fit(net, 2, shared_tmp)
    each = -(-len(DATA) // net.size)
    for first in (0, each):
        seen = net.comm.allgather(module.seen[first : first + each])
        assert [len(part) for part in seen] == [each] * net.size
        assert set().union(*seen) == set(range(len(DATA)))
    assert module.seen[:each] != module.seen[each:]
    logged = trainer.callback_metrics["loss"].item()
    last = net.comm.allgather(module.losses[-1])
    assert logged == pytest.approx(sum(last) / net.size, rel=1e-6)
    assert len([*Path(shared_tmp).glob("lightning_logs/*/metrics.csv")]) == 1


@pytest.mark.parametrize("evaluate", ["average", "own"])
def test_what_is_evaluated(net, shared_tmp, evaluate):
    module, trainer = fit(net, 2, shared_tmp, evaluate=evaluate)
    weights = net.comm.allgather(module.net[0].weight[0, 0].item())
    shown = sum(weights) / net.size if evaluate == "average" else weights[net.rank]
    assert trainer.callback_metrics["own"].item() == pytest.approx(shown, abs=1e-7)
    with trainer.strategy.consensus():  # of torchmetrics: over the samples of all ranks
        each = [module.net(DATA.tensors[0])] if evaluate == "average" else []
    if each and len(DATA) % net.size == 0:
        right = (each[0].argmax(1) == DATA.tensors[1]).float().mean().item()
        assert trainer.callback_metrics["accuracy"].item() == pytest.approx(right, abs=1e-6)
    assert net.comm.allgather(module.net[0].weight[0, 0].item()) == weights
    path = trainer.checkpoint_callback.best_model_path
    average = Module.load_from_checkpoint(path).net[0].weight[0, 0].item()
    assert average == pytest.approx(sum(weights) / net.size, abs=1e-7)


@pytest.mark.parametrize("algorithm", ["atc", "relay", "awc"])
def test_a_resumed_training_has_the_same_bits(net, shared_tmp, algorithm):
    whole, _ = fit(net, 4, shared_tmp / "whole", algorithm)
    fit(net, 2, shared_tmp / "cut", algorithm)
    again, trainer = fit(net, 4, shared_tmp / "cut", algorithm, path="last")
    assert trainer.current_epoch == 4 and len(again.seen) == len(whole.seen) // 2
    assert bits(again) == bits(whole)
    net.comm.Barrier()
    states = sorted(file.name for file in (shared_tmp / "cut" / "last.ckpt.workers").glob("*/*"))
    assert states == [f"{rank}.ckpt" for rank in range(net.size)]


def test_refusals(net, shared_tmp):
    fit(net, 1, shared_tmp)
    net.comm.Barrier()
    path = str(shared_tmp / "last.ckpt")
    if net.rank == 0:
        saved = torch.load(path, weights_only=False)
        torch.save({**saved, "mpidec": {**saved["mpidec"], "workers": 16}}, path)
    net.comm.Barrier()
    for words, call in [
        ("states of 16 workers, expected", lambda: fit(net, 2, shared_tmp, path=path)),
        ("expected False", lambda: fit(net, 1, shared_tmp, sync_batchnorm=True)),
        ("evaluate is 'both'", lambda: fit(net, 1, shared_tmp, evaluate="both")),
        ("algorithm is 'act'", lambda: fit(net, 1, shared_tmp, algorithm="act")),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    strategy = DecentralizedStrategy(net=net)
    with pytest.raises(ValueError, match="gradients do not pass"):
        strategy.all_gather(torch.ones(1), sync_grads=True)
    assert strategy.reduce("text") == "text"
    total = strategy.reduce(torch.tensor(net.rank), reduce_op="sum")
    assert total.item() == net.size * (net.size - 1) // 2


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_killed_job_is_continued_with_the_same_bits(ranks, tmp_path):
    cut(launch.ROOT / "tests" / "programs" / "train_with_lightning.py", ranks, tmp_path)
