"""Lightning: a strategy that trains with `mpidec.optim.Decentralized`, one worker per rank.

It is one of the package `lightning` or, where only that has been imported or installed, of
`pytorch_lightning`.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from .._validation import choice
from .._words import command_of_extras
from ..comm.mixing import Network
from ..optim import Decentralized, broadcast_parameters
from ..solvers import Solver
from .workers import average_model, broadcast, gathered, refuse_drop

if TYPE_CHECKING:
    from ..driver.internals import TopologyLike


def _lightning() -> tuple[Any, Any, Any]:
    """Return Lightning's package for training, the one below it, and torchmetrics."""
    pairs = [("lightning.pytorch", "lightning.fabric"), ("pytorch_lightning", "lightning_fabric")]
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        pairs.reverse()
    for pair in pairs:
        try:
            training, below, metrics = map(import_module, (*pair, "torchmetrics"))
        except ImportError:
            continue
        return training, below, metrics
    raise ImportError(
        "mpidec.integrations.lightning needs Lightning, which is not installed: "
        f"{command_of_extras('lightning')}"
    )


pl, fabric, metrics = _lightning()
Environment: Any = fabric.plugins.environments.ClusterEnvironment
Strategy: Any = pl.strategies.ParallelStrategy

__all__ = ["DecentralizedStrategy"]


class LightningRanks(Environment):
    """Ranks of a network as Lightning asks for them."""

    creates_processes_externally = True
    main_address, main_port = "localhost", 0  # of a process group, which nobody makes

    def __init__(self, net: Network):
        self._net = net
        hosts = gathered(net, socket.gethostname(), "Lightning's nodes")
        own = hosts[net.rank]
        self._local, self._node = hosts[: net.rank].count(own), [*dict.fromkeys(hosts)].index(own)

    @staticmethod
    def detect() -> bool:
        """Return False: only the strategy makes one."""
        return False

    def world_size(self) -> int:
        """Return the number of workers."""
        return self._net.size

    def set_world_size(self, size: int) -> None:
        """Keep the number of ranks."""

    def global_rank(self) -> int:
        """Return this rank."""
        return self._net.rank

    def set_global_rank(self, rank: int) -> None:
        """Keep this rank."""

    def local_rank(self) -> int:
        """Return the number of this rank among those of its node."""
        return self._local

    def node_rank(self) -> int:
        """Return the number of the node."""
        return self._node


class DecentralizedStrategy(Strategy):
    """Lightning strategy: each rank trains a worker, and the optimizers of the module average with
    the neighbours.

    Parameters
    ----------
    topology, algorithm
        See `mpidec.optim.Decentralized`.
    net : Network, optional
        One worker per rank of `MPI.COMM_WORLD` by default, whose launcher is hidden.
    evaluate : {"average", "own"}
        Whether validation, test and prediction use the average of all workers' models, or each
        worker's own model on its part of the data.
    **options
        Of `Decentralized`: `every`, `buffers`, `mixing`, `check`, `momentum`, ...

    Attributes
    ----------
    net : Network

    Raises
    ------
    ImportError
        Without Lightning.
    ValueError
        On every rank: what `Decentralized` refuses, in `trainer.fit`; `sync_batchnorm`; a
        checkpoint of another number of workers.

    Notes
    -----
    All workers start from the module of rank 0.  The data are divided by a `DistributedSampler`
    whose seed is that of rank 0.  Metrics logged with `sync_dist=True`, and those of torchmetrics,
    are of all workers.  Gradients are accumulated and clipped on each worker; with "allreduce" the
    average is clipped, in automatic optimization.

    A checkpoint PATH is a file with the average model (and else the state of rank 0), for
    `load_from_checkpoint`, and a folder PATH.workers with the state of each worker, in a file
    system that all ranks see: `trainer.fit(..., ckpt_path=PATH)` continues from it with the same
    bits, on as many workers.  After an exception, ranks save none.

    Sent per step: what `Decentralized` sends; per validation and per checkpoint the model, to all
    workers.

    Examples
    --------
    >>> import lightning  # doctest: +SKIP
    >>> trainer = lightning.Trainer(  # doctest: +SKIP
    ...     strategy=DecentralizedStrategy("ring"), max_epochs=3
    ... )
    """

    optimizers: list[Any]
    strategy_name = "decentralized"
    is_distributed = True  # asked before data are divided, and before metrics are reduced
    restore_checkpoint_after_setup = True  # which makes all workers equal

    def __init__(
        self,
        topology: TopologyLike | Sequence[TopologyLike] | None = None,
        algorithm: str | Solver = "atc",
        net: Network | None = None,
        *,
        evaluate: str = "average",
        **options: Any,
    ):
        refuse_drop(options)
        self.net = Network(hide_launcher=True) if net is None else net
        super().__init__(cluster_environment=LightningRanks(self.net))
        self._wrapped = {"topology": topology, "algorithm": algorithm, "net": self.net, **options}
        self._evaluate = choice(evaluate, "evaluate", ("average", "own"))
        self._trains, self._seed = False, 0
        # what ends the evaluation of the average model, and the synchronization of metrics
        self._shown, self._synced = ExitStack(), ExitStack()
        pl.utilities.rank_zero.rank_zero_only.rank = self.net.rank

    @property
    def root_device(self) -> torch.device:
        """The device of this rank: one of `Trainer(devices=...)` for each rank of the node."""
        return self.parallel_devices[self.local_rank % len(self.parallel_devices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How samplers divide the data."""
        return {"num_replicas": self.net.size, "rank": self.net.rank, "seed": self._seed}

    def setup_environment(self) -> None:
        """Agree on the seed of the samplers."""
        if self._layer_sync is not None:
            raise ValueError(
                "sync_batchnorm=True: workers normalize with the statistics of their own batches, "
                'expected False; DecentralizedStrategy(buffers="average") averages the running '
                "statistics"
            )
        self._seed = self.broadcast(int(os.environ.get("PL_GLOBAL_SEED", 0)))
        super().setup_environment()

    def setup(self, trainer: Any) -> None:
        """Make the workers equal, and wrap the optimizers."""
        module, trains = self.lightning_module, trainer.state.fn == "fit"
        if trains:
            broadcast_parameters(module, self.net)
        super().setup(trainer)
        if trains:
            self.optimizers = [Decentralized(o, module, **self._wrapped) for o in self.optimizers]
        self._trains = trains
        for part in module.modules():
            if isinstance(part, metrics.Metric) and part.dist_sync_fn is None:
                available = part.distributed_available_fn
                self._synced.callback(setattr, part, "distributed_available_fn", available)
                self._synced.callback(setattr, part, "dist_sync_fn", None)
                part.distributed_available_fn = lambda: True
                part.dist_sync_fn = lambda value, group=None: _of_all(self.net, value)

    def model_to_device(self) -> None:
        """Move the module to the device of this rank."""
        self.model.to(self.root_device)

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Take a step of an optimizer; gradients that are averaged are so before they are
        clipped.
        """

        def averaged() -> Any:
            result = closure()
            optimizer.average_gradients()
            return result

        own = not optimizer.averager.algorithm.method.averages_gradients
        return super().optimizer_step(optimizer, closure if own else averaged, model, **kwargs)

    def consensus(self) -> ExitStack:
        """A context in which the module holds the average of all workers, during `fit` and after
        it.  Collective.
        """
        return average_model(
            self.lightning_module, self.optimizers if self._trains else [], self.net
        )

    def _show(self) -> None:
        """Let the module hold what is evaluated."""
        if self._evaluate == "average":
            self._shown = self.consensus()

    def _show_own(self) -> None:
        """Let the module hold this worker's own parameters."""
        self._shown.close()

    on_validation_start = on_test_start = on_predict_start = _show
    on_validation_end = on_test_end = on_predict_end = _show_own

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the state of this worker's module, also at the end of a validation."""
        self._show_own()
        state: dict[str, Any] = super().lightning_module_state_dict()
        return state

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Save the state of each worker, then the average model."""
        if self._interrupted:
            warnings.warn(
                f"{filepath} is not saved after an exception: the workers may have made different "
                "steps",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        path, step = self.broadcast(os.fspath(filepath)), checkpoint["global_step"]
        save = partial(self.checkpoint_io.save_checkpoint, storage_options=storage_options)
        marks = {}
        if "optimizer_states" in checkpoint:
            save(checkpoint, _state_of(path, step, self.net.rank))
            marks = {"mpidec": {"workers": self.net.size, "step": step}}
            self.barrier("the workers' states")
        with self.consensus():
            state = super().lightning_module_state_dict()
            if self.is_global_zero:
                shown = {name: state[name] for name in checkpoint["state_dict"]}
                save({**checkpoint, **marks, "state_dict": shown}, path)
        if self.is_global_zero:
            self._remove_states(path, but=step)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Load the state of this worker to continue its training, else the average model."""
        path = self.broadcast(os.path.realpath(checkpoint_path))
        loaded = super().load_checkpoint(path, weights_only)
        marks = loaded.pop("mpidec", None)
        if marks is None or self.lightning_module.trainer.state.fn != "fit":
            return loaded
        if marks["workers"] != self.net.size:
            raise ValueError(
                f"{path} has the states of {marks['workers']} workers, expected {self.net.size}: "
                f"continue on {marks['workers']} ranks, or begin a new training with the average "
                "model, load_from_checkpoint(PATH)"
            )
        return super().load_checkpoint(_state_of(path, marks["step"], self.net.rank), weights_only)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove the average model and the states of the workers."""
        super().remove_checkpoint(filepath)
        super().remove_checkpoint(f"{filepath}.workers")

    def _remove_states(self, path: str, but: int) -> None:
        """Remove the workers' states that a checkpoint of the same path had before."""
        files = fabric.utilities.cloud_io.get_filesystem(path)
        folder = f"{path}.workers"
        for old in files.ls(folder, detail=False) if files.exists(folder) else []:
            if os.path.basename(old) != str(but):
                files.rm(old, recursive=True)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean (sum, max, min, product) of a tensor over all workers."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        name = str(reduce_op).rpartition(".")[2].lower()
        return _REDUCTIONS[choice(name, "reduce_op", (*_REDUCTIONS,))](self.all_gather(tensor))

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all workers, in a new first dimension."""
        if sync_grads:
            raise ValueError(
                "all_gather(sync_grads=True): gradients do not pass between workers, expected False"
            )
        return torch.stack(_of_all(self.net, tensor))

    def barrier(self, name: str | None = None) -> None:
        """Wait for all workers, unless an exception has ended the run."""
        if not self._interrupted:
            self.net.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of a worker."""
        return broadcast(self.net, obj, src, "Lightning's broadcast")

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all workers, or any, have decided so."""
        decisions = gathered(self.net, bool(decision), "Lightning's decision")
        return False not in decisions if all else True in decisions

    @property
    def _interrupted(self) -> bool:
        """Whether an exception has ended the run, so that ranks may be anywhere."""
        module = self.lightning_module
        return module is not None and module.trainer.state.status == "interrupted"

    def teardown(self) -> None:
        """Close the wrapped optimizers."""
        self._show_own()
        self._synced.close()
        if self._trains and not self._interrupted:
            for optimizer in self.optimizers:
                optimizer.close()
        self._trains = False
        super().teardown()


_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda X: X.mean(0, dtype=None if X.is_floating_point() else torch.float32),
    "sum": lambda X: X.sum(0),
    "max": lambda X: X.amax(0),
    "min": lambda X: X.amin(0),
    "product": lambda X: X.prod(0),
}
_REDUCTIONS["avg"] = _REDUCTIONS["mean"]


def _of_all(net: Network, value: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks."""
    own = value.detach().cpu().clone()
    return [other.to(value.device) for other in gathered(net, own, "Lightning's metrics")]


def _state_of(path: str, step: int, rank: int) -> str:
    """Return where a worker's state of a checkpoint is."""
    return f"{path}.workers/{step}/{rank}.ckpt"
