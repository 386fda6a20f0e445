"""Networks in PyTorch: models by name, m workers of one model as stacked parameters, samplers,
learning-rate schedules.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    from .._words import command_of_extras as _command

    raise ImportError(
        f"mpidec.nn needs PyTorch, which is not installed: {_command('torch')}"
    ) from None

from . import models, schedules
from .sampling import sampler
from .stacked import Stacked

__all__ = ["Stacked", "models", "sampler", "schedules"]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
