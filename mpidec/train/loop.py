"""Training: the loop over steps and evaluations, and its result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from .. import optim
from ..comm.mixing import Network
from ..comm.runtime import MPI, cores, cores_of_node, interrupts, library
from ..nn.internals import BATCHED, factor
from ..plugins import is_plugin, short
from ..record.internals import DATA, Fingerprint, file_hashes
from .files import TrainFile
from .options import named
from .settings import Settings, graph, method, shaping
from .workers import Workers

METRICS = (
    "time",
    "rounds",
    "bytes",
    "consensus",
    "accuracy_worst",
    "accuracy_mean",
    "loss_mean",
    "accuracy_consensus",
    "loss_consensus",
    "epoch",
    "samples_per_second",
)
PER_WORKER = ("accuracy", "loss")
ALONE = 16  # workers in a single process
Progress = Callable[[int, int, Mapping[str, float]], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """Result of a training.

    Parameters
    ----------
    settings : Settings
        With the number of workers.
    metrics : dict of arrays
        One entry per evaluation: `step`, `time` (s of training), `rounds` (mixings), `bytes` (sent
        by all workers), `consensus` (:math:`\\sqrt{\\frac{1}{n} \\sum_i \\|x_i - \\bar x\\|^2}`),
        test accuracy of the worst worker and in the mean, mean test loss, accuracy and loss of the
        average of all workers' parameters, `epoch`, and `samples_per_second` of all workers.
    accuracy, loss : (evaluations, n) arrays
        On the test set, of each worker.
    outcome : {"completed", "interrupted"}
    models : list of torch.nn.Module
        Those of the workers on this rank.
    """

    settings: Settings
    metrics: Mapping[str, np.ndarray]
    accuracy: np.ndarray
    loss: np.ndarray
    outcome: str
    models: list[torch.nn.Module]

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.metrics.items()}
        return (
            f"Trained({self.outcome} after {last['epoch']:g} epochs: accuracy of the worst worker "
            f"{last['accuracy_worst']:.4f}, mean {last['accuracy_mean']:.4f}; "
            f"{self.accuracy.shape[1]} workers, "
            f"{self.settings.algorithm})"
        )


def fit(
    settings: Settings | None = None,
    *,
    net: Network | None = None,
    resume: bool = False,
    changed: bool = False,
    progress: Progress | None = None,
    **changes: Any,
) -> Trained:
    """Train a network with decentralized workers.

    Parameters
    ----------
    settings : Settings, optional
    net : Network, optional
        By default one over `MPI.COMM_WORLD` with the workers of the settings; with one rank 16,
        else one per rank.
    resume : bool
        Continue the training in the file `settings.out` from its last evaluation, bit for bit, on
        the same number of ranks.  It is refused if data, code or settings have changed, but for
        `epochs`, `every`, `device` and `trace`.
    changed : bool
        With `resume`, continue although they have; what was and what is are told by the attribute
        `resumed` of the file.
    progress : callable (step, steps, metrics), optional
        Called after each step with the metrics of the last evaluation.
    **changes
        Fields of `Settings`: `fit(algorithm="relay", topology="chain", alpha=0.01)`.

    Raises
    ------
    FloatingPointError
        If a parameter is not finite any more, in one process; a `ValueError` on several ranks.
    ValueError, TypeError, OSError
        On every rank: settings that do not fit together, data or files that cannot be read or
        written.

    Notes
    -----
    Collective.  The same settings give the same result on the same number of ranks.  PyTorch's
    global random numbers stay as they are.

    Examples
    --------
    >>> trained = fit(workers=4, algorithm="relay", alpha=1.0, epochs=3)
    >>> trained.accuracy.shape
    (2, 4)
    """
    settings = replace(settings or Settings(), **changes)
    owned = Network(workers(settings, MPI.COMM_WORLD)) if net is None else None
    with Training(settings, net or owned, resume, changed) as training:  # type: ignore[arg-type]
        trained = training.run(progress)
    if owned is not None:
        owned.close()
    return trained


def workers(settings: Settings, comm: MPI.Intracomm) -> int:
    """Return the number of workers of the settings on the ranks of `comm`.

    Raises
    ------
    ValueError
        If there are more ranks than workers.
    """
    n = settings.workers or (comm.size if comm.size > 1 else ALONE)
    if comm.size > n:
        raise ValueError(
            f"workers is {n}, but the job has {comm.size} ranks, expected at least one worker on "
            "each: start fewer "
            f"ranks, or more workers (--workers {comm.size})"
        )
    if method(settings).method.asynchronous and comm.size != n:
        raise ValueError(
            f"algorithm {settings.algorithm} is asynchronous and needs one worker per rank, got "
            f"{n} workers on "
            f"{comm.size} rank{'s' * (comm.size > 1)}: mpirun -n {n}"
        )
    return int(n)


class Training:
    """A training that is ready to run.  Collective; see `fit`."""

    def __init__(
        self, settings: Settings, net: Network, resume: bool = False, changed: bool = False
    ):
        self.net, self.settings = net, settings
        self._file: TrainFile | None = None
        error: Exception | None = None
        try:
            workers(settings, net.comm)
            self.settings = settings.complete(net.n)
            self._device = _device(settings, net)
            self.workers = Workers(self.settings, net.n, net.agents, self._device)
            self._graph = graph(self.settings, net.n)
            if settings.trace is not None and not os.path.isdir(
                os.path.dirname(settings.trace) or os.curdir
            ):
                raise ValueError(
                    f"trace is {settings.trace}, expected a file in a folder that exists"
                )
            base = _optimizer(self.settings, self.workers.model)
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as caught:
            error = (
                caught
                if isinstance(caught, (ValueError, TypeError, OSError, ImportError))
                else ValueError(str(caught))
            )
        net.agree(error)
        s = self.settings
        if len(set(net.comm.allgather(self.workers.digest))) > 1:
            raise ValueError(
                f"data set {short(s.data)} differs between the ranks: give the same to each, such "
                "as by a fixed seed"
            )
        with named("algorithm", s.algorithm_options):
            self.optimizer = optim.Decentralized(
                base,
                self.workers.model,
                self._graph,
                s.algorithm,
                net,
                buffers=s.buffers,
                mixing=s.mixing(),
                trace=None if net.context.timeline else s.trace,
                **s.algorithm_options,
            )
        self.per_epoch = max(1, self.workers.batches.per_epoch)
        self.steps = s.epochs * self.per_epoch
        self._devices = (
            [torch.device(self._device).index or 0] if self._device.startswith("cuda") else []
        )
        self._step, self._seconds, self._sent_before = 0, 0.0, 0  # bytes before a resume
        self._records: list[dict[str, Any]] = []
        # States of the generators, of a resumed training.
        self._random: list[torch.Tensor] = []
        if s.out is not None:
            self._file = TrainFile(net, s.out)
            if resume:
                self._continue(self._file, changed)
            else:
                self._file.create(
                    s.to_toml(),
                    s.seed,
                    library(),
                    self.workers.rows().shape[1],
                    metrics=METRICS,
                    per_worker=PER_WORKER,
                    topology=self._graph if s.algorithm != "hierarchical" else None,
                    records=1 + -(-s.epochs // s.every),
                    fingerprint=self._fingerprint(),
                )

    def run(self, progress: Progress | None = None) -> Trained:
        """Take all steps, evaluate, and record; return the result."""
        with (
            _threads(self.net, self.workers.size),
            torch.random.fork_rng(devices=self._devices),
            interrupts() as interrupted,
        ):
            torch.manual_seed((self.settings.seed << 20) + self.net.rank)
            if self._random:
                torch.set_rng_state(self._random[0])
                for device, state in zip(self._devices, self._random[1:]):
                    torch.cuda.set_rng_state(state, device)
            try:
                outcome = self._loop(interrupted, progress)
            except Exception as error:
                if self._file is not None:
                    self._file.abandon(f"{type(error).__name__}: {error}")
                raise
            if self._file is not None:
                self._file.finish(self.workers.rows(), outcome, self._step)
        records = {
            name: np.array([record[name] for record in self._records])
            for name in ("step", *METRICS, *PER_WORKER)
        }
        metrics = {name: records[name] for name in ("step", *METRICS)}
        return Trained(
            self.settings,
            metrics,
            records["accuracy"],
            records["loss"],
            outcome,
            self.workers.models(),
        )

    def _loop(self, interrupted: Callable[[], bool], progress: Progress | None) -> str:
        every, stop = self.settings.every * self.per_epoch, _Stop(self.net)
        if not self._records:
            self._record(0.0, 0)
        began, first = time.perf_counter(), self._step
        while self._step < self.steps:
            # All ranks learn of an interrupt one step later, without waiting for each other in this
            # one.
            stopped = stop(interrupted())
            if not stopped:
                self._take_step()
            if stopped or self._step % every == 0 or self._step == self.steps:
                for device in self._devices:
                    torch.cuda.synchronize(device)
                if self._step > first:
                    self._record(time.perf_counter() - began, self._step - first)
                began, first = time.perf_counter(), self._step
            if progress is not None:
                progress(self._step, self.steps, self._records[-1])
            if stopped:
                stop.close()
                return "interrupted"
        stop.close()
        return "completed"

    def _take_step(self) -> None:
        s, optimizer = self.settings, self.optimizer
        epoch = (
            self._step + 0.5
        ) / self.per_epoch  # the middle of the step: neither warm-up nor decay reach 0
        rate = (s.lr or 0.0) * factor(s.schedule, epoch, s.epochs, s.batch * self.net.n / 256)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        optimizer.observe(self.workers.gradients())
        if s.clip is not None:
            if s.algorithm == "allreduce":
                optimizer.average_gradients()
            self.workers.clip(s.clip)
        try:
            optimizer.step()
        except ValueError as error:  # a parameter that is not finite
            raise FloatingPointError(str(error)) from error
        self._step += 1

    def _record(self, seconds: float, steps: int) -> None:
        """Evaluate all workers and their average, and record it with a checkpoint; collective."""
        self._seconds += seconds
        net, averager = self.net, self.optimizer.averager
        accuracy, loss = (
            np.concatenate(parts) for parts in zip(*net.comm.allgather(self.workers.evaluate()))
        )
        with self.optimizer.consensus() as distance:
            common = net.comm.allreduce(self.workers.evaluate_first(net.rank, net.size))
        counts = np.array(
            [averager.rounds, self._sent_before + net.comm.allreduce(averager.sent_bytes)]
        )
        samples = steps * self.settings.batch * net.n
        record = {
            "step": self._step,
            "time": self._seconds,
            "rounds": int(counts[0]),
            "bytes": int(counts[1]),
            "consensus": distance,
            "accuracy_worst": accuracy.min(),
            "accuracy_mean": accuracy.mean(),
            "loss_mean": loss.mean(),
            "accuracy_consensus": common[0],
            "loss_consensus": common[1],
            "epoch": self._step / self.per_epoch,
            "samples_per_second": samples / seconds if samples else 0.0,
            "accuracy": accuracy,
            "loss": loss,
        }
        self._records.append(record)
        if self._file is not None:
            self._file.append(self._step, record, PER_WORKER)
            self._file.checkpoint(
                self._step,
                {
                    "model": dict(self.workers.model.state_dict()),
                    "optimizer": self.optimizer.state_dict(),
                    "batches": self.workers.batches.state(),
                    "seconds": self._seconds,
                    "counts": counts,
                    "random": [
                        torch.get_rng_state(),
                        *(torch.cuda.get_rng_state(device) for device in self._devices),
                    ],
                },
            )

    def _continue(self, file: TrainFile, changed: bool) -> None:
        """Load the last checkpoint; collective."""
        fingerprint = self._fingerprint()
        self._step, state, self._records = file.load(fingerprint, shaping, changed)
        error: Exception | None = None
        try:
            self.workers.model.load_state_dict(state["model"])
            self.workers.batches.load(state["batches"])
        except (RuntimeError, ValueError) as caught:
            error = ValueError(f"{file.path}: {caught}")
        self.net.agree(error)
        self.optimizer.load_state_dict(state["optimizer"])
        self._random, self._seconds = state["random"], state["seconds"]
        self._sent_before = int(state["counts"][1])
        file.resume(self._step, self.settings.to_toml(), fingerprint)

    def _fingerprint(self) -> Fingerprint:
        s, data = self.settings, self.workers
        named = {"model.name": s.model, "topology.name": s.topology or ""}
        sources = {key: name for key, name in named.items() if is_plugin(name)}
        if data.samples:
            sources[DATA] = s.data
        known = (f"{data.digest:08x}", data.samples) if data.samples else ("", 0)
        return Fingerprint(shaping(s.to_toml()), sources, file_hashes(sources), known)

    def close(self) -> None:
        """Free the optimizer's resources and write the timeline; collective."""
        self.optimizer.close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


class _Stop:
    """Whether some rank was interrupted, agreed on by all ranks: the answer of one step is known
    in the next one.
    """

    def __init__(self, net: Network):
        self._comm = net.comm
        self._request: MPI.Request | None = None
        self._mine, self._any = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32)

    def __call__(self, interrupted: bool) -> bool:
        if self._comm.size == 1:
            return interrupted
        stopped = self.close()
        self._mine[0] = interrupted
        self._request = self._comm.Iallreduce(self._mine, self._any, MPI.MAX)
        return stopped

    def close(self) -> bool:
        """Wait for the last answer."""
        if self._request is not None:
            self._request.Wait()
            self._request = None
        return bool(self._any[0])


def _optimizer(settings: Settings, model: torch.nn.Module) -> torch.optim.Optimizer:
    options: dict[str, Any] = {
        "lr": settings.lr,
        "weight_decay": settings.weight_decay,
        **settings.optimizer_options,
    }
    if settings.optimizer == "sgd":
        options |= {"momentum": settings.momentum, "nesterov": settings.nesterov}
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[
        settings.optimizer
    ]
    with named("optimizer", settings.optimizer_options):
        return make(model.parameters(), **options)


def _device(settings: Settings, net: Network) -> str:
    if settings.device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise ValueError(
            "device is cuda, but PyTorch finds no CUDA device here: use --device cpu, or a build "
            "of PyTorch for CUDA"
        )
    local = net.comm.Split_type(MPI.COMM_TYPE_SHARED)
    place = local.rank
    local.Free()
    return f"cuda:{place % torch.cuda.device_count()}"


@contextmanager
def _threads(net: Network, size: int) -> Iterator[None]:
    """A context in which the ranks of a node divide its cores between their PyTorch threads, unless
    OMP_NUM_THREADS is set.

    Models of few parameters (`size`) take one thread each: several are slower.
    """
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    ranks, together = cores_of_node(net.comm)
    share = max(1, min(len(cores()), together // ranks)) if size > BATCHED else 1
    before = torch.get_num_threads()
    torch.set_num_threads(share)
    try:
        yield
    finally:
        torch.set_num_threads(before)
