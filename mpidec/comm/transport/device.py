"""Mixing of rows that stay on a device: halos through CUDA-aware MPI, sums by the operations of the device library.

Each operation is rounded separately, in the order of `kernels.weighted`: results are bit-identical to those on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from ..arrays.devices import Array, Device, Place
from ..arrays.formats import flat_dtype
from ..arrays.host import check_out, check_rows
from ..kernels.weighted import Runs, Weights
from ..runtime.context import Context
from ..runtime.cuda_aware import DeviceRows, cuda_aware
from ..runtime.mpi import MPI
from ..runtime.pending import Pending
from .base import words
from .halo import HaloExchange
from .messages import MessageRequest, waiting_for
from .plan import Plan

_TAG = 3  # tag of messages from device to device


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

    def __init__(self, device: Device, place: Place, plan: Plan):
        self.device, self.place, self.plan = device, place, plan
        self._sent: Array | None = None  # numbers of the rows that are sent, on the device
        self._slots: dict[np.dtype, list[tuple[Array, ...]]] = {}

    def start(
        self,
        comm: MPI.Intracomm,
        row: MPI.Datatype,
        flat: Array,
        where: str,
        ask: Callable[[], None] | None = None,
    ) -> tuple[MessageRequest | None, Array]:
        """Start to fetch the halo.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
        row : mpi4py.MPI.Datatype
            The type of one row.
        flat : device array (m, d), contiguous
        where : str
            Name of the call, for the message when a wait times out.
        ask : callable, optional
            Called at intervals while the neighbours are late.

        Returns
        -------
        request : MessageRequest or None
            The messages under way.
        halo : device array
            Complete when the request is.
        """
        device, route = self.device, self.plan.halo_route
        with device.on(self.place):
            halo = device.empty(
                (len(self.plan.halo), flat.shape[1]), device.format(flat), self.place
            )
            if comm.size == 1:
                return None, halo
            sent = flat
            if route.send is not None:
                if self._sent is None:
                    self._sent = device.constant(route.send, self.place)
                sent = flat[self._sent]
        device.synchronize(
            self.place
        )  # the rows are complete, and earlier work no longer uses the halo's memory
        nbytes = row.Get_size()
        leaving = DeviceRows(device.span(sent)[0], len(sent), nbytes, sent)
        arriving = DeviceRows(device.span(halo)[0], len(halo), nbytes, halo)
        into = zip(route.sources.tolist(), route.recv_starts.tolist(), route.recv_counts.tolist())
        out = zip(route.dests.tolist(), route.send_starts.tolist(), route.send_counts.tolist())
        requests = [
            comm.Irecv([arriving[start : start + count], count, row], rank, _TAG)
            for rank, start, count in into
        ]
        requests += [
            comm.Isend([leaving[start : start + count], count, row], rank, _TAG)
            for rank, start, count in out
        ]
        return MessageRequest(
            requests, sent, halo, waiting_for(route.sources.tolist(), where), ask
        ), halo

    def sum(self, flat: Array, halo: Array) -> Array:
        """`W X` in the working precision; `Device.from_real` converts it to the format of the rows."""
        with self.device.on(self.place):
            return self._sum(self.device.real(flat), halo)

    def _sum(self, X: Array, halo: Array) -> Array:
        weights = self.plan.weights
        total = self.device.zeros_like(X)
        dtype = np.dtype(self.device.format(X))
        if isinstance(weights, Runs):
            for start, stop, shifts, w in weights.runs:
                for shift, weight in zip(shifts.tolist(), w.astype(dtype).tolist()):
                    total[start:stop] += (
                        weight * X[start + shift : stop + shift] - weight * X[start:stop]
                    )
            whole: Array = X + total
            return whole
        rows = self.device.concatenate([X, self.device.real(halo)], 0) if len(halo) else X
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
        The phase in words.
    count : callable (row_bytes)
    """

    def __init__(
        self,
        context: Context,
        exchange: HaloExchange,
        plan: Plan,
        over: str,
        count: Callable[[int], None],
    ):
        self._context, self._exchange, self._plan, self._over = context, exchange, plan, over
        self._count = count
        self._sums: dict[tuple[Device, Place], DeviceSum] = {}

    @cached_property
    def usable(self) -> bool:
        """Whether rows stay on a device: there is no other rank, or MPI takes them and this rank is alone on its node."""
        aware = cuda_aware()[0]
        return self._context.size == 1 or (aware and self._context.memory is None)

    def start(self, device: Device, arrays: Sequence[Array], out: Array | None = None) -> Pending:
        """Mix arrays of one format on one device; `wait` returns their list."""
        columns, place, context = (
            Columns(device, arrays, self._plan.m, out),
            device.place(arrays[0]),
            self._context,
        )
        part = self._sums.setdefault((device, place), DeviceSum(device, place, self._plan))
        self._count(columns.row_bytes)
        ask = None
        if context.size > 1:
            kind = (
                "W(X) from device to device",
                words(tuple(columns.flat.shape[1:])),
                flat_dtype(columns.format),
            )
            ask = self._exchange.announce(self._plan, self._plan.halo_route, kind)
        row = context.row_type(columns.row_bytes)
        arriving, halo = part.start(context.comm, row, columns.flat, "W(X)" + self._over, ask)
        return Pending(arriving, lambda: columns.split(part.sum(columns.flat, halo)))


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
