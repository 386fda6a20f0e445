"""Mixing of rows that stay on a device: halos through CUDA-aware MPI, sums by the operations of the device library.

Each operation is rounded separately, in the order of `kernels.weighted`: results are bit-identical to those on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays.devices import Device
from ..arrays.host import check_out, check_rows
from ..kernels.weighted import Runs, Weights
from ..runtime.cuda_aware import DeviceRows
from ..runtime.mpi import MPI
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

    def __init__(self, device: Device, place: Any, plan: Plan):
        self.device, self.place, self.plan = device, place, plan
        self._sent: Any = None  # numbers of the rows that are sent, on the device
        self._slots: dict[np.dtype, list[tuple[Any, Any, Any, Any]]] = {}

    def start(
        self,
        comm: MPI.Intracomm,
        row: MPI.Datatype,
        flat: Any,
        where: str,
        ask: Callable[[], None] | None = None,
    ) -> tuple[MessageRequest | None, Any]:
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

    def sum(self, flat: Any, halo: Any) -> Any:
        """`W X` in the working precision; `Device.from_real` converts it to the format of the rows."""
        with self.device.on(self.place):
            return self._sum(self.device.real(flat), halo)

    def _sum(self, X: Any, halo: Any) -> Any:
        weights = self.plan.weights
        total = self.device.zeros_like(X)
        dtype = np.dtype(self.device.format(X))
        if isinstance(weights, Runs):
            for start, stop, shifts, w in weights.runs:
                for shift, weight in zip(shifts.tolist(), w.astype(dtype).tolist()):
                    total[start:stop] += (
                        weight * X[start + shift : stop + shift] - weight * X[start:stop]
                    )
            return X + total
        rows = self.device.concatenate([X, self.device.real(halo)], 0) if len(halo) else X
        for agents, places, w, v in self._terms(weights, dtype):
            total[agents] += w * rows[places] - v * X[agents]
        return X + total

    def _terms(self, weights: Weights, dtype: np.dtype) -> list[tuple[Any, Any, Any, Any]]:
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

    def __init__(self, device: Device, arrays: Sequence[Any], m: int, out: Any = None):
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

    def split(self, rows: Any) -> list[Any]:
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
