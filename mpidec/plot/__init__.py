"""Figures of runs: f - f*, consensus and error against steps, bytes, seconds or gradients; and
pictures of networks with values (`field`, `animate`).

python -m mpidec.plot run.h5 [more.h5 ...] -o figure.pdf [--x steps bytes] [--y error] [--style
paper] [--kind agents]
"""

from .agents import agents as agents
from .field import Animation as Animation, Frame as Frame, animate as animate, field as field
from .runs import figure as figure

__all__ = ["Animation", "Frame", "agents", "animate", "field", "figure"]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
