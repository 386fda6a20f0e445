"""The Trainer of Hugging Face: the bits of a plain loop, samples, reports, evaluation, checkpoints, and what it refuses."""

from __future__ import annotations

import os

import pytest
from helpers import launch

import mpidec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from helpers.bert import DATA, bert  # noqa: E402
from helpers.trainers import CUT, bits, cut  # noqa: E402

from mpidec.integrations.transformers import DecentralizedTrainer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
transformers.logging.set_verbosity_error()


class Noted(torch.utils.data.Dataset):
    """The data, with a note of what is taken."""

    def __init__(self):
        self.seen = []

    def __len__(self):
        return len(DATA)

    def __getitem__(self, i):
        self.seen.append(i)
        return DATA[i]


class Stop(transformers.TrainerCallback):
    """Ends the training after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == self.step


@pytest.fixture
def net(comm):
    before = dict(os.environ)
    with mpidec.Network(comm=comm, hide_launcher=True) as net:
        yield net
    os.environ.clear()
    os.environ.update(before)


def train(net, folder, algorithm="atc", stop=0, resume=None, dropout=0.1, **more):
    """Train with another seed on each rank; the model and the trainer."""
    given = dict(
        per_device_train_batch_size=4,
        max_steps=8,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_grad_norm=CUT,
        gradient_accumulation_steps=2,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=net.rank,
    )
    args = transformers.TrainingArguments(str(folder), **{**given, **more})
    model, data = bert(net.rank, dropout), Noted()
    trainer = DecentralizedTrainer(
        model,
        args,
        train_dataset=data,
        eval_dataset=DATA,
        compute_metrics=lambda _: {"weight": weight(model)},
        callbacks=[Stop(stop)],
        net=net,
        algorithm=algorithm,
    )
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer


def weight(model):
    return model.classifier.weight[0, 0].item()


@pytest.mark.parametrize("algorithm", ["atc", "awc", "allreduce"])
def test_it_has_the_bits_of_a_loop(net, shared_tmp, algorithm):
    """Clipping and accumulation included; with allreduce the average gradient is clipped."""
    model, _ = train(net, shared_tmp, algorithm, dropout=0.0, eval_strategy="no")
    own, sampler = bert(0, 0.0), mpidec.nn.sampler(DATA, net)
    optimizer = torch.optim.AdamW(own.parameters(), 0.01, weight_decay=0.0, fused=True)
    loader = torch.utils.data.DataLoader(DATA, 4, sampler=sampler)
    with mpidec.optim.Decentralized(optimizer, own, None, algorithm, net) as optimizer:
        for epoch in range(8):
            sampler.set_epoch(epoch)
            for i, batch in enumerate(loader, 1):
                if optimizer.averager.steps == 8:
                    break
                together = 2 if i <= len(loader) // 2 * 2 else 1
                (own(**batch).loss / together).backward()
                if i % 2 == 0 or i == len(loader):
                    if algorithm == "allreduce":
                        optimizer.average_gradients()
                    torch.nn.utils.clip_grad_norm_(own.parameters(), CUT)
                    optimizer.step()
                    optimizer.zero_grad()
    assert bits(model) == bits(own)


def test_each_rank_sees_its_own_samples_and_one_rank_reports(net, shared_tmp):
    _, trainer = train(net, shared_tmp)
    each = -(-len(DATA) // net.size)
    seen = net.comm.allgather(trainer.train_dataset.seen[:each])
    assert set().union(*seen) == set(range(len(DATA)))
    assert trainer.state.is_world_process_zero == (net.rank == 0)
    logs = net.comm.allgather([log.get("loss") for log in trainer.state.log_history])
    assert logs == logs[:1] * net.size and any(logs[0])  # means over the workers


def test_the_average_is_evaluated_and_saved(net, shared_tmp):
    model, trainer = train(net, shared_tmp, eval_steps=8)
    weights = net.comm.allgather(weight(model))
    average = pytest.approx(sum(weights) / net.size, abs=1e-7)
    logged = [log["eval_weight"] for log in trainer.state.log_history if "eval_weight" in log]
    assert logged[-1] == average and trainer.evaluate()["eval_weight"] == average
    assert weight(model) == weights[net.rank]
    trainer.save_model()
    saved = transformers.BertForSequenceClassification.from_pretrained(shared_tmp)
    assert weight(saved) == average


@pytest.mark.parametrize("algorithm", ["atc", "relay", "awc"])
def test_a_resumed_training_has_the_same_bits(net, shared_tmp, algorithm):
    """With dropout, from the middle of an epoch, and after more steps than were saved."""
    whole, _ = train(net, shared_tmp / "whole", algorithm)
    train(net, shared_tmp / "cut", algorithm, stop=5)
    again, _ = train(net, shared_tmp / "cut", algorithm, resume=True)
    assert bits(again) == bits(whole)
    path = shared_tmp / "cut" / "checkpoint-6"
    again, _ = train(net, shared_tmp / "cut", algorithm, resume=path)
    assert bits(again) == bits(whole)


def test_refusals(net, shared_tmp):
    for words, call in [
        ("no checkpoint of all", lambda: train(net, shared_tmp, resume=True)),
        (
            "no checkpoint-7 of all",
            lambda: train(net, shared_tmp, resume=shared_tmp / "checkpoint-7"),
        ),
        ("algorithm is 'act'", lambda: train(net, shared_tmp, algorithm="act")),
        (
            '"random" or "sequential"',
            lambda: train(net, shared_tmp, train_sampling_strategy="group_by_length"),
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_killed_job_is_continued_with_the_same_bits(ranks, tmp_path):
    cut(launch.ROOT / "tests" / "programs" / "train_with_transformers.py", ranks, tmp_path)
