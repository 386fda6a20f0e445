"""Rows on devices over a process group, on the CPU: see tests/comm/mixing/test_groups.py."""

import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

import mpidec
from mpidec.comm.arrays import devices
from mpidec.comm.runtime import device_group

sys.modules["mpi4py"] = None  # type: ignore[assignment]


class OnCPU(devices.Torch):
    """Tensors of the host as those of a device."""

    kind = "cpu"

    @property
    def library(self):
        stream = SimpleNamespace(synchronize=lambda: None)
        cuda = SimpleNamespace(
            device=lambda place: nullcontext(), current_stream=lambda place: stream
        )
        return SimpleNamespace(**vars(torch) | {"cuda": cuda})


class Work:
    """A work of gloo that says when it is complete, as those of NCCL do."""

    def __init__(self, work):
        self._thread = threading.Thread(target=work.wait)
        self._thread.start()

    def is_completed(self):
        return not self._thread.is_alive()

    def wait(self):
        self._thread.join()


real, batches = dist.batch_isend_irecv, []


def batch(operations):
    batches.append(len(operations))
    return [Work(work) for work in real(operations)]


if not dist.is_initialized():
    dist.init_process_group("gloo")
with mpidec.Network(2 * dist.get_world_size(), process_group=dist.group.WORLD) as net:
    X = np.random.default_rng(0).normal(size=(net.n, 3))[net.lo : net.hi]
    for name in ("ring", "one_peer_exponential", "star"):
        W = net.mixer(name)
        for dtype in (torch.float64, torch.bfloat16, torch.complex64):
            T = torch.from_numpy(X).to(dtype)
            before = [W.at(k)(T) for k in range(3)]
            kept = devices.KNOWN[:], device_group._HOST_ONLY
            devices.KNOWN[:], device_group._HOST_ONLY = [OnCPU()], ("",)
            dist.batch_isend_irecv = batch
            after = [W.at(k)(T) for k in range(3)]
            devices.KNOWN[:], device_group._HOST_ONLY = kept
            dist.batch_isend_irecv = real
            assert all(torch.equal(a, b) for a, b in zip(before, after)), (name, dtype)
    assert not any(name.startswith("mpi4py.") for name in sys.modules)
if dist.get_rank() == 0:
    print("batches", sum(batches) > 0, flush=True)
