"""BlueFog's one-sided calls: windows by their names, over `mpidec.comm.rma.Window`.

What the program writes into the tensor of a window neighbours can `win_get` after its next call of
a window, or `barrier`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import torch

from ...comm.mixing.internals import repeatable
from ...comm.rma import Window
from ...comm.runtime import Pending
from ..common.topology_util import GetRecvWeights
from ..session import NamedWindow, current, in_window

logger = logging.getLogger("bluefog")
RankWeights = Mapping[int, float] | Iterable[int] | None
_CYCLE = float(os.environ.get("BLUEFOG_CYCLE_TIME", "0.5")) / 1000
_AHEAD = 8
_with_p = False


def _named(call: str, name: str) -> NamedWindow:
    windows = current(call).windows
    if name not in windows:
        there = f"expected one of {sorted(windows)}" if windows else "and no other"
        raise ValueError(
            f"bf.{call}: no window {name!r}, {there}: bf.win_create(tensor, {name!r}) makes it"
        )
    return windows[name]


def win_create(tensor: torch.Tensor, name: str, zero_init: bool = False) -> bool:
    """Make a window for a tensor, with a slot for each in-neighbour; False if the name is taken.
    Collective.

    Parameters
    ----------
    tensor : torch.Tensor
        Of the same shape and dtype on all ranks.
    name : str
    zero_init : bool
        Whether the slots begin as zeros, or as copies of the tensor.
    """
    session = current("win_create")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"bf.win_create: tensor is {type(tensor).__name__}, expected a torch.Tensor"
        )
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"bf.win_create: tensor is {tensor.dtype}, expected real numbers")
    if not isinstance(name, str):
        raise TypeError(f"bf.win_create: name is {name!r}, expected a string")
    if name in session.windows:
        logger.error("bf.win_create: there is a window %r: call bf.win_free(%r) first", name, name)
        return False
    session.net.matching.agree("bf.win_create", f"window {name!r} of {tensor.dtype}")
    window = session.net.window(in_window(tensor), zero=zero_init)
    session.windows[name] = NamedWindow(window, tensor)
    return True


def win_free(name: str | None = None) -> bool:
    """Free a window, or all of them, in the order in which they were made.  Collective."""
    session = current("win_free")
    if name is not None:
        _named("win_free", name)
    session.net.matching.agree("bf.win_free", "all windows" if name is None else f"window {name!r}")
    for each in [*session.windows] if name is None else [name]:
        session.windows.pop(each).window.close()
    return True


def get_current_created_window_names() -> list[str]:
    """Return the names of all windows, sorted."""
    return sorted(current("get_current_created_window_names").windows)


# Transfers


def take_turns(window: Window, dst: RankWeights, ahead: int) -> None:
    """Wait for the neighbours that have not taken up more than `ahead` transfers, for a cycle at
    most.
    """
    end = 0.0
    while True:
        unread = window.unread
        if all(unread.get(rank, 0) <= ahead for rank in (unread if dst is None else dst)):
            return
        now = time.perf_counter()
        end = end or now + _CYCLE
        if now > end:
            return
        os.sched_yield()


def _send(
    call: str,
    tensor: torch.Tensor,
    name: str,
    own: float | None,
    dst: RankWeights,
    add: bool,
) -> NamedWindow:
    entry = _named(call, name)
    window = entry.window
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != entry.tensor.dtype:
        what = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(
            f"bf.{call}: tensor is {what}, expected {entry.tensor.dtype} like the window {name!r}"
        )
    if dst is not None and not isinstance(dst, Iterable):
        raise TypeError(
            f"bf.{call}: dst_weights is {dst!r}, expected a dict {{rank: weight}} or a list of "
            "ranks"
        )
    dst = repeatable(dst)
    take_turns(window, dst, _AHEAD)
    entry.load()
    start, p = window.accumulate if add else window.put, window.p
    if entry.holds(tensor):
        start(window.value, own, dst)
        if own is not None:
            entry.store()
    else:
        start(in_window(tensor), None, dst)
        if own is not None:
            with torch.no_grad():
                tensor.copy_(tensor * own if tensor.is_floating_point() else tensor.double() * own)
            window.p = p * own
    if own is not None and not _with_p:
        window.p = p
    return entry


def _begun(call: str, pending: Pending) -> int:
    session = current(call)
    session.handle += 1
    session.transfers[session.handle] = pending
    return session.handle


def neighbor_win_put_nonblocking(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: RankWeights = None,
    require_mutex: bool = False,
) -> int:
    """Begin `neighbor_win_put`; `win_wait(handle)` ends it.  The tensor may be changed at once."""
    call = "win_put_nonblocking"
    entry = _send(call, tensor, name, self_weight, dst_weights, False)
    return _begun(call, entry.window.sent())


def neighbor_win_put(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: RankWeights = None,
    require_mutex: bool = False,
) -> bool:
    r"""Write :math:`w_j x` into this rank's slots at its out-neighbours; then multiply the tensor
    by `self_weight`.

    Parameters
    ----------
    tensor : torch.Tensor
        That of the window, or another one of the same shape and dtype.
    name : str
        Of the window.
    self_weight : float, optional
    dst_weights : dict {rank: weight}, optional
        All out-neighbours with weight 1 by default.
    require_mutex : bool
        Of no effect: each transfer is seen as a whole, or not at all.
    """
    _send("win_put", tensor, name, self_weight, dst_weights, False)
    return True


def neighbor_win_accumulate_nonblocking(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: RankWeights = None,
    require_mutex: bool = False,
) -> int:
    """Begin `neighbor_win_accumulate`; `win_wait(handle)` ends it.  The tensor may be changed at
    once.
    """
    call = "win_accumulate_nonblocking"
    entry = _send(call, tensor, name, self_weight, dst_weights, True)
    return _begun(call, entry.window.sent())


def neighbor_win_accumulate(
    tensor: torch.Tensor,
    name: str,
    self_weight: float | None = None,
    dst_weights: RankWeights = None,
    require_mutex: bool = False,
) -> bool:
    """Add to this rank's slots at its out-neighbours; otherwise as `neighbor_win_put`."""
    _send("win_accumulate", tensor, name, self_weight, dst_weights, True)
    return True


def neighbor_win_get_nonblocking(
    name: str, src_weights: RankWeights = None, require_mutex: bool = False
) -> int:
    """Begin `neighbor_win_get`; `win_wait(handle)` ends it."""
    entry = _named("win_get_nonblocking", name)
    entry.load()
    return _begun("win_get_nonblocking", entry.window.start_get(src_weights))


def neighbor_win_get(
    name: str, src_weights: RankWeights = None, require_mutex: bool = False
) -> bool:
    """Read the tensors of in-neighbours, all with weight 1 by default, into their slots."""
    entry = _named("win_get", name)
    entry.load()
    entry.window.get(src_weights)
    return True


win_put, win_put_nonblocking = neighbor_win_put, neighbor_win_put_nonblocking
win_get, win_get_nonblocking = neighbor_win_get, neighbor_win_get_nonblocking
win_accumulate = neighbor_win_accumulate
win_accumulate_nonblocking = neighbor_win_accumulate_nonblocking


def win_wait(handle: int) -> bool:
    """Complete a transfer; False if there is none of this handle."""
    pending = current("win_wait").transfers.pop(handle, None)
    if pending is None:
        logger.error("bf.win_wait: %r is not the handle of a transfer under way", handle)
        return False
    pending.wait()
    return True


def win_poll(handle: int) -> bool:
    """Return whether `win_wait` would return at once."""
    pending = current("win_poll").transfers.get(handle)
    return pending is None or pending.test()


# The slots


def win_update(
    name: str,
    self_weight: float | None = None,
    neighbor_weights: Mapping[int, float] | None = None,
    reset: bool = False,
    clone: bool = False,
    require_mutex: bool = False,
) -> torch.Tensor:
    r"""Combine the tensor with the slots: :math:`x_i \leftarrow s_i x_i + \sum_j r_{ij}\,
    \text{slot}_{ij}`; returns it.

    Parameters
    ----------
    name : str
        Of the window.
    self_weight, neighbor_weights : float, dict {rank: weight}, optional
        Both or neither: by default those of the graph that was set.
    reset : bool
        Whether to empty the slots that were used.
    clone : bool
        Whether to return a new tensor, and leave that of the window as it is.
    require_mutex : bool
        Of no effect: each slot is read as a whole.
    """
    entry, session = _named("win_update", name), current("win_update")
    if (self_weight is None) != (neighbor_weights is None):
        raise ValueError(
            "bf.win_update: self_weight and neighbor_weights go together: give both, or neither"
        )
    if neighbor_weights is not None and not isinstance(neighbor_weights, Mapping):
        raise ValueError(
            f"bf.win_update: neighbor_weights is a {type(neighbor_weights).__name__}, expected a "
            f"dict {{rank: weight}}"
        )
    if neighbor_weights is None and session.counts and session.graph is not None:
        self_weight, neighbor_weights = GetRecvWeights(session.graph, session.net.rank)
    return _update(entry, self_weight, neighbor_weights, reset, clone)


def win_update_then_collect(name: str, require_mutex: bool = True) -> torch.Tensor:
    """Add all slots to the tensor, and empty them; returns it."""
    entry = _named("win_update_then_collect", name)
    return _update(entry, 1.0, dict.fromkeys(entry.window.in_neighbors, 1.0), True, False)


def _update(
    entry: NamedWindow,
    own: float | None,
    weights: Mapping[int, float] | None,
    reset: bool,
    clone: bool,
) -> torch.Tensor:
    window, tensor = entry.window, entry.tensor
    p = window.p
    entry.load()
    window.update(own, weights, reset)
    if not _with_p:
        window.p = p
    if clone:
        result = torch.as_tensor(window.value).to(tensor.dtype, copy=True)
        entry.load()
        return result
    entry.store()
    return tensor


def get_win_version(name: str) -> dict[int, int]:
    """Transfers into the slot of each in-neighbour since the last update."""
    return _named("get_win_version", name).window.versions


# Mutual exclusion and push-sum weights


def win_mutex(
    name: str, for_self: bool = False, ranks: Iterable[int] | None = None
) -> AbstractContextManager[None]:
    """Hold the mutexes of `ranks`, by default the out-neighbours, or with `for_self` that of
    this rank.
    """
    entry = _named("win_mutex", name)
    return entry.window.mutex([current("win_mutex").net.rank] if for_self else ranks)


def win_lock(name: str) -> AbstractContextManager[None]:
    """Hold the mutex of this rank."""
    return win_mutex(name, for_self=True)


def turn_on_win_ops_with_associated_p() -> None:
    """Let the push-sum weights move with the tensors, in all windows."""
    global _with_p
    _with_p = True


def turn_off_win_ops_with_associated_p() -> None:
    """Let the push-sum weights stay as they are."""
    global _with_p
    _with_p = False


def win_associated_p(name: str) -> float:
    """Return the push-sum weight of a window."""
    return _named("win_associated_p", name).window.p
