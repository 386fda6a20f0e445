"""Functions of other packages that programs of BlueFog's time use, and current versions have
dropped.
"""

from __future__ import annotations

from functools import wraps

import networkx
import numpy as np
import torch


def restore() -> None:
    """Restore them; once per process.

    `networkx.to_numpy_matrix` (until networkx 3), lists of numbers that require gradients as arrays
    (until NumPy 1.19), which programs plot, and `use_cuda` as the second argument of
    `torch.autograd.profiler.profile` (until PyTorch 1.8).
    """
    if not hasattr(networkx, "to_numpy_matrix"):
        networkx.to_numpy_matrix = lambda *graph, **how: np.asmatrix(
            networkx.to_numpy_array(*graph, **how)
        )
    plain = torch.Tensor.__array__
    if getattr(plain, "__module__", "") == __name__:
        return

    def as_array(tensor: torch.Tensor, *dtype: object) -> np.ndarray:
        """Return the array of a tensor; also of a number that requires gradients."""
        return plain(tensor.detach() if tensor.ndim == 0 else tensor, *dtype)  # type: ignore[no-any-return]

    torch.Tensor.__array__ = as_array
    begin = torch.autograd.profiler.profile.__init__

    @wraps(begin)
    def profile(
        self: object, enabled: bool = True, use_cuda: bool = False, **options: object
    ) -> None:
        if use_cuda and torch.cuda.is_available():
            options.setdefault("use_device", "cuda")
        begin(self, enabled, **options)

    torch.autograd.profiler.profile.__init__ = profile
