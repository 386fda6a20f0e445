"""Averager: the rows of a model's parameters, and what happens to them in each step."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..comm.checks.mismatch import is_told
from ..comm.mixing import Network
from ..comm.runtime.finite import COMPILED, watch
from ..comm.runtime.mpi import MPI
from ..driver import arguments as resolve
from ..exceptions import RankMismatchError, mark
from ..nn.stacked import Stacked
from ..topology import CATALOGUE, Schedule, Striped, Topology
from .algorithms import algorithm as algorithm_of, names
from .copies import Copies
from .equal import check_equal, check_settings, check_trained, refusal
from .methods import AllReduce, Method, mean
from .rows import Bucket, buckets
from .timeline import TrainingEvents

if TYPE_CHECKING:
    from ..driver.arguments import TopologyLike

NEAR, FAR = (
    1 << 28,
    1 << 20,
)  # bytes of a bucket on one node, and between nodes: pieces travel together
Models = Any  # torch.nn.Module, or a sequence of them


class Averager:
    r"""Average the parameters of a model with those of the neighbours, after each step of any
    optimizer.

    .. math:: x_i \leftarrow \sum_j W_{ij} x_j

    For training loops that cannot take a wrapped optimizer; otherwise see `Decentralized`, which
    has the same parameters.

    Parameters
    ----------
    model : torch.nn.Module, or a list of them
        On every rank the same, with the same values.
    topology : Topology, Schedule, str or list, optional
        See `Decentralized`.
    algorithm : str or Solver
        One that sees only what the optimizer has done: not "allreduce", "awc", "qg" or "decentlam".
    net : Network, optional
    **options
        See `Decentralized`.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with Averager(model, "ring") as average:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(8, 3)).square().mean().backward()
    ...         _ = optimizer.step()
    ...         average()
    >>> average.steps
    3
    """

    def __init__(
        self,
        model: Models,
        topology: TopologyLike | Sequence[TopologyLike] | None = None,
        algorithm: Any = "atc",
        net: Network | None = None,
        *,
        every: int | None = None,
        buffers: str = "local",
        mixing: Callable[[Any], Any] | None = None,
        equal: bool = True,
        check: bool = True,
        trace: str | os.PathLike[str] | None = None,
        bucket_bytes: int | None = None,
        _groups: Callable[[], list[dict[str, Any]]] | None = None,
        **options: Any,
    ):
        self._models: list[torch.nn.Module] = (
            [model] if isinstance(model, torch.nn.Module) else list(model)
        )
        self._stacked = isinstance(self._models[0], Stacked)
        self.algorithm = algorithm_of(algorithm, **options)
        if _groups is None and (self.algorithm.of_gradients or self.algorithm.by_rate):
            raise ValueError(
                f"algorithm {self.algorithm.name!r} needs the gradients or the learning rate, "
                "which an averager does "
                "not see: use Decentralized(optimizer, model, ...)"
            )
        if buffers not in ("local", "average"):
            raise ValueError(f'buffers is {buffers!r}, expected "local" or "average"')
        self.every = self._period(every)
        self.steps, self._buffers, self._check, self._trace = 0, buffers, check, trace
        stacks = {part.m for part in self._models if isinstance(part, Stacked)}
        self._own = net is None
        self.net = net = (
            Network(stacks.pop() * MPI.COMM_WORLD.size if stacks else None) if net is None else net
        )
        self._names = {
            id(p): f"{i}.{name}" if len(self._models) > 1 else name
            for i, part in enumerate(self._models)
            for name, p in part.named_parameters()
        }
        every_parameter: list[dict[str, Any]] = [
            {"params": [p for part in self._models for p in part.parameters()], "lr": 1.0}
        ]
        groups = _groups or (lambda: every_parameter)
        net.agree(self._refusal(groups()))
        plain = {
            name: options[name]
            for name in sorted(options)
            if isinstance(options[name], (bool, int, float, str))
        }
        check_settings(
            net,
            algorithm=self.algorithm.name,
            every=self.every,
            buffers=buffers,
            bucket_bytes=bucket_bytes,
            equal=equal,
            trace=trace is not None,
            options=plain,
        )
        check_trained(
            net,
            [(self._names[id(p)], p.requires_grad) for group in groups() for p in group["params"]],
        )
        if equal:
            self._check_equal(groups())
        near = net.size == 1 or (net.node is not None and net.node.single_node)
        most = (NEAR if near else FAR) if bucket_bytes is None else bucket_bytes
        self.buckets = buckets(
            groups,
            self._names,
            net.m,
            self._stacked,
            most,
            lambda length, like: net.empty(length, like=like),
        )
        self._groups, self._counts = _groups, [len(group["params"]) for group in groups()]
        self._frozen = [p for group in groups() for p in group["params"] if not p.requires_grad]
        self._method = self._made(topology, mixing)
        self._hooks = (
            [] if near or not self.algorithm.overlaps else _polled(self._models, net.engine.poll)
        )
        self._apart = self._loaded = False
        self._copies, self._looked = Copies(net, self.algorithm.asynchronous), False
        self._watch(check)
        traced = trace is not None or net.context.timeline is not None
        self._timeline = TrainingEvents(net, self._models[0], trace) if traced else None
        self._unwritten = weakref.finalize(
            self,
            sys.stderr.write,
            f"mpidec: the timeline {trace} is not written: call close(), or use the optimizer in a "
            "with statement\n",
        )
        if trace is None or net.rank:
            self._unwritten.detach()

    def _period(self, every: int | None) -> int:
        period = self.algorithm.every if every is None else every
        if not isinstance(period, int) or period < 1:
            raise ValueError(f"every is {every!r}, expected a whole number >= 1")
        if self.algorithm.each_step and period > 1:
            raise ValueError(
                f"algorithm {self.algorithm.name!r} communicates in every step, got every={every}: "
                'use "local" or '
                '"pga"'
            )
        return period

    def _check_equal(self, groups: list[dict[str, Any]]) -> None:
        """Refuse models that differ between ranks: parameters in the order of the groups, then
        all the others, and buffers.
        """
        named = [(self._names[id(p)], p) for group in groups for p in group["params"]]
        taken = {id(p) for _, p in named}
        others = [
            (name, value)
            for part in self._models
            for name, value in [*part.named_parameters(), *part.named_buffers()]
            if id(value) not in taken
        ]
        check_equal(
            self.net,
            [(name, value[0] if self._stacked else value) for name, value in [*named, *others]],
        )

    def _watch(self, check: bool) -> None:
        """Let the sums of mixings notice numbers that are not finite; where they cannot, look at
        the rows themselves.
        """
        self._infected = False
        if check:
            watch(1)
            self._unwatch = weakref.finalize(self, watch, -1)
        self._unwatched = (
            not COMPILED
            or self.net.n == 1
            or self.algorithm.edgewise
            or any(mixer.feedback for mixer in self._mixers)
            or any(bucket.rows.device.type != "cpu" for bucket in self.buckets)
        )
        if isinstance(self._method, AllReduce) and check:
            self._method.finite = lambda bucket, rows: self._finite(
                bucket, rows, self.steps, "gradient"
            )

    def _refusal(self, groups: list[dict[str, Any]]) -> Exception | None:
        if why := refusal(self._models, (p for group in groups for p in group["params"])):
            return TypeError(why)
        for part in self._models:
            held = part.m if isinstance(part, Stacked) else 1
            if held != self.net.m:
                return ValueError(
                    f"rank {self.net.rank}: the network has {self.net.m} agents here, the model is "
                    f"of {held}: "
                    "one agent per rank, or mpidec.nn.Stacked(model, net.m)"
                )
        if self._trace is not None and not os.path.isdir(
            os.path.dirname(os.path.abspath(self._trace))
        ):
            return ValueError(
                f"trace is {os.fspath(self._trace)}, expected a file in a folder that exists"
            )
        for g, group in enumerate(groups):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in self._names:
                    return ValueError(
                        f"parameter {i} of group {g} of the optimizer, of shape "
                        f"{tuple(parameter.shape)}, is not a "
                        "parameter of the model: pass all models that the optimizer trains, as a "
                        "list"
                    )
        return None

    def _made(
        self,
        topology: TopologyLike | Sequence[TopologyLike] | None,
        mixing: Callable[[Any], Any] | None,
    ) -> Method:
        net, algorithm = self.net, self.algorithm
        self._mixers: list[Any] = []
        if mixing is not None and (algorithm.name == "allreduce" or algorithm.asynchronous):
            raise ValueError(
                f"algorithm {algorithm.name!r} does not mix by W, so that mixing= would have no "
                "effect: leave it out"
            )
        if algorithm.name == "allreduce":
            return algorithm.make(net, self.buckets, [])
        given = algorithm.graph if topology is None else topology
        kinds = (str, Topology, Schedule)
        if isinstance(given, (list, tuple)) and given and all(isinstance(g, kinds) for g in given):
            listed: list[Any] = list(given)
        else:
            listed = [given]
        graphs: list[Topology | Schedule] = [graph for one in listed for graph in self._graph(one)]
        if algorithm.graphs is not None:
            graphs = algorithm.graphs(graphs)
        for graph in graphs:
            if graph.n != net.n:
                raise ValueError(
                    f"the {graph.name} topology has {graph.n} agents, the network {net.n}"
                )
            if algorithm.check is not None:
                algorithm.check(graph)
        self._mixers = [net.mixer(graph) for graph in graphs]
        for make in (algorithm.mixing, mixing):
            if make is not None:
                self._mixers = [make(mixer) for mixer in self._mixers]
        return algorithm.make(net, self.buckets, self._mixers)

    def _graph(self, given: Any) -> list[Topology | Schedule]:
        if isinstance(given, str) and given in names() and given not in CATALOGUE:
            raise ValueError(
                f"topology {given!r} is the name of an algorithm: pass it as algorithm={given!r}"
            )
        size = self.algorithm.machine_size
        n = self.net.n // size
        if self.net.n % size:
            raise ValueError(
                f"algorithm {self.algorithm.name!r}: machine_size is {size}, expected a divisor of "
                "the number of "
                f"workers {self.net.n}"
            )
        graph = resolve.as_topology(given, n)
        return [*graph] if isinstance(graph, Striped) else [graph]

    def __call__(self, model: torch.nn.Module | None = None) -> None:
        """Average; after `optimizer.step()`.  The argument, a model, is ignored."""
        self.after()

    def before(self) -> None:
        """What comes before the optimizer's update."""
        self._compare_loaded()
        self._settle()
        self._look()
        if self.algorithm.of_gradients:
            with self._span("wait"), torch.no_grad(), self._same_steps():
                self._method.before(self.steps)
                self._show(self.steps, self.steps - 1)

    def after(self) -> None:
        """What comes after the optimizer's update."""
        self._compare_loaded()
        self._look()
        self._looked = False
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise RuntimeError(
                    f"parameter {self._names[id(parameter)]} was frozen when it was wrapped and "
                    "takes no part in "
                    "the averages: wrap the optimizer again after unfreezing it"
                )
        if (
            self._groups is not None
            and [len(group["params"]) for group in self._groups()] != self._counts
        ):
            raise RuntimeError(
                "the optimizer has got or lost parameters since it was wrapped, which take no part "
                "in the averages: "
                "close the wrapper and wrap the optimizer again"
            )
        if (self.steps + 1) % self.every == 0:
            k = self.steps // self.every
            self._settle()
            with self._span("mix"), torch.no_grad(), self._same_steps():
                for bucket in self.buckets if self.algorithm.asynchronous and self._check else ():
                    self._finite(bucket, bucket.rows, self.steps)
                self._method.after(k)
                late = 0 if self._unwatched else self._method.late * self.every
                self._show(k, self.steps - late)
                if self._buffers == "average":
                    self._average_buffers()
        self.steps += 1

    def _compare_loaded(self) -> None:
        """Refuse loaded states of different steps, on all ranks; once after they have been
        loaded.  Collective.
        """
        if self._loaded:
            self._compare_moments(self.steps)

    def _compare_moments(self, moment: int) -> None:
        """Raise on all ranks unless their states are of one moment.  Collective."""
        mine, theirs = np.array([moment, self.steps]), np.empty((self.net.size, 2), dtype=np.int64)
        self.net.operation("comparison of the steps of loaded states")(
            lambda: self.net.comm.Iallgather(mine, theirs)
        )
        self._loaded = bool((theirs[:, 0] != moment).any())
        if self._loaded:
            steps = ", ".join(f"{steps} on rank {rank}" for rank, steps in enumerate(theirs[:, 1]))
            error = ValueError(
                "the ranks continue from states that were not saved together: after steps "
                f"{steps}; load on every "
                "rank the checkpoint of the same step, the newest that all of them have"
            )
            mark(error, on_all_ranks=True)
            raise error

    def _look(self) -> None:
        """Note the gradients of this rank, once in a step, before anything averages them."""
        if not (self._looked or self._copies.compared):
            self._looked = True
            with self._same_steps():
                self._copies.look(
                    parameter for bucket in self.buckets for _, parameter in bucket.named
                )

    @contextmanager
    def _same_steps(self) -> Iterator[None]:
        """A context that adds the usual reason to the error of ranks in different calls."""
        try:
            yield
        except RankMismatchError as error:
            if is_told(error):  # the rank that gave up raises the reason
                mark(error, from_another_rank=True)
                raise
            error.args = (
                f"{error}, after {self.steps} steps of this rank: every rank must call step() "
                "equally often, so let "
                "ranks with fewer batches repeat some",
            )
            raise

    def _settle(self) -> None:
        """Let the rows hold what the parameters are."""
        self._refuse_average("a step is taken")
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.settle(self._method.travelling)

    def _refuse_average(self, what: str) -> None:
        if self._apart:
            raise RuntimeError(
                f"{what} in the context of consensus(), where the model holds the average: leave "
                "it first"
            )

    def _show(self, k: int, step: int) -> None:
        """Show the results of mixing `k`, unless this worker has put in what is not finite: then
        raise, and tell the neighbours.
        """
        looks = self._check and (watch() or self._unwatched) and not self._infected
        try:
            for bucket in self.buckets if looks else ():
                self._finite(bucket, bucket.rows, step)
        except ValueError as error:
            call = "W.exchange(M)" if self.algorithm.edgewise else "W(X)"
            for mixer in () if self._copies.withdraw(error) else self._mixers:
                mixer.at(k + 1).abort_operation(error, call)
            raise
        self._method.show()
        if looks:  # the worker that it comes from raises
            self._infected = any(not torch.isfinite(bucket.rows).all() for bucket in self.buckets)

    def _finite(
        self, bucket: Bucket, rows: torch.Tensor, step: int, what: str = "parameter"
    ) -> None:
        if bool(torch.isfinite(rows.sum())):
            return
        wrong = (~torch.isfinite(rows)).nonzero()
        if len(wrong):  # large numbers may have an infinite sum
            row, column = wrong[0].tolist()
            raise ValueError(
                f"worker {self.net.lo + row}, step {step}: {what} {bucket.of(column)} is "
                f"{float(rows[row, column])}: "
                "lower the learning rate, clip the gradients, or look at this worker's data "
                "(check=False goes on)"
            )

    def _floating_buffers(self) -> list[torch.Tensor]:
        return [
            buffer
            for part in self._models
            for buffer in part.buffers()
            if buffer.is_floating_point()
        ]

    def _average_buffers(self) -> None:
        for buffer in self._floating_buffers():
            rows = buffer if self._stacked else buffer[None]
            rows.copy_(mean(self.net, rows).expand_as(rows))

    @contextmanager
    def consensus(self) -> Iterator[float]:
        r"""A context in which the model holds the average of all workers' parameters and buffers,
        for evaluation.

        Of asynchronous algorithms, with what is under way; of push-sum with the workers' weights.

        Yields
        ------
        float
            The consensus distance :math:`\sqrt{\frac{1}{n} \sum_i \|x_i - \bar x\|^2}`.

        Notes
        -----
        Collective.  The workers' own parameters return with the end of the context.
        """
        self._compare_loaded()
        if not self._apart:
            self._settle()
        if self.algorithm.asynchronous:
            self._copies.compare()
        with torch.no_grad():
            square, before = 0.0, [bucket.rows for bucket in self.buckets]
            iterates = self._method.iterates()
            for bucket, X, shares in zip(self.buckets, iterates, self._method.shares(iterates)):
                average = mean(self.net, shares)
                square += float((X.double() - average.double()).square().sum())
                bucket.show(average.expand_as(X).clone())
            buffers = self._floating_buffers()
            kept = [buffer.clone() for buffer in buffers]
            self._average_buffers()
            distance = (self.net.comm.allreduce(square) / self.net.n) ** 0.5
        outer, self._apart = self._apart, True
        try:
            yield distance
        finally:
            self._apart = outer
            for bucket, rows in zip(self.buckets, before):
                bucket.show(rows)
            with torch.no_grad():
                for buffer, value in zip(buffers, kept):
                    buffer.copy_(value)

    def average_gradients(self) -> None:
        """With "allreduce": average the gradients now, for example before they are clipped;
        `step` then does not.  Collective.
        """
        if not isinstance(self._method, AllReduce):
            raise RuntimeError(
                f"average_gradients() is called with algorithm {self.algorithm.name!r}, expected "
                '"allreduce"'
            )
        self._look()
        with torch.no_grad():
            self._method.average()

    def observe(self, loss: Any) -> None:
        """Tell the loss of the workers of this rank on their last batch, to which some methods
        adapt; before each step.

        Parameters
        ----------
        loss : float or tensor
            Of all workers of this rank, or their mean.
        """
        self._method.loss = loss.detach() if isinstance(loss, torch.Tensor) else loss

    def forget_gradients(self) -> None:
        """With "allreduce": leave out gradients that `average_gradients` has averaged, on all
        ranks.
        """
        self._looked = False
        if isinstance(self._method, AllReduce):
            self._method.complete()

    def state_dict(self) -> dict[str, Any]:
        """All that a restart needs beside the model's own `state_dict()`: tensors and numbers, for
        `weights_only=True`.

        Collective; with an asynchronous algorithm, too, whose workers wait for each other here.
        """
        if self.algorithm.asynchronous:
            self._copies.compare()
        memories = [
            {name: torch.from_numpy(rows.copy()) for name, rows in mixer.memory().items()}
            for mixer in self._mixers
        ]
        return {
            "algorithm": self.algorithm.name,
            "n": self.net.n,
            "worker": self.net.lo,
            "steps": self.steps,
            "method": self._method.state(),
            "saves": self._method.saves,
            "memory": memories,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned, after the model has loaded its own.
        Collective.

        Raises
        ------
        ValueError
            If it belongs to another algorithm, model or number of workers.
        """
        self._refuse_average("a state is loaded")
        if (state["algorithm"], state["n"]) != (self.algorithm.name, self.net.n):
            raise ValueError(
                f"the saved state is of algorithm {state['algorithm']!r} with {state['n']} "
                "workers, expected "
                f"{self.algorithm.name!r} with {self.net.n}"
            )
        if state["method"] and state["worker"] != self.net.lo:
            raise ValueError(
                f"the saved state is that of worker {state['worker']}, expected that of worker "
                f"{self.net.lo}: each "
                "rank saves and loads a file of its own"
            )
        with torch.no_grad():
            self._method.complete()
            self._method.load(state["method"])
        for mixer, memory in zip(self._mixers, state["memory"]):
            if memory:
                mixer.recall({name: rows.numpy() for name, rows in memory.items()})
        self.steps, self._loaded = state["steps"], True
        if (
            self.algorithm.asynchronous
        ):  # workers have made different steps, and wait for each other here
            self._method.saves = state.get("saves", 0)
            self._compare_moments(self._method.saves)

    def follow(self, steps: int) -> None:
        """Continue after `steps`, of another worker, if the algorithm keeps nothing of each
        worker's own.
        """
        kept = self.algorithm.asynchronous or self._method.state()
        if not kept and not any(mixer.memory() for mixer in self._mixers):
            self.steps = steps
        self._loaded = not self.algorithm.asynchronous

    @property
    def extra_bytes(self) -> int:
        """Memory of the algorithm between two steps, beyond parameters, gradients and the
        optimizer's state, in bytes.
        """
        return self._method.extra

    @property
    def sent_bytes(self) -> int:
        """What the workers of this rank have sent so far, in bytes."""
        return sum(int(mixer.bytes) for mixer in self._mixers) + self._method.bytes

    @property
    def rounds(self) -> int:
        """Number of mixings so far, of one bucket or of several at a time."""
        return int(self.steps // self.every)

    def _span(self, name: str) -> Any:
        return nullcontext() if self._timeline is None else self._timeline.span(name)

    def close(self) -> None:
        """Complete what is under way, and write the timeline; the model stays as it is.
        Collective, and safe to repeat.
        """
        with self._same_steps():
            self._copies.close()
            self._method.close()
        if self._timeline is not None:
            self._timeline.write(self.net)
            self._timeline = None
            self._unwritten.detach()
        for hook in self._hooks:
            hook.remove()
        if self._own:
            self.net.close()

    def __enter__(self) -> Averager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def _polled(models: Iterable[torch.nn.Module], poll: Callable[[], None]) -> list[Any]:
    """Hooks that look after messages while the models are evaluated and differentiated: MPI
    needs that between nodes.
    """
    hooks: list[Any] = []
    for part in models:
        hooks += [
            module.register_forward_hook(lambda *_: poll())
            for module in part.modules()
            if not [*module.children()]
        ]
        hooks += [
            p.register_post_accumulate_grad_hook(lambda _: poll())
            for p in part.parameters()
            if p.requires_grad
        ]
    return hooks
