"""Formats of arrays, and rows in them."""

import contextlib

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.arrays.formats import BFLOAT16, narrow, widen

FORMATS = ["<f4", "<f8", "<c8", "<c16", "<f2", BFLOAT16]
N = 7


def stack(n=N, shape=(3,), format="<f8", seed=0):
    """Rows with the values that the format has, and the same in the format itself."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, *shape))
    if format == BFLOAT16:
        return widen(narrow(X.astype(np.float32), BFLOAT16), BFLOAT16)
    return (X + 1j * rng.standard_normal(X.shape) if np.dtype(format).kind == "c" else X).astype(
        format
    )


def some(formats, quick=("<f4", "<c16", BFLOAT16)):
    """The formats as parameters, most of them slow under several ranks."""
    return [
        pytest.param(
            one, marks=pytest.mark.slow if MPI.COMM_WORLD.size > 1 and one not in quick else ()
        )
        for one in formats
    ]


def rounded(X, format):
    return widen(narrow(X, BFLOAT16), BFLOAT16) if format == BFLOAT16 else X.astype(format)


def expected(W, X, format):
    """`W X` by NumPy rows in the precision of the arithmetic, rounded once."""
    wide = X.astype(np.float32) if format in ("<f2", BFLOAT16) else X
    return rounded(W(wide), format)


def pytorch():
    """The module; not on many ranks, whose imports take longer than all the tests."""
    if MPI.COMM_WORLD.size > 4:
        pytest.skip("PyTorch on up to 4 ranks")
    return pytest.importorskip("torch")


@contextlib.contextmanager
def network(n=N, topology=None, transport="auto"):
    """A mixer, and this rank's slice."""
    with mpidec.Network(n, transport=transport) as net:
        yield net.mixer(topology or T.exponential(n)), slice(net.lo, net.hi)
