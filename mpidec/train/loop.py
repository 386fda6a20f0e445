"""Training: the loop over steps and evaluations, and its result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch

from .. import optim
from .._validation import choice
from .._words import check_options
from ..comm.mixing import Network
from ..comm.runtime import (
    CommRequest,
    Communicator,
    abandon,
    cores,
    cores_of_node,
    interrupts,
    library,
    on_all_ranks,
    ranks_of_node,
    start_minimum,
    total,
    world,
)
from ..nn.internals import BATCHED
from ..plugins import short
from ..record.internals import DATA, Fingerprint, file_hashes
from ..topology import Schedule, Topology
from .components import Rate, make_optimizer
from .epochs import EpochSchedule, Tally
from .files import TrainFile, WorkerColumns
from .logs import Logger, logger
from .options import named
from .settings import FREE, Settings, graph, method, shaping
from .workers import Workers

COSTS = ("time", "rounds", "bytes", "consensus")
TRAINED = ("epoch", "samples_per_second", "train_loss", "lr")
ALONE = 16  # workers in a single process
T = TypeVar("T")
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
        test accuracy of the worst worker and in the mean, test loss of the worst and in the mean,
        accuracy and loss of the average of all workers' parameters, `epoch`, `samples_per_second`
        of all workers, `train_loss` (the mean over all workers since the evaluation before; NaN at
        the start) and `lr`. Accuracies only where the targets are classes; of a metric M of the
        user's own, `M_mean` and `M_consensus`.
    workers : dict of (evaluations, n) arrays
        Loss, accuracy and metrics on the test set, of each worker.
    outcome : {"completed", "interrupted"}
    models : list of torch.nn.Module
        Those of the workers on this rank.
    """

    settings: Settings
    metrics: Mapping[str, np.ndarray]
    workers: Mapping[str, np.ndarray]
    outcome: str
    models: list[torch.nn.Module]

    @property
    def accuracy(self) -> np.ndarray:
        """On the test set, of each worker, (evaluations, n)."""
        return self.workers["accuracy"]

    @property
    def loss(self) -> np.ndarray:
        """On the test set, of each worker, (evaluations, n)."""
        return self.workers["loss"]

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.metrics.items()}
        what = "accuracy" if "accuracy" in self.workers else "loss"
        return (
            f"Trained({self.outcome} after {last['epoch']:g} epochs: {what} of the worst worker "
            f"{last[f'{what}_worst']:.4f}, mean {last[f'{what}_mean']:.4f}; "
            f"{self.loss.shape[1]} workers, {self.settings.algorithm})"
        )


def fit(
    settings: Settings | None = None,
    *,
    net: Network | None = None,
    resume: bool = False,
    changed: bool = False,
    on_failure: Literal["end", "drop"] = "end",
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
    on_failure : {"end", "drop"}
        With "drop" the training outlives ranks that die, as in `mpidec.optim.Decentralized`; the
        data are then divided anew.
    progress : callable (step, steps, metrics), optional
        Called after each step with the metrics of the last evaluation, but for `train_loss`, which
        is that of this rank's workers since then, and `lr`.
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
    check_options("fit", changes, tuple(each.name for each in fields(Settings)))
    settings = replace(settings or Settings(), **changes)
    owned = Network(workers(settings, world())) if net is None else None
    survive = choice(on_failure, "on_failure", ("end", "drop")) == "drop"
    with Training(settings, net or owned, resume, changed, survive) as training:  # type: ignore[arg-type]
        trained = training.run(progress)
    if owned is not None:
        owned.close()
    return trained


def workers(settings: Settings, comm: Communicator) -> int:
    """Return the number of workers of the settings on the ranks of `comm`.

    Raises
    ------
    ValueError
        If there are more ranks than workers.
    """
    n = settings.workers or (comm.size if comm.size > 1 else ALONE)
    if comm.size > n:
        raise ValueError(
            f"workers={n}, but the job has {comm.size} ranks, expected at least one worker on "
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
        self,
        settings: Settings,
        net: Network,
        resume: bool = False,
        changed: bool = False,
        survive: bool = False,
        lost: str = "",
    ):
        self.net, self.settings = net, settings
        self._file: TrainFile | None = None
        self._logger: Logger | None = None
        error: Exception | None = None
        try:
            base = self._prepared(settings, survive)
        except (ValueError, TypeError, OSError, ImportError) as caught:
            error = caught
        except RuntimeError as caught:
            error = ValueError(str(caught))
        net.agree(error)
        s = self.settings
        if len(net.collectives.distinct(np.array(self.workers.digest), "the data set")) > 1:
            raise ValueError(
                f"data set {short(s.data)} differs between the ranks: give the same to each, such "
                "as by a fixed seed"
            )
        with named("algorithm", s.algorithm_options):
            self.optimizer = optim.Decentralized(
                base,
                self.workers.model,
                self._of_any() if survive else self._graph,
                s.algorithm,
                net,
                buffers=s.buffers,
                mixing=s.mixing(),
                on_failure="drop" if survive else "end",
                trace=None if net.context.timeline else s.trace,
                **s.algorithm_options,
            )
        self._columns = WorkerColumns([*range(net.n)], net.n, lost)
        self._generators = Generators(self.workers.device)
        self._tally = Tally.empty(self.workers.m, self.workers.device)
        self._step, self._sent_before = 0, 0  # bytes before a resume
        self._records: list[dict[str, Any]] = []
        if s.out is not None:
            self._file = TrainFile(net, s.out)
        if self._file is not None and resume:
            self._continue(self._file, changed)
        elif self._file is not None:
            self._file.create(
                s.to_toml(),
                s.seed,
                library(),
                self.workers.rows().shape[1],
                metrics=self.metrics,
                per_worker=self.per_worker,
                topology=self._graph if s.algorithm != "hierarchical" else None,
                records=1 + -(-s.epochs // s.every),
                fingerprint=self._fingerprint(),
                lost=lost,
            )

    def _prepared(self, settings: Settings, survive: bool) -> torch.optim.Optimizer:
        """Make what needs no other rank, and return the optimizer of the workers."""
        net = self.net
        workers(settings, net.comm)
        self.workers = Workers(settings, net.n, net.agents, _device(settings, net))
        self.settings = s = self.workers.settings
        self._graph = graph(s, net.n)
        if s.trace is not None and not os.path.isdir(os.path.dirname(s.trace) or os.curdir):
            raise ValueError(f"trace={s.trace}: expected a file in a folder that exists")
        base = _optimizer(s, self.workers)
        self.epochs = EpochSchedule(s.epochs, self._steps_of_epoch())
        samples = s.accumulate * s.batch * net.n
        self._rate = Rate(s.schedule, s.lr or 0.0, s.epochs, samples / 256)
        self._begin_log()
        if survive and method(s).method.asynchronous:
            raise ValueError(
                f"algorithm {s.algorithm} is asynchronous: its workers meet at "
                "evaluations alone, and cannot go on without ranks that die (--survive)"
            )
        return base

    def _of_any(self) -> list[Callable[[int], Topology | Schedule]] | None:
        """Return the topologies as functions of the number of workers, of which some may die."""

        def part(i: int) -> Callable[[int], Topology | Schedule]:
            def of(n: int) -> Topology | Schedule:
                made = graph(self.settings, n)
                return cast("Topology | Schedule", made[i] if isinstance(made, list) else made)

            return of

        if self._graph is None:
            return None
        return [part(i) for i in range(len(self._graph) if isinstance(self._graph, list) else 1)]

    def _begin_log(self) -> None:
        """Make the logger of the settings, on the first rank."""
        s = self.settings
        if s.log is not None and self._logger is None and self.net.rank == 0:
            self._logger = logger(s.log, s.out)

    def _steps_of_epoch(self) -> int:
        """Return the steps of an epoch, of so many batches each as are accumulated."""
        batches = self.settings.accumulate
        of_epoch = max(1, self.workers.batches.per_epoch)
        if batches > of_epoch:
            raise ValueError(
                f"accumulate={batches}: an epoch of a worker has {of_epoch} batches, expected at "
                f"most {of_epoch}"
            )
        return of_epoch // batches

    @property
    def per_worker(self) -> tuple[str, ...]:
        """Names of what is recorded of each worker."""
        return (*["accuracy"] * self.workers.labels, "loss", *self.workers.metrics.names)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what is recorded."""
        worst = (*["accuracy_worst"] * self.workers.labels, "loss_worst")
        means = (f"{name}_{of}" for name in self.per_worker for of in ("mean", "consensus"))
        return (*COSTS, *worst, *means, *TRAINED)

    @property
    def lost(self) -> str:
        """Who has died, a line for each time; also before this part of the training."""
        return "\n".join([*filter(None, [self._columns.lost]), *self.optimizer.averager.lost])

    def run(self, progress: Progress | None = None) -> Trained:
        """Take all steps, evaluate, and record; return the result."""
        with (
            _threads(self.net, self.workers.size),
            self._generators.own((self.settings.seed << 20) + self.net.rank),
            interrupts() as interrupted,
        ):
            try:
                outcome = self._loop(interrupted, progress)
            except Exception as error:
                if self._file is not None:
                    outcome = "diverged" if isinstance(error, FloatingPointError) else "failed"
                    self._file.abandon(f"{type(error).__name__}: {error}", outcome)
                raise
            self._together(lambda: self._finish(outcome))
        records = {
            name: np.array([record[name] for record in self._records])
            for name in ("step", *self.metrics, *self.per_worker)
        }
        return Trained(
            self.settings,
            {name: records[name] for name in ("step", *self.metrics)},
            {name: records[name] for name in self.per_worker},
            outcome,
            self.workers.models(),
        )

    def _loop(self, interrupted: Callable[[], bool], progress: Progress | None) -> str:
        stop, averager = _Stop(self.net), self.optimizer.averager
        if not self._records:
            self._record()
            self._checkpoint()
        recorded, stopped = self._evaluations, False
        began = time.perf_counter()
        while self._step < self.epochs.steps:
            try:
                stopped, late = self._agreed(stop, interrupted, began)
            except Exception as error:
                averager.survive(error)
                continue
            if not stopped:
                self._take_step()
            record = stopped or self._evaluations > recorded or self._step == self.epochs.steps
            if record or late:
                self._generators.synchronize()
                self._tally.seconds += time.perf_counter() - began
                if record and self._tally.steps:
                    self._record()
                self._checkpoint()
                recorded = self._evaluations
                began = time.perf_counter()
            if progress is not None:
                progress(self._step, self.epochs.steps, self._records[-1] | self._now())
            if stopped:
                break
        averager.together(stop.close)
        return "interrupted" if stopped else "completed"

    def _agreed(
        self, stop: _Stop, interrupted: Callable[[], bool], saved: float
    ) -> tuple[bool, bool]:
        """Return whether to stop, and whether a checkpoint is due, the last one being from the time
        `saved`: all ranks learn of it one step later, without waiting for each other in this one.
        """
        averager, minutes = self.optimizer.averager, self.settings.checkpoint_minutes
        if not averager.together_again:
            return False, False
        due = minutes is not None and time.perf_counter() - saved >= 60 * minutes
        stopped, late = stop(interrupted(), due)
        return stopped, late or len(averager.lost) > self._columns.told

    def _take_step(self) -> None:
        s, optimizer = self.settings, self.optimizer
        rate = self._next_rate()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        losses = self.workers.gradients(s.accumulate)
        optimizer.observe(losses)
        if s.clip is not None:
            if s.algorithm == "allreduce":
                optimizer.average_gradients()
            self.workers.clip(s.clip)
        try:
            optimizer.step()
        except ValueError as error:  # a parameter that is not finite
            raise FloatingPointError(str(error)) from error
        self._tally.add(losses)
        self._step += 1

    def _now(self) -> dict[str, float]:
        """Return the mean loss of this rank's workers since the last record, and the rate."""
        tally = self._tally
        if not tally.steps:
            return {}
        loss = float(tally.losses.mean()) / tally.steps
        return {"train_loss": loss, "lr": self.optimizer.param_groups[0]["lr"]}

    def _next_rate(self) -> float:
        """Learning rate of the middle of a step: neither warm-up nor decay reach 0."""
        return self._rate(self.epochs.at(self._step + 0.5))

    @property
    def _evaluations(self) -> int:
        """How many evaluations are due until now, the first one not counted."""
        return int(self.epochs.at(self._step) / self.settings.every + 1e-9)

    def _together(self, act: Callable[[], T]) -> T:
        """Return what `act()` does, which all ranks do at a step; again, without those that die in
        it.
        """

        def adapted() -> T:
            if len(self.optimizer.averager.lost) > self._columns.told:
                self._adapt()
            return act()

        return self.optimizer.averager.together(adapted)

    def _adapt(self) -> None:
        """Divide the data among the workers that are left, and let the first rank go on with the
        file.  Collective.
        """
        averager, net = self.optimizer.averager, self.net
        self._columns.keep(averager.workers)
        self.workers.divide(net.n, net.agents)
        self.settings = replace(self.settings, workers=net.n)
        self.epochs.change(self._step, self._steps_of_epoch())
        with on_all_ranks(net):
            self._begin_log()
        if self._file is not None:
            self._file.renew(
                self._records,
                self.per_worker,
                {
                    "lost": self.lost,
                    "ranks": net.size,
                    "config": self.settings.to_toml(),
                    "workers": " ".join(map(str, self._columns.left)),
                    **self._fingerprint().attributes(),
                },
            )
        self._columns.told = len(averager.lost)

    def _record(self) -> None:
        """Evaluate all workers and their average, and record it; collective."""
        self._records.append(self._together(self._evaluated))
        self._tally = Tally.empty(self.workers.m, self.workers.device)
        self._log(self._records)

    def _evaluated(self) -> dict[str, Any]:
        """Return the record of this step, which is then in the file; collective."""
        net, averager, names = self.net, self.optimizer.averager, self.per_worker
        tally = self._tally
        with on_all_ranks(net):
            mine = self.workers.evaluate()
        mine["train_loss"] = tally.losses.cpu().numpy() / (tally.steps or np.nan)
        found = {
            name: np.concatenate(parts)
            for name, parts in zip(mine, zip(*net.comm.allgather([*mine.values()])))
        }
        with self.optimizer.consensus() as distance:
            common = self.workers.evaluate_first(net)
        samples = tally.steps * self.settings.accumulate * self.settings.batch * net.n
        record = {
            "step": self._step,
            "time": self._seconds + tally.seconds,
            "rounds": averager.rounds,
            "bytes": self._sent_before + total(net.comm, averager.sent_bytes),
            "consensus": distance,
            "loss_worst": found["loss"].max(),
            **{f"{name}_mean": found[name].mean() for name in names},
            **{f"{name}_consensus": common[name] for name in names},
            "epoch": self.epochs.at(self._step),
            "samples_per_second": samples / tally.seconds if samples else 0.0,
            "train_loss": found["train_loss"].mean(),
            "lr": self.optimizer.param_groups[0]["lr"] if tally.steps else self._next_rate(),
            **{name: self._columns.of_all(found[name]) for name in names},
        }
        if "accuracy" in names:
            record["accuracy_worst"] = found["accuracy"].min()
        if self._file is not None:
            self._file.append(self._step, record, names)
        return record

    @property
    def _seconds(self) -> float:
        """The time of training until the last evaluation."""
        return float(self._records[-1]["time"]) if self._records else 0.0

    def _finish(self, outcome: str) -> None:
        """Write the parameters of the workers and the outcome; collective."""
        if self._file is not None:
            self._file.finish(self.workers.rows(), self._columns, outcome, self._step)

    def _log(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Pass records on to the logger of the settings, on rank 0; collective."""
        with on_all_ranks(self.net):
            if self._logger is not None:
                numbers = ("step", *self.metrics)
                self._logger(
                    [{name: np.asarray(one[name]).item() for name in numbers} for one in records]
                )

    def _checkpoint(self) -> None:
        """Replace the checkpoint of the file; collective."""
        if self._file is not None or len(self.optimizer.averager.lost) > self._columns.told:
            self._together(self._saved)

    def _saved(self) -> None:
        if self._file is None:
            return
        sent = self._sent_before + total(self.net.comm, self.optimizer.averager.sent_bytes)
        tally = self._tally
        self._file.checkpoint(
            self._step,
            {
                "model": dict(self.workers.model.state_dict()),
                "optimizer": self.optimizer.state_dict(),
                "batches": self.workers.batches.state(),
                "epochs": [*self.epochs.since],
                "seconds": self._seconds,
                "since": [tally.losses, tally.steps, tally.seconds],
                "sent": sent,
                "random": self._generators.states(),
            },
        )

    def _continue(self, file: TrainFile, changed: bool) -> None:
        """Load the last checkpoint; collective."""
        fingerprint = self._fingerprint()
        self._step, state, self._records, columns = file.load(fingerprint, shaping, changed)
        error: Exception | None = None
        try:
            self.workers.model.load_state_dict(state["model"])
            self.workers.batches.load(state["batches"])
        except (RuntimeError, ValueError) as caught:
            error = ValueError(f"{file.path}: {caught}")
        self.net.agree(error)
        self.optimizer.load_state_dict(state["optimizer"])
        self._generators.recall(state["random"])
        since, before = state.get("epochs", (0, 0.0))
        self.epochs.begin((since, before), self.epochs.length)
        columns.lost = "\n".join(filter(None, [columns.lost, self._columns.lost]))
        self._columns = columns
        self._sent_before = int(state["sent"])
        losses, steps, seconds = state["since"]
        self._tally = Tally(losses.to(self.workers.device), steps, seconds)
        file.resume(self._step, self.settings.to_toml(), fingerprint)

    def _fingerprint(self) -> Fingerprint:
        s, data = self.settings, self.workers
        apart = {*FREE, "data.name"}  # the content of data is compared
        sources = {key: name for key, name in s.sources().items() if key not in apart}
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


class Generators:
    """PyTorch's global random numbers, of the processor and of the devices of a rank."""

    def __init__(self, device: str):
        cuda = device.startswith("cuda")
        self._devices = [torch.device(device).index or 0] if cuda else []
        self._states: list[torch.Tensor] = []  # of a resumed training

    def states(self) -> list[torch.Tensor]:
        """Return the states of all generators."""
        on_devices = (torch.cuda.get_rng_state(device) for device in self._devices)
        return [torch.get_rng_state(), *on_devices]

    def recall(self, states: list[torch.Tensor]) -> None:
        """Let a training begin with these states."""
        self._states = states

    @contextmanager
    def own(self, seed: int) -> Iterator[None]:
        """Context in which the numbers are those of a training."""
        with torch.random.fork_rng(devices=self._devices):
            torch.manual_seed(seed)
            if self._states:
                torch.set_rng_state(self._states[0])
                for device, state in zip(self._devices, self._states[1:]):
                    torch.cuda.set_rng_state(state, device)
            yield

    def synchronize(self) -> None:
        """Wait until the devices have computed what they were asked to."""
        for device in self._devices:
            torch.cuda.synchronize(device)


class _Stop:
    """Whether some rank was interrupted, and whether a checkpoint is due, agreed on by all ranks:
    the answer of one step is known in the next one.
    """

    def __init__(self, net: Network):
        self._net, self._comm = net, net.comm
        self._request: CommRequest | None = None
        # -1 for yes; and the least of all ranks.
        self._mine, self._least = np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int32)

    def __call__(self, interrupted: bool, due: bool) -> tuple[bool, bool]:
        if self._net.size == 1:
            return interrupted, due
        answer = self.close()
        self._mine[:] = -interrupted, -due
        self._comm = self._net.comm
        self._request = start_minimum(self._comm, self._mine, self._least)
        return answer

    def close(self) -> tuple[bool, bool]:
        """Wait for the last answer."""
        if self._comm is not self._net.comm:  # of ranks that have died
            abandon((self._request, self._mine, self._least))
            self._request, self._least = None, np.zeros(2, dtype=np.int32)
            self._mine = np.zeros(2, dtype=np.int32)
        if self._request is not None:
            self._request.Wait()
            self._request = None
        return bool(self._least[0]), bool(self._least[1])


def _optimizer(settings: Settings, workers: Workers) -> torch.optim.Optimizer:
    given = {name: vars(settings)[name] for name in ("lr", "weight_decay", "momentum", "nesterov")}
    options = settings.optimizer_options
    parameters = workers.model.parameters()
    return make_optimizer(settings.optimizer, given, options, parameters, workers.m)


def _device(settings: Settings, net: Network) -> str:
    if settings.device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise ValueError(
            "device=cuda, but PyTorch finds no CUDA device here: use --device cpu, or a build "
            "of PyTorch for CUDA"
        )
    local = ranks_of_node(net.comm)
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
