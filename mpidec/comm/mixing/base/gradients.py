"""Gradients of mixings: autograd takes the gradient of `Y = W X` back through the transposed
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, cast

import numpy as np

from ...runtime import Pending
from .packing import RowsT, by_name


class Transposable(Protocol):
    """A linear operator on rows, and its transpose."""

    @property
    def T(self) -> Transposable:
        """The transposed operator."""

    def __call__(self, X: RowsT) -> RowsT:
        """The operator applied to the rows of one or several arrays."""

    def start(self, X: RowsT) -> Pending:
        """Return the same, begun."""


def requires_grad(X: object) -> bool:
    """Return whether autograd records what is done with a tensor, or with one of several."""
    if type(X) is np.ndarray:
        return False
    required = getattr(X, "requires_grad", None)
    if required is None and isinstance(X, (list, tuple, Mapping)):
        return any(map(requires_grad, X.values() if isinstance(X, Mapping) else X))
    if not required:
        return False
    import torch

    return bool(torch.is_grad_enabled())


def refuse_grad(X: object, out: object = None) -> None:
    """Raise if autograd records the input or the output of an operation that has no gradient.

    Raises
    ------
    TypeError
    """
    if requires_grad(X) or (out is not None and requires_grad(out)):
        raise TypeError(
            "the tensor requires grad, and only W(X) of a plain mixer, without out, has a "
            "gradient: use "
            "net.mixer(topology)(X), or pass the tensor without its history, X.detach()"
        )


def mix_with_grad(phase: Transposable, X: RowsT) -> RowsT:
    """`W X` of one or several tensors, in the graph of autograd."""
    mix: Callable[..., tuple[Any, ...]] = _function().apply
    if isinstance(X, Mapping):
        names = by_name(X)
        arrays = mix(phase, lambda given: dict(zip(names, given)), *(X[name] for name in names))
        mixed = dict(zip(names, arrays))
        return cast(RowsT, {name: mixed[name] for name in X})
    if isinstance(X, (list, tuple)):
        return cast(RowsT, list(mix(phase, list, *X)))
    return cast(RowsT, mix(phase, _only, X)[0])


def _only(arrays: Sequence[Any]) -> Any:
    return arrays[0]


@cache
def _function() -> Any:
    """Return the function of autograd; torch is imported when a tensor needs it."""
    import torch

    class Mix(torch.autograd.Function):  # type: ignore[misc]
        """`forward` mixes with W, `backward` with its transpose; both are collective."""

        @staticmethod
        def forward(
            phase: Transposable, arranged: Callable[[Sequence[Any]], Any], *arrays: Any
        ) -> tuple[Any, ...]:
            mixed = phase.start(arranged(arrays)).wait()
            if arranged is _only:
                return (mixed,)
            return tuple(mixed.values()) if isinstance(mixed, dict) else tuple(mixed)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
            ctx.phase, ctx.one = inputs[0], inputs[1] is _only
            ctx.mark_non_differentiable(
                *(
                    Y
                    for Y, needed in zip(output, ctx.needs_input_grad[2:])
                    if not needed and isinstance(Y, torch.Tensor)
                )
            )

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            needed = ctx.needs_input_grad[2:]
            if ctx.one:
                return None, None, ctx.phase.T(gradients[0])
            mixed = iter(ctx.phase.T([G for G, its in zip(gradients, needed) if its]))
            return (None, None, *(next(mixed) if its else None for its in needed))

    return Mix
