r"""BlueFog's optimizers: an optimizer of torch, with one communication for
`num_steps_per_communication` passes.

With J passes of the model per communication, a program either accumulates gradients (J forward and
backward passes, then one step), or makes local steps (each pass followed by a step, the J-th of
which communicates).  In both,

.. math:: x_i \leftarrow \sum_j w_{ij} \bigl(x_j + u_j\bigr) \quad\text{(adapt then combine)}, \qquad
          x_i \leftarrow \sum_j w_{ij} x_j + u_i \quad\text{(adapt with combine)}

with :math:`u` the update that the optimizer makes of all gradients since its last step.  The
parameters are laid out in rows, which travel as a whole: keep no `parameter.data` from before.

A rank whose `GradScaler` finds a gradient that is not finite leaves out its own update, not the
communication; with averaged gradients all ranks leave out theirs.
"""

from __future__ import annotations

import itertools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import torch

from ...comm.runtime import Pending
from ...optim import Decentralized
from ...optim.internals import Bucket, buckets, unscale
from ..session import current
from .mpi_ops import barrier, start_machine_sum, start_neighbor_sum
from .windows import take_turns, win_create, win_free, win_get, win_put, win_update

Models: TypeAlias = torch.nn.Module | Sequence[torch.nn.Module]
_BUCKET = 1 << 28
_RENAMED = {"neighbor_weights": "src_weights", "send_neighbors": "dst_weights"}


class CommunicationType(Enum):
    """What an optimizer does with the parameters; the others are BlueFog's names of the calls."""

    neighbor_allreduce = "neighbor.allreduce"
    hierarchical_neighbor_allreduce = "hierarchical.neighbor.allreduce"
    allreduce = "allreduce"
    empty = "empty"


def _refuse_wrapped(optimizer: object) -> None:
    if isinstance(optimizer, (WrappedOptimizer, Decentralized)) or not isinstance(
        optimizer, torch.optim.Optimizer
    ):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}, expected one of torch that is not wrapped "
            "yet"
        )


class WrappedOptimizer(torch.optim.Optimizer):
    """An optimizer of torch whose steps communicate, and which passes for one of its class.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its state, its groups and the schedulers on it stay in use.
    model : torch.nn.Module or list of them
        What it trains.
    num_steps_per_communication : int
    """

    # Whether the communication begins at the end of the forward pass.
    _overlap = False
    # GradScaler calls step() in any case.
    _step_supports_amp_scaling = True

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int
    ):
        net = current(type(self).__name__).net
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS evaluates its closure several times in a step, at points that differ "
                "between ranks: use another optimizer"
            )
        _refuse_wrapped(optimizer)
        if not isinstance(num_steps_per_communication, int) or num_steps_per_communication < 1:
            raise ValueError(
                f"num_steps_per_communication is {num_steps_per_communication!r}, expected a whole "
                "number >= 1"
            )
        models = [model] if isinstance(model, torch.nn.Module) else list(model or [])
        if not models or not all(isinstance(each, torch.nn.Module) for each in models):
            raise TypeError(f"model is {model!r:.60}, expected a torch.nn.Module or a list of them")
        names = {
            id(p): name
            for k, each in enumerate(models)
            for name, p in each.named_parameters(prefix=f"{k}" if len(models) > 1 else "")
        }
        self.optimizer, self._every, self._net = optimizer, num_steps_per_communication, net
        self._passes, self._skip, self._synchronized = 0, False, False
        self._infinite: bool | None = None
        self._of_model, self._buckets = names, list[Bucket]()
        self._frozen: dict[str, torch.Tensor] = {}
        self._lay_out(0)
        after = torch.compiler.disable(self._after_forward, recursive=True)
        self._hook = models[-1].register_forward_hook(after)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for `isinstance`, and the name
        return type(self.__dict__.get("optimizer", self))

    def _lay_out(self, first: int) -> None:
        """Lay out the parameters of the groups from `first` on."""
        groups = self.optimizer.param_groups
        for p in itertools.chain.from_iterable(group["params"] for group in groups[first:]):
            if id(p) not in self._of_model:
                raise ValueError(
                    f"the optimizer has a parameter of shape {tuple(p.shape)} that no module of "
                    "`model` has"
                )
        self._buckets += buckets(
            lambda: self.optimizer.param_groups[first:],
            self._of_model,
            1,
            False,
            _BUCKET,
            lambda length, like: torch.empty((1, length), dtype=like.dtype, device=like.device),
        )
        self._groups = len(groups)
        self._frozen |= {
            self._of_model[id(p)]: p
            for group in groups[first:]
            for p in group["params"]
            if not p.requires_grad
        }

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, which take part from the next communication on.
        Collective.
        """
        self.optimizer.add_param_group(param_group)
        try:
            self._lay_out(self._groups)
        except ValueError:
            self.optimizer.param_groups.pop()
            raise

    def __getattr__(self, name: str) -> Any:
        if name in _RENAMED:
            raise AttributeError(f"{name} is called {_RENAMED[name]}")
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _RENAMED:
            raise AttributeError(f"{name} is called {_RENAMED[name]}")
        object.__setattr__(self, name, value)

    __getstate__ = Decentralized.__getstate__

    def _after_forward(self, module: torch.nn.Module, *_: object) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        self._passes += 1
        if self._overlap and self._passes == self._every:
            self._begin()

    @property
    def _due(self) -> bool:
        return self._passes >= self._every or self._every == 1

    @abstractmethod
    def _begin(self) -> None:
        """Begin the communication."""

    @abstractmethod
    def _advance(self) -> None:
        """Step, with the communication."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters; every `num_steps_per_communication` passes, communicate."""
        for name, p in self._frozen.items():
            if p.requires_grad:
                raise RuntimeError(
                    f"parameter {name} was frozen when the optimizer was wrapped, and takes no "
                    "part in the communication: "
                    "wrap the optimizer again after unfreezing it"
                )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._infinite = unscale(self).found
        if self._due:
            self._advance()
            self._passes, self._synchronized = 0, False
        else:
            self._adapt()
        return loss

    def _adapt(self) -> None:
        """Take the optimizer's step, unless a GradScaler has found gradients of this rank that
        are not finite.
        """
        if not self._infinite:
            self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """That of the optimizer."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load that of the optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def synchronize(self) -> None:
        """Complete the communication before `step`, which then leaves it out in
        `skip_synchronize`.
        """

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """`step` without what `synchronize` has done."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def turn_on_timeline(self, *_: object) -> bool:
        """Nothing: BLUEFOG_TIMELINE or MPIDEC_TIMELINE records all calls."""
        return True

    def turn_off_timeline(self) -> bool:
        """Nothing."""
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"


class Reduced(WrappedOptimizer):
    """Parameters that are averaged, or combined with those of neighbours.

    Attributes
    ----------
    communication_type : CommunicationType
    self_weight, src_weights, dst_weights, src_machine_weights, dst_machine_weights, enable_topo_check
        As in `neighbor_allreduce` and `hierarchical_neighbor_allreduce`; assigned before a step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Models,
        communication_type: CommunicationType = CommunicationType.neighbor_allreduce,
        num_steps_per_communication: int = 1,
    ):
        self.communication_type = communication_type
        self.self_weight: float | None = None
        self.src_weights: Mapping[int, float] | None = None
        self.dst_weights: Mapping[int, float] | Iterable[int] | None = None
        self.src_machine_weights: Mapping[int, float] | None = None
        self.dst_machine_weights: Mapping[int, float] | Iterable[int] | None = None
        self.enable_topo_check = False
        self._pending: list[Pending] = []
        super().__init__(optimizer, model, num_steps_per_communication)

    @property
    def communication_type(self) -> CommunicationType:
        return self._communication_type

    @communication_type.setter
    def communication_type(self, value: CommunicationType) -> None:
        if not isinstance(value, CommunicationType):
            raise ValueError(
                f"communication_type is {value!r}, expected one of "
                + ", ".join(f"CommunicationType.{each.name}" for each in CommunicationType)
            )
        self._communication_type = value

    def _start(self, rows: np.ndarray | torch.Tensor) -> Pending:
        session, own = current("step"), self.self_weight
        if self.communication_type is CommunicationType.allreduce:
            return self._net.start_allreduce(rows)
        if self.communication_type is CommunicationType.hierarchical_neighbor_allreduce:
            machines = self.src_machine_weights, self.dst_machine_weights
            return start_machine_sum(session, "step", rows, own, *machines)
        ranks = self.src_weights, self.dst_weights
        return start_neighbor_sum(session, rows, own, *ranks, self.enable_topo_check)

    def _begin(self) -> None:
        if self.communication_type is not CommunicationType.empty:
            for bucket in self._buckets:
                bucket.settle()
            self._pending = [self._start(bucket.mixable) for bucket in self._buckets]

    def synchronize(self) -> None:
        begun, self._pending = self._pending, []
        for bucket, pending in zip(self._buckets, begun):
            bucket.rows.copy_(torch.as_tensor(pending.wait()))
            self._synchronized = True


class AdaptThenCombine(Reduced):
    """Step, then communicate."""

    def _advance(self) -> None:
        self._adapt()
        # also in `skip_synchronize`: before the update there was nothing to communicate
        self._begin()
        self.synchronize()

    def register_step_function(self, step_func: Callable[..., None]) -> None:
        """Nothing: the step of any optimizer is its own."""


class AdaptWithCombine(Reduced):
    """The parameters travel during the backward pass, and the gradients at the old ones are
    applied to what arrives.
    """

    _overlap = True

    def _advance(self) -> None:
        if not (self._skip or self._synchronized):
            if not self._pending:
                self._begin()
            self.synchronize()
        self._adapt()


class GradientAllreduce(WrappedOptimizer):
    """Gradients that are averaged over all ranks."""

    def _begin(self) -> None:
        self.synchronize()

    def synchronize(self) -> None:
        """Average the gradients, such as before they are clipped."""
        for bucket in self._buckets:
            rows, used = torch.empty_like(bucket.rows), bucket.used()
            bucket.gradients(rows)
            rows = self._net.allreduce(rows)
            bucket.set_gradients(rows, self._net.allreduce(used, average=False))

    def _advance(self) -> None:
        if self._infinite is not None:
            self._infinite = bool(self._net.allreduce(np.array(float(self._infinite))))
        if not (self._skip or self._infinite):
            self.synchronize()
        self._adapt()


class Windowed(WrappedOptimizer):
    """Parameters in windows, which are written to neighbours, or read from them, without waiting.

    Attributes
    ----------
    dst_weights, src_weights : dict {rank: weight} or None
        The neighbours of the next transfer; assigned before a step.
    force_barrier : bool
        Whether all ranks wait for each other in each communication.
    """

    _overlap = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Models,
        num_steps_per_communication: int,
        window_prefix: str | None,
        pull: bool,
    ):
        self.dst_weights: Mapping[int, float] | None = None
        self.src_weights: Mapping[int, float] | None = None
        self.force_barrier, self._pull, self._begun = False, pull, False
        self._prefix = "" if window_prefix is None else f"{window_prefix}."
        self._names: list[str] = []
        super().__init__(optimizer, model, num_steps_per_communication)

    def _lay_out(self, first: int) -> None:
        super()._lay_out(first)
        for bucket in self._buckets[len(self._names) :]:
            name = f"{self._prefix}{'win_get' if self._pull else 'win_put'}.{len(self._names)}"
            if name in current("win_create").windows:
                raise ValueError(
                    f"there is a window {name!r}: give each optimizer a window_prefix of its own, "
                    "or call "
                    "unregister_window() of the one before"
                )
            win_create(bucket.rows, name)
            self._names.append(name)

    def unregister_window(self) -> None:
        """Free the windows.  Collective."""
        for name in self._names:
            win_free(name)
        self._names = []

    def _begin(self) -> None:
        self._begun = True
        for bucket, name in zip(self._buckets, self._names):
            bucket.settle()
            if self._pull:
                win_get(name, self.src_weights)
            else:
                take_turns(current("win_put").windows[name].window, self.dst_weights, 0)
                win_put(bucket.rows, name, dst_weights=self.dst_weights)

    def _advance(self) -> None:
        if not (self._skip or self._synchronized):
            if not self._begun:
                self._begin()
            self.synchronize()
        self._begun = False
        self._adapt()

    def synchronize(self) -> None:
        """Combine the parameters with what has arrived."""
        if self.force_barrier:
            barrier()
        # to a rank on this core: what it writes is combined now, not in the next step
        os.sched_yield()
        for name in self._names:
            win_update(name)
        self._synchronized = self._begun


# BlueFog's names


def DistributedAdaptThenCombineOptimizer(
    optimizer: torch.optim.Optimizer,
    model: Models,
    communication_type: CommunicationType = CommunicationType.neighbor_allreduce,
    num_steps_per_communication: int = 1,
) -> AdaptThenCombine:
    """Return an optimizer that steps, then communicates."""
    return AdaptThenCombine(optimizer, model, communication_type, num_steps_per_communication)


def DistributedAdaptWithCombineOptimizer(
    optimizer: torch.optim.Optimizer,
    model: Models,
    communication_type: CommunicationType = CommunicationType.neighbor_allreduce,
    num_steps_per_communication: int = 1,
) -> AdaptWithCombine:
    """Return an optimizer that communicates during the backward pass, then steps."""
    return AdaptWithCombine(optimizer, model, communication_type, num_steps_per_communication)


def DistributedAllreduceOptimizer(
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> AdaptWithCombine:
    """Return the older name of adapt with combine and `CommunicationType.allreduce`."""
    kind = CommunicationType.allreduce
    return AdaptWithCombine(optimizer, model, kind, num_steps_per_communication)


def DistributedNeighborAllreduceOptimizer(
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> AdaptWithCombine:
    """Return the older name of adapt with combine."""
    kind = CommunicationType.neighbor_allreduce
    return AdaptWithCombine(optimizer, model, kind, num_steps_per_communication)


def DistributedHierarchicalNeighborAllreduceOptimizer(
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> AdaptWithCombine:
    """Return the older name of adapt with combine and
    `CommunicationType.hierarchical_neighbor_allreduce`.
    """
    kind = CommunicationType.hierarchical_neighbor_allreduce
    return AdaptWithCombine(optimizer, model, kind, num_steps_per_communication)


def DistributedGradientAllreduceOptimizer(
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> GradientAllreduce:
    """Return an optimizer that averages the gradients over all ranks, then steps."""
    return GradientAllreduce(optimizer, model, num_steps_per_communication)


def DistributedWinPutOptimizer(
    optimizer: torch.optim.Optimizer,
    model: Models,
    num_steps_per_communication: int = 1,
    window_prefix: str | None = None,
) -> Windowed:
    """Return an optimizer that writes the parameters to its neighbours, and combines them with what
    has arrived; nobody waits.
    """
    return Windowed(optimizer, model, num_steps_per_communication, window_prefix, pull=False)


def DistributedPullGetOptimizer(
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> Windowed:
    """Return an optimizer that reads the parameters of its neighbours, and combines them with its
    own; nobody waits.
    """
    return Windowed(optimizer, model, num_steps_per_communication, None, pull=True)


def DistributedPushSumOptimizer(
    optimizer: torch.optim.Optimizer, model: Models, num_steps_per_communication: int = 1
) -> Decentralized:
    """Stochastic gradient push over windows: `mpidec.optim.Decentralized` with "async_push_sum"
    on the graph that was set.
    """
    session = current("DistributedPushSumOptimizer")
    _refuse_wrapped(optimizer)
    return Decentralized(
        optimizer,
        model,
        session.native,
        "async_push_sum",
        session.net,
        every=num_steps_per_communication,
        equal=False,
    )
