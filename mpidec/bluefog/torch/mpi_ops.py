"""BlueFog's collective calls on tensors, each one call of `mpidec.Network`.

Results are new tensors that autograd does not record; `..._` writes into the tensor that is given;
`..._nonblocking` returns a handle for `poll` and `wait`.  A `name` must be free, that is not the
name of a call under way.  BlueFog has its other calls in this module, too: they are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ...comm.mixing import Network
from ...comm.runtime import MPI, Checked, Pending
from ..session import (  # noqa: F401
    DIRECT,
    Session,
    current,
    in_neighbor_machine_ranks,
    in_neighbor_ranks,
    init,
    is_homogeneous,
    is_machine_topo_weighted,
    is_topo_weighted,
    load_machine_topology,
    load_topology,
    local_rank,
    local_size,
    machine_rank,
    machine_size,
    out_neighbor_machine_ranks,
    out_neighbor_ranks,
    rank,
    set_machine_topology,
    set_topology,
    shutdown,
    size,
)
from .timeline import (  # noqa: F401
    timeline_context,
    timeline_end_activity,
    timeline_start_activity,
)
from .windows import (  # noqa: F401
    get_current_created_window_names,
    get_win_version,
    neighbor_win_accumulate,
    neighbor_win_accumulate_nonblocking,
    neighbor_win_get,
    neighbor_win_get_nonblocking,
    neighbor_win_put,
    neighbor_win_put_nonblocking,
    turn_off_win_ops_with_associated_p,
    turn_on_win_ops_with_associated_p,
    win_accumulate,
    win_accumulate_nonblocking,
    win_associated_p,
    win_create,
    win_free,
    win_get,
    win_get_nonblocking,
    win_lock,
    win_mutex,
    win_poll,
    win_put,
    win_put_nonblocking,
    win_update,
    win_update_then_collect,
    win_wait,
)

Weights = Mapping[int, float] | Iterable[int] | None
_skip_negotiation = False


def _array(tensor: torch.Tensor) -> Any:
    """Return the tensor as mpidec takes it: the memory of one on the host as an array, which is
    quickest.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is {type(tensor).__name__}, expected a torch.Tensor")
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.numpy() if tensor.is_cpu and tensor.dtype in DIRECT else tensor


def _tensor(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else torch.from_numpy(result)


def _into(tensor: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """Writes a result into the tensor."""

    def write(result: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.copy_(_tensor(result))

    return write


# Calls under way


def _beginning(call: str, name: str | None) -> Session:
    """Return the session, for a call with this name, which no call under way may have."""
    session = current(call)
    if name is not None and any(name == other for other, *_ in session.handles.values()):
        raise ValueError(
            f"bf.{call}: name {name!r} is that of a call under way, expected a free one: wait for "
            "that call first"
        )
    return session


def _handle(
    session: Session,
    name: str | None,
    pending: Pending,
    finish: Callable[[Any], torch.Tensor] = _tensor,
) -> int:
    """Number a call that has begun."""
    session.handle += 1
    session.handles[session.handle] = name, pending, finish
    return session.handle


def _under_way(call: str, handle: int) -> tuple[Session, Pending, Callable[[Any], torch.Tensor]]:
    session = current(call)
    if handle not in session.handles:
        raise ValueError(
            f"bf.{call}: handle {handle!r} is not that of a call under way, expected what a "
            "nonblocking call has returned, "
            "once"
        )
    return session, *session.handles[handle][1:]


def poll(handle: int) -> bool:
    """Return whether `wait` would return at once."""
    return _under_way("poll", handle)[1].test()


def synchronize(handle: int) -> torch.Tensor:
    """Complete a nonblocking call, and return its result, once."""
    session, pending, finish = _under_way("synchronize", handle)
    try:
        return finish(pending.wait())
    finally:
        del session.handles[handle]


wait = synchronize


def barrier() -> None:
    """Return when all ranks have come here."""
    session = current("barrier")
    for entry in session.windows.values():
        entry.load()
    session.net.barrier()


# Calls of all ranks


def _local_sum(net: Network, tensor: torch.Tensor, average: bool, name: str) -> Pending:
    """Return the sum or average over the ranks of this machine."""
    if average or tensor.dtype.is_floating_point:
        pending = net.start_hierarchical_neighbor_allreduce(_array(tensor), 1.0, {}, {}, name=name)
        ranks = 1 if average else next(len(m) for m in net.machines() if net.rank in m)
        return Pending(pending, lambda: _tensor(pending.wait()) * ranks)
    others = [r for m in net.machines() if net.rank in m for r in m if r != net.rank]
    rows = net.start_neighbor_allgather(tensor.detach()[None], others, others, name=name)
    return Pending(rows, lambda: rows.wait().sum(0, dtype=tensor.dtype) + tensor.detach())


def allreduce_nonblocking(
    tensor: torch.Tensor,
    average: bool = True,
    is_hierarchical_local: bool = False,
    name: str | None = None,
) -> int:
    """Begin `allreduce`."""
    return _allreduce(
        "allreduce_nonblocking", tensor, average, is_hierarchical_local, name, _tensor
    )


def allreduce_nonblocking_(
    tensor: torch.Tensor,
    average: bool = True,
    is_hierarchical_local: bool = False,
    name: str | None = None,
) -> int:
    """Begin `allreduce_`."""
    return _allreduce(
        "allreduce_nonblocking_", tensor, average, is_hierarchical_local, name, _into(tensor)
    )


def _allreduce(
    call: str,
    tensor: torch.Tensor,
    average: bool,
    local: bool,
    name: str | None,
    finish: Callable[[Any], torch.Tensor],
) -> int:
    session = _beginning(call, name)
    if local:
        pending = _local_sum(session.net, tensor, average, name or "")
    else:
        pending = session.net.start_allreduce(_array(tensor), average, name=name or "")
    return _handle(session, name, pending, finish)


def allreduce(
    tensor: torch.Tensor,
    average: bool = True,
    is_hierarchical_local: bool = False,
    name: str | None = None,
) -> torch.Tensor:
    """Return the average or sum over all ranks, or those of this machine."""
    net = current("allreduce").net
    if is_hierarchical_local:
        return _tensor(_local_sum(net, tensor, average, "").wait())
    return _tensor(net.allreduce(_array(tensor), average))


def allreduce_(
    tensor: torch.Tensor,
    average: bool = True,
    is_hierarchical_local: bool = False,
    name: str | None = None,
) -> torch.Tensor:
    """`allreduce` in place."""
    return _into(tensor)(allreduce(tensor, average, is_hierarchical_local))


def broadcast_nonblocking(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Begin `broadcast`."""
    session = _beginning("broadcast_nonblocking", name)
    pending = session.net.start_broadcast(_array(tensor), root_rank, name=name or "")
    return _handle(session, name, pending)


def broadcast_nonblocking_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Begin `broadcast_`."""
    session = _beginning("broadcast_nonblocking_", name)
    pending = session.net.start_broadcast(_array(tensor), root_rank, name=name or "")
    return _handle(session, name, pending, _into(tensor))


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Return the tensor of rank `root_rank`."""
    return _tensor(current("broadcast").net.broadcast(_array(tensor), root_rank))


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """`broadcast` in place."""
    return _into(tensor)(broadcast(tensor, root_rank))


def allgather_nonblocking(tensor: torch.Tensor, name: str | None = None) -> int:
    """Begin `allgather`."""
    session = _beginning("allgather_nonblocking", name)
    return _handle(session, name, session.net.start_allgather(_array(tensor), name=name or ""))


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Return the tensors of all ranks, one after the other along the first dimension, in which they
    may differ.
    """
    return _tensor(current("allgather").net.allgather(_array(tensor)))


# Calls among neighbours


def _pulled(call: str, own: float | None, src: Weights, dst: Weights, kind: str = "") -> None:
    """Refuse weights that BlueFog refuses: one of those of the receiver without the other."""
    if (own is None) != (src is None) and (dst is None or own is None):
        raise ValueError(
            f"bf.{call}: self_weight and src_{kind}weights go together: give both, or neither"
        )
    if dst is not None and own is None:
        raise ValueError(
            f"bf.{call}: dst_{kind}weights needs self_weight and src_{kind}weights: give all three"
        )
    if dst is not None and not isinstance(dst, Iterable):
        raise ValueError(
            f"bf.{call}: dst_{kind}weights is {dst!r}, expected a dict {{rank: weight}} or a list "
            "of ranks"
        )
    if src is not None and not isinstance(src, Mapping):
        raise ValueError(
            f"bf.{call}: src_{kind}weights is a {type(src).__name__}, expected a dict {{rank: "
            f"weight}}"
        )


class _checking:
    """The comparison of the lists of all ranks, or none, for the length of a block."""

    def __init__(self, net: Network, check: bool):
        self._net = net
        self._check: Checked = "all" if check else False

    def __enter__(self) -> None:
        self._before, self._net.check = self._net.check, self._check

    def __exit__(self, *_: object) -> None:
        self._net.check = self._before


def start_neighbor_sum(
    session: Session,
    x: np.ndarray | torch.Tensor,
    own: float | None,
    src: Mapping[int, float] | None,
    dst: Weights,
    check: bool,
    name: str = "",
) -> Pending:
    """Begin a weighted sum, by default with the weights of the graph."""
    if own is None and src is None and dst is None and session.counts:
        own, src = session.weights
    if dst is None:
        return session.net.start_neighbor_allreduce(x, own, src, name=name)
    with _checking(session.net, check):
        return session.net.start_neighbor_allreduce(x, own, src, dst, name=name)


def neighbor_allreduce_nonblocking(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_weights: Mapping[int, float] | None = None,
    dst_weights: Weights = None,
    enable_topo_check: bool = True,
    name: str | None = None,
) -> int:
    """Begin `neighbor_allreduce`."""
    call = "neighbor_allreduce_nonblocking"
    _pulled(call, self_weight, src_weights, dst_weights)
    session = _beginning(call, name)
    pending = start_neighbor_sum(
        session,
        _array(tensor),
        self_weight,
        src=src_weights,
        dst=dst_weights,
        check=enable_topo_check,
        name=name or "",
    )
    return _handle(session, name, pending)


def neighbor_allreduce(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_weights: Mapping[int, float] | None = None,
    dst_weights: Weights = None,
    enable_topo_check: bool = True,
    name: str | None = None,
) -> torch.Tensor:
    r"""Return the weighted sum :math:`s_i x_i + \sum_j r_{ij} t_{ji} x_j` of this rank's tensor and
    its neighbours'.

    Parameters
    ----------
    tensor : torch.Tensor
    self_weight, src_weights : float, dict {rank: weight}
        Of the receiver; by default those of the graph that was set.
    dst_weights : dict {rank: weight} or list of ranks
        The ranks to send to, which need not be neighbours in the graph; then all three are given.
    enable_topo_check : bool
        Whether senders and receivers are compared, once for each list.
    name : str
        Of no effect in calls that wait.
    """
    session = current("neighbor_allreduce")
    net = session.net
    if self_weight is None and src_weights is None and dst_weights is None:
        own, src = session.weights if session.counts else (None, None)
        return _tensor(net.neighbor_allreduce(_array(tensor), own, src))
    _pulled("neighbor_allreduce", self_weight, src_weights, dst_weights)
    with _checking(net, enable_topo_check):
        return _tensor(
            net.neighbor_allreduce(_array(tensor), self_weight, src_weights, dst_weights)
        )


def neighbor_allgather_nonblocking(
    tensor: torch.Tensor,
    *,
    src_ranks: Iterable[int] | None = None,
    dst_ranks: Iterable[int] | None = None,
    enable_topo_check: bool = True,
    name: str | None = None,
) -> int:
    """Begin `neighbor_allgather`."""
    call = "neighbor_allgather_nonblocking"
    if (src_ranks is None) != (dst_ranks is None):
        raise ValueError(f"bf.{call}: src_ranks and dst_ranks go together: give both, or neither")
    session = _beginning(call, name)
    with _checking(session.net, enable_topo_check):
        pending = session.net.start_neighbor_allgather(
            _array(tensor), src_ranks, dst_ranks, name=name or ""
        )
    return _handle(session, name, pending)


def neighbor_allgather(
    tensor: torch.Tensor,
    *,
    src_ranks: Iterable[int] | None = None,
    dst_ranks: Iterable[int] | None = None,
    enable_topo_check: bool = True,
    name: str | None = None,
) -> torch.Tensor:
    """Return the tensors of the in-neighbours, or of `src_ranks` in this order, one after the other
    along the first dimension.
    """
    return wait(
        neighbor_allgather_nonblocking(
            tensor, src_ranks=src_ranks, dst_ranks=dst_ranks, enable_topo_check=enable_topo_check
        )
    )


def start_machine_sum(
    session: Session,
    call: str,
    x: np.ndarray | torch.Tensor,
    own: float | None,
    src: Mapping[int, float] | None,
    dst: Weights,
    name: str = "",
) -> Pending:
    """Begin a weighted sum of the averages of machines, by default with the weights of their
    graph.
    """
    if session.machine_graph is None:
        raise RuntimeError(
            f"bf.{call}: no graph of machines: call bf.set_machine_topology(graph) first"
        )
    kept = session.net.machine_topology is session.machine_native
    if own is None and src is None and dst is None and kept:
        own, src = session.machine_weights
    if len(session.net.machines()) == 1 and src and dst:
        # the next machine and the last one are this one
        sent = dst[0] if isinstance(dst, Mapping) else 1.0
        own, src, dst = (own or 0.0) + src.get(0, 0.0) * sent, {}, {}
    return session.net.start_hierarchical_neighbor_allreduce(x, own, src, dst, name=name)


def hierarchical_neighbor_allreduce_nonblocking(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_machine_weights: Mapping[int, float] | None = None,
    dst_machine_weights: Weights = None,
    enable_topo_check: bool = False,
    name: str | None = None,
) -> int:
    """Begin `hierarchical_neighbor_allreduce`."""
    call = "hierarchical_neighbor_allreduce_nonblocking"
    _pulled(call, self_weight, src_machine_weights, dst_machine_weights, "machine_")
    session = _beginning(call, name)
    pending = start_machine_sum(
        session,
        call,
        _array(tensor),
        own=self_weight,
        src=src_machine_weights,
        dst=dst_machine_weights,
        name=name or "",
    )
    return _handle(session, name, pending)


def hierarchical_neighbor_allreduce(
    tensor: torch.Tensor,
    *,
    self_weight: float | None = None,
    src_machine_weights: Mapping[int, float] | None = None,
    dst_machine_weights: Weights = None,
    enable_topo_check: bool = False,
    name: str | None = None,
) -> torch.Tensor:
    """Return the weighted sum of the averages of the machines, on each of their ranks."""
    return wait(
        hierarchical_neighbor_allreduce_nonblocking(
            tensor,
            self_weight=self_weight,
            src_machine_weights=src_machine_weights,
            dst_machine_weights=dst_machine_weights,
        )
    )


def pair_gossip_nonblocking(
    tensor: torch.Tensor,
    target_rank: int,
    self_weight: float | None = None,
    pair_weight: float | None = None,
    name: str | None = None,
) -> int:
    """Begin `pair_gossip`."""
    if (self_weight is None) != (pair_weight is None):
        raise ValueError(
            "bf.pair_gossip: self_weight and pair_weight go together: give both, or neither"
        )
    own, pair = (
        (0.5, 0.5) if self_weight is None or pair_weight is None else (self_weight, pair_weight)
    )
    session = _beginning("pair_gossip", name)
    pending = session.net.start_pair_gossip(_array(tensor), target_rank, own, pair)
    return _handle(session, name, pending)


def pair_gossip(
    tensor: torch.Tensor,
    target_rank: int,
    self_weight: float | None = None,
    pair_weight: float | None = None,
    name: str | None = None,
) -> torch.Tensor:
    """Return the average, or the weighted sum, of this rank's tensor and that of `target_rank`,
    which calls with this one.
    """
    return wait(pair_gossip_nonblocking(tensor, target_rank, self_weight, pair_weight))


# What BlueFog's engine is asked


def set_skip_negotiate_stage(value: bool) -> None:
    """Remembered, and without effect: nothing is negotiated."""
    global _skip_negotiation
    _skip_negotiation = bool(value)


def get_skip_negotiate_stage() -> bool:
    """Return what was set."""
    return _skip_negotiation


def suspend() -> None:
    """Nothing: no thread waits for work."""


def resume() -> None:
    """Nothing: no thread waits for work."""


def nccl_built() -> bool:
    """Never: all tensors travel over MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Return whether the MPI library was initialised with `MPI_THREAD_MULTIPLE`."""
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def unified_mpi_window_model_supported() -> bool:
    """Return whether what a neighbour writes to a window is seen without a further call: always."""
    return True
