"""Averager: mix the rows of a model's parameters in each step."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch

from .._validation import choice
from ..comm.mixing import Network
from ..comm.mixing.internals import is_told
from ..comm.runtime import abandon, world
from ..driver.internals import arguments as resolve
from ..exceptions import RankMismatchError, mark
from ..solvers import Solver
from ..topology import CATALOGUE, Schedule, Striped, Topology
from ..topology.internals import refuse_filter, restricted
from .algorithms import Graph, algorithm as algorithm_of, names
from .consistency import Consistency
from .copies import Copies
from .departures import Departures, Progress
from .guard import TrainingGuard
from .methods import Mixer, mean
from .model import Model, Models, check_settings
from .rows import Bucket, buckets
from .scaling import Scaled
from .states import KEY, OTHERWISE, States, settings_of
from .survivors import TrainingSurvivors, survivors_of
from .timeline import TrainingEvents
from .views import copy_views

if TYPE_CHECKING:
    from ..driver.internals import TopologyLike

T = TypeVar("T")
# Bytes of a bucket on one node, and between nodes: pieces travel together.
NEAR, FAR = 1 << 28, 1 << 20


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
        model: Models | Model,
        topology: TopologyLike | Sequence[TopologyLike] | None = None,
        algorithm: str | Solver = "atc",
        net: Network | None = None,
        *,
        every: int | None = None,
        buffers: str = "local",
        mixing: Callable[[Mixer], Mixer] | None = None,
        equal: bool = True,
        check: bool = True,
        trace: str | os.PathLike[str] | None = None,
        bucket_bytes: int | None = None,
        overlap: bool = False,
        on_failure: Literal["end", "drop"] = "end",
        **options: Any,
    ):
        self._model = model if isinstance(model, Model) else Model(model)
        self.algorithm = algorithm_of(algorithm, **options)
        method = self.algorithm.method
        if not self._model.optimized and (method.of_gradients or method.by_rate):
            raise ValueError(
                f"algorithm {self.algorithm.name!r} needs the gradients or the learning rate, "
                "which an averager does not see: use Decentralized(optimizer, model, ...)"
            )
        self._buffers = choice(buffers, "buffers", ("local", "average"))
        self.every, self.steps = self._period(every), 0
        self.overlapped = self._overlapping(overlap)
        self._pace = 1 if method.scheduled else self.every
        self._closing = ExitStack()
        self.net = net = self._joined(net)
        net.agree(self._model.refusal(net) or _refused(trace))
        check_settings(
            net,
            algorithm=self.algorithm.name,
            every=self.every,
            buffers=buffers,
            bucket_bytes=bucket_bytes,
            overlap=overlap,
            on_failure=on_failure,
            equal=equal,
            trace=trace is not None,
            options={
                name: value
                for name, value in sorted(options.items())
                if isinstance(value, (bool, int, float, str))
            },
        )
        self._model.check(net, equal)
        choice(on_failure, "on_failure", ("end", "drop"))
        self._survivors = survivors_of(net) if on_failure == "drop" else None
        self._given = self.algorithm.graph if topology is None else topology
        if self._survivors is not None:
            self._given = self._repairable(self._given)
            self._survivors.add(self, net)
        self._mixing, self._bucket_bytes, self._check = mixing, bucket_bytes, check
        self._build(self._given)
        for part in self._model.parts:
            copy_views(part)
        self._closing.callback(lambda: self._progress.close())
        self.update: Callable[[Bucket | None], None] = _no_update
        # Whether `update` takes one bucket at a time.
        self.by_bucket = False
        self._apart = self._loaded = self._begun = False
        # Buckets that the step which is taken has updated, and what went wrong before it.
        self._updated, self._early = set[Bucket](), list[Exception]()
        # Steps, mixings and bytes before ranks have died.
        self._origin = self._rounds = self._sent = 0
        self.workers: Sequence[int] = range(net.n)
        self._copies = Copies(net, method.asynchronous, self.buckets)
        traced = trace is not None or net.context.timeline is not None
        self._timeline = TrainingEvents(net, self._model.parts[0], trace, self) if traced else None
        self._span: Callable[[str], AbstractContextManager[Any]] = (
            nullcontext if self._timeline is None else self._timeline.span
        )
        self._closed = False
        # Rates may yet be made equal, by broadcast_optimizer_state.
        self._consistency.compare(0, rates=False)

    def _build(self, topology: TopologyLike | Sequence[TopologyLike]) -> None:
        """Lay the parameters out in rows on the network, and begin the algorithm there.
        Collective.
        """
        net, method, near = self.net, self.algorithm.method, self.net.single_node
        self.buckets = buckets(
            self._model.groups,
            self._model.names,
            net.m,
            self._model.stacked,
            (NEAR if near else FAR) if self._bucket_bytes is None else self._bucket_bytes,
            lambda length, like: net.empty(length, like=like),
        )
        self._carrier = self._of_departures()
        self._mixers = self._made(topology)
        self._anew, self._departures = False, None
        if self.overlapped or (method.averages_gradients and net.size > 1):
            self._departures = Departures(self.buckets, self._leave)
        self._begin_method()
        computing = method.overlaps or self._departures is not None
        parts = self._model.parts if computing else []
        self._progress = Progress(net, parts, self._advance)
        self._versions: list[list[tuple[torch.Tensor | None, int]]] = []

    def _begin_method(self) -> None:
        """Begin the algorithm at the parameters as they are now."""
        self._method = self.algorithm.make(self._carrier, self.buckets, self._mixers, self.every)
        self._method.checked, self._method.departures = self._check, self._departures
        self._consistency = Consistency(self.net, self._model, self.buckets, self._method)
        self._guard = TrainingGuard(self.net, self._method, self._mixers, self.buckets)
        self._states = States(self._model.groups, self._method, self._mixers)

    def _joined(self, net: Network | None) -> Network:
        """Return the network of the workers; one that is made here is closed with this averager."""
        if net is None:
            m = self._model.agents
            net = Network(m * world().size if m else None)
            self._closing.callback(net.close)
        return net

    def _overlapping(self, overlap: bool) -> bool:
        """Return whether buckets are updated and leave during the backward pass."""
        method, name = self.algorithm.method, self.algorithm.name
        if not overlap or method.averages_gradients or method.overlaps:
            return False  # what these do in any case
        if not self._model.optimized:
            raise ValueError(
                "overlap=True updates the parameters during the backward pass, which an averager "
                "does not: use Decentralized(optimizer, model, ...)"
            )
        if self.every > 1:
            raise ValueError(
                f"algorithm {name!r} mixes in every {self.every}th step, which overlap=True would "
                "not: leave it out"
            )
        if not method.by_bucket:
            raise ValueError(
                f"algorithm {name!r} needs the updates of all parameters at once, so that no "
                "bucket can leave before: leave overlap=True out"
            )
        return True

    def _of_departures(self) -> Network:
        """Return the network of the mixings: one of their own, if they begin at other places
        among the calls of each rank.
        """
        return self.net.duplicate() if self.overlapped and self.net.size > 1 else self.net

    def _period(self, every: int | None) -> int:
        period = self.algorithm.every if every is None else every
        if not isinstance(period, int) or period < 1:
            raise ValueError(f"every is {every!r}, expected a whole number >= 1")
        if self.algorithm.method.of_gradients and period > 1:
            raise ValueError(
                f"algorithm {self.algorithm.name!r} communicates in every step, got every={every}: "
                'use "local" or "pga"'
            )
        return period

    def _made(self, topology: TopologyLike | Sequence[TopologyLike]) -> list[Mixer]:
        """Return the mixers of the topologies."""
        net, algorithm, mixing = self._carrier, self.algorithm, self._mixing
        unmixed = algorithm.method.averages_gradients
        if mixing is not None and (unmixed or algorithm.method.asynchronous):
            raise ValueError(
                f"algorithm {algorithm.name!r} does not mix by W, so that `mixing=` would have no "
                "effect: leave it out"
            )
        if unmixed:
            return []
        mixers: list[Mixer] = []
        for graph in self._graphs(topology):
            if graph.n != net.n:
                raise ValueError(
                    f"the {graph.name} topology has {graph.n} agents, the network {net.n}"
                )
            refuse_filter(f"algorithm {algorithm.name!r}", graph)
            if algorithm.check is not None:
                algorithm.check(graph)
            mixers.append(net.mixer(graph))
        for make in (algorithm.mixing, mixing):
            if make is not None:
                mixers = [make(mixer) for mixer in mixers]
        return mixers

    def _graphs(self, given: TopologyLike | Sequence[TopologyLike]) -> list[Graph]:
        """Return the topologies of the mixers."""
        size = self.algorithm.machine_size
        if self.net.n % size:
            raise ValueError(
                f"algorithm {self.algorithm.name!r}: machine_size is {size}, expected a divisor of "
                f"the number of workers {self.net.n}"
            )
        graphs: list[Graph] = []
        for one in _listed(given):
            if isinstance(one, str) and one in names() and one not in CATALOGUE:
                raise ValueError(
                    f"topology {one!r} is the name of an algorithm: pass it as algorithm={one!r}"
                )
            graph = resolve.as_topology(one, self.net.n // size)
            graphs += graph if isinstance(graph, Striped) else [graph]
        return graphs if self.algorithm.graphs is None else self.algorithm.graphs(graphs)

    def _repairable(
        self, given: TopologyLike | Sequence[TopologyLike]
    ) -> TopologyLike | Sequence[TopologyLike]:
        """Return topologies of which those of fewer workers can be made: by their names, or
        undirected graphs.
        """
        found: list[Any] = []
        for one in _listed(given):
            if isinstance(one, str) or inspect.isroutine(one):
                found.append(one)
                continue
            graph = resolve.as_topology(one, self.net.n // self.algorithm.machine_size)
            if not isinstance(graph, Topology) or graph.directed or graph.n != self.net.n:
                raise ValueError(
                    f'on_failure="drop": the {graph.name} topology of {graph.n} agents is not '
                    "defined for fewer: expected its name, a function of n, or an undirected graph "
                    "of the workers, of which the edges between those that are left remain"
                )
            found.append(graph)
        return found if len(found) > 1 else found[0]

    def _remaining(self, workers: Sequence[int]) -> TopologyLike | Sequence[TopologyLike]:
        """Return the topologies of these workers."""
        found = [
            restricted(one, workers) if isinstance(one, Topology) else one
            for one in _listed(self._given)
        ]
        return found if len(found) > 1 else found[0]

    def interrupt(self) -> None:
        """End an update that has begun, when ranks have died; what is under way stays so."""
        self._refuse_average("ranks have died")
        self._progress.close()
        if self._departures is not None:
            self._departures.close()
        if 0 < len(self._updated) < len(self.buckets):
            for bucket in [each for each in self.buckets if each not in self._updated]:
                self._update(bucket)
        self._position = self._origin + self.steps + bool(self._updated)
        self._rounds, self._sent = self.rounds, self.sent_bytes
        if not self.net.single_node:
            abandon((self._method, self._mixers))  # MPI may still write there

    def renew(self, workers: Sequence[int]) -> str:
        """Begin the algorithm anew on the network of these of the first workers.

        Ranks that have made fewer steps than others make them without mixing, before all meet; of
        "allreduce" they take over the parameters of those.
        """
        net, position, method = self.net, self._position, self.algorithm.method
        self.workers, positions = workers, [position]
        if not method.asynchronous:
            positions = net.comm.allgather(position)
        last = max(positions)
        if method.averages_gradients and min(positions) < last:
            self._model.take_over(net, positions.index(last))
        self._build(self._remaining(workers))
        self._copies.close()
        self._updated.clear()
        self._early.clear()
        self._begun, self._loaded = False, False
        if method.asynchronous:
            self.steps, self._origin = position, 0
        else:
            self.restart()
            self.steps, self._origin = position - last, last
        if not (method.asynchronous or self._keeps_own):
            return ""
        return (
            f"Algorithm {self.algorithm.name!r} begins anew at the parameters of each worker: what "
            "it remembers of neighbours and of earlier steps is dropped, the optimizer's state "
            "stays"
        )

    def survive(self, error: Exception) -> None:
        """With `on_failure="drop"`: go on without ranks that have died, if they are the reason of
        `error`, which a call of all ranks has raised, and raise it otherwise.  Collective over the
        ranks that are left, which then make that call again.
        """
        if self._survivors is None:
            raise error
        self._survivors.leave_out(error)

    @property
    def together_again(self) -> bool:
        """Whether no rank takes steps any more that others have taken when ranks died."""
        return self._origin == 0 or self.steps > 0

    @property
    def lost(self) -> list[str]:
        """Who has died, when, and how long the others have needed to go on."""
        return [] if self._survivors is None else self._survivors.lost

    def together(self, act: Callable[[], T]) -> T:
        """Return what `act()` does, a call of all ranks; with `on_failure="drop"` it is repeated
        if ranks die in it.
        """
        return act() if self._survivors is None else self._survivors.together(act)

    def _surviving(self, survivors: TrainingSurvivors, act: Callable[[], None]) -> bool:
        """Do a part of a step, again without ranks that have died in it; those that have updated
        their parameters end it without mixing.  Return False if others have taken this step before.
        """
        while self.steps >= 0 or self._method.asynchronous:
            try:
                survivors.look(*self._early)
                act()
                return True
            except Exception as error:
                before = self._origin + self.steps
                survivors.leave_out(error)
                if self._position > before:
                    return True
        return False

    def _taken(
        self, survivors: TrainingSurvivors, step: Callable[[], None], alone: Callable[[], None]
    ) -> None:
        """Take a step, which this rank takes alone if others have taken it before ranks died."""
        if not self._surviving(survivors, step):
            alone()
            self.steps += 1
        self._updated.clear()

    def _update(self, bucket: Bucket | None) -> None:
        """Let the optimizer update the parameters of a bucket, or all."""
        self.update(bucket)
        self._updated.update(self.buckets if bucket is None else [bucket])

    def __call__(self, model: torch.nn.Module | None = None) -> None:
        """Average; after `optimizer.step()`.  The argument, a model, is ignored."""
        if self._survivors is None:
            self.after()
            return
        self._updated.update(self.buckets)
        self._taken(self._survivors, self.after, lambda: None)

    def step(self, scaled: Scaled) -> None:
        """Take a step of the optimizer, with its communication."""
        if self._survivors is None:
            self._step(scaled)
            return

        def alone() -> None:
            if not (self._method.averages_gradients or scaled.found):
                self.update(None)

        self._taken(self._survivors, lambda: self._step(scaled), alone)

    def _step(self, scaled: Scaled) -> None:
        if self.overlapped and self._departures is not None:
            self._step_overlapped(scaled, self._departures)
        elif len(self.buckets) > 1 and self.by_bucket and self._method.ahead:
            self._step_in_turn(scaled)
        else:
            self._begin()
            if not (self._method.of_gradients and self._before(scaled)):
                if not scaled.found:
                    self.update(None)
                    self._updated.update(self.buckets)
                self.after()

    def _before(self, scaled: Scaled) -> bool:
        """Do the communication that precedes the optimizer's update; return whether all workers
        leave the step out.
        """
        with self._span("wait"), torch.no_grad(), self._same_steps():
            self._settle()
            try:
                left_out = self._method.before(self.steps, scaled)
            except ValueError as error:
                if not self._withdraw(error):
                    self._method.withdraw(error)
                raise
            if left_out:
                self._begun = self._copies.looked = False
            else:
                self._guard.show(self.steps, self.steps - 1, 0, self._withdraw)
        return left_out

    def after(self) -> None:
        """Do the communication that follows the optimizer's update."""
        if not self._begun:
            self._begin()
        self._begun = self._copies.looked = False
        self._model.check_unchanged()
        pace, ends = self._pace, (self.steps + 1) % self.every == 0
        if (self.steps + 1) % pace == 0:
            k = self.steps // pace
            with self._span("mix"), torch.no_grad(), self._same_steps():
                self._settle()
                if self._method.asynchronous and self._method.checked:
                    self._guard.look(self.steps)
                try:
                    self._method.after(k)
                except ValueError as error:
                    self._withdraw(error)
                    raise
                self._guard.show(k, self.steps, pace, self._withdraw)
                if ends and self._buffers == "average":
                    self._model.average_buffers(self.net, self._method.checked)
        self.steps += 1
        if self._method.overlaps:
            self._progress.start()

    def _step_in_turn(self, scaled: Scaled) -> None:
        """Take a step in which each bucket arrives, is updated and leaves, one after the other."""
        self._begin()
        k, method = self.steps, self._method
        with torch.no_grad(), self._same_steps():
            self._settle()
            if not method.travelling:
                for i, bucket in enumerate(self.buckets):
                    self._guard.refuse(bucket, k, k - 1, self._withdraw)
                    method.depart(i, k)
            for i, bucket in enumerate(self.buckets):
                with self._span("wait"):
                    method.arrive(i)
                    method.show()
                if not scaled.found:
                    self._update(bucket)
                with self._span("mix"):
                    bucket.settle()
                    self._guard.refuse(bucket, k + 1, k, self._withdraw)
                    method.depart(i, k + 1)
            if self._buffers == "average":
                self._model.average_buffers(self.net, self._method.checked)
        self._begun = self._copies.looked = False
        self._model.check_unchanged()
        self.steps += 1
        self._progress.start()

    def _step_overlapped(self, scaled: Scaled, departures: Departures) -> None:
        """Take a step whose buckets are updated and leave during the backward pass."""
        k = self.steps
        if scaled.found is not None:
            raise RuntimeError(
                "a GradScaler divides the gradients in step(), after overlap=True has used them: "
                "leave overlap=True out, or train in bfloat16 without a GradScaler"
            )
        for bucket, versions in zip(self.buckets, self._versions):
            self._refuse_changed(bucket, versions)
        if not departures.paused:  # ranks that are behind wait for the first rows over an edge
            with self._span("mix"), self._same_steps():
                departures.finish()
        self._begin()
        method = self._method
        with self._span("mix"), torch.no_grad(), self._same_steps():
            departures.finish()
            self._progress.stop()
            for i in range(len(self.buckets)):
                method.arrive(i)
            self._guard.show(k, k, 1, self._withdraw)
            if self._buffers == "average":
                self._model.average_buffers(self.net, self._method.checked)
        self._begun = self._copies.looked = False
        self._model.check_unchanged()
        self._versions = []
        self.steps += 1
        departures.begin()

    def _leave(self, i: int) -> None:
        """Let a bucket leave, when its gradients are complete."""
        bucket = self.buckets[i]
        try:
            with torch.no_grad():
                if self.overlapped and not self._early:
                    self._update(bucket)
                    bucket.settle()
                    self._versions.append(bucket.versions())
                self._method.depart(i, self.steps)
        except Exception as error:
            if self._survivors is None:
                raise
            self._early.append(error)  # found in the backward pass, and raised by the step
        self._progress.start()

    def _advance(self) -> None:
        """Make progress while the gradients are computed, in a thread of its own."""
        self._method.advance()

    def _refuse_changed(
        self, bucket: Bucket, before: list[tuple[torch.Tensor | None, int]]
    ) -> None:
        """Refuse gradients that have changed after they were used."""
        for (name, _), (was, then), (now, here) in zip(bucket.named, before, bucket.versions()):
            if was is not now or then != here:
                error = RuntimeError(
                    f"the gradient of parameter {name} has changed after its update, which "
                    "overlap=True makes during the backward pass: accumulate over equally many "
                    "backward passes in each step, leave clipping to the optimizer, or leave "
                    "overlap=True out"
                )
                self._guard.withdraw(error, self.steps, self._withdraw)
                raise error

    def _withdraw(self, error: Exception) -> bool:
        """Withdraw from the next comparison of all ranks; return whether it precedes what the
        others begin next.
        """
        due = self._consistency.withdraw(error) or self._copies.withdraw(error)
        return due and not self.overlapped

    def _begin(self) -> None:
        """Do what comes first in a step, before the update or, without `before`, after it."""
        self._progress.stop()
        self._refuse_average("a step is taken")
        if self._loaded:
            self._compare_moments(self.steps)
        self._continue()
        with self._same_steps():
            self._consistency.follow(self.steps)
        if not self._copies.compared:
            self._look()
        self._begun = True

    def _compare_moments(self, moment: int) -> None:
        """Raise on all ranks unless the loaded states are of the same step.  Collective."""
        call = "comparison of the steps of loaded states"
        self._loaded = not self.net.agreement.same(str(moment).encode(), call)
        if self._loaded:
            theirs = self.net.collectives.gather_all(np.array([moment, self.steps]), call)
            steps = ", ".join(f"{steps} on rank {rank}" for rank, steps in enumerate(theirs[:, 1]))
            error = ValueError(
                "the ranks continue from states that were not saved together: after steps "
                f"{steps}; load on every "
                "rank the checkpoint of the same step, the newest that all of them have"
            )
            mark(error, on_all_ranks=True)
            raise error

    def _look(self) -> None:
        """Record the gradients of this rank, once per step, before they are averaged."""
        if not (self._copies.looked or self._copies.compared):
            with self._same_steps():
                self._copies.look()

    @contextmanager
    def _same_steps(self) -> Iterator[None]:
        """Context that adds the usual reason to errors of ranks in different calls."""
        try:
            yield
        except RankMismatchError as error:
            # The rank that gave up raises the reason.
            if is_told(error):
                mark(error, from_another_rank=True)
                raise
            error.args = (
                f"{error}, after {self.steps} steps of this rank: every rank must call step() "
                "equally often, so let "
                "ranks with fewer batches repeat some",
            )
            raise

    def _meet(self, call: str) -> None:
        """Compare the ranks in a call of all, also with those that wait for rows."""
        with self._same_steps():
            if self._carrier is not self.net:
                self._carrier.operation(call)(self._carrier.comm.Ibarrier)
            self._consistency.compare(self.steps, call=call)

    def _settle(self) -> None:
        """Copy the parameters into the rows."""
        for bucket in self.buckets:
            bucket.settle(self._method.travelling)

    def unchanged(self) -> None:
        """Go on with parameters to which the same values were written."""
        for bucket in self.buckets:
            bucket.depart()

    def _refuse_average(self, what: str) -> None:
        if self._apart:
            raise RuntimeError(
                f"{what} in the context of consensus(), where the model holds the average: leave "
                "it first"
            )

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
        buffers = self._model.buffers()
        kept = [buffer.clone() for buffer in buffers]

        def averaged() -> tuple[list[torch.Tensor], float]:
            for buffer, value in zip(buffers, kept):
                buffer.copy_(value)
            return self._averages()

        with torch.no_grad():
            averages, distance = self.together(averaged)
            before = [bucket.rows for bucket in self.buckets]
            for bucket, average in zip(self.buckets, averages):
                bucket.show(average.expand_as(bucket.rows).clone())
        # Contexts may be nested; within, the parameters show the average and must not be copied to
        # the rows.
        outer, self._apart = self._apart, True
        departures = self._departures
        try:
            with nullcontext() if departures is None else departures.pause():
                yield distance
        finally:
            self._apart = outer
            for bucket, rows in zip(self.buckets, before):
                bucket.show(rows)
            with torch.no_grad():
                for buffer, value in zip(buffers, kept):
                    buffer.copy_(value)

    def _averages(self) -> tuple[list[torch.Tensor], float]:
        """Average the buffers; return the averages of the buckets, and the consensus distance.
        Collective.
        """
        if self._loaded:
            self._compare_moments(self.steps)
        if not self._apart:
            self._settle()
            self._meet("consensus()")
        if self._method.asynchronous:
            self._copies.compare()
        self._model.average_buffers(self.net, self._method.checked)
        averages, squares = list[torch.Tensor](), np.zeros(self.net.m)
        iterates = self._method.iterates()
        for X, shares in zip(iterates, self._method.shares(iterates)):
            averages.append(mean(self.net, shares))
            apart = (X.double() - averages[-1].double()).square()
            squares += apart.flatten(1).sum(1).numpy(force=True)
        return averages, float(self.net.mean(squares)) ** 0.5

    def average_gradients(self) -> None:
        """With "allreduce": average the gradients now, for example before they are clipped;
        `step` then does not.  Collective.
        """
        if not self._method.averages_gradients:
            raise RuntimeError(
                f"average_gradients() is called with algorithm {self.algorithm.name!r}, expected "
                '"allreduce"'
            )

        def average() -> None:
            self._progress.stop()
            self._look()
            with torch.no_grad():
                self._method.average(self.steps, Scaled())

        if self._survivors is None:
            average()
        else:
            self._surviving(self._survivors, average)

    def observe(self, loss: float | torch.Tensor) -> None:
        """Pass the loss of this rank's workers on their last batch to methods that adapt to it;
        call it before each step.

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
        self._copies.looked = False
        self._method.forget()
        departures = self._departures
        if departures is not None:
            departures.forget()
            if self.overlapped and departures.left:
                raise RuntimeError(
                    "gradients are dropped after a backward pass whose updates overlap=True has "
                    "made already: call step() after each, or leave overlap=True out"
                )

    def state_dict(self) -> dict[str, Any]:
        """All that a restart needs beside the model's own `state_dict()`, in the shape of an
        optimizer's: in `state`, what the algorithm remembers of each parameter; in `param_groups`,
        numbers.  Tensors and numbers, for `weights_only=True`.

        Collective; with an asynchronous algorithm, too, whose workers wait for each other here.
        """
        return self.together(self._state)

    def _state(self) -> dict[str, Any]:
        self._refuse_average("a state is saved")
        self._model.check_replaced()
        if self._method.asynchronous:
            self._copies.compare()
            self._consistency.compare(self.steps)
        self._continue()
        with torch.no_grad():
            state = self._states.save(
                {
                    "algorithm": self.algorithm.name,
                    "n": self.net.n,
                    "worker": self.net.lo,
                    "steps": self.steps,
                }
            )
        for group in state["param_groups"]:
            group[KEY]["saves"] = self._method.saves
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned, before or after the model has loaded its own.
        Collective.

        Raises
        ------
        ValueError
            If it belongs to another algorithm or model; or to another number of workers, or
            another worker, and the algorithm keeps something of each worker's own.
        """
        self._refuse_average("a state is loaded")
        saved = settings_of(state_dict)
        if saved is None:
            raise ValueError("the saved state is of an optimizer alone, expected an algorithm's")
        if saved["algorithm"] != self.algorithm.name:
            raise ValueError(
                f"the saved state is of algorithm {saved['algorithm']!r}, expected "
                f"{self.algorithm.name!r}: {OTHERWISE}"
            )
        if (saved["n"], saved["worker"]) != (self.net.n, self.net.lo) and self._keeps_own:
            raise ValueError(
                f"the saved state is of worker {saved['worker']} of {saved['n']}, expected worker "
                f"{self.net.lo} of {self.net.n}, since algorithm {self.algorithm.name!r} keeps "
                "rows of each worker's own: load on each rank the file that it has saved, with as "
                f"many workers; with another number of workers, {OTHERWISE}"
            )
        with torch.no_grad():
            self._drain()
            self._states.load(state_dict)
        self.steps, self._loaded, self._anew = saved["steps"], True, False
        self._consistency.restart()
        # workers have made different steps, and wait for each other here
        if self._method.asynchronous:
            self._method.saves = saved["saves"]
            self._compare_moments(self._method.saves)

    def restart(self) -> None:
        """Begin the algorithm anew, with the parameters as they are at the next step, which is
        collective.
        """
        self._refuse_average("a state is loaded")
        self.steps, self._anew = 0, True
        if self._departures is not None:
            self._departures.paused = True
        self._loaded = not self._method.asynchronous

    def _continue(self) -> None:
        """Begin the algorithm anew if `restart` was called."""
        if self._anew:
            self._anew, sent = False, self._method.bytes
            with torch.no_grad():
                self._method.complete()
                self._settle()
                self._drain()
                self._method.close()
                self._states.forget()
                self._begin_method()
            self._method.bytes = sent

    def _drain(self) -> None:
        """Complete what has left for a step that is not taken.  Collective."""
        self._method.drain(self.steps)
        self._versions = []
        if self._departures is not None:
            # Until the ranks have compared their states.
            self._departures.paused = True

    def follow(self, steps: int) -> None:
        """Continue after `steps`, of another worker, if the algorithm keeps nothing of each
        worker's own.
        """
        if not self._keeps_own:
            self.steps = steps
        self._consistency.restart()
        self._loaded = not self._method.asynchronous

    @property
    def _keeps_own(self) -> bool:
        """Whether the algorithm remembers something that differs between workers."""
        return (
            self._method.asynchronous
            or any(mixer.feedback for mixer in self._mixers)
            or any(
                isinstance(value, torch.Tensor)
                for part in self._method.state()
                for value in part.values()
            )
        )

    @property
    def extra_bytes(self) -> int:
        """Memory of the algorithm between two steps, beyond parameters, gradients and the
        optimizer's state, in bytes.
        """
        return self._method.extra

    @property
    def sent_bytes(self) -> int:
        """What the workers of this rank have sent so far, in bytes."""
        sent = sum(int(mixer.bytes) for mixer in self._mixers) + self._method.bytes
        return self._sent + sent

    @property
    def rounds(self) -> int:
        """Number of mixings so far, of one bucket or of several at a time."""
        return self._rounds + int(max(self.steps, 0) // self.every)

    def close(self) -> None:
        """Complete communication in progress, and write the timeline; the model is unchanged.
        Collective, and safe to repeat.
        """
        if not self._closed:
            self.together(self._complete)
            self._closed = True
            if self._survivors is not None:
                self._survivors.remove(self)
        try:
            self._closing.close()
        except Exception as error:
            if self._survivors is None:
                raise
            self._survivors.leave_out(error)

    def _complete(self) -> None:
        """Complete communication in progress, and write the timeline.  Collective."""
        with self._same_steps(), torch.no_grad():
            self._copies.close()
            if self._departures is not None:
                self._drain()
                self._departures.close()
                self._departures = self._method.departures = None
            self._method.close()
        if self._timeline is not None:
            self._timeline.write(self.net)
            self._timeline, self._span = None, nullcontext
        self._meet("close()")

    def __enter__(self) -> Averager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def _listed(given: TopologyLike | Sequence[TopologyLike]) -> list[Any]:
    """Return topologies as a list, also one alone; a list of numbers is a matrix."""
    kinds = (str, Topology, Schedule)
    several = isinstance(given, (list, tuple)) and all(
        isinstance(each, kinds) or inspect.isroutine(each) for each in given
    )
    return [*given] if several and len(given) else [given]  # type: ignore[arg-type, misc]


def _no_update(bucket: Bucket | None) -> None:
    """What an optimizer replaces."""


def _refused(trace: str | os.PathLike[str] | None) -> Exception | None:
    """Return what is wrong with the path of a timeline."""
    if trace is None or os.path.isdir(os.path.dirname(os.path.abspath(trace))):
        return None
    return ValueError(f"trace is {os.fspath(trace)}, expected a file in a folder that exists")
