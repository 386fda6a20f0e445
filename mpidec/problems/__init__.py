"""Losses with values, gradients and proximal operators on stacked rows; gradient oracles; data sets and partitions."""

from mpidec.problems.base import LinearModel, Problem
from mpidec.problems.batches import Batches
from mpidec.problems.custom import Custom
from mpidec.problems.datasets import (
    Dataset,
    breast_cancer,
    class_numbers,
    dataset,
    diabetes,
    digits,
    load,
    signs,
    standardized,
    synthetic_least_squares,
)
from mpidec.problems.loading import load_problem
from mpidec.problems.losses import Huber, LeastSquares, LogisticRegression, Softmax
from mpidec.problems.minimizer import minimizer
from mpidec.problems.neural import Neural
from mpidec.problems.oracles import Full, MiniBatch, Noisy, Oracle, Streams, Subgradient
from mpidec.problems.partition import partition, stack
from mpidec.problems.registry import (
    build,
    dataset_names,
    default_dataset,
    default_problem,
    problem_names,
    problem_parameters,
)
from mpidec.problems.terms import Separable, Simplex, Term, box, elastic_net, l1, simplex, term

__all__ = [
    "Batches",
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
    "Problem",
    "Separable",
    "Simplex",
    "Softmax",
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
