"""Registry of problems and data sets by name, for the command line and experiment files."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidec.problems import checks
from mpidec.problems.base import LinearModel
from mpidec.problems.datasets import DATASETS, Dataset, class_numbers, signs
from mpidec.problems.losses import Huber, LeastSquares, LogisticRegression, Softmax
from mpidec.problems.partition import stack


class Entry(NamedTuple):
    """Registry entry of a problem: its class, its default data set, and a one-line description."""

    make: type[LinearModel]
    data: str
    description: str


PROBLEMS = {
    "least_squares": Entry(LeastSquares, "diabetes", "linear least squares, optionally with a ridge (l2)"),
    "logistic": Entry(LogisticRegression, "breast_cancer", "logistic regression for two classes (l2)"),
    "softmax": Entry(Softmax, "digits", "multinomial logistic regression (l2, classes)"),
    "huber": Entry(Huber, "diabetes", "linear regression with the Huber loss (delta, l2)"),
}


def problem_names() -> dict[str, str]:
    """Return the one-line description of every problem, by name.

    Examples
    --------
    >>> from mpidec.problems import problem_names
    >>> list(problem_names())
    ['least_squares', 'logistic', 'softmax', 'huber']
    """
    return {name: entry.description for name, entry in PROBLEMS.items()}


def dataset_names() -> dict[str, str]:
    """Return the one-line description of every built-in data set, by name.

    Examples
    --------
    >>> from mpidec.problems import dataset_names
    >>> list(dataset_names())
    ['breast_cancer', 'digits', 'diabetes', 'synthetic_least_squares']
    """
    return {name: (make.__doc__ or "").partition("\n")[0].rstrip(".") for name, make in DATASETS.items()}


def default_dataset(problem: str) -> str:
    """Return the name of the data set that a problem uses if none is given.

    Examples
    --------
    >>> from mpidec.problems import default_dataset
    >>> default_dataset("logistic")
    'breast_cancer'
    """
    return PROBLEMS[checks.choice(problem, PROBLEMS, "problem")].data


def problem_parameters(problem: str) -> dict[str, Any]:
    """Return the default values of the parameters of a problem (l2, delta, ...), by name.

    Examples
    --------
    >>> from mpidec.problems import problem_parameters
    >>> problem_parameters("huber")
    {'delta': 1.0, 'l2': 0.0}
    """
    make = PROBLEMS[checks.choice(problem, PROBLEMS, "problem")].make
    named = list(inspect.signature(make).parameters.values())[2:]
    return {p.name: p.default for p in named if p.kind is not p.KEYWORD_ONLY}


def build(problem: str, dataset: Dataset, parts: Sequence[NDArray[np.intp]], lo: int, hi: int,
          **params: Any) -> LinearModel:
    """Return the problem of agents lo..hi-1 on a partitioned data set.

    Parameters
    ----------
    problem : str
        ``least_squares``, ``logistic`` (any two label values become -1 and +1), ``softmax`` (any labels become class
        numbers) or ``huber``.
    dataset : Dataset
        Whole data set, from :func:`load`.
    parts : list of n int arrays
        Sample numbers of all agents, from :func:`partition`.
    lo, hi : int
        Range of the local agents.
    **params
        Parameters of the problem: ``l2``, ``delta``, ``classes``.

    Raises
    ------
    ValueError, TypeError
        If a name is unknown, a parameter out of range, or the labels do not match the problem.

    Examples
    --------
    >>> from mpidec.problems import build, load, partition
    >>> data = load("synthetic_least_squares", n=4, p=5, d=3)
    >>> parts = partition(data.y, 4, data.partition)
    >>> build("least_squares", data, parts, 0, 4).solution().round(6) == data.x_star.round(6)
    array([ True,  True,  True])
    """
    known = problem_parameters(problem)
    for name in params:
        checks.choice(name, known, f"parameter of problem {problem}")
    y: NDArray[Any] = dataset.y
    options: dict[str, Any] = dict(params)
    try:
        if problem == "logistic":
            y = signs(y)
        elif problem == "softmax":
            y = _classes(y, options)
    except ValueError as error:
        raise ValueError(f"data {dataset.name}: {error}") from None
    if problem == "least_squares" and not options.get("l2"):
        options["x_star"] = dataset.x_star
    A, y, mask = stack(dataset.A, y, parts, lo, hi)
    return PROBLEMS[problem].make(A, y, mask=mask, **options)


def _classes(y: NDArray[Any], options: dict[str, Any]) -> NDArray[Any]:
    numbers = class_numbers(y)
    found = int(numbers.max()) + 1
    if found > max(len(y) // 2, 2):
        raise ValueError(f"the labels take {found} distinct values in {len(y)} samples: is this a regression problem? "
                         "(use the problem least_squares or huber)")
    if found < 2:
        raise ValueError(f"all {len(y)} labels are equal, expected at least 2 classes")
    classes = options.get("classes")
    options["classes"] = found if classes is None else checks.integer(classes, "classes", least=2)
    if options["classes"] < found:
        raise ValueError(f"classes = {classes}, expected at least {found}, the number of distinct labels")
    return numbers
