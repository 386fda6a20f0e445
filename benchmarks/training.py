"""The group train: steps of a PyTorch model."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpidec import registry as catalogue
from mpidec.bench.cells import COLUMNS, Cell, Contender
from mpidec.bench.report import Group, Ratio, size_name
from mpidec.comm.runtime.mpi import MPI
from mpidec.exceptions import WrongResult

if TYPE_CHECKING:
    import torch

ALONE, PARALLEL = "no communication", "DistributedDataParallel"
RATIOS = {
    "times_alone": Ratio(
        "/alone",
        "time over that without communication (smaller is better)",
        "time / no communication",
        ALONE,
    ),
    "faster_than_ddp": Ratio(
        "DDP/",
        "time of DistributedDataParallel over this time (larger is better)",
        "DistributedDataParallel / time",
        PARALLEL,
        inverse=True,
    ),
    "extra_memory": Ratio(
        "extra",
        "memory beyond parameters, gradients and optimizer state, in units of the parameters",
        "extra memory / parameters",
    ),
}
PIXELS, CLASSES, BATCH = 784, 10, 32  # of the training


@dataclass(frozen=True, eq=False)
class Training(Contender):
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
    """Training steps of a network, against those without communication and those of DistributedDataParallel."""

    group = Group(
        "train: steps of a PyTorch model, against no communication and DistributedDataParallel",
        tuple(RATIOS),
        RATIOS,
    )
    sizes = "256K,16M"
    graphs = "one_peer_exponential"
    fewest_calls = 4  # so that what travels from one step to the next is within a block
    requires = "torch"

    def __init__(self, graph: str, d: int, comm: MPI.Intracomm, transports: Sequence[str] = ()):
        import torch

        self.graph, self.d, self.comm, self.n, self.period = graph, d, comm, comm.size, 1
        self.topology = catalogue.TOPOLOGIES[graph](self.n)
        self._stack = ExitStack()
        self._stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        random = torch.Generator().manual_seed(comm.rank)
        self._x = torch.randn(BATCH, PIXELS, generator=random)
        self._y = torch.randint(CLASSES, (BATCH,), generator=random)
        self.contenders = list(self._contenders())
        self._updates = np.empty(0)

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 30

    def _contenders(self) -> Iterator[Contender]:
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        n, equal = self.n, np.full((self.n, self.n), 1 / self.n)
        model, optimizer = self._start()
        yield self._training(ALONE, model, optimizer, np.eye(n), role=ALONE)
        for algorithm, matrix in (
            ("atc", self.topology.at(0).W.toarray()),
            ("awc", np.eye(n)),
            ("allreduce", equal),
        ):
            yield self._decentralized(algorithm, matrix)
        if distributed.is_available():
            self._process_group()
            model, optimizer = self._start()
            yield self._training(
                f"{PARALLEL}, gloo", DistributedDataParallel(model), optimizer, equal, role=PARALLEL
            )
            if importlib.util.find_spec("decent_dp") is not None and n % 2 == 0:
                yield self._decent_dp()

    def _start(self) -> tuple[Any, Any]:
        """A network with about `d` float64 of parameters, and an optimizer."""
        import torch

        from mpidec.nn import models

        hidden = max(
            1, round((398**2 + 2 * self.d - CLASSES) ** 0.5 - 398)
        )  # h^2 + 796 h + 10 parameters
        model = models.make("mlp", (1, 28, 28), CLASSES, hidden=[hidden, hidden])
        return model, torch.optim.SGD(model.parameters(), 0.01)

    def _training(
        self,
        name: str,
        model: torch.nn.Module,
        optimizer: Any,
        matrix: np.ndarray | None,
        **more: Any,
    ) -> Training:
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

        return Training(name, [step], (), probe=probe, matrix=matrix, **more)

    def _decentralized(self, algorithm: str, matrix: np.ndarray) -> Training:
        from mpidec.optim import Decentralized

        model, optimizer = self._start()
        wrapped = Decentralized(optimizer, model, self.topology, algorithm, self._network())
        self._stack.callback(wrapped.close)
        return self._training(
            f"Decentralized, {algorithm}",
            model,
            wrapped,
            matrix,
            extra=lambda: wrapped.averager.extra_bytes,
        )

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

    def _decent_dp(self) -> Training:
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
        """Compare a contender's first step with the combination that it should make of the workers' separate steps."""
        if not isinstance(each, Training):
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
                f"{each.name}, {self.graph}, {size_name(8 * self.d)}: the first update differs from that of the "
                f"workers' separate updates by {error:.2g} of its size"
            )
