r"""Products of stacks of matrices whose bits, for each agent, depend on its own numbers alone.

What a BLAS computes for an agent may depend on the kernel that a shape or a stride selects, and on
the alignment of the operands, which for row i of a stack follows from i.  So an agent's operands
are contiguous wherever it lives, and inner products of two vectors, for which the kernels of some
processors treat the first numbers, up to the next multiple of 16 bytes, separately, are left to
NumPy's pairwise sums.
"""

from __future__ import annotations

import numpy as np

from .._sparse import Samples, SparseSamples
from .._validation import Array


def times(A: Samples, X: Array) -> Array:
    """Return A_i X_i, (m, p, d), (m, d, c) -> (m, p, c).

    Examples
    --------
    >>> times(np.ones((1, 1, 3)), np.ones((1, 3, 1)))
    array([[[3.]]])
    """
    if isinstance(A, SparseSamples):
        return A.times(X)
    if not (A.flags.c_contiguous and X.flags.c_contiguous):
        A, X = np.ascontiguousarray(A), np.ascontiguousarray(X)
    product: Array
    if A.shape[1] == X.shape[2] == 1:
        product = (A * X.reshape(A.shape)).sum(axis=2, keepdims=True)
    else:
        product = A @ X
    return product


def adjoint(A: Samples, R: Array) -> Array:
    """Return A_i^* R_i, (m, p, d), (m, p, c) -> (m, d, c), without a copy of A_i.

    Examples
    --------
    >>> adjoint(np.full((1, 2, 1), 1j), np.ones((1, 2, 1)))
    array([[[0.-2.j]]])
    """
    if isinstance(A, SparseSamples):
        return A.adjoint(R)
    if not (A.flags.c_contiguous and R.flags.c_contiguous):
        A, R = np.ascontiguousarray(A), np.ascontiguousarray(R)
    product: Array
    turned = A.dtype.kind == "c"
    if turned:
        R = R.conj()
    if A.shape[2] == R.shape[2] == 1:
        product = (A.reshape(R.shape) * R).reshape(R.shape[:2]).sum(axis=1)[:, None, None]
    elif A.shape[1] == R.shape[2] == 1:
        product = A.transpose(0, 2, 1) * R
    else:
        product = A.transpose(0, 2, 1) @ R
    return product.conj() if turned else product
