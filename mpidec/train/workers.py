"""The workers of a rank: their samples, their models, a step of all of them, and their results on
the test set.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from ..datasets import Batches, augment, images, is_labelled, split
from ..nn import Stacked
from ..plugins import is_plugin
from .options import model as make_model, stacked
from .settings import Settings

CHUNK = 512  # test images in a forward pass


class Workers:
    """The m workers `lo:hi` of n on this rank: a plain model if m is 1, else `mpidec.nn.Stacked`.

    Parameters
    ----------
    settings : Settings
    n : int
        All workers.
    agents : range
        Numbers of those on this rank.
    device : str

    Attributes
    ----------
    model : torch.nn.Module
    batches : Batches
    note : str
        How the test samples were chosen, if the data has none.
    digest, samples : int
        Of own data, which must be the same on all ranks; 0 of others.

    Raises
    ------
    ValueError, TypeError
        If the data set cannot be read, or is too small, or the model has no such options.
    """

    def __init__(self, settings: Settings, n: int, agents: range, device: str = "cpu"):
        self.m, self.device, self._settings = len(agents), device, settings
        data = images(settings.data, settings.path, settings.seed)
        self.note, self.digest, self.samples = data.note, 0, 0
        if is_labelled(data.name):
            self.samples = len(data.train_x) + len(data.test_x)
            for array in (data.train_x, data.train_y, data.test_x, data.test_y):
                self.digest = zlib.crc32(
                    np.ascontiguousarray(array).view(np.uint8).data, self.digest
                )
        parts = split(
            data, n, None if settings.alpha == "iid" else float(settings.alpha), settings.seed
        )
        self.batches = Batches(parts, settings.batch, settings.seed, agents)
        self._augmented = data.name == "cifar10" if settings.augment is None else settings.augment
        self._train = (
            torch.from_numpy(data.train_x).to(device),
            torch.from_numpy(data.train_y).to(device),
        )
        self._test = (
            torch.from_numpy(data.test_x).to(device),
            torch.from_numpy(data.test_y).to(device),
        )
        if self._augmented and len(data.shape) != 3:
            raise ValueError(
                f"augment crops and mirrors images, got samples of the shape {data.shape}: omit it"
            )
        model = make_model(
            settings.model, data.shape, data.classes, settings.seed, settings.model_options
        ).to(device)
        if self.m > 1:
            model = (
                stacked(model, self.m, self._train[0][:2])
                if is_plugin(settings.model)
                else Stacked(model, self.m)
            )
        self.model = model

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (m, B, classes) of the workers for their inputs (m, B, ...)."""
        return self._narrow(self.model, x[0])[None] if self.m == 1 else self._narrow(self.model, x)

    def _narrow(self, model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Output of the model, computed in the precision of the settings."""
        narrow = self._settings.precision == "bfloat16"
        with (
            torch.autocast(torch.device(self.device).type, torch.bfloat16)
            if narrow
            else nullcontext()
        ):
            return model(x).float()

    def gradients(self) -> torch.Tensor:
        """Take a batch, and add the gradient of each worker's mean loss to its parameters'
        gradients; those losses, (m,).
        """
        numbers = self.batches.draw()
        if self._augmented:
            pad = max(1, self._train[0].shape[-1] // 8)
            x = np.stack(
                [
                    augment(
                        self._train[0][torch.from_numpy(row)].cpu().numpy(),
                        self.batches.random(i),
                        pad=pad,
                    )
                    for i, row in enumerate(numbers)
                ]
            )
            inputs = torch.from_numpy(x).to(self.device)
        else:
            inputs = self._train[0][torch.from_numpy(numbers)]
        labels = self._train[1][torch.from_numpy(numbers)]
        samples = cross_entropy(
            self.outputs(inputs).flatten(0, 1), labels.flatten(), reduction="none"
        )
        losses = samples.view(self.m, -1).mean(1)
        losses.sum().backward()
        return losses.detach()

    def clip(self, bound: float) -> None:
        """Scale the gradient of each worker down to the norm `bound`, if it is larger."""
        gradients = [p.grad.view(self.m, -1) for p in self.model.parameters() if p.grad is not None]
        norms = torch.stack([g.square().sum(1) for g in gradients]).sum(0).sqrt()
        factors = (bound / (norms + 1e-12)).clamp(max=1)
        for g in gradients:
            g.mul_(factors[:, None])

    def evaluate(self) -> tuple[np.ndarray, np.ndarray]:
        """Accuracy and mean loss of each worker on the test set, (m,)."""
        self.model.eval()
        right, loss = self._sums(self.outputs, self.m, slice(None))
        self.model.train()
        return right / len(self._test[1]), loss / len(self._test[1])

    def evaluate_first(self, part: int, parts: int) -> np.ndarray:
        """Return what the test images ``part::parts`` contribute to accuracy and mean loss of the
        first worker alone, (2,).
        """
        model = self.model if self.m == 1 else self.model.worker(0)
        model.eval()
        right, loss = self._sums(
            lambda x: self._narrow(model, x[0])[None], 1, slice(part, None, parts)
        )
        model.train()
        return np.array([right[0], loss[0]]) / len(self._test[1])

    def _sums(
        self, outputs: Callable[[torch.Tensor], torch.Tensor], m: int, some: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        x, y = self._test[0][some], self._test[1][some]
        right, loss = torch.zeros(m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
        for a in range(0, len(y), CHUNK):
            with torch.no_grad():
                z = outputs(x[a : a + CHUNK].expand(m, *x[a : a + CHUNK].shape))
            labels = y[a : a + CHUNK].expand(m, -1)
            right += (z.argmax(-1) == labels).sum(1).cpu()
            loss += (
                cross_entropy(z.flatten(0, 1), labels.flatten(), reduction="none")
                .view(m, -1)
                .sum(1)
                .double()
                .cpu()
            )
        return right.numpy(), loss.numpy()

    @property
    def size(self) -> int:
        """Number of parameters of a worker."""
        return int(sum(p.numel() for p in self.model.parameters())) // self.m

    def rows(self) -> np.ndarray:
        """Return the parameters of each worker in the order of the model, one row (d,) for each:
        (m, d).
        """
        with torch.no_grad():
            rows: np.ndarray = torch.cat(
                [p.reshape(self.m, -1).float().cpu() for p in self.model.parameters()], dim=1
            ).numpy()
        return rows

    def models(self) -> list[torch.nn.Module]:
        """Return the model of each worker, as plain modules."""
        return [self.model] if self.m == 1 else [self.model.worker(i) for i in range(self.m)]
