"""Decentralized: any torch optimizer, with the parameters of n workers kept together over a
topology.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..comm.mixing import Network
from ..solvers import Solver
from .algorithms import algorithm as algorithm_of
from .averager import Averager
from .methods import Mixer
from .model import Model, Models
from .rows import Bucket
from .scaling import unscale
from .states import merged, plain_state, remove_memory, settings_of

if TYPE_CHECKING:
    from ..driver.internals import TopologyLike


class Decentralized(torch.optim.Optimizer):
    r"""Wrapper of a torch optimizer that averages with the neighbours; the training loop stays the
    same.

    With `u` the update that the optimizer makes of the gradients at :math:`x_i`, by
    `algorithm="atc"`

    .. math:: x_i \leftarrow \sum_j W^k_{ij} \bigl(x_j + u_j(x_j)\bigr)

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of this rank's model.  Its state, its groups and the schedulers on it stay in use.
    model : torch.nn.Module, or a list of them
        What it trains, on every rank the same with the same values.  One worker per rank, or
        `mpidec.nn.Stacked(model, m)` for the m workers of this rank.
    topology : Topology, Schedule, str or list, optional
        Who talks to whom, or its name in `mpidec.topology`; by default the algorithm's own, such as
        one_peer_exponential.  A list divides the parameters: each topology mixes an equal part of
        the columns of each bucket, such as those of `double_binary_trees`.  "hierarchical" takes
        the one graph between the machines, asynchronous algorithms take one graph, and "allreduce"
        uses none.
    algorithm : str or Solver
        One of `mpidec.optim.names()`, or a solver of `mpidec.solvers` with the step size 1, whose
        equations are then used with the optimizer's update in place of :math:`-\alpha \nabla F`.
    net : Network, optional
        By default one over `MPI.COMM_WORLD`, which `close` closes.
    every : int, optional
        Steps of the optimizer per mixing.
    buffers : {"local", "average"}
        Whether buffers, such as the statistics of batch norm, stay each worker's own or are
        averaged in each mixing.
    mixing : callable, optional
        Makes another mixer: `lambda W: W.compress("bfloat16")`.
    equal : bool
        Whether all ranks must start with the same values.
    check : bool
        Whether faults end the training, naming the worker: a parameter that is not finite, before
        it reaches the neighbours; hyper-parameters, modules or, with "allreduce", parameters that
        differ between ranks, in step 0, 1, 2, 4, ..., 64, and in every 100th.
    trace : path, optional
        Timeline of all ranks in the format of chrome://tracing and Perfetto, written by `close`.
    bucket_bytes : int, optional
        Size of the buckets in which the parameters are laid out and mixed; by default 256 MB on one
        node and 1 MB between nodes.
    overlap : bool
        Whether each bucket is updated and leaves during the backward pass, as soon as its gradients
        are complete: the same bits, but nothing may change a gradient afterwards.  "allreduce",
        "awc" and "osgp" overlap in any case, with no such condition.  An option `overlap` of a
        solver is set where the solver is made: `algorithm=RelaySGD(1.0, overlap=True)`.
    on_failure : {"end", "drop"}
        With "drop" the training outlives ranks that die: see Notes.  Needs Open MPI, and ``mpirun
        --with-ft ulfm``.
    **options
        Of the algorithm: `momentum`, `period`, `codec`, ...

    Attributes
    ----------
    optimizer : torch.optim.Optimizer
    averager : Averager
        With `net`, `steps`, `extra_bytes`, `sent_bytes`.

    Raises
    ------
    ValueError
        On every rank, if the models differ, naming the first parameter that does; unknown algorithm
        or option; a topology that the algorithm cannot work with.

    Notes
    -----
    Collective: every rank calls `step` equally often.  Sent per step: the parameters to each
    out-neighbour (twice as much for gradient tracking).  On a node they lie in memory that the
    neighbours read in place.  The parameters are laid out anew: keep no `parameter.data` from
    before.  A worker whose `GradScaler` finds an infinite gradient skips its own update, not the
    mixing.

    With `on_failure="drop"` those that are left train on when ranks die, with their own parameters
    and optimizer states, over the named topology (or function of n) of n - k workers, or over what
    is left of an undirected graph, with Metropolis weights; one that comes apart ends the training,
    as an edge that nobody has given may not exist.  `net` is made anew in place, so that `net.n`,
    `net.rank` and samplers follow; all other networks of the ranks are closed.  The step in which
    a death is found ends without mixing on ranks that have made their update; ranks that are behind
    take such steps until all meet (of "allreduce" they take over the parameters of the others).
    Trackers, corrections, momenta and memories of neighbours begin anew, since their sums over all
    workers do not hold without the dead; a warning on the first rank says so.  `consensus`,
    `state_dict` and `close` are repeated; for calls of the program's own see
    `averager.survive`.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> with Decentralized(optimizer, model, "ring") as optimizer:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(8, 3)).square().mean().backward()
    ...         _ = optimizer.step()
    ...     with optimizer.consensus() as distance:
    ...         print(f"the workers are {distance:.1f} from their average")
    the workers are 0.0 from their average
    """

    # GradScaler calls step() in any case: no worker leaves out a mixing
    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Models,
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
        if isinstance(optimizer, Decentralized) or not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer is a {type(optimizer).__name__}, expected an optimizer of torch that "
                "is not wrapped yet"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                f"{type(optimizer).__name__} evaluates its closure several times in a step, at "
                "points that differ "
                "between workers: use another optimizer"
            )
        method = algorithm_of(algorithm, **options).method
        if isinstance(optimizer, torch.optim.SparseAdam) and method.averages_gradients:
            raise ValueError(
                'SparseAdam needs sparse gradients, and algorithm "allreduce" averages dense ones: '
                'use another algorithm, such as "atc", or another optimizer'
            )
        remove_memory(optimizer)
        by_bucket = by_parameter(optimizer)
        if overlap and not by_bucket:
            raise ValueError(
                f"{type(optimizer).__name__} may need all gradients at once, or has hooks of its "
                "steps, while overlap=True updates one bucket after the other: use an optimizer "
                "of torch.optim without hooks, or leave overlap=True out"
            )
        self.optimizer = optimizer
        self.averager = Averager(
            Model(model, optimizer),
            topology,
            algorithm,
            net,
            every=every,
            buffers=buffers,
            mixing=mixing,
            equal=equal,
            check=check,
            trace=trace,
            bucket_bytes=bucket_bytes,
            overlap=overlap,
            on_failure=on_failure,
            **options,
        )
        self.averager.update, self.averager.by_bucket = self._update, by_bucket
        if method.own_momentum and any(group.get("momentum") for group in optimizer.param_groups):
            warnings.warn(
                f"algorithm {algorithm!r} has a momentum of its own, and the optimizer has one, "
                "too: give the optimizer momentum=0",
                RuntimeWarning,
                stacklevel=2,
            )
        self._inside = False
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(self._refuse_outside),
            optimizer.register_step_post_hook(self._made_states),
        ]

    def _makes_states(self) -> bool:
        """Whether a step is that by which `torch.distributed.checkpoint` makes an optimizer's
        empty states: its rates and gradients are zero.
        """
        optimizer = self.optimizer
        return (
            not optimizer.state
            and bool(optimizer.defaults.get("lr"))
            and not any(group["lr"] for group in optimizer.param_groups)
            and not any(
                p.grad is None or p.grad.any()
                for group in optimizer.param_groups
                for p in group["params"]
                if p.requires_grad
            )
        )

    def _made_states(self, *_: Any) -> None:
        if not self._inside:
            self.averager.unchanged()

    def _refuse_outside(self, *_: Any) -> None:
        if self._inside:
            return
        if not self._makes_states():
            raise RuntimeError(
                "step() of the optimizer that is wrapped is called, which mixes nothing: call "
                "step() of the wrapper that Decentralized(...) has returned"
            )
        self.averager._settle()

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizer", "averager"):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        self.optimizer.zero_grad(set_to_none)
        self.averager.forget_gradients()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, and mix them.  Collective.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model and returns the loss.

        Returns
        -------
        The loss of `closure`.
        """
        loss = None
        if closure is None and self._makes_states():
            return self.optimizer.step()
        if closure is not None:
            if self.averager.overlapped:
                raise ValueError(
                    "step(closure) with overlap=True, whose updates precede step(): call "
                    "backward() yourself, or leave overlap=True out"
                )
            with torch.enable_grad():
                loss = closure()
            self.averager.observe(loss)
        self.averager.step(unscale(self))
        return loss

    def _update(self, bucket: Bucket | None) -> None:
        """Let the optimizer update the parameters of a bucket, or all."""
        optimizer, self._inside = self.optimizer, True
        groups = optimizer.param_groups
        group = groups[0] if bucket is None else bucket.group()
        parameters = group["params"]
        if bucket is not None:
            optimizer.param_groups, group["params"] = [group], bucket.parameters
        try:
            with self.averager._span("update"), torch.no_grad():
                optimizer.step()
        finally:
            self._inside = False
            optimizer.param_groups, group["params"] = groups, parameters

    def observe(self, loss: float | torch.Tensor) -> None:
        """Pass the loss of the last batch, to which "pga" with `adaptive=True` adapts its
        period; see `Averager.observe`.
        """
        self.averager.observe(loss)

    def consensus(self) -> AbstractContextManager[float]:
        """A context in which the model holds the average over all workers; yields their
        distance.  See `Averager.consensus`.
        """
        return self.averager.consensus()

    def average_gradients(self) -> None:
        """With "allreduce": average the gradients now; see `Averager.average_gradients`."""
        self.averager.average_gradients()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer in torch's shape, with what the algorithm remembers:
        rows in `state`, by names that begin with "mpidec.", and numbers in each group's "mpidec".
        Collective.

        Tensors and numbers, for `torch.load(weights_only=True)`; a plain optimizer loads it, too.
        """
        own, whole = self.averager.state_dict(), self.optimizer.state_dict()
        return merged(whole, own)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned, bit for bit, when the model has loaded its
        own, too; or with the state of a plain optimizer, of which the algorithm begins anew.
        Collective.
        """
        if settings_of(state_dict) is None:
            self.averager.restart()
        else:
            self.averager.load_state_dict(state_dict)
        self.optimizer.load_state_dict(plain_state(state_dict))

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a wrapped optimizer is neither copied nor pickled, for it is connected with other "
            "ranks: copy the model, "
            "or save state_dict()"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise: all parameters must take part from the beginning.

        Raises
        ------
        RuntimeError
        """
        raise RuntimeError(
            "parameters are added to a wrapped optimizer, expected all of them from the beginning: "
            "add the group to "
            "the optimizer, close this one and wrap it again"
        )

    def close(self) -> None:
        """Complete what is under way, and write the timeline; see `Averager.close`.  Collective,
        and safe to repeat.
        """
        for hook in self._hooks:
            hook.remove()
        self.averager.close()

    def __enter__(self) -> Decentralized:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def __repr__(self) -> str:
        averager = self.averager
        return (
            f"Decentralized({type(self.optimizer).__name__}, "
            f"algorithm={averager.algorithm.name!r}, n={averager.net.n}, "
            f"extra memory {averager.extra_bytes / 1e6:.1f} MB)"
        )


def by_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer updates each parameter by itself, as those of torch do, and has
    no hooks that expect to see all at once.
    """
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return type(optimizer).__module__.startswith("torch.optim.") and not hooked
