"""Accelerate prepares a wrapped optimizer: the program of the guide, with its default way of saving."""

from __future__ import annotations

import os

import pytest

import mpidec

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")
from helpers.trainers import CUT, DATA, bits, model  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_saved_training_continues_with_the_same_bits(comm, shared_tmp):
    before = dict(os.environ)
    with mpidec.Network(comm=comm, hide_launcher=True) as net:
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        sampler = mpidec.nn.sampler(DATA, net)
        loader, net_ = torch.utils.data.DataLoader(DATA, 4, sampler=sampler), model()
        optimizer = torch.optim.AdamW(net_.parameters(), 0.01)
        optimizer = mpidec.optim.Decentralized(
            optimizer, net_, "ring", "relay" if net.size == 1 else "atc", net
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        net_, wrapped, loader, schedule = accelerator.prepare(net_, optimizer, loader, schedule)

        def epoch(number):
            loader.set_epoch(number)
            for x, y, _ in loader:
                with accelerator.accumulate(net_):
                    accelerator.backward(torch.nn.functional.cross_entropy(net_(x), y))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(net_.parameters(), CUT)
                    wrapped.step()
                    schedule.step()
                    wrapped.zero_grad()

        folder = f"{shared_tmp}/worker-{net.rank}"
        epoch(0)
        accelerator.save_state(folder)
        saved = bits(net_)
        epoch(1)
        whole, steps = bits(net_), optimizer.averager.steps
        accelerator.load_state(folder)
        assert bits(net_) == saved and optimizer.averager.steps < steps
        epoch(1)
        assert bits(net_) == whole
        optimizer.close()
    os.environ.clear()
    os.environ.update(before)
