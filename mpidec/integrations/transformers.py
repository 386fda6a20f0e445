"""The Trainer of Hugging Face, whose optimizer is wrapped: one worker per rank."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import nn
from .._words import command_of_extras
from ..comm.mixing import Network
from ..optim import Decentralized, broadcast_parameters
from ..solvers import Solver
from .workers import average_model, broadcast, gathered, refuse_drop

try:
    import accelerate  # noqa: F401  (without which there is no Trainer)
    import transformers
except ImportError:
    raise ImportError(
        "mpidec.integrations.transformers needs Transformers and Accelerate, which are not "
        f"installed: {command_of_extras('transformers')}"
    ) from None
if not hasattr(transformers.Trainer, "_clip_grad_norm"):
    raise ImportError(
        f"mpidec.integrations.transformers needs Transformers >= 5.24, and {transformers.__version__} "
        f"is installed: {command_of_extras('transformers')}"
    )

if TYPE_CHECKING:
    from ..driver.internals import TopologyLike

__all__ = ["DecentralizedTrainer"]


class DecentralizedTrainer(transformers.Trainer):
    """Trainer of Hugging Face: each rank trains a worker, and its optimizer averages with the
    neighbours.

    Parameters
    ----------
    *args, **kwargs
        Of `transformers.Trainer`.
    net : Network
        Made before the `TrainingArguments`: `mpidec.Network(hide_launcher=True)`.
    topology, algorithm
        See `mpidec.optim.Decentralized`.
    options : dict, optional
        Further arguments of `Decentralized`: `every`, `buffers`, `mixing`, `check`, ...

    Attributes
    ----------
    net : Network

    Raises
    ------
    ImportError
        Without Transformers or Accelerate.
    ValueError
        What `Decentralized` refuses, in `train`; a process group of torch, or several devices in
        one process; samplers other than "random" and "sequential"; a checkpoint that not all
        workers have.

    Notes
    -----
    All workers start from the model of rank 0.  The training data are divided by
    `mpidec.nn.sampler` with the seed of rank 0, batch sizes are those of each worker, and only rank
    0 reports, the mean of the workers' losses.  Gradients are accumulated and clipped on each
    worker; with "allreduce" the average is clipped.

    Evaluation and prediction use the average of all workers' models, on each rank with all data.
    `save_model` saves the average.  Checkpoints of each worker are in `output_dir/worker-RANK`:
    `train(resume_from_checkpoint=True)` takes the newest that all have, and
    `resume_from_checkpoint="output_dir/checkpoint-STEP"` a given one; the training continues with
    the same bits, on as many workers.

    Sent per step: what `Decentralized` sends; per evaluation and `save_model` the model, to all
    workers.

    Examples
    --------
    >>> trainer = DecentralizedTrainer(model, args, net=net)  # doctest: +SKIP
    """

    optimizer: Any

    def __init__(
        self,
        *args: Any,
        net: Network,
        topology: TopologyLike | Sequence[TopologyLike] | None = None,
        algorithm: str | Solver = "atc",
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        refuse_drop(options or {})
        self.net = net
        self._wrapped = {
            "topology": topology,
            "algorithm": algorithm,
            "net": net,
            **(options or {}),
        }
        self._trains: Decentralized | None = None
        self._equal = True
        if net.rank:
            transformers.utils.logging.disable_progress_bar()
        super().__init__(*args, **kwargs)
        net.agree(self._refusal())
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        self._seed = broadcast(net, seed, 0, "the seed of the samplers")

    def _refusal(self) -> Exception | None:
        """Return what is wrong with the arguments of training."""
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            return ValueError(
                f"{self.args.world_size} processes and {self.args.n_gpu} devices in each, expected "
                "one process, in whose place mpidec has ranks, and at most one device: call "
                "mpidec.Network(hide_launcher=True) before TrainingArguments(...), and set "
                "CUDA_VISIBLE_DEVICES on each rank"
            )
        if self.args.train_sampling_strategy not in ("random", "sequential"):
            return ValueError(
                f"train_sampling_strategy is {self.args.train_sampling_strategy!r}, expected "
                '"random" or "sequential": mpidec divides the data'
            )
        return None

    def is_world_process_zero(self) -> bool:
        """Whether this is rank 0, which reports."""
        return self.net.rank == 0

    is_local_process_zero = is_world_process_zero

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return the samples of this rank; None for data without a length, which each rank
        divides itself.
        """
        data = self.train_dataset if train_dataset is None else train_dataset
        if not hasattr(data, "__len__"):
            return None
        return nn.sampler(
            data,
            self.net,
            shuffle=self.args.train_sampling_strategy == "random",
            seed=self._seed,
            drop_last=self.args.dataloader_drop_last,
        )

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the optimizer unless there is one, and wrap it."""
        super().create_optimizer(model)
        if self._trains is None:
            if self._equal:
                broadcast_parameters(self.model, self.net)
            self._trains = Decentralized(
                self.optimizer, self.model, equal=self._equal, **self._wrapped
            )
            self.optimizer = self._trains
        return self.optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        if self._trains is not None and self._trains.averager.algorithm.method.averages_gradients:
            self._trains.average_gradients()
        return super()._clip_grad_norm(model)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train; see `transformers.Trainer.train`.  Collective."""
        if resume_from_checkpoint:
            resume_from_checkpoint = self._own_checkpoint(resume_from_checkpoint)
            self._equal = False
        result = super().train(resume_from_checkpoint, *args, **kwargs)
        if self._trains is not None:
            self._trains.close()
            self.optimizer, self._trains = self._trains.optimizer, None
        self._equal = False
        return result

    def _own_checkpoint(self, given: Any) -> str:
        """Return the folder of this worker for a checkpoint; of True, the newest that all have."""
        state, folder = "trainer_state.json", Path(self._get_output_dir(None))
        if given is not True:
            path = Path(given)
            outer = path.parent.parent if path.parent.name.startswith("worker-") else path.parent
            folder = outer / folder.name
        # the file that is written last
        names = {file.parent.name for file in folder.glob(f"checkpoint-*/{state}")}
        common = set.intersection(*gathered(self.net, names, "checkpoints of all workers"))
        wanted = common if given is True else common & {path.name}
        if not wanted:
            raise ValueError(
                f"{folder.parent} has no {'checkpoint' if given is True else path.name} of all "
                f"{self.net.size} workers, expected one in each of its folders worker-RANK; all "
                f"have: {', '.join(sorted(common)) or 'none'}"
            )
        return str(folder / max(wanted, key=lambda name: int(name.rpartition("-")[2])))

    def _get_output_dir(self, trial: Any) -> str:
        return f"{super()._get_output_dir(trial)}/worker-{self.net.rank}"

    def consensus(self) -> ExitStack:
        """A context in which the model holds the average of all workers, during `train` and after
        it.  Collective.
        """
        return average_model(self.model, [self._trains] if self._trains else [], self.net)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the average of all workers.  Collective."""
        with self.consensus():
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the average of all workers, which `from_pretrained` reads.  Collective."""
        if _internal_call:  # of a checkpoint
            super().save_model(output_dir, _internal_call)
            return
        with self.consensus():
            if self.net.rank == 0:
                super().save_model(output_dir)
        self.net.barrier()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the means of the workers' losses and norms of gradients."""
        own = {name: logs[name] for name in ("loss", "grad_norm", "train_loss") if name in logs}
        if own:
            all_logs = gathered(self.net, own, "the workers' losses")
            logs.update({name: sum(one[name] for one in all_logs) / len(all_logs) for name in own})
        super().log(logs, *args, **kwargs)
