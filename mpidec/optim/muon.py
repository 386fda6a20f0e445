"""DeMuon: steps of equal length in all directions of a matrix, along the tracked average of the
workers' momenta.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from .._validation import choice, integer, number
from ..comm.mixing import Network
from .methods import AdaptThenCombine, Mixer, divided
from .rows import Bucket
from .scaling import Scaled

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of Muon


class DeMuon(AdaptThenCombine):
    r"""DeMuon: gradient tracking of momenta, and steps along the matrix sign of each tracked
    matrix.

    With the gradients G at X and :math:`\text{msgn}(U \Sigma V^T) = U V^T`, computed by
    Newton-Schulz iterations,

    .. math::
        M^k &= \beta M^{k-1} + (1 - \beta) G^k \\
        V^k &= W^k (V^{k-1} + M^k - M^{k-1}), \qquad V^{-1} = M^{-1} = 0 \\
        X^{k+1} &= W^k (X^k - \alpha \, \text{msgn}(V^k))

    with the learning rate :math:`\alpha` of the group.  A kernel of a convolution is a matrix with
    a row for each channel that it returns.  Other parameters, and those of groups with
    `orthogonalize=False`, take :math:`M^k = -u / \alpha` with the base optimizer's update u, and
    :math:`V^k` in place of its sign; or with `vectors="normalized"` a vector is a matrix of one
    row, with the sign :math:`v / |v|`.

    Parameters
    ----------
    momentum : float
        :math:`\beta`, in [0, 1).
    iterations : int
        Of Newton and Schulz, which bring the singular values from their fraction of the Frobenius
        norm to about 0.7 ... 1.2.
    vectors : {"update", "normalized"}

    References
    ----------
    C. He, S. Ren, J. Mao, E. Larsson, "DeMuon: a decentralized Muon for matrix optimization over
    graphs", arXiv:2510.01377 (2025).
    """

    of_gradients: ClassVar = True
    by_bucket: ClassVar = False

    def __init__(
        self,
        net: Network,
        buckets: list[Bucket],
        mixers: Sequence[Mixer],
        momentum: float,
        iterations: int,
        vectors: str,
    ):
        super().__init__(net, buckets, mixers)
        what = "algorithm 'demuon'"
        self._momentum = number(momentum, f"{what}: momentum", least=0.0, below=1.0)
        self._iterations = integer(iterations, f"{what}: iterations")
        self._normalized = (
            choice(vectors, f"{what}: vectors", ("update", "normalized")) == "normalized"
        )
        self._V = [torch.zeros_like(bucket.rows) for bucket in buckets]
        self._M = [torch.zeros_like(bucket.rows) for bucket in buckets]
        self._X: list[torch.Tensor] = []
        self._G: list[torch.Tensor] = []

    def _signed(self, bucket: Bucket, *rows: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        """The parts of `rows` that belong to each parameter whose sign is taken, shape (m, ...)."""
        for parts in zip(*map(bucket.parts, rows)):
            if bucket.group().get("orthogonalize", True) and (
                parts[0].ndim > 2 or self._normalized
            ):
                yield list(parts)

    def before(self, k: int, scaled: Scaled) -> bool:
        self._X = [bucket.rows.clone() for bucket in self._buckets]
        self._G = [torch.empty_like(X) for X in self._X]
        for bucket, G in zip(self._buckets, self._G):
            bucket.gradients(G)
        return False

    def after(self, k: int) -> None:
        sums, beta = [], self._momentum
        for i, (bucket, X, G) in enumerate(zip(self._buckets, self._X, self._G)):
            M = (X - bucket.rows).div_(bucket.lr or 1.0)
            for new, old, gradient in self._signed(bucket, M, self._M[i], G):
                new.copy_(old).lerp_(gradient, 1 - beta)
            skipped = bucket.rows.sum(1).isfinite() & ~G.sum(1).isfinite()  # by a GradScaler
            M[skipped] = self._M[i][skipped]
            sums.append(self._V[i] + M - self._M[i])
            self._M[i] = M
        self._V = self._joined(self._begun(k, sums))
        for bucket, X, V in zip(self._buckets, self._X, self._V):
            direction = V.clone()
            for (parts,) in self._signed(bucket, direction):
                for part in parts:
                    part.copy_(self._sign(part))
            X.sub_(direction, alpha=bucket.lr)
        self._mixed = self._joined(self._begun(k, self._X))
        self._X, self._G = [], []

    def _sign(self, part: torch.Tensor) -> torch.Tensor:
        if part.ndim < 2:
            return part / part.norm().clamp(min=torch.finfo(part.dtype).tiny)
        return matrix_sign(part.flatten(1), self._iterations).view(part.shape)

    def parts(self) -> list[tuple[Bucket, slice, Mixer]]:
        return divided(self._buckets, self._mixers[:1])

    def state(self) -> list[dict[str, Any]]:
        return [{"V": V.clone(), "M": M.clone()} for V, M in zip(self._V, self._M)]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._V, self._M = ([saved[name] for saved in state] for name in "VM")

    @property
    def extra(self) -> int:
        return 3 * super().extra


def matrix_sign(V: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    r"""About :math:`U W^T` of a matrix :math:`V = U \Sigma W^T`: the nearest matrix with
    orthonormal rows or columns.

    Iterations :math:`Y \leftarrow a Y + b (Y Y^T) Y + c (Y Y^T)^2 Y`, from :math:`Y = V / \|V\|_F`,
    with Muon's coefficients, in the dtype of `V`, but at least of 32 bits; `torch.optim.Muon` has
    them in bfloat16 only, in steps of its own.

    Examples
    --------
    >>> V = torch.diag(torch.tensor([3.0, -0.5]))
    >>> [round(value, 2) for value in matrix_sign(V).diag().tolist()]
    [0.71, -1.04]
    """
    a, b, c = NEWTON_SCHULZ
    Y = V.float() if V.dtype in (torch.float16, torch.bfloat16) else V
    Y = Y.mT if V.shape[0] > V.shape[1] else Y
    Y = Y / Y.norm().clamp(min=torch.finfo(Y.dtype).tiny)
    for _ in range(iterations):
        A = Y @ Y.mT
        Y = a * Y + (b * A + c * A @ A) @ Y
    return (Y.mT if V.shape[0] > V.shape[1] else Y).to(V.dtype)
