"""Losses with values, gradients and proximal operators on stacked rows; gradient oracles; data sets and partitions."""

from mpidec.problems.base import LinearModel, Problem
from mpidec.problems.custom import Custom
from mpidec.problems.datasets import (
    Dataset,
    breast_cancer,
    class_numbers,
    diabetes,
    digits,
    load,
    signs,
    standardized,
    synthetic_least_squares,
)
from mpidec.problems.losses import Huber, LeastSquares, LogisticRegression, Softmax
from mpidec.problems.oracles import Full, MiniBatch, Noisy, Oracle, Streams
from mpidec.problems.partition import partition, stack
from mpidec.problems.registry import (
    build,
    dataset_names,
    default_dataset,
    problem_names,
    problem_parameters,
)

__all__ = [
    "Custom",
    "Dataset",
    "Full",
    "Huber",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "MiniBatch",
    "Noisy",
    "Oracle",
    "Problem",
    "Softmax",
    "Streams",
    "breast_cancer",
    "build",
    "class_numbers",
    "dataset_names",
    "default_dataset",
    "diabetes",
    "digits",
    "load",
    "partition",
    "problem_names",
    "problem_parameters",
    "signs",
    "stack",
    "standardized",
    "synthetic_least_squares",
]
