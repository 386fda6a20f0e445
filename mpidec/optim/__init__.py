"""Decentralized training of PyTorch models: any model, any torch optimizer, any topology."""

from .. import nn as _nn  # noqa: F401  (says what is missing where there is no PyTorch)
from .algorithms import algorithm as algorithm, names as names
from .averager import Averager as Averager
from .broadcast import (
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)
from .decentralized import Decentralized as Decentralized

__all__ = [
    "Averager",
    "Decentralized",
    "algorithm",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "names",
]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
