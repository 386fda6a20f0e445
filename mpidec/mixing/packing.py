"""Mixing of other things than one array of rows: several arrays at once, 16-bit floats, rows that stay on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays.host import as_rows, row_bytes
from ..arrays.devices import Device, device_of
from ..arrays.formats import BFLOAT16, flat_dtype, narrow, widen
from .pending import Pending
from ..transport.device import Columns, Resident

if TYPE_CHECKING:
    from .phase import Phase


def start_many(phase: Phase, arrays: Mapping[Any, Any] | Sequence[Any], out: Any) -> Pending:
    """One mixing for all arrays of one format."""
    if out is not None:
        raise TypeError("out is given, expected none when several arrays are mixed")
    if isinstance(arrays, Mapping):
        names, values = list(arrays), start_many(phase, list(arrays.values()), None)
        return Pending(None, lambda: dict(zip(names, values.wait())))
    groups: dict[Any, list[tuple[int, Any]]] = {}
    for t, X in enumerate(arrays):
        device = device_of(X)
        if device is not None and phase.resident:
            groups.setdefault((device, device.place(X), device.format(X)), []).append((t, X))
        else:
            rows, home = as_rows(X, phase.m, half=True)
            groups.setdefault(rows.dtype, []).append((t, (rows, home)))
    started = []
    for key, group in groups.items():
        parts = [part for _, part in group]
        started.append(start_resident(phase, key[0], parts) if isinstance(key, tuple) else _start_fused(phase, parts))

    def collect() -> list[Any]:
        results = [None] * len(arrays)
        for group, pending in zip(groups.values(), started):
            for (t, _), result in zip(group, pending.wait()):
                results[t] = result
        return results
    return Pending(None, collect)


def _start_fused(phase: Phase, pairs: Sequence[tuple[np.ndarray, Callable[[np.ndarray], Any]]]) -> Pending:
    """Rows of one dtype and what gives each back; `wait` returns a list."""
    ends = np.cumsum([0, *(rows.shape[1] for rows, _ in pairs)]).tolist()
    joint = phase.empty((phase.m, ends[-1]), pairs[0][0].dtype)
    np.concatenate([rows for rows, _ in pairs], axis=1, out=joint)
    return phase.start_rows(joint, None, lambda mixed: [
        home(np.ascontiguousarray(mixed[:, begin:end])) for (_, home), begin, end in zip(pairs, ends, ends[1:])], tuple(ends[1:]))


def start_half(phase: Phase, rows: np.ndarray, target: np.ndarray | None, home: Callable[[np.ndarray], Any],
               form: tuple[Any, ...]) -> Pending:
    """Rows of 16-bit floats travel between nodes as they are; they are summed in float32, and rounded once."""
    format, single = BFLOAT16 if rows.dtype == np.uint16 else rows.dtype.str, np.dtype(np.float32)
    X, Y = phase.empty(rows.shape, single), phase.empty(rows.shape, single)
    X[...] = widen(rows, format)

    def finish(Y: np.ndarray) -> Any:
        if target is None:
            return home(narrow(Y, format))
        target[...] = narrow(Y, format)
        return home(target)
    if phase.whole:
        pending = phase.start_shared(X, Y, finish, (*form, format))
        phase.mixer.counts.bytes -= phase.plan.edges * row_bytes(rows)     # half of what was counted
        return pending
    if phase.alone:
        phase.count(row_bytes(rows))
        return Pending(None, lambda: finish(phase.average(X, X[:0], Y)))
    exchange, halo = phase.halo_of(phase.plan, rows, (*form, format))
    return Pending(exchange, lambda: finish(phase.average(X, widen(halo, format), Y)))


def start_resident(phase: Phase, device: Device, arrays: Sequence[Any], out: Any = None, many: bool = True) -> Pending:
    """Mix arrays of one format on one device; `wait` returns their list, or the only one."""
    columns, place = Columns(device, arrays, phase.m, out), device.place(arrays[0])
    part = phase.residents.setdefault((device, place), Resident(device, place, phase.plan))
    phase.count(columns.row_bytes)
    ask = None
    if not phase.alone:
        kind = "W(X) from device to device", tuple(columns.flat.shape[1:]), flat_dtype(columns.format)
        ask = phase.courier.announce(phase.plan, phase.plan.halo_route, kind)
        phase.courier.wire(phase.plan)
    exchange, halo = part.start(phase.net.comm, phase.net.row_type(columns.row_bytes), columns.flat, phase.where, ask)

    def finish() -> Any:
        results = columns.split(part.sum(columns.flat, halo))
        return results if many else results[0]
    return Pending(exchange, finish)
