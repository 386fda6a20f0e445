"""What the tests of trainers share: data, a model, the loop without a trainer, and jobs that are killed."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import mpidec  # noqa: E402

from . import launch  # noqa: E402

CUT = 0.5
"""The norm at which gradients are clipped."""

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
DATA = torch.utils.data.TensorDataset(X, (X[:, 0] > 0).long(), torch.arange(48))


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def bits(module: torch.nn.Module) -> str:
    """A hash of the parameters."""
    row = torch.cat([p.detach().flatten() for p in module.parameters()])
    return hashlib.sha1(row.numpy().tobytes()).hexdigest()


def plain_loop(net: mpidec.Network, own: torch.nn.Module, algorithm: str, epochs: int) -> None:
    """What a trainer should do, with `mpidec.optim` alone."""
    sampler = mpidec.nn.sampler(DATA, net)
    loader = torch.utils.data.DataLoader(DATA, 4, sampler=sampler)
    optimizer = torch.optim.SGD(own.parameters(), 0.1, momentum=0.9)
    with mpidec.optim.Decentralized(optimizer, own, None, algorithm, net) as optimizer:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for i, (x, y, _) in enumerate(loader, 1):
                (torch.nn.functional.cross_entropy(own(x), y) / 2).backward()
                if i % 2 == 0 or i == len(loader):
                    if algorithm == "allreduce":
                        optimizer.average_gradients()
                    torch.nn.utils.clip_grad_norm_(own.parameters(), CUT)
                    optimizer.step()
                    optimizer.zero_grad()
            schedule.step()


def cut(program: Path, ranks: int, folder: Path) -> None:
    """Run `program` whole, killed on one rank, and continued; all workers end with the same bits."""

    def run(words: list[str], **options):
        return launch.mpirun(ranks, [program, *words], 200, cwd=folder, **options)

    whole = run(["whole"], check=True).stdout
    killed = run(["cut", "kill"])
    assert killed.returncode in (-signal.SIGKILL, 1, 9, 137), killed.stderr
    again = run(["cut"], check=True).stdout
    found = [sorted(line for line in out.splitlines() if "bits" in line) for out in (whole, again)]
    assert len(found[0]) == ranks and found[0] == found[1]
    assert "continued" in again
