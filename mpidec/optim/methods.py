"""Methods: communication before and after the base optimizer's update, by which workers agree on
one model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch

from ..comm.mixing import Network
from ..comm.mixing.internals import Operator, StepOperator
from ..comm.runtime import MPI, Pending
from ..solvers import Solver
from ..solvers.internals import with_step_size
from .rows import Bucket, refuse_infinite

Mixer = Operator[StepOperator]
Rows: TypeAlias = "np.ndarray | torch.Tensor"


class Method(ABC):
    """Abstract base of the methods; `u` is the update that the base optimizer makes of the
    gradients at `X`.

    Parameters
    ----------
    net : Network
    buckets : list of Bucket
    mixers : list of mixers
        One; several divide the columns of the rows among them, see `divided`.

    Attributes
    ----------
    of_gradients : bool
        Whether it does something before the update, and so in each step.
    averages_gradients : bool
        Whether this is to average them over all workers, without mixers.
    overlaps : bool
        Whether rows travel while the gradients are computed.
    by_rate : bool
        Whether it uses the learning rate.
    own_momentum : bool
        Whether it takes the place of the optimizer's momentum.
    edgewise : bool
        Whether rows travel otherwise than in sums of the mixer.
    asynchronous : bool
        Whether no worker waits for another one.
    """

    of_gradients: ClassVar[bool] = False
    averages_gradients: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    by_rate: ClassVar[bool] = False
    own_momentum: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    edgewise = False
    # Whether numbers that are not finite end the training.
    checked = False
    # Mixings between the one that begins in `after` and the one that ends there.
    late = 0
    loss: Any = None  # of the last batch, as the caller told
    # Whether the parameters' rows are on their way to the neighbours.
    travelling = False
    # What the workers of this rank have sent otherwise than by mixers.
    bytes = 0
    # How often workers that make different steps have saved their states together.
    saves = 0

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        self._net, self._buckets, self._mixers = net, buckets, mixers

    def before(self, k: int) -> None:
        """Do the communication before the base optimizer's update in step `k`; `show` follows."""

    def average(self, k: int) -> None:
        """Average the gradients of step `k`; of methods that do so."""

    @abstractmethod
    def after(self, k: int) -> None:
        """Do the communication after the base optimizer's update in step `k`; `show` follows."""

    def show(self) -> None:
        """Copy the results to the parameters, which until then hold the update's own result."""

    def iterates(self) -> list[torch.Tensor]:
        """Return the iterates, rows (m, d) of each bucket; the parameters themselves except where
        gradients are taken elsewhere.
        """
        return [bucket.rows for bucket in self._buckets]

    def shares(self, X: list[torch.Tensor]) -> list[torch.Tensor]:
        """Rows whose average over all workers is that of the workers, from the `iterates`;
        collective.
        """
        return X

    def complete(self) -> None:
        """Complete communication in progress."""

    def close(self) -> None:
        """Complete communication in progress, and free resources.  Collective."""
        self.complete()

    def state(self) -> list[dict[str, Any]]:
        """All that a restart needs beside the parameters: for each part a dict of tensors and
        numbers.
        """
        return []

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continue with what `state` returned, at the parameters as they are now."""
        if len(state):
            raise ValueError(
                f"the saved state has {len(state)} parts, expected none: it belongs to another "
                "algorithm"
            )

    @property
    def extra(self) -> int:
        """Bytes of memory beyond parameters, gradients and the base optimizer's state, between
        two steps.
        """
        return 0


def divided(
    buckets: Sequence[Bucket], mixers: Sequence[Mixer]
) -> list[tuple[Bucket, slice, Mixer]]:
    """Return the columns of each bucket in equal parts, one for each mixer, in the order of the
    buckets.
    """
    parts = []
    for bucket in buckets:
        cuts = [bucket.d * i // len(mixers) for i in range(len(mixers) + 1)]
        parts += [
            (bucket, slice(a, b), mixer) for a, b, mixer in zip(cuts, cuts[1:], mixers) if a < b
        ]
    return parts


class AdaptThenCombine(Method):
    r"""Adapt, then combine: :math:`X^{k+1} = W^k (X^k + u(X^k))`."""

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        self._mixed: list[torch.Tensor] = []
        # The rows that are mixed are never changed afterwards.
        self._mix = net.keeping(lambda X, _, W: W(X))
        self._start = net.keeping(lambda X, _, W: W.start(X))

    def after(self, k: int) -> None:
        self._mixed = self._combined(k)

    def _combined(self, k: int) -> list[torch.Tensor]:
        """Return the rows of the buckets, mixed by the operators of step `k`."""
        if len(self._mixers) == 1:
            return self._by_one(self._mixers[0].at(k), [each.mixable for each in self._buckets])
        return self._joined(self._begun(k))

    def _by_one(self, W: StepOperator, rows: Sequence[Rows]) -> list[torch.Tensor]:
        """Return the rows of all buckets, mixed by one operator."""
        if len(rows) == 1:
            return [torch.as_tensor(self._mix(rows[0], None, W))]
        started = [self._start(X, None, W) for X in rows]
        return [torch.as_tensor(each.wait()) for each in started]

    def _begun(self, k: int, rows: Sequence[torch.Tensor] | None = None) -> list[Pending]:
        """Begin to mix each part of the buckets' rows, or of others like them, by its own
        operator of step `k`.
        """
        if len(self._mixers) == 1:
            W = self._mixers[0].at(k)
            return [
                self._start(X, None, W) for X in rows or [each.mixable for each in self._buckets]
            ]
        operators = {id(mixer): mixer.at(k) for mixer in self._mixers}
        given = rows or [bucket.rows for bucket in self._buckets]
        whose = {id(bucket): X for bucket, X in zip(self._buckets, given)}
        return [
            self._start(whose[id(bucket)][:, columns], None, operators[id(mixer)])
            for bucket, columns, mixer in divided(self._buckets, self._mixers)
        ]

    def _joined(self, pending: list[Pending]) -> list[torch.Tensor]:
        """Return the rows of the buckets, of the mixed parts that `_begun` returned."""
        if len(self._mixers) == 1:
            return [torch.as_tensor(each.wait()) for each in pending]
        mixed = {
            id(bucket): self._net.empty(bucket.d, like=bucket.rows) for bucket in self._buckets
        }
        for (bucket, columns, _), each in zip(divided(self._buckets, self._mixers), pending):
            mixed[id(bucket)][:, columns] = each.wait()
        return list(mixed.values())

    def show(self) -> None:
        for bucket, Y in zip(self._buckets, self._mixed):
            bucket.show(Y)
        self._mixed = []

    @property
    def extra(self) -> int:
        return sum(bucket.bytes for bucket in self._buckets)


class AdaptWhileCombine(AdaptThenCombine):
    r"""Adapt while combining: :math:`X^{k+1} = W^k X^k + u(X^k)`; the rows travel while the
    gradients are computed.
    """

    of_gradients: ClassVar = True
    overlaps: ClassVar = True

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        self._under_way: list[Pending] = []

    def before(self, k: int) -> None:
        if self.travelling:
            self._mixed = self._joined(self._under_way)
            self.travelling = False
        else:
            self._mixed = self._combined(k)

    def after(self, k: int) -> None:
        # What it remembers would be ahead of the parameters when saved.
        if not any(mixer.feedback for mixer in self._mixers):
            for bucket in self._buckets:
                bucket.depart()
            self._under_way, self.travelling = self._begun(k + 1), True

    def complete(self) -> None:
        for pending in self._under_way if self.travelling else ():
            pending.wait()
        self.travelling = False


class Hierarchical(AdaptThenCombine):
    """Adapt, then average within machines, then combine between machines, by two mixers one
    after the other.
    """

    def after(self, k: int) -> None:
        self._mixed = [bucket.rows for bucket in self._buckets]
        for mixer in self._mixers:
            self._mixed = self._by_one(mixer.at(k), self._mixed)


class AdaptiveAverage(AdaptThenCombine):
    r"""Adapt, then combine; every H-th time average over all agents, with an H that grows as the
    loss falls (gossip-AGA).

    .. math:: H \leftarrow \lceil H_0 \, F_0 / F(x^k) \rceil

    at each global average, with the mean loss F of all workers' last batches; during the first
    steps, `warmup`, H stays :math:`H_0` and :math:`F_0 \leftarrow (F_0 + F) / 2`.

    Parameters
    ----------
    mixers : list of mixers
        Those of the topologies, and last the average over all agents.
    period : int
        :math:`H_0`.
    warmup : int
    """

    def __init__(
        self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer], period: int, warmup: int
    ):
        super().__init__(net, buckets, mixers[:-1])
        self._average, self._initial, self._warmup = mixers[-1], period, warmup
        self._period, self._count, self._first_loss = period, 0, 0.0

    def after(self, k: int) -> None:
        self._count += 1
        if self._count < self._period:
            super().after(k)
            return
        self._mixed = self._by_one(self._average.at(k), [each.mixable for each in self._buckets])
        loss = float(self._net.mean(np.full((self._net.m, 1), self._own_loss()))[0])
        self._count = 0
        # A batch that a GradScaler leaves out.
        if not math.isfinite(loss):
            return
        if k < self._warmup:
            self._first_loss = (self._first_loss + loss) / 2 if self._first_loss else loss
        elif self._first_loss and loss > 0:
            self._period = max(1, math.ceil(self._first_loss / loss * self._initial))

    def _own_loss(self) -> float:
        if self.loss is None:
            raise RuntimeError(
                "the period adapts to the loss, which is not known: call optimizer.observe(loss) "
                "before each step, "
                "or step with a closure"
            )
        return float(torch.as_tensor(self.loss).float().mean())

    def state(self) -> list[dict[str, Any]]:
        return [{"period": self._period, "count": self._count, "first_loss": self._first_loss}]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        if len(state) != 1 or "first_loss" not in state[0]:
            raise ValueError(
                "the saved state is not of pga with adaptive=True: it belongs to another algorithm"
            )
        (saved,) = state
        self._period, self._count, self._first_loss = (
            saved["period"],
            saved["count"],
            saved["first_loss"],
        )


class OverlapPush(Method):
    r"""Overlapped push-sum: rows sent in one step travel while the next gradients are computed, and
    arrive after them.

    With the diagonal D of W,

    .. math::
        V^k &= U^k + u(X^k) \\
        U^{k+1} &= D^k V^k + (W^{k-1} - D^{k-1}) V^{k-1}, & U^0 &= X^0 \\
        w^{k+1} &= D^k w^k + (W^{k-1} - D^{k-1}) w^{k-1}, & w^0 &= 1 \\
        X^{k+1} &= U^{k+1} / w^{k+1}

    References
    ----------
    M. Assran, N. Loizou, N. Ballas, M. Rabbat, "Stochastic gradient push", ICML 2019, with a delay
    of one step.
    """

    overlaps: ClassVar = True
    late = 1

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        rows = [bucket.rows[:, columns] for bucket, columns, _ in divided(buckets, mixers)]
        self._sums = [(X.clone(), torch.ones_like(X[:, :1])) for X in rows]
        self._under_way: list[tuple[Pending, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._arrived = [(torch.zeros_like(U), torch.zeros_like(w)) for U, w in self._sums]

    def after(self, k: int) -> None:
        self._arrive()
        operators = {id(mixer): mixer.at(k) for mixer in self._mixers}
        start = self._net.keeping(lambda V, w, W: W.start([V, w]))
        parts = divided(self._buckets, self._mixers)
        for place, ((bucket, columns, mixer), (U, w), (A, a)) in enumerate(
            zip(parts, self._sums, self._arrived)
        ):
            W = operators[id(mixer)]
            D = torch.from_numpy(
                W.topology.rows(self._net.lo, self._net.hi).diagonal(self._net.lo)[:, None]
            )
            V, own = bucket.rows[:, columns].addcmul_(U, 1 - 1 / w), D.to(U)
            self._under_way.append((start(V, w, W), V, w, own))
            self._sums[place] = A.addcmul_(V, own), a.addcmul_(w, own)
        self._arrived = []

    def _arrive(self) -> None:
        """Wait for the rows that were sent in the last step."""
        for pending, V, w, own in self._under_way:
            Y, y = pending.wait()
            self._arrived.append((Y.addcmul_(V, own, value=-1), y.addcmul_(w, own, value=-1)))
        self._under_way = []

    def show(self) -> None:
        points = {
            id(bucket): self._net.empty(bucket.d, like=bucket.rows) for bucket in self._buckets
        }
        for (bucket, columns, _), (U, w) in zip(divided(self._buckets, self._mixers), self._sums):
            torch.div(U, w, out=points[id(bucket)][:, columns])
        for bucket in self._buckets:
            bucket.show(points[id(bucket)])

    def complete(self) -> None:
        self._arrive()

    def state(self) -> list[dict[str, Any]]:
        self._arrive()
        return [
            {"U": U.clone(), "w": w.clone(), "arrived": A.clone(), "arrived_w": a.clone()}
            for (U, w), (A, a) in zip(self._sums, self._arrived)
        ]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        if [saved["U"].shape for saved in state] != [U.shape for U, _ in self._sums]:
            raise ValueError(
                "the saved state has other rows: it belongs to another model, or to another size "
                "of buckets"
            )
        self._sums, self._arrived = [], []
        for (bucket, _, _), saved in zip(divided(self._buckets, self._mixers), state):
            U, w, A, a = (
                saved[name].to(bucket.rows, copy=True)
                for name in ("U", "w", "arrived", "arrived_w")
            )
            self._sums.append((U, w))
            self._arrived.append((A, a))

    @property
    def extra(self) -> int:
        return 3 * sum(bucket.bytes for bucket in self._buckets)


class AllReduce(Method):
    r"""The base optimizer's update with the average of all gradients, which has the same bits on
    all ranks.
    """

    of_gradients: ClassVar = True
    averages_gradients: ClassVar = True

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        self._averaged = False  # before the step; then also what was wrong with the gradients
        self._error: ValueError | None = None

    def before(self, k: int) -> None:
        if not (self._averaged and all(bucket.has_gradients() for bucket in self._buckets)):
            self.average(k)
        error = self._error
        self.complete()
        if error is not None:
            raise error

    def average(self, k: int) -> None:
        """Replace the gradients by their averages over all agents."""
        self._error = None
        for bucket in self._buckets:
            self.bytes += bucket.bytes
            # gradients, and which parameters have one
            rows = self._net.empty(bucket.d + bucket.count, like=bucket.rows)
            G = rows[:, : bucket.d]
            bucket.gradients(G)
            rows[:, bucket.d :] = bucket.used()
            try:
                if self.checked:
                    refuse_infinite(self._net.lo, bucket, G, k, "gradient")
            except ValueError as error:
                self._error = self._error or error
            total = rows.sum(dim=0) if len(rows) > 1 else rows[0]
            average = rows.copy_(_summed(self._net, total).div_(self._net.n).expand_as(rows))
            bucket.set_gradients(average[:, : bucket.d], average[0, bucket.d :])
        self._averaged = True

    def complete(self) -> None:
        """Discard averages taken before the step, so that the next gradients are averaged in any
        case.
        """
        self._averaged, self._error = False, None

    def after(self, k: int) -> None:
        pass


class Part(NamedTuple):
    """Columns of a bucket with their solver's state."""

    bucket: Bucket
    columns: slice
    mixer: Mixer
    state: Any


class SolverUpdate(Method):
    r"""A solver of `mpidec.solvers`, with the base optimizer's update in place of :math:`-\alpha
    G`.

    Parameters
    ----------
    solver : Solver
        With the step size 1, and :math:`G = -u`.
    """

    def __init__(
        self,
        net: Network,
        buckets: list[Bucket],
        mixers: Sequence[Mixer],
        solver: Solver,
    ):
        super().__init__(net, buckets, mixers)
        self._solver, self.edgewise = solver, solver.needs.exchange
        self._parts: list[Part] = []
        for bucket, columns, mixer in divided(buckets, mixers):
            X = net.empty(columns.stop - columns.start, like=bucket.rows)
            X.copy_(bucket.rows[:, columns])
            self._parts.append(Part(bucket, columns, mixer, solver.init(X, mixer.at(0))))
        self.show()

    def after(self, k: int) -> None:
        operators = {id(part.mixer): part.mixer.at(k) for part in self._parts}
        for place, (bucket, columns, mixer, s) in enumerate(self._parts):
            rate = (bucket.lr or 1.0) if self.by_rate else 1.0
            solver = with_step_size(self._solver, bucket.lr if self.by_rate else 1.0)
            step = self._net.keeping(solver.step) if solver.keeps_rows else solver.step
            G = self._solver.point(s) - bucket.rows[:, columns]
            if rate != 1:
                G /= rate
            self._parts[place] = Part(bucket, columns, mixer, step(s, G, operators[id(mixer)]))

    def show(self) -> None:
        """Copy the points at which the gradients are needed next to the parameters."""
        for part in self._parts:
            part.bucket.rows[:, part.columns].copy_(self._solver.point(part.state))

    def iterates(self) -> list[torch.Tensor]:
        parts = iter(self._parts)
        return [
            torch.cat([next(parts).state.X for _ in range(min(len(self._mixers), bucket.d))], dim=1)
            for bucket in self._buckets
        ]

    def state(self) -> list[dict[str, Any]]:
        return [
            {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in part.state._asdict().items()
            }
            for part in self._parts
        ]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        if [set(saved) for saved in state] != [set(part.state._fields) for part in self._parts]:
            raise ValueError(
                f"the saved state has {len(state)} parts with the fields "
                f"{sorted(state[0]) if state else []}, "
                f"expected {len(self._parts)} with {sorted(self._parts[0].state._fields)}: it "
                "belongs to another "
                "algorithm, or to another size of buckets"
            )
        for place, (part, saved) in enumerate(zip(self._parts, state)):
            fields = {}
            for name, now in part.state._asdict().items():
                fields[name] = saved[name]
                if isinstance(now, torch.Tensor):
                    if saved[name].shape != now.shape:
                        raise ValueError(
                            f"the saved {name} has shape {tuple(saved[name].shape)}, expected "
                            f"{tuple(now.shape)}: "
                            "it belongs to another model, or to another topology"
                        )
                    fields[name] = torch.empty_like(now).copy_(saved[name])
            self._parts[place] = part._replace(state=type(part.state)(**fields))

    @property
    def extra(self) -> int:
        held = {
            value.data_ptr(): value.numel() * value.element_size()
            for part in self._parts
            for value in part.state
            if isinstance(value, torch.Tensor)
        }
        return sum(held.values())


class ByRate(SolverUpdate):
    """A solver that also uses the step size elsewhere: it is the learning rate of the group, and
    :math:`G = -u / lr`.
    """

    by_rate: ClassVar = True


class MomentumUpdate(ByRate):
    """A solver with momentum, in place of the base optimizer's."""

    own_momentum: ClassVar = True


def _summed(net: Network, row: torch.Tensor) -> torch.Tensor:
    """Sum of a row (d,) over all ranks, with the same bits on each."""
    if net.size == 1:
        return row
    host = row.detach().cpu()
    host = host.float() if host.dtype in (torch.bfloat16, torch.float16) else host.contiguous()
    array = host.numpy()
    net.operation("sum of gradients", f"{array.size} {array.dtype}")(
        lambda: net.comm.Iallreduce(MPI.IN_PLACE, array)
    )
    return host.to(row.device, row.dtype)


def mean(net: Network, rows: torch.Tensor) -> torch.Tensor:
    """Average of the rows of all agents, a row (d,) of the kind of `rows`."""
    host = rows.detach().cpu()
    wide = host.float() if host.dtype == torch.bfloat16 else host
    return torch.from_numpy(net.mean(wide.numpy())).to(rows.device, rows.dtype)
