"""Losses with values, gradients and proximal operators on stacked rows; gradient oracles; data
sets and partitions.
"""

from typing import NoReturn

from ..datasets import (
    Batches,
    Dataset,
    breast_cancer,
    class_numbers,
    dataset,
    diabetes,
    digits,
    load,
    partition,
    signs,
    stack,
    standardized,
    synthetic_least_squares,
)
from ..plugins import no_attribute
from .base import LinearModel, Problem
from .coupled import ConstraintCoupled
from .custom import Custom
from .loading import load_problem
from .losses import Huber, LeastSquares, LogisticRegression, Softmax
from .minimizer import minimizer
from .neural import Neural
from .oracles import Full, MiniBatch, Noisy, Oracle, OracleLike, Streams, Subgradient
from .real_view import RealView
from .registry import (
    build,
    dataset_names,
    default_dataset,
    default_problem,
    problem_names,
    problem_parameters,
)
from .state_space import StateSpace
from .stream import Stream
from .terms import Separable, Simplex, Term, box, elastic_net, l1, simplex, term
from .variance_reduction import LSVRG, SAGA, SARAH, SVRG

__all__ = [
    "LSVRG",
    "SAGA",
    "SARAH",
    "SVRG",
    "Batches",
    "ConstraintCoupled",
    "Custom",
    "Dataset",
    "Full",
    "Huber",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "MiniBatch",
    "Neural",
    "Noisy",
    "Oracle",
    "OracleLike",
    "Problem",
    "RealView",
    "Separable",
    "Simplex",
    "Softmax",
    "StateSpace",
    "Stream",
    "Streams",
    "Subgradient",
    "Term",
    "box",
    "breast_cancer",
    "build",
    "class_numbers",
    "dataset",
    "dataset_names",
    "default_dataset",
    "default_problem",
    "diabetes",
    "digits",
    "elastic_net",
    "l1",
    "load",
    "load_problem",
    "minimizer",
    "partition",
    "problem_names",
    "problem_parameters",
    "signs",
    "simplex",
    "stack",
    "standardized",
    "synthetic_least_squares",
    "term",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name, __dir__())


def __dir__() -> list[str]:
    """The public names."""
    return __all__
