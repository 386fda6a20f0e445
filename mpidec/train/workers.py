"""The workers of a rank: their samples, their models, a step of all of them, and their results on
the test set.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from ..comm.mixing import Network
from ..datasets import Batches, Reading, augment, images, is_labelled, split
from ..nn import Stacked
from ..plugins import is_plugin
from .components import LossFunction, OwnMetrics
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
    labels : bool
        Whether targets are classes.
    criterion : LossFunction
    metrics : OwnMetrics
    settings : Settings
        With the defaults that depend on workers and data.
    digest, samples : int
        Of own data, which must be the same on all ranks; 0 of others.

    Raises
    ------
    ValueError, TypeError
        If the data set cannot be read, or is too small, or the model has no such options.
    """

    def __init__(self, settings: Settings, n: int, agents: range, device: str = "cpu"):
        self.m, self.device = len(agents), device
        self.criterion = LossFunction(settings.criterion, settings.criterion_options)
        self.metrics = OwnMetrics(settings.own_metrics())
        how = Reading(self.criterion.targets, settings.size, settings.label, settings.standardize)
        data = images(settings.data, settings.path, settings.seed, how)
        self.labels = data.labels
        self.settings = settings = settings.complete(n, data.labels)
        self.note, self.digest, self.samples = data.note, 0, 0
        if is_labelled(data.name):
            self.samples = len(data.train_x) + len(data.test_x)
            for array in (data.train_x, data.train_y, data.test_x, data.test_y):
                self.digest = zlib.crc32(
                    np.ascontiguousarray(array).view(np.uint8).data, self.digest
                )
        self._data = data
        self.divide(n, agents)
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
                f"augment=True crops and mirrors images, got samples of the shape {data.shape}: "
                "omit it"
            )
        model = make_model(
            settings.model,
            data.shape,
            data.outputs,
            settings.seed,
            settings.model_options,
            data.labels,
        ).to(device)
        self._attempt(model)
        if self.m > 1:
            model = (
                stacked(model, self.m, self._train[0][:2])
                if is_plugin(settings.model)
                else Stacked(model, self.m)
            )
        self.model = model

    def divide(self, n: int, agents: range) -> None:
        """Divide the samples among n workers, of which `agents` are on this rank."""
        s = self.settings
        alpha = None if s.alpha == "iid" else float(s.alpha or 0.1)
        parts = split(self._data, n, alpha, s.seed)
        self.batches = Batches(parts, s.batch, s.seed, agents)

    def _attempt(self, model: torch.nn.Module) -> None:
        """Compute the loss of a model for two samples; raise ValueError if that fails."""
        model.eval()
        with torch.random.fork_rng(devices=[]):
            z, y = self._narrow(model, self._train[0][:2])[None], self._train[1][None, :2]
            self.criterion.attempt(self._matched(z, y), y)
        model.train()

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (m, B, classes) of the workers for their inputs (m, B, ...)."""
        return self._narrow(self.model, x[0])[None] if self.m == 1 else self._narrow(self.model, x)

    def _narrow(self, model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Output of the model, computed in the precision of the settings."""
        narrow = self.settings.precision == "bfloat16"
        with (
            torch.autocast(torch.device(self.device).type, torch.bfloat16)
            if narrow
            else nullcontext()
        ):
            return model(x).float()

    def gradients(self, accumulate: int = 1) -> torch.Tensor:
        """Take batches, and add the gradient of each worker's mean loss over them to its
        parameters' gradients; those losses, (m,).
        """
        return torch.stack([self._gradients(accumulate) for _ in range(accumulate)]).sum(0)

    def _gradients(self, accumulate: int) -> torch.Tensor:
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
        targets = self._train[1][torch.from_numpy(numbers)]
        losses = self.criterion(self._matched(self.outputs(inputs), targets), targets)
        losses = losses / accumulate if accumulate > 1 else losses
        losses.sum().backward()
        return losses.detach()

    def _matched(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return outputs in the shape of real targets: (m, B, 1) of a model as (m, B)."""
        real = targets.dtype.is_floating_point and outputs.numel() == targets.numel()
        return outputs.view(targets.shape) if real else outputs

    def clip(self, bound: float) -> None:
        """Scale the gradient of each worker down to the norm `bound`, if it is larger."""
        gradients = [p.grad.view(self.m, -1) for p in self.model.parameters() if p.grad is not None]
        norms = torch.stack([g.square().sum(1) for g in gradients]).sum(0).sqrt()
        factors = (bound / (norms + 1e-12)).clamp(max=1)
        for g in gradients:
            g.mul_(factors[:, None])

    def evaluate(self) -> dict[str, np.ndarray]:
        """Return loss, accuracy and metrics of each worker on the test set, (m,)."""
        self.model.eval()
        sums, outputs = self._sums(self.outputs, self.m, slice(None))
        self.model.train()
        found = {name: total / len(self._test[1]) for name, total in sums.items()}
        each = [self.metrics(one, self._test[1]) for one in outputs]
        return found | {name: np.array([of[name] for of in each]) for name in self.metrics.names}

    def evaluate_first(self, net: Network) -> dict[str, float]:
        """Return loss, accuracy and metrics of the first worker, which is the same on all ranks,
        on the test set, of which each rank evaluates a part; collective.
        """
        part, parts = net.rank, net.size
        model = self.model if self.m == 1 else self.model.worker(0)
        model.eval()
        sums, outputs = self._sums(
            lambda x: self._narrow(model, x[0])[None], 1, slice(part, None, parts)
        )
        model.train()
        totals = net.comm.allreduce(np.array([total[0] for total in sums.values()]))
        found = dict(zip(sums, totals / len(self._test[1])))
        if self.metrics.names:
            whole = torch.empty(len(self._test[1]), *outputs.shape[2:], device=outputs.device)
            for rank, mine in enumerate(net.comm.allgather(outputs[0].cpu().numpy())):
                whole[rank::parts] = torch.from_numpy(mine).to(whole)
            found |= self.metrics(whole, self._test[1])
        return found

    def _sums(
        self, outputs: Callable[[torch.Tensor], torch.Tensor], m: int, some: slice
    ) -> tuple[dict[str, np.ndarray], torch.Tensor]:
        """Return sums over test samples by name, (m,), and the outputs if metrics need them."""
        x, y = self._test[0][some], self._test[1][some]
        names = ["accuracy", "loss"] if self.labels else ["loss"]
        sums = {name: torch.zeros(m, dtype=torch.float64) for name in names}
        kept = []
        for a in range(0, len(y), CHUNK):
            targets = y[a : a + CHUNK].expand(m, *y[a : a + CHUNK].shape)
            with torch.no_grad():
                z = outputs(x[a : a + CHUNK].expand(m, *x[a : a + CHUNK].shape))
                z = self._matched(z, targets)
                sums["loss"] += self.criterion(z, targets).double().cpu() * targets.shape[1]
            if self.labels:
                sums["accuracy"] += (z.argmax(-1) == targets).sum(1).cpu()
            if self.metrics.names:
                kept.append(z)
        whole = torch.cat(kept, dim=1) if kept else torch.empty(m, 0)
        return {name: total.numpy() for name, total in sums.items()}, whole

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
