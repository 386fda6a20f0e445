"""Decentralized training of a network on images: ``mpirun -n 4 python -m mpidec.train``, or `fit`
in a program.

>>> import mpidec.train
>>> trained = mpidec.train.fit(workers=4, epochs=2, batch=32)
>>> list(trained.metrics)[:3]
['step', 'time', 'rounds']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import Trained as Trained, fit as fit
    from .settings import Settings as Settings

__all__ = ["Settings", "Trained", "fit"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # on first use: PyTorch is loaded
        return getattr(import_module(".loop", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return __all__
