"""Mixing of rows that stay on a device: halos through CUDA-aware MPI, or through the messages of a
process group's backend (NCCL), sums by the operations of the device library.

Each operation is rounded separately, in the order of `kernels.weighted`: results are bit-identical
to those on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Array, Device, Place, Torch, check_out, check_rows, flat_dtype
from ..kernels import Runs, Weights
from ..runtime import CommRequest, Context, DeviceRows, GroupComm, Pending, cuda_aware
from .base import words
from .halo import HaloExchange, fingerprint
from .messages import MessageRequest, PointToPoint, waiting_for
from .plan import Route, Routes


class DeviceSum:
    """Mixing of one phase on one rank, for rows that stay on one device.

    Parameters
    ----------
    device : Device
    place : object
        The device that holds the rows.
    plan : Plan
        A plan without other ranks of the node: all rows of other ranks arrive in messages.
    """

    def __init__(self, device: Device, place: Place, plan: Routes):
        self.device, self.place, self.plan = device, place, plan
        # Numbers of the rows that are sent, on the device.
        self._sent: Array | None = None
        self._slots: dict[np.dtype, list[tuple[Array, ...]]] = {}

    def halo(self, flat: Array) -> Array:
        """Return where the rows of the halo will be."""
        with self.device.on(self.place):
            shape = len(self.plan.halo), flat.shape[1]
            halo: Array = self.device.empty(shape, self.device.format(flat), self.place)
            return halo

    def leaving(self, flat: Array) -> Array:
        """Return the rows in the order in which they are sent."""
        send = self.plan.halo_route.send
        if send is None:
            return flat
        with self.device.on(self.place):
            if self._sent is None:
                self._sent = self.device.constant(send, self.place)
            rows: Array = flat[self._sent]
            return rows

    def sum(self, flat: Array, halo: Array) -> Array:
        """`W X` in the working precision; `Device.from_real` converts it to the format of the
        rows.
        """
        device, weights = self.device, self.plan.weights
        with device.on(self.place):
            X = device.real(flat)
            total, dtype = device.zeros_like(X), np.dtype(device.format(X))
            if isinstance(weights, Runs):
                for start, stop, shifts, w in weights.runs:
                    for shift, weight in zip(shifts.tolist(), w.astype(dtype).tolist()):
                        total[start:stop] += (
                            weight * X[start + shift : stop + shift] - weight * X[start:stop]
                        )
            else:
                rows = device.concatenate([X, device.real(halo)], 0) if len(halo) else X
                for at, places, wt, vt in self._terms(weights, dtype):
                    total[at] += wt * rows[places] - vt * X[at]
            result: Array = X + total
            return result

    def _terms(self, weights: Weights, dtype: np.dtype) -> list[tuple[Array, ...]]:
        if dtype not in self._slots:
            cast = weights.astype(dtype)
            self._slots[dtype] = [
                tuple(
                    self.device.constant(values, self.place)
                    for values in (
                        agents.astype(np.int64),
                        cast.indices[entry].astype(np.int64),
                        cast.w[entry, None],
                        cast.v[entry, None],
                    )
                )
                for agents, entry in cast.slots
            ]
        return self._slots[dtype]


class DeviceSums:
    """Mixing of one phase for rows that stay on their devices.

    Parameters
    ----------
    context : Context
    exchange : HaloExchange
        Announces what is exchanged.
    plan : Plan
        A plan without other ranks of the node.
    over : str
        Text of the phase, for messages.
    count : callable (row_bytes)
    """

    def __init__(
        self,
        context: Context,
        exchange: HaloExchange,
        plan: Routes,
        over: str,
        count: Callable[[int], None],
    ):
        self._context, self._exchange, self._plan, self._over = context, exchange, plan, over
        self._count, self._messages = count, PointToPoint(context.comm, context.row_type, plan)
        self._sums: dict[tuple[Device, Place], DeviceSum] = {}

    def takes(self, device: Device) -> bool:
        """Return whether rows stay on a device: there is no other rank, the process group's backend
        takes them, or MPI does and this rank is alone on its node.
        """
        comm, alone = self._context.comm, self._context.size == 1
        if isinstance(comm, GroupComm):
            groups = comm.devices
            return alone or (
                groups is not None
                and isinstance(device, Torch)
                and bool(groups.backend(device.kind))
            )
        aware, _ = cuda_aware()  # a wrong MPIDEC_GPU_MPI is an error in any case
        return alone or (aware and self._context.memory is None)

    def start(self, device: Device, arrays: Sequence[Array], out: Array | None = None) -> Pending:
        """Mix arrays of one format on one device; `wait` returns their list."""
        columns, place = Columns(device, arrays, self._plan.m, out), device.place(arrays[0])
        part = self._sums.setdefault((device, place), DeviceSum(device, place, self._plan))
        flat, nbytes, route = columns.flat, columns.row_bytes, self._plan.halo_route
        self._count(nbytes)
        if self._context.size == 1:
            halo = part.halo(flat)
            return Pending(None, lambda: columns.split(part.sum(flat, halo)))
        shape, dtype = words(tuple(flat.shape[1:])), flat_dtype(columns.format)
        kind = "W(X) from device to device", shape, dtype
        ask = self._exchange.announce(self._plan, route, kind)
        halo, sent = part.halo(flat), part.leaving(flat)
        # They are complete, and the halo's memory is no longer used.
        device.synchronize(place)
        requests = self._post(device, route, sent, halo, nbytes, fingerprint(kind))
        what = waiting_for(route.sources.tolist(), "W(X)" + self._over)
        request = MessageRequest(requests, sent, halo, what, ask)
        return Pending(request, lambda: columns.split(part.sum(flat, halo)))

    def _post(
        self, device: Device, route: Route, sent: Array, halo: Array, nbytes: int, kind: int
    ) -> Sequence[CommRequest]:
        """Begin to send rows along a route, and to receive the halo."""
        comm = self._context.comm
        if isinstance(comm, GroupComm) and comm.devices is not None:
            # As bytes: NCCL has no complex numbers.
            into, out = device.bytes(halo), device.bytes(sent)
            return [
                comm.devices.start(
                    [(rank, into[i * nbytes : j * nbytes]) for rank, i, j in route.arriving],
                    [(rank, out[i * nbytes : j * nbytes]) for rank, i, j in route.leaving],
                )
            ]
        leaving, arriving = (
            DeviceRows(device.span(rows)[0], len(rows), nbytes, rows) for rows in (sent, halo)
        )
        return self._messages.post(route, leaving, arriving, nbytes, kind)


class Columns:
    """Device arrays of one format, joined into one matrix of rows.

    Parameters
    ----------
    device : Device
    arrays : sequence of device arrays (m, ...)
    m : int
    out : device array, optional
        Receives the result, if there is only one array.

    Attributes
    ----------
    flat : device array (m, d)
        The matrix.
    row_bytes : int
        Size of a row.
    """

    def __init__(self, device: Device, arrays: Sequence[Array], m: int, out: Array | None = None):
        self.device, self.format, self.out = device, device.format(arrays[0]), out
        if out is not None:
            check_out(out, arrays[0])
        self.shapes = [tuple(X.shape) for X in arrays]
        for shape in self.shapes:
            check_rows(shape, m, self.format)
        self.place = device.place(arrays[0])
        with device.on(self.place):
            parts = [device.flat(X) for X in arrays]
            self.flat = parts[0] if len(parts) == 1 else device.concatenate(parts, 1)
        self.row_bytes = self.flat.shape[1] * (
            2 if self.format == "bfloat16" else np.dtype(self.format).itemsize
        )

    def split(self, rows: Array) -> list[Array]:
        """Split rows of the working precision into arrays of the original shapes and format."""
        with self.device.on(self.place):
            joined = self.device.from_real(rows, self.flat.shape, self.format)
            if self.out is not None:
                self.out[...] = joined.reshape(self.shapes[0])
                return [self.out]
            parts, end = [], 0
            for shape in self.shapes:
                begin, end = end, end + math.prod(shape[1:])
                parts.append(self.device.flat(joined[:, begin:end]).reshape(shape))
            return parts
