"""Codecs: how rows are encoded for sending."""

from __future__ import annotations

from inspect import signature
from typing import Any

from ...._validation import takes
from ....plugins import canonical, nearest
from .base import Codec as Codec
from .of_runs import CodecOfRuns as CodecOfRuns
from .quantizers import (
    QSGD as QSGD,
    BFloat16 as BFloat16,
    Blockwise8 as Blockwise8,
    Float16 as Float16,
    Identity as Identity,
)
from .sparsifiers import RandK as RandK, TopK as TopK

CODECS: dict[str, type[Codec]] = {
    "identity": Identity,
    "float16": Float16,
    "bfloat16": BFloat16,
    "blockwise8": Blockwise8,
    "qsgd": QSGD,
    "top_k": TopK,
    "rand_k": RandK,
}
"""All codecs by name."""
METHODS = {
    "nbytes": ("d", "dtype"),
    "encode": ("X", "step", "agents"),
    "decode": ("rows", "d", "dtype", "step", "agents"),
    "delta": ("d",),
}
"""The methods of a codec, and what they are called with."""


def codec(name: str | Codec, seed: int | None = None, **options: Any) -> Codec:
    """Return the codec with this name and these parameters; a `Codec` is returned unchanged.

    `seed` (by default 0) is used only if the codec draws random numbers.

    Raises
    ------
    ValueError, TypeError
        If no codec or no parameter has this name (the message lists similar names), or a parameter
        is out of range.

    Examples
    --------
    >>> codec("top_k", fraction=0.05)
    TopK(fraction=0.05, k=None)
    >>> codec("RandK", 3, k=2), codec("float16", 3)
    (RandK(fraction=0.01, k=2, seed=3), Float16())
    >>> codec("toop_k")
    Traceback (most recent call last):
    ...
    ValueError: codec 'toop_k' is unknown: did you mean top_k?
    """
    if isinstance(name, Codec):
        for method, parameters in METHODS.items():
            takes(getattr(name, method), f"{type(name).__name__}.{method}", *parameters)
        if given := [*options, *["seed"] * (seed is not None)]:
            raise ValueError(
                f"{name!r} already has its parameters, got {', '.join(given)}: pass the codec's "
                "name instead"
            )
        return name
    key = canonical(str(name), CODECS)
    if key is None:
        raise ValueError(f"codec {name!r} is unknown: {nearest(str(name), CODECS)}")
    known = list(signature(CODECS[key]).parameters)
    for option in options:
        if option not in known:
            raise ValueError(f"codec {key} has no parameter {option!r}: {nearest(option, known)}")
    return CODECS[key](
        **options, **({"seed": seed} if seed is not None and "seed" in known else {})
    )
