"""Registry of problems and data sets by name, for the command line and experiment files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._sparse import Samples, SparseSamples
from .._validation import Array
from .._words import summary
from ..datasets import DATASETS, Dataset, class_numbers, signs, stack
from ..plugins import Components
from .base import LinearModel, Problem
from .losses import Huber, LeastSquares, LogisticRegression, Softmax

# Arguments that are not settings of a problem.
RESERVED = (
    "mask",
    "x_star",
    "weight",
    "term",
    "intercept",
    "n",
    "agents",
)


Mask = NDArray[np.bool_] | None


class Entry(NamedTuple):
    """Registry entry of a problem: its class, its default data set and total ridge, and a
    one-line description.
    """

    make: type[LinearModel]
    data: str
    description: str
    l2_total: float = 0.0


PROBLEMS = {
    "least_squares": Entry(
        LeastSquares, "diabetes", "linear least squares, optionally with a ridge (l2)"
    ),
    "logistic": Entry(
        LogisticRegression, "breast_cancer", "logistic regression for two classes (l2)", 16.0
    ),
    "softmax": Entry(Softmax, "digits", "multinomial logistic regression (l2, classes)", 16.0),
    "huber": Entry(Huber, "diabetes", "linear regression with the Huber loss (delta, l2)"),
}


def _problem(thing: object) -> str | None:
    """Return what is wrong with `thing` as a problem, or None: a class or function of the local
    agents' (A, y), or of `agents`.
    """
    if not callable(thing):
        return (
            f"an object of type {type(thing).__name__}, expected a class or a function of (A, y) "
            "or of (agents, ...) that "
            "makes a problem"
        )
    missing = [name for name in ("value", "grad") if not hasattr(thing, name)]
    if inspect.isclass(thing) and missing:
        return (
            f"a class without {' and '.join(missing)}, expected a problem with value(X) and grad(X)"
        )
    first = _positional(thing)
    if (first[:1] != ["agents"] and len(first) < 2) or first[:1] == ["n"]:
        return (
            f"made from ({', '.join(first)}), expected its first parameters to be A and y, or "
            "agents"
        )
    return None


def _positional(make: Callable[..., Any]) -> list[str]:
    return [
        p.name
        for p in inspect.signature(make).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


PROBLEM_TABLE = Components(
    "problem", "mpidec.problems", {name: entry.make for name, entry in PROBLEMS.items()}, _problem
)


def _is_linear(make: Callable[..., Problem]) -> bool:
    return isinstance(make, type) and issubclass(make, LinearModel)


@dataclass(frozen=True)
class ProblemSpec:
    """A class or function that makes a problem, with what its signature says.

    Parameters
    ----------
    make : callable
        The class or function.
    name : str
        Its name, for messages.
    takes_data : bool
        Whether it is made from data (A, y), rather than from the numbers of the agents alone.
    parameters : dict
        Default values of its parameters (l2, delta, ...), by name.
    arguments : frozenset of str
        Names of all its arguments.
    takes_any : bool
        Whether it takes parameters of any name (``**params``).
    labels : {"numbers", "signs", "classes"}
        What targets it takes.
    """

    make: Callable[..., Problem]
    name: str
    takes_data: bool
    parameters: dict[str, Any]
    arguments: frozenset[str]
    takes_any: bool
    labels: str

    def accepts(self, argument: str) -> bool:
        """Return whether there is an argument with this name."""
        return self.takes_any or argument in self.arguments

    def of_data(self, A: Samples, y: Array, mask: Mask, **options: Any) -> Problem:
        """Return the problem of the local agents' arrays; `mask` is passed only where the problem
        has that parameter.  Sparse samples stay so for losses of linear models, and become arrays
        for others.

        Raises
        ------
        ValueError
            If agents have different numbers of samples, and the problem takes no mask, or the array
            of sparse samples would take more than 8 GiB.
        """
        if isinstance(A, SparseSamples) and not _is_linear(self.make):
            A = A.toarray()
        if self.accepts("mask"):
            return self.make(A, y, mask=mask, **options)
        if mask is not None:
            raise ValueError(
                f"{self.name} has no parameter mask, but some agents have fewer samples than "
                "others, expected "
                "mask=None among its parameters (True for samples), or a number of agents that "
                "divides the samples"
            )
        return self.make(A, y, **options)

    def of_agents(self, agents: Sequence[int], n: int, **options: Any) -> Problem:
        """Return the problem made from the numbers of the local agents (and of n, if it is a
        parameter).
        """
        return self.make(agents, **({"n": n} if "n" in self.arguments else {}), **options)


def problem_spec(problem: str | Callable[..., Problem]) -> ProblemSpec:
    """Return what makes a problem, from its name, or from the class or function itself.

    Raises
    ------
    TypeError, ValueError
        If there is no such problem, or `problem` does not make one.

    Examples
    --------
    >>> spec = problem_spec("huber")
    >>> spec.takes_data, spec.parameters, spec.takes_any, spec.labels
    (True, {'delta': 1.0, 'l2': 0.0}, False, 'numbers')
    >>> problem_spec(lambda agents, n, d=1: (list(agents), n, d)).of_agents(range(2), 4, d=3)
    ([0, 1], 4, 3)
    """
    make: Callable[..., Problem]
    if isinstance(problem, str):
        problem = PROBLEM_TABLE.key(problem)
        make = PROBLEM_TABLE[problem]
    elif hasattr(problem, "grad") and not inspect.isclass(problem):
        raise TypeError(
            f"problem is a {type(problem).__name__} object, which has its data already: pass a "
            "name or the class, or "
            "use it as it is"
        )
    elif (complaint := _problem(make := problem)) is not None:
        name = getattr(problem, "__name__", repr(problem))
        raise TypeError(f"{name} cannot be used as a problem: it is {complaint}")
    arguments = inspect.signature(make).parameters
    takes_data = _positional(make)[:1] != ["agents"]
    return ProblemSpec(
        make,
        problem if isinstance(problem, str) else getattr(make, "__name__", "of this class"),
        takes_data,
        parameters={
            p.name: p.default
            for p in list(arguments.values())[2 if takes_data else 1 :]
            if p.name not in RESERVED and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        },
        arguments=frozenset(arguments),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in arguments.values()),
        labels=getattr(make, "labels", "numbers"),
    )


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
    return {name: summary(make) for name, make in DATASETS.items()}


def default_dataset(problem: str) -> str:
    """Return the name of the data set that a problem uses if none is given.

    Examples
    --------
    >>> from mpidec.problems import default_dataset
    >>> default_dataset("logistic")
    'breast_cancer'
    """
    return PROBLEMS[check.component(problem, PROBLEM_TABLE.own, "problem")].data


def default_problem(data: Dataset) -> str:
    """Return the name of the problem that suits a data set: by the kind of its targets and the
    number of classes.

    Examples
    --------
    >>> from mpidec.problems import default_problem, load
    >>> default_problem(load("synthetic_least_squares"))
    'least_squares'
    """
    classes = len(np.unique(data.y))
    if data.kind == "regression" or classes > max(len(data.y) // 2, 2):
        return "least_squares"
    return "logistic" if classes <= 2 else "softmax"


def problem_parameters(problem: str | Callable[..., Problem]) -> dict[str, Any]:
    """Return the default values of the parameters of a problem (l2, delta, ...), by name.

    Examples
    --------
    >>> from mpidec.problems import problem_parameters
    >>> problem_parameters("huber")
    {'delta': 1.0, 'l2': 0.0}
    """
    return problem_spec(problem).parameters


def build(
    problem: str | Callable[..., Problem],
    dataset: Dataset,
    parts: Sequence[NDArray[np.intp]],
    lo: int,
    hi: int,
    **params: Any,
) -> Problem:
    """Return the problem of agents lo..hi-1 on a partitioned data set; :func:`load_problem` does
    all of it in one call.

    Parameters
    ----------
    problem : str or class
        ``least_squares``, ``logistic`` (any two label values become -1 and +1), ``softmax`` (any
        labels become class numbers), ``huber``, the name of a plug-in, or a class or function of
        (A, y).
    dataset : Dataset
        Whole data set, from :func:`load`.
    parts : list of n int arrays
        Sample numbers of all agents, from :func:`partition`.
    lo, hi : int
        Range of the local agents.
    **params
        Parameters of the problem: ``l2``, ``delta``, ``classes``; ``weight``, ``term``,
        ``intercept``.

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
    spec = problem_spec(problem)
    options, arrays = recipe(spec, dataset, parts, lo, hi, **params)
    return spec.of_data(*arrays, **options)


def recipe(
    spec: ProblemSpec,
    dataset: Dataset,
    parts: Sequence[NDArray[np.intp]],
    lo: int,
    hi: int,
    **params: Any,
) -> tuple[dict[str, Any], tuple[Samples, Array, Mask]]:
    """Return the options and the arrays (A, y, mask) from which :func:`build` makes a problem.

    Examples
    --------
    >>> from mpidec.problems import Dataset, partition
    >>> data = Dataset(np.eye(2), np.array([3.0, 4.0]), "mine", "regression")
    >>> parts = partition(data.y, 2, "blocks")
    >>> options, (A, y, mask) = recipe(problem_spec("huber"), data, parts, 0, 2, delta=2.0)
    >>> options, y.tolist()
    ({'delta': 2.0}, [[3.0], [4.0]])
    """
    for param in params:
        if param in RESERVED and not spec.accepts(param):
            raise ValueError(
                f"problem {spec.name} has no parameter {param}, expected a class derived from "
                "problems.LinearModel for it"
            )
        if param not in RESERVED and not spec.takes_any:
            check.known_name(param, spec.parameters, f"parameter of problem {spec.name}")
    options: dict[str, Any] = dict(params)
    try:
        y = _targets(spec, dataset, options)
    except ValueError as error:
        names = (
            f" (classes {', '.join(dataset.classes[:5])}{', ...' * (len(dataset.classes) > 5)})"
            if dataset.classes
            else ""
        )
        raise ValueError(
            f"data {dataset.name}{', label ' * bool(dataset.label)}{dataset.label}: {error}{names}"
            f"{'; ' * bool(dataset.hint)}{dataset.hint}"
        ) from None
    if (
        spec.make is LeastSquares
        and not options.get("l2")
        and options.get("term") is None
        and not options.get("intercept")
    ):
        options["x_star"] = dataset.x_star
    return options, stack(dataset.A, y, parts, lo, hi)


def _targets(spec: ProblemSpec, dataset: Dataset, options: dict[str, Any]) -> NDArray[Any]:
    """Return the targets as the problem takes them; of classes, their number joins the options."""
    y: NDArray[Any] = dataset.y
    if spec.labels == "classes":
        return _classes(y, options)
    if spec.labels == "signs":
        if len(y) and (y == y[0]).all():
            name = dataset.classes[int(y[0])] if dataset.classes else f"{y[0]:g}"
            raise ValueError(f"all {len(y)} labels are equal ({name}), expected two classes")
        y = signs(y)
    elif dataset.classes and all(re.match(r"[+-]?\d", word) for word in dataset.classes):
        raise ValueError(
            f"the targets are texts such as {dataset.classes[0]!r}, expected numbers: write them "
            "with a decimal point, and without units and percent signs"
        )
    elif dataset.classes:
        raise ValueError(
            "the targets are class names, expected numbers: use the problem logistic (two "
            "classes) or softmax"
        )
    return y


def _classes(y: NDArray[Any], options: dict[str, Any]) -> NDArray[Any]:
    numbers = class_numbers(y)
    found = int(numbers.max()) + 1
    if found > max(len(y) // 2, 2):
        raise ValueError(
            f"the labels take {found} distinct values in {len(y)} samples: is this a regression "
            "problem? "
            "(use the problem least_squares or huber)"
        )
    if found < 2:
        raise ValueError(f"all {len(y)} labels are equal, expected at least 2 classes")
    classes = options.get("classes")
    options["classes"] = found if classes is None else check.integer(classes, "classes", least=2)
    if options["classes"] < found:
        raise ValueError(
            f"classes = {classes}, expected at least {found}, the number of distinct labels"
        )
    return numbers
