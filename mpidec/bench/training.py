"""The group train: steps of a PyTorch model, against DistributedDataParallel."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import registry as catalogue
from ..comm.runtime import MPI
from ..exceptions import WrongResult
from .cells import COLUMNS, Cell, Contender, Options
from .report import Group, Ratio, size_name

if TYPE_CHECKING:
    import torch

ALONE, PARALLEL = "no communication", "DDP"
RATIOS = {
    "times_alone": Ratio(
        "/alone",
        "time over that without communication (smaller is better)",
        "time / no communication",
        ALONE,
    ),
    "faster_than_ddp": Ratio(
        "DDP/",
        "time of the faster DistributedDataParallel over this time, median and range over the "
        "blocks (larger is better)",
        "DistributedDataParallel / time",
        PARALLEL,
        inverse=True,
        ranged=True,
    ),
    "extra_memory": Ratio(
        "extra",
        "memory beyond parameters, gradients and optimizer state, in units of the parameters",
        "extra memory / parameters",
    ),
}
LAYERS, CLASSES = 8, 10
# Of DistributedDataParallel, in MB: few layers, and its default.
BUCKETS = 1, 25
# Algorithms by the names of contenders, and their options.
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "allreduce": ("allreduce", {}),
    "atc": ("atc", {}),
    "atc, overlap": ("atc", {"overlap": True}),
    "awc": ("awc", {}),
    "awc, bfloat16": ("awc", {"mixing": lambda W: W.compress("bfloat16", feedback=False)}),
}


@dataclass(frozen=True, eq=False)
class TrainingSteps(Contender):
    """One way to train: what it makes of the workers' updates in its first step.

    Attributes
    ----------
    probe : callable
        Returns some of the parameters.
    matrix : array (n, n), optional
        Row i has the weights of the workers' separate updates in that of worker i.
    """

    probe: Callable[[], np.ndarray] = lambda: np.empty(0)
    matrix: np.ndarray | None = None


class TrainCell(Cell):
    """Training steps of a network, against those without communication and those of
    DistributedDataParallel.
    """

    group = Group(
        "train: steps of a PyTorch model, against no communication and DistributedDataParallel",
        tuple(RATIOS),
        RATIOS,
        at_once=True,
    )
    sizes = "4M,16M"
    graphs = "one_peer_exponential"
    fewest_calls = 10  # so that what travels from one step to the next is within a block
    fewest_blocks = 5
    requires = "torch"

    def __init__(
        self, graph: str, d: int, comm: MPI.Intracomm, options: Options, compute: float = 0.0
    ):
        import torch

        self.graph, self.d, self.comm, self.n, self.period = graph, d, comm, comm.size, 1
        self.topology = catalogue.TOPOLOGIES[graph](self.n)
        self._stack = ExitStack()
        self._stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        # 8 (h^2 + h) + 10 h + 10 parameters
        self._width = max(1, round((8.5**2 / 64 + (2 * d - CLASSES) / LAYERS) ** 0.5 - 8.5 / 8))
        self._seconds, self._suffix = compute / 1e3, f", {compute:g} ms" if compute else ""
        random = torch.Generator().manual_seed(comm.rank)
        self._x = torch.randn(options.batch, self._width, generator=random)
        self._y = torch.randint(CLASSES, (options.batch,), generator=random)
        self.contenders = list(self._contenders())
        self._updates = np.empty(0)

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 30

    @classmethod
    def cases(cls, options: Options) -> list[dict[str, Any]]:
        return [{"compute": compute} for compute in options.compute]

    def _contenders(self) -> Iterator[Contender]:
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        n, equal = self.n, np.full((self.n, self.n), 1 / self.n)
        model, optimizer = self._start()
        yield self._training(ALONE, model, optimizer, np.eye(n), role=ALONE)
        first = {"allreduce": equal, "atc": self.topology.at(0).W.toarray(), "awc": np.eye(n)}
        for name, (algorithm, _) in ALGORITHMS.items():
            yield self._decentralized(name, first[algorithm])
        if distributed.is_available():
            self._process_group()
            for megabytes in BUCKETS:
                model, optimizer = self._start()
                parallel = DistributedDataParallel(model, bucket_cap_mb=megabytes)
                name = f"{PARALLEL}, {megabytes} MB"
                yield self._training(name, parallel, optimizer, equal, role=PARALLEL)
            if importlib.util.find_spec("decent_dp") is not None and n % 2 == 0:
                yield self._decent_dp()

    def _start(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Return a network with about `d` float64 of parameters, and an optimizer; its layers wait
        as long as a device would compute, a third of the time forward.
        """
        import torch

        torch.manual_seed(0)
        layers: list[torch.nn.Module] = []
        wait = self._seconds / LAYERS / 3
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(self._width, self._width), torch.nn.Tanh()]
            if wait:
                layers[-2].register_forward_pre_hook(lambda *_: time.sleep(wait))
                layers[-2].register_full_backward_pre_hook(lambda *_: time.sleep(2 * wait))
        model = torch.nn.Sequential(*layers, torch.nn.Linear(self._width, CLASSES))
        return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def _training(
        self,
        name: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        matrix: np.ndarray | None,
        **more: Any,
    ) -> TrainingSteps:
        from torch.nn.functional import cross_entropy

        first, *_, last = model.parameters()

        def probe() -> np.ndarray:
            return np.concatenate([p.detach().flatten()[:COLUMNS].numpy() for p in (first, last)])

        def step() -> None:
            if optimizer is not None:
                optimizer.zero_grad()
            cross_entropy(model(self._x), self._y).backward()
            if optimizer is not None:
                optimizer.step()

        return TrainingSteps(name + self._suffix, [step], (), probe=probe, matrix=matrix, **more)

    def _decentralized(self, name: str, matrix: np.ndarray) -> TrainingSteps:
        from ..optim import Decentralized

        algorithm, options = ALGORITHMS[name]
        model, optimizer = self._start()
        topology = None if algorithm == "allreduce" else self.topology
        wrapped = Decentralized(optimizer, model, topology, algorithm, self._network(), **options)
        self._stack.callback(wrapped.close)
        extra = lambda: wrapped.averager.extra_bytes
        return self._training(name, model, wrapped, matrix, extra=extra)

    def _process_group(self) -> None:
        """Start torch.distributed, for the contenders that need it."""
        from torch import distributed

        alone = len(set(self.comm.allgather(MPI.Get_processor_name()))) == 1
        folder = (
            tempfile.TemporaryDirectory(dir=None if alone else ".") if self.comm.rank == 0 else None
        )
        path = self.comm.bcast(folder and os.path.join(os.path.abspath(folder.name), "store"))
        distributed.init_process_group(
            "gloo", init_method=f"file://{path}", rank=self.comm.rank, world_size=self.n
        )
        if folder is not None:
            self._stack.callback(folder.cleanup)
        self._stack.callback(distributed.destroy_process_group)

    def _decent_dp(self) -> TrainingSteps:
        import torch
        from decent_dp.ddp import DecentralizedDataParallel  # type: ignore[import-not-found]
        from loguru import logger  # type: ignore[import-not-found]

        logger.disable("decent_dp")
        model, _ = self._start()
        wrapped = DecentralizedDataParallel(
            model,
            lambda named: torch.optim.SGD([p for _, p in named], 0.01),
            topology="ring",
            _local_world_size=1,
        )
        return self._training("Decent-DP, ring, gloo", wrapped, None, None)

    def check(self, each: Contender) -> None:
        """Compare a contender's first step with the combination that it should make of the workers'
        separate steps.
        """
        if not isinstance(each, TrainingSteps):
            return
        before = each.probe()
        each.calls[0]()
        update = each.probe() - before
        if each.role == ALONE:
            self._updates = np.stack(self.comm.allgather(update))
        if each.matrix is None:
            return
        due = np.tensordot(each.matrix[self.comm.rank], self._updates, 1)
        error = self.comm.allreduce(
            float(np.abs(update - due).max() / np.abs(self._updates).max()), MPI.MAX
        )
        if not error <= 1e-3:
            raise WrongResult(
                f"{each.name}, {self.graph}, {size_name(8 * self.d)}: the first update "
                f"differs from that of the workers' separate updates by {error:.2g} of its size"
            )
