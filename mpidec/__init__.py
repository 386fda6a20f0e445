"""mpidec: decentralized optimization and learning over MPI.

n agents, each with its own data, agree on a solution by communicating only with their neighbours.
Their iterates are the rows of one stack, `W` is the operator that mixes rows, and a solver consists
of the equations of its paper::

    result = mpidec.solve(problem, mpidec.solvers.GradientTracking(0.1),
    mpidec.topology.exponential(16), steps=500)
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ._process import startup as startup  # before what takes long to load

if TYPE_CHECKING:
    from . import (
        nn as nn,
        optim as optim,
        plot as plot,
        problems as problems,
        solvers as solvers,
        sweep as sweep,
        testing as testing,
        topology as topology,
        train as train,
    )
    from .driver.simulate import simulate as simulate
from ._version import __version__ as __version__
from .comm.mixing import Mixer as Mixer, Network as Network, Pending as Pending
from .driver.iterate import iterate as iterate
from .driver.plan import Queue as Queue
from .driver.solve import Outcome as Outcome, Result as Result, solve as solve
from .driver.tune import tune as tune
from .exceptions import (
    ConfigError as ConfigError,
    InputError as InputError,
    Interrupted as Interrupted,
    RankMismatchError as RankMismatchError,
    RanksLost as RanksLost,
    ResumeError as ResumeError,
    RunsError as RunsError,
    Unstable as Unstable,
)
from .plugins import no_attribute
from .record import Record as Record, read as read

# Imported on first use: jobs with many ranks start faster.
_LAZY = (
    "nn",
    "optim",
    "plot",
    "problems",
    "solvers",
    "sweep",
    "testing",
    "theory",
    "topology",
    "train",
)
_PYTORCH = ("nn", "optim", "train")
__all__ = [
    "ConfigError",
    "InputError",
    "Interrupted",
    "Mixer",
    "Network",
    "Outcome",
    "Pending",
    "Queue",
    "RankMismatchError",
    "RanksLost",
    "Record",
    "Result",
    "ResumeError",
    "RunsError",
    "Unstable",
    "__version__",
    "iterate",
    "read",
    "solve",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return import_module(f".{name}", __name__)
    if name == "simulate":
        return import_module(".driver.simulate", __name__).simulate
    raise no_attribute(__name__, name, __dir__())


def __dir__() -> list[str]:
    # They raise an ImportError with the remedy on use.
    missing = _PYTORCH if find_spec("torch") is None else ()
    return sorted({*__all__, *_LAZY, "simulate"} - {*missing})
